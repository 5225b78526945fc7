"""The image: QEMU, kernel, modules and RDMA tools, made once and kept for the next run."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

import kernel
import packages
import siw

HERE = pathlib.Path(__file__).resolve().parent
# The sources of an image. If one of them changes, a new image is made.
SOURCES = ("packages.py", "kernel.py", "siw.py", "image.py", "guest/init")
EMULATOR = ["qemu-system-x86", "busybox-static"]
# Packages that the guest sees over the host's own files.
TOOLS = ["libibverbs1", "librdmacm1", "ibverbs-providers", "ibverbs-utils", "rdmacm-utils", "perftest", "iproute2",
         "iputils-ping"]
BUILD_TOOLS = ["libelf1"]  # objtool's
KEPT = 3  # images; older ones are removed when a new one is made
DEBIAN = ("apt-get", "apt-cache", "dpkg-deb")


def cache():
    """Returns the directory of the cache: NEMESIA_VM_CACHE, the user's caches, or cargo's target directory."""
    named = os.environ.get("NEMESIA_VM_CACHE")
    if named:
        return pathlib.Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = pathlib.Path(base) / "nemesia" / "vm"
    with contextlib.suppress(OSError):
        path.mkdir(parents=True, exist_ok=True)
    if os.access(path, os.W_OK) and os.path.isabs(path):
        return path
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or HERE.parent.parent / "target").absolute() / "vm"


class Image:
    """One image, locked against removal."""

    def __init__(self, path, lock):
        self.path = path
        self.lock = lock  # a descriptor with a shared lock, until the process ends
        self.release = json.loads((path / "image.json").read_text())["release"]

    def qemu(self):
        """Returns the start of a command line that runs QEMU from the image."""
        return [str(self.path / "host/usr/bin/qemu-system-x86_64"), "-L", str(self.path / "host/usr/share/qemu"),
                "-L", str(self.path / "host/usr/share/seabios"), "-L", str(self.path / "host/usr/lib/ipxe/qemu")]

    def environment(self):
        libraries = self.path / "host/usr/lib/x86_64-linux-gnu"
        return {**os.environ, "LD_LIBRARY_PATH": str(libraries), "QEMU_MODULE_DIR": str(libraries / "qemu")}


def open_image(say):
    """Opens the image for these scripts and Debian's newest kernel, and makes it first if it does not exist."""
    require_debian()
    place = cache()
    try:
        place.mkdir(parents=True, exist_ok=True)
        apt = packages.Apt(place)
        apt.prepare()
        version = known_kernel(apt, place, say)
        path = place / "images" / key(version)
        return hold(path) or make_locked(apt, path, version, say)
    except OSError as error:
        raise packages.Unavailable(f"the image can't be stored in {place}: {error}") from error


def require_debian():
    if platform.machine() != "x86_64":
        raise packages.Unavailable(f"it is made for x86_64, and this is {platform.machine()}")
    for program in DEBIAN:
        if not shutil.which(program):
            raise packages.Unavailable(f"{program} is not installed: QEMU and the kernel come as Debian's packages")


def known_kernel(apt, place, say):
    """Returns release and version of the kernel. Calls apt, which takes a second, only if its lists have changed."""
    stamps = [path.stat().st_mtime_ns for path in (pathlib.Path("/var/lib/apt/lists"), apt.lists) if path.is_dir()]
    memory = place / "kernel.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        remembered = json.loads(memory.read_text())
        if remembered["stamps"] == stamps:
            return tuple(remembered["version"])
    version = apt.kernel()
    if version is None:
        say("fetching Debian's package lists")
        apt.update()
        version = apt.kernel()
    if version is None:
        raise packages.Unavailable(f"the package lists have no {packages.KERNEL}: it is made for Debian")
    packages.replace(memory, json.dumps({"stamps": stamps, "version": version}))
    return version


def key(version):
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((HERE / name).read_bytes())
    return f"{version[0]}_{version[1]}_{digest.hexdigest()[:16]}"


def hold(path):
    """Returns the image at `path`, locked against removal, if it is complete and works."""
    with contextlib.suppress(OSError):
        lock = os.open(path / "image.json", os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        # The image may have been removed between the two calls.
        if os.fstat(lock).st_nlink > 0:
            image = Image(path, lock)
            tried = subprocess.run([*image.qemu(), "--version"], env=image.environment(), stdin=subprocess.DEVNULL,
                                   capture_output=True, check=False)
            if tried.returncode == 0:
                os.utime(path)
                return image
        os.close(lock)
    return None


def make_locked(apt, path, version, say):
    """Makes an image under a lock. A process that waited for the lock finds the image made."""
    with (path.parent.parent / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting: another process is making the image")
            fcntl.flock(lock, fcntl.LOCK_EX)
        found = hold(path)
        if found:
            return found
        for leftover in path.parent.glob(".making-*"):
            packages.remove(leftover)  # of an interrupted run: we hold the lock
        path.parent.mkdir(exist_ok=True)
        scratch = pathlib.Path(tempfile.mkdtemp(dir=path.parent, prefix=".making-"))
        try:
            make(apt, scratch, version, say)
            packages.remove(path)  # an image that existed did not work
            scratch.rename(path)
        finally:
            packages.remove(scratch)
        image = hold(path)
        if image is None:
            raise packages.Unavailable(f"QEMU was fetched, but does not run: {path}")
        remove_old(path)
        return image


def make(apt, path, version, say):
    """Makes an image in an empty directory."""
    release = version[0]
    say(f"making the image for Linux {release}, once: about a minute, and 300 MB to fetch")
    packaged = fetch(apt, release, say)
    apt.forget_all_but(sum(packaged.values(), []))
    say("unpacking")
    packages.unpack(packaged["emulator"], path / "host")
    packages.unpack(packaged["tools"], path / "tools")
    packages.unpack(packaged["kernel"], path / "kernel")
    packages.unpack(packaged["headers"], path / "headers")
    (path / "vmlinux").write_bytes(kernel.extract(path / "kernel/boot" / f"vmlinuz-{release}"))
    say("building siw")
    siw.take_source(packaged["source"][0], path / "siw")
    siw.patch(path / "siw")
    module = siw.build(release, path / "headers", path / "siw")
    kernel.initial_file_system(path / "initramfs", path / "host/usr/bin/busybox", HERE / "guest/init",
                               kernel.Modules(path / "kernel", release), [module])
    for name in ("kernel", "headers", "siw"):
        packages.remove(path / name)
    # Written last: an image with this file is complete.
    (path / "image.json").write_text(json.dumps({"release": release, "version": version[1]}) + "\n")


def fetch(apt, release, say):
    """Returns all archives. If the lists name packages that no longer exist, fetches the lists again, once."""
    try:
        return archives(apt, release)
    except packages.Unavailable as error:
        say(f"fetching Debian's package lists anew, since {error}")
        apt.update()
        return archives(apt, release)


def archives(apt, release):
    series = ".".join(release.split(".")[:2])
    headers = f"linux-headers-{release}"
    depends = apt.fields(headers).get("Depends", "")
    parts = [word for word in depends.replace(",", " ").split() if word.startswith(("linux-headers-", "linux-kbuild-"))]
    return {"emulator": apt.closure(EMULATOR), "tools": apt.closure(TOOLS),
            "kernel": apt.download([f"linux-image-{release}"]),
            "headers": apt.download([headers, *parts]) + apt.closure(BUILD_TOOLS),
            "source": apt.download([f"linux-source-{series}"])}


def remove_old(newest):
    """Removes all but the last few images, except those in use."""
    images = sorted((path for path in newest.parent.iterdir() if not path.name.startswith(".")),
                    key=lambda path: path.stat().st_mtime, reverse=True)
    for path in images[KEPT:]:
        with contextlib.suppress(OSError), (path / "image.json").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (path / "image.json").unlink()
            packages.remove(path)
