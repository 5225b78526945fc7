"""One guest: QEMU with the host's files read-only, a command, its output and its exit status."""

import contextlib
import ctypes
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import threading
import time

import packages

TIMED_OUT = 124
DIED = 125
KVM_PROBE = 20  # seconds for a guest under KVM that does nothing; it takes three
TCG = "tcg,thread=multi"
KERNEL = ("console=ttyS0 quiet loglevel=4 panic=-1 oops=panic nokaslr mitigations=off tsc=reliable no_timer_check "
          "random.trust_cpu=on audit=0 apparmor=0 net.ifnames=0")
CHUNK = 1 << 16
LAST = 60  # lines: the trace of a crash, and what came before it
PR_SET_PDEATHSIG = 1
MTU = 9000  # the most that a wire takes; `fabric` uses less


class Guest:
    """A virtual machine that runs a shell script, until it ends or `stop`."""

    def __init__(self, image, directory, script, accelerator, cpus=2, memory=2048, wires=(), out=None, err=None):
        self.directory = pathlib.Path(directory)
        (self.directory / "command").write_bytes(script)
        arguments = [*image.qemu(), "-machine", "q35", "-accel", accelerator,
                     "-cpu", "host" if accelerator == "kvm" else "max", "-smp", str(cpus), "-m", str(memory),
                     "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                     "-serial", f"file:{self.directory}/console",
                     "-kernel", str(image.path / "vmlinux"), "-initrd", str(image.path / "initramfs"), "-append", KERNEL,
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
            # A file and not `stdio`: with the standard input at its end that one stalls.
            arguments += ["-chardev", f"file,id={name},path=/dev/fd/{writer}",
                          "-device", f"virtserialport,chardev={name},name={name}"]
            self.pumps.append(threading.Thread(target=pump, args=(reader, sink), daemon=True))
        with (self.directory / "qemu").open("wb") as log:
            self.process = subprocess.Popen(arguments, env=image.environment(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, pass_fds=passed + writers, preexec_fn=die_with_parent, start_new_session=True)
        for writer in writers:
            os.close(writer)
        for thread in self.pumps:
            thread.start()

    def wait(self, deadline):
        """The exit status of the command: its own, 124 after the deadline, 125 if the guest ended without saying."""
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

    def stop(self):
        self.process.kill()
        self.process.wait()
        for thread in self.pumps:
            thread.join()

    def last_words(self):
        """What the kernel, the first program and QEMU said last."""
        lines = []
        for name in ("console", "qemu"):
            with contextlib.suppress(OSError):
                lines += (self.directory / name).read_text(errors="replace").splitlines()[-LAST:]
        return lines


def shared(tag, path, more=""):
    """A directory of this machine in the guest."""
    return ["-virtfs", f"local,path={str(path).replace(',', ',,')},mount_tag={tag},security_model=none,multidevs=remap{more}"]


def pump(reader, sink):
    """Copies what comes; reads on when nobody wants it any more, or the guest would stall."""
    with open(reader, "rb", buffering=0) as source:
        while chunk := source.read(CHUNK):
            if sink is not None:
                try:
                    sink.write(chunk)
                    sink.flush()
                except (OSError, ValueError):
                    sink = None


def die_with_parent():
    """No guest outlives the program that started it, however that one ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Wire:
    """A network cable between two guests: a pair of connected sockets."""

    def __init__(self, name, mac):
        self.name = name
        self.mac = mac
        self.ends = socket.socketpair()

    def device(self, host):
        """QEMU's arguments for the end at this host, and the descriptor that they name."""
        descriptor = self.ends[host].fileno()
        arguments = ["-netdev", f"stream,id={self.name},server=off,addr.type=fd,addr.str={descriptor}",
                     "-device", f"virtio-net-pci,netdev={self.name},mac={self.mac}:0{host},host_mtu={MTU}"]
        return arguments, descriptor

    def close(self):
        for end in self.ends:
            end.close()


def script(directory, environment, arguments, before=()):
    """The script that runs a command as it would run here: same directory, same words."""
    lines = ["#!/bin/bash"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines += [f"{shlex.join(step)} || {{ echo {shlex.quote('the guest failed: ' + shlex.join(step))} >&2; exit {DIED}; }}"
              for step in before]
    lines += [f"cd {shlex.quote(directory)} || exit {DIED}"]
    lines += [f"exec {shlex.join(arguments)}", ""]
    return os.fsencode("\n".join(lines))


def accelerator(image, place, scratch):
    """`kvm` where a guest really runs under it, or TCG. Remembered until this machine or the image changes."""
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
    """/dev/kvm can be opened on some machines whose guests then hang, as with kvm_pvm: only a guest that ran counts."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK) or pathlib.Path("/sys/module/kvm_pvm").exists():
        return False
    directory = pathlib.Path(scratch) / "probe"
    directory.mkdir()
    try:
        guest = Guest(image, directory, script("/", {}, ["true"]), "kvm")
        return guest.wait(time.monotonic() + KVM_PROBE) == 0
    finally:
        packages.remove(directory)
