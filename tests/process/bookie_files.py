"""What lies in a running bookie's directories, against what the bookie says that it has.

`find_strays` names every file that nobody answers for, every missing one, every wrong size, and
removed files whose space is still held. Upkeep changes files all the time: ask again until none is.
Not here: what is in the files (`duramen-bookie fsck`). Used by the bookie's process tests.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from duramen.ids import Incarnation
from duramen_bookie.checkpoint import COPY_NAMES, read_checkpoint
from duramen_bookie.cookie import COOKIE, DIRTY
from duramen_bookie.file_system import PosixFileSystem
from duramen_bookie.journal.names import file_name, generation_name, list_journal
from tests.process.bookie import BookieProcess
from tests.process.open_files import iterate_open

_ITSELF: Final = frozenset({COOKIE})


def find_strays(bookie: BookieProcess, journal_file_bytes: int) -> list[str]:
    """One line each; none: files and space are accounted for."""
    incarnation = Incarnation(bookie.ask("/v1/state")["incarnation"])
    said = bookie.ask("/v1/statistics")["storage"]
    data = bookie.data_dir
    checkpoint = read_checkpoint(PosixFileSystem(), str(data), incarnation)
    assert checkpoint is not None
    stems = [f"{ref.file_id:06d}" for ref in checkpoint.entry_log_files]
    entry_log = {f"{stem}.{kind}" for stem in stems for kind in ("de", "idx")}
    return [
        *_compare(data, {*_ITSELF, *COPY_NAMES, DIRTY, "journal", "ledgers"}),
        *_compare(data / "ledgers", {*_ITSELF, *entry_log}),
        *_find_journal_strays(data / "journal", said["journal"], journal_file_bytes),
        *_compare_bytes(data / "ledgers", said["shelf"]),
        *_find_held(bookie.pid, data),
    ]


def _find_journal_strays(path: Path, said: dict[str, Any], journal_file_bytes: int) -> list[str]:
    """The next file's id is not told; sidecars belong to the files that were recycled."""
    listing = list_journal(PosixFileSystem(), str(path))
    known = {said["file_id"], *said["sealed_file_ids"]}
    ahead = [file_id for file_id in listing.file_ids if file_id > said["file_id"]]
    strays = []
    if len(ahead) != said["is_next_ready"] or {*listing.file_ids} - {*ahead} != known:
        strays.append(f"{path}: {listing.file_ids}, and the bookie says {said}")
    if len(listing.spare_ids) != said["spare_count"]:
        strays.append(f"{path}: spares {listing.spare_ids}, and the bookie says {said}")
    strays += [
        f"{path}/{generation_name(file_id)} is of no file"
        for file_id in listing.generation_ids
        if file_id not in listing.file_ids
    ]
    files = [*path.glob("*.dj")]
    names = {
        *_ITSELF, *[file.name for file in files], *map(generation_name, listing.generation_ids)
    }  # fmt: skip
    assert {file_name(file_id) for file_id in listing.file_ids} <= names
    strays += _compare(path, names)
    return strays + [
        f"{file} takes {file.stat().st_size} bytes"
        for file in files
        if file.stat().st_size != journal_file_bytes
    ]


def _compare(path: Path, expected: set[str]) -> list[str]:
    """Names that differ."""
    found = {entry.name for entry in path.iterdir()}
    strays = [f"{path}/{name} is nobody's" for name in sorted(found - expected)]
    return strays + [f"{path}/{name} is missing" for name in sorted(expected - found)]


def _compare_bytes(path: Path, said: dict[str, Any]) -> list[str]:
    found = Counter[str]()
    for file in path.iterdir():
        found[file.suffix] += file.stat().st_size
    pairs = [(found[".de"], said["data_bytes"]), (found[".idx"], said["index_bytes"])]
    return [f"{path}: {a} bytes, and the bookie says {b}" for a, b in pairs if a != b]


def _find_held(pid: int, path: Path) -> list[str]:
    """Removed files that the process has open or mapped: their space does not come back."""
    targets = [*iterate_open(pid), *Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return [t for t in targets if str(path) in t and t.endswith("(deleted)")]
