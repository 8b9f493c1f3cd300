"""Histories that break D2, F1, P1, E1, C1, L1 or M1, each of them one invariant only.

What bookies, writers, recoverers and readers did to segments does not fit together; appends are in
`bad_records`. The table at the end says which code each must be rejected with. Used by
`test_checkers`.
"""

from __future__ import annotations

from duramen.core.placement import PlacementRule
from duramen.core.segment import Totals
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, ledger_of
from tests.sim.histories.history import LOG, NEW_A, A, B, C, D, History, Play, make_segment, place

LEDGER = ledger_of(LOG, Epoch(1))

# --- D2, F1, P1 ----------------------------------------------------------------------------------


def acknowledge_with_one_copy(h: History) -> None:
    h.store((A,), 0)
    h.confirm(0)


def acknowledge_with_other_bytes(h: History) -> None:
    h.store((A,), 0)
    h.store((B, C), 0, crc=6)
    h.confirm(0)


def acknowledge_with_a_replaced_member(h: History) -> None:
    h.store((A, B), 0)
    h.confirm(0, make_segment((D, B, C)))


def acknowledge_with_an_old_incarnation(h: History) -> None:
    h.store((A, B), 0)
    h.confirm(0, make_segment((NEW_A, B, C)))


def acknowledge_with_a_lost_disk(h: History) -> None:
    h.store((A, B), 0)
    h.checkers.on_lost(A)
    h.confirm(0)


def acknowledge_outside_the_stripe(h: History) -> None:
    # Entry 1 of four members with Qw = 3 belongs to b, c, d.
    h.store((A, B), 1)
    h.confirm(1, make_segment((A, B, C, D)))


def acknowledge_with_the_fragment_before(h: History) -> None:
    h.store((A, B), 4)
    h.confirm(4, make_segment((A, B, C), (D, B, C), starts="0 4"))


def begin_a_fragment_below_what_is_acknowledged(h: History) -> None:
    h.store((A, B), 0)
    h.confirm(0)
    h.checkers.on_ensemble_changed(make_segment((D, B, C)))


def refuse_the_same_bytes(h: History) -> None:
    h.store((A,), 0)
    h.checkers.on_add_refused(A, LEDGER, EntryId(0), 5)


def deny_what_was_durable(h: History) -> None:
    h.checkers.on_vouched(A, LEDGER, EntryId(3))
    h.checkers.on_entry_denied(A, LEDGER, EntryId(3))


def take_a_lac_under_seal(h: History) -> None:
    h.checkers.on_lac_answered(A, LEDGER, BookieStatus.OK, 1)


def acknowledge_under_seal(h: History) -> None:
    h.cover(1)
    h.store((A, B), 0)
    h.confirm(0)


def acknowledge_above_an_epoch_that_is_not_sealed(h: History) -> None:
    h.store((A, B), 0, epoch=2)
    h.confirm(0, make_segment(epoch=2))


def acknowledge_what_no_responder_held(h: History) -> None:
    h.store((C,), 0)
    h.cover(1, (A, B))
    h.store((A,), 0)
    h.confirm(0)


def acknowledge_other_bytes_than_were_held(h: History) -> None:
    h.store((A, B), 0, crc=6)
    h.cover(1)
    h.store((A, B), 0)
    h.confirm(0)


def acknowledge_in_one_rack(h: History) -> None:
    # a and d are in one rack, and an ack set.
    h.store((A, B, D), 0)
    h.confirm(0, make_segment((A, B, D)))


def acknowledge_in_one_region(h: History) -> None:
    regions = History(PlacementRule(min_regions=2))
    regions.store((A, B), 0)
    regions.confirm(0)


def acknowledge_in_a_new_narrow_fragment(h: History) -> None:
    h.store((A, B), 0)
    h.confirm(0)
    segment = make_segment((A, B, C), (A, B, D), starts="0 1")
    h.store((A, B), 1)
    h.confirm(0, segment)
    h.confirm(1, segment)


def call_a_tail_sure_below_an_early_append(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.append(2, "y", place(2, 0), None)
    h.tail(place(1, 1), 1)


def call_a_tail_sure_below_a_numbered_append(h: History) -> None:
    h.append(1, "x y", place(1, 0), 0)
    h.tail(place(1, 1), 1)


# --- E1, C1, L1, M1 ------------------------------------------------------------------------------


def open_an_epoch_twice(h: History) -> None:
    h.open(2, "s1")


def open_an_epoch_again(h: History) -> None:
    h.open(1, "s0")


def skip_an_epoch(h: History) -> None:
    h.open(4, "s1")


def acknowledge_in_an_epoch_of_nobody(h: History) -> None:
    h.append(1, "x", place(3, 0), 0)


def confirm_in_an_epoch_of_nobody(h: History) -> None:
    h.store((A, B), 0, epoch=3)
    h.confirm(0, make_segment(epoch=3))


def close_an_epoch_of_nobody(h: History) -> None:
    h.close(3, 0, 1, 0)


def close_at_another_entry(h: History) -> None:
    h.close(1, 4, 5, 0, "s0")
    h.close(1, 3, 5, 0, "s1")


def close_with_other_totals(h: History) -> None:
    h.close(1, 4, 5, 0, "s0")
    h.close(1, 4, 6, 0, "s1")


def close_at_another_start(h: History) -> None:
    h.close(1, 4, 5, 0)
    h.close(2, 0, 1, 5)
    h.close(2, 0, 1, 6)


def conclude_other_totals_of_the_same_entries(h: History) -> None:
    h.close(1, 4, 6, 0, "s1", own=True)
    h.close(1, 4, 5, 0, "s0")


def close_with_other_holes(h: History) -> None:
    h.close(1, 4, 5, 0)
    holes = ((EntryId(1), EntryId(1)),)
    h.checkers.on_segment_closed(LOG, Epoch(1), EntryId(4), Totals(5), 0, None, holes=holes)


def lower_a_lac(h: History) -> None:
    h.lac(0, 1, 5)
    h.lac(0, 1, 4)


def lower_a_lac_to_nothing(h: History) -> None:
    h.lac(0, 1, 0)
    h.lac(0, 2, 3)
    h.lac(0, 1, NOTHING)


def lower_a_lac_when_another_reader_restarts(h: History) -> None:
    h.lac(0, 1, 5)
    h.checkers.on_reader_restarted(1)
    h.lac(0, 1, 4)


def promise_an_entry_that_is_not_there(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.lac(0, 1, 1)
    h.finish((1, 0, 0, 0, "x"))


def promise_an_entry_beyond_the_end(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.lac(0, 1, 0)
    h.lac(1, 1, 1)
    h.close(1, 0, 1, 0)
    h.finish((1, 0, 0, 0, "x"))


def answer_a_lower_lac(h: History) -> None:
    h.checkers.on_bookie_lac(0, A, LEDGER, EntryId(5))
    h.checkers.on_bookie_lac(0, A, LEDGER, EntryId(4))


def read_above_the_lac(h: History) -> None:
    h.invoke(1, "x")
    h.lac(0, 1, NOTHING)
    h.read(0, place(1, 0), 0, "x")


def enter_an_epoch_early(h: History) -> None:
    h.invoke(1, "x")
    h.read(0, place(2, 0), 0, "x")


def outgrow_a_window(h: History) -> None:
    h.checkers.on_memory(1, "window", 64, 64)
    h.checkers.on_memory(2, "window", 65, 64)


def fill_what_may_hold_nothing(h: History) -> None:
    h.checkers.on_memory(1, "owed", 1, 0)


BAD: dict[str, tuple[Play, ...]] = {
    "D2": (
        acknowledge_with_one_copy, acknowledge_with_other_bytes, acknowledge_with_a_lost_disk,
        acknowledge_with_a_replaced_member, acknowledge_with_an_old_incarnation,
        acknowledge_outside_the_stripe, acknowledge_with_the_fragment_before,
        begin_a_fragment_below_what_is_acknowledged, refuse_the_same_bytes, deny_what_was_durable,
    ),
    "F1": (
        acknowledge_under_seal, acknowledge_what_no_responder_held,
        acknowledge_other_bytes_than_were_held, take_a_lac_under_seal,
    ),
    "P1": (
        acknowledge_in_one_rack, acknowledge_in_one_region, acknowledge_in_a_new_narrow_fragment,
    ),
    "E1": (
        open_an_epoch_twice, open_an_epoch_again, skip_an_epoch, acknowledge_in_an_epoch_of_nobody,
        confirm_in_an_epoch_of_nobody, close_an_epoch_of_nobody,
        acknowledge_above_an_epoch_that_is_not_sealed,
    ),
    "C1": (
        close_at_another_entry, close_with_other_totals, close_at_another_start,
        conclude_other_totals_of_the_same_entries, close_with_other_holes,
    ),
    "L1": (
        lower_a_lac, lower_a_lac_to_nothing,
        lower_a_lac_when_another_reader_restarts, promise_an_entry_that_is_not_there,
        promise_an_entry_beyond_the_end, read_above_the_lac, enter_an_epoch_early,
        answer_a_lower_lac, call_a_tail_sure_below_an_early_append,
        call_a_tail_sure_below_a_numbered_append,
    ),
    "M1": (outgrow_a_window, fill_what_may_hold_nothing),
}  # fmt: skip
