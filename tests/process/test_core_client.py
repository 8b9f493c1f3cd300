"""The embedded core library with real bookies and ZooKeeper: order, faults, one writer at a time.

The proxies are there to compare: what was written without them is read through them, and what they
are asked to append while an embedded writer has the log is refused. A writer of its own process is
killed, to see that everything it had been acknowledged is found by the next one.

Source: docs/sdk.md, docs/protocol/metadata.md "Rules for every change", docs/protocol/write.md
"Roll", docs/protocol/recovery.md, ADR 0013.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duramen.client import Client, DuramenError, Moved, ReadRecord, Record, Uncertain
from duramen.client.core import AppendTicket, NotOwner, OwnedLog, ReadLog
from duramen.runtime.http_client import PeerClient
from duramen.units import SECOND
from tests.pauses import let_pass, look_again_soon
from tests.process.answers import note_come_again
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.core_clients import connect, paused, read_by_rest
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

COUNT = 1_000
FLEXIBLE = {"copysets": "flexible", "replication": {"node": 2, "rack": 2}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    flags = ("--bookies", "4", "--sequencers", "2", "--no-restart")
    with running_plain_cluster(tmp_path_factory.mktemp("core") / "c", *flags) as started:
        # While every bookie is there to say that it understands flexible logs.
        run(create_log(started, "spread", FLEXIBLE))
        yield started


async def read_all(log: ReadLog) -> list[ReadRecord]:
    return [record async for batch in log.read() for record in batch]


def check_bodies(records: list[ReadRecord], prefix: str = "") -> None:
    """The records are those that were appended, in the order of the calls, without a gap."""
    numbers = range(len(records))
    assert [record.seq_num for record in records] == list(numbers)
    assert [record.body for record in records] == [f"{prefix}{n}".encode() for n in numbers]


def test_records_are_in_the_order_of_the_calls_while_a_bookie_dies(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await create_log(cluster, "ordered", {})
        with paused(cluster, "sequencer", "writeproxy"):
            await append_and_read()

    async def append_and_read() -> None:
        async with connect(cluster) as core:
            follower = asyncio.create_task(follow(core.log("default", "ordered"), COUNT))
            async with core.open_log("default", "ordered") as log:
                tickets = []
                for number in range(COUNT):
                    tickets.append(await log.send(Record(b"%d" % number, txid=number)))
                    if number == COUNT // 4:
                        await tickets[-1]
                        assert log.epoch == 1
                        await asyncio.to_thread(cluster.kill, find_member(log))
                await log.flush()
                assert [(await ticket).start for ticket in tickets] == list(range(COUNT))
                with pytest.raises(DuramenError, match="condition_failed"):
                    _ = log.append(Record(b"x", txid=COUNT - 2))
                records = await read_all(log)
                check_bodies(records)
                assert [(await t).dlsn for t in tickets] == [str(r.dlsn) for r in records]
                assert (await log.tail()).seq_num == COUNT
                (batch,) = [batch async for batch in log.read("txid:7", count=3)]
                assert batch.bodies == [b"7", b"8", b"9"]
            assert await follower == records
        assert await read_by_rest(cluster, "ordered") == records

    async def follow(log: ReadLog, count: int) -> list[ReadRecord]:
        return [r async for batch in log.read(0, follow=True, count=count) for r in batch]

    run(scenario())


def find_member(log: OwnedLog) -> str:
    """A bookie of the open segment."""
    assert log._driver is not None and log._driver.core.writer is not None
    return log._driver.core.writer.segment.members[0].bookie


def test_a_second_writer_ends_the_first_and_nothing_is_lost_or_doubled(
    cluster: LocalCluster,
) -> None:
    async def scenario() -> None:
        await create_log(cluster, "taken", {})
        async with connect(cluster) as one, connect(cluster) as two:
            begun = asyncio.Event()
            tickets: list[AppendTicket] = []

            async def append_for_ever() -> None:
                async with one.open_log("default", "taken") as log:
                    while True:
                        tickets.append(await log.send(b"%d" % len(tickets)))
                        if len(tickets) == 100:
                            await tickets[-1]
                            begun.set()

            first = asyncio.create_task(append_for_ever())
            await begun.wait()
            async with two.open_log("default", "taken") as log:
                with pytest.raises(NotOwner):
                    await first
                fates = await asyncio.gather(*map(settle, tickets))
                (mark,) = [await log.append(b"second")]
                records = await read_all(log)
            acknowledged = [fate for fate in fates if isinstance(fate, int)]
            refused = [fate for fate in fates if isinstance(fate, NotOwner)]
            assert acknowledged == list(range(len(acknowledged))) and len(acknowledged) >= 100
            assert all(isinstance(f, int | Uncertain | NotOwner) for f in fates)
            # The last one is the second writer's; what came before is a prefix of the first's.
            assert records[-1].body == b"second" and records[-1].seq_num == mark.start
            check_bodies(records[:-1])
            assert len(acknowledged) <= len(records) - 1 <= len(fates) - len(refused)

    run(scenario())


async def settle(ticket: AppendTicket) -> int | DuramenError:
    try:
        start = (await ticket).start
    except DuramenError as error:
        return error
    assert start is not None
    return start


def test_a_killed_writer_leaves_all_that_it_was_acknowledged(cluster: LocalCluster) -> None:
    run(create_log(cluster, "killed", {}))
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.process.core_writer", cluster.state()["zookeeper"], "killed"],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )  # fmt: skip
    assert child.stdout is not None
    printed = [child.stdout.readline() for _ in range(500)]
    child.kill()
    printed += child.stdout.readlines()
    child.wait(10)
    acknowledged = [line.split() for line in printed if line.endswith("\n")]

    async def scenario() -> None:
        async with connect(cluster) as core, core.open_log("default", "killed") as log:
            appended = await log.append(b"next")
            records = await read_all(log)
        assert records[-1].body == b"next" and records[-1].seq_num == appended.start
        check_bodies(records[:-1])
        assert acknowledged == [[str(r.seq_num), r.body.decode()] for r in records][: len(printed)]
        assert await read_by_rest(cluster, "killed") == records

    run(scenario())


@pytest.mark.parametrize(("name", "config"), [("shared", {}), ("spread", FLEXIBLE)])
def test_the_proxies_and_an_embedded_writer_take_turns(
    cluster: LocalCluster, name: str, config: dict[str, Any]
) -> None:
    async def scenario() -> None:
        await create_log(cluster, name, config)
        async with connect(cluster) as core, Client(cluster.state()["write_url"]) as client:
            remote = client["default"][name]
            assert (await remote.append(b"0")).start == 0
            async with core.open_log("default", name) as log:
                assert (await log.append(b"1")).start == 1
                # Its sequencer may learn that it lost the log by the seal that this append meets.
                with pytest.raises(DuramenError, match=r"append_uncertain|log_held"):
                    await remote.append(b"x")
                for call in (partial(remote.append, b"x"), remote.roll, remote.end, remote.delete):
                    with pytest.raises(DuramenError, match=core.writer_id) as refused:
                        await call()
                    assert refused.value.code == "log_held"
                with pytest.raises(DuramenError, match="is open in this process"):
                    async with core.open_log("default", name):
                        pass
                assert (await log.append([b"2", b"3"])).end == 4
            assert (await remote.append(b"4")).start == 4
            check_bodies(await read_by_rest(cluster, name))
            await remote.truncate(2)
            local = core.log("default", name)
            async with asyncio.timeout(HANG_S):  # readers learn of it within moments, not at once
                while not (first := (await anext(local.read(0)))).moved_to:
                    await look_again_soon()
            assert first.moved_to == Moved("seq:0", 2) and first.bodies[0] == b"2"
            (empty,) = [batch async for batch in local.read(0, until=1)]
            assert (empty.moved_to, len(empty)) == (Moved("seq:0", 2), 0)
            with pytest.raises(DuramenError, match="beyond_tail"):
                await anext(local.read(99))
            await remote.end()
            with pytest.raises(DuramenError, match="log_ended"):
                async with core.open_log("default", name):
                    pass
            assert [r.body async for b in local.read(3, follow=True) for r in b] == [b"3", b"4"]

    run(scenario())


def test_a_writer_that_appends_nothing_learns_of_its_end(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        log_id = await create_log(cluster, "lost", {})
        peers = PeerClient()
        url = cluster.process(cluster.ids("sequencer")[0])["data_url"] + "/s/control"
        async with connect(cluster) as core:
            log = await core.open_log("default", "lost").__aenter__()
            await log.append(b"0")
            body = json.dumps({"op": "take", "log_id": log_id}).encode()
            while (answer := await peers.request_json("POST", url, body, 30 * SECOND))[0] != 200:
                # Who has no session at this moment refuses.
                await let_pass(note_come_again(str(answer)), what="before a client comes back")
            assert isinstance(await log.wait_ended(), NotOwner)
            with pytest.raises(NotOwner):
                _ = log.append(b"x")
            with pytest.raises(NotOwner):
                await log.__aexit__(None, None, None)
            async with Client(cluster.state()["write_url"]) as client:
                assert (await client["default"]["lost"].append(b"1")).start == 1
            check_bodies(await read_all(core.log("default", "lost")))
        await peers.close()

    run(scenario())
