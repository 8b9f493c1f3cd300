"""Opens the files that a manifest names, in a cold store.

Called by verify, compact, restore and export.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from duramen.runtime.cold import ColdStore
from duramen.wire.cold.manifest import FilePart, Manifest
from duramen.wire.cold.part_reader import PartReader


def open_part(store: ColdStore, manifest: Manifest, part: FilePart) -> PartReader:
    """A reader of one file, as far as it is the segment's; its reads block."""
    return PartReader(
        partial(store.read, manifest.path_of(part)),
        part,
        ledger_id=manifest.ledger_id,
        start_seq_num=manifest.start_seq_num,
    )


def open_parts(store: ColdStore, manifest: Manifest) -> Iterator[PartReader]:
    """Readers of all files, in the order of their entries."""
    for part in manifest.files:
        yield open_part(store, manifest, part)
