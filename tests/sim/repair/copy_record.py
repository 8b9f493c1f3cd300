"""What repair changes in the metadata, judged when it takes effect: R21, D2 and P1.

Part of `checkers`. A new member of an ended fragment holds, durably and at this instant, every
entry of its place that somebody may still read; nothing else changes, and nothing at all in the
last fragment of an unclosed segment or in one that is being recovered. An owner leaves what repair
changed as it is (R3). Who is said to be drained may go: no ended fragment in which he holds an
entry names him, and what is acknowledged has its Qa copies without him.

What is held is what became durable at some time; a disk that is lost holds nothing.
Source: docs/protocol/placement.md "The rule (R20)", docs/protocol/repair.md, R3, R20, R21, ADR
0012.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from duramen.core.placement import Candidate, PlacementRule, satisfies
from duramen.core.repair.audit import Stretch
from duramen.core.segment import Fragment, Segment, SegmentState
from duramen.ids import EntryId, LogId, Member
from tests.sim.segment_record import SegmentRecord, Tally

REPAIR: Final = "repair."
"""What the nonce of every change that repair makes begins with."""


class CopyRecord:
    """The changes of members and fragments, over all logs.

    Args:
        locations, rules: as `Checkers` has them.
        bit_of: a member as a bit of what holds an entry.
    """

    def __init__(
        self,
        tally: Tally,
        locations: Mapping[Member, Candidate],
        rules: Mapping[LogId, PlacementRule],
        bit_of: Callable[[Member], int],
    ) -> None:
        self._tally = tally
        self._locations = locations
        self._rules = rules
        self._bit_of = bit_of
        self._gone = 0

    def on_disk_gone(self, member: Member) -> None:
        """A disk is lost at this instant."""
        self._gone |= self._bit_of(member)

    def on_changed(
        self,
        before: Segment,
        after: Segment,
        record: SegmentRecord,
        first: EntryId,
        *,
        is_quiet: bool,
    ) -> None:
        """A segment node was replaced.

        Args:
            first: the first entry that somebody may still read.
            is_quiet: every member that stays has been there for long: then one swap keeps R20, and
                no plan of several is under way.
        """
        if not after.nonce.startswith(REPAIR) or after.nonce == before.nonce:
            self._check_owner(before, after)
            return
        what = "repair made", after, "of", before
        is_settled = before.state is after.state is not SegmentState.IN_RECOVERY
        self._tally.check("R21", is_settled, *what)
        is_kept = [f.first_entry for f in before.fragments] == [
            f.first_entry for f in after.fragments
        ]
        is_kept = is_kept and (before.last_entry, before.holes) == (after.last_entry, after.holes)
        if not before.is_closed:
            is_kept = is_kept and before.last_fragment == after.last_fragment
        self._tally.check("R21", is_kept, *what)
        for index, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
            if old.ensemble != new.ensemble:
                self._check_swap(old, new, after, index, record, first)
                if is_quiet:
                    self._check_placement(old, new, after)

    def on_drained(
        self, member: Member, live: Iterable[tuple[Segment, Stretch]],
        record_of: Callable[[LogId], SegmentRecord],
    ) -> None:  # fmt: skip
        """A bookie may go now, says the metadata."""
        bit = self._bit_of(member)
        for segment, stretch in live:
            if all(one.bookie != member.bookie for one in stretch.fragment.ensemble):
                continue
            ledger = record_of(segment.log_id).ledger(segment.epoch)
            last = (
                min(stretch.last, ledger.highest_acknowledged) if stretch.is_open else stretch.last
            )
            for number in range(stretch.first, last + 1):
                entry = EntryId(number)
                write_set = segment.write_set_of(entry)
                if member not in write_set or segment.absence_at(entry) is not None:
                    continue
                what = member.bookie, "is drained, and entry", entry, "of", segment
                is_held = ledger.any_holders(entry) & bit != 0
                self._tally.check("D2", stretch.is_open or not is_held, *what, "is there")
                if entry <= ledger.highest_acknowledged:
                    bits = self._bits_of(write_set) & ~bit & ~self._gone
                    count = (ledger.any_holders(entry) & bits).bit_count()
                    is_safe = count >= segment.quorum.ack_quorum
                    self._tally.check("D2", is_safe, *what, "has", count, "other copies")

    def _check_owner(self, before: Segment, after: Segment) -> None:
        """What has ended stays as it is compared against; ends and recoveries cut it at most."""
        ended = {fragment.first_entry: fragment for fragment in before.fragments[:-1]}
        for fragment in after.fragments:
            old = ended.get(fragment.first_entry)
            is_kept = old is None or old.ensemble == fragment.ensemble
            self._tally.check("R21", is_kept, before, "becomes", after, "at", fragment.first_entry)

    def _check_swap(  # noqa: PLR0917 - one change, spelled out
        self,
        old: Fragment,
        new: Fragment,
        segment: Segment,
        index: int,
        record: SegmentRecord,
        first_needed: EntryId,
    ) -> None:
        pairs = list(enumerate(zip(old.ensemble, new.ensemble, strict=True)))
        places = [place for place, (one, other) in pairs if one != other]
        what = "swap of", old, "for", new, "in", segment
        self._tally.check("R21", len(places) == 1, *what)
        (place,) = places
        bit = self._bit_of(new.ensemble[place])
        if bit & self._gone:
            return  # it was there when it was verified
        following = segment.fragments[index + 1 :]
        last = segment.last_entry if not following else EntryId(following[0].first_entry - 1)
        assert last is not None, segment
        ledger = record.ledger(segment.epoch)
        size, width = segment.quorum.ensemble_size, segment.quorum.write_quorum
        for number in range(max(new.first_entry, first_needed), last + 1):
            entry = EntryId(number)
            if (place - entry) % size < width and segment.absence_at(entry) is None:
                is_held = ledger.any_holders(entry) & bit != 0
                self._tally.check("D2", is_held, *what, "lacks entry", entry)

    def _check_placement(self, old: Fragment, new: Fragment, segment: Segment) -> None:
        """P1: repair breaks no rule that was kept, `strict` or not."""
        rule = self._rules.get(segment.log_id)
        if rule is None:
            return
        rule = PlacementRule(rule.min_racks, rule.min_regions)
        if satisfies(old.ensemble, segment.quorum, rule, self._locations):
            is_placed = satisfies(new.ensemble, segment.quorum, rule, self._locations)
            self._tally.check("P1", is_placed, "swap of", old, "for", new, "in", segment)

    def _bits_of(self, members: Iterable[Member]) -> int:
        bits = 0
        for member in members:
            bits |= self._bit_of(member)
        return bits
