"""What a bookie holds and asks for is bounded, and given back; a wrong place gives nothing.

Whoever opens a ledger on a doubtful bookie has it read the segment's node; that read must be of now
(R4), and there are only so many at a time. One part runs the whole service, the other two steps.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LedgerId, LogId, Member
from duramen.runtime.stores.metadata_store import Stored
from duramen.wire.metadata_json import Paths, encode_segment
from duramen_bookie.repair import proofs
from duramen_bookie.repair.proofs import MetadataProofs
from tests.component.bookie_world import LEDGER, LOG, OK, add, run, running, span
from tests.waiting import wait_for

MEMBER = Member(BookieId("b1"), Incarnation("a" * 32))
OPEN = Segment(LogId(LOG), Epoch(1), Quorum(1, 1, 1), (Fragment(EntryId(0), (MEMBER,)),))


class LaggingStore:
    """Shows what was true once until it is synced; a sync waits until it is let go on."""

    def __init__(self, was: Segment, now: Segment | None) -> None:
        self._was, self._now = was, now
        self._is_synced = False
        self.may_sync = asyncio.Event()

    async def sync(self, _: str) -> None:
        await self.may_sync.wait()
        self._is_synced = True

    async def get(self, _: str) -> Stored | None:
        found = self._now if self._is_synced else self._was
        return None if found is None else Stored(encode_segment(found), 0, 0, 0, 5)


def make_proofs(store: LaggingStore, told: list[tuple[LedgerId, bool]]) -> MetadataProofs:
    untyped: Any = store
    return MetadataProofs(
        untyped, Paths("local"), lambda ledger_id, is_open, _: told.append((ledger_id, is_open))
    )


def test_a_segment_is_proved_open_by_what_is_true_now() -> None:
    async def scenario() -> None:
        store, told = LaggingStore(was=OPEN, now=None), list[tuple[LedgerId, bool]]()
        store.may_sync.set()
        make_proofs(store, told).check_segment(LEDGER)
        await wait_for(lambda: bool(told))
        assert told == [(LEDGER, False)], "it is not there any more"

    asyncio.run(scenario())


def test_so_many_segments_are_checked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "CHECK_COUNT_MAX", 2)

    async def scenario() -> None:
        store, told = LaggingStore(was=OPEN, now=OPEN), list[tuple[LedgerId, bool]]()
        asked = make_proofs(store, told)
        for epoch in range(3):
            asked.check_segment(LedgerId(LEDGER + epoch))
        assert told == [(LEDGER + 2, False)], "answered at once, to be asked again"
        store.may_sync.set()
        await wait_for(lambda: len(told) == 3)
        assert told[1:] == [(LEDGER, True), (LEDGER + 1, True)]

    asyncio.run(scenario())


def test_bytes_are_queued_until_they_are_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            assert await bookie.add(*[add(number, lac=NOTHING) for number in range(5)]) == [OK] * 5
            assert bookie.service.statistics()["storage"]["queued_bytes"] == 0

    run(scenario)


def test_a_wrong_place_gives_no_other_entry(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await bookie.add(add(0), add(1))
            assert bookie.service._storage is not None
            index = bookie.service._storage.index
            (place,) = index.select(LEDGER, EntryId(1), 1, 1_000)
            index.put(LEDGER, EntryId(0), place.location)
            (answer,) = await bookie.read(span(0))
            assert (answer.status, answer.entries) == (BookieStatus.UNKNOWN, [])

    run(scenario)
