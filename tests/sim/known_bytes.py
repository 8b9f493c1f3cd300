"""What production code makes of bytes that many look at, made once in a run: entries and nodes.

Every replica checks an entry, every reader takes it apart, every process reads the same nodes. The
bytes never change and what is made of them is a value, so it is kept, by the bytes themselves: a
bit that flipped makes other bytes, which are looked at on their own. Only functions of nothing but
their arguments are here; what raises is not kept. A run begins without any (`forget`), so that it
never sees what was made before a mutant or by another run.

Called by `processes`, `reading`, and by production modules that `clock` binds for a run.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

from duramen.ids import Dlsn, Epoch
from duramen.wire import metadata_json
from duramen.wire.entry import check_entry
from duramen.wire.read_answers import place_batches

_ENTRY_COUNT: Final = 1024
"""Most looks at an entry come within a second of its making; an entry has a few KiB at most."""

_NODE_COUNT: Final = 256

know_entry = lru_cache(_ENTRY_COUNT)(check_entry)
_know_log = lru_cache(_NODE_COUNT)(metadata_json.read_log)
_know_segment = lru_cache(_NODE_COUNT)(metadata_json.read_segment)
_know_any_segment = lru_cache(_NODE_COUNT)(metadata_json.read_any_segment)

NODE_READERS: Final = {
    "read_log": _know_log,
    "read_segment": _know_segment,
    "read_any_segment": _know_any_segment,
}


@lru_cache(_ENTRY_COUNT)
def know_records(
    entry: bytes, epoch: Epoch, start_seq_num: int
) -> tuple[tuple[Dlsn, int, bytes], ...]:
    """The records of an entry as a reader shows them: position, sequence number, body."""
    return tuple(
        (Dlsn(epoch, placed.dlsn.entry, placed.dlsn.slot + at), placed.seq_num + at, body)
        for placed in place_batches(entry, epoch, start_seq_num)
        for at, body in enumerate(placed.decode().bodies)
    )


def list_node_readers() -> list[tuple[ModuleType, str, Any]]:
    """Who has a function of `NODE_READERS` by name: module, name, what to bind there."""
    return [
        (module, name, known)
        for module_name, module in sorted(sys.modules.items())
        if module_name.startswith(("duramen", "tests.sim")) and module is not metadata_json
        for name, known in NODE_READERS.items()
        if vars(module).get(name) is vars(metadata_json)[name]
    ]


def forget() -> None:
    """A run begins."""
    for known in (know_entry, know_records, *NODE_READERS.values()):
        known.cache_clear()
