"""Tests of the groups of parts, with a program in place of the guest."""

import contextlib
import io
import pathlib
import tempfile

import groups
from caching import expect

PASSED = "test result: ok. 1 passed; 0 failed"


def tests():
    return [("parts_of_a_group_share_a_guest", parts_of_a_group_share_a_guest),
            ("a_part_whose_guest_dies_is_run_again", a_part_whose_guest_dies_is_run_again),
            ("a_guest_that_always_dies_fails_the_part_and_the_others_run",
             a_guest_that_always_dies_fails_the_part_and_the_others_run),
            ("a_part_that_fails_is_not_run_again", a_part_that_fails_is_not_run_again),
            ("a_part_without_tests_fails", a_part_without_tests_fails)]


def run(names, body):
    """Runs parts in guests that are a shell script: `$name` is the part, `$count` the number of guests so far.

    Returns the results, and the parts that ran, in order.
    """
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        script = place / "guest"
        script.write_text(f"""#!/bin/bash
shift 5
echo guest >>{place}/guests
count=$(wc -l <{place}/guests)
for name; do
    echo $name >>{place}/ran
    echo "=== part $name begins"
    status=0
    {body}
    echo "=== part $name ends with status $status after 1 s"
done
""")
        script.chmod(0o755)
        parts = [groups.Part(name, "rxe", "true", 60) for name in names]
        # Its lines must not be counted.
        with contextlib.redirect_stdout(io.StringIO()):
            results = groups.Group(parts, {}, place, str(script)).run()
        return results, (place / "ran").read_text().split(), len((place / "guests").read_text().split())


def parts_of_a_group_share_a_guest():
    results, ran, guests = run(["a", "b"], f"echo '{PASSED}'")
    expect(results == {"a": None, "b": None} and ran == ["a", "b"] and guests == 1, f"{results} {ran} {guests}")


def a_part_whose_guest_dies_is_run_again():
    results, ran, guests = run(["a", "b", "c"], f"[ $name$count != b1 ] || exit 125; echo '{PASSED}'")
    expect(results == {"a": None, "b": None, "c": None}, str(results))
    expect(ran == ["a", "b", "b", "c"] and guests == 2, f"{ran} {guests}")


def a_guest_that_always_dies_fails_the_part_and_the_others_run():
    results, ran, guests = run(["a", "b"], f"[ $name != a ] || exit 124; echo '{PASSED}'")
    expect(results["b"] is None and "died or hung 3 times" in results["a"], str(results))
    expect(ran == ["a", "a", "a", "b"] and guests == 4, f"{ran} {guests}")


def a_part_that_fails_is_not_run_again():
    results, ran, guests = run(["a", "b"], f"[ $name != a ] || status=1; echo '{PASSED}'")
    expect(results["b"] is None and PASSED in results["a"], str(results))
    expect(ran == ["a", "b"] and guests == 1, f"{ran} {guests}")


def a_part_without_tests_fails():
    results, _, _ = run(["a"], "true")
    expect(results["a"] is not None, str(results))
