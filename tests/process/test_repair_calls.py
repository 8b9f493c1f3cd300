"""Copies between real bookies: the target is killed in the middle of a pull, and goes on after it.

Nothing but disks and sockets is new against `tests/component/test_repair_calls.py`; here the copies
must survive a SIGKILL, and what is half done must look like nothing else than what it is. Source:
docs/protocol/repair.md, R13, R21.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duramen.client.bookie_client import BookieClient
from duramen.client.rest_client import RestClient
from duramen.core.segment import Segment
from duramen.core.status import BookieStatus
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.units import MIB, SECOND
from duramen.wire.metadata_json import Paths, read_segment
from duramen.wire.repair_calls import Inventory, Pull, PullAnswer, Source
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.history import History

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

ENTRY_COUNT = 24
"""Of a MiB each: more than one pull of `BUDGET_BYTES` brings, and some hundred ms of the disk."""

BUDGET_BYTES = 4 * MIB


def source_of(cluster: LocalCluster, member: Member) -> Source:
    return Source(member, cluster.process(member.bookie)["data_url"])


async def fill(cluster: LocalCluster) -> None:
    client = RestClient(cluster.state()["write_url"])
    history = History("copied", record_bytes=300_000)
    try:
        for _ in range(ENTRY_COUNT):
            assert await history.append(client), history.codes
        await client.roll_log("default", "copied")
    finally:
        await client.close()


async def read_closed(cluster: LocalCluster, log_id: LogId) -> Segment:
    """The first segment, once it is closed."""
    state = cluster.state()
    store = ZooKeeperStore(state["zookeeper"])
    await store.start()
    try:
        path = Paths(state["cluster"]).segment(log_id, Epoch(1))
        while True:
            found = await store.get(path)
            assert found is not None
            segment = read_segment(found.data)
            if segment.is_closed:
                return segment
            await asyncio.sleep(0)
    finally:
        await store.close()


async def identities(client: BookieClient, source: Source, segment: Segment) -> dict[EntryId, int]:
    assert segment.last_entry is not None
    found: dict[EntryId, int] = {}
    first: EntryId | None = EntryId(0)
    while first is not None:  # an inventory that takes long ends, and says where to go on
        wanted = Inventory(segment.ledger_id, first, segment.last_entry)
        answer = await client.take_inventory(source, wanted)
        assert (answer.status, answer.unknown) == (BookieStatus.OK, ()), answer
        found.update(answer.entries)
        first = answer.next
    return found


async def pull_all(
    client: BookieClient, target: Source, wanted: Pull, *, timeout_us: int = 20 * SECOND
) -> list[PullAnswer]:
    """Pull after pull until one fails or nothing is left."""
    answers: list[PullAnswer] = []
    while True:
        answer = await client.pull(target, wanted, timeout_us)
        answers.append(answer)
        if answer.status is not BookieStatus.OK or answer.next is None:
            return answers
        wanted = wanted._replace(ranges=[(answer.next, wanted.ranges[-1][1])])


def test_a_pull_whose_target_is_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--bookies", "4", "--no-restart") as cluster:
        log_id = LogId(int(run(create_log(cluster, "copied", {}))))
        run(fill(cluster))
        segment = run(read_closed(cluster, log_id))
        assert segment.last_fragment.is_proved, "R9: every copy was acknowledged"
        held = [member.bookie for member in segment.last_fragment.ensemble]
        (name,) = [node for node in cluster.ids("bookie") if node not in held]
        incarnation = Incarnation(str(cluster.process(name)["incarnation"]))
        target = source_of(cluster, Member(BookieId(name), incarnation))
        sources = [source_of(cluster, member) for member in segment.last_fragment.ensemble]
        last = segment.last_entry
        assert last is not None
        wanted = Pull(segment.ledger_id, [(EntryId(0), last)], sources, last, BUDGET_BYTES)

        async def be_killed() -> list[PullAnswer]:
            client = BookieClient()
            try:
                pulling = asyncio.create_task(pull_all(client, target, wanted))
                while not (await identities(client, target, segment)):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await asyncio.to_thread(cluster.kill, name)
                return await pulling
            finally:
                await client.close()

        answers = run(be_killed())
        assert answers[-1].status in (BookieStatus.TIMEOUT, BookieStatus.UNREACHABLE), answers
        cluster.revive(name)
        cluster.wait_ready(name)

        async def finish() -> tuple[dict[EntryId, int], dict[EntryId, int], dict[EntryId, int]]:
            client = BookieClient()
            try:
                before = await identities(client, target, segment)
                answers = await pull_all(client, target, wanted)
                assert answers[-1].next is None and not answers[-1].missing
                copied = sum(answer.copied_count for answer in answers)
                assert copied == ENTRY_COUNT - len(before), "what survived is not copied again"
                after = await identities(client, target, segment)
                return before, after, await identities(client, sources[0], segment)
            finally:
                await client.close()

        before, after, there = run(finish())
        assert after == there and len(there) == ENTRY_COUNT
        assert before.items() <= there.items(), "half of a copy is a part of it, and whole"
        assert run(read_closed(cluster, log_id)) == segment, "a pull changes no metadata"
