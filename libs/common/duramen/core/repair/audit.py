"""What is wrong with the copies of one segment: lost, owed, damaged, in doubt, misplaced and more.

It judges each fragment from the segment's metadata, the view of the bookies, the notes about owed
entries and the reports of damage. Entries that nobody may read any more, truncated and older than
the snapshot that takeovers begin with, are no work; a fragment of such entries alone names nobody.
The last fragment of an unclosed segment belongs to its owner (R21): the only finding there is that
the owner should roll. A segment in recovery is left to the sequencer that recovers it.

Pure; nothing is kept. Not here: carrying out a finding (the auditor's workers). Called by the
auditor for each live segment, in rounds and before each step of a repair.
Source: docs/protocol/repair.md, R9, R20, R21.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.core.log_node import LogNode
from duramen.core.placement import PlacementRule, satisfies
from duramen.core.quorum import write_sets
from duramen.core.repair.cluster_view import ClusterView, CopyFate
from duramen.core.segment import Fragment, Segment, SegmentState
from duramen.core.segment_base import SegmentBase
from duramen.ids import LAST_ENTRY_ID, BookieId, EntryId, LedgerId, Member, lsn_of

Ranges = Sequence[tuple[int, int]]


class RepairProblem(enum.IntEnum):
    """Why a fragment is work, the most urgent first among those with as many good copies."""

    OWED = 1
    DAMAGED = 2
    LOST = 3
    DOUBTED = 4
    UNPROVED = 5
    MISPLACED = 6
    LEAVING = 7
    UNBALANCED = 8


class Action(enum.Enum):
    """How it is mended."""

    FILL = "fill"
    """Compare the copies of all members, and fetch what one of them misses."""
    SWAP = "swap"
    """Put a verified copy elsewhere in a member's place."""
    ROLL = "roll"
    """Ask the owner to end the segment."""


FragmentKey = tuple[LedgerId, EntryId]
"""A fragment: the ledger, and its first entry; 0 of a flexible segment, which is one."""


class WorkKey(NamedTuple):
    """One kind of work on one fragment of one segment."""

    ledger_id: LedgerId
    first_entry: EntryId
    action: Action

    @property
    def fragment(self) -> FragmentKey:
        """The fragment: nobody works on it twice at one time."""
        return self.ledger_id, self.first_entry


@dataclass(frozen=True, slots=True)
class Debts:
    """What is known to be wrong about one ledger: notes (`repair/owed`, `repair/queue`), doubts.

    Args:
        owed: closed ranges of entries that a member is not known to hold.
        damaged: members that reported damage of their own.
        cleared: (member, first entry of a fragment) whose copy was found whole since the report.
        doubtful: members that may have lost anything without knowing it.
        compared: as `cleared`, since the member became doubtful.
        presumed: members that may miss anything, since nobody can be asked; no fault of theirs.
    """

    owed: Mapping[Member, Ranges] = field(default_factory=dict)
    damaged: frozenset[Member] = frozenset()
    cleared: frozenset[tuple[Member, EntryId]] = frozenset()
    doubtful: frozenset[Member] = frozenset()
    compared: frozenset[tuple[Member, EntryId]] = frozenset()
    presumed: frozenset[Member] = frozenset()

    def is_owed(self, member: Member, first: int, last: int) -> bool:
        """Whether the member may miss one of the entries `first` … `last`."""
        return any(a <= last and first <= b for a, b in self.owed.get(member, ()))

    def is_damaged(self, member: Member, first_entry: EntryId) -> bool:
        """Whether a report about the member is open, as far as one fragment is concerned."""
        return member in self.damaged and (member, first_entry) not in self.cleared

    def is_doubted(self, member: Member, first_entry: EntryId) -> bool:
        """Whether the member's copy of a fragment was not compared since it became doubtful."""
        return member in self.doubtful and (member, first_entry) not in self.compared

    def is_noted(self, member: Member, stretch: Stretch) -> bool:
        """Whether there is a word, from whomever, that the member misses some of the stretch."""
        return member in self.presumed or self.is_lacking(member, stretch)

    def is_lacking(self, member: Member, stretch: Stretch) -> bool:
        """The same, but for what is only presumed."""
        first_entry = stretch.fragment.first_entry
        return (
            self.is_owed(member, stretch.first, stretch.last)
            or self.is_damaged(member, first_entry)
            or self.is_doubted(member, first_entry)
        )


NO_DEBTS = Debts()


class Stretch(NamedTuple):
    """The part of a fragment that somebody may still read: `first` … `last`, both inclusive.

    `is_open`: more entries may come; `last` is then the highest entry that there can be.
    """

    fragment: Fragment
    first: EntryId
    last: EntryId
    size_bytes: int
    is_open: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One fragment that is work.

    Args:
        member: the one to be replaced (SWAP); None otherwise.
        good_count: good copies of the entry that has the fewest.
        size_bytes: about what will have to be copied.
        facts: what of it decides; a failed repair is not worth a second try while it stays.
    """

    key: WorkKey
    problem: RepairProblem
    good_count: int
    size_bytes: int
    member: Member | None = None
    facts: Hashable = None

    @property
    def urgency(self) -> tuple[int, int, int, int]:
        """Fewest good copies first, then by problem, then in the order of the logs."""
        return (self.good_count, self.problem, *self.key.fragment)


def live_epochs(log: LogNode) -> range:
    """The epochs whose entries somebody may still read, a takeover too; none of a purged log."""
    if log.is_purged:
        return range(0)
    first = max(log.first_live_epoch, min(log.needed_lsn >> 32, log.last_clean_epoch + 1))
    return range(first, log.next_epoch)


def first_needed(log: LogNode, segment: SegmentBase) -> EntryId:
    """The first entry of a live segment that somebody may still read."""
    return EntryId(max(0, log.needed_lsn - lsn_of(segment.epoch, EntryId(0))))


def list_stretches(log: LogNode, segment: Segment) -> list[Stretch]:
    """The fragments of a live segment that hold, or may come to hold, what may be read."""
    begin = first_needed(log, segment)
    stretches = []
    for index, fragment in enumerate(segment.fragments):
        following = segment.fragments[index + 1 :]
        is_open = not following and not segment.is_closed
        last = segment.last_entry if segment.last_entry is not None else LAST_ENTRY_ID
        if following:
            last = EntryId(following[0].first_entry - 1)
        first = max(fragment.first_entry, begin)
        if first <= last:
            size_bytes = _bytes_of(segment, index)
            stretches.append(Stretch(fragment, first, last, size_bytes, is_open))
    return stretches


def audit_segment(
    log: LogNode, segment: Segment, rule: PlacementRule, view: ClusterView, debts: Debts = NO_DEBTS
) -> list[Finding]:
    """What is work in a live segment: for each fragment a fill and a swap, or a roll, at most."""
    if segment.state is SegmentState.IN_RECOVERY:
        return []
    found = []
    for stretch in list_stretches(log, segment):
        fill = _find_fill(stretch, view, debts)
        swap, member = _find_swap(segment, stretch, rule, view)
        if stretch.is_open:
            # Its owner is still writing it: what is merely unproved is compared when it has ended.
            problem = RepairProblem.OWED if fill is RepairProblem.OWED else swap
            fill = swap = None
            if problem is not None:
                found.append(
                    _describe(segment, stretch, problem, Action.ROLL, None, rule, view, debts)
                )
        if fill is not None:
            found.append(_describe(segment, stretch, fill, Action.FILL, None, rule, view, debts))
        if swap is not None:
            found.append(_describe(segment, stretch, swap, Action.SWAP, member, rule, view, debts))
    return found


def is_misplaced(
    segment: Segment,
    fragment: Fragment,
    rule: PlacementRule,
    view: ClusterView,
    *,
    discounted: Collection[Member] = (),
) -> bool:
    """Whether a write set of the fragment breaks R20, by where its members are or were.

    Args:
        discounted: members that do not count as copies now. Whoever counts violations leaves those
            out that are owed entries; who asks what is to be moved does not: what they miss is
            fetched to where they are.
    """
    ensemble, places = fragment.ensemble, view.locations()
    return not satisfies(ensemble, segment.quorum, rule, places, discounted=discounted)


def names(log: LogNode, segment: Segment, bookie: BookieId) -> bool:
    """Whether any incarnation of the bookie is to hold what may still be read of the segment."""
    return any(
        member.bookie == bookie
        for stretch in list_stretches(log, segment)
        for member in stretch.fragment.ensemble
    )


def remaining_debt(log: LogNode, segment: Segment, member: Member, ranges: Ranges) -> Ranges:
    """What of an owed note still means something: the member is to hold it, and it may be read."""
    left: list[tuple[int, int]] = []
    for stretch in list_stretches(log, segment):
        if member in stretch.fragment.ensemble:
            clipped = [(max(a, stretch.first), min(b, stretch.last)) for a, b in ranges]
            left += [(first, last) for first, last in clipped if first <= last]
    return left


def good_copies(segment: Segment, stretch: Stretch, view: ClusterView, debts: Debts) -> int:
    """Members of the weakest write set that are there and of which nothing is known to miss."""
    return min(
        sum(is_good(member, stretch, view, debts) for member in members)
        for members in write_sets(stretch.fragment.ensemble, segment.quorum)
    )


def is_good(member: Member, stretch: Stretch, view: ClusterView, debts: Debts) -> bool:
    """Whether the member is there and no note says that it misses something of the stretch."""
    return view.is_there(member) and not debts.is_noted(member, stretch)


def _find_fill(stretch: Stretch, view: ClusterView, debts: Debts) -> RepairProblem | None:
    """Why the copies of a fragment should be compared, if they can be."""
    fragment = stretch.fragment
    there = [member for member in fragment.ensemble if view.is_there(member)]
    if any(debts.is_owed(member, stretch.first, stretch.last) for member in there):
        return RepairProblem.OWED
    if any(debts.is_damaged(member, fragment.first_entry) for member in there):
        return RepairProblem.DAMAGED
    if any(debts.is_doubted(member, fragment.first_entry) for member in there):
        return RepairProblem.DOUBTED
    if not fragment.is_proved and len(there) == len(fragment.ensemble):
        return RepairProblem.UNPROVED
    return None


def _find_swap(
    segment: Segment, stretch: Stretch, rule: PlacementRule, view: ClusterView
) -> tuple[RepairProblem | None, Member | None]:
    """Why another member should hold a copy, and whose place it should take."""
    fragment = stretch.fragment
    fates = [(view.fate(member), member) for member in fragment.ensemble]
    for fate, problem in (
        (CopyFate.LOST, RepairProblem.LOST),
        (CopyFate.LEAVING, RepairProblem.LEAVING),
    ):
        for found, member in fates:
            if found is fate:
                return problem, member
    can_hold = max(rule.min_racks, rule.min_regions) <= segment.quorum.ack_quorum
    is_quiet = all(fate is CopyFate.HERE for fate, _ in fates)
    if can_hold and is_quiet and is_misplaced(segment, fragment, rule, view):
        return RepairProblem.MISPLACED, None
    return None, None


def _describe(  # noqa: PLR0917 - plain inputs of a pure value
    segment: Segment,
    stretch: Stretch,
    problem: RepairProblem,
    action: Action,
    member: Member | None,
    rule: PlacementRule,
    view: ClusterView,
    debts: Debts,
) -> Finding:
    fragment, quorum = stretch.fragment, segment.quorum
    copy_count = 1 if action is Action.SWAP else 0
    if action is Action.FILL:
        # Whoever is merely doubtful misses hardly anything.
        copy_count = sum(
            debts.is_owed(one, stretch.first, stretch.last)
            or debts.is_damaged(one, fragment.first_entry)
            for one in fragment.ensemble
        )
    share = stretch.size_bytes * quorum.write_quorum // quorum.ensemble_size
    return Finding(
        WorkKey(segment.ledger_id, fragment.first_entry, action),
        problem,
        good_copies(segment, stretch, view, debts),
        share * copy_count,
        member,
        (
            view.facts(),
            rule,
            fragment,
            *(tuple(sorted(members)) for members in (debts.owed, debts.damaged, debts.doubtful)),
        ),
    )


def _bytes_of(segment: Segment, index: int) -> int:
    """Bytes of record batches in a fragment; 0 where nobody has counted them yet."""
    after = segment.fragments[index + 1 :]
    end = after[0].totals_before if after else segment.totals
    before = segment.fragments[index].totals_before
    return 0 if end is None else max(0, end.length_bytes - before.length_bytes)
