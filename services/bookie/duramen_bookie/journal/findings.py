"""What reading the journal found: records, damage, the end, and what a start has to do.

Plain values. `replay` fills them, the bookie's storage and its offline tools read them; what counts
as damage is decided in `file_pass`.

Source: docs/protocol/journal.md "Start" and "Failure", R15.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Final, NamedTuple

from duramen.wire.disk.journal_format import Cut, Location, RecordHeader
from duramen_bookie.file_system import DiskFile

ADD_HEAD_BYTES: Final = 64
"""How much of an add's body replay hands out: the entry's fixed header."""


class JournalMismatch(Exception):
    """The files belong to another bookie or to another life of this one: start is refused."""


class DamageKind(enum.Enum):
    """What is lost."""

    RECORD = "record"
    """The body of one record, whose header is intact and tells which."""
    ENVELOPE = "envelope"
    """The envelope of one record, whose entry is intact: no entry is in doubt."""
    RANGE = "range"
    """Anything that this file may have held: every absence is in doubt."""
    FILE = "file"
    """A whole file is missing: as RANGE."""
    FILE_HEADER = "file_header"
    """No record: only the file's first block."""


class Damage(NamedTuple):
    """Corruption: bytes that were durable, from `start` to before `end`, and are lost."""

    kind: DamageKind
    file_id: int
    start: int
    end: int
    header: RecordHeader | None = None


class ReplayedRecord(NamedTuple):
    """A valid record: header, where its body lies, the body (of entries only its first 64 bytes),
    and the content of its envelope, if it has a sound one."""

    header: RecordHeader
    location: Location
    body: bytes
    content: bytes = b""


class RecordSight(NamedTuple):
    """A header that verifies in its place, and what became of its body.

    `body`: its beginning. `is_intact`: all of the record verifies. `is_entry_sound`: what it is
    for does, though an envelope, or the record's checksum, may be lost.
    """

    header: RecordHeader
    body: bytes
    is_intact: bool
    is_entry_sound: bool
    content: bytes = b""


class Resume(NamedTuple):
    """Where a cleanly stopped journal is continued."""

    file_id: int
    offset: int
    previous_crc: int


@dataclasses.dataclass
class ReplayResult:
    """What was read.

    `is_clean`: the last file ends with an end mark, or there is no journal at all. `tail`: records
    of the last commit of an unclean stop, whose durability nothing proves; they were *not* given
    to `on_record` (`open_journal` does, with their copies' locations). `cut`: where it begins.
    `files`: all open files; whoever called `replay` closes them, or the writer that got them does.

    Files that no start needs any more: `covered_file_ids` (in the checkpoint; not opened),
    `unused_file_ids` (made ahead, nothing was written in them), `void_file_ids` (of a start that
    was cut off; needed until this start's own file is secured).
    """

    is_clean: bool = True
    next_commit: int = 1
    next_file_id: int = 1
    last_file_id: int = 0
    last_crc: int = 0
    damages: list[Damage] = dataclasses.field(default_factory=list)
    torn_bytes: int = 0
    record_count: int = 0
    replayed_bytes: int = 0
    duration_us: int = 0
    tail: list[ReplayedRecord] = dataclasses.field(default_factory=list)
    cut: Cut | None = None
    resume: Resume | None = None
    files: dict[int, DiskFile] = dataclasses.field(default_factory=dict)
    covered_file_ids: list[int] = dataclasses.field(default_factory=list)
    unused_file_ids: list[int] = dataclasses.field(default_factory=list)
    void_file_ids: list[int] = dataclasses.field(default_factory=list)

    def report(self, damage: Damage) -> None:
        """Take note of damage, once."""
        if damage.start < damage.end and damage not in self.damages:
            self.damages.append(damage)


OnRecord = Callable[[ReplayedRecord], None]
