"""What a bookie keeps: journal, entry log, the indexes of both, and the core's knowledge of them.

Records of the core's Persist effects become journal records; what is durable goes into the active
index first and is then told to the core, in the order of the commits. Read plans become places in
the journal or runs in the entry log, and those become bytes, checked on the way out. At start the
checkpoint is restored, what no checkpoint names is removed, and the journal files that it does not
cover are replayed.

Not here: moving entries from the journal to the entry log and back space (`upkeep.checkpointing`).
Called by `handlers`, `service` and the simulator. Source: docs/protocol/journal.md,
docs/protocol/entry-log.md, R10, R15.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, assert_never

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import (
    AddRecord,
    CoreSnapshot,
    DropRecord,
    LacRecord,
    Persist,
    ReadPlan,
    Record,
    SealRecord,
)
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId, epoch_of, ledger_of, log_of
from duramen.limits import JOURNAL_FILE_BYTES, JOURNAL_QUEUE_BYTES_MAX, READ_BYTES_MAX
from duramen.units import MIB
from duramen.wire.bookie_calls import Add, ReadAnswer
from duramen.wire.disk.checkpoint_format import Checkpoint, EntryLogFileRef
from duramen.wire.disk.journal_format import JournalRecord, Location, RecordKind
from duramen.wire.entry import HEADER_BYTES, EntryError, check_entry, read_entry_info
from duramen.wire.flexible.envelope import content_of
from duramen_bookie.checkpoint import CheckpointDamaged, secure_checkpoint, write_checkpoint
from duramen_bookie.entry_log.contents import ContentRun
from duramen_bookie.entry_log.entry_log import EntryLog, ReadFault, ref_of
from duramen_bookie.entry_log.entry_log_file import PART_BYTES, IndexPart, RecordPart
from duramen_bookie.entry_log.index_file import IndexDamaged
from duramen_bookie.file_system import FileSystem
from duramen_bookie.index import EntryIndex, EntryPlace
from duramen_bookie.journal.findings import Damage, DamageKind, ReplayedRecord, ReplayResult
from duramen_bookie.journal.group_commit import Journal, JournalStatistics
from duramen_bookie.journal.replay import open_journal
from duramen_bookie.journal.writer import JournalPoisoned, JournalWriter
from duramen_bookie.metrics import (
    ADD_BYTES,
    ADD_ENTRIES,
    JOURNAL_QUEUE_BYTES,
    JOURNAL_SYNC_SECONDS,
    READ_BYTES,
)

INLINE_READ_BYTES_MAX: Final = 1 * MIB
INLINE_READ_ENTRY_COUNT_MAX: Final = 128
"""Up to these a read from the page cache holds the event loop for a millisecond at most."""

URGENT_RATIO: Final = 8
"""One part in eight of the journal's queue on top is for seals and recovery alone."""

_NO_STATE: Final = CoreSnapshot((), (), False)
"""What is kept in memory of a checkpoint's state: the core has it."""


class JournalPort(Protocol):
    """What the storage asks of the journal's thread: `journal.group_commit.Journal`, or virtual."""

    def start(self) -> None: ...
    def has_room(self, size_bytes: int, *, is_urgent: bool = False) -> bool: ...
    def append_nowait(
        self, records: Sequence[JournalRecord], done: Callable[[list[Location]], None]
    ) -> bool: ...
    def read(self, file_id: int, offset: int, length_bytes: int) -> bytes: ...
    def request_roll(self, done: Callable[[int], None]) -> bool: ...
    def recycle(self, file_ids: Sequence[int], done: Callable[[], None]) -> None: ...
    def statistics(self) -> JournalStatistics: ...
    async def close(self) -> None: ...


class _Generation:
    """Alive as long as somebody has places that were found before the journal's files changed."""


class DataLayout(NamedTuple):
    """Where a bookie's files are; the directories exist.

    `ledgers`: at least one; a checkpoint counts in them, so their order stays.
    """

    data: str
    journal: str
    ledgers: tuple[str, ...]


class PlannedRead(NamedTuple):
    """A planned answer and where its entries are: in the journal, or (`entry_log_count`) settled.

    `pin` keeps the journal's files from being recycled as long as this is kept.
    """

    plan: ReadPlan
    places: Sequence[EntryPlace]
    entry_log_count: int = 0
    bytes_max: int = 0
    pin: object = None

    @property
    def size_bytes(self) -> int:
        """What its entries take of the answer; at most, if they are settled."""
        if self.entry_log_count:
            return self.bytes_max
        return sum([place.location.length_bytes for place in self.places])


class ReadResult(NamedTuple):
    """Answers to a request's plans, and entries that turned out to be unreadable."""

    answers: list[ReadAnswer]
    unreadable: list[tuple[LedgerId, EntryId]]


class Storage:
    """Everything that one bookie keeps.

    Args:
        layout: where.
        fs: the disk.
        core: gets what checkpoint and replay find, and every completion.
        on_poisoned: the journal has failed; nothing is acknowledged any more.
        on_durable: the core has news in its outbox.
        make_journal: puts the journal's writer on a thread.
        now_unix_us: wall clock, for people to read in file headers.
        keeps_envelopes: whether all cookies say that there may be envelopes.
        write_formats: makes them say so, durably; blocks. May be repeated.
        journal_file_bytes: what a journal file is preallocated with.
        first_journal_file_bytes: what the first one is preallocated with; None: the same.
    """

    def __init__(
        self,
        layout: DataLayout,
        fs: FileSystem,
        core: BookieCore,
        *,
        on_poisoned: Callable[[JournalPoisoned], None],
        on_durable: Callable[[], None],
        make_journal: Callable[..., JournalPort] = Journal,
        keeps_envelopes: bool = False,
        write_formats: Callable[[], None] = lambda: None,
        now_unix_us: Callable[[], int],
        journal_file_bytes: int = JOURNAL_FILE_BYTES,
        first_journal_file_bytes: int | None = None,
    ) -> None:
        self.layout = layout
        self.index = EntryIndex()
        self.replayed = ReplayResult()
        self.entry_log = EntryLog(fs, layout.ledgers, core.incarnation, core.is_alive)
        self.fs = fs
        self.core = core
        self._on_poisoned = on_poisoned
        self._on_durable = on_durable
        self._make_journal = make_journal
        self.keeps_envelopes = self.entry_log.keeps_envelopes = keeps_envelopes
        """Whether records with envelopes may be queued: an older version refuses the disks."""
        self._write_formats = write_formats
        self._now_unix_us = now_unix_us
        self._journal_file_bytes = journal_file_bytes
        self._first_journal_file_bytes = first_journal_file_bytes
        self.checkpoint = Checkpoint(0, core.incarnation, 0, (), 1, _NO_STATE)
        """The one in force, without its state."""
        self.lost_files: list[str] = []
        """Entry log files that could not be opened at start: what they held is UNKNOWN."""
        self.writer: JournalWriter
        self._journal: JournalPort | None = None
        self._generation = _Generation()
        self._queued_bytes = 0
        self._synced_count = 0
        self._synced_us = 0

    # --- Start and stop --------------------------------------------------------------------------

    def replay(self) -> None:
        """Checkpoint, entry log and journal into core and indexes; blocks, for a thread of its own.

        Raises:
            CheckpointDamaged, CheckpointMismatch, CheckpointFormatError: as `secure_checkpoint`.
            JournalMismatch, JournalFormatError, JournalPoisoned, OSError: as `open_journal`.
        """
        for directory in (self.layout.journal, *self.layout.ledgers):
            self.fs.make_directory(directory)
        found = secure_checkpoint(self.fs, self.layout.data, self.core.incarnation)
        if found is None:
            found = self._begin_checkpoints()
        if found.has_envelopes:
            self.secure_format()
        self.core.restore(found.state)
        self.checkpoint = found._replace(state=_NO_STATE)
        for ref in found.entry_log_files:
            self._open_entry_log_file(ref)
        self.entry_log.remove_leftovers(self.checkpoint.entry_log_files)
        self.writer, self.replayed = open_journal(
            self.layout.journal,
            self.fs,
            self.core.incarnation,
            self._on_record,
            now_unix_us=self._now_unix_us,
            file_bytes=self._journal_file_bytes,
            first_file_bytes=self._first_journal_file_bytes,
            covered_file_id=self.checkpoint.covered_file_id,
        )
        for damage in self.replayed.damages:
            self._on_damage(damage)
        self._journal = self._make_journal(self.writer, on_poisoned=self._on_poisoned)

    def start(self) -> None:
        """Take records from now on; completions come to the running event loop."""
        self._running().start()

    async def close(self) -> None:
        """Write what waits and the end mark, close the files.

        Raises:
            JournalPoisoned: the stop is not a clean one.
        """
        await self._running().close()
        self.entry_log.close()

    def _begin_checkpoints(self) -> Checkpoint:
        """The first start writes one, so that from then on there always is one to be found."""
        names = [name for path in self.layout.ledgers for name in self.fs.list_names(path)]
        if any(name.endswith(".de") for name in names):
            raise CheckpointDamaged("there are entry log files, and no checkpoint that names them")
        first = self.checkpoint._replace(number=1)
        write_checkpoint(self.fs, self.layout.data, first)
        return first

    def _open_entry_log_file(self, ref: EntryLogFileRef) -> None:
        """Put a file in force; an index that is not the checkpoint's is made anew.

        A data file that is missing is not: what it held is UNKNOWN when it is asked for (R15).
        """
        try:
            try:
                self.entry_log.add(self.entry_log.open_file(ref))
            except IndexDamaged:
                self.rebuild_index(ref)
        except OSError as error:
            self.lost_files.append(f"{self.entry_log.path_of(*ref[:2])}: {error}")

    def _on_record(self, item: ReplayedRecord) -> None:
        header = item.header
        log_id, epoch = log_of(header.ledger_id), epoch_of(header.ledger_id)
        match header.kind:
            case RecordKind.ADD | RecordKind.STORE:
                if header.kind is RecordKind.STORE:
                    self.secure_format()  # the cookies were, unless somebody put back older ones
                if self.core.is_alive(header.ledger_id):
                    self.core.on_recovered_add(
                        header.ledger_id,
                        header.entry_id,
                        header.lac,
                        read_entry_info(item.body).crc,
                        is_recovery=header.is_recovery,
                    )
                    self.index.put(header.ledger_id, header.entry_id, item.location, item.content)
            case RecordKind.SEAL:
                self.core.on_recovered_seal(log_id, epoch)
            case RecordKind.LAC:
                self.core.on_recovered_lac(header.ledger_id, header.lac)
            case RecordKind.TOMBSTONE:
                known = self.core.list_ledgers_of(log_id)
                self.core.on_recovered_drop(log_id, epoch, header.is_all_below)
                self._drop_dead(known)
            case _:
                pass  # about the journal itself, or of a kind that this bookie does not write

    def _on_damage(self, damage: Damage) -> None:
        match damage.kind:
            case DamageKind.RECORD:
                header = damage.header
                if header is None or not header.kind.holds_entry:
                    self.core.on_recovered_damage()
                    return
                self.core.on_recovered_damage(header.ledger_id, header.entry_id)
                if not header.is_recovery:  # the header is intact, and so is the LAC in it
                    self.core.on_recovered_lac(header.ledger_id, header.lac)
            case DamageKind.RANGE | DamageKind.FILE:
                self.core.on_recovered_damage()
            case DamageKind.FILE_HEADER | DamageKind.ENVELOPE:
                pass  # no record stood there, or its entry is intact
            case _:
                assert_never(damage.kind)

    def secure_format(self) -> None:
        """Have every cookie say that there may be envelopes; blocks, for a thread.

        Raises:
            OSError: a cookie cannot be written; it may be tried again.
        """
        if not self.keeps_envelopes:
            self._write_formats()
            self.keeps_envelopes = self.entry_log.keeps_envelopes = True

    # --- Records into the journal ----------------------------------------------------------------

    def has_room(self, size_bytes: int, *, is_urgent: bool) -> bool:
        """Whether the journal takes so much more; counts at least what the journal itself does."""
        bound = JOURNAL_QUEUE_BYTES_MAX
        if is_urgent:
            bound += bound // URGENT_RATIO
        is_bounded = self._queued_bytes == 0 or self._queued_bytes + size_bytes <= bound
        return is_bounded and self._running().has_room(size_bytes, is_urgent=is_urgent)

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
        records = [_encode(record, adds, entries) for record in persist.records]
        assert self.keeps_envelopes or not any(r.envelope for r in records), "cookies come first"
        size = sum([record.size_bytes for record in records])
        contents = [content_of(record.envelope) for record in records]

        def on_done(locations: list[Location]) -> None:
            self._change_queued(-size)
            self._on_committed(persist, locations, contents)

        # The room was asked for before the core accepted anything.
        if not self._running().append_nowait(records, on_done):
            return False
        self._change_queued(size)
        return True

    def _on_committed(
        self, persist: Persist, locations: Sequence[Location], contents: Sequence[bytes]
    ) -> None:
        entry_count = entry_bytes = 0
        dropped: list[LedgerId] = []
        places = zip(persist.records, locations, contents, strict=True)
        for record, location, content in places:
            if isinstance(record, AddRecord):
                self.index.put(record.ledger_id, record.entry_id, location, content)
                entry_count += 1
                entry_bytes += location.length_bytes
            elif isinstance(record, DropRecord):
                dropped += self.core.list_ledgers_of(record.log_id)
        ADD_ENTRIES.inc(entry_count)
        ADD_BYTES.inc(entry_bytes)
        self._observe_syncs()
        self.core.on_persisted(persist.token)
        self._drop_dead(dropped)
        self._on_durable()

    def _drop_dead(self, ledger_ids: Sequence[LedgerId]) -> None:
        """Of the ledgers that were known before a drop, let go of those that are gone."""
        for ledger_id in ledger_ids:
            if not self.core.is_alive(ledger_id):
                self.index.drop(ledger_id)
                self.entry_log.drop(ledger_id)

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

    def select(self, plans: Sequence[ReadPlan]) -> tuple[list[PlannedRead], bool]:
        """Find the places of what is planned.

        A reading ends where its entries go from the journal to the entry log or back: the rest is
        asked for again. An answer frame has a bound; a range that finds it used up is OVERLOADED.

        Returns:
            What to give to `read`, and whether that is short enough to be done on the event loop.
        """
        readings = []
        total = entry_count = 0
        is_short = True
        for plan in plans:
            reading = PlannedRead(plan, ())
            if plan.entry_count:
                left = READ_BYTES_MAX - total
                bytes_max = left if plan.headers_only else min(plan.bytes_max, left)
                reading = self._find(plan, bytes_max)
                if total and reading.size_bytes > left:
                    reading = PlannedRead(plan._replace(status=BookieStatus.OVERLOADED), ())
                total += reading.size_bytes
                entry_count += len(reading.places)
                is_short = is_short and not reading.entry_log_count
            readings.append(reading)
        is_short = is_short and total <= INLINE_READ_BYTES_MAX
        return readings, is_short and entry_count <= INLINE_READ_ENTRY_COUNT_MAX

    def _find(self, plan: ReadPlan, bytes_max: int) -> PlannedRead:
        places = self.index.select(plan.ledger_id, plan.first, plan.entry_count, bytes_max)
        if places:
            return PlannedRead(plan, places, pin=self._generation)
        last = EntryId(plan.first + plan.entry_count - 1)
        count = self.core.count_settled(plan.ledger_id, plan.first, last)
        return PlannedRead(plan, (), count, bytes_max)

    def read(self, readings: Sequence[PlannedRead]) -> ReadResult:
        """Fetch and check the entries; on any thread."""
        result = ReadResult([], [])
        for reading in readings:
            plan = reading.plan
            entries, is_damaged = self._fetch(reading)
            status = plan.status
            if is_damaged:
                bad = EntryId(plan.first + len(entries))
                result.unreadable.append((plan.ledger_id, bad))
            if plan.entry_count and not entries and status is BookieStatus.OK:
                status = BookieStatus.UNKNOWN
            if plan.headers_only:
                entries = [(entry_id, entry[:HEADER_BYTES]) for entry_id, entry in entries]
            answer = ReadAnswer(status, plan.lac, plan.highest, plan.is_sealed, entries)
            result.answers.append(answer)
        return result

    def _fetch(self, reading: PlannedRead) -> tuple[list[tuple[EntryId, bytes | memoryview]], bool]:
        """The entries up to the first that cannot be had, and whether that one is damaged."""
        plan = reading.plan
        entries: list[tuple[EntryId, bytes | memoryview]] = []
        if reading.entry_log_count:
            found = self.entry_log.read(
                plan.ledger_id, plan.first, reading.entry_log_count, reading.bytes_max
            )
            entries += found.entries
            READ_BYTES.inc(sum([len(entry) for _, entry in entries]))
            return entries, found.fault is ReadFault.UNREADABLE
        for entry_id, location in reading.places:
            entry = self._fetch_hot(plan.ledger_id, entry_id, location)
            if entry is None:
                return entries, True
            entries.append((entry_id, entry))
        return entries, False

    def identify(
        self, reading: PlannedRead
    ) -> tuple[list[tuple[EntryId, int | None, int]], ReadFault | None]:
        """As `EntryLog.identify`, of what was selected, wherever it lies; on any thread."""
        plan = reading.plan
        if reading.entry_log_count:
            return self.entry_log.identify(
                plan.ledger_id, plan.first, reading.entry_log_count, reading.bytes_max
            )
        return [
            (
                place.entry_id,
                self.identify_hot(plan.ledger_id, place),
                place.location.length_bytes,
            )
            for place in reading.places
        ], None

    def identify_hot(self, ledger_id: LedgerId, place: EntryPlace) -> int | None:
        """Identity of an entry in the journal as it is on the disk itself; None: it is damaged."""
        location = place.location
        file = self.writer.files.get(location.file_id)
        try:
            assert file is not None, f"{location} is pinned"
            info = check_entry(file.pread_direct(location.length_bytes, location.offset))
        except (OSError, EntryError):
            return None
        return info.crc if info[:2] == (ledger_id, place.entry_id) else None

    def _fetch_hot(
        self, ledger_id: LedgerId, entry_id: EntryId, location: Location
    ) -> bytes | None:
        try:
            entry = self._running().read(*location)
            info = check_entry(entry)
        except (OSError, EntryError):
            return None
        if (info.ledger_id, info.entry_id) != (ledger_id, entry_id):
            return None
        READ_BYTES.inc(len(entry))
        return entry

    # --- Envelopes -------------------------------------------------------------------------------

    def envelope_content(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Content of the envelope of a hot entry; None: it has none, or is not hot."""
        runs = self.index.list_contents(ledger_id, entry_id, entry_id)
        return runs[0].content if runs else None

    def hot_contents(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> list[ContentRun]:
        """Contents of the envelopes of hot entries, as runs; in none are those without one."""
        return self.index.list_contents(ledger_id, first, last)

    def settled_contents(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId
    ) -> list[ContentRun]:
        """As `hot_contents`, of what the entry log holds; on any thread, blocks for the disk.

        Entries that are hot may be in it: what is hot counts.
        """
        return self.entry_log.list_contents(ledger_id, first, last)

    @property
    def entry_bytes(self) -> int:
        """Bytes of entries, hot and in the entry log; of the latter also what is not alive any
        more."""
        entry_log = self.entry_log.statistics()
        return int(self.index.statistics()["entry_bytes"]) + int(entry_log["data_bytes"])

    # --- What upkeep asks ------------------------------------------------------------------------

    def roll(self, done: Callable[[int], None]) -> bool:
        """Have the active journal file sealed; `done` gets the last sealed file's id, 0: none."""
        return self._running().request_roll(done)

    def give_up(self, file_ids: Sequence[int], done: Callable[[], None]) -> None:
        """Recycle journal files that the checkpoint covers, once nobody reads from them."""
        journal = self._running()
        old, self._generation = self._generation, _Generation()
        weakref.finalize(old, journal.recycle, tuple(file_ids), done).atexit = False

    def rebuild_index(self, ref: EntryLogFileRef) -> None:
        """Make an entry log file's index anew and put it in force; blocks, for a thread.

        Raises:
            OSError, JournalFormatError, EntryLogFormatError: as `EntryLog.rebuild_index`.
        """
        rebuilt = self.entry_log.rebuild_index(ref)
        fresh = ref_of(rebuilt.finished, ref.directory_index)
        self.entry_log.add(self.entry_log.open_file(fresh))
        refs = tuple(fresh if known == ref else known for known in self.checkpoint.entry_log_files)
        self.checkpoint = self.checkpoint._replace(entry_log_files=refs)

    def damaged_ledgers(self) -> list[LedgerId]:
        """Ledgers of which something is known to be unreadable."""
        return [
            ledger_id
            for ledger_id, ledger in self.core.list_ledgers()
            if ledger.unknown or ledger.is_doubtful
        ]

    def scrub_units(self) -> Iterator[HotPart | EntryLogPart]:
        """Everything that is stored, in pieces of some MiB; a pass sees what is there by then."""
        for ledger_id in self.index.list_ledgers():
            for places in self.index.split(ledger_id, PART_BYTES):
                yield HotPart(self, ledger_id, places, self._generation)
        for file in self.entry_log.list_files():
            for part in file.scrub_units(partial(self.entry_log.is_newest, file)):
                yield EntryLogPart(self, part)

    def _running(self) -> JournalPort:
        assert self._journal is not None, "replay comes first"
        return self._journal

    def statistics(self) -> dict[str, Any]:
        """The journal's, the indexes' and the queue's."""
        return {
            "journal": self.journal_state(),
            "index": self.index.statistics(),
            "shelf": self.entry_log.statistics(),
            "checkpoint_number": self.checkpoint.number,
            "covered_file_id": self.checkpoint.covered_file_id,
            "lost_files": self.lost_files,
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
            "sealed_file_ids": self.writer.sealed_file_ids,
            "replay": {
                "was_clean": replayed.is_clean,
                "record_count": replayed.record_count,
                "replayed_bytes": replayed.replayed_bytes,
                "torn_bytes": replayed.torn_bytes,
                "damage_count": len(replayed.damages),
                "duration_us": replayed.duration_us,
            },
        }


class HotPart(NamedTuple):
    """Entries that lie in the journal, for the scrub."""

    storage: Storage
    ledger_id: LedgerId
    places: Sequence[EntryPlace]
    pin: object

    @property
    def size_bytes(self) -> int:
        """What verifying reads."""
        return sum([place.location.length_bytes for place in self.places])

    def verify(self) -> list[tuple[LedgerId, EntryId]]:
        """The entries that are damaged; blocks for the disk, past the page cache."""
        return [
            (self.ledger_id, place.entry_id)
            for place in self.places
            if self.storage.identify_hot(self.ledger_id, place) is None
        ]

    def is_in_force(self, ledger_id: LedgerId, entry_id: EntryId) -> bool:
        """Whether the entry is still read from where it was verified."""
        places = self.storage.index.select(ledger_id, entry_id, 1, 0)
        return bool(places) and places[0] in self.places


class EntryLogPart(NamedTuple):
    """A part of an entry log file, for the scrub."""

    storage: Storage
    part: IndexPart | RecordPart

    @property
    def size_bytes(self) -> int:
        """What verifying reads."""
        return self.part.size_bytes

    def verify(self) -> Sequence[tuple[LedgerId, EntryId]]:
        """As `IndexPart` and `RecordPart` have it."""
        return self.part.verify()

    def is_in_force(self, ledger_id: LedgerId, entry_id: EntryId) -> bool:
        """Whether the entry is read from the entry log: a mended one is hot, beside the old
        copy."""
        return self.storage.core.count_settled(ledger_id, entry_id, entry_id) > 0


def _encode(record: Record, adds: Sequence[Add], entries: Sequence[bytes]) -> JournalRecord:
    match record:
        case AddRecord(row=row, ledger_id=ledger_id, entry_id=entry_id, lac=lac):
            add = adds[row]
            kind = RecordKind.STORE if add.envelope else RecordKind.ADD
            return JournalRecord(
                kind, ledger_id, entry_id, lac, entries[row], add.service, add.wave,
                add.is_recovery, envelope=bytes(add.envelope),
            )  # fmt: skip
        case SealRecord(log_id=log_id, epoch=epoch):
            return JournalRecord(RecordKind.SEAL, ledger_of(log_id, epoch))
        case LacRecord(ledger_id=ledger_id, lac=lac):
            return JournalRecord(RecordKind.LAC, ledger_id, lac=lac)
        case DropRecord(log_id=log_id, epoch=epoch, is_all_below=is_all_below):
            ledger_id = ledger_of(log_id, epoch)
            return JournalRecord(RecordKind.TOMBSTONE, ledger_id, is_all_below=is_all_below)
        case _:
            assert_never(record)
