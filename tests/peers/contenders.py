"""The contenders: how each is run, and how its output is read.

Each is a function of the setting that returns {(test, bytes): sample}: latency in nanoseconds one way, bandwidth in
MB/s (10^6 bytes), rate in messages a second.
"""

import csv
import dataclasses
import io
import os
import pathlib

import job
import machine
import programs

LIMIT = 60  # seconds for one program
SMALL_LIMIT = 20  # and for one of those that measure one size
ROUND_NS = 20e6  # one measurement of one size takes about this
PEERS = ("mpich", "openmpi", "ucx", "libfabric", *programs.PYPI)
FLOORS = ("sockets",)  # without a library
STILL = ("ucx", "libfabric")  # their ping-pong sends bytes that never change
HYDRA = ["mpiexec.hydra", "-n", "2", "-bind-to", "core"]
OPENMPI = ["mpiexec.openmpi", "--allow-run-as-root", "--mca", "btl", "vader,self", "--bind-to", "core", "-n", "2"]
PORT = 5701  # of the sockets, in a namespace of their own
OPENMPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclasses.dataclass
class Setting:
    """What is measured, where, and with which programs."""

    tests: list
    sizes: list
    scratch: pathlib.Path
    env: dict
    still: bool
    hosts: object = None  # two namespaces, between which it is measured over TCP; otherwise over shared memory
    cores: list = dataclasses.field(default_factory=list)
    warnings: set = dataclasses.field(default_factory=set)

    def windows(self):
        return "bandwidth" in self.tests or "rate" in self.tests


def ours(setting):
    return by_hydra("ours", setting, {"NEMESIA_NET": "tcp"})


def by_hydra(name, setting, over_tcp):
    """Runs our own program, over one of the libraries, under Hydra; between two hosts with these variables."""
    if setting.hosts is None:
        return pingpong(name, HYDRA, setting)
    return pingpong(name, [*HYDRA, *setting.hosts.by_rank()], setting, {**setting.hosts.environment, **over_tcp})


def sockets(setting):
    """Our program without a library, between two hosts."""
    return by_hydra("sockets", setting, {"SOCKETS_AT": f"{setting.hosts.address(1)}:{PORT}"})


def still(setting):
    """Ours measured as ucx and libfabric measure themselves: latency with bytes that never change."""
    return ours(dataclasses.replace(setting, tests=["latency"], still=True))


def mpich(setting):
    # Hydra takes both hosts for one.
    return by_hydra("mpich", setting, {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"})


def openmpi(setting):
    if setting.hosts is None:
        return pingpong("openmpi", OPENMPI, setting, OPENMPI_AS_ROOT)
    hosts = setting.hosts
    # Each host has a daemon, which would bind its process to the first core.
    pin = 'exec taskset -c "$(echo "$0" | cut -d, -f$((OMPI_COMM_WORLD_RANK + 1)))" "$@"'
    launcher = [*hosts.first(), "mpiexec.openmpi", "--allow-run-as-root", "--host", "host0:1,host1:1", "--mca",
                "plm_rsh_agent", str(hosts.agent), "--mca", "oob_tcp_if_include", hosts.network, "--mca", "pml", "ob1",
                "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", hosts.network, "--bind-to", "none", "-n",
                "2", "sh", "-c", pin, ",".join(str(cores[0]) for cores in setting.cores)]
    return pingpong("openmpi", launcher, setting, OPENMPI_AS_ROOT)


def of_pypi(name):
    """Returns the runner of an MPI of PyPI over its own transports, by its defaults."""
    def run(setting):
        mpi, hosts = programs.mpi(name), setting.hosts
        is_intel = isinstance(mpi, programs.installed.Intel)
        cores = ",".join(str(cores[0]) for cores in setting.cores)
        words = [] if is_intel else ["-bind-to", "core"]
        more = {**mpi.base(), **({"I_MPI_PIN_PROCESSOR_LIST": cores} if is_intel else {})}
        if hosts is not None:
            # Their launchers take both hosts for one.
            apart = {"I_MPI_FABRICS": "ofi"} if is_intel else {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}
            words = [*words, *hosts.by_rank()]
            more = {**more, **hosts.environment, **apart, "FI_PROVIDER": "tcp"}
        return pingpong(name, mpi.command(2, "", words), setting, more)

    return run


def pingpong(name, launcher, setting, more=None):
    """Our own program, over one of the libraries against which it can be compiled."""
    asked = {"latency": "latency" in setting.tests, "window": setting.windows(), "still": setting.still}
    tests = [test for test, wanted in asked.items() if wanted]
    text = job.run(launcher + program(name, setting, tests), LIMIT, {**setting.env, **(more or {})})
    found = {}
    for line in text.splitlines():
        word, *fields = line.split() or [""]
        if word == "core":
            check_core(name, setting, *map(int, fields))
        elif word in tests:
            size, (value, *around) = int(fields[0]), map(float, fields[1:])
            found.update(samples(word, size, value, *around))
    if not found:
        raise job.Failed(f"it printed nothing that could be read: {job.last_words(text)}")
    return only(setting, found)


def program(name, setting, tests):
    """Returns the words that run our own program over a library, with the hand-over around each value."""
    lines = setting.scratch / "lines"  # memory that both processes share for the bare hand-over
    lines.write_bytes(bytes(4096))
    return [str(setting.scratch / f"pingpong-{name}"), ",".join(tests), ",".join(map(str, setting.sizes)), str(lines)]


def check_core(name, setting, rank, core, allowed):
    if core not in setting.cores[rank]:
        setting.warnings.add(f"{name}: rank {rank} ran on core {core}, not where ours does: {setting.cores[rank]}")
    if allowed > len(setting.cores[rank]):
        setting.warnings.add(f"{name}: rank {rank} was not pinned: {allowed} cores to choose from")


def ucx(setting):
    found = {}
    before = hand_over(setting)
    for size in setting.sizes:
        if "latency" in setting.tests:
            fields = ucx_perftest("tag_lat", size, 2 * (400 + 0.1 * size), setting)
            after = hand_over(setting)
            found.update(samples("latency", size, 1000 * number(fields, "percentile_lat"), before, after))
            before = after
        if setting.windows():
            fields = ucx_perftest("tag_bw", size, 150 + 0.1 * size, setting)
            after = hand_over(setting)
            found.update(samples("window", size, number(fields, "overall_mr"), before, after))
            before = after
    return only(setting, found)


def ucx_perftest(test, size, guess_ns, setting):
    """Runs once. Returns the last line of values, by the names of the columns."""
    port, count = job.free_port(), iterations(guess_ns, 20, 200_000)
    common = ["ucx_perftest", "-p", str(port)]
    server = on(setting, 1) + common + ["-c", str(setting.cores[1][0])]
    client = [*on(setting, 0), *common, "-c", str(setting.cores[0][0]), address(setting), "-t", test, "-s", str(size),
              "-n", str(count), "-w", str(max(count // 10, 4)), "-f", "-v"]
    layers = "shm,self" if setting.hosts is None else "tcp,self"
    text = job.run_pair(server, client, port, SMALL_LIMIT, {**setting.env, "UCX_TLS": layers})
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows:
        raise job.Failed(f"{test} of {size} bytes printed no values: {job.last_words(text)}")
    return rows[-1]


def on(setting, host):
    """Returns words that start a program on one of two hosts."""
    return [] if setting.hosts is None else ["ip", "netns", "exec", setting.hosts.namespaces[host]]


def address(setting):
    """Returns the address of the server."""
    return "127.0.0.1" if setting.hosts is None else setting.hosts.address(1)


def libfabric(setting):
    found = {}
    before = hand_over(setting)
    for size in setting.sizes:
        port, count = job.free_port(), iterations(2 * (1000 + 0.1 * size), 20, 10_000)
        provider = "shm" if setting.hosts is None else "tcp;ofi_rxm"
        program = ["fi_pingpong", "-p", provider, "-e", "rdm", "-S", str(size), "-I", str(count)]
        server = [*on(setting, 1), "taskset", "-c", str(setting.cores[1][0]), *program, "-B", str(port)]
        client = [*on(setting, 0), "taskset", "-c", str(setting.cores[0][0]), *program, "-P", str(port),
                  address(setting)]
        text = job.run_pair(server, client, port, SMALL_LIMIT, setting.env)
        lines = [line.split() for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or len(lines[-1]) != len(lines[-2]):
            raise job.Failed(f"fi_pingpong of {size} bytes printed no values: {job.last_words(text)}")
        fields = dict(zip(lines[-2], lines[-1]))
        after = hand_over(setting)
        found["latency", size] = machine.Sample(1000 * number(fields, "usec/xfer"), before, after)
        # The bandwidth of the ping-pong: the program has no windows, and so no rate either.
        if size > 0:
            found["bandwidth", size] = machine.Sample(number(fields, "MB/sec"), before, after)
        before = after
    return only(setting, found)


RUNNERS = {"ours": ours, "still": still, "sockets": sockets, "mpich": mpich, "openmpi": openmpi, "ucx": ucx,
           "libfabric": libfabric, **{name: of_pypi(name) for name in programs.PYPI}}


def number(fields, column):
    """Returns the value of the column whose name ends so."""
    for name, value in fields.items():
        if name and name.endswith(column):
            try:
                return float(value)
            except (TypeError, ValueError):
                break
    raise job.Failed(f"there is no number for '{column}' in {fields}")


def iterations(each_ns, fewest, most):
    return int(min(max(ROUND_NS / each_ns, fewest), most))


def samples(test, size, value, before, after):
    """Derives results from one value: a window gives a rate and a bandwidth."""
    if test == "latency":
        return {("latency", size): machine.Sample(value, before, after)}
    found = {("rate", size): machine.Sample(value, before, after)}
    if size > 0:
        found["bandwidth", size] = machine.Sample(value * size / 1e6, before, after)
    return found


def only(setting, found):
    return {key: sample for key, sample in found.items() if key[0] in setting.tests and sample.value > 0}


def hand_over(setting):
    """Returns the nanoseconds of a hand-over of a cache line between the two cores."""
    cores = [str(cores[0]) for cores in setting.cores]
    return float(job.run([str(setting.scratch / "handover"), *cores], LIMIT))


def bound_cores(env):
    """Returns the cores to which the launcher binds the two ranks; all contenders use them."""
    shell = 'while read -r key value; do if [ "$key" = Cpus_allowed_list: ]; then echo "$PMI_RANK $value"; fi; done'
    text = job.run([*HYDRA, "sh", "-c", f"{shell} </proc/self/status"], LIMIT, env)
    ranks = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
    cores = [numbers(ranks.get(rank, "")) for rank in ("0", "1")]
    if not all(cores) or set(cores[0]) & set(cores[1]) or len(cores[0]) >= (os.cpu_count() or 1):
        raise job.Failed(f"two processes can't be bound to a core each here: {text.strip()!r}")
    return cores


def numbers(text):
    """Parses a list of numbers in the kernel's format: 0-3,8."""
    found = []
    for item in filter(None, text.split(",")):
        low, _, high = item.partition("-")
        found.extend(range(int(low), int(high or low) + 1))
    return found
