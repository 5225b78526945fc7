"""Two network namespaces with a link between them, which stand for two hosts."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess

from installed import Unavailable


AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "{prefix}-${{host#host}}" unshare --uts sh -c "hostname $host; $*"
"""


def ip(*words):
    ran = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise Unavailable(f"ip {' '.join(words)}: {ran.stderr.strip()}")


@dataclasses.dataclass
class Hosts:
    """Two namespaces, which have names as hosts of their own while a launcher runs in them."""

    namespaces: list
    network: str
    environment: dict
    agent: pathlib.Path  # takes the place of ssh: AGENT HOST COMMAND...

    @staticmethod
    def address(host):
        return f"10.123.7.{host + 1}"

    def by_rank(self):
        """Returns words before a program of Hydra's: ranks with even and with odd numbers run on different hosts."""
        enter = 'exec ip netns exec "$0-$((PMI_RANK % 2))" "$@"'
        return ["sh", "-c", enter, self.namespaces[0].rpartition("-")[0]]

    def first(self):
        """Returns words before a launcher, which runs on the host `host0`; the other one is `host1`."""
        return ["ip", "netns", "exec", self.namespaces[0], "unshare", "--uts", "sh", "-c",
                'hostname host0; exec "$@"', "sh"]


@contextlib.contextmanager
def two_hosts(place):
    """Makes the namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Unavailable("only root can make network namespaces, with the program ip (package iproute2)")
    names = [f"nemesia-mpi-{os.getpid()}-{host}" for host in (0, 1)]
    links = [f"nm{os.getpid() % 1000000}h{host}" for host in (0, 1)]
    agent = place / "agent"
    with contextlib.ExitStack() as made:
        for name in names:
            ip("netns", "add", name)
            made.callback(lambda name=name: ip("netns", "del", name))
        # It goes with its namespaces.
        ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        for host, (name, link) in enumerate(zip(names, links)):
            ip("-n", name, "addr", "add", f"{Hosts.address(host)}/24", "dev", link)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", link, "up")
        write(agent, AGENT.format(prefix=names[0].rpartition("-")[0]), 0o700)
        made.callback(agent.unlink)
        yield Hosts(names, "10.123.7.0/24", {"NEMESIA_NET": "tcp"}, agent)


def write(path, text, mode):
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as file:
        file.write(text)
