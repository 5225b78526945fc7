"""Parts of tests/vm/verbs, and the guests that run them."""

import collections
import dataclasses
import pathlib
import re
import shlex
import signal
import subprocess
import threading

import image
import machine

# Lines from the end of a failed part's output, and panics, that are shown again when all parts have run.
SHOWN, PANICS = 20, 8
# Guests that may die or hang in one part, and the seconds of a part beside its limit: for its devices, and for a guest
# that ends it late.
TRIES, GRACE = 3, 240
# Statuses of tests/vm/run if the guest failed: it hung or died, or was ended here because it did not end a part.
GUEST_FAILED = (machine.TIMED_OUT, machine.DIED, 128 + signal.SIGTERM)
# The options of test programs; the last ones, which show how long each test took, need RUSTC_BOOTSTRAP.
HARNESS = "--test-threads 1 --nocapture -Z unstable-options --report-time"
# The name of a part as a test begins so.
PREFIX = "verbs_on_"
# What tests/vm/guest/parts prints when a part begins and when it has ended.
MARK = re.compile(r"=== part (\S+) (?:begins|ends with status (\d+) after (\d+) s)")


@dataclasses.dataclass(frozen=True)
class Part:
    """A part: `command` has `{verbs}`, `{unplug}` and the directory `{programs}`. `limit` is for an idle machine."""

    name: str
    kind: str
    command: str
    limit: int
    variables: dict = dataclasses.field(default_factory=dict)
    is_short: bool = True
    loss: int = 0
    network: str = ""
    guests: int = 1


class Group:
    """The parts that one guest runs, one after the other. `run` starts guests: tests/vm/run, or what a test has."""

    def __init__(self, parts, paths, scratch, run=str(image.HERE / "run")):
        self.waiting, self.directory, self.program = list(parts), pathlib.Path(scratch), run
        self.results, self.tries = {}, collections.Counter()
        words = {which: shlex.quote(str(path)) + ("" if which == "programs" else " " + HARNESS)
                 for which, path in paths.items()}
        for part in self.waiting:
            exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in part.variables.items())
            command = part.command.format(**words)
            (self.directory / part.name).write_text(f"export RUSTC_BOOTSTRAP=1\n{exports}{command}\n")
            (self.directory / f"{part.name}.set").write_text(
                f"kind={part.kind} loss={part.loss} network={part.network} limit={part.limit}\n")

    def run(self):
        """Runs the parts, in as many guests as that takes. Returns why each one failed, or None, by its name."""
        while self.waiting:
            first = self.waiting[0]
            status, part, text = self.two_guests(first) if first.guests == 2 else self.guest()
            if part is None:
                continue
            self.tries[part.name] += 1
            print(f"GUEST: it died or hung in {part.name} (status {status}), by a defect of its kernel", flush=True)
            if self.tries[part.name] == TRIES:
                self.end(part, status, f"the guest died or hung {TRIES} times in it\n{text}")
        return self.results

    def two_guests(self, part):
        """Runs a part of which each host is a guest. Returns as `guest` does."""
        command = [self.program, "--guests", "2", "--device", part.kind, "--timeout", str(part.limit), "--", "bash",
                   str(self.directory / part.name)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        text = done.stdout.decode(errors="replace")
        print("".join(f"    {line}\n" for line in text.splitlines()), end="")
        # The limit is the guests' own here: what hangs may be our program.
        if done.returncode == machine.DIED:
            return done.returncode, part, text
        self.end(part, done.returncode, text)
        return done.returncode, None, text

    def guest(self):
        """Runs the waiting parts in a guest until it ends.

        Returns its status, the part in which the guest failed, if it did, and the text of that part.
        """
        limit = sum(part.limit + GRACE for part in self.waiting) + GRACE
        guest = subprocess.Popen([self.program, "--timeout", str(limit), "--", "parts", str(self.directory),
                                  *(part.name for part in self.waiting)],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        running, text, alarm = self.waiting[0], [], None
        for line in guest.stdout:
            line = line.decode(errors="replace").rstrip()
            # `tests/run` must not count the closing lines of programs in the guest: a part is one test.
            print(f"    {line}", flush=True)
            mark = MARK.fullmatch(line)
            if mark is None:
                text.append(line)
                continue
            if alarm is not None:
                alarm.cancel()
            if mark[2] is None:
                running, text = next(part for part in self.waiting if part.name == mark[1]), []
                # The guest ends the part at its limit, unless its kernel hangs.
                alarm = threading.Timer(running.limit + GRACE, guest.terminate)
                alarm.start()
            elif int(mark[2]) != machine.DIED:
                self.end(running, int(mark[2]), "\n".join(text), int(mark[3]))
                running, text = self.waiting[0] if self.waiting else None, []
        if alarm is not None:
            alarm.cancel()
        status = guest.wait()
        if running is not None and status not in GUEST_FAILED:
            # The guest ended well and did not run all parts: our scripts are wrong.
            self.end(running, status, "\n".join(text))
            running = None
        return status, running, "\n".join(text)

    def end(self, part, status, text, seconds=0):
        """Records the end of a part. To pass it needs tests that ran, and none skipped."""
        self.waiting.remove(part)
        ran = sum(int(count) for count in re.findall(r"^test result: ok\. (\d+) passed", text, re.MULTILINE))
        is_well = status == 0 and ran > 0 and "SKIPPED: " not in text
        if not is_well:
            skipped = ", skipped some" if "SKIPPED: " in text else ""
            print(f"{part.name}: status {status}, {ran} tests passed{skipped}")
        self.results[part.name] = None if is_well else why(text)
        print(f"test {PREFIX}{part.name} ... {'ok' if is_well else 'FAILED'} <{seconds}.0s>", flush=True)


def why(text):
    """Returns what a reader of a failed part's output looks for: its end, and what its panics said."""
    lines = text.splitlines()
    panics = [at for at, line in enumerate(lines) if "panicked at" in line][:PANICS]
    return "\n".join(f"    {line}" for line in [*lines[-SHOWN:], *(line for at in panics for line in lines[at:at + 4])])
