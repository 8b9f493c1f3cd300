"""A ZooKeeper with an identity: who is let in, what each role may do, and what is renewed.

What every store promises: `test_metadata_store`, which runs with an identity too. Members of a
quorum: `test_secured_quorum`. Source: docs/protocol/metadata-access.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from kazoo.handlers.utils import selector_select

from duramen.cli.main import main
from duramen.ids import Epoch, Incarnation, LogId
from duramen.runtime.embedded_zookeeper import is_serving
from duramen.runtime.identity.authority import open_authority
from duramen.runtime.identity.certificates import (
    Bundle,
    Places,
    issue_leaf,
    make_authority,
    make_key,
)
from duramen.runtime.identity.folder import (
    HeldIdentity,
    read_bundle,
    read_folder,
    write_bundle,
)
from duramen.runtime.identity.generations import resolve
from duramen.runtime.identity.names import IdentityError, make_identity
from duramen.runtime.identity.zookeeper_files import (
    encode_whole,
    make_probe_context,
    write_server_files,
)
from duramen.runtime.stores.guarding import found_tree, walk_rights
from duramen.runtime.stores.metadata_store import (
    Create,
    Rejected,
    SessionState,
    Set,
    Unavailable,
)
from duramen.runtime.stores.secure_connection import SecureConnections
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths
from tests.contract.conftest import Story, wait_reads
from tests.pauses import look_again_soon
from tests.secured_zookeeper import (
    CALL_TIMEOUT_S,
    REFUSED_S,
    Issuer,
    SecuredServer,
    running_secured,
)
from tests.unit.identities import DOMAIN
from tests.waiting import wait_for
from tests.zookeeper_fixture import FaultyProxy, run

pytestmark = pytest.mark.zookeeper

PATHS: Final = Paths("guarded")
_OTHER_DOMAIN: Final = "f" * 32
_LOG: Final = LogId(5)
_EPOCH: Final = Epoch(1)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """A server whose tree is founded, with a log, two bookies and two proxies."""
    with running_secured(tmp_path_factory.mktemp("guarded")) as server:
        run(_populate(server))
        yield server


async def _populate(server: SecuredServer) -> None:
    async with server.opened("operator", "admin") as operator:
        await found_tree(operator, PATHS, DOMAIN)
        assert [one async for one in walk_rights(operator, DOMAIN, is_mending=True)]
    async with server.opened("sequencer", "sequencer-0") as sequencer:
        for path in (
            PATHS.namespace("shop"), PATHS.names_of("shop"), PATHS.name("shop", "orders"),
            PATHS.log(_LOG), PATHS.segments(_LOG), PATHS.segment(_LOG, _EPOCH), PATHS.maintenance,
            PATHS.tombstones,
        ):  # fmt: skip
            await sequencer.create(path, b"{}", make_parents=True)
    for name in ("bookie-0", "bookie-1"):
        async with server.opened("bookie", name) as bookie:
            await bookie.create(PATHS.bookie(name), b"{}")


async def _refusal(store: ZooKeeperStore) -> str:
    try:
        with pytest.raises(Unavailable) as caught:
            await store.start()
    finally:
        await store.close()
    return str(caught.value)


# --- Who is let in -------------------------------------------------------------------------------


def _is_answered(server: SecuredServer, context: ssl.SSLContext) -> bool:
    """Whether a server says how it is; in TLS 1.3 a client hears late that it is not let in."""
    try:
        with (
            socket.create_connection(("127.0.0.1", server.port), CALL_TIMEOUT_S) as plain,
            context.wrap_socket(plain) as secure,
        ):
            secure.sendall(b"srvr")
            return b"Mode" in secure.recv(1000)
    except (ssl.SSLError, ConnectionError):
        return False


def _anybody(server: SecuredServer) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(server.data_dir / "tls" / "ca.pem")
    context.check_hostname = False
    return context


def test_there_is_no_plain_port_and_nothing_below_tls_1_3(guarded: SecuredServer) -> None:
    assert "clientPort=" not in (guarded.data_dir / "zoo.cfg").read_text().replace(
        "secureClientPort=", ""
    )
    assert not run(is_serving(guarded.port)), "in plain text"
    context = make_probe_context(guarded.data_dir)
    assert run(is_serving(guarded.port, context))
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert not _is_answered(guarded, context)


def test_nobody_connects_without_a_certificate(guarded: SecuredServer) -> None:
    assert not _is_answered(guarded, _anybody(guarded))


@pytest.mark.parametrize(
    ("domain", "role"), [(DOMAIN, "bookie"), (_OTHER_DOMAIN, "bookie"), (DOMAIN, "sequencer")]
)
def test_nobody_connects_with_a_certificate_of_another_ca(
    guarded: SecuredServer, tmp_path: Path, domain: str, role: str
) -> None:
    stranger = Issuer(tmp_path, domain=domain).issue(role, f"{role}-0")
    context = _anybody(guarded)
    context.load_cert_chain(stranger / "tls.crt", stranger / "tls.key")
    assert not _is_answered(guarded, context)


@pytest.mark.parametrize("role", ["client", "monitor"])
def test_who_has_nothing_to_do_there_is_let_in_to_nothing(
    guarded: SecuredServer, role: str
) -> None:
    assert "no session" in run(_refusal(guarded.store(role, "me", call_timeout_s=REFUSED_S)))


def test_an_identity_of_another_cluster_is_a_stranger_whoever_signed_it(
    guarded: SecuredServer, tmp_path: Path
) -> None:
    """As where one CA of a company has signed two clusters' certificates by itself."""
    now, key = dt.datetime.now(dt.UTC), make_key()
    whole = tmp_path / "whole.pem"
    for domain, is_known in ((DOMAIN, True), (_OTHER_DOMAIN, False)):
        identity = make_identity(domain, "operator", "admin")
        with open_authority(guarded.issuer.ca, now) as kept:
            leaf = issue_leaf(kept._kept.signers[0], identity, key.public_key(), now)
        whole.write_bytes(encode_whole(HeldIdentity(identity, key, leaf, kept.bundle)))
        context = _anybody(guarded)
        context.load_cert_chain(whole)
        assert _is_answered(guarded, context) == is_known, domain
    assert f"the certificate is of spiffe://{_OTHER_DOMAIN}" in guarded.log_file.read_text()


def test_a_parents_other_children_are_strangers_and_its_child_is_the_anchor(
    tmp_path: Path,
) -> None:
    now = dt.datetime.now(dt.UTC)
    parent = make_authority(DOMAIN, now)
    mine = Issuer(tmp_path / "mine", parent=parent)
    other = Issuer(tmp_path / "other", parent=parent)

    async def scenario() -> None:
        server = SecuredServer(tmp_path / "server", mine)
        await server.start()
        try:
            async with server.opened("sequencer", "sequencer-0") as store:
                assert await store.get("/") is not None
            stranger = other.issue("sequencer", "sequencer-0")
            said = await _refusal(
                ZooKeeperStore(server.address, call_timeout_s=REFUSED_S, identity_dir=stranger)
            )
            assert "certificate verify failed" in said
        finally:
            await server.stop()

    run(scenario())


# --- Whom a client trusts ------------------------------------------------------------------------


def test_a_client_sees_that_the_host_is_named(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path / "issued")
    elsewhere = Places(("zookeeper.elsewhere",), (ipaddress.ip_address("127.0.0.2"),))
    issuer.issue("zookeeper", "zookeeper-0", elsewhere)

    async def scenario() -> None:
        server = SecuredServer(tmp_path / "server", issuer, places=elsewhere)
        await server.start()
        try:
            store = server.store("sequencer", "sequencer-0", call_timeout_s=REFUSED_S)
            assert "IP address mismatch" in await _refusal(store)
        finally:
            await server.stop()

    run(scenario())


def test_a_client_takes_no_other_node_for_zookeeper(tmp_path: Path) -> None:
    """All nodes of a laptop have the host in their certificates."""
    issuer = Issuer(tmp_path)
    impostor = issuer.issue("bookie", "bookie-0")
    with pytest.raises(IdentityError, match="issue one of a zookeeper"):
        write_server_files(impostor, tmp_path / "data")

    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(impostor / "tls.crt", impostor / "tls.key")
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        mine = issuer.issue("sequencer", "sequencer-0")
        store = ZooKeeperStore(address, call_timeout_s=REFUSED_S, identity_dir=mine)
        assert "bookie-0 answers in the place of ZooKeeper" in await _refusal(store)
        server.close()

    run(scenario())


def test_a_client_refuses_a_server_that_is_revoked(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = SecuredServer(tmp_path)
        await server.start()
        try:
            store = server.store("sequencer", "sequencer-0", call_timeout_s=REFUSED_S)
            told = server.issuer.folder / "sequencer-sequencer-0"
            server.issuer.revoke(server.identity_dir, told)
            assert "the certificate of ZooKeeper is revoked" in await _refusal(store)
        finally:
            await server.stop()

    run(scenario())


def test_a_store_without_its_identity_does_not_begin(tmp_path: Path) -> None:
    store = ZooKeeperStore("127.0.0.1:1", identity_dir=tmp_path)
    with pytest.raises(IdentityError, match=r"tls\.key is missing"):
        run(store.start())


# --- What each role may do -----------------------------------------------------------------------

_SEQUENCERS_NODES: Final = (
    PATHS.cluster, PATHS.namespace("shop"), PATHS.names_of("shop"), PATHS.name("shop", "orders"),
    PATHS.log(_LOG), PATHS.segments(_LOG), PATHS.segment(_LOG, _EPOCH), PATHS.maintenance,
    PATHS.tombstones, PATHS.sequencers, PATHS.repair_owed, PATHS.root,
)  # fmt: skip


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("bookie", "bookie-0"),
        ("readproxy", "r"),
        ("writeproxy", "w"),
        ("zookeeper", "z"),
        ("corereader", "c"),
    ],
)
def test_who_is_no_sequencer_changes_no_log_name_or_segment(
    guarded: SecuredServer, role: str, name: str
) -> None:
    async def scenario() -> None:
        async with guarded.opened(role, name) as store:
            for path in _SEQUENCERS_NODES:
                stored = await store.get(path)
                assert stored is not None, f"{role} does not read {path}"
                with pytest.raises(Rejected):
                    await store.set(path, b"{}", version=stored.version)
                with pytest.raises(Rejected):
                    await store.delete(path, version=stored.version)
                with pytest.raises(Rejected):
                    await store.create(f"{path}/mine", b"{}")
                with pytest.raises(Rejected):
                    await store.set_rights(path, ())
            for path in ("/", "/duramen", "/zookeeper"):
                with pytest.raises(Rejected):
                    await store.create(f"{path.rstrip('/')}/mine", b"{}")

    run(scenario())


def test_a_bookie_writes_its_own_nodes_and_those_of_no_other(guarded: SecuredServer) -> None:
    async def scenario() -> None:
        async with (
            guarded.opened("bookie", "bookie-0") as mine,
            guarded.opened("bookie", "bookie-1") as other,
        ):
            await mine.create(f"{PATHS.available}/bookie-0", b"{}", ephemeral=True)
            await other.create(f"{PATHS.available}/bookie-1", b"{}", ephemeral=True)
            for own, strange in ((mine, "bookie-1"), (other, "bookie-0")):
                for path in (PATHS.bookie(strange), f"{PATHS.available}/{strange}"):
                    with pytest.raises(Rejected):
                        await own.set(path, b"{}", version=0)
                    with pytest.raises(Rejected):
                        await own.delete(path, version=0)
            await mine.commit((
                Create(PATHS.lost(Incarnation("0" * 32)), b"{}"),
                Set(PATHS.bookie("bookie-0"), b"{}", 0),
            ))  # fmt: skip
            await mine.set(f"{PATHS.available}/bookie-0", b"{ }", version=0)
            await mine.create(PATHS.queued(77), b"{}")
            await other.set(PATHS.queued(77), b"{ }", version=0)

    run(scenario())


@pytest.mark.parametrize(
    ("role", "parent"), [("readproxy", PATHS.read_proxies), ("writeproxy", PATHS.write_proxies)]
)
def test_a_proxy_writes_its_own_node_alone(guarded: SecuredServer, role: str, parent: str) -> None:
    async def scenario() -> None:
        async with guarded.opened(role, "p-0") as mine, guarded.opened(role, "p-1") as other:
            await other.create(f"{parent}/p-1", b"{}", ephemeral=True)
            await mine.create(f"{parent}/p-0", b"{}", ephemeral=True)
            await mine.set(f"{parent}/p-0", b"{ }", version=0)
            with pytest.raises(Rejected):
                await mine.set(f"{parent}/p-1", b"{}", version=0)
            with pytest.raises(Rejected):
                await mine.delete(f"{parent}/p-1", version=0)
            stored = await mine.get(f"{parent}/p-1")
            assert stored is not None and stored.data == b"{}"

    run(scenario())


def test_an_archive_marks_segments_and_changes_no_log(guarded: SecuredServer) -> None:
    async def scenario() -> None:
        async with guarded.opened("archive", "a") as store:
            await store.set(PATHS.segment(_LOG, _EPOCH), b"{ }", version=0)
            with pytest.raises(Rejected):
                await store.set(PATHS.log(_LOG), b"{}", version=0)
            with pytest.raises(Rejected):
                await store.delete(PATHS.segment(_LOG, _EPOCH), version=1)

    run(scenario())


def test_an_embedded_writer_changes_logs_that_are_there_and_nothing_else(
    guarded: SecuredServer,
) -> None:
    async def scenario() -> None:
        later = PATHS.segment(_LOG, Epoch(2))
        owed = f"{PATHS.repair_owed}/77/bookie-0.{'0' * 32}"
        async with guarded.opened("corewriter", "app") as store:
            log = await store.get(PATHS.log(_LOG))
            assert log is not None
            await store.commit((
                Set(PATHS.log(_LOG), b"{ }", log.version),
                Create(later, b"{}"),
                Create(PATHS.owner(_LOG), b"{}", ephemeral=True),
            ))  # fmt: skip
            await store.set(later, b"{ }", version=0)
            await store.delete(PATHS.owner(_LOG), version=0)
            await store.create(owed, b"{}", make_parents=True)
            await store.set(owed, b"{ }", version=0)
            for path in set(_SEQUENCERS_NODES) - {PATHS.log(_LOG), PATHS.segment(_LOG, _EPOCH)}:
                with pytest.raises(Rejected):
                    await store.set(path, b"{}", version=0)
            for path in (later, PATHS.log(_LOG), owed, PATHS.name("shop", "orders")):
                with pytest.raises(Rejected):
                    await store.delete(path, version=1)
            for path in (
                PATHS.log(LogId(6)), PATHS.name("shop", "mine"), PATHS.grants, PATHS.auditor,
                PATHS.access_tokens, f"{PATHS.sequencers}/app", PATHS.bookie("app"),
                f"{PATHS.available}/app", f"{PATHS.write_proxies}/app", PATHS.maintenance,
            ):  # fmt: skip
                with pytest.raises(Rejected):
                    await store.create(path, b"{}")
        async with guarded.opened("sequencer", "sequencer-0") as store:
            await store.delete(later, version=1)

    run(scenario())


# --- A tree that is there ------------------------------------------------------------------------


def test_a_tree_that_was_made_without_rights_gets_them_once(tmp_path: Path) -> None:
    """From none to on, with the command; what a thief had made for himself is mended as well."""

    async def make(server: SecuredServer) -> None:
        async with server.opened("bookie", "bookie-0") as thief:
            thief._domain = None  # as a store without an identity makes nodes
            await thief.create("/duramen/c1/bookies", b"", make_parents=True)
            thief._domain = DOMAIN
            await thief.create("/duramen/c1/auditor", b"{}")

    with running_secured(tmp_path) as server:
        run(make(server))
        operator = str(server.issuer.issue("operator", "admin"))
        where = ["--zookeeper", server.address, "--cluster", "c1"]
        assert main(["access", "check", operator, *where]) == 1
        assert main(["access", "apply", operator, *where]) == 0
        assert main(["access", "check", operator, *where]) == 0

        async def look() -> None:
            async with server.opened("operator", "admin") as store:
                assert not [one async for one in walk_rights(store, DOMAIN, is_mending=False)]
                for path in ("/", "/zookeeper", "/zookeeper/config", "/duramen/c1/bookies"):
                    rights = await store.get_rights(path)
                    assert rights and not any("world" in right.who for right in rights), path

        run(look())
        bookie = str(server.issuer.issue("bookie", "bookie-0"))
        assert main(["access", "apply", bookie, *where]) == 2


# --- What is renewed -----------------------------------------------------------------------------


def test_a_servers_new_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    def shown(server: SecuredServer) -> bytes | None:
        context = make_probe_context(server.data_dir)
        # Java reads key and certificate one after the other, for each connection anew: one that
        # meets the change between them fails, and the next one does not.
        with (
            contextlib.suppress(ssl.SSLError),
            socket.create_connection(("127.0.0.1", server.port), CALL_TIMEOUT_S) as plain,
            context.wrap_socket(plain) as secure,
        ):
            return secure.getpeercert(binary_form=True)
        return None

    async def scenario() -> None:
        server = SecuredServer(tmp_path)
        await server.start()
        try:
            pid, before = server.pid, shown(server)
            async with server.opened("sequencer", "sequencer-0") as store:
                session_id = store.session_id
                server.issuer.issue("zookeeper", "zookeeper-0")
                write_server_files(server.identity_dir, server.data_dir)
                await wait_for(lambda: shown(server) not in {before, None})
                assert store.session_id == session_id and await store.get("/") is not None
            assert server.pid == pid
        finally:
            await server.stop()

    run(scenario())


def test_a_ca_is_replaced_without_a_restart(tmp_path: Path) -> None:
    """The bundle comes first; who has a leaf of the new CA is let in, and later nobody else."""
    old, new = Issuer(tmp_path / "old"), Issuer(tmp_path / "new")
    now = dt.datetime.now(dt.UTC)

    def trust(folder: Path, *issuers: Issuer) -> Path:
        bundles = [read_bundle(resolve(one.ca), now) for one in issuers]
        anchors, lists = zip(*((one.anchors[0], one.lists[0]) for one in bundles), strict=True)
        write_bundle(folder, DOMAIN, Bundle(anchors, lists), now)
        return folder

    server = SecuredServer(tmp_path / "server", old)
    mine = trust(old.issue("sequencer", "s"), old, new)
    theirs = trust(new.issue("sequencer", "s"), new, old)
    asks = {}
    for folder in (mine, theirs):
        context = asks[folder] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(folder / "ca.crt")
        context.check_hostname = False
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    async def is_let_in(folder: Path) -> bool:
        return await asyncio.to_thread(_is_answered, server, asks[folder])

    async def scenario() -> None:
        await server.start()
        try:
            assert await is_let_in(mine) and not await is_let_in(theirs)
            write_server_files(trust(server.identity_dir, old, new), server.data_dir)
            while not await is_let_in(theirs):
                await look_again_soon()
            assert await is_let_in(mine), "the old one counts until it leaves"
            renewed = trust(new.issue("zookeeper", "zookeeper-0"), new)
            write_server_files(renewed, server.data_dir)
            while await is_let_in(mine):
                await look_again_soon()
            assert await is_let_in(theirs)
        finally:
            await server.stop()

    run(scenario())


def test_each_connection_shows_what_lies_in_the_folder_then(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    server_dir, folder = issuer.issue("zookeeper", "z"), issuer.issue("sequencer", "s")
    shown: list[int] = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        secure = writer.get_extra_info("ssl_object")
        leaf = secure.getpeercert(binary_form=True)
        shown.append(x509.load_der_x509_certificate(leaf).serial_number)
        writer.close()

    def read_serial() -> int:
        return read_folder(folder, dt.datetime.now(dt.UTC)).leaf.serial_number

    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server_dir / "tls.crt", server_dir / "tls.key")
        context.load_verify_locations(server_dir / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        server = await asyncio.start_server(note, "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        store = ZooKeeperStore(address, call_timeout_s=0.2, identity_dir=folder)
        with pytest.raises(Unavailable):
            await store.start()
        await wait_for(lambda: read_serial() in shown)
        former = read_serial()
        issuer.issue("sequencer", "s")
        assert read_serial() != former
        await wait_for(lambda: read_serial() in shown)
        await store.close()
        server.close()

    run(scenario())


def test_a_lost_connection_comes_back_in_the_same_session(guarded: SecuredServer) -> None:
    async def scenario() -> None:
        proxy = FaultyProxy(guarded.address, is_sealed=True)
        await proxy.start()
        folder = guarded.issuer.issue("sequencer", "renewed")
        store = ZooKeeperStore(proxy.address, call_timeout_s=CALL_TIMEOUT_S, identity_dir=folder)
        await store.start()
        story, session_id = Story(store), store.session_id
        proxy.cut()
        await story.wait_states(SessionState.SUSPENDED)
        guarded.issuer.issue("sequencer", "renewed")
        proxy.heal()
        await wait_reads(store)
        assert store.session_id == session_id
        await store.close()
        await proxy.stop()

    run(scenario())


def test_two_answers_in_one_record_are_both_seen(tmp_path: Path) -> None:
    """kazoo asks the socket alone whether something came, and TLS may hold it already."""
    issuer = Issuer(tmp_path)
    server_dir, folder = issuer.issue("zookeeper", "z"), issuer.issue("sequencer", "s")

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ab")

    def read_half(port: int) -> None:
        connections = SecureConnections(folder)
        with connections.open(("127.0.0.1", port), "127.0.0.1", CALL_TIMEOUT_S) as connection:
            assert connection.recv(1) == b"a"
            ready = connections.wait_ready(selector_select, [connection], [], [], 0)
            assert ready == ([connection], [], [])
            assert connection.recv(1) == b"b"
            assert connections.wait_ready(selector_select, [connection], [], [], 0)[0] == []

    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server_dir / "tls.crt", server_dir / "tls.key")
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        await asyncio.to_thread(read_half, server.sockets[0].getsockname()[1])
        server.close()

    run(scenario())
