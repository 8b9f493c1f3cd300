"""Storage of one bookie: the core's records into the journal, entries out of it, replay at start.

Joins journal, index and core: a completion first enters the places into the index, then tells the
core, whose answers may then leave. Every entry that is read is checked against its identity before
it is handed out; what fails is UNKNOWN, never an absence (R15). Reads are of recent data mostly,
thus of the page cache: small ones are made where one stands, large ones in two threads.

Not here: requests (`handlers`), the files (`journal`, `replay`). Source: 02-storage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, assert_never

from duramen.core.bookie import BookieCore
from duramen.core.bookie_state import AddRecord, LacRecord, Persist, ReadPlan, SealRecord
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId, epoch_of, ledger_of, log_of
from duramen.limits import JOURNAL_QUEUE_BYTES_MAX, READ_BYTES_MAX
from duramen.units import MIB
from duramen.wire.bookie_calls import Add, ReadAnswer
from duramen.wire.entry import HEADER_BYTES, EntryError, check_entry, read_entry_info
from duramen.wire.journal_format import JournalRecord, Kind, Location, record_bytes
from duramen_bookie.file_system import PosixFileSystem
from duramen_bookie.index import EntryIndex, Place
from duramen_bookie.journal import Journal, JournalPoisoned
from duramen_bookie.metrics import (
    ADD_BYTES,
    ADD_ENTRIES,
    JOURNAL_QUEUE_BYTES,
    JOURNAL_SYNC_SECONDS,
    READ_BYTES,
)
from duramen_bookie.replay import Damage, DamageKind, ReplayedRecord, ReplayResult, open_journal

INLINE_READ_BYTES_MAX: Final = 1 * MIB
INLINE_READ_ENTRY_COUNT_MAX: Final = 128
"""Up to these a read from the page cache holds the event loop for a millisecond at most."""

READ_THREAD_COUNT: Final = 2
URGENT_RATIO: Final = 8
"""One part in eight of the journal's queue on top is for seals and recovery alone."""


class Reading(NamedTuple):
    """A planned answer with the places of its entries."""

    plan: ReadPlan
    places: Sequence[Place]


class ReadResult(NamedTuple):
    """Answers to a request's plans, and entries that turned out to be unreadable."""

    answers: list[ReadAnswer]
    unreadable: list[tuple[LedgerId, EntryId]]


class Storage:
    """Journal and index of one bookie.

    Args:
        directory: where the journal's files are.
        core: gets what replay finds, and every completion.
        on_poisoned: the journal has failed; nothing is acknowledged any more.
        on_durable: the core has news in its outbox.
    """

    def __init__(
        self,
        directory: Path,
        core: BookieCore,
        *,
        on_poisoned: Callable[[JournalPoisoned], None],
        on_durable: Callable[[], None],
    ) -> None:
        self.index = EntryIndex()
        self.replayed = ReplayResult()
        self._core = core
        self._on_poisoned = on_poisoned
        self._on_durable = on_durable
        self._queued_bytes = 0
        self._synced_count = 0
        self._synced_us = 0
        self._journal: Journal | None = None
        self._directory = directory
        self.readers = ThreadPoolExecutor(READ_THREAD_COUNT, "reader")

    # --- Start and stop --------------------------------------------------------------------------

    def replay(self) -> None:
        """Read the journal into core and index; blocks, for a thread of its own.

        Raises:
            JournalMismatch, JournalFormatError, JournalPoisoned, OSError: as `open_journal`.
        """
        writer, self.replayed = open_journal(
            str(self._directory),
            PosixFileSystem(),
            self._core.incarnation,
            self._on_record,
            now_unix_us=lambda: time.time_ns() // 1_000,
        )
        for damage in self.replayed.damages:
            self._on_damage(damage)
        self._journal = Journal(writer, on_poisoned=self._on_poisoned)

    def start(self) -> None:
        """Take records from now on; completions come to the running event loop."""
        self._running().start()

    async def close(self) -> None:
        """Write what waits and the end mark, close the files.

        Raises:
            JournalPoisoned: the stop is not a clean one.
        """
        self.readers.shutdown()
        await self._running().close()

    def _on_record(self, item: ReplayedRecord) -> None:
        header = item.header
        match header.kind:
            case Kind.ADD:
                self._core.on_recovered_add(
                    header.ledger_id,
                    header.entry_id,
                    header.lac,
                    read_entry_info(item.body).crc,
                    is_recovery=header.is_recovery,
                )
                self.index.put(header.ledger_id, header.entry_id, item.location)
            case Kind.SEAL:
                ledger_id = header.ledger_id
                self._core.on_recovered_seal(log_of(ledger_id), epoch_of(ledger_id))
            case Kind.LAC:
                self._core.on_recovered_lac(header.ledger_id, header.lac)
            case _:
                pass  # about the journal itself, or of a kind that this bookie does not write

    def _on_damage(self, damage: Damage) -> None:
        match damage.kind:
            case DamageKind.RECORD:
                header = damage.header
                if header is None or header.kind is not Kind.ADD:
                    self._core.on_recovered_damage()
                    return
                self._core.on_recovered_damage(header.ledger_id, header.entry_id)
                if not header.is_recovery:  # the header is intact, and so is the LAC in it
                    self._core.on_recovered_lac(header.ledger_id, header.lac)
            case DamageKind.RANGE | DamageKind.FILE:
                self._core.on_recovered_damage()
            case DamageKind.FILE_HEADER:
                pass  # no record stood there
            case _:
                assert_never(damage.kind)

    # --- Records into the journal ----------------------------------------------------------------

    def has_room(self, size_bytes: int, *, is_urgent: bool) -> bool:
        """Whether the journal takes so much more; counts at least what the journal itself does."""
        bound = JOURNAL_QUEUE_BYTES_MAX
        if is_urgent:
            bound += bound // URGENT_RATIO
        return self._queued_bytes == 0 or self._queued_bytes + size_bytes <= bound

    def append_nowait(
        self, persist: Persist, adds: Sequence[Add], entries: Sequence[bytes]
    ) -> bool:
        """Queue one request's records as one unit; False if the journal is closing.

        Args:
            adds: the rows of the request, if it is an add.
            entries: their bytes, checked.

        Raises:
            JournalPoisoned: nothing will be written any more.
        """
        records = [_spell(record, adds, entries) for record in persist.records]
        size = sum([record_bytes(len(record.body)) for record in records])

        def on_done(locations: list[Location]) -> None:
            self._change_queued(-size)
            self._on_committed(persist, locations)

        # The room was asked for before the core accepted anything: urgent is for what is left.
        if not self._running().append_nowait(records, on_done, is_urgent=True):
            return False
        self._change_queued(size)
        return True

    def _on_committed(self, persist: Persist, locations: Sequence[Location]) -> None:
        entry_count = entry_bytes = 0
        for record, location in zip(persist.records, locations, strict=True):
            if isinstance(record, AddRecord):
                self.index.put(record.ledger_id, record.entry_id, location)
                entry_count += 1
                entry_bytes += location.length_bytes
        ADD_ENTRIES.inc(entry_count)
        ADD_BYTES.inc(entry_bytes)
        self._observe_syncs()
        self._core.on_persisted(persist.token)
        self._on_durable()

    def _observe_syncs(self) -> None:
        """Several appends share a commit, and rarely several commits pass between two looks."""
        journal = self._running().statistics()
        count = journal.commit_count - self._synced_count
        if count > 0:
            mean_s = (journal.sync_us_total - self._synced_us) / count / 1e6
            for _ in range(count):
                JOURNAL_SYNC_SECONDS.observe(mean_s)
            self._synced_count = journal.commit_count
            self._synced_us = journal.sync_us_total

    def _change_queued(self, difference_bytes: int) -> None:
        self._queued_bytes += difference_bytes
        JOURNAL_QUEUE_BYTES.set(self._queued_bytes)

    # --- Entries out of it -----------------------------------------------------------------------

    def select(self, plans: Sequence[ReadPlan]) -> tuple[list[Reading], bool]:
        """Find the places of what is planned.

        An answer frame has a bound; a range that finds it used up is OVERLOADED, to be asked again.

        Returns:
            What to give to `read`, and whether that is short enough to be done on the event loop.
        """
        readings = []
        total = entry_count = 0
        for plan in plans:
            places: list[Place] = []
            if plan.entry_count:
                left = READ_BYTES_MAX - total
                bytes_max = left if plan.headers_only else min(plan.bytes_max, left)
                places = self.index.select(plan.ledger_id, plan.first, plan.entry_count, bytes_max)
                size = sum([place.location.length_bytes for place in places])
                if total and size > left:
                    places, size = [], 0
                    plan = plan._replace(status=BookieStatus.OVERLOADED)
                total += size
                entry_count += len(places)
            readings.append(Reading(plan, places))
        is_short = total <= INLINE_READ_BYTES_MAX and entry_count <= INLINE_READ_ENTRY_COUNT_MAX
        return readings, is_short

    def read(self, readings: Sequence[Reading]) -> ReadResult:
        """Fetch and check the entries; on any thread."""
        result = ReadResult([], [])
        for plan, places in readings:
            entries: list[tuple[EntryId, bytes]] = []
            status = plan.status
            for entry_id, location in places:
                entry = self._fetch(plan.ledger_id, entry_id, location)
                if entry is None:
                    result.unreadable.append((plan.ledger_id, entry_id))
                    status = status if entries else BookieStatus.UNKNOWN
                    break
                entries.append((entry_id, entry[:HEADER_BYTES] if plan.headers_only else entry))
            answer = ReadAnswer(status, plan.lac, plan.highest, plan.is_sealed, entries)
            result.answers.append(answer)
        return result

    def _fetch(self, ledger_id: LedgerId, entry_id: EntryId, location: Location) -> bytes | None:
        try:
            entry = self._running().read(*location)
            info = check_entry(entry)
        except (OSError, EntryError):
            return None
        if (info.ledger_id, info.entry_id) != (ledger_id, entry_id):
            return None
        READ_BYTES.inc(len(entry))
        return entry

    def _running(self) -> Journal:
        assert self._journal is not None, "replay comes first"
        return self._journal

    def statistics(self) -> dict[str, Any]:
        """The journal's, the index's and the queue's."""
        return {
            "journal": self.journal_state(),
            "index": self.index.statistics(),
            "queued_bytes": self._queued_bytes,
            "queued_bytes_max": JOURNAL_QUEUE_BYTES_MAX,
        }

    def journal_state(self) -> dict[str, Any]:
        """What the journal did, what waits, and what replay found."""
        if self._journal is None:
            return {"state": "replaying"}
        journal = self._journal.statistics()
        replayed = self.replayed
        fields = {name: getattr(journal, name) for name in journal.__dataclass_fields__}
        return {
            "state": "poisoned" if journal.is_poisoned else "running",
            **fields,
            "replay": {
                "was_clean": replayed.is_clean,
                "record_count": replayed.record_count,
                "replayed_bytes": replayed.replayed_bytes,
                "torn_bytes": replayed.torn_bytes,
                "damage_count": len(replayed.damages),
                "duration_us": replayed.duration_us,
            },
        }


def _spell(
    record: AddRecord | SealRecord | LacRecord, adds: Sequence[Add], entries: Sequence[bytes]
) -> JournalRecord:
    match record:
        case AddRecord(row=row, ledger_id=ledger_id, entry_id=entry_id, lac=lac):
            add = adds[row]
            return JournalRecord(
                Kind.ADD, ledger_id, entry_id, lac, entries[row], add.service, add.wave,
                add.is_recovery,
            )  # fmt: skip
        case SealRecord(log_id=log_id, epoch=epoch):
            return JournalRecord(Kind.SEAL, ledger_of(log_id, epoch))
        case LacRecord(ledger_id=ledger_id, lac=lac):
            return JournalRecord(Kind.LAC, ledger_id, lac=lac)
        case _:
            assert_never(record)
