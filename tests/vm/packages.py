"""Debian's packages, fetched and unpacked into a directory of ours: nothing is installed, and root is not needed."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile

LIMIT = 900  # seconds for one command: a network that hangs must not block a machine for ever
KERNEL = "linux-image-amd64"  # depends on the newest kernel of the release
# Packages that every Debian has: no closure includes them. Programs of the host keep using the host's C library.
BASE = {"libc6", "libc-bin", "libgcc-s1", "gcc-12-base", "libcrypt1"}
EMULATOR_PARTS = {"qemu-system-common", "qemu-system-data", "seabios", "ipxe-qemu"}


class Unavailable(Exception):
    """No virtual machine is possible here. The text has the reason and the remedy."""


def command(arguments, **more):
    """Runs a program and returns its output. Raises `Unavailable` if the program fails."""
    try:
        done = subprocess.run(arguments, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=LIMIT, **more)
    except FileNotFoundError:
        raise Unavailable(f"{arguments[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{arguments[0]} did not end within {LIMIT} s") from None
    if done.returncode != 0:
        words = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise Unavailable(f"{os.path.basename(arguments[0])} failed: {words[:600]}")
    return done.stdout


class Apt:
    """apt-get with its state in our cache. Its state has no installed packages, so its closures are complete."""

    def __init__(self, cache):
        self.archives = cache / "debs"
        self.lists = cache / "lists"
        self.state = cache / "apt"

    def prepare(self):
        for directory in (self.archives / "partial", self.lists / "partial", self.state):
            directory.mkdir(parents=True, exist_ok=True)
        (self.state / "status").touch()

    def options(self):
        """Returns the options of apt: the host's package lists, unless ours are newer."""
        settings = {"Dir::Cache": self.state, "Dir::Cache::archives": self.archives,
                    "Dir::State::status": self.state / "status", "Debug::NoLocking": "1",
                    "APT::Sandbox::User": "root", "APT::Get::Assume-Yes": "1", "APT::Install-Recommends": "0"}
        if self.has_own_lists():
            settings["Dir::State::lists"] = self.lists
        return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]

    def has_own_lists(self):
        """Returns whether we have a list that is newer than the host's."""
        ours = [path.stat().st_mtime for path in self.lists.glob("*Packages*")]
        theirs = pathlib.Path("/var/lib/apt/lists")
        return bool(ours) and (not theirs.is_dir() or max(ours) > theirs.stat().st_mtime)

    def update(self):
        """Fetches lists of our own. The host's may be absent or out of date, and only root may change them."""
        self.prepare()
        command(["apt-get", *self.options(), "-o", f"Dir::State::lists={self.lists}", "-q", "update"])
        for path in self.lists.glob("*Packages*"):
            os.utime(path)  # apt keeps the server's time

    def fields(self, package):
        """Returns the fields of the newest version of a package in the lists; empty if they do not have the package."""
        with contextlib.suppress(Unavailable):
            text = command(["apt-cache", *self.options(), "show", "--no-all-versions", package])
            return dict(re.findall(r"^([A-Z][\w-]*): (.*)$", text.split("\n\n", maxsplit=1)[0], re.MULTILINE))
        return {}

    def kernel(self):
        """Returns the release of Debian's newest kernel, and the version of its package."""
        image = self.fields(KERNEL)
        release = re.search(r"\blinux-image-(\d[^ ,]*)", image.get("Depends", ""))
        return (release[1], image["Version"]) if release else None

    def download(self, packages):
        """Downloads these packages without their dependencies. Returns the archives."""
        command(["apt-get", *self.options(), "-q", "download", *packages], cwd=self.archives)
        found = []
        for package in packages:
            version = self.fields(package).get("Version", "").replace(":", "%3a")
            archive = sorted(self.archives.glob(f"{package}_{version}_*.deb"))
            if not archive:
                raise Unavailable(f"apt-get download left no archive of {package}")
            found.append(archive[0])
        return found

    def forget_all_but(self, kept):
        """Removes the archives of older versions."""
        for archive in set(self.archives.glob("*.deb")) - set(kept):
            archive.unlink()

    def closure(self, packages):
        """Downloads these packages and their dependencies, except those that every Debian has. Returns the archives."""
        plan = command(["apt-get", *self.options(), "--simulate", "install", *packages])
        command(["apt-get", *self.options(), "-q", "--download-only", "install", *packages])
        steps = re.findall(r"^Inst (\S+) \((\S+) .*\[(\w+)\]\)", plan, re.MULTILINE)
        names = [(name, f"{name}_{version.replace(':', '%3a')}_{architecture}.deb")
                 for name, version, architecture in steps if name not in BASE]
        # Of the dependencies only libraries and the files that QEMU loads: programs and accounts are the host's.
        return [self.archives / archive for name, archive in names
                if name in packages or name in EMULATOR_PARTS or name.startswith("lib")]


def unpack(archives, root):
    """Unpacks archives over each other into a tree in which /lib and /bin are links, as on a merged system."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
    for archive in archives:
        with extracted(archive) as files:
            for member in files:
                member.name = merged(member.name)
                if member.islnk():
                    member.linkname = merged(member.linkname)
                place(files, member, root)


@contextlib.contextmanager
def extracted(archive):
    """Opens the files of an archive as a stream."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as reader:
        try:
            with tarfile.open(fileobj=reader.stdout, mode="r|") as files:
                yield files
        finally:
            reader.kill()


def merged(name):
    """Returns `./lib/x` as `usr/lib/x`: the host's /lib is a link, which a directory must not hide."""
    name = name.removeprefix("./")
    return f"usr/{name}" if name.split("/")[0] in ("bin", "sbin", "lib", "lib64") else name


def place(files, member, root):
    if member.isdir():
        (root / member.name).mkdir(parents=True, exist_ok=True)
    elif member.isreg() or member.issym() or member.islnk():
        path = root / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.exists():
            path.unlink()
        files.extract(member, root, set_attrs=False)
        if member.isreg():
            path.chmod(0o755 if member.mode & 0o100 else 0o644)


def replace(path, text):
    """Replaces a file atomically."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def remove(path):
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
