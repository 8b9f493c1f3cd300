"""The port of reads: entries of one segment from one on, without a gap, however they are placed.

A driver says what it wants and carries out the effects; it neither knows whom to ask nor what an
answer proves. Two cores stand behind the port: `striped_read` asks one replica after the other,
`core.flexible.reading.flexible_pass` merges what the nodes of a map send. The driver verifies
bodies before it hands an answer in.

A read gives entries, or says why not; it never passes over one. NO_ENTRY with `absent` is the word
of every node of a flexible segment's map, and no loss before the metadata were read again (R25).

Driven by `runtime.reading.range_reads`. Source: docs/protocol/reading.md "One port", R25, R30.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from duramen.core.flexible.sending import CopysetHint, ReadFilter
from duramen.core.reading.effects import Entry
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Member, NodeNumber

Ranges = Sequence[tuple[EntryId, EntryId]]


class WantedEntries(NamedTuple):
    """What a read is to bring."""

    first: EntryId
    last: EntryId
    """None above it: the caller may show no more, or has a hole there."""
    bytes_max: int
    """One entry comes whatever its size."""
    headers_only: bool = False


@dataclass(frozen=True, slots=True)
class FilterTerms:
    """What a call to a node of a flexible segment says besides its range."""

    filter_number: int
    bound: EntryId
    """Up to here entries may be shown, whatever the node was told (R30)."""
    read_filter: ReadFilter | None
    """None: whatever is there is wanted."""
    own: NodeNumber
    """The asked node's number in the map."""
    is_digest: bool = False
    """Identities are wanted, and no bodies."""


@dataclass(frozen=True, slots=True)
class AskNode:
    """Ask a bookie for entries `first` … `last`; answer with `on_answer`, whatever comes of it."""

    call_id: int
    member: Member
    first: EntryId
    last: EntryId
    bytes_max: int
    timeout_us: int
    headers_only: bool = False
    terms: FilterTerms | None = None
    """None: the segment is striped."""


@dataclass(frozen=True, slots=True)
class ForgetCall:
    """The answer to this call is not wanted any more."""

    call_id: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `on_timer` at `at_us`; a later WakeAt replaces it."""

    at_us: int


class NodesAbsence(NamedTuple):
    """Every one of these nodes said that it has none of some entries, and has looked."""

    first: EntryId
    last: EntryId
    nodes: tuple[Member, ...]
    """All of the map by which they were asked, which may be another one by now."""


@dataclass(frozen=True, slots=True)
class Finish:
    """What became of what was wanted."""

    status: BookieStatus
    """OK: there are entries. Otherwise why there are none."""
    entries: tuple[Entry, ...] = ()
    """From the first that was wanted on, without a gap."""
    lac: EntryId = NOTHING
    """The highest LAC that was told by who may tell it."""
    sender: Member | None = None
    """Who gave the last of the entries."""
    absent: NodesAbsence | None = None
    """With NO_ENTRY: what no node of the map has."""


RangeEffect = AskNode | ForgetCall | WakeAt | Finish


class HintRun(NamedTuple):
    """Each entry that an answer tells from `first` to `last` has this envelope."""

    first: EntryId
    last: EntryId
    envelope: CopysetHint


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What a bookie said of a range, verified; or a status that the driver made of a failure."""

    status: BookieStatus
    lac: EntryId = NOTHING
    entries: Sequence[Entry] = ()
    """Those that passed their checks, ascending."""
    identities: Sequence[int] = ()
    """Of a flexible segment: of each of the entries."""
    next: EntryId = NOTHING
    """Of a flexible segment: the first entry that was not looked at."""
    digests: Sequence[tuple[EntryId, int]] = ()
    """Entries and their identities, where these were asked for."""
    unvouched: Ranges = ()
    """What it cannot vouch for, with the bodies that reached the driver broken."""
    runs: Sequence[HintRun] = ()


class RangeRead(Protocol):
    """Reads of one segment, one at a time."""

    def want(self, wanted: WantedEntries, now_us: int) -> None:
        """Begin a read; the one before it has finished."""

    def on_answer(self, call_id: int, answer: NodeAnswer, now_us: int) -> None:
        """The answer to an AskNode."""

    def on_timer(self, now_us: int) -> None:
        """The time of the last WakeAt has come."""

    def take_effects(self) -> list[RangeEffect]:
        """The effects since the last call, in order."""
