"""`LogVerifier` on a store in memory and fake bookies: which copies it asks for, and which not.

What is compared with what is in `tests/unit/test_replica_check`, the command and real bookies in
`tests/process/test_verify`. Source: docs/protocol/metadata.md "Reading", docs/protocol/write.md
"Write sets", T1.
"""

from __future__ import annotations

import asyncio
from typing import cast

from duramen.client.bookie_client import BookieClient
from duramen.client.log_verifier import LogVerifier
from duramen.client.replica_check import ReplicaReport
from duramen.core.log_node import LogNode
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, lsn_of
from duramen.wire.bookie_calls import ReadAnswer, ReadRange
from duramen.wire.repair_calls import Source
from tests.component.repair_world import PATHS, FakeClient, RepairWorld, repair_world
from tests.unit.repair_world import make_segment


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
