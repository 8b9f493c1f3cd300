"""An archiver of the simulated cluster: copies closed segments, looks again, takes bad ones back.

Plays the archive job by its protocol (docs/protocol/archive.md): what it wrote is whole before the
segment's node names it, and every change of a node is a compare-and-set with a predicate; one
whose fate it does not know leaves its files where they are. Two of them work side by side, end
between any two steps, and find a copy broken now and then, also the only one that is left.

Reads by a production cursor, as the job does. Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.errors import DuramenError
from duramen.ids import NOTHING, EntryId, Epoch, LogId
from duramen.runtime.stores.metadata_store import (
    Check,
    Conflict,
    MetadataError,
    Op,
    OutcomeUnknown,
    Set,
    Stored,
)
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import encode_segment, read_any_segment, read_log
from tests.sim.metadata import PATHS
from tests.sim.reading.proxy import Cluster, ReadProxy
from tests.sim.world import World

_ARCHIVERS: Final = 700
"""Their names begin with this number."""

ARCHIVE: Final = "archive"
"""With what the nonces of its changes begin."""

_PAUSE_US: Final = 700 * MS
_SEGMENT_COUNT: Final = 6
"""Segments of a log that one visit looks at."""
_READ_S: Final = 15.0
_RECHECK_US: Final = 1 * SECOND
_TRIES: Final = 4
_DEATH_RATIO: Final = 0.04
_BROKEN_RATIO: Final = 0.12
_LOOK_AGAIN_RATIO: Final = 0.1
_DUE_AGAIN_RATIO: Final = 0.6
_DUE_BROKEN_RATIO: Final = 0.4

Change = Callable[[AnySegment], AnySegment | None]


class _Killed(Exception):
    """The run of the job ends here; another one comes."""


class Archiver(ReadProxy):
    """Works until the run ends."""

    def __init__(self, world: World, index: int, regions: list[str], cluster: Cluster) -> None:
        name = f"r{_ARCHIVERS + index}"
        super().__init__(world, name, regions[index % len(regions)], cluster)
        assert cluster.cold_files is not None
        self._chance = random.Random(f"{self.name} {cluster.seed}")
        self._cold_files = cluster.cold_files
        self._is_at_work = False
        self.after(_PAUSE_US, self._look)

    def _look(self) -> None:
        self.after(int(self._chance.uniform(0.2, 2) * _PAUSE_US), self._look)
        if not self._is_at_work:
            self._is_at_work = True
            log_id = LogId(1 + self._chance.randrange(self.cluster.log_count))
            self.loop.run_task(self._work(log_id))

    async def _work(self, log_id: LogId) -> None:
        await self._visit_log(log_id)
        self._is_at_work = False

    async def _visit_log(self, log_id: LogId) -> None:
        try:
            stored = await self.session.get(PATHS.log(log_id))
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
        stored = await self.session.get(PATHS.segment(log.log_id, epoch))
        if stored is None:
            return False
        segment = read_any_segment(stored.data)
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

    async def _archive(self, segment: AnySegment) -> None:
        found = await self._read_whole(segment)
        if found is None:
            return
        attempt = f"{self._chance.getrandbits(128):032x}"
        self._cold_files.put(attempt, found)
        self._die_perhaps()
        size_bytes = sum(map(len, found.values()))
        copy = ColdCopy(attempt, attempt * 2, size_bytes, self.world.now_us // MS)
        expected = self._cold_files.list_entries(attempt)

        def record(now: AnySegment) -> AnySegment | None:
            is_whole = _list_present(now) == expected
            if now.cold_copy is not None or not now.is_closed or not is_whole:
                return None
            return now.with_cold_copy(copy, self._nonce())

        outcome = await self._change(segment, record)
        self.world.counts[f"segment archived: {outcome}"] += 1
        if outcome == "refused":
            self._cold_files.remove(attempt)
        self._die_perhaps()

    async def _recheck(self, segment: AnySegment, copy: ColdCopy) -> None:
        def recheck(now: AnySegment) -> AnySegment | None:
            if now.cold_copy is None or now.cold_copy.attempt != copy.attempt:
                return None
            return now.with_recheck(self.world.now_us // MS, self._nonce())

        outcome = await self._change(segment, recheck)
        self.world.counts[f"cold copy rechecked: {outcome}"] += 1

    async def _take_back(self, segment: AnySegment, copy: ColdCopy) -> None:
        """The copy is broken: it does not count any more, unless it is the only one."""
        path = PATHS.log(segment.log_id)
        await self.session.sync(path)
        stored = await self.session.get(path)
        assert stored is not None
        if self._is_only_copy(read_log(stored.data), segment):
            self.world.counts["only copy found broken"] += 1
            return
        self._die_perhaps()
        await self.pass_time(int(self._chance.expovariate(1 / (300 * MS))))

        def forget(now: AnySegment) -> AnySegment | None:
            if now.cold_copy is None or now.cold_copy.attempt != copy.attempt:
                return None
            return now.without_cold_copy(self._nonce())

        outcome = await self._change(segment, forget, Check(path, stored.version))
        self.world.counts[f"cold copy taken back: {outcome}"] += 1
        if outcome == "applied":
            self._cold_files.remove(copy.attempt)

    def _is_only_copy(self, log: LogNode, segment: AnySegment) -> bool:
        return log.first_hot_epoch > segment.epoch

    async def _change(self, segment: AnySegment, change: Change, *checks: Op) -> str:
        """`applied`, `refused` (it is certain that it is not), or `unknown`."""
        path = PATHS.segment(segment.log_id, segment.epoch)
        for _ in range(_TRIES):
            await self.session.sync(path)
            stored: Stored | None = await self.session.get(path)
            after = None if stored is None else change(read_any_segment(stored.data))
            if stored is None or after is None:
                return "refused"
            try:
                await self.session.commit(
                    [Set(path, encode_segment(after), stored.version), *checks]
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

    async def _read_whole(self, segment: AnySegment) -> dict[EntryId, bytes] | None:
        """Every entry of the segment; None: it cannot be read now, or is gone."""
        found: dict[EntryId, bytes] = {}
        present = _list_present(segment)
        try:
            async with (
                asyncio.timeout(_READ_S),
                self.cursor_at(segment.log_id, (segment.epoch, EntryId(0))) as cursor,
            ):
                while len(found) < len(present):
                    delivered = await cursor.take(0)
                    if delivered is None or delivered.epoch > segment.epoch:
                        break
                    found.update(delivered.entries)
        except (DuramenError, TimeoutError) as error:
            self.world.counts[f"archiver cannot read: {type(error).__name__}"] += 1
            return None
        return found if sorted(found) == present else None


def _list_present(segment: AnySegment) -> list[EntryId]:
    """The entries that a whole copy of a closed segment holds."""
    assert segment.last_entry is not None, segment
    present = segment.list_present(EntryId(0), segment.last_entry)
    return [EntryId(entry) for first, last in present for entry in range(first, last + 1)]
