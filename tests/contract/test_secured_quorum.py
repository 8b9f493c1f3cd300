"""Three members that speak TLS with one another and with clients: an election, a loss, a stranger.

Source: docs/protocol/metadata-access.md "Members of the quorum".
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import pytest

from duramen.cluster.layout import pick_free_port
from duramen.runtime.embedded_zookeeper import (
    EnsembleMember,
    find_jars,
    find_java,
    is_serving,
    server_command,
    write_configuration,
)
from duramen.runtime.identity.zookeeper_files import make_probe_context, write_server_files
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from tests.contract.conftest import Story, wait_reads
from tests.pauses import look_again_soon
from tests.secured_zookeeper import CALL_TIMEOUT_S, Issuer
from tests.waiting import wait_for
from tests.zookeeper_fixture import run

pytestmark = pytest.mark.zookeeper


class Member:
    """One server of three, which may be killed and started again."""

    def __init__(self, folder: Path, identity_dir: Path, members: list[EnsembleMember], n: int):
        self.port = pick_free_port()
        self.election_port = members[n - 1].election_port
        self.data_dir = folder / f"data-{n}"
        self.log_file = folder / f"{n}.log"
        write_configuration(
            self.data_dir, self.port, members=members, server_id=n, identity_dir=identity_dir
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: list[str]) -> None:
        with self.log_file.open("ab") as log:
            self._process = self._launch(command, log)

    def _launch(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, cwd=self.data_dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def show(self) -> bytes | None:
        """The certificate that it shows to other members."""
        context = make_probe_context(self.data_dir)
        address = ("127.0.0.1", self.election_port)
        with (
            socket.create_connection(address, CALL_TIMEOUT_S) as plain,
            context.wrap_socket(plain) as secure,
        ):
            return secure.getpeercert(binary_form=True)

    async def serves(self) -> bool:
        """Whether it serves clients: it has a leader, or is one."""
        return await is_serving(self.port, make_probe_context(self.data_dir))


async def wait_serving(*members: Member) -> None:
    """Until all of these serve."""
    for member in members:
        while not await member.serves():
            await look_again_soon()


@asynccontextmanager
async def running_three(folder: Path) -> AsyncIterator[tuple[list[Member], Issuer, list[str]]]:
    """Three members that were started, their issuer, and the command that starts one."""
    issuer = Issuer(folder / "issued")
    command = server_command(find_java(), find_jars())
    ensemble = [EnsembleMember(n, pick_free_port(), pick_free_port()) for n in (1, 2, 3)]
    members = [
        Member(folder, issuer.issue("zookeeper", f"zookeeper-{n}"), ensemble, n) for n in (1, 2, 3)
    ]
    try:
        for member in members:
            member.start(command)
        yield members, issuer, command
    finally:
        for member in members:
            member.kill()


def test_three_elect_and_survive_the_loss_of_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_three(tmp_path) as (members, issuer, command):
            await wait_serving(*members)
            address = ",".join(f"127.0.0.1:{member.port}" for member in members)
            store = ZooKeeperStore(
                address,
                call_timeout_s=CALL_TIMEOUT_S,
                identity_dir=issuer.issue("sequencer", "sequencer-0"),
            )
            await store.start()
            await store.create("/acknowledged", b"by a quorum")
            story = Story(store)
            leader = next(m for m in members if "LEADING" in m.log_file.read_text())
            rest = [member for member in members if member is not leader]
            leader.kill()
            await wait_serving(*rest)
            await wait_reads(store)
            await store.set("/acknowledged", b"by two", version=0)
            leader.start(command)
            await wait_serving(leader)
            assert "lost" not in {state.value for state in story.states}
            await store.close()
            for member in members:
                assert "sslQuorum" in (member.data_dir / "zoo.cfg").read_text()
                assert "SSLHandshakeException" not in member.log_file.read_text()

    run(scenario())


def test_another_node_is_no_member_though_one_ca_has_signed_it(tmp_path: Path) -> None:
    """Two of three: the third shows what a bookie has, and nobody hears its votes."""

    async def scenario() -> None:
        async with running_three(tmp_path) as (members, issuer, command):
            await wait_serving(*members)
            first, second, thief = members
            second.kill()
            thief.kill()
            stolen = issuer.issue("bookie", "bookie-0")
            whole = (stolen / "tls.key").read_bytes() + (stolen / "tls.crt").read_bytes()
            (thief.data_dir / "tls" / "server.pem").write_bytes(whole)
            thief.start(command)

            def refusals() -> int:
                return first.log_file.read_text().count("is no member of the quorum")

            await wait_for(lambda: refusals() > 0)
            while await first.serves():  # as it did with the other two
                await look_again_soon()
            seen = refusals()
            await wait_for(lambda: refusals() > seen)
            assert not await first.serves(), "it has a quorum"
            write_server_files(issuer.folder / "zookeeper-zookeeper-3", thief.data_dir)
            thief.kill()
            thief.start(command)
            await wait_serving(first, thief)

    run(scenario())


def test_a_member_shows_each_new_certificate_to_others_without_a_restart(tmp_path: Path) -> None:
    """A bundle that is written with the key once kept the old certificate, in one of ten or so."""

    async def scenario() -> None:
        async with running_three(tmp_path) as (members, issuer, _command):
            await wait_serving(*members)
            first = members[0]
            for _ in range(12):
                before = first.show()
                issuer.issue("zookeeper", "zookeeper-1")
                write_server_files(issuer.folder / "zookeeper-zookeeper-1", first.data_dir)

                def has_changed(old: bytes | None = before) -> bool:
                    return first.show() != old

                await wait_for(has_changed, rest_s=0.02)
            assert await first.serves(), "it has lost the others over it"

    run(scenario())
