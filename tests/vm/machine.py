"""One guest: QEMU with the host's files read-only, a command, its output and its exit status."""

import contextlib
import ctypes
import os
import pathlib
import secrets
import shlex
import signal
import socket
import subprocess
import threading
import time

import packages

TIMED_OUT = 124
DIED = 125
KVM_PROBE = 20  # seconds for a guest under KVM that does nothing; normal is 3 s
READY = "ready"  # the file that a guest makes in its directory when it runs the user's command
TCG = "tcg,thread=multi"
KERNEL = ("console=ttyS0 quiet loglevel=4 panic=-1 oops=panic nokaslr mitigations=off tsc=reliable no_timer_check "
          "random.trust_cpu=on audit=0 apparmor=0 net.ifnames=0 init_on_alloc=0 hardened_usercopy=off "
          "randomize_kstack_offset=off")
# The emulator translates a program again for each address at which it is loaded: with random ones, to start a program
# takes twice as long. The short form has fixed ones.
FIXED = " norandmaps"
# The emulator copies byte by byte if the processor promises that such instructions are quick (erms).
CPUS = {"kvm": "host", TCG: "max,erms=off"}
CHUNK = 1 << 16
END = "end"  # the file with the mark that a guest writes behind its output
LAST = 60  # lines: the trace of a crash, and some lines before it
PR_SET_PDEATHSIG = 1
MTU = 9000  # the largest packet of a wire, in bytes; `fabric` uses less


class Guest:
    """A virtual machine that runs a shell script, until the script ends or `stop` is called."""

    def __init__(self, image, directory, script, accelerator, cpus=2, memory=2048, wires=(), out=None, err=None):
        self.directory = pathlib.Path(directory)
        (self.directory / "command").write_bytes(script)
        mark = b"\0end " + secrets.token_hex(16).encode()
        (self.directory / END).write_bytes(mark)
        arguments = [*image.qemu(), "-machine", "q35", "-accel", accelerator,
                     "-cpu", CPUS[accelerator], "-smp", str(cpus), "-m", str(memory),
                     "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                     "-serial", f"file:{self.directory}/console",
                     "-kernel", str(image.path / "vmlinux"), "-initrd", str(image.path / "initramfs"),
                     "-append", KERNEL + FIXED * ("NEMESIA_QUICK" in os.environ),
                     "-device", "virtio-serial-pci",
                     *shared("host", "/", ",readonly=on"), *shared("tools", image.path / "tools", ",readonly=on"),
                     *shared("run", self.directory)]
        self.pumps = []
        passed = []
        for more, descriptor in wires:
            arguments += more
            passed.append(descriptor)
        writers = []
        for name, sink in (("out", out), ("err", err)):
            reader, writer = os.pipe()
            writers.append(writer)
            # A file and not `stdio`, which stalls when the standard input is at its end.
            arguments += ["-chardev", f"file,id={name},path=/dev/fd/{writer}",
                          "-device", f"virtserialport,chardev={name},name={name}"]
            self.pumps.append(threading.Thread(target=pump, args=(reader, sink, mark, self.directory / f"{name}-came"),
                                               daemon=True))
        with (self.directory / "qemu").open("wb") as log:
            self.process = subprocess.Popen(arguments, env=image.environment(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, pass_fds=passed + writers, preexec_fn=die_with_parent,
                                            start_new_session=True)
        for writer in writers:
            os.close(writer)
        for thread in self.pumps:
            thread.start()

    def wait(self, deadline):
        """Returns the exit status: the command's, 124 after the deadline, 125 if the guest ended without one."""
        try:
            self.process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self.stop()
            return TIMED_OUT
        for thread in self.pumps:
            thread.join()
        with contextlib.suppress(OSError, ValueError):
            return int((self.directory / "status").read_text())
        return DIED

    def is_ready(self):
        return (self.directory / READY).exists()

    def begins(self, deadline):
        """Returns whether the guest runs the user's command, or has ended, before the deadline."""
        while self.process.poll() is None and not self.is_ready():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def stop(self):
        self.process.kill()
        self.process.wait()
        for thread in self.pumps:
            thread.join()

    def last_words(self):
        """Returns the last lines of the kernel, the first program and QEMU."""
        lines = []
        for name in ("console", "qemu"):
            with contextlib.suppress(OSError):
                lines += (self.directory / name).read_text(errors="replace").splitlines()[-LAST:]
        return lines


def shared(tag, path, more=""):
    """Returns the arguments that show a directory of this machine in the guest."""
    path = str(path).replace(",", ",,")
    return ["-virtfs", f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}"]


def pump(reader, sink, mark, came):
    """Copies the guest's output without the mark, and makes the file `came` when that has come: the kernel of the guest
    does not wait for its output. Reads on when the sink is closed, because the guest would stall otherwise."""
    with open(reader, "rb", buffering=0) as source:
        kept = b""
        while chunk := source.read(CHUNK):
            before, end, behind = (kept + chunk).partition(mark)
            count = len(before) if end else len(before) - begun(before, mark)
            sink = write(sink, before[:count] + behind)
            kept = before[count:]
            if end:
                came.touch()
        write(sink, kept)


def begun(text, mark):
    """Returns how many bytes at the end of a text may be the beginning of the mark."""
    return next(count for count in range(min(len(text), len(mark) - 1), -1, -1) if text.endswith(mark[:count]))


def write(sink, text):
    """Writes to a sink. Returns it, or nothing if it is closed."""
    if sink is not None:
        try:
            sink.write(text)
            sink.flush()
        except (OSError, ValueError):
            return None
    return sink


def die_with_parent():
    """Makes the guest die with the program that started it, whatever ends that program."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Wire:
    """A network cable between two guests: a pair of connected sockets."""

    def __init__(self, name, mac):
        self.name = name
        self.mac = mac
        self.ends = socket.socketpair()

    def device(self, host):
        """Returns QEMU's arguments for the end at this host, and the descriptor that they name."""
        descriptor = self.ends[host].fileno()
        arguments = ["-netdev", f"stream,id={self.name},server=off,addr.type=fd,addr.str={descriptor}",
                     "-device", f"virtio-net-pci,netdev={self.name},mac={self.mac}:0{host},host_mtu={MTU}"]
        return arguments, descriptor

    def close(self):
        for end in self.ends:
            end.close()


def script(directory, environment, arguments, before=()):
    """Returns a script that runs a command as it would run here: with the same directory and the same words."""
    lines = ["#!/bin/bash"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    for step in map(shlex.join, before):
        lines.append(f"{step} || {{ echo {shlex.quote('the guest failed: ' + step)} >&2; exit {DIED}; }}")
    lines += [f": >/mnt/run/{READY}", f"cd {shlex.quote(directory)} || exit {DIED}"]
    lines += [f"exec {shlex.join(arguments)}", ""]
    return os.fsencode("\n".join(lines))


def accelerator(image, place, scratch):
    """Returns `kvm` if a guest really runs under it, otherwise TCG. Remembered until machine or image change."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    memory = place / "accelerator"
    known = f"{boot} {image.path.name} "
    with contextlib.suppress(OSError):
        text = memory.read_text()
        if text.startswith(known):
            return text.removeprefix(known)
    found = "kvm" if kvm_works(image, scratch) else TCG
    packages.replace(memory, known + found)
    return found


def kvm_works(image, scratch):
    """Returns whether a guest ran under KVM. On some machines /dev/kvm opens but guests hang, as with kvm_pvm."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK) or pathlib.Path("/sys/module/kvm_pvm").exists():
        return False
    directory = pathlib.Path(scratch) / "probe"
    directory.mkdir()
    try:
        guest = Guest(image, directory, script("/", {}, ["true"]), "kvm")
        return guest.wait(time.monotonic() + KVM_PROBE) == 0
    finally:
        packages.remove(directory)
