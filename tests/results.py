"""Results of tests in Python, in the form of cargo, so that `tests/run` counts and lists them."""

import os
import sys


def skip(test, reason):
    """Reports a test that can't run."""
    line = f"SKIPPED: {test}: {reason}\n"
    sys.stdout.write(line)
    if os.environ.get("NEMESIA_SKIP_LOG"):
        with open(os.environ["NEMESIA_SKIP_LOG"], "a", encoding="utf-8") as log:
            log.write(line)


def conclude(passed, failed):
    """Prints the number of tests that passed, and of each that failed its name and why once more.

    Of a long output only the end may be kept, and the report of `tests/run` repeats these lines. Returns the status
    for `sys.exit`.
    """
    if failed:
        print("\nfailures:\n")
        for name, why in failed:
            print(f"---- {name}\n{why}\n")
    print(f"test result: {'FAILED' if failed else 'ok'}. {passed} passed; {len(failed)} failed; 0 ignored")
    return 1 if failed else 0
