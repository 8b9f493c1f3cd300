"""An archiver of the simulated cluster: copies closed segments, looks again, takes bad ones back.

Plays the archive job by its protocol (docs/protocol/archive.md): what it wrote is whole before the
segment's node names it, and every change of a node is a compare-and-set with a predicate; one
whose fate it does not know leaves its files where they are. Two of them work side by side, end
between any two steps, and find a copy broken now and then, also the only one that is left.

Reads by the production reader, as the job does. Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from duramen.core.cold_copy import ColdCopy
from duramen.core.log_node import LogNode
from duramen.core.reading import effects as rx
from duramen.core.segment import Segment
from duramen.ids import NOTHING, EntryId, Epoch, LogId
from duramen.runtime.metadata_store import (
    Check,
    Conflict,
    MetadataError,
    Op,
    OutcomeUnknown,
    Set,
    Stored,
)
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import read_log, read_segment, spell_segment
from tests.sim.archive.shelf import ColdShelf
from tests.sim.metadata import PATHS
from tests.sim.node_loop import Promise
from tests.sim.workload import ReaderNode
from tests.sim.world import World

ARCHIVE: Final = "archive"
"""With what the nonces of its changes begin."""

_PAUSE_US: Final = 700 * MS
_SEGMENT_COUNT: Final = 6
"""Segments of a log that one visit looks at."""
_READ_US: Final = 15 * SECOND
_RECHECK_US: Final = 1 * SECOND
_TRIES: Final = 4
_DEATH_RATIO: Final = 0.04
_BROKEN_RATIO: Final = 0.12
_LOOK_AGAIN_RATIO: Final = 0.1
_DUE_AGAIN_RATIO: Final = 0.6
_DUE_BROKEN_RATIO: Final = 0.4

Change = Callable[[Segment], Segment | None]


class _Killed(Exception):
    """The run of the job ends here; another one comes."""


class Archiver(ReaderNode):
    """Works until the run ends.

    Args:
        log_count: logs have the ids 1 … `log_count`.
    """

    def __init__(
        self, world: World, index: int, seed: int, log_count: int, shelf: ColdShelf, **parts: Any
    ) -> None:
        super().__init__(world, index, shelf=shelf, **parts)
        self._chance = random.Random(f"{self.name} {seed}")
        self._shelf_written = shelf
        self._log_count = log_count
        self._found: dict[EntryId, bytes] = {}
        self._wanted: tuple[Epoch, Promise[bool]] | None = None
        self._is_at_work = False
        self.after(_PAUSE_US, self._look)

    def _look(self) -> None:
        self.after(int(self._chance.uniform(0.2, 2) * _PAUSE_US), self._look)
        if not self._is_at_work:
            self._is_at_work = True
            self.spawn(self._work(LogId(1 + self._chance.randrange(self._log_count))), self._rest)

    def _rest(self, _: None) -> None:
        self._is_at_work = False

    async def _work(self, log_id: LogId) -> None:
        try:
            stored = await self._session.get(PATHS.log(log_id))
            assert stored is not None
            log = read_log(stored.data)
            if log.config.tiering.policy == "none":
                return
            # What has left the bookies is looked at too: it may be found broken.
            first = max(log.first_live_epoch, log.first_kept_epoch - 2)
            for number in range(first, min(first + _SEGMENT_COUNT, log.last_clean_epoch + 1)):
                if await self._visit(log, Epoch(number)):
                    return
        except MetadataError:
            return
        except _Killed:
            self.world.counts["archiver killed"] += 1

    async def _visit(self, log: LogNode, epoch: Epoch) -> bool:
        """Do what is to be done for a segment; whether there was anything."""
        stored = await self._session.get(PATHS.segment(log.log_id, epoch))
        if stored is None:
            return False
        segment = read_segment(stored.data)
        copy = segment.cold_copy
        if not segment.is_closed or segment.last_entry == NOTHING:
            return False
        if copy is None:
            await self._archive(segment)
            return True
        is_ripe = self.world.now_us // MS >= copy.verified_unix_ms + _RECHECK_US // MS
        # What may be released at any moment is looked at most: the two changes should race.
        is_due = epoch >= log.first_hot_epoch
        ratio = _DUE_AGAIN_RATIO if is_due else _LOOK_AGAIN_RATIO
        if (copy.is_rechecked and self._chance.random() > ratio) or not is_ripe:
            return False
        broken_ratio = _DUE_BROKEN_RATIO if is_due and copy.is_rechecked else _BROKEN_RATIO
        if self._chance.random() < broken_ratio:
            await self._take_back(segment, copy)
        else:
            await self._recheck(segment, copy)
        return True

    # --- The five steps --------------------------------------------------------------------------

    async def _archive(self, segment: Segment) -> None:
        if not await self._read_whole(segment):
            return
        attempt = f"{self._chance.getrandbits(128):032x}"
        self._shelf_written.put(attempt, self._found)
        self._die_perhaps()
        size_bytes = sum(map(len, self._found.values()))
        copy = ColdCopy(attempt, attempt * 2, size_bytes, self.world.now_us // MS)
        expected = self._shelf_written.list_entries(attempt)

        def record(now: Segment) -> Segment | None:
            is_whole = _list_present(now) == expected
            if now.cold_copy is not None or not now.is_closed or not is_whole:
                return None
            return now.with_cold_copy(copy, self._nonce())

        outcome = await self._change(segment, record)
        self.world.counts[f"segment archived: {outcome}"] += 1
        if outcome == "refused":
            self._shelf_written.remove(attempt)
        self._die_perhaps()

    async def _recheck(self, segment: Segment, copy: ColdCopy) -> None:
        def recheck(now: Segment) -> Segment | None:
            if now.cold_copy is None or now.cold_copy.attempt != copy.attempt:
                return None
            return now.with_recheck(self.world.now_us // MS, self._nonce())

        outcome = await self._change(segment, recheck)
        self.world.counts[f"cold copy rechecked: {outcome}"] += 1

    async def _take_back(self, segment: Segment, copy: ColdCopy) -> None:
        """The copy is broken: it does not count any more, unless it is the only one."""
        path = PATHS.log(segment.log_id)
        await self._session.sync(path)
        stored = await self._session.get(path)
        assert stored is not None
        if self._is_only_copy(read_log(stored.data), segment):
            self.world.counts["only copy found broken"] += 1
            return
        self._die_perhaps()
        await self.pass_time(int(self._chance.expovariate(1 / (300 * MS))))

        def forget(now: Segment) -> Segment | None:
            if now.cold_copy is None or now.cold_copy.attempt != copy.attempt:
                return None
            return now.without_cold_copy(self._nonce())

        outcome = await self._change(segment, forget, Check(path, stored.version))
        self.world.counts[f"cold copy taken back: {outcome}"] += 1
        if outcome == "applied":
            self._shelf_written.remove(copy.attempt)

    def _is_only_copy(self, log: LogNode, segment: Segment) -> bool:
        return log.first_hot_epoch > segment.epoch

    async def _change(self, segment: Segment, change: Change, *checks: Op) -> str:
        """`applied`, `refused` (it is certain that it is not), or `unknown`."""
        path = PATHS.segment(segment.log_id, segment.epoch)
        for _ in range(_TRIES):
            await self._session.sync(path)
            stored: Stored | None = await self._session.get(path)
            after = None if stored is None else change(read_segment(stored.data))
            if stored is None or after is None:
                return "refused"
            try:
                await self._session.commit(
                    [Set(path, spell_segment(after), stored.version), *checks]
                )
                return "applied"
            except Conflict:
                if checks:
                    return "refused"
            except OutcomeUnknown:
                return "unknown"
        return "refused"

    def _nonce(self) -> str:
        return f"{ARCHIVE} {self._chance.getrandbits(64):016x}"

    def _die_perhaps(self) -> None:
        if self._chance.random() < _DEATH_RATIO:
            raise _Killed

    # --- Reading ---------------------------------------------------------------------------------

    async def _read_whole(self, segment: Segment) -> bool:
        """Every entry of the segment, into `_found`; False: it cannot be read now, or is gone."""
        over: Promise[bool] = Promise()
        self._found, self._wanted = {}, (segment.epoch, over)
        self.follow(segment.log_id, (segment.epoch, EntryId(0)), is_following=False)
        self.after(_READ_US, over.settle, False)
        is_read = await over
        self._wanted = None
        return is_read and sorted(self._found) == _list_present(segment)

    def _pump(self) -> None:
        super()._pump()
        if self._wanted is not None and self.core.epoch > self._wanted[0]:
            self._wanted[1].settle(True)

    def _deliver(self, delivered: rx.Deliver) -> None:
        if self._wanted is not None and delivered.epoch == self._wanted[0]:
            self._found.update(delivered.entries)
        size = sum(len(body) for _, body in delivered.entries)
        self.after(0, self._consume, self._generation, size)


def _list_present(segment: Segment) -> list[EntryId]:
    """The entries that a whole copy of a closed segment holds."""
    assert segment.last_entry is not None, segment
    present = segment.list_present(EntryId(0), segment.last_entry)
    return [EntryId(entry) for first, last in present for entry in range(first, last + 1)]
