"""What a reader asks of its driver, and what it gives: the effects of `core.reading.reader`.

The driver carries them out in their order. An answer to a read may come late, twice, or as a status
that the driver made of a failure. The drivers are `runtime.reading.log_reader` and the scenarios.
Source: docs/protocol/reading.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LedgerId, Member

COLD_STORE: Final = Member(BookieId(""), Incarnation(""))
"""In the place of a bookie: the archive, which holds whole CLOSED segments."""

ALL_NODES: Final = Member(BookieId(""), Incarnation("nodes"))
"""In the place of a bookie: the nodes of a flexible segment's map, read as one by a pass."""

Entry = tuple[EntryId, bytes]


@dataclass(frozen=True, slots=True)
class SendRead:
    """Ask `member` for entries `first` … `last`; answer with `on_read_answer`.

    `wait_us` > 0: a long poll for entry `first` or a LAC ≥ `wait_for`. No answer within
    `timeout_us` is a TIMEOUT.

    `beyond`: (first, last) of further runs that the member should hold, in a striped segment. They
    are no part of the answer: a driver with a cache asks for them in the same call and keeps what
    comes, so that later reads need no call of their own. What does not come says nothing.

    `bound`: of a flexible segment, up to where its nodes may show entries (R30); None: of a striped
    one.

    `is_second`: another member was asked for the same and is late, or may be: it must be this one.
    """

    read_id: int
    member: Member
    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    bytes_max: int
    timeout_us: int
    wait_us: int = 0
    wait_for: EntryId = NOTHING
    beyond: tuple[tuple[EntryId, EntryId], ...] = ()
    is_second: bool = False
    bound: EntryId | None = None

    @property
    def is_of_all_nodes(self) -> bool:
        """Whether a pass over the map reads it, and no bookie alone: never a long poll."""
        return self.member == ALL_NODES

    @property
    def is_cold(self) -> bool:
        """Whether the cold store is asked, and no bookie: never a long poll."""
        return self.member == COLD_STORE


@dataclass(frozen=True, slots=True)
class CancelRead:
    """The answer to this read is not wanted any more."""

    read_id: int


@dataclass(frozen=True, slots=True)
class WatchMetadata:
    """Read log node and segment node of `epoch` afresh, call `on_metadata`, and again on change."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class ConfirmAbsence:
    """Every node of the map said that it has none of some entries (R25): read log node and segment
    node of `epoch` after a sync that begins now, call `on_confirmed`."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `on_timer` at `at_us`; a later SetTimer replaces it."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Entries of one segment that follow strictly upon what was delivered before."""

    epoch: Epoch
    start_seq_num: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """What lies before (`epoch`, `entry`) was truncated: reading goes on there.

    `seq_num`: of the first record that is left, which lies in that entry or behind it.
    """

    epoch: Epoch
    entry: EntryId
    seq_num: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries `first` … `last` of `epoch` are not there and never will be.

    `is_lost`: they were, and a person has accepted their loss (R15), or no node of the map of a
    closed flexible segment has them (R25). Otherwise it is a hole: they were never acknowledged.
    """

    epoch: Epoch
    first: EntryId
    last: EntryId
    is_lost: bool = False


Effect = SendRead | CancelRead | WatchMetadata | ConfirmAbsence | SetTimer | Deliver | Skip | Gap
