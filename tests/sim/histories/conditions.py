"""Histories of producers, conditions and fencing tokens: bad ones, and good ones that come near.

They break Q1, K1, U1, O3 or R29. Used by `test_checkers`.
"""

from __future__ import annotations

from duramen.core.segment import Totals
from duramen.core.sequencer.exactly_once.stamps import Stamp
from duramen.ids import Dlsn, EntryId, Epoch
from tests.sim.condition_record import Demand, Refusal
from tests.sim.histories.history import LOG, History, Play, bodies_of, place, records

OTHER_CLIENT = 1
FIRST = place(1, 0)
Row = tuple[int, int, int, int, str]


def ask(h: History, append_id: int, text: str, demand: Demand, client: int = 0) -> None:
    h.invoke(append_id, text, client)
    h.checkers.on_demand(client, LOG, append_id, demand, bodies_of(text))


def refuse(h: History, append_id: int, code: str, dlsn: Dlsn, seq_num: int) -> None:
    refusal = Refusal(code, dlsn, seq_num)
    h.checkers.on_refused(h.tick(), h.clients[append_id], LOG, append_id, refusal)


def match(h: History, append_id: int, text: str, seq_num: int, client: int = 0) -> None:
    ask(h, append_id, text, Demand(match_seq_num=seq_num), client)


def mismatch(h: History, append_id: int, dlsn: Dlsn, seq_num: int) -> None:
    refuse(h, append_id, "condition_failed", dlsn, seq_num)


def under(h: History, append_id: int, text: str, token: str, client: int = 0) -> None:
    ask(h, append_id, text, Demand(token=token), client)


def fence(h: History, append_id: int, dlsn: Dlsn, seq_num: int) -> None:
    refuse(h, append_id, "fencing_token_mismatch", dlsn, seq_num)


def begin_token(h: History, number: int, token: str, expected: str | None = None) -> None:
    h.checkers.conditions(LOG).on_set_token(0, number, token, expected)


def set_token(h: History, number: int, token: str, dlsn: Dlsn, expected: str | None = None) -> None:
    begin_token(h, number, token, expected)
    h.checkers.conditions(LOG).on_token_set(0, number, dlsn)


def control(h: History, dlsn: Dlsn, token: str) -> None:
    h.checkers.on_control_entry(LOG, dlsn.epoch, dlsn.entry, token)


def stamped(h: History, append_id: int, text: str, epoch: int, sequence: int) -> None:
    ask(h, append_id, text, Demand(stamp=Stamp("p", epoch, sequence)))


def finish(
    h: History, *rows: Row, tokens: tuple[tuple[Dlsn, str], ...] = (), head: Dlsn = FIRST
) -> None:
    for dlsn, token in tokens:
        control(h, dlsn, token)
    h.checkers.finish({LOG: records(*rows)}, {LOG: tokens}, {LOG: (head.epoch, head.entry)})


# --- Q1 ------------------------------------------------------------------------------------------


def accept_elsewhere(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    match(h, 2, "y", 0)
    h.ok(2, place(1, 1), 1)


def refuse_below_an_early_append(h: History) -> None:
    h.invoke(1, "x")
    h.checkers.on_acknowledge(h.tick(), 0, LOG, 1, place(2, 4), None)
    match(h, 2, "y", 0)
    mismatch(h, 2, place(2, 3), 7)


def refuse_what_holds(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    match(h, 2, "y", 1)
    mismatch(h, 2, place(1, 1), 1)


def refuse_as_a_zombie(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.append(2, "y", place(2, 0), 1)
    match(h, 3, "z", 2)
    mismatch(h, 3, place(1, 1), 1)


def append_below_what_a_refusal_told(h: History) -> None:
    h.doubt(1, "x", client=OTHER_CLIENT)
    match(h, 2, "y", 7)
    mismatch(h, 2, place(1, 1), 1)
    h.append(3, "z", place(1, 0), 0)
    h.finish((1, 0, 0, 0, "z"), (1, 1, 0, 1, "x"))


def refuse_at_no_boundary(h: History) -> None:
    h.append(1, "x y", place(1, 0), 0)
    match(h, 2, "z", 7)
    mismatch(h, 2, place(1, 1), 3)
    h.finish((1, 0, 0, 0, "x"), (1, 0, 1, 1, "y"))


def forget_a_producer(h: History) -> None:
    stamped(h, 1, "x", 0, 0)
    h.ok(1, place(1, 0), 0)
    stamped(h, 2, "y", 0, 1)
    h.checkers.conditions(LOG).on_attempt(0, 2)
    h.checkers.conditions(LOG).on_attempt_refused(0, 2, "producer_unknown", 0)


def ask_for_what_is_there(h: History) -> None:
    stamped(h, 1, "x", 0, 0)
    h.ok(1, place(1, 0), 0)
    stamped(h, 2, "y", 0, 1)
    h.checkers.conditions(LOG).on_attempt(0, 2)
    h.checkers.conditions(LOG).on_attempt_refused(0, 2, "producer_gap", 0)


def fence_the_newest_producer(h: History) -> None:
    stamped(h, 1, "x", 3, 0)
    h.checkers.conditions(LOG).on_attempt(0, 1)
    h.checkers.conditions(LOG).on_attempt_refused(0, 1, "producer_fenced", None)


# --- K1 ------------------------------------------------------------------------------------------


def append_under_an_old_token(h: History) -> None:
    set_token(h, 1, "old", place(1, 0))
    set_token(h, 2, "new", place(1, 1))
    under(h, 1, "x", "old")
    h.ok(1, place(1, 2), 0)
    finish(h, (1, 2, 0, 0, "x"), tokens=((place(1, 0), "old"), (place(1, 1), "new")))


def append_before_the_token(h: History) -> None:
    set_token(h, 1, "new", place(1, 1))
    under(h, 1, "x", "new")
    h.ok(1, place(1, 0), 0)


def forget_the_token(h: History) -> None:
    set_token(h, 1, "new", place(1, 0))
    under(h, 1, "x", "new")
    fence(h, 1, place(2, 0), 0)
    finish(h, tokens=((place(1, 0), "new"),))


def lose_a_token(h: History) -> None:
    set_token(h, 1, "new", place(1, 0))
    finish(h)


def read_another_token(h: History) -> None:
    set_token(h, 1, "new", place(1, 0))
    control(h, place(1, 0), "other")


def replace_another_token(h: History) -> None:
    set_token(h, 1, "first", place(1, 0))
    set_token(h, 2, "second", place(1, 1))
    set_token(h, 3, "third", place(1, 2), expected="first")
    names = "first", "second", "third"
    finish(h, tokens=tuple((place(1, entry), name) for entry, name in enumerate(names)))


def refuse_under_a_token_given_up_since(h: History) -> None:
    set_token(h, 1, "new", place(1, 0))
    begin_token(h, 2, "newer")
    under(h, 1, "x", "new")
    fence(h, 1, place(1, 3), 0)
    h.checkers.conditions(LOG).on_token_failed(0, 2)
    finish(h, head=place(1, 2))


# --- U1, O3 --------------------------------------------------------------------------------------


def report_a_repetition_another_place(h: History) -> None:
    stamped(h, 1, "x", 0, 0)
    h.ok(1, place(1, 0), 0)
    h.checkers.on_repeated(0, LOG, 1, place(2, 0), 1)


def lose_what_was_said_to_be_stored(h: History) -> None:
    stamped(h, 1, "x", 0, 0)
    h.uncertain(1)
    h.checkers.conditions(LOG).on_stored(0, 1)
    h.finish()


def leave_out_a_sequence(h: History) -> None:
    stamped(h, 1, "x", 0, 0)
    h.ok(1, place(1, 0), 0)
    stamped(h, 2, "y", 0, 1)
    h.uncertain(2)
    stamped(h, 3, "z", 0, 2)
    h.ok(3, place(1, 1), 1)
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "z"))


def go_back_to_an_older_instance(h: History) -> None:
    stamped(h, 1, "x", 0, 0)
    h.uncertain(1)
    stamped(h, 2, "y", 1, 0)
    h.ok(2, place(1, 0), 0)
    h.finish((1, 0, 0, 0, "y"), (1, 1, 0, 1, "x"))


# --- R29 -----------------------------------------------------------------------------------------


def judge_a_condition_out_of_order(h: History) -> None:
    h.open(3, ack_mode="out_of_order")
    match(h, 1, "x", 0)
    h.ok(1, place(3, 0), 0)


def take_a_producer_out_of_order(h: History) -> None:
    h.open(3, ack_mode="out_of_order")
    stamped(h, 1, "x", 0, 0)
    h.ok(1, place(3, 0), 0)


def change_the_mode_above_a_producer(h: History) -> None:
    stamped(h, 1, "x", 0, 0)
    h.ok(1, place(2, 0), 0)
    h.open(3, ack_mode="out_of_order")


def change_the_mode_above_a_token(h: History) -> None:
    set_token(h, 1, "new", place(1, 0))
    h.open(3)
    h.open(4, ack_mode="out_of_order")


def acknowledge_a_producer_below_the_change(h: History) -> None:
    stamped(h, 1, "x", 0, 0)
    h.open(3, ack_mode="out_of_order")
    h.ok(1, place(2, 0), 0)


def refuse_for_a_mode_that_nobody_wished_for(h: History) -> None:
    h.checkers.conditions(LOG).on_wish("ordered")
    h.checkers.conditions(LOG).on_mode_refused("needs_ordered")


# --- Good ones -----------------------------------------------------------------------------------


def refuse_what_became_true_meanwhile(h: History) -> None:
    match(h, 1, "x", 1, client=OTHER_CLIENT)
    h.append(2, "y", place(1, 0), 0)
    mismatch(h, 1, place(1, 0), 0)
    match(h, 3, "z", 1)
    h.ok(3, place(1, 1), 1)
    h.finish((1, 0, 0, 0, "y"), (1, 1, 0, 1, "z"))


def refuse_for_what_is_uncertain(h: History) -> None:
    h.doubt(1, "x", client=OTHER_CLIENT)
    match(h, 2, "y", 0)
    mismatch(h, 2, place(1, 1), 1)
    h.append(3, "z", place(1, 1), 1)
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "z"))


def change_tokens_under_way(h: History) -> None:
    set_token(h, 1, "old", place(1, 0))
    begin_token(h, 2, "new", expected="old")
    under(h, 1, "x", "old")
    h.ok(1, place(1, 1), 0)
    under(h, 2, "y", "old")
    fence(h, 2, place(1, 3), 1)
    under(h, 3, "z", "new")
    h.ok(3, place(1, 3), 1)
    tokens = (place(1, 0), "old"), (place(1, 2), "new")
    finish(h, (1, 1, 0, 0, "x"), (1, 3, 0, 1, "z"), tokens=tokens)


def set_a_token_twice_and_see_it_once(h: History) -> None:
    """Its setter's call was repeated: the first record was truncated before anybody read it."""
    set_token(h, 1, "old", place(1, 0))
    begin_token(h, 2, "new")
    under(h, 1, "x", "old")
    fence(h, 1, place(1, 3), 0)
    h.checkers.conditions(LOG).on_token_set(0, 2, place(1, 4))
    finish(h, tokens=((place(1, 4), "new"),), head=place(1, 2))


def repeat_until_it_is_there(h: History) -> None:
    stamped(h, 1, "x", 0, 0)
    h.uncertain(1)
    stamped(h, 2, "y", 1, 0)
    conditions = h.checkers.conditions(LOG)
    conditions.on_attempt(0, 2)
    conditions.on_attempt_refused(0, 2, "producer_unknown", 0)
    h.ok(2, place(1, 1), 1)
    conditions.on_attempt(0, 1)
    conditions.on_attempt_refused(0, 1, "producer_fenced", None)
    h.checkers.on_repeated(0, LOG, 2, place(1, 1), 1)
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "y"))


def come_once_the_log_is_ordered(h: History) -> None:
    """What lies in a hole of an epoch out of order has its numbers: the tail is above them."""
    conditions = h.checkers.conditions(LOG)
    conditions.on_wish("out_of_order")
    h.open(3, ack_mode="out_of_order")
    h.append(1, "x", place(3, 0), 0)
    match(h, 2, "y", 1)
    conditions.on_mode_refused("needs_ordered")
    h.fail(2)
    holes = ((EntryId(1), EntryId(1)),)
    h.close(1, -1, 0, 0)
    h.close(2, -1, 0, 0)
    h.checkers.on_control_entry(LOG, Epoch(3), EntryId(2))
    h.checkers.on_segment_closed(LOG, Epoch(3), EntryId(2), Totals(3), 0, None, holes=holes)
    h.open(4)
    match(h, 3, "z", 1)
    mismatch(h, 3, place(4, 0), 3)
    stamped(h, 4, "w", 0, 0)
    h.ok(4, place(4, 0), 3)
    conditions.on_wish("out_of_order")
    h.open(5)
    conditions.on_mode_refused("mode_changing")
    h.finish((3, 0, 0, 0, "x"), (4, 0, 0, 3, "w"))


BAD: dict[str, tuple[Play, ...]] = {
    "Q1": (
        accept_elsewhere, refuse_below_an_early_append, refuse_what_holds, refuse_as_a_zombie,
        refuse_at_no_boundary, forget_a_producer, ask_for_what_is_there, fence_the_newest_producer,
    ),
    "O2": (append_below_what_a_refusal_told,),
    "K1": (
        append_under_an_old_token, append_before_the_token, forget_the_token, lose_a_token,
        read_another_token, replace_another_token, refuse_under_a_token_given_up_since,
    ),
    "U1": (report_a_repetition_another_place, lose_what_was_said_to_be_stored),
    "O3": (leave_out_a_sequence, go_back_to_an_older_instance),
    "R29": (
        judge_a_condition_out_of_order, take_a_producer_out_of_order,
        change_the_mode_above_a_producer, change_the_mode_above_a_token,
        acknowledge_a_producer_below_the_change, refuse_for_a_mode_that_nobody_wished_for,
    ),
}  # fmt: skip

GOOD: tuple[Play, ...] = (
    refuse_what_became_true_meanwhile, refuse_for_what_is_uncertain, change_tokens_under_way,
    set_a_token_twice_and_see_it_once, repeat_until_it_is_there, come_once_the_log_is_ordered,
)  # fmt: skip
