"""Histories of repair: swaps, owners beside it, drained bookies; bad ones for R21, D2, P1 and D1.

Copies are those of `History.store`; segments are told as the metadata store would apply them. Used
by `test_checkers`.
"""

from __future__ import annotations

from dataclasses import replace

from duramen.core.repair.audit import Stretch
from duramen.core.segment import Fragment, Segment, SegmentState, Totals
from duramen.ids import LAST_ENTRY_ID, EntryId, Member
from tests.sim.histories.history import A, B, C, D, History, Play, make_segment

FIRST = EntryId(0)


def two_fragments() -> Segment:
    """Entries 0 and 1 on a, b, c; from 2 on, on d, b, c; still open."""
    return make_segment((A, B, C), (D, B, C), starts="0 2")


def closed(segment: Segment, last: int = 3) -> Segment:
    return replace(
        segment, state=SegmentState.CLOSED, last_entry=EntryId(last), totals=Totals(last + 1),
        start_seq_num=0, nonce="close",
    )  # fmt: skip


def changed(segment: Segment, *ensembles: tuple[Member, ...], nonce: str = "repair.1") -> Segment:
    pairs = zip(segment.fragments, ensembles, strict=True)
    fragments = tuple(Fragment(old.first_entry, ensemble) for old, ensemble in pairs)
    return replace(segment, fragments=fragments, nonce=nonce)


def store_all(h: History) -> None:
    h.store((A, B, C), 0)
    h.store((A, B, C), 1)
    h.store((D, B, C), 2)
    h.store((D, B, C), 3)


def report(h: History, before: Segment, after: Segment, *, is_quiet: bool = False) -> None:
    h.checkers.on_segment_changed(before, after, FIRST, is_quiet=is_quiet)


def drain(h: History, member: Member, segment: Segment) -> None:
    live = []
    for index, fragment in enumerate(segment.fragments):
        following = segment.fragments[index + 1 :]
        is_open = not following and not segment.is_closed
        last = segment.last_entry if segment.last_entry is not None else LAST_ENTRY_ID
        if following:
            last = EntryId(following[0].first_entry - 1)
        live.append((segment, Stretch(fragment, fragment.first_entry, last, 0, is_open)))
    h.checkers.on_drained(member, live)


# --- bad -----------------------------------------------------------------------------------------


def swap_in_the_last_fragment_of_an_open_segment(h: History) -> None:
    store_all(h)
    h.store((A,), 2)
    h.store((A,), 3)
    before = two_fragments()
    report(h, before, changed(before, (A, B, C), (A, B, C)))


def swap_in_a_segment_that_is_recovered(h: History) -> None:
    store_all(h)
    h.store((D,), 0)
    h.store((D,), 1)
    before = replace(two_fragments(), state=SegmentState.IN_RECOVERY)
    report(h, before, changed(before, (D, B, C), (D, B, C)))


def write_over_the_owners_change(h: History) -> None:
    store_all(h)
    h.store((D,), 0)
    h.store((D,), 1)
    report(h, two_fragments(), make_segment((D, B, C)).with_ensemble(
        EntryId(1), (A, B, C), Totals(1), "repair.2"
    ))  # fmt: skip


def swap_two_at_once(h: History) -> None:
    store_all(h)
    for entry in (2, 3):
        h.store((A,), entry)
    before = closed(make_segment((A, B, C), (B, C, D), starts="0 2"))
    report(h, before, changed(before, (A, B, C), (C, B, A)))


def write_over_what_repair_changed(h: History) -> None:
    store_all(h)
    before = changed(two_fragments(), (D, B, C), (D, B, C))
    report(h, before, changed(before, (A, B, C), (D, B, C), nonce="own"))


def swap_before_the_copy(h: History) -> None:
    store_all(h)
    before = closed(two_fragments())
    report(h, before, changed(before, (D, B, C), (D, B, C)))


def swap_with_half_a_copy(h: History) -> None:
    store_all(h)
    h.store((D,), 1)
    before = two_fragments()
    report(h, before, changed(before, (D, B, C), (D, B, C)))


def drained_and_named(h: History) -> None:
    store_all(h)
    drain(h, D, closed(two_fragments()))


def drained_and_needed(h: History) -> None:
    h.store((D, B), 2)
    segment = two_fragments()
    h.confirm(2, segment)
    drain(h, B, segment)


def swap_into_one_rack(h: History) -> None:
    store_all(h)
    h.store((D,), 0)
    h.store((D,), 1)
    before = closed(two_fragments())
    report(h, before, changed(before, (A, D, C), (D, B, C)), is_quiet=True)


def call_lost_what_is_not(h: History) -> None:
    segment = replace(closed(two_fragments()), lost=((EntryId(1), EntryId(1)),))
    h.checkers.on_loss_recorded(segment, is_possible=False)


# --- good ----------------------------------------------------------------------------------------


def swap_where_it_is_allowed(h: History) -> None:
    store_all(h)
    h.store((D,), 0)
    h.store((D,), 1)
    before = two_fragments()
    after = changed(before, (D, B, C), (D, B, C))
    report(h, before, after, is_quiet=True)
    # The owner goes on from there.
    own = after.with_ensemble(EntryId(4), (A, B, C), Totals(4), "own")
    report(h, after, own)
    report(h, own, closed(own, 5))


def swap_what_may_still_be_read(h: History) -> None:
    store_all(h)
    h.store((D,), 1)
    before = closed(two_fragments())
    after = changed(before, (D, B, C), (D, B, C))
    h.checkers.on_segment_changed(before, after, EntryId(1), is_quiet=False)


def swap_to_a_disk_that_is_lost_meanwhile(h: History) -> None:
    store_all(h)
    h.checkers.on_disk_gone(D)
    before = closed(two_fragments())
    report(h, before, changed(before, (D, B, C), (D, B, C)))


def drain_what_holds_nothing_of_it(h: History) -> None:
    """A segment that an old view made names it, and no ack was ever its own."""
    h.store((A, B, C), 0)
    h.store((B, C), 2)
    segment = two_fragments()
    h.confirm(2, segment)
    drain(h, D, segment)
    h.checkers.on_loss_recorded(segment, is_possible=True)


BAD: dict[str, tuple[Play, ...]] = {
    "R21": (
        swap_in_the_last_fragment_of_an_open_segment, swap_in_a_segment_that_is_recovered,
        write_over_the_owners_change, swap_two_at_once, write_over_what_repair_changed,
    ),
    "D2": (swap_before_the_copy, swap_with_half_a_copy, drained_and_named, drained_and_needed),
    "P1": (swap_into_one_rack,),
    "D1": (call_lost_what_is_not,),
}  # fmt: skip

GOOD: tuple[Play, ...] = (
    swap_where_it_is_allowed, swap_what_may_still_be_read, swap_to_a_disk_that_is_lost_meanwhile,
    drain_what_holds_nothing_of_it,
)  # fmt: skip
