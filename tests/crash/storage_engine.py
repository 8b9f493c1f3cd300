"""The whole storage as an engine: core, journal, entry log, checkpoint, settling and compaction.

Everything is production code but the journal's thread: a commit is made when it is asked for, and
upkeep runs in one go where the bookie does it piece by piece. The one place of `tests/crash` that
knows how these parts fit. Used by `test_crash_states` and `test_bit_flips`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import (
    AddRow,
    Effect,
    Persist,
    ReplyMarks,
    ReplyStatuses,
    RequestId,
)
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, Incarnation, LedgerId, LogId, ledger_of
from duramen.limits import READ_BYTES_MAX
from duramen.wire.bookie_calls import Add, LacUpdate, ReadRange, Seal
from duramen.wire.disk.journal_format import JournalRecord, Location
from duramen.wire.entry import read_entry_info
from duramen_bookie.checkpoint import COPY_NAMES, write_checkpoint
from duramen_bookie.entry_log.data_file import index_path
from duramen_bookie.journal.findings import DamageKind
from duramen_bookie.journal.group_commit import JournalStatistics
from duramen_bookie.journal.names import file_name, generation_name, spare_name
from duramen_bookie.journal.writer import JournalPoisoned, JournalWriter
from duramen_bookie.storage import DataLayout, Storage
from duramen_bookie.upkeep.checkpointing import (
    add_files,
    begin_compaction,
    begin_settling,
    next_checkpoint,
    switch,
)
from duramen_bookie.upkeep.transfer import Transfer
from tests.crash.disk import Disk
from tests.crash.promises import Addition, View

INCARNATION = Incarnation("0123456789abcdef0123456789abcdef")
LAYOUT = DataLayout("data", "data/journal", ("data/ledgers-0", "data/ledgers-1"))
FILE_BYTES = 32 << 10
"""Small, so that a workload of some entries fills several."""


class _Figures(NamedTuple):
    """As much of JournalStatistics as Storage looks at."""

    commit_count: int = 0
    sync_us_total: int = 0


class PlainJournal:
    """`JournalPort` without a thread: what is appended is durable when the call returns."""

    def __init__(self, writer: JournalWriter) -> None:
        self.writer = writer

    def start(self) -> None:
        pass

    def has_room(self, size_bytes: int, *, is_urgent: bool = False) -> bool:
        return True

    def append_nowait(
        self, records: Sequence[JournalRecord], done: Callable[[list[Location]], None]
    ) -> bool:
        done(self.writer.commit(records))
        return True

    def read(self, file_id: int, offset: int, length_bytes: int) -> bytes:
        return self.writer.read(Location(file_id, offset, length_bytes))

    def request_roll(self, done: Callable[[int], None]) -> bool:
        done(self.writer.roll())
        return True

    def recycle(self, file_ids: Sequence[int], done: Callable[[], None]) -> None:
        self.writer.recycle(file_ids)
        done()

    def statistics(self) -> JournalStatistics:
        return cast(JournalStatistics, _Figures())

    async def close(self) -> None:
        self.writer.close()


class StorageEngine:
    """See `runs.Engine`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._request_count = 0
        self._answers: dict[RequestId, Any] = {}

        def identity_of(ledger_id: LedgerId, entry_id: EntryId) -> int | None:
            return self.storage.entry_log.identity_of(ledger_id, entry_id)

        self._identity_of = identity_of
        self.core = self._open_core()
        self.storage = Storage(
            LAYOUT, disk, self.core, on_poisoned=_raise, on_durable=_nothing,
            make_journal=lambda writer, on_poisoned: PlainJournal(writer),
            now_unix_us=lambda: 0, journal_file_bytes=FILE_BYTES,
            first_journal_file_bytes=FILE_BYTES // 2, **self._choose_formats(),
        )  # fmt: skip
        self.storage.replay()
        self.core.validate()
        harmless = DamageKind.FILE_HEADER
        damages = self.storage.replayed.damages
        self._damages = [str(d) for d in damages if d.kind is not harmless]
        self._damages += self.storage.lost_files

    def _open_core(self) -> BookieCore:
        return BookieCore(INCARNATION, identity_of=self._identity_of)

    def _choose_formats(self) -> dict[str, Any]:
        """What the storage is told of the disks' format."""
        return {}

    def _call(self, add: Addition) -> Add:
        """The row that asks for an addition."""
        return Add(add.ledger_id, add.entry_id, add.lac, add.body, add.is_recovery)

    # --- Requests --------------------------------------------------------------------------------

    def add(self, adds: Sequence[Addition]) -> None:
        calls = [self._call(add) for add in adds]
        rows = [
            AddRow(
                x.ledger_id, x.entry_id, x.lac, read_entry_info(x.body).crc, x.is_recovery, True,
                bool(call.envelope),
            )
            for x, call in zip(adds, calls, strict=True)
        ]  # fmt: skip
        request = self._open()
        self.core.on_adds(request, INCARNATION, rows)
        self._drain(calls, [x.body for x in adds])
        statuses = self._answers.pop(request)
        assert all(status is BookieStatus.OK for status in statuses), statuses

    def seal(self, log_id: LogId, epoch: Epoch) -> None:
        request = self._open()
        self.core.on_seals(request, INCARNATION, [Seal(log_id, epoch, ledger_of(log_id, epoch))])
        self._drain()
        self._answers.pop(request)

    def lac(self, ledger_id: LedgerId, lac: EntryId) -> None:
        request = self._open()
        self.core.on_lacs(request, INCARNATION, [LacUpdate(ledger_id, lac, is_write=True)])
        self._drain()
        (mark,) = self._answers.pop(request)
        assert mark.status is BookieStatus.OK, mark

    def drop(self, log_id: LogId, epoch: Epoch) -> None:
        self.core.drop(log_id, epoch, is_all_below=False)
        self._drain()

    # --- Upkeep ----------------------------------------------------------------------------------

    def idle(self) -> None:
        writer = self.storage.writer
        if writer.owes_mark:
            writer.write_mark()
        if writer.wants_next:
            writer.prepare_next()

    def settle(self) -> None:
        sealed: list[int] = []
        self.storage.roll(sealed.append)
        if sealed[0]:
            self._carry_out(begin_settling(self.storage, sealed[0]))

    def compact(self) -> None:
        for file in self.storage.entry_log.list_files():
            self._carry_out(begin_compaction(self.storage, file))

    def _carry_out(self, transfer: Transfer) -> None:
        storage = self.storage
        for _ in transfer.pieces():
            pass
        assert not transfer.damaged, transfer.damaged
        checkpoint = next_checkpoint(storage, transfer)
        write_checkpoint(self._disk, LAYOUT.data, checkpoint)
        storage.checkpoint = checkpoint._replace(state=storage.checkpoint.state)
        add_files(storage, transfer)
        switch(storage, transfer, _nothing)
        storage.entry_log.retire(transfer.replaced)
        self.core.validate()

    # --- Ends ------------------------------------------------------------------------------------

    def stop(self) -> None:
        self.storage.writer.write_end()
        self.storage.writer.close()
        self.storage.entry_log.close()

    def abandon(self) -> None:
        self.storage.writer.files.clear()

    # --- What it shows ---------------------------------------------------------------------------

    def look(self) -> View:
        view = View(damages=self._damages)
        for ledger_id, ledger in self.core.list_ledgers():
            if ledger.lac != NOTHING:
                view.lacs[ledger_id] = ledger.lac
            for first, last in self.core.list_ranges(ledger_id) or []:
                self._read(view, ledger_id, first, last)
            view.unknown |= {
                (ledger_id, EntryId(entry_id))
                for first, last in ledger.unknown
                for entry_id in range(first, last + 1)
            }
        snapshot = self.core.snapshot()
        for log in snapshot.logs:
            if log.sealed:
                view.seals[log.log_id] = log.sealed
            for first, last in log.gone:
                view.gone |= {
                    ledger_of(log.log_id, Epoch(epoch)) for epoch in range(first, last + 1)
                }
        return view

    def _read(self, view: View, ledger_id: LedgerId, first: EntryId, last: EntryId) -> None:
        while first <= last:
            plan = self.core.plan(ReadRange(ledger_id, first, last, READ_BYTES_MAX))
            readings, _ = self.storage.select([plan])
            result = self.storage.read(readings)
            for entry_id, body in result.answers[0].entries:
                view.entries[ledger_id, entry_id] = bytes(body)
                first = EntryId(entry_id + 1)
            for bad_ledger, bad_entry in result.unreadable:
                view.unknown.add((bad_ledger, bad_entry))
                self.core.on_unreadable(bad_ledger, bad_entry)
                first = EntryId(bad_entry + 1)
            if not result.answers[0].entries and not result.unreadable:
                view.unknown.add((ledger_id, first))
                first = EntryId(first + 1)

    def list_names(self) -> set[str]:
        writer, entry_log = self.storage.writer, self.storage.entry_log
        supply = writer.supply
        names = {name for id_ in writer.files for name in (file_name(id_), generation_name(id_))}
        names |= {spare_name(id_) for id_ in supply._spare_ids}
        if supply.next is not None:
            names |= {file_name(supply.next.file_id), generation_name(supply.next.file_id)}
        paths = {f"{LAYOUT.journal}/{name}" for name in names}
        paths |= {f"{LAYOUT.data}/{name}" for name in COPY_NAMES}
        for file in entry_log.list_files():
            paths |= {file.path, index_path(file.path)}
        return paths

    # --- Effects ---------------------------------------------------------------------------------

    def _open(self) -> RequestId:
        self._request_count += 1
        return RequestId(self._request_count)

    def _drain(self, adds: Sequence[Add] = (), entries: Sequence[bytes] = ()) -> None:
        while self.core.outbox:
            effects: list[Effect]
            effects, self.core.outbox = self.core.outbox, []
            for effect in effects:
                match effect:
                    case Persist():
                        self.storage.append_nowait(effect, adds, entries)
                    case ReplyStatuses(request, answer) | ReplyMarks(request, answer):
                        self._answers[request] = answer
                    case _:
                        raise AssertionError(effect)


def _raise(error: JournalPoisoned) -> None:
    raise error


def _nothing(*_: object) -> None:
    """Nobody listens."""
