"""Tests of the cache and of the steps before a guest starts; none of them needs QEMU or a network."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import image
import kernel
import packages
import siw

RUN = str(image.HERE / "run")
VERSION = ("0.0.0-test", "0-1")
WAIT = 30  # seconds until something that must happen counts as missing


def tests():
    return [("wrong_arguments_are_refused", wrong_arguments_are_refused),
            ("no_debian_is_unavailable_with_a_reason", no_debian_is_unavailable_with_a_reason),
            ("an_image_is_made_once_by_two_at_the_same_time", an_image_is_made_once_by_two_at_the_same_time),
            ("an_interrupted_image_is_not_used_and_removed", an_interrupted_image_is_not_used_and_removed),
            ("an_image_that_fails_leaves_nothing", an_image_that_fails_leaves_nothing),
            ("an_image_that_does_not_run_is_made_again", an_image_that_does_not_run_is_made_again),
            ("old_images_go_unless_they_are_in_use", old_images_go_unless_they_are_in_use),
            ("modules_come_after_what_they_need", modules_come_after_what_they_need),
            ("siw_that_has_changed_is_not_half_patched", siw_that_has_changed_is_not_half_patched)]


def expect(is_true, what):
    """Raises AssertionError: `assert` would vanish under -O."""
    if not is_true:
        raise AssertionError(what)


def wrong_arguments_are_refused():
    for wrong in ([], ["--hosts", "3", "true"], ["--device", "mlx5", "true"],
                  ["--loss", "101", "--device", "rxe", "true"], ["--loss", "1", "true"], ["--timeout", "0", "true"],
                  ["--cpus", "x", "true"], ["--prepare", "true"], ["--nonsense"]):
        done = subprocess.run([RUN, *wrong], capture_output=True, text=True, check=False, timeout=WAIT)
        expect(done.returncode == 2, f"{wrong}: status {done.returncode}")
        expect("usage: tests/vm/run" in done.stderr, f"{wrong}: {done.stderr}")


def no_debian_is_unavailable_with_a_reason():
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PATH": cache, "NEMESIA_VM_CACHE": cache}
        done = subprocess.run([sys.executable, RUN, "true"], env=environment, capture_output=True, text=True,
                              check=False, timeout=WAIT)
    expect(done.returncode == 77, f"status {done.returncode}: {done.stderr}")
    expect("no virtual machine: apt-get is not installed" in done.stderr, done.stderr)


@contextlib.contextmanager
def cache():
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        (place / "images").mkdir()
        yield place


class Archives:
    """A replacement of `packages.Apt` that fetches nothing."""

    def __init__(self, place):
        self.archives = place


def make_with(content, seconds=0.0, emulator="exit 0"):
    """Returns a replacement of `image.make`: it makes an image whose QEMU is a shell script."""
    def make(_apt, path, _version, _say):
        (path / "part").write_text(content)
        time.sleep(seconds)
        program = path / "host/usr/bin/qemu-system-x86_64"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{emulator}\n")
        program.chmod(0o755)
        with (path.parent.parent / "made").open("a") as log:
            log.write(f"{content}\n")
        (path / "image.json").write_text('{"release": "test"}')
    return make


def make_locked(place, make):
    """Returns the image of the cache, which `make` makes if necessary."""
    ours, image.make = image.make, make
    try:
        return image.make_locked(Archives(place), place / "images" / "a", VERSION, lambda _: None)
    finally:
        image.make = ours


def child(work):
    """Forks a process that does this work, and ends with status 0 on success."""
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            work()
            status = 0
        os._exit(status)
    return pid


def until(condition, what):
    end = time.monotonic() + WAIT
    while not condition():
        expect(time.monotonic() < end, f"{what}: not within {WAIT} s")
        time.sleep(0.02)


def an_image_is_made_once_by_two_at_the_same_time():
    with cache() as place:
        pids = [child(lambda name=name: make_locked(place, make_with(name, 0.5))) for name in ("one", "two")]
        for pid in pids:
            expect(os.waitpid(pid, 0)[1] == 0, "a process found no image")
        expect(len((place / "made").read_text().split()) == 1, "it was made twice")


def an_interrupted_image_is_not_used_and_removed():
    with cache() as place:
        pid = child(lambda: make_locked(place, make_with("first", WAIT * 10)))
        until(lambda: list(place.glob("images/.making-*/part")), "the first begins")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        expect(image.hold(place / "images" / "a") is None, "half an image is in use")
        expect(make_locked(place, make_with("second")).path.is_dir(), "it was not made")
        expect(os.listdir(place / "images") == ["a"], f"left over: {os.listdir(place / 'images')}")


def an_image_that_fails_leaves_nothing():
    def make(_apt, path, _version, _say):
        (path / "part").write_text("")
        raise packages.Unavailable("no network")

    with cache() as place:
        try:
            make_locked(place, make)
            raise AssertionError("an image without network")
        except packages.Unavailable as error:
            expect(str(error) == "no network", str(error))
        expect(os.listdir(place / "images") == [], f"left over: {os.listdir(place / 'images')}")


def an_image_that_does_not_run_is_made_again():
    with cache() as place:
        try:
            make_locked(place, make_with("broken", emulator="exit 1"))
            raise AssertionError("a QEMU that does not start is used")
        except packages.Unavailable as error:
            expect("does not run" in str(error), str(error))
        expect(make_locked(place, make_with("whole")).path.is_dir(), "it was not made")
        expect((place / "made").read_text().split() == ["broken", "whole"], (place / "made").read_text())


def old_images_go_unless_they_are_in_use():
    with cache() as place:
        for age in range(image.KEPT + 2):
            path = place / "images" / f"old{age}"
            path.mkdir()
            make_with("old")(None, path, VERSION, None)
            os.utime(path, (1000 - age, 1000 - age))
        last = place / "images" / f"old{image.KEPT + 1}"
        used = image.hold(last)
        os.utime(last, (1, 1))
        make_locked(place, make_with("new"))
        left = sorted(os.listdir(place / "images"))
        os.close(used.lock)
        expect(left == sorted(["a", *[f"old{age}" for age in range(image.KEPT - 1)], last.name]), str(left))


def modules_come_after_what_they_need():
    with tempfile.TemporaryDirectory() as directory:
        tree = pathlib.Path(directory) / "usr/lib/modules/x/kernel"
        tree.mkdir(parents=True)
        (tree.parent / "modules.builtin").write_text("kernel/lib/inside.ko\n")
        for name, needs in (("top", b"middle,inside"), ("middle", b"low-est"), ("low-est", b"")):
            signature = b"S" * 7 + bytes(8) + (7).to_bytes(4, "big") + kernel.SIGNATURE if name == "top" else b""
            (tree / f"{name}.ko").write_bytes(b"\x7fELF\0depends=" + needs + b"\0end" + signature)
        modules = kernel.Modules(pathlib.Path(directory), "x")
        order = modules.load_order(["middle", "top", "inside"])
        expect([name for name, _ in order] == ["low_est", "middle", "top"], str(order))
        expect(order[2][1].endswith(b"\0end"), "the signature is still there")
        try:
            modules.load_order(["absent"])
            raise AssertionError("a module that is not there was found")
        except packages.Unavailable as error:
            expect("no module absent" in str(error), str(error))


def siw_that_has_changed_is_not_half_patched():
    with tempfile.TemporaryDirectory() as directory:
        source = pathlib.Path(directory)
        for name in {change[0] for change in siw.CHANGES}:
            (source / name).write_text("/* another version */\n")
        try:
            siw.patch(source)
            raise AssertionError("what is not there was changed")
        except packages.Unavailable as error:
            expect("source has changed" in str(error), str(error))
        expect(all(path.read_text() == "/* another version */\n" for path in source.iterdir()), "something was changed")
