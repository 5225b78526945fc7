"""Tests that boot guests."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time

import image
from caching import RUN, expect, until

LIMIT = 2000  # seconds for a guest: much more than it takes, on a machine with other work


def tests():
    return [("output_words_and_status_pass_through", output_words_and_status_pass_through),
            ("success_is_success_and_nothing_is_written_here", success_is_success_and_nothing_is_written_here),
            ("a_command_that_hangs_times_out", a_command_that_hangs_times_out),
            ("a_guest_that_dies_is_reported", a_guest_that_dies_is_reported),
            ("a_guest_that_hangs_at_its_start_is_started_again", a_guest_that_hangs_at_its_start_is_started_again),
            ("no_guest_outlives_its_runner", no_guest_outlives_its_runner),
            ("a_reader_that_stops_reading_does_no_harm", a_reader_that_stops_reading_does_no_harm),
            ("rxe_hosts", lambda: hosts(12, "rxe")), ("siw_hosts", lambda: hosts(12, "siw")),
            ("rxe_guests", lambda: hosts(6, "rxe", "briefly", guests=2)),
            ("siw_guests", lambda: hosts(7, "siw", "briefly", guests=2))]


def every_change():
    """Returns the tests of what tests/vm/verbs relies on, beside the devices that it uses itself."""
    return [entry for entry in tests() if entry[0] in ("output_words_and_status_pass_through",
                                                       "a_guest_that_dies_is_reported",
                                                       "a_command_that_hangs_times_out")]


def run(*arguments, **more):
    """Runs `tests/vm/run` to its end."""
    return subprocess.run([RUN, *arguments], capture_output=True, check=False, timeout=LIMIT * 2, **more)


def failure(done, what):
    """Returns the message of a failed expectation."""
    return f"{what}: status {done.returncode}\n{done.stdout[-200:]!r}\n{done.stderr.decode(errors='replace')[-4000:]}"


def output_words_and_status_pass_through():
    words = ["two words", "", "a'b\"c", "$HOME `x` \\", "line\nbreak", "käse", "--timeout"]
    with tempfile.TemporaryDirectory() as directory:
        content = os.urandom(1 << 20)
        pathlib.Path(directory, "file").write_bytes(content)
        script = 'cat file; printf "%s|" "$@" >&2; pwd >&2; echo "$RUST_TEST $NEMESIA_TEST" >&2; exit 3'
        done = run("--timeout", str(LIMIT), "--", "bash", "-c", script, "bash", *words, cwd=directory,
                   env={**os.environ, "RUST_TEST": "r s", "NEMESIA_TEST": "t"})
    expect(done.returncode == 3, failure(done, "exit 3"))
    same = len(os.path.commonprefix([done.stdout, content]))
    expect(done.stdout == content,
           failure(done, f"1 MiB became {len(done.stdout)} bytes, of which the first {same} are right"))
    expected = "|".join(words) + f"|{directory}\nr s t\n"
    expect(done.stderr.decode().endswith(expected), f"{done.stderr.decode()!r} instead of {expected!r}")


def success_is_success_and_nothing_is_written_here():
    with tempfile.TemporaryDirectory() as directory:
        log = pathlib.Path(directory, "log")
        script = 'echo "SKIPPED: a: b" >>"$NEMESIA_SKIP_LOG"; touch here && test -e here'
        done = run("--timeout", str(LIMIT), "bash", "-c", script, cwd=directory,
                   env={**os.environ, "NEMESIA_SKIP_LOG": str(log)})
        expect(done.returncode == 0, failure(done, "true"))
        expect(os.listdir(directory) == ["log"], f"written here: {os.listdir(directory)}")
        expect(log.read_text() == "SKIPPED: a: b\n", log.read_text())


def a_command_that_hangs_times_out():
    done = run("--timeout", "15", "sleep", "100000")
    expect(done.returncode == 124, failure(done, "a command that hangs"))
    expect(b"timed out after 15 s" in done.stderr, failure(done, "the reason is missing"))


def a_guest_that_dies_is_reported():
    done = run("--timeout", str(LIMIT), "sh", "-c", "echo c >/proc/sysrq-trigger; sleep 100")
    expect(done.returncode == 125, failure(done, "a kernel that crashes"))
    expect(b"sysrq triggered crash" in done.stderr, failure(done, "the kernel's last words are missing"))


def emulators():
    """Returns the guests that run from our cache; an emulator that only prints its version is not a guest."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            is_ours = os.readlink(path / "exe").startswith(f"{image.cache()}/images/")
            if is_ours and b"\0-kernel\0" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def children(pid):
    return [one for one in emulators() if f"PPid:\t{pid}\n" in status_of(one)]


def status_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def a_guest_that_hangs_at_its_start_is_started_again():
    command = [RUN, "--timeout", str(LIMIT), "--patience", "5", "echo", "done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as runner:
        try:
            until(lambda: children(runner.pid), "QEMU starts")
            os.kill(children(runner.pid)[0], signal.SIGSTOP)
            out, err = runner.communicate(timeout=LIMIT * 2)
        finally:
            runner.kill()
    expect(runner.returncode == 0 and out == b"done\n", f"status {runner.returncode}, {out!r}, {err!r}")
    expect(b"a guest hangs" in err, f"the reason is missing: {err!r}")


def no_guest_outlives_its_runner():
    for number in (signal.SIGTERM, signal.SIGKILL):
        runner = subprocess.Popen([RUN, "sleep", "100000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            # `env` and python are the same process: the runner is the emulator's parent.
            until(lambda: children(runner.pid), "QEMU starts")
            guest = children(runner.pid)[0]
            runner.send_signal(number)
            runner.wait(30)
            until(lambda: guest not in emulators(), "QEMU ends")
        finally:
            runner.kill()
            runner.wait()


def a_reader_that_stops_reading_does_no_harm():
    script = "head -c 3000000 /dev/zero; sleep 1; head -c 3000000 /dev/zero; exit 4"
    command = [RUN, "--timeout", str(LIMIT), "bash", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(3)  # the output waits for this process: nothing is lost
        first = process.stdout.read(3_500_000)
        process.stdout.close()
        status = process.wait(LIMIT * 2)
    expect(first == bytes(3_500_000) and status == 4, f"{len(first)} bytes, status {status}")


def hosts(count, *words, guests=1):
    """Runs `guest/selftest`: at least `count` checks run, and all pass."""
    done = run("--timeout", str(LIMIT), "--guests", str(guests), "selftest", *words)
    if done.returncode == 124 and not done.stdout:
        # Emulated kernels hung so once, in 500 s: before the first check, so it says nothing of what is tested.
        print(failure(done, "hangs before the first check, and is started again"))
        done = run("--timeout", str(LIMIT), "--guests", str(guests), "selftest", *words)
    lines = done.stdout.decode(errors="replace").splitlines()
    print("\n".join(f"  {line}" for line in lines))
    expect(done.returncode == 0, failure(done, "selftest"))
    expect(sum(line.startswith("ok ") for line in lines) >= count, "checks are missing")
