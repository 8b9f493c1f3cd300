"""Histories that the protocol allows and that come as near to breaking an invariant as they can.

Uncertain appends that are there or not, appends tried anew, holes, empty segments, recoverers that
differ before one of them closes, answers that overtake a seal. Used by `test_checkers`.
"""

from __future__ import annotations

from duramen.core.placement import PlacementRule
from duramen.core.segment import Totals
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, ledger_of
from tests.sim.histories.history import (
    LOG,
    NEW_A,
    OTHER,
    PIPELINED,
    A,
    B,
    C,
    D,
    History,
    Play,
    bodies_of,
    make_segment,
    place,
    records,
)

LEDGER = ledger_of(LOG, Epoch(1))


def keep_or_lose_what_is_uncertain(h: History) -> None:
    h.doubt(1, "u v")
    h.append(2, "x y", place(1, 1), 2)
    h.doubt(3, "w")
    h.invoke(4, "z", client=1)
    h.finish(
        (1, 0, 0, 0, "u"), (1, 0, 1, 1, "v"), (1, 1, 0, 2, "x"), (1, 1, 1, 3, "y"),
        (1, 1, 2, 4, "z"),
    )  # fmt: skip


def find_what_was_under_way_later(h: History) -> None:
    h.doubt(1, "x")
    h.append(2, "y", place(1, 0), 0)
    h.finish((1, 0, 0, 0, "y"), (1, 1, 0, 1, "x"))


def settle_late(h: History) -> None:
    h.doubt(1, "x")
    h.append(2, "y", place(1, 1), 1)
    h.ok(1, place(1, 0), 0)
    h.doubt(3, "z")
    h.fail(3)
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "y"))


def try_anew(h: History) -> None:
    h.doubt(1, "x y")
    h.append(2, "x y", place(1, 1), 2)
    h.finish(*[(1, n, s, 2 * n + s, "xy"[s]) for n in (0, 1) for s in (0, 1)])


def try_anew_and_be_there_once(h: History) -> None:
    h.doubt(1, "x")
    h.doubt(2, "x")
    h.append(3, "x", place(1, 0), 0)
    h.invoke(4, "y")
    h.fail(4)
    h.append(5, "y", place(1, 1), 1)
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "y"))


def try_anew_around_others(h: History) -> None:
    # Of three appends of one content two are there: before and behind what was acknowledged.
    h.doubt(1, "x")
    h.append(2, "y", place(1, 1), 1, client=1)
    h.doubt(3, "x")
    h.doubt(4, "x")
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "y"), (1, 2, 0, 2, "x"))


def decide_in_order(h: History) -> None:
    h.invoke(1, "x")
    h.uncertain(1, is_under_way=False)
    h.invoke(2, "w")
    h.uncertain(2, is_under_way=False)
    h.append(3, "y", place(1, 1), 1)
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "y"))


def leave_the_order_of_concurrent_appends_open(h: History) -> None:
    h.invoke(1, "x", client=0)
    h.invoke(2, "y", client=1)
    h.invoke(3, "p", PIPELINED)
    h.invoke(4, "q", PIPELINED)
    h.ok(4, place(1, 0), 0)
    h.ok(2, place(1, 1), 1)
    h.ok(3, place(1, 1, 1), 2)
    h.ok(1, place(1, 2), 3)
    h.finish((1, 0, 0, 0, "q"), (1, 1, 0, 1, "y"), (1, 1, 1, 2, "p"), (1, 2, 0, 3, "x"))


def close_and_go_on(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.close(1, 0, 1, 0)
    h.close(2, -1, 0, 1, "s1")
    h.open(3, "s2")
    h.close(3, -1, 0, 1, "s1")
    h.open(4, "s0")
    h.append(2, "y z", place(4, 0), 1)
    h.close(4, 0, 2, 1)
    h.open(5)
    h.append(3, "w", place(5, 0), 3)
    for reader, rows in ((0, "xyzw"), (1, "zw"), (2, "x"), (3, "yz")):
        places = {"x": place(1, 0), "y": place(4, 0), "z": place(4, 0, 1), "w": place(5, 0)}
        for body in rows:
            h.read(reader, places[body], "xyzw".index(body), body)
    h.finish((1, 0, 0, 0, "x"), (4, 0, 0, 1, "y"), (4, 0, 1, 2, "z"), (5, 0, 0, 3, "w"))


def leave_out_holes(h: History) -> None:
    h.doubt(1, "p q")
    h.append(2, "x", place(1, 0), 0)
    h.append(3, "y", place(1, 2), 3)
    holes = ((EntryId(1), EntryId(1)),)
    h.checkers.on_segment_closed(LOG, Epoch(1), EntryId(2), Totals(4), 0, None, holes=holes)
    h.append(4, "z", place(2, 0), 4)
    h.finish((1, 0, 0, 0, "x"), (1, 2, 0, 3, "y"), (2, 0, 0, 4, "z"))


def end_with_a_control_entry_behind_a_hole(h: History) -> None:
    """The hole takes its numbers with it, and nothing that is read lies behind it (seed 100410)."""
    h.append(1, "x", place(1, 0), 0)
    h.doubt(2, "p q")
    holes = ((EntryId(1), EntryId(1)),)
    h.checkers.on_segment_closed(LOG, Epoch(1), EntryId(2), Totals(3), 0, None, holes=holes)
    h.checkers.on_control_entry(LOG, Epoch(1), EntryId(2))
    h.append(3, "z", place(2, 0), 3)
    h.finish((1, 0, 0, 0, "x"), (2, 0, 0, 3, "z"))


def stop_at_an_absent_entry(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.doubt(2, "p")
    h.doubt(3, "q")
    h.close(1, 0, 1, 0, "s1", own=True)
    h.close(1, 1, 2, 0, "s2", own=True)
    h.close(1, 0, 1, 0, "s1")
    h.close(1, 0, 1, 0, "s2")
    h.append(4, "y", place(2, 0), 1)
    h.finish((1, 0, 0, 0, "x"), (2, 0, 0, 1, "y"))


def acknowledge_by_answers_under_way(h: History) -> None:
    h.store((A, C), 0)
    h.cover(1, (A, B))
    h.store((B,), 0)
    h.confirm(0)
    h.close(1, 0, 1, 0, "s1")
    h.store((A, B), 0, epoch=2)
    h.confirm(0, make_segment(epoch=2))


def seal_again(h: History) -> None:
    h.store((A,), 0)
    h.cover(1)
    h.store((B,), 0)
    h.cover(1)
    h.confirm(0)


def lose_a_disk_after_the_fact(h: History) -> None:
    h.store((A, B), 0)
    h.confirm(0)
    h.checkers.on_lost(A)
    h.checkers.on_lost(B)
    h.store((B, C), 1, crc=6)
    h.store((NEW_A, C), 1)
    h.confirm(1, make_segment((A, B, C), (NEW_A, B, C), starts="0 1"))


def follow_the_lac(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.lac(0, 1, NOTHING)
    h.lac(0, 1, 0)
    h.lac(0, 1, 0)
    h.lac(1, 1, NOTHING)
    h.read(0, place(1, 0), 0, "x")
    h.close(1, 0, 1, 0)
    h.read(1, place(1, 0), 0, "x")
    h.append(2, "y", place(2, 0), 1)
    h.lac(0, 2, 0)
    h.read(0, place(2, 0), 1, "y")
    h.checkers.on_memory(h.tick(), "read-ahead", 10, 10)
    h.finish((1, 0, 0, 0, "x"), (2, 0, 0, 1, "y"))


def append_to_two_logs(h: History) -> None:
    h.open(1, "s1", OTHER)
    h.invoke(1, "x")
    h.checkers.on_invoke(h.tick(), 0, OTHER, 1, bodies_of("x"))
    h.ok(1, place(1, 0), 0)
    h.checkers.on_acknowledge(h.tick(), 0, OTHER, 1, place(1, 0), 0)
    rows = records((1, 0, 0, 0, "x"))
    h.checkers.finish({LOG: rows, OTHER: rows})


def prefer_and_degrade(h: History) -> None:
    loose = History(PlacementRule(min_racks=3, is_strict=False))
    loose.store((A, D), 0)
    loose.confirm(0, make_segment((A, B, D)))


def pass_over_a_hole(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.append(2, "z", place(1, 2), 3)
    h.read(0, place(1, 0), 0, "x")
    h.checkers.on_reader_gap(0, LOG)
    h.read(0, place(1, 2), 3, "z")
    h.checkers.on_bookie_lac(0, A, LEDGER, EntryId(4))
    h.checkers.on_bookie_lac(0, B, LEDGER, EntryId(3))
    h.checkers.on_bookie_lac(1, A, LEDGER, EntryId(3))


def know_less_after_a_restart(h: History) -> None:
    h.lac(0, 1, 5)
    h.lac(1, 1, 3)
    h.checkers.on_reader_restarted(0)
    h.lac(0, 1, 4)


def answer_as_a_bookie_may(h: History) -> None:
    h.store((A,), 0)
    h.checkers.on_entry_denied(A, LEDGER, EntryId(0))
    h.checkers.on_vouched(A, LEDGER, EntryId(0))
    h.checkers.on_entry_denied(B, LEDGER, EntryId(0))
    h.checkers.on_add_refused(A, LEDGER, EntryId(0), 6)
    h.checkers.on_lac_answered(A, LEDGER, BookieStatus.OK, 0)
    h.checkers.on_lac_answered(A, LEDGER, BookieStatus.SEALED, 1)


def ask_for_tails(h: History) -> None:
    h.tail(place(1, 0), 0)
    h.append(1, "x y", place(1, 0), 0)
    question = h.checkers.on_tail_asked(LOG)
    h.append(2, "z", place(2, 0), None)
    # What was acknowledged after the question may lie above its answer, and need not be read.
    h.checkers.on_tail(h.tick(), question, place(1, 1), 2)
    h.checkers.on_read_to_tail(question, place(1, 0), [place(1, 0), place(1, 0, 1)])
    h.tail(place(2, 1), 3)
    h.read_to_tail(place(1, 1), [place(2, 0)])


GOOD: tuple[Play, ...] = (
    keep_or_lose_what_is_uncertain, find_what_was_under_way_later, settle_late, try_anew,
    try_anew_and_be_there_once, try_anew_around_others, decide_in_order,
    leave_the_order_of_concurrent_appends_open, close_and_go_on, leave_out_holes,
    know_less_after_a_restart,
    end_with_a_control_entry_behind_a_hole,
    stop_at_an_absent_entry, acknowledge_by_answers_under_way, seal_again,
    lose_a_disk_after_the_fact, follow_the_lac, append_to_two_logs, prefer_and_degrade,
    pass_over_a_hole, answer_as_a_bookie_may, ask_for_tails,
)  # fmt: skip
