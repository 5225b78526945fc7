"""Results of tests in Python, in the form of cargo, so that `tests/run` counts and lists them."""

import os
import shlex
import sys

# What tests see of the suite's size (tests/run --help): with the same values a test does the same again.
VARIABLES = ("NEMESIA_QUICK", "NEMESIA_TEST_SEED", "NEMESIA_TEST_STEPS", "NEMESIA_TEST_PART")


def repeat(name):
    """Returns the command that runs the test with this name again."""
    words = [f"{variable}={shlex.quote(os.environ[variable])}" for variable in VARIABLES if variable in os.environ]
    return " ".join([*words, os.path.relpath(sys.argv[0]), shlex.quote(name)])


def skip(test, reason):
    """Reports a test that can't run."""
    line = f"SKIPPED: {test}: {reason}\n"
    sys.stdout.write(line)
    if os.environ.get("NEMESIA_SKIP_LOG"):
        with open(os.environ["NEMESIA_SKIP_LOG"], "a", encoding="utf-8") as log:
            log.write(line)


def conclude(passed, failed):
    """Prints the number of tests that passed, and of each that failed its name, why, and how to repeat it.

    Of a long output only the end may be kept, and the report of `tests/run` repeats these lines. Returns the status
    for `sys.exit`.
    """
    if failed:
        print("\nfailures:\n")
        for name, why in failed:
            print(f"---- {name}\n{why}\nto repeat it: {repeat(name)}\n")
    print(f"test result: {'FAILED' if failed else 'ok'}. {passed} passed; {len(failed)} failed; 0 ignored")
    return 1 if failed else 0
