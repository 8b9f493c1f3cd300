"""`duramen-bookie fsck --rebuild-index`: indexes that are damaged are made anew from their data.

An index holds nothing of its own, so from an intact data file it comes out as it was, and the
checkpoint needs no change. Where the data is damaged too, the new index lacks those entries, and a
new checkpoint names it: the entries stay promised, so that they are answered UNKNOWN and fetched
from other bookies, never "no such entry" (R15).

Called by `commands`, before the check. Source: docs/bookie.md "Tools for a stopped bookie",
docs/protocol/entry-log.md "Checkpoint".
"""

from __future__ import annotations

from duramen.wire.disk.checkpoint_format import EntryLogFileRef
from duramen.wire.disk.entry_log_format import EntryLogFormatError
from duramen.wire.disk.journal_format import JournalFormatError
from duramen_bookie.checkpoint import CheckpointDamaged, write_checkpoint
from duramen_bookie.entry_log.data_file import index_path
from duramen_bookie.entry_log.entry_log import EntryLog, ref_of
from duramen_bookie.entry_log.index_file import IndexDamaged, IndexFile
from duramen_bookie.offline.stopped_bookie import CannotTell, StoppedBookie


def rebuild_indexes(bookie: StoppedBookie) -> list[str]:
    """Make every damaged index anew; returns their paths.

    Args:
        bookie: opened for writing.

    Raises:
        CannotTell: a file is another bookie's, or of a newer version.
        OSError: the disk is full or failed; what was made anew up to then is whole.
    """
    try:
        checkpoint = bookie.read_checkpoint()
    except CheckpointDamaged:
        return []  # which files are in force is not known: the check reports it
    if checkpoint is None:
        return []
    entry_log = EntryLog(
        bookie.fs, bookie.ledger_directories, bookie.incarnation, lambda _ledger: True
    )
    refs: list[EntryLogFileRef] = []
    paths: list[str] = []
    for ref in checkpoint.entry_log_files:
        path = entry_log.path_of(ref.file_id, ref.directory_index)
        if not bookie.fs.exists(path) or _is_whole(bookie, path, ref):
            refs.append(ref)
            continue
        try:
            rebuilt = entry_log.rebuild_index(ref)
        except (JournalFormatError, EntryLogFormatError) as error:
            raise CannotTell(f"{path}: {error}") from error
        refs.append(ref_of(rebuilt.finished, ref.directory_index))
        paths.append(index_path(path))
    if tuple(refs) != checkpoint.entry_log_files:
        number = checkpoint.number + 1
        new = checkpoint._replace(number=number, entry_log_files=tuple(refs))
        write_checkpoint(bookie.fs, bookie.data_directory, new)
    return paths


def _is_whole(bookie: StoppedBookie, path: str, ref: EntryLogFileRef) -> bool:
    try:
        index = IndexFile.open(bookie.fs, index_path(path), bookie.incarnation)
    except IndexDamaged:
        return False
    except EntryLogFormatError as error:
        raise CannotTell(f"{index_path(path)}: {error}") from error
    try:
        index.verify()
    except IndexDamaged:
        return False
    finally:
        index.close()
    return (index.header.file_id, index.crc) == (ref.file_id, ref.index_crc)
