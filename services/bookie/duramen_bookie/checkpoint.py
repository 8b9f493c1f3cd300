"""The checkpoint's two copies: the one place that says which files are in force.

    checkpoint-a, checkpoint-b     the same bytes; `….new` while one is being written

A copy is written beside the old one, synced, renamed over it, and the directory synced, one after
the other: at every moment one copy is whole, and as long as they differ, everything that the older
one names still exists. So the older one may be used when the newer one is lost. Nothing is retired
before both say the same; after a start that is `secure_checkpoint`'s duty.

Not here: the bytes (`wire.disk.checkpoint_format`), what is in force. Called by the bookie's
storage and the offline tools; all calls block. Source: docs/protocol/entry-log.md "Checkpoint".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.ids import Incarnation
from duramen.wire.disk.checkpoint_format import Checkpoint, encode_checkpoint, parse_checkpoint
from duramen_bookie.entry_log.appending import FileAppender
from duramen_bookie.file_system import FileSystem

COPY_NAMES: Final = ("checkpoint-a", "checkpoint-b")


class CheckpointDamaged(Exception):
    """There is a checkpoint, but no copy of it is whole: what is in force is not known."""


class CheckpointMismatch(Exception):
    """The checkpoint is another bookie's, or of another life of this one: start is refused."""


def write_checkpoint(fs: FileSystem, directory: str, checkpoint: Checkpoint) -> None:
    """Write both copies; when it returns, what only older checkpoints name may be retired.

    Raises:
        OSError: the disk is full or failed. Either checkpoint may be found by the next start, so
            nothing that one of them names may be retired; writing may be tried again.
    """
    data = encode_checkpoint(checkpoint)
    for name in COPY_NAMES:
        _write_copy(fs, directory, name, data)


def read_checkpoint(fs: FileSystem, directory: str, incarnation: Incarnation) -> Checkpoint | None:
    """The newest whole copy, None if there never was a checkpoint; changes nothing.

    Raises:
        CheckpointDamaged: there are copies, and none is whole.
        CheckpointMismatch: a copy is of another incarnation.
        CheckpointFormatError: intact, but of a version that is not known here.
    """
    found = _find_newest(_read_copies(fs, directory), directory, incarnation)
    return None if found is None else found.checkpoint


def secure_checkpoint(
    fs: FileSystem, directory: str, incarnation: Incarnation
) -> Checkpoint | None:
    """As `read_checkpoint`, and both copies say the same when it returns: for the start.

    What an interrupted write left beside them is removed.

    Raises:
        CheckpointDamaged, CheckpointMismatch, CheckpointFormatError: as `read_checkpoint`.
        OSError: the copy that is missing, old or damaged cannot be written anew.
    """
    copies = _read_copies(fs, directory)
    found = _find_newest(copies, directory, incarnation)
    for name in COPY_NAMES:
        _remove_new(fs, f"{directory}/{name}.new")
    if found is None:
        return None
    for name, data in copies.items():
        if data != found.data:
            _write_copy(fs, directory, name, found.data)
    return found.checkpoint


class _Found(NamedTuple):
    checkpoint: Checkpoint
    data: bytes


def _read_copies(fs: FileSystem, directory: str) -> dict[str, bytes | None]:
    """Each copy's bytes: none if it cannot be read, None if it is not there."""
    copies: dict[str, bytes | None] = {}
    for name in COPY_NAMES:
        path = f"{directory}/{name}"
        copies[name] = _read_copy(fs, path) if fs.exists(path) else None
    return copies


def _read_copy(fs: FileSystem, path: str) -> bytes:
    try:
        file = fs.open(path)
        try:
            return file.pread(file.size_bytes(), 0)
        finally:
            file.close()
    except OSError:
        return b""


def _find_newest(
    copies: dict[str, bytes | None], directory: str, incarnation: Incarnation
) -> _Found | None:
    newest: _Found | None = None
    for data in copies.values():
        checkpoint = None if data is None else parse_checkpoint(data)
        if data is None or checkpoint is None:
            continue
        if checkpoint.incarnation != incarnation:
            raise CheckpointMismatch(
                f"{directory}: checkpoint of incarnation {checkpoint.incarnation}, "
                f"not {incarnation}"
            )
        if newest is None or checkpoint.number > newest.checkpoint.number:
            newest = _Found(checkpoint, data)
    if newest is None and any(data is not None for data in copies.values()):
        raise CheckpointDamaged(f"{directory}: no copy of the checkpoint is whole")
    return newest


def _write_copy(fs: FileSystem, directory: str, name: str, data: bytes) -> None:
    new_path = f"{directory}/{name}.new"
    _remove_new(fs, new_path)
    file = FileAppender(fs, new_path)
    try:
        file.append([data])
        file.finish()
    finally:
        file.close()
    fs.rename(new_path, f"{directory}/{name}")
    fs.fsync_directory(directory)


def _remove_new(fs: FileSystem, path: str) -> None:
    if fs.exists(path):
        fs.remove(path)
