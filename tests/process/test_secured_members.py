"""Members of a bundled ZooKeeper with identities: they elect, renew while they run, end in time.

Source: docs/protocol/metadata-access.md "Members of a bundled ensemble".
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from duramen.cluster.zookeeper_node import main
from duramen.runtime.identity.authority import open_authority
from duramen.runtime.identity.certificates import Places
from duramen.runtime.identity.folder import read_folder, write_bundle
from duramen.runtime.identity.generations import write_generation
from duramen.runtime.identity.names import IdentityError
from duramen.runtime.identity.zookeeper_files import make_probe_context
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from tests.process.ensemble import Ensemble, Member, make_ensemble, name_host
from tests.process.times import HANG_S
from tests.secured_zookeeper import CALL_TIMEOUT_S, Issuer
from tests.waiting import wait_in_thread
from tests.zookeeper_fixture import run

pytestmark = pytest.mark.process


def issue(issuer: Issuer, index: int) -> Path:
    """The folder of a member, with another certificate if it was there."""
    host = ipaddress.ip_address(name_host(index))
    return issuer.issue("zookeeper", f"zk-{index}", Places((), (host,)))


@contextlib.contextmanager
def running(folder: Path, count: int) -> Iterator[tuple[Ensemble, Issuer]]:
    """Members that serve, and who issued their identities."""
    issuer = Issuer(folder / "issued")
    with make_ensemble(folder, count, [issue(issuer, index) for index in range(count)]) as ensemble:
        for member in ensemble.members:
            member.start(is_founding=True)
        ensemble.wait_serving(*ensemble.members)
        yield ensemble, issuer


def show(ensemble: Ensemble, member: Member) -> bytes | None:
    """The certificate that a member shows to its clients."""
    context = make_probe_context(member.folder)
    with (
        socket.create_connection((member.host, ensemble.port), HANG_S) as plain,
        context.wrap_socket(plain) as secure,
    ):
        return secure.getpeercert(binary_form=True)


def shows(ensemble: Ensemble, member: Member, folder: Path) -> Callable[[], bool]:
    """Whether a member shows what lies in the folder of its identity."""

    def ask() -> bool:
        held = read_folder(folder, dt.datetime.now(dt.UTC))
        try:
            shown = show(ensemble, member)
        except ssl.SSLError:
            # Java reads key and certificate one after the other, for each connection anew: one that
            # meets the change between them fails, and the next one does not.
            return False
        return shown == held.leaf.public_bytes(Encoding.DER)

    return ask


def test_three_elect_and_take_what_is_renewed_while_they_serve(tmp_path: Path) -> None:
    with running(tmp_path, 3) as (ensemble, issuer):
        address = ",".join(f"{member.host}:{ensemble.port}" for member in ensemble.members)
        store = ZooKeeperStore(
            address,
            call_timeout_s=CALL_TIMEOUT_S,
            identity_dir=issuer.issue("sequencer", "sequencer-0"),
        )

        async def write(path: str) -> None:
            await store.start()
            await store.create(path, b"by a quorum")
            await store.close()

        run(write("/before"))
        for index, member in enumerate(ensemble.members):
            folder = issue(issuer, index)
            wait_in_thread(shows(ensemble, member, folder), HANG_S, f"{member.name} to renew")
        ensemble.wait_serving(*ensemble.members)
        # By new certificates alone: an election after one was lost.
        lost = ensemble.members[0]
        lost.stop()
        lost.start()
        ensemble.wait_serving(*ensemble.members)


def test_what_is_trusted_counts_though_the_certificate_beside_it_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, 1) as (ensemble, issuer):
        (member,) = ensemble.members
        before = show(ensemble, member)
        stranger = issuer.issue("bookie", "bookie-0")
        with open_authority(issuer.ca, dt.datetime.now(dt.UTC)) as authority:
            authority.announce(dt.datetime.now(dt.UTC))
            write_bundle(stranger, issuer.domain, authority.bundle, dt.datetime.now(dt.UTC))
        files = {path.name: path.read_bytes() for path in stranger.iterdir() if path.is_file()}
        write_generation(issuer.folder / "zookeeper-zk-0", files)
        anchors = member.folder / "tls" / "ca.pem"

        def trusts_both() -> bool:
            return anchors.read_text().count("BEGIN CERTIFICATE") == 2

        wait_in_thread(trusts_both, HANG_S, "the bundle to be handed on")
        assert show(ensemble, member) == before
        assert "is of spiffe://" in member.say()


def test_it_ends_when_nobody_would_take_its_certificate_any_more(tmp_path: Path) -> None:
    with running(tmp_path, 1) as (ensemble, issuer):
        (member,) = ensemble.members
        other = Issuer(tmp_path / "other")
        now = dt.datetime.now(dt.UTC)
        with open_authority(other.ca, now) as authority, contextlib.suppress(IdentityError):
            folder = issuer.folder / "zookeeper-zk-0"
            write_bundle(folder, issuer.domain, authority.bundle, now)
        assert member.wait_end() == 1
        assert "zk-0 stops: its certificate in" in member.say()
        assert not ensemble.serves(member)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_the_server_ends_with_who_renews_it(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    with running(tmp_path, 1) as (ensemble, _issuer):
        (member,) = ensemble.members
        member.process.send_signal(number)
        assert member.wait_end() == status

        def is_gone() -> bool:
            try:
                socket.create_connection((member.host, ensemble.port), HANG_S).close()
            except ConnectionRefusedError:
                return True
            return False

        wait_in_thread(is_gone, HANG_S, "the server to end")


def test_who_has_no_identity_is_not_heard_and_the_probe_has_it(tmp_path: Path) -> None:
    with running(tmp_path, 1) as (ensemble, _issuer):
        (member,) = ensemble.members
        where = ["--host", member.host, "--client-port", str(ensemble.port)]
        own = ["--data-dir", str(member.folder)]
        assert main(["health", *where, *own]) == 0
        assert main(["health", "--alive", *where, *own]) == 0
        assert main(["health", "--alive", *where, "--data-dir", str(tmp_path)]) == 1


def test_a_folder_that_others_would_not_take_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issuer = Issuer(tmp_path / "issued")

    def start(folder: Path, name: str, members: str) -> str:
        flags = ["--tls-dir", str(folder), "--name", name, "--members", members, "--found"]
        assert main([*flags, "--data-dir", str(tmp_path / "data")]) == 1
        return capsys.readouterr().err

    assert "is the zookeeper zk-1: give the folder" in start(issue(issuer, 0), "zk-1", "a,b,c")
    assert "issue it for that one" in start(issue(issuer, 0), "zk-0", "a,b,c")
    assert "tls.key is missing" in start(tmp_path / "nothing", "zk-0", "a,b,c")
    assert not (tmp_path / "data").exists()
