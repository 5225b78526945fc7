"""Starts programs, waits for them, and leaves none behind: no process, no name in shared memory."""

import contextlib
import glob
import os
import signal
import socket
import subprocess
import time

GRACE = 3  # seconds between the request to end and the end
LISTENING = "0A"  # as /proc/net/tcp writes it


class Failed(Exception):
    """A program failed; the text names the program and the reason."""


class Job:
    """One program in a session of its own, so that it can be ended together with its children."""

    def __init__(self, command, env=None, cwd=None):
        self.name = os.path.basename(command[3] if command[0] == "taskset" else command[0])
        # This script ends the group: a key that interrupts the terminal does not reach it.
        self.process = subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=GRACE)
        self._signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()
        # libfabric names its segments after the process, and leaves them when it is killed.
        for name in glob.glob(f"/dev/shm/{self.process.pid}:*"):
            with contextlib.suppress(OSError):
                os.unlink(name)

    def _signal(self, number):
        """Sends a signal to the program, if it still runs, and to its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def output(self, limit):
        """Returns the output of a program that ended well."""
        try:
            out, errors = self.process.communicate(timeout=max(limit, 0.1))
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {limit:.0f} s") from None
        if self.process.returncode != 0:
            raise Failed(f"{self.name} {ending(self.process.returncode)}: {last_words(errors) or last_words(out)}")
        return out


def run(command, limit, env=None, cwd=None):
    """Returns the output of a program; `Failed` if it fails or takes too long."""
    try:
        with Job(command, env, cwd) as job:
            return job.output(limit)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None


def run_pair(server, client, port, limit, env=None):
    """Returns the output of the client. The server listens on the port before the client starts."""
    end = time.monotonic() + limit
    try:
        with Job(server, env) as first:
            await_listener(first, port, end)
            with Job(client, env) as second:
                out = second.output(end - time.monotonic())
            first.output(end - time.monotonic())
            return out
    except OSError as error:
        raise Failed(f"{server[0]}: {error.strerror}") from None


def await_listener(job, port, end):
    while not is_listened_on(job.process.pid, port):
        if job.process.poll() is not None:
            job.output(GRACE)
            raise Failed(f"{job.name} ended before anybody came")
        if time.monotonic() > end:
            raise Failed(f"{job.name} does not listen")
        time.sleep(0.01)


def is_listened_on(process, port):
    """Checks the kernel's list, that of the process's network namespace, instead of connecting: the server takes its
    first connection for the client."""
    for table in (f"/proc/{process}/net/tcp", f"/proc/{process}/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if fields[3] == LISTENING and fields[1].endswith(f":{port:04X}"):
                    return True
    return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ending(code):
    return f"ended with status {code}" if code >= 0 else f"was ended by signal {-code}"


def last_words(text):
    """Returns the last few lines with text as one line."""
    lines = [line.strip() for line in text.splitlines() if any(c.isalnum() for c in line)]
    return " / ".join(lines[-3:])[:400]
