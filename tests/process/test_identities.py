"""A whole cluster whose services know one another by certificates: renewed, stolen, revoked.

The services are real processes of `duramen run --security on`. What a stolen key can do is asked of
their data ports by hand. Source: docs/protocol/identity.md "The folder", "Who may call what
inside".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from duramen.client.rest_client import RestClient
from duramen.cluster.local_identities import LocalIdentities
from duramen.errors import DuramenError
from duramen.runtime.http_client import DeniedError, PeerClient, PeerError
from duramen.runtime.identity.authority import open_authority
from duramen.runtime.identity.certificates import Places
from duramen.runtime.identity.folder import read_folder, write_bundle, write_folder
from duramen.runtime.identity.names import Role, make_identity
from duramen.runtime.security.permitted_roles import BOOKIE_PATHS, SEQUENCER_PATHS
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.units import SECOND
from tests.pauses import let_pass
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

    def revoke(self, node_id: str) -> None:
        with open_authority(self._folder, _now()) as authority:
            ending = f"/{node_id}"
            issued = [
                one.serial for one in authority.list_issued() if one.identity.endswith(ending)
            ]
            authority.revoke(issued, _now())
            for entry in self.cluster.state()["processes"]:
                if entry["role"] != "zookeeper" and entry["id"] != node_id:
                    write_bundle(
                        self.folder_of(entry["id"]), authority.domain, authority.bundle, _now()
                    )


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


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
        reader = RestClient(cluster.state()["read_url"])
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
                for node in nodes:
                    await _wait_changes(cluster, node["id"], round_number)
            await let_pass(1.0, what="what the last renewal leaves")
            assert not reading.done(), "no read failed"
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            assert [load.failed_count for load in loads] == [0, 0]
            assert min(len(load.acked) for load in loads) > 20
            assert read_count > 20
        await reader.close()
        for load in loads:
            bodies = await read_log(cluster.state()["read_url"], load.log)
            assert load.acked <= set(bodies), "nothing that was acknowledged is lost"

    run(scenario(), timeout_s=HANG_S * 2 + 600)


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
        client = RestClient(cluster.state()["write_url"])
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
