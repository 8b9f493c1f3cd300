"""The core library and a restore in a cluster that asks who calls: `duramen run --security on`.

Writer and reader have identities of their own roles; the CA is in the hands of the test. What each
role may do at each path and node: `tests/unit/test_data_port_door`, `tests/unit/test_access`.
Source: docs/protocol/identity.md "Who may call what inside", docs/sdk.md, ADR 0037.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest

from duramen.client.core import AppendTicket, CoreClient, OwnedLog, ReadLog
from duramen.errors import DuramenError
from duramen.runtime.identity.authority import open_authority
from duramen.runtime.identity.certificates import LEAF_LIFE
from duramen.runtime.identity.folder import read_folder, write_bundle, write_folder
from duramen.runtime.identity.names import make_identity
from tests.pauses import let_pass
from tests.process.cluster import LocalCluster, create_log, run, running_cluster
from tests.process.history import read_log
from tests.process.tiers import command
from tests.process.times import HANG_S
from tests.waiting import wait_for

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.timeout(HANG_S * 4)]

JOBS = "duramen_spark.main"
COUNT = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("secured") / ".duramen"
    with running_cluster(folder, "--security", "on", "--no-restart") as started:
        yield started


def issue(cluster: LocalCluster, role: str, name: str, life: dt.timedelta = LEAF_LIFE) -> Path:
    """A folder with another certificate of an identity."""
    folder, now = cluster.folder / "identities" / name, dt.datetime.now(dt.UTC)
    with open_authority(cluster.folder / "ca", now) as authority:
        identity = make_identity(authority.domain, role, name)
        write_folder(folder, authority.issue(identity, now, life=life))
    return folder


def revoke(cluster: LocalCluster, name: str) -> None:
    """Revoke an identity; its own folder is not told."""
    now = dt.datetime.now(dt.UTC)
    with open_authority(cluster.folder / "ca", now) as authority:
        issued = authority.list_issued()
        authority.revoke([one.serial for one in issued if one.identity.endswith(f"/{name}")], now)
        for entry in cluster.state()["processes"]:
            told = cluster.folder / "identities" / entry["id"]
            write_bundle(told, authority.domain, authority.bundle, now)


def connect(cluster: LocalCluster, folder: Path) -> CoreClient:
    return CoreClient(cluster.state()["zookeeper"], identity=folder)


async def read_bodies(log: ReadLog) -> list[bytes]:
    return [body async for batch in log.read() for body in batch.bodies]


async def append(log: OwnedLog, count: int) -> None:
    tickets = [await log.send(b"%d" % number) for number in range(count)]
    assert [(await ticket).end for ticket in tickets][-1]


def test_a_writer_and_a_reader_work_and_take_what_is_renewed(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await create_log(cluster, "own", {})
        client = cluster.open_client("write_url")
        url = "/v1/namespaces/default/logs/own/records"
        await client.post_json(url, {"records": [{"body": "first"}]})
        folder = issue(cluster, "corewriter", "app")
        async with (
            connect(cluster, folder) as core,
            connect(cluster, issue(cluster, "corereader", "view")) as viewing,
        ):
            async with core.open_log("default", "own") as log:
                await append(log, COUNT)
                # The first one's sequencer may learn of it by the seal that this append meets.
                for codes in (("append_uncertain", "log_held"), ("log_held",)):
                    with pytest.raises(DuramenError) as held:
                        await client.post_json(url, {"records": [{"body": "lost"}]})
                    assert held.value.code in codes
                issue(cluster, "corewriter", "app")
                security = core._security
                assert security is not None
                serial = read_folder(folder, dt.datetime.now(dt.UTC)).leaf.serial_number
                await wait_for(lambda: security._watched.held.leaf.serial_number == serial)
                await append(log, COUNT)
            bodies = await read_bodies(viewing.log("default", "own"))
            with pytest.raises(DuramenError, match="reads logs and owns none"):
                viewing.open_log("default", "own")
        numbers = [b"%d" % number for number in range(COUNT)]
        assert bodies == [b"first", *numbers, *numbers]
        assert await read_log(cluster.open_client("read_url"), "own") == bodies
        await client.post_json(url, {"records": [{"body": "last"}]})
        await client.close()

    run(scenario())


def test_a_program_beside_a_local_cluster_is_given_its_writer(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await create_log(cluster, "near", {})
        zookeeper = cluster.state()["zookeeper"]
        async with CoreClient(zookeeper) as core, core.open_log("default", "near") as log:
            assert (await log.append(b"one")).start == 0
        with pytest.raises(DuramenError, match="speaks TLS and asks who connects"):
            async with CoreClient(zookeeper.replace("127.0.0.1", "localhost")):
                pass

    monkeypatch.chdir(cluster.folder.parent)
    run(scenario())


def test_a_restore_is_an_operators_and_brings_every_record_back(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await create_log(cluster, "kept", {})
        async with (
            connect(cluster, issue(cluster, "corewriter", "app")) as core,
            core.open_log("default", "kept") as log,
        ):
            await append(log, COUNT)

    run(scenario())
    archive = ("archive", "--runner", "threads", "default/kept", "--recheck-after", "0s")
    code, report = command(cluster, JOBS, *archive)
    assert (code, report["segments"]) == (0, {"archived": 1}), report
    restore = (JOBS, "restore", "default/kept", "--as", "default/again")
    for role in ("archive", "corewriter"):
        folder = str(issue(cluster, role, f"{role}-1"))
        with pytest.raises(AssertionError, match=r"makes no logs|a job reads as"):
            command(cluster, *restore, "--identity", folder)
    code, report = command(cluster, *restore)
    assert (code, report["records"]) == (0, COUNT), report
    bodies = run(read_log(cluster.open_client("read_url"), "again"))
    assert bodies == [b"%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("is_revoked", [True, False])
def test_who_is_nobody_any_more_loses_its_log_and_nothing_acknowledged(
    cluster: LocalCluster, *, is_revoked: bool
) -> None:
    async def scenario() -> None:
        name = "revoked" if is_revoked else "ended"
        await create_log(cluster, name, {})
        life = LEAF_LIFE if is_revoked else dt.timedelta(seconds=8)
        thief = connect(cluster, issue(cluster, "corewriter", name, life))
        tickets: list[AppendTicket] = []
        async with thief:
            log = thief.open_log("default", name, append_timeout_s=3)
            await log.__aenter__()
            ending = asyncio.create_task(log.wait_ended())
            await append(log, 10)
            if is_revoked:
                revoke(cluster, name)
            with contextlib.suppress(DuramenError):
                while True:
                    tickets.append(await log.send(b"%d" % (10 + len(tickets))))
                    await let_pass(0.05, what="the pace of the appends")
            ended = await ending
            assert is_revoked or ended.code == "unauthenticated", ended
            with pytest.raises(DuramenError):
                _ = await log.send(b"x")
            await log.__aexit__(KeyError, None, None)
        fates = await asyncio.gather(*tickets, return_exceptions=True)
        taken = 10 + sum(not isinstance(fate, BaseException) for fate in fates)
        assert taken > 10 or is_revoked  # which may be over before it is the next one's turn
        async with (
            connect(cluster, issue(cluster, "corewriter", "later")) as later,
            later.open_log("default", name) as log,
        ):
            bodies = await read_bodies(log)
            await log.append(b"next")
        assert len(bodies) >= taken
        assert bodies == [b"%d" % number for number in range(len(bodies))]

    run(scenario())
