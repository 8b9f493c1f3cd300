"""Members of a bundled ZooKeeper as the operator starts them: real processes.

Members live on addresses of loopback of their own, since all of an ensemble have the same ports.

Called by tests of this tier. Source: `duramen.cluster.zookeeper_member`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kazoo.client import KazooClient

from duramen.cluster.layout import pick_free_port
from duramen.cluster.zookeeper_node import main
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

_SAID_CHARACTERS = 6_000
"""Of each member's log, where one does not serve."""


def name_host(index: int) -> str:
    """Where a member listens, and others call it."""
    return f"127.0.0.{index + 1}"


class Member:
    """One member; its volume may be lost while it is stopped."""

    def __init__(self, index: int, folder: Path, flags: list[str]) -> None:
        self.name = f"zk-{index}"
        self.host = name_host(index)
        self.folder = folder / f"zk-{index}"
        self.log = folder / f"zk-{index}.log"
        self._flags = ["--name", self.name, "--data-dir", str(self.folder), *flags]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, is_founding: bool = False) -> None:
        """Start it with an empty log, and do not wait."""
        command = [sys.executable, "-m", "duramen.cluster.zookeeper_node", *self._flags]
        command += ["--host", self.host]
        variable = {"DURAMEN_ZOOKEEPER_FOUNDING": "true"} if is_founding else {}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **variable}
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """It was started."""
        assert self._process is not None
        return self._process

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait_end(self) -> int:
        """The exit status of one that ends by itself."""
        return self.process.wait(HANG_S)

    def lose_volume(self) -> None:
        """Nothing is left of its data."""
        shutil.rmtree(self.folder)

    def say(self) -> str:
        """All that it said since its start; nothing before its first one."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Ensemble:
    """Its members, stopped.

    Args:
        identities: a folder of each member's identity; none: they have none.
    """

    def __init__(self, folder: Path, count: int, identities: Sequence[Path] = ()) -> None:
        self.port = pick_free_port()
        hosts = ",".join(map(name_host, range(count)))
        flags = ["--members", hosts, "--client-port", str(self.port)]
        flags += ["--quorum-port", str(pick_free_port()), "--election-port", str(pick_free_port())]
        own = [["--tls-dir", str(one)] for one in identities] or [[]] * count
        self.members = [Member(index, folder, flags + own[index]) for index in range(count)]

    def serves(self, member: Member) -> bool:
        """Whether a member serves clients: as its readiness probe asks."""
        where = ["--host", member.host, "--data-dir", str(member.folder)]
        return main(["health", *where, "--client-port", str(self.port)]) == 0

    def wait_serving(self, *members: Member) -> None:
        """Until all of these serve."""
        for member in members:
            try:
                wait_in_thread(partial(self.serves, member), HANG_S, f"{member.host} to serve")
            except AssertionError as error:
                for one in self.members:
                    error.add_note(f"{one.name} said:\n{one.say()[-_SAID_CHARACTERS:]}")
                raise

    @contextmanager
    def client(self, member: Member) -> Iterator[KazooClient]:
        """A client of one member."""
        client = KazooClient(f"{member.host}:{self.port}", timeout=10.0)
        client.start(timeout=HANG_S)
        try:
            yield client
        finally:
            client.stop()
            client.close()


@contextmanager
def make_ensemble(folder: Path, count: int, identities: Sequence[Path] = ()) -> Iterator[Ensemble]:
    """Members that are stopped at the end."""
    made = Ensemble(folder, count, identities)
    try:
        yield made
    finally:
        for member in made.members:
            member.stop()
