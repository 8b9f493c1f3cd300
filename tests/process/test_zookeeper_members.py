"""Members of a bundled ZooKeeper as the operator starts them: real processes that lose volumes.

A member whose volume was lost is empty. Were it to vote, then with a member that lags it would be a
majority that never saw what another majority has acknowledged, and would throw it away. Members
live on three addresses of loopback, since all of an ensemble have the same ports.

Source: ADR 0022, `duramen.cluster.zookeeper_member`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from kazoo.client import KazooClient

from duramen.cluster.layout import pick_free_port
from duramen.cluster.zookeeper_node import main
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = pytest.mark.process

ROUNDS_WITHOUT_OUTCOME: Final = 4
"""Of an election; each is twice as long as the one before it, from 200 ms on."""


class Member:
    """One member; its volume may be lost while it is stopped."""

    def __init__(self, index: int, folder: Path, flags: list[str]) -> None:
        self.host = f"127.0.0.{index + 1}"
        self.folder = folder / f"zk-{index}"
        self.log = folder / f"zk-{index}.log"
        self._flags = ["--name", f"zk-{index}", "--data-dir", str(self.folder), *flags]
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

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait_end(self) -> int:
        """The exit status of one that ends by itself."""
        assert self._process is not None
        return self._process.wait(HANG_S)

    def lose_volume(self) -> None:
        """Nothing is left of its data."""
        shutil.rmtree(self.folder)

    def say(self) -> str:
        """All that it said since its start."""
        return self.log.read_text(errors="replace")


class Ensemble:
    """Its members, stopped."""

    def __init__(self, folder: Path, count: int) -> None:
        self.port = pick_free_port()
        hosts = ",".join(f"127.0.0.{index + 1}" for index in range(count))
        flags = ["--members", hosts, "--client-port", str(self.port)]
        flags += ["--quorum-port", str(pick_free_port()), "--election-port", str(pick_free_port())]
        self.members = [Member(index, folder, flags) for index in range(count)]

    def serves(self, member: Member) -> bool:
        """Whether a member serves clients: as its readiness probe asks."""
        return main(["health", "--host", member.host, "--client-port", str(self.port)]) == 0

    def wait_serving(self, *members: Member) -> None:
        """Until all of these serve."""
        for member in members:
            wait_in_thread(partial(self.serves, member), HANG_S, f"{member.host} to serve")

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
def make_ensemble(folder: Path, count: int) -> Iterator[Ensemble]:
    """Members that are stopped at the end."""
    made = Ensemble(folder, count)
    try:
        yield made
    finally:
        for member in made.members:
            member.stop()


def test_a_member_that_lost_its_volume_elects_nobody(tmp_path: Path) -> None:
    with make_ensemble(tmp_path, 3) as ensemble:
        full, lost, lagging = ensemble.members
        for member in ensemble.members:
            member.start(is_founding=True)
        ensemble.wait_serving(*ensemble.members)
        lagging.stop()
        with ensemble.client(full) as client:
            client.create("/acknowledged", b"by two of three")
        full.stop()
        lost.stop()
        lost.lose_volume()
        lost.start()
        lagging.start()

        def has_elected() -> bool:
            return any(map(ensemble.serves, (lost, lagging)))

        def has_tried() -> bool:
            return lagging.say().count("Notification time out") >= ROUNDS_WITHOUT_OUTCOME

        wait_in_thread(lambda: has_elected() or has_tried(), HANG_S, "an election")
        assert not has_elected()
        full.start()
        ensemble.wait_serving(full, lost, lagging)
        for member in ensemble.members:
            with ensemble.client(member) as client:
                assert client.exists("/acknowledged"), member.host
        # From the others it has a database of its own again, and with it a vote.
        full.stop()
        lost.stop()
        lost.start()
        ensemble.wait_serving(lost, lagging)


def test_a_member_that_comes_first_when_the_others_are_founded_gets_their_data(
    tmp_path: Path,
) -> None:
    """As a pod that had no node: the founding is over when two of three serve."""
    with make_ensemble(tmp_path, 3) as ensemble:
        *early, late = ensemble.members
        for member in early:
            member.start(is_founding=True)
        ensemble.wait_serving(*early)
        with ensemble.client(early[0]) as client:
            client.create("/founded")
        late.start()
        ensemble.wait_serving(late)
        with ensemble.client(late) as client:
            assert client.exists("/founded")


def test_one_that_stands_alone_refuses_to_start_without_its_data(tmp_path: Path) -> None:
    with make_ensemble(tmp_path, 1) as ensemble:
        (member,) = ensemble.members
        member.start(is_founding=True)
        ensemble.wait_serving(member)
        member.stop()
        member.start()
        ensemble.wait_serving(member)
        member.stop()
        member.lose_volume()
        member.start()
        assert member.wait_end() == 1
        assert "holds no database" in member.say()
        assert "--found" in member.say()


def test_what_was_allowed_at_a_start_that_was_cut_off_is_not_allowed_later(tmp_path: Path) -> None:
    with make_ensemble(tmp_path, 3) as ensemble:
        cut_off, *others = ensemble.members
        allowed = cut_off.folder / "data" / "initialize"
        allowed.parent.mkdir(parents=True)
        allowed.touch()
        cut_off.start()
        wait_in_thread(lambda: "has no vote" in cut_off.say(), HANG_S, "a word of its data")
        assert not allowed.exists()
        for member in others:
            member.start(is_founding=True)
        ensemble.wait_serving(*ensemble.members)
