"""A whole cluster whose services know one another by certificates: renewed, stolen, revoked.

The services and ZooKeeper are real processes of `duramen run --security on`. What a stolen key can
do is asked of data ports and of ZooKeeper by hand. Source: docs/protocol/identity.md "The folder",
"Who may call what inside", docs/protocol/metadata-access.md "A local cluster".
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Final, Literal

import httpx
import pytest
from cryptography import x509

from duramen.cli.main import main
from duramen.client.rest_client import RestClient
from duramen.cluster.local_identities import LocalIdentities
from duramen.errors import DuramenError
from duramen.runtime.http_client import DeniedError, PeerClient, PeerError
from duramen.runtime.identity.authority import open_authority
from duramen.runtime.identity.certificates import Places, list_anchors
from duramen.runtime.identity.folder import read_folder, write_bundle, write_folder
from duramen.runtime.identity.names import Role, make_identity
from duramen.runtime.identity.zookeeper_files import make_probe_context
from duramen.runtime.security.permitted_roles import BOOKIE_PATHS, SEQUENCER_PATHS
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import Rejected, Set
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.units import SECOND
from tests.pauses import let_pass
from tests.process.answers import repeat_safely
from tests.process.cluster import LocalCluster, create_log, run, running_cluster
from tests.process.history import read_log
from tests.process.steady_load import running_loads
from tests.process.takeovers import statistics
from tests.process.times import HANG_S
from tests.waiting import wait_for

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

LOGS: Final = ["log-0", "log-1"]
HERE: Final = Places(("localhost",), (ipaddress.ip_address("127.0.0.1"),))
ROUND_COUNT: Final = int(os.environ.get("DURAMEN_RENEWAL_ROUNDS", "2"))
"""Each renews every service once."""

STEPS: Final = ("announce", "switch", "switch", "switch", "retire")
"""To the other CA, back, there again; then the first one is gone."""

PACE_S: Final = float(os.environ.get("DURAMEN_RENEWAL_PACE_S", "0.5"))
REVOKED_WITHIN_S: Final = 5.0
_CALL_US: Final = 5 * SECOND


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    flags = ("--security", "on", "--sequencers", "2", "--no-restart")
    with running_cluster(tmp_path / "c", *flags) as running:
        yield running


class Authority:
    """The CA of a local cluster, in the hands of a test."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._folder = cluster.folder / "ca"

    def folder_of(self, node_id: str) -> Path:
        return self.cluster.folder / "identities" / node_id

    def issue(self, role: str, node_id: str, out: Path | None = None) -> Path:
        out = out or self.folder_of(node_id)
        with open_authority(self._folder, _now()) as authority:
            identity = make_identity(authority.domain, role, node_id)
            places = HERE if identity.role.is_node else Places()
            write_folder(out, authority.issue(identity, _now(), places=places))
        return out

    def step(self, step: Literal["announce", "switch", "retire"]) -> tuple[str, int]:
        """One step from one CA to another, of which all hear: who issues, and how many are
        trusted."""
        with open_authority(self._folder, _now()) as authority:
            match step:
                case "announce":
                    authority.announce(_now())
                case "switch":
                    authority.switch(_now(), is_known_everywhere=True)
                case "retire":
                    authority.retire(_now(), is_wanted_now=True)
            for name in (*self._list_names(), "operator"):
                write_bundle(self.folder_of(name), authority.domain, authority.bundle, _now())
            anchors = list_anchors(authority.bundle)
        self.cluster.forget_operators()
        return anchors[0], len(anchors)

    def issue_to_all(self) -> None:
        for entry in self.cluster.state()["processes"]:
            self.issue(entry["role"], entry["id"])
        with open_authority(self._folder, _now()) as authority:
            identity = make_identity(authority.domain, Role.OPERATOR, "local")
            write_folder(self.folder_of("operator"), authority.issue(identity, _now()))

    def _list_names(self) -> list[str]:
        return [entry["id"] for entry in self.cluster.state()["processes"]]

    def revoke(self, node_id: str) -> None:
        with open_authority(self._folder, _now()) as authority:
            ending = f"/{node_id}"
            issued = [
                one.serial for one in authority.list_issued() if one.identity.endswith(ending)
            ]
            authority.revoke(issued, _now())
            for entry in self.cluster.state()["processes"]:
                if entry["id"] != node_id:
                    write_bundle(
                        self.folder_of(entry["id"]), authority.domain, authority.bundle, _now()
                    )


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _read_shown(cluster: LocalCluster) -> x509.Certificate:
    """What ZooKeeper shows now."""
    entry = cluster.process("zookeeper-0")
    context = make_probe_context(Path(entry["data_dir"]))
    host, port = cluster.state()["zookeeper"].split(":")
    with (
        socket.create_connection((host, int(port)), HANG_S) as plain,
        context.wrap_socket(plain) as secure,
    ):
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")


def _is_shown(cluster: LocalCluster, leaf: x509.Certificate) -> bool:
    return _read_shown(cluster) == leaf


async def _wait_changes(cluster: LocalCluster, node_id: str, count: int) -> None:
    """Until a service uses its so many-th certificate after the first."""

    async def is_there() -> bool:
        found = await statistics(cluster, node_id)
        return bool(found["security"]["folder"]["changes"] == count)

    await wait_for(is_there, what=f"{node_id} to use its certificate {count}", rest_s=0.1)


@pytest.mark.timeout(HANG_S * 3 + 600)
def test_every_certificate_is_renewed_under_load_and_no_append_or_read_fails(
    cluster: LocalCluster,
) -> None:
    async def scenario() -> None:
        for log in LOGS:
            await create_log(cluster, log, {})
        authority = Authority(cluster)
        nodes = [e for e in cluster.state()["processes"] if e["role"] != "zookeeper"]
        pids = cluster.list_pids()
        reader = cluster.open_client("read_url")
        read_count = 0

        async def read_on() -> None:
            nonlocal read_count
            while True:
                await reader.read("default", LOGS[0], "tail-3", most_bytes=1_000)
                read_count += 1
                await let_pass(0.05, what="the pace of reads")

        async with running_loads(cluster, LOGS) as loads:
            reading = asyncio.create_task(read_on())
            for round_number in range(1, ROUND_COUNT + 1):
                for node in nodes:
                    authority.issue(node["role"], node["id"])
                    await let_pass(PACE_S, what="between two renewals")
                issued = read_folder(authority.issue("zookeeper", "zookeeper-0"), _now())
                for node in nodes:
                    await _wait_changes(cluster, node["id"], round_number)
                await wait_for(
                    partial(_is_shown, cluster, issued.leaf), what="a new ZooKeeper", rest_s=0.1
                )
            await let_pass(1.0, what="what the last renewal leaves")
            assert not reading.done(), "no read failed"
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            assert [load.failed_count for load in loads] == [0, 0]
            assert min(len(load.acked) for load in loads) > 20
            assert read_count > 20
            assert cluster.list_pids() == pids, "nobody was started anew"
        await reader.close()
        for load in loads:
            bodies = await read_log(cluster.open_client("read_url"), load.log)
            assert load.acked <= set(bodies), "nothing that was acknowledged is lost"

    run(scenario(), timeout_s=HANG_S * 2 + 600)


async def _wait_trust(cluster: LocalCluster, issuer: str, anchor_count: int) -> None:
    """Until every service has a certificate of a CA, and trusts so many."""
    for entry in cluster.state()["processes"]:
        if entry["role"] == "zookeeper":
            continue

        async def is_there(node_id: str = entry["id"]) -> bool:
            told = (await statistics(cluster, node_id))["security"]
            return (told["issuer"], len(told["anchors"])) == (issuer, anchor_count)

        await wait_for(is_there, what=f"{entry['id']} to be of {issuer}", rest_s=0.1)


@pytest.mark.timeout(HANG_S * 3)
def test_one_ca_takes_the_place_of_another_under_load_and_back(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        for log in LOGS:
            await create_log(cluster, log, {})
        authority, pids = Authority(cluster), cluster.list_pids()
        async with running_loads(cluster, LOGS) as loads:
            for step in STEPS:
                issuer, anchor_count = authority.step(step)
                if step == "switch":
                    authority.issue_to_all()
                await _wait_trust(cluster, issuer, anchor_count)
                await let_pass(0.5, what="appends between two steps")
            assert [load.failed_count for load in loads] == [0, 0]
            assert min(len(load.acked) for load in loads) > 20
        assert cluster.list_pids() == pids, "nobody was started anew"
        for load in loads:
            bodies = await read_log(cluster.open_client("read_url"), load.log)
            assert load.acked <= set(bodies), "nothing that was acknowledged is lost"
        async with _opened(cluster.state()["zookeeper"], authority.folder_of("operator")) as store:
            assert await store.get("/duramen/local/cluster"), "ZooKeeper has followed"

    run(scenario(), timeout_s=HANG_S * 2)


def test_a_stolen_key_does_what_its_role_may_and_no_more(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    async def scenario() -> None:
        authority = Authority(cluster)
        bookie, sequencer = cluster.process("bookie-0"), cluster.process("sequencer-0")
        for role in Role:
            folder = authority.issue(role, f"{role}-9", tmp_path / role)
            security = ProcessSecurity(folder, read_folder(folder, _now()), print)
            client = PeerClient(security)
            security.peers.hear(Role.BOOKIE, "bookie-0", bookie["data_url"])
            security.peers.hear(Role.SEQUENCER, "sequencer-0", sequencer["data_url"])
            for url, paths in (
                (bookie["data_url"], BOOKIE_PATHS),
                (sequencer["data_url"], SEQUENCER_PATHS),
            ):
                for path, may in paths.items():
                    denied = await _is_denied(client, url + path)
                    assert denied is (role not in may), (role, path)
            if role in SEQUENCER_PATHS["/s/control"]:
                status, _ = await client.request_json(
                    "POST", sequencer["data_url"] + "/s/control",
                    b'{"op": "create_namespace", "namespace": "stolen"}', _CALL_US,
                )  # fmt: skip
                assert (status == 403) is (role is not Role.WRITEPROXY), role
            await client.close()
            await security.stop()

    run(scenario())


async def _is_denied(client: PeerClient, url: str) -> bool:
    """What is sent is no frame, so nobody who is let in does any harm."""
    try:
        await client.call(url, b"no frame", _CALL_US)
    except DeniedError:
        return True
    except PeerError:
        return False
    return False


def test_the_public_ports_of_a_secured_cluster_know_who_calls(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await create_log(cluster, "log", {})
        record = {"records": [{"body": "x"}]}
        path = "/v1/namespaces/default/logs/log/records"
        for known in (cluster.open_client("write_url"), cluster.open_client("read_url")):
            await repeat_safely(partial(known.post_json, path, record))
            stranger = RestClient(known.url)
            with pytest.raises(DuramenError) as caught:
                await stranger.post_json(path, record)
            assert caught.value.code == "unauthenticated"
            await known.close()
            await stranger.close()
        bodies = await read_log(cluster.open_client("read_url"), "log")
        assert len(bodies) == 2

    run(scenario())


def test_admin_ports_answer_whoever_may_and_know_who_was_revoked(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        authority = Authority(cluster)
        trusted = cluster.trust_admin_ports("op-1")
        nobody = LocalIdentities(cluster.folder).make_probe_context()
        writeproxy = cluster.process("writeproxy-0")["admin_url"]
        async with (
            httpx.AsyncClient(verify=trusted, timeout=30) as operator,
            httpx.AsyncClient(verify=nobody, timeout=30) as stranger,
        ):
            for entry in cluster.state()["processes"]:
                if entry["role"] == "zookeeper":
                    continue
                url = entry["admin_url"]
                assert (await stranger.get(f"{url}/readyz")).status_code == 200
                assert (await stranger.get(f"{url}/metrics")).status_code == 401
                assert (await operator.get(f"{url}/metrics")).status_code == 200
            told = (await operator.get(f"{writeproxy}/v1/cluster/journals")).json()
            assert [one["bookie"] for one in told["journals"]] == cluster.ids("bookie")
            assert told["silent"] == []
            told = (await operator.get(f"{writeproxy}/v1/statistics")).json()
            assert told["security"]["grants"]["grants"] == 0, "they are followed"
            authority.revoke("op-1")

            async def is_refused() -> bool:
                return (await operator.get(f"{writeproxy}/metrics")).status_code == 401

            await wait_for(is_refused, REVOKED_WITHIN_S, "the operator to be refused", rest_s=0.1)

    run(scenario())


def test_who_is_revoked_is_refused_within_seconds(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await create_log(cluster, "log", {})
        client = cluster.open_client("write_url")
        await client.post_json(
            "/v1/namespaces/default/logs/log/records", {"records": [{"body": "before"}]}
        )
        Authority(cluster).revoke("writeproxy-0")

        async def is_refused() -> bool:
            try:
                await client.post_json(
                    "/v1/namespaces/default/logs/log/records?timeout=1s",
                    {"records": [{"body": "after"}]},
                )
            except (DuramenError, PeerError):
                return True
            return False

        await wait_for(is_refused, REVOKED_WITHIN_S, "the proxy to be refused", rest_s=0.1)
        await client.close()

    run(scenario())


# --- ZooKeeper -----------------------------------------------------------------------------------


def _call(cluster: LocalCluster, *arguments: str) -> int:
    """A command as a person gives it who runs the cluster."""
    return main([*arguments, "--data", str(cluster.folder)])


def test_an_operator_gives_the_first_grant_without_having_one(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, out = str(cluster.folder / "identities" / "operator"), tmp_path / "first"
    assert _call(cluster, "access", "token", operator, "--out", str(out)) == 0
    assert out.stat().st_mode & 0o777 == 0o600
    assert _call(cluster, "access", "check", operator) == 0, "its node has its rights"
    monkeypatch.setenv("DURAMEN_TOKEN_FILE", str(out))
    url = cluster.state()["write_url"]
    assert main(["grant", "give", "user:corp/ann", "owner", "default", "--url", url]) == 0
    assert _call(cluster, "access", "token", operator, "--out", str(out)) == 2, "it is there"


def test_the_tree_of_a_running_cluster_is_nobodys_but_its_own(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(_append(cluster))
    operator = cluster.folder / "identities" / "operator"
    assert _call(cluster, "access", "check", str(operator)) == 0
    assert _call(cluster, "verify", "default/log") == 0
    assert _call(cluster, "log", "rebuild", "default/log") == 1
    assert " has no metadata log" in capsys.readouterr().err, "ZooKeeper was asked"

    async def scenario() -> None:
        zookeeper = cluster.state()["zookeeper"]
        async with _opened(zookeeper, operator) as store:
            paths = [path async for path in _walk(store, "/")]
            assert len(paths) > 30
            strangers = [
                (path, right)
                for path in paths
                for right in await store.get_rights(path) or ()
                if not right.who.startswith("spiffe://")
            ]
            assert strangers == []
        thief = Authority(cluster).issue("bookie", "bookie-0", tmp_path / "stolen")
        logs = [path for path in paths if path.startswith("/duramen/local/logs/")]
        assert logs
        async with _opened(zookeeper, thief) as store:
            for path in logs:
                stored = await store.get(path)
                if stored is None:
                    continue
                with pytest.raises(Rejected):
                    await store.commit((Set(path, b"{}", stored.version),))
                with pytest.raises(Rejected):
                    await store.delete(path, version=stored.version)
        plain = ZooKeeperStore(zookeeper, call_timeout_s=1.0)
        with pytest.raises(Rejected, match="speaks TLS and asks who connects"):
            await plain.start()
        await plain.close()

    run(scenario())


async def _append(cluster: LocalCluster) -> None:
    await create_log(cluster, "log", {})
    client = cluster.open_client("write_url")
    await client.post_json(
        "/v1/namespaces/default/logs/log/records", {"records": [{"body": "one"}]}
    )
    await client.close()
    assert b"one" in await read_log(cluster.open_client("read_url"), "log")


@contextlib.asynccontextmanager
async def _opened(zookeeper: str, folder: Path) -> AsyncIterator[ZooKeeperStore]:
    store = ZooKeeperStore(zookeeper, identity_dir=folder)
    try:
        await store.start()
        yield store
    finally:
        await store.close()


async def _walk(store: ZooKeeperStore, path: str) -> AsyncIterator[str]:
    yield path
    for name in await store.children(path) or ():
        async for below in _walk(store, f"{path.rstrip('/')}/{name}"):
            yield below
