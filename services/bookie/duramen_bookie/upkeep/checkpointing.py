"""What a transfer begins with and ends in: the decision what to copy, the checkpoint, the switch.

The order is fixed: new files durable → checkpoint durable → read from the new files → let go of the
old ones. Before the checkpoint nothing has changed, after it nothing of the old is needed; a crash
in between leaves files that the next start removes. What is not said to be for a thread is short
and on the event loop.

Not here: copying (`transfer`), when and how fast (`settling`, `compaction`). Called by them and by
the simulator. Source: docs/protocol/entry-log.md "Checkpoint".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from duramen.ids import EntryId, LedgerId
from duramen.units import KIB
from duramen.wire.disk.checkpoint_format import Checkpoint
from duramen.wire.disk.entry_log_format import ROW_BYTES
from duramen.wire.disk.journal_format import seed_of
from duramen_bookie.entry_log.entry_log_file import EntryLogFile
from duramen_bookie.storage import Storage
from duramen_bookie.upkeep.transfer import Source, Transfer, read_entry_log_file, read_journal

_ROW_ROOM_BYTES: Final = 2 * ROW_BYTES
"""What an entry takes of an index file, and a ledger of its directory."""

_FRAME_ROOM_BYTES: Final = 256 * KIB
"""What files take beside entries and rows, and a checkpoint of some thousand ledgers."""


def begin_settling(storage: Storage, covered_file_id: int) -> Transfer:
    """Copy what lies in journal files up to one that is sealed.

    Every commit of those files has been reported to the core: the roll was, which came later.
    """
    source = read_journal(
        storage.index.copy_places(),
        covered_file_id,
        storage.writer.files,
        seed_of(storage.core.incarnation),
    )
    return _begin(storage, source, covered_file_id, ())


def begin_compaction(storage: Storage, file: EntryLogFile) -> Transfer:
    """Copy what is alive of one entry log file."""
    source = read_entry_log_file(file, storage.entry_log)
    return _begin(storage, source, storage.checkpoint.covered_file_id, (file.file_id,))


def has_room(storage: Storage, entry_count: int, size_bytes: int) -> bool:
    """Whether so much can be copied: trying in vain would take the last space there is, from seals
    and recovery, until it fails.

    Args:
        size_bytes: of the entries' records, at most.
    """
    needed_bytes = size_bytes + entry_count * _ROW_ROOM_BYTES + _FRAME_ROOM_BYTES
    return max(_free_bytes(storage)) >= needed_bytes


def next_checkpoint(storage: Storage, transfer: Transfer) -> Checkpoint:
    """What is to be durable before the transfer is put in force; all of it was copied.

    What could not be copied is UNKNOWN from now on, unless a newer copy of it came meanwhile.
    """
    for ledger_id, entry_id in transfer.damaged:
        if _is_superseded(storage, transfer, ledger_id, entry_id):
            continue
        storage.core.on_unreadable(ledger_id, entry_id)
        storage.index.forget(ledger_id, [entry_id])
    last = storage.checkpoint
    kept = [ref for ref in last.entry_log_files if ref.file_id not in transfer.replaced]
    return Checkpoint(
        last.number + 1,
        storage.core.incarnation,
        transfer.covered_file_id,
        (*kept, *transfer.files),
        transfer.next_file_id,
        storage.core.snapshot(transfer.moved),
        has_envelopes=storage.keeps_envelopes,
    )


def add_files(storage: Storage, transfer: Transfer) -> None:
    """The checkpoint is durable: the new files are asked too from now on; for a thread.

    Raises:
        IndexDamaged, OSError: one cannot be opened; nothing may be let go of.
    """
    for ref in transfer.files:
        storage.entry_log.add(storage.entry_log.open_file(ref))


def switch(storage: Storage, transfer: Transfer, on_recycled: Callable[[], None]) -> None:
    """The new files are in force: what was hot is settled, and the journal gets its files back.

    What was added again meanwhile stays where it is now: the newer copy counts.
    """
    for ledger_id, moved in transfer.moved.items():
        newer = storage.index.list_newer(ledger_id, transfer.covered_file_id)
        entry_ids = [entry_id for entry_id in moved if entry_id not in newer] if newer else moved
        storage.core.on_settled(ledger_id, entry_ids)
        storage.index.forget(ledger_id, entry_ids)
        storage.index.renew_contents(ledger_id)
    covered = [n for n in storage.writer.sealed_file_ids if n <= transfer.covered_file_id]
    if covered:
        storage.give_up(covered, on_recycled)


def break_off(storage: Storage, transfer: Transfer) -> None:
    """The transfer will not be put in force: neither its files' ids nor its number come again.

    When writing the checkpoint failed, the next start may find it; what it names is kept then,
    until a later checkpoint is durable.
    """
    last = storage.checkpoint
    storage.checkpoint = last._replace(
        number=last.number + transfer.is_kept, next_entry_log_file_id=transfer.next_file_id
    )


def _begin(
    storage: Storage, source: Source, covered_file_id: int, replaced: Sequence[int]
) -> Transfer:
    free = _free_bytes(storage)
    return Transfer(
        storage.entry_log,
        first_file_id=storage.checkpoint.next_entry_log_file_id,
        directory_index=free.index(max(free)),
        source=source,
        covered_file_id=covered_file_id,
        replaced=replaced,
    )


def _free_bytes(storage: Storage) -> list[int]:
    """Of each ledger directory's disk."""
    return [storage.fs.usage(directory).free_bytes for directory in storage.layout.ledgers]


def _is_superseded(
    storage: Storage, transfer: Transfer, ledger_id: LedgerId, entry_id: EntryId
) -> bool:
    """Whether the journal holds the entry where the transfer did not look for it."""
    places = storage.index.select(ledger_id, entry_id, 1, 0)
    return bool(places) and places[0].location.file_id > transfer.covered_file_id
