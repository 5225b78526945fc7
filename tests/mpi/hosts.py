"""Two network namespaces with a link between them, which stand for two hosts."""

import contextlib
import os
import secrets
import shutil
import subprocess

from installed import Unavailable


def ip(*words):
    ran = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise Unavailable(f"ip {' '.join(words)}: {ran.stderr.strip()}")


@contextlib.contextmanager
def two_hosts(place):
    """Makes the namespaces, and a key of the job. Yields the words before a program, and its environment."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Unavailable("only root can make network namespaces, with the program ip (package iproute2)")
    names = [f"nemesia-mpi-{os.getpid()}-{host}" for host in (0, 1)]
    links = [f"nm{os.getpid() % 1000000}h{host}" for host in (0, 1)]
    key = place / "key"
    with contextlib.ExitStack() as made:
        for name in names:
            ip("netns", "add", name)
            made.callback(lambda name=name: ip("netns", "del", name))
        # It goes with its namespaces.
        ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        for host, (name, link) in enumerate(zip(names, links)):
            ip("-n", name, "addr", "add", f"10.123.7.{host + 1}/24", "dev", link)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", link, "up")
        key.unlink(missing_ok=True)
        with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        made.callback(key.unlink)
        # Ranks with even and with odd numbers run on different hosts.
        enter = 'exec ip netns exec "$0-$((PMI_RANK % 2))" "$@"'
        words = ["sh", "-c", enter, names[0].rpartition("-")[0]]
        yield words, {"NEMESIA_JOB_KEY_FILE": str(key), "NEMESIA_NET": "tcp"}
