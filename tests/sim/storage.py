"""Simulated storage of a bookie: the production Storage with its journal's thread played.

`SimJournal` commits what waits after the time that a sync takes, makes files ahead and writes marks
when idle, as `group_commit.Journal` does in threads. `JudgedHoldings` tells what deletion lets go.

Called by `processes`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from duramen.core.bookie import BookieCore
from duramen.ids import EntryId, Epoch, LedgerId, LogId
from duramen.limits import JOURNAL_QUEUE_BYTES_MAX
from duramen.units import MS, SECOND
from duramen.wire.disk.journal_format import JournalRecord, Location
from duramen_bookie.journal.findings import ReplayedRecord
from duramen_bookie.journal.group_commit import SPACE_RETRY_S, Journal, JournalStatistics
from duramen_bookie.journal.recycling import NoSpaceError
from duramen_bookie.journal.writer import JournalPoisoned, JournalWriter
from duramen_bookie.storage import DataLayout, Storage
from duramen_bookie.upkeep.rounds import CoreHoldings

if TYPE_CHECKING:
    from tests.sim.processes import BookieNode

LAYOUT: Final = DataLayout("data", "data/journal", ("data/ledgers",))
_IDLE_BEFORE_MARK_US: Final = 50 * MS


class _Append(NamedTuple):
    records: Sequence[JournalRecord]
    size_bytes: int
    done: Callable[[list[Location]], None]


class _Figures(NamedTuple):
    """As much of JournalStatistics as Storage looks at."""

    commit_count: int = 0
    sync_us_total: int = 0


_NO_FIGURES: Final = _Figures()


class SimJournal:
    """`group_commit.Journal` with virtual time in the place of its threads."""

    def __init__(self, bookie: BookieNode, writer: JournalWriter) -> None:
        self._bookie = bookie
        self.writer = writer
        self._queue: deque[_Append] = deque()
        self.batch: list[_Append] = []
        self._rolls: list[Callable[[int], None]] = []
        self._mark_at_us: int | None = None
        self._is_waiting_for_space = False
        # What the production rule of what has room looks at.
        self._writer = writer
        self._waiting_bytes = 0
        self._queue_bytes_max = JOURNAL_QUEUE_BYTES_MAX

    def append_nowait(
        self, records: Sequence[JournalRecord], done: Callable[[list[Location]], None]
    ) -> bool:
        if self.writer.is_poisoned:
            raise JournalPoisoned("an earlier write or sync failed")
        size = sum([record.size_bytes for record in records])
        self._waiting_bytes += size
        self._queue.append(_Append(records, size, done))
        if not self.batch:
            self._begin()
        return True

    @property
    def is_resting(self) -> bool:
        """Nothing waits, nothing is written, and the time for a mark is over."""
        return not self._queue and not self.batch and self._mark_at_us is None

    def start(self) -> None:
        pass

    def has_room(self, size_bytes: int, *, is_urgent: bool = False) -> bool:
        if not self.writer.is_out_of_space:
            return True  # no load here comes near the queue's bound
        return not Journal._is_full(cast(Any, self), size_bytes, is_urgent)

    def read(self, file_id: int, offset: int, length_bytes: int) -> bytes:
        return self.writer.read(Location(file_id, offset, length_bytes))

    def request_roll(self, done: Callable[[int], None]) -> bool:
        self._rolls.append(done)
        if not self.batch:
            self._bookie.after(1, self._roll_alone)
        return True

    def _roll_alone(self) -> None:
        self._bookie.guard(self._roll)

    def _roll(self) -> None:
        """Between two commits, as the thread does it."""
        if self.batch:
            return
        rolls, self._rolls = self._rolls, []
        for done in rolls:
            done(self.writer.roll())
        if self._queue and not self.batch:
            self._begin()

    def recycle(self, file_ids: Sequence[int], done: Callable[[], None]) -> None:
        self._bookie.guard(partial(self.writer.recycle, file_ids))
        done()

    def statistics(self) -> JournalStatistics:
        return cast(JournalStatistics, _NO_FIGURES)

    async def close(self) -> None:
        raise AssertionError("a simulated bookie stops by itself")

    def commit(self) -> None:
        """Write and sync the batch that is under way; as of now it is durable."""
        records = [record for append in self.batch for record in append.records]
        self._bookie.disk.on_synced = partial(self._bookie.report_durable, records)
        try:
            locations = self.writer.commit(records)
        except NoSpaceError:
            self._queue.extendleft(reversed(self.batch))
            self.batch = []
            self._wait_for_space()
            return
        finally:
            self._bookie.disk.on_synced = _nothing
        batch, self.batch = self.batch, []
        self._waiting_bytes -= sum([append.size_bytes for append in batch])
        first = 0
        for append in batch:
            last = first + len(append.records)
            append.done(locations[first:last])
            first = last
            self._bookie.report_vouched(append.records)
        if self._rolls:
            self._bookie.guard(self._roll)
        if self._queue and not self.batch:
            self._begin()
        elif not self._queue and self._mark_at_us is None:
            self._want_mark(_IDLE_BEFORE_MARK_US)
        if self.writer.wants_next:
            self._bookie.world.counts["file made ahead"] += self.writer.prepare_next()

    def _begin(self) -> None:
        """As `Journal._take`: everything that waits, as far as the file has room."""
        room = self.writer.room_bytes
        if self.writer.is_out_of_space and self._queue[0].size_bytes > room:
            self._wait_for_space()
            return
        self.batch.append(self._queue.popleft())
        size = self.batch[0].size_bytes
        while self._queue and size + self._queue[0].size_bytes <= room:
            size += self._queue[0].size_bytes
            self.batch.append(self._queue.popleft())
        if len(self.batch) > 1:
            self._bookie.world.counts["group commit"] += 1
        self._bookie.after(self._bookie.sync_us(), self._bookie.on_sync_over)

    def _wait_for_space(self) -> None:
        if not self._is_waiting_for_space:
            self._is_waiting_for_space = True
            self._bookie.world.counts["commit waits for space"] += 1
            self._bookie.after(int(SPACE_RETRY_S * SECOND), self._look_for_space)

    def _look_for_space(self) -> None:
        self._is_waiting_for_space = False
        if self._bookie.guard(self._prepare_next) and self._queue and not self.batch:
            self._begin()

    def _prepare_next(self) -> None:
        if self.writer.wants_next:
            self.writer.prepare_next()

    def _want_mark(self, delay_us: int) -> None:
        self._mark_at_us = self._bookie.world.now_us + delay_us
        self._seen_commit = self.writer.next_commit
        self._bookie.after(delay_us, self._on_idle)

    def _on_idle(self) -> None:
        self._mark_at_us = None
        if self.batch or not self.writer.owes_mark:
            return
        if self.writer.next_commit != self._seen_commit:
            self._want_mark(_IDLE_BEFORE_MARK_US)
            return
        self._bookie.guard(self._write_mark)

    def _write_mark(self) -> None:
        self._bookie.world.counts["journal mark"] += self.writer.write_mark()
        if self.writer.wants_next:
            self.writer.prepare_next()


class SimStorage(Storage):
    """The production storage on a simulated disk."""

    def __init__(self, bookie: BookieNode, core: BookieCore) -> None:
        self.sim_journal: SimJournal | None = None

        def make_journal(writer: JournalWriter, on_poisoned: object) -> SimJournal:
            self.sim_journal = journal = SimJournal(bookie, writer)
            return journal

        super().__init__(
            LAYOUT, bookie.disk, core, on_poisoned=_nothing, on_durable=bookie.drain,
            make_journal=make_journal, now_unix_us=lambda: bookie.world.now_us,
            journal_file_bytes=bookie.options.journal_file_bytes,
        )  # fmt: skip
        self._bookie = bookie

    def _on_record(self, item: ReplayedRecord) -> None:
        super()._on_record(item)
        if item.header.kind.holds_entry:
            crc = int.from_bytes(item.body[4:8], "little")
            self._bookie.replayed.append((item.header.ledger_id, item.header.entry_id, crc))


class JudgedHoldings(CoreHoldings):
    """What deletion sees of a core; the judge is told first."""

    def __init__(self, bookie: BookieNode, storage: Storage) -> None:
        super().__init__(storage, bookie.drain)
        self._bookie = bookie

    def drop(self, log_id: LogId, epoch: Epoch, *, is_all_below: bool) -> None:
        assert is_all_below
        self._bookie.world.counts["ledgers dropped"] += 1
        self._bookie.judge.on_dropped(log_id, epoch)
        super().drop(log_id, epoch, is_all_below=is_all_below)

    def purge_beyond(self, ledger_id: LedgerId, last_entry: EntryId) -> None:
        self._bookie.world.counts["leftovers purged"] += 1
        self._bookie.judge.on_purged(ledger_id, last_entry)
        super().purge_beyond(ledger_id, last_entry)


def _nothing(*_: object) -> None:
    """Nobody listens."""
