"""The journal alone as an engine: writing, replay and recycling, with the plainest index above.

What replay delivers and what commits answer is kept in dictionaries, as the bookie's core and index
keep it. In the place of entry log and checkpoint stands one file with everything that was settled
and the id of the last journal file that it covers: enough to retire and recycle journal files. It
is replaced as a checkpoint is, by a synced file and a rename.

The one place of `tests/crash` that knows the journal's modules. Used by `test_crash_states`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from duramen.ids import NOTHING, EntryId, Epoch, Incarnation, LedgerId, LogId, epoch_of, log_of
from duramen.wire.disk.journal_format import JournalRecord, Location, RecordKind
from duramen.wire.entry import EntryError, check_entry
from duramen_bookie.journal.findings import ReplayedRecord
from duramen_bookie.journal.names import file_name, generation_name, spare_name
from duramen_bookie.journal.replay import open_journal
from tests.crash.disk import Disk
from tests.crash.promises import Addition, Key, View

INCARNATION = Incarnation("0123456789abcdef0123456789abcdef")
DIRECTORY = "data/journal"
SETTLED = "data/settled"
FILE_BYTES = 32 << 10
"""Small, so that a workload of some entries fills several."""
FIRST_FILE_BYTES = 16 << 10
"""Of the first ones: they grow to the usual size on the way."""


class JournalEngine:
    """See `runs.Engine`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._places: dict[Key, Location] = {}
        self._settled: dict[Key, bytes] = {}
        self._seals: dict[LogId, int] = {}
        self._lacs: dict[LedgerId, EntryId] = {}
        self._gone: set[LedgerId] = set()
        self._writer, result = open_journal(
            DIRECTORY, disk, INCARNATION, self._on_record, now_unix_us=lambda: 0,
            file_bytes=FILE_BYTES, first_file_bytes=FIRST_FILE_BYTES,
            covered_file_id=self._read_settled(),
        )  # fmt: skip
        self._damages = [str(damage) for damage in result.damages]

    # --- Requests --------------------------------------------------------------------------------

    def add(self, adds: Sequence[Addition]) -> None:
        self._commit(
            [
                JournalRecord(
                    RecordKind.ADD, add.ledger_id, add.entry_id, add.lac, add.body,
                    is_recovery=add.is_recovery,
                )
                for add in adds
            ]
        )  # fmt: skip

    def seal(self, log_id: LogId, epoch: Epoch) -> None:
        self._commit([JournalRecord(RecordKind.SEAL, LedgerId(log_id << 32 | epoch))])

    def lac(self, ledger_id: LedgerId, lac: EntryId) -> None:
        self._commit([JournalRecord(RecordKind.LAC, ledger_id, lac=lac)])

    def drop(self, log_id: LogId, epoch: Epoch) -> None:
        self._commit([JournalRecord(RecordKind.TOMBSTONE, LedgerId(log_id << 32 | epoch))])

    # --- Upkeep ----------------------------------------------------------------------------------

    def idle(self) -> None:
        if self._writer.owes_mark:
            self._writer.write_mark()
        if self._writer.wants_next:
            self._writer.prepare_next()

    def settle(self) -> None:
        covered_file_id = self._writer.roll()
        covered = [key for key, at in self._places.items() if at.file_id <= covered_file_id]
        self._settled.update({key: self._writer.read(self._places[key]) for key in covered})
        self._write_settled(covered_file_id)
        for key in covered:
            del self._places[key]
        self._writer.recycle([f for f in self._writer.sealed_file_ids if f <= covered_file_id])

    def compact(self) -> None:
        raise AssertionError("the journal alone has no entry log")

    # --- Ends ------------------------------------------------------------------------------------

    def stop(self) -> None:
        self._writer.write_end()
        self._writer.close()

    def abandon(self) -> None:
        self._writer.files.clear()

    # --- What it shows ---------------------------------------------------------------------------

    def look(self) -> View:
        view = View({}, dict(self._seals), {}, set(self._gone), set(), self._damages)
        view.lacs = {x: lac for x, lac in self._lacs.items() if x not in self._gone}
        for key in self._settled.keys() | self._places.keys():
            if key[0] in self._gone:
                continue
            body = self._read(key)
            if body is None:
                view.unknown.add(key)
            else:
                view.entries[key] = body
        return view

    def list_names(self) -> set[str]:
        supply = self._writer.supply
        names = {name for id_ in self._writer.files for name in _names_of(id_)}
        names |= {spare_name(id_) for id_ in supply._spare_ids}
        if supply.next is not None:
            names |= _names_of(supply.next.file_id)
        return {f"{DIRECTORY}/{name}" for name in names} | {SETTLED}

    # --- Records ---------------------------------------------------------------------------------

    def _commit(self, records: Sequence[JournalRecord]) -> None:
        locations = self._writer.commit(records)
        for record, location in zip(records, locations, strict=True):
            self._note(record, location)

    def _on_record(self, item: ReplayedRecord) -> None:
        self._note(item.header.record(item.body), item.location)

    def _note(self, record: JournalRecord, location: Location) -> None:
        ledger_id = record.ledger_id
        match record.kind:
            case RecordKind.ADD:
                self._places[ledger_id, record.entry_id] = location
                if not record.is_recovery:
                    self._raise_lac(ledger_id, record.lac)
            case RecordKind.SEAL:
                log_id = log_of(ledger_id)
                self._seals[log_id] = max(self._seals.get(log_id, 0), epoch_of(ledger_id))
            case RecordKind.LAC:
                self._raise_lac(ledger_id, record.lac)
            case RecordKind.TOMBSTONE:
                self._gone.add(ledger_id)
            case _:
                raise AssertionError(f"replay delivered {record.kind}")

    def _raise_lac(self, ledger_id: LedgerId, lac: EntryId) -> None:
        self._lacs[ledger_id] = max(self._lacs.get(ledger_id, NOTHING), lac)

    def _read(self, key: Key) -> bytes | None:
        location = self._places.get(key)
        try:
            body = self._writer.read(location) if location else self._settled[key]
            info = check_entry(body)
        except (OSError, EntryError):
            return None
        return body if (info.ledger_id, info.entry_id) == key else None

    # --- In the place of entry log and checkpoint ------------------------------------------------

    def _write_settled(self, covered_file_id: int) -> None:
        document: dict[str, Any] = {
            "covered": covered_file_id,
            "entries": [[*key, body.hex()] for key, body in self._settled.items()],
            "seals": list(self._seals.items()),
            "lacs": list(self._lacs.items()),
            "gone": list(self._gone),
        }
        text = json.dumps(document).encode()
        data = zlib.crc32(text).to_bytes(4, "little") + text
        new = f"{SETTLED}.new"
        if self._disk.exists(new):
            self._disk.remove(new)
        file = self._disk.open(new, is_new=True)
        file.pwritev([data], 0)
        file.fsync()
        file.close()
        self._disk.rename(new, SETTLED)
        self._disk.fsync_directory("data")

    def _read_settled(self) -> int:
        if self._disk.exists(f"{SETTLED}.new"):
            self._disk.remove(f"{SETTLED}.new")
        if not self._disk.exists(SETTLED):
            return 0
        # A kill may have come before the name was durable; what it covers is retired from now on.
        self._disk.fsync_directory("data")
        file = self._disk.open(SETTLED)
        data = file.pread(file.size_bytes(), 0)
        file.close()
        assert zlib.crc32(data[4:]).to_bytes(4, "little") == data[:4], "the settled file is torn"
        document = json.loads(data[4:])
        for ledger_id, entry_id, body in document["entries"]:
            self._settled[ledger_id, entry_id] = bytes.fromhex(body)
        self._seals.update((log_id, epoch) for log_id, epoch in document["seals"])
        self._lacs.update((ledger_id, lac) for ledger_id, lac in document["lacs"])
        self._gone.update(document["gone"])
        return int(document["covered"])


def _names_of(file_id: int) -> set[str]:
    return {file_name(file_id), generation_name(file_id)}
