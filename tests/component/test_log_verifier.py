"""`LogVerifier` on a store in memory and fake bookies: which copies it asks for, and which not.

What is compared with what is in `tests/unit/test_replica_check` and `test_flexible_check`, the
command and real bookies in `tests/process/test_verify`. Source: docs/protocol/metadata.md
"Reading", docs/protocol/write.md "Write sets", docs/protocol/flexible.md "Verifying copies", T1.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

from duramen.client.bookie_client import BookieClient
from duramen.client.log_verifier import LogVerifier
from duramen.client.replica_check import ReplicaReport
from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.segment_base import Totals
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    LogId,
    is_metadata_log,
    log_of,
    lsn_of,
)
from duramen.wire.bookie_calls import ReadAnswer, ReadRange
from duramen.wire.metadata_json import encode_log, encode_segment
from duramen.wire.repair_calls import Source
from tests.component.moved_segments import MovedSegments, released
from tests.component.repair_world import PATHS, FakeClient, RepairWorld, repair_world
from tests.unit.repair_world import make_segment

COPY = ColdCopy("0a" * 16, "1b" * 32, size_bytes=100, verified_unix_ms=5, rechecked_unix_ms=9)


class QuietClient(FakeClient):
    """Tells no headers, so that totals are not compared."""

    async def read(self, _: Source, wanted: list[ReadRange]) -> list[ReadAnswer]:
        return [ReadAnswer(BookieStatus.NO_ENTRY, NOTHING, NOTHING, False, []) for _ in wanted]


async def verify(world: RepairWorld, log: LogNode) -> ReplicaReport:
    client = cast(BookieClient, QuietClient(world.bookies))
    return await LogVerifier(world.setup, PATHS, client).verify(log.log_id)


def test_what_was_truncated_is_asked_of_nobody() -> None:
    async def play() -> None:
        async with repair_world() as world:
            segments = [
                make_segment([(0, "abc")], 9, epoch=1, proved=True),
                make_segment([(0, "abc"), (5, "bcd")], 9, epoch=2, proved=True),
            ]
            at = lsn_of(segments[1].epoch, EntryId(3))
            log = await world.add(*segments, trim_lsn=at, trim_seq_num=3, totals=segments[1].totals)
            # Repair leaves truncated entries where they are, or nowhere.
            world.bookies["a"].entries.pop(segments[0].ledger_id)
            for entry in range(3):
                del world.bookies["a"].entries[segments[1].ledger_id][EntryId(entry)]
            report = await verify(world, log)
            assert report.is_good, report.to_json()["findings"]
            assert report.entry_count == 7 and report.segments[0]["entries"] == 7

            del world.bookies["a"].entries[segments[1].ledger_id][EntryId(3)]
            (found,) = (await verify(world, log)).to_json()["findings"]
            assert (found["bookie"], found["ranges"]) == ("a", [[3, 3]])

    asyncio.run(play())


def test_all_nodes_of_the_map_are_asked_and_nobody_else() -> None:
    async def play() -> None:
        async with repair_world() as world:
            nodes = {name: ServingBookie(BookieId(name), "r", world.bookies[name].rack,
                                         world.bookies[name].member.incarnation)
                     for name in "abcd"}  # fmt: skip
            first = FlexibleSegment.opened(
                LogId(5), Epoch(1), ReplicationProperty(2, 2), [nodes[name] for name in "abc"],
                ack_mode="ordered", placement="strict", created_unix_ms=1, nonce="o",
            )  # fmt: skip
            segment = first.closed_by_owner(
                last_entry=EntryId(2), totals=Totals(3, 30), start_seq_num=0,
                completed_unix_ms=2, nonce="c",
            )  # fmt: skip
            striped = make_segment([(0, "abc")], 9, epoch=1, proved=True)
            log = await world.add(striped, totals=segment.totals)
            stored = await world.setup.get(PATHS.segment(log.log_id, segment.epoch))
            assert stored is not None
            path = PATHS.segment(log.log_id, segment.epoch)
            await world.setup.set(path, encode_segment(segment), version=stored.version)
            # What the striped segment's copies were is no more; copies move along the ring.
            for name in "abcd":
                world.bookies[name].entries.clear()
            for name, entries in (("a", (0, 1)), ("b", (1, 2)), ("d", (0, 1, 2))):
                world.bookies[name].hold(segment.ledger_id, [EntryId(entry) for entry in entries])
            found = (await verify(world, log)).to_json()
            # d is in no row of the map: its copies count for nothing.
            assert [(f["fault"], f["ranges"]) for f in found["findings"]] == [
                ("short", [[0, 0], [2, 2]])
            ], found
            assert found["segments"][0]["property"] == {"node": 2, "rack": 2, "region": 1}

            world.bookies["c"].hold(segment.ledger_id, [EntryId(0), EntryId(2)])
            found = (await verify(world, log)).to_json()
            assert found["ok"] and found["copies"] == found["good_copies"] == 6, found
            world.bookies["b"].is_silent = True
            found = (await verify(world, log)).to_json()
            assert found["segments"][0]["silent"] == [list(world.bookies["b"].member)]
            assert {f["fault"] for f in found["findings"]} == {"short", "unreachable"}

    asyncio.run(play())


class MovedClient(FakeClient):
    """Gives the entries of a metadata log, too."""

    moved: MovedSegments

    async def read(self, source: Source, wanted: list[ReadRange]) -> list[ReadAnswer]:
        if not is_metadata_log(log_of(wanted[0].ledger_id)):
            return await super().read(source, wanted)
        if self.moved.is_away:
            return [ReadAnswer(BookieStatus.UNREACHABLE, NOTHING, NOTHING, False, [])]
        first = wanted[0].first
        entry = self.moved.entries[first]
        return [ReadAnswer(BookieStatus.OK, NOTHING, NOTHING, False, [(first, entry)])]


def test_metadata_that_have_moved_are_looked_for_and_told_where_they_cannot_be_read() -> None:
    async def play() -> None:
        async with repair_world() as world:
            segments = [
                make_segment([(0, "abc")], 9, epoch=epoch, proved=True).with_cold_copy(COPY, "c")
                for epoch in (1, 2, 3, 4)
            ]
            segments = [replace(s, start_seq_num=10 * (s.epoch - 1)) for s in segments]
            log = await world.add(*segments, totals=Totals(40, 4_000))
            found = await world.setup.get(PATHS.log(log.log_id))
            assert found is not None
            await world.setup.set(
                PATHS.log(log.log_id), encode_log(released(log, 3)), version=found.version
            )
            client = MovedClient(world.bookies)
            client.moved = moved = MovedSegments(world.setup, PATHS, log.log_id)
            holders = tuple(world.bookies[name].member for name in "abc")
            await moved.move(3, unrecorded=(2,), ensemble=holders)
            detail = "its metadata have moved, and no record of them can be found"
            assert await find_faults(world, client, log) == [(2, "metadata", detail)]

            path = PATHS.segment(log.log_id, Epoch(2))
            await world.setup.create(path, encode_segment(segments[1]))
            assert await find_faults(world, client, log) == [], "a person has put it back"

            moved.is_away = True
            ((epoch, fault, detail),) = await find_faults(world, client, log)
            assert (epoch, fault) == (1, "metadata") and "cannot be read" in detail

    asyncio.run(play())


async def find_faults(
    world: RepairWorld, client: MovedClient, log: LogNode
) -> list[tuple[int, str, str]]:
    """Epoch, fault and detail of what a verifier that knows nothing yet finds."""
    verifier = LogVerifier(world.setup, PATHS, cast(BookieClient, client))
    report = await verifier.verify(log.log_id)
    assert report.released_count == 3 and [row["epoch"] for row in report.segments] == [4]
    return [(f["epoch"], f["fault"], f["detail"]) for f in report.to_json()["findings"]]
