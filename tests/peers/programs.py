"""Requirements of the measurement: the peers' packages, our library, the measuring programs."""

import contextlib
import os
import pathlib
import shutil
import sys
import tempfile

import job

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "mpi"))

import installed

REPOSITORY = HERE.parent.parent
LIMIT = 600  # seconds, for an installation or a build
# The programs that each contender needs, with the Debian package of each. After a compiler: a header that it finds.
# The package with the wrapper of a compiler may lack the headers.
NEEDS = {
    "bare": {"cc": "gcc"},
    "rings": {"cc liburing.h": "liburing-dev"},
    "sockets": {"cc": "gcc", "mpiexec.hydra": "mpich"},
    "threads": {"cc": "gcc", "mpiexec.hydra": "mpich"},
    "ours": {"cc": "gcc", "mpiexec.hydra": "mpich"},
    "mpich": {"mpicc.mpich mpi.h": "libmpich-dev", "mpiexec.hydra": "mpich"},
    "openmpi": {"mpicc.openmpi mpi.h": "libopenmpi-dev", "mpiexec.openmpi": "openmpi-bin"},
    "ucx": {"ucx_perftest": "ucx-utils"},
    "libfabric": {"fi_pingpong": "libfabric-bin", "taskset": "util-linux"},
}
# MPIs of PyPI, by the names of their contenders: those that tests/mpi/run installs.
PYPI = {kind.name: kind for kind in (installed.Mpich43, installed.Mpich50, installed.Intel)}
NEEDS |= {name: {"cc": "gcc"} for name in PYPI}
# Without warnings: they are for developers of the source, and MPICH's header causes some of its own.
FLAGS = ["-std=gnu11", "-O2", "-w"]


def missing(name):
    """Returns the packages that this contender lacks, by program."""
    return {need: package for need, package in NEEDS[name].items() if not is_there(*need.split())}


def is_there(program, header=None):
    """Returns whether a program is installed and, if it is a compiler for programs with this header, finds that."""
    if not shutil.which(program):
        return False
    if header is None:
        return True
    try:
        job.run([program, "-fsyntax-only", "-include", header, "-xc", "/dev/null"], LIMIT)
        return True
    except job.Failed:
        return False


def mpi(name):
    """Returns an MPI of PyPI."""
    return PYPI[name](target() / "mpi")


def install(names, say):
    """Installs missing packages, if no password is needed, and MPIs of PyPI."""
    for name in filter(PYPI.get, names):
        try:
            mpi(name).install()
        except installed.Unavailable as error:
            say(error)
    packages = sorted({package for name in names for package in missing(name).values()})
    if not packages:
        return
    root = as_root()
    if root is None or not shutil.which("apt-get"):
        say(f"not installed, and not mine to install: apt-get install {' '.join(packages)}")
        return
    say(f"installing: {' '.join(packages)}")
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qy", "--no-install-recommends", "install"]
    for command in (["apt-get", "-q", "update"], quiet + packages):
        try:
            job.run(root + command, LIMIT)
        except job.Failed as error:
            say(f"apt-get: {error}")


def as_root():
    """Returns the words to put before a command of root; None if root cannot be used."""
    if os.geteuid() == 0:
        return []
    try:
        job.run(["sudo", "-n", "true"], 10)
        return ["sudo", "-n"]
    except job.Failed:
        return None


def target():
    """Returns cargo's target directory."""
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target").absolute()


def build(name, program, scratch):
    """Builds a program over this contender's library; `job.Failed` names the obstacle."""
    lacking = missing(name)
    if lacking:
        raise job.Failed("; ".join(f"{program} is not installed (package {it})" for program, it in lacking.items()))
    source, program = str(HERE / f"{program}.c"), str(scratch / f"{program}-{name}")
    if name == "ours":
        prefix = scratch / "prefix"
        job.run([str(REPOSITORY / "ffi" / "install.sh"), str(prefix)], LIMIT, env=with_cargo())
        link = [f"-I{prefix}/include", f"-L{prefix}/lib", "-lnemesia", f"-Wl,-rpath,{prefix}/lib"]
        job.run(["cc", *FLAGS, "-DNEMESIA", source, "-o", program, *link], LIMIT)
    elif name == "rings":
        job.run(["cc", *FLAGS, source, "-o", program, "-luring"], LIMIT)
    elif name in ("bare", "sockets", "threads"):
        job.run(["cc", *FLAGS, f"-D{name.upper()}", source, "-o", program, "-pthread"], LIMIT)
    elif name in PYPI:
        if not mpi(name).is_installed():
            raise job.Failed(f"it is not installed (PyPI: {' '.join(PYPI[name].packages)})")
        job.run([*mpi(name).compiler(), *FLAGS, source, "-o", program], LIMIT, {**os.environ, **mpi(name).base()})
    elif name in ("mpich", "openmpi"):
        job.run([f"mpicc.{name}", *FLAGS, source, "-o", program], LIMIT)


def build_tool():
    """Builds the program `nemesia`, which contains our launcher."""
    command = ["cargo", "build", "--release", "--quiet", "--package", "nemesia-tool"]
    job.run(command, LIMIT, with_cargo(), cwd=REPOSITORY)


def tool():
    return target() / "release" / "nemesia"


def build_handover(scratch):
    job.run(["cc", *FLAGS, str(HERE / "handover.c"), "-o", str(scratch / "handover")], LIMIT)


def with_cargo():
    """Returns the environment, with cargo in PATH."""
    home = os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo")
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:{home}/bin"}


def load():
    """Returns the load averages as text."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


@contextlib.contextmanager
def scratch():
    """Makes a directory for builds and one for temporary files of peers; both are removed at the end."""
    parent = target() / "peers"
    parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.callback(remove_empty, parent)
        place = tempfile.mkdtemp(prefix="run-", dir=parent)
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        # A separate one: Open MPI makes sockets there, whose paths must be short.
        session = tempfile.mkdtemp(prefix="peers-")
        stack.callback(shutil.rmtree, session, ignore_errors=True)
        yield pathlib.Path(place), {**os.environ, "TMPDIR": session}


def remove_empty(directory):
    with contextlib.suppress(OSError):
        directory.rmdir()
