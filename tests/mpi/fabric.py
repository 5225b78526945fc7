"""The provider under libfabric itself: programs of our own that take the place of fabtests, and two of Debian's.

fabtests is in no package. Its groups, and the test that stands for each:

| groups of fabtests | here |
|---|---|
| getinfo_test, av_test, cntr_test, cq_test, dom_test, eq_test, mr_test, resource_freeing, setopt_test | objects |
| rdm, rdm_pingpong, rdm_tagged_pingpong, bw, rdm_tagged_bw, loopback, multi_ep, rdm_multi_domain | messages |
| inject_test, cq_data, multi_recv, recv_cancel, rdm_tagged_peek, unexpected_msg, rdm_cntr_pingpong | messages |
| resmgmt_test (full queues) | messages: inject, unexpected, held_back; local |
| rma_bw, rdm_rma_pingpong, rdm_atomic, multi_mr, unmap_mem | one_sided |
| rdm_stress, and the waits of msg_epoll and dgram_waitset | waiting |
| rdm_multi_client, multinode, av_xfer | dying |
| the start of each test of two processes: a host and a port | services |
| ubertest (all combinations of the settings) | messages: formats, selective; waiting |

| groups that do not apply | reason |
|---|---|
| msg_*, cm_data, shared_ctx over FI_EP_MSG, rdm_shared_av | no connected endpoints: -FI_ENODATA |
| dgram*, mcast | no datagrams, no multicast: -FI_ENODATA |
| scalable_ep, shared_ctx over RDM | no scalable endpoints and no shared contexts: -FI_ENOSYS |
| poll | no poll sets, which libfabric has given up: -FI_ENOSYS |
| rdm_rma_event | no counts of peers' operations: FI_RMA_EVENT is not offered. See one_sided for writes with data |
| rdm_rma_trigger, rdm_deferred_wq | no triggered operations: FI_TRIGGER is not offered |
| mr_cache_evict, dmabuf, hmem | they test monitors of libfabric, and memory of devices |
| rdm_bw_mt over scalable endpoints, sighandler_test | of endpoints and programs that are not offered |
"""

import os
import pathlib
import shutil
import socket
import subprocess
import time

from installed import Unavailable

PROGRAMS = ("objects", "messages", "local", "one_sided", "services", "waiting", "dying")
HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 300  # seconds for one test, on a machine that does other work
CONNECTED = 60  # seconds until a server listens


def compile_all(place):
    """Compiles the programs. Returns their directory."""
    to = place / "programs/fabric"
    to.mkdir(parents=True, exist_ok=True)
    if not pathlib.Path("/usr/include/rdma/fi_domain.h").exists() or shutil.which("cc") is None:
        raise Unavailable("the headers of libfabric and a C compiler are needed (packages libfabric-dev and gcc)")
    for program in PROGRAMS:
        command = ["cc", "-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread",
                   str(HERE / "fabric" / f"{program}.c"), "-o", str(to / program), "-lfabric"]
        subprocess.run(command, check=True)
    return to


def libraries(place):
    """Returns the libraries of libfabric: the system's, and those that MPIs of PyPI bring along, as words of a test.

    If NEMESIA_QUICK is set, the latter are left out: the MPIs themselves use them.
    """
    found = {"1.17": {}}
    for name, path in (("1.22", "mpich-4.3/lib/mpich"), ("2.5", "openmpi-5.0/lib/openmpi")):
        if (place / path / "libfabric.so.1").exists() and not os.environ.get("NEMESIA_QUICK"):
            found[name] = {"LD_LIBRARY_PATH": str(place / path)}
    return found


def passes(program, name, run, environment):
    status, out = run([str(program), name], environment)
    assert status == 0 and f"{name} passed" in out, f"status {status}: {out.strip()[-1500:]}"


def is_listed(run, environment):
    """Debian's `fi_info` finds the provider, and what it offers."""
    status, out = run(["fi_info", "-p", "nemesia", "-v"], environment)
    words = ("prov_name: nemesia", "FI_EP_RDM", "FI_TAGGED", "FI_RMA", "FI_ATOMIC")
    assert status == 0 and all(word in out for word in words), f"status {status}: {out[-1500:]}"


def is_listening(port):
    """Returns whether a process listens on this port. It does not connect: the server takes one client only."""
    for line in pathlib.Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        if words[1].endswith(f":{port:04X}") and words[3] == "0A":
            return True
    return False


def free_port():
    """Returns a port that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def ping_pong(mode, run, environment):
    """Debian's `fi_pingpong`, which compares all bytes."""
    port = free_port()
    words = ["fi_pingpong", "-p", "nemesia", "-e", "rdm", "-m", mode, "-c"]
    server = subprocess.Popen([*words, "-B", str(port)], env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + CONNECTED
        while not is_listening(port):
            assert server.poll() is None and time.monotonic() < end, "the server does not listen"
            time.sleep(0.05)
        status, out = run([*words, "-P", str(port), "127.0.0.1"], environment)
        assert status == 0 and "1m" in out, f"client: status {status}: {out[-1500:]}"
        out, _ = server.communicate(timeout=LIMIT)
        assert server.returncode == 0, f"server: status {server.returncode}: {out[-1500:]}"
    except subprocess.TimeoutExpired:
        raise AssertionError("the server does not end") from None
    finally:
        server.kill()
        server.wait()


def test_all(tests, provider, place, run, skip):
    """Runs every test over each library of libfabric."""
    try:
        programs = compile_all(place)
    except Unavailable as error:
        skip("mpi::fabric", error)
        return
    for version, words in libraries(place).items():
        environment = {"FI_PROVIDER_PATH": str(provider), **words}
        for program in PROGRAMS:
            listed = subprocess.run([str(programs / program)], env={**os.environ, **words}, check=True,
                                    stdout=subprocess.PIPE, text=True)
            for name in listed.stdout.split():
                tests.attempt(f"mpi::libfabric-{version}::{program}::{name}",
                              lambda p=programs / program, n=name, e=environment: passes(p, n, run, e))
    environment = {"FI_PROVIDER_PATH": str(provider)}
    if shutil.which("fi_info") is None or shutil.which("fi_pingpong") is None:
        skip("mpi::libfabric-programs", "fi_info and fi_pingpong are not installed (package libfabric-bin)")
        return
    tests.attempt("mpi::libfabric-programs::fi_info", lambda: is_listed(run, environment))
    for mode in ("msg", "tagged"):
        tests.attempt(f"mpi::libfabric-programs::fi_pingpong_{mode}", lambda m=mode: ping_pong(m, run, environment))
