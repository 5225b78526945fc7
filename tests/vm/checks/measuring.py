"""Tests of how `tests/vm/perftest` evaluates numbers; none of them needs a guest."""

import importlib.machinery
import importlib.util
import types

import image
from caching import expect

LATENCY = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
99% percentile[usec]   99.9% percentile[usec]
 8       1000          20.16          301.22       {0}    	       23.09       	13.46  		111.53  		301.22
"""
BANDWIDTH = """\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 8          1000             12.00              {0}		    0.000905
"""


def tests():
    return [("medians_and_ratios_come_from_what_was_printed", medians_and_ratios_come_from_what_was_printed),
            ("perftest_is_compared_with_itself", perftest_is_compared_with_itself),
            ("runs_that_fail_or_are_missing_are_counted", runs_that_fail_or_are_missing_are_counted),
            ("limits_judge_latency_and_bandwidth_each_its_way", limits_judge_latency_and_bandwidth_each_its_way)]


def program():
    loader = importlib.machinery.SourceFileLoader("perftest", str(image.HERE / "perftest"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("perftest", loader))
    loader.exec_module(module)
    module.say = lambda _: None
    return module


def options(**more):
    defaults = {"device": "rxe", "tests": ["latency"], "sizes": [8], "rounds": 3, "beside": [("ours", "true")],
                "at_most": None, "at_least": None, "twice": False, "engine": False}
    return types.SimpleNamespace(**{**defaults, **more})


def printed(runs):
    """Yields the lines that a session prints for runs with name, test, output and status."""
    for name, test, text, status in runs:
        yield from (f"@@ run {name} {test} 8\n", *text.splitlines(True), "\n", f"@@ ended {status}\n")


def both(test, yardstick, other):
    """Yields rounds in which perftest and another command have these results."""
    table = LATENCY if test == "latency" else BANDWIDTH
    for theirs, ours in zip(yardstick, other):
        yield "perftest", test, table.format(theirs), 0
        yield "ours", test, f"size 8: {ours}\n", 0


def medians_and_ratios_come_from_what_was_printed():
    module = program()
    found, failures = module.results(printed(both("latency", (20, 30, 10), (44, 22, 21.5))), options())
    theirs, ours = module.summary(found, options())
    expect(failures == 0 and theirs["median"] == 20 and ours["median"] == 22, f"{theirs} {ours}")
    expect(abs(ours["to_perftest"] - 1.1) < 1e-9 and ours["is_within"] is None, str(ours))
    expect((theirs["best"], ours["best"], ours["best_to_perftest"]) == (10, 21.5, 2.15), f"{theirs} {ours}")
    found, _ = module.results(printed(both("bandwidth", (100, 100, 100), (10, 20, 10))), options(tests=["bandwidth"]))
    expect([entry["best"] for entry in module.summary(found, options())] == [104.8576, 20], f"not the most: {found}")
    expect(found[("perftest", "bandwidth", 8)] == [104.8576] * 3, f"MiB/s were not converted: {found}")


def perftest_is_compared_with_itself():
    module = program()
    given = options(twice=True, beside=[], at_most=1.1)
    names = ("perftest", "perftest-again")
    runs = [(name, "latency", LATENCY.format(value), 0) for value in (10, 20, 30) for name in names]
    runs[3] = ("perftest-again", "latency", LATENCY.format(40), 0)
    found, failures = module.results(printed(runs), given)
    theirs, again = module.summary(found, given)
    expect(failures == 0 and again["values"] == [10, 40, 30], f"{failures} {found}")
    # The ratio of perftest-again is the noise, to which no limit applies.
    expect((theirs["median"], again["to_perftest"], again["is_within"]) == (20, 1.5, None), f"{theirs} {again}")
    names = [name for name, _ in module.contenders(given, "latency", 8)]
    expect(names == ["perftest", "perftest-again"], str(names))


def runs_that_fail_or_are_missing_are_counted():
    module = program()
    runs = list(both("latency", (20, 20), (22, 22)))
    runs[1] = (*runs[1][:3], 3)
    runs[2] = ("perftest", "latency", "no table", 0)
    found, failures = module.results(printed(runs), options())
    expect(failures == 4, f"two failed and two are missing, but {failures} were counted")
    expect(found[("ours", "latency", 8)] == [None, 22.0], str(found))


def limits_judge_latency_and_bandwidth_each_its_way():
    module = program()
    for test, limits, is_within in (("latency", {"at_most": 1.05}, False), ("latency", {"at_most": 1.15}, True),
                                    ("bandwidth", {"at_least": 1.2}, False), ("bandwidth", {"at_least": 1.0}, True)):
        given = options(tests=[test], **limits)
        # 1.1 times perftest's result, which is in units of 2^20 bytes.
        other = 11 if test == "latency" else 11 * 1.048576
        found, _ = module.results(printed(both(test, (10, 10, 10), (other,) * 3)), given)
        expect([entry["is_within"] for entry in module.summary(found, given)] == [None, is_within], f"{test} {limits}")
