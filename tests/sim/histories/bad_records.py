"""Histories that break D1, D3, U1, O1, O2, O3 or G1, each of them one invariant only.

What was appended, acknowledged and read does not fit together; segments are in `bad_segments`.
The table at the end says which code each must be rejected with. Used by `test_checkers`.
"""

from __future__ import annotations

from duramen.core.segment import Totals
from duramen.ids import EntryId, Epoch
from tests.sim.histories.history import LOG, OTHER, PIPELINED, A, B, History, Play, place

# --- D1, D3, U1 ----------------------------------------------------------------------------------


def lose_an_append(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.finish()


def lose_a_record_of_an_append(h: History) -> None:
    h.append(1, "x y", place(1, 0), 0)
    h.finish((1, 0, 0, 0, "x"))


def move_an_append(h: History) -> None:
    h.doubt(1, "w")
    h.append(2, "x", place(1, 0), 0)
    h.finish((1, 0, 0, 0, "w"), (1, 1, 0, 1, "x"))


def number_an_append_anew(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.finish((1, 0, 0, 1, "x"))


def change_bytes_before_a_reader(h: History) -> None:
    h.doubt(1, "w")
    h.append(2, "x", place(1, 0), 0)
    h.read(0, place(1, 0), 0, "w")


def acknowledge_where_a_reader_saw_another(h: History) -> None:
    h.doubt(1, "w")
    h.invoke(2, "x")
    h.read(0, place(1, 0), 0, "w")
    h.ok(2, place(1, 0), 0)


def acknowledge_twice_at_one_place(h: History) -> None:
    h.doubt(1, "x")
    h.append(2, "x", place(1, 0), 0)
    h.ok(1, place(1, 0), 0)


def lose_what_was_settled_late(h: History) -> None:
    h.doubt(1, "x")
    h.ok(1, place(1, 0), 0)
    h.finish()


def read_to_a_tail_past_an_append(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.append(2, "y", place(1, 1), 1)
    h.read_to_tail(place(1, 0), (place(1, 0),))


def close_below_an_acknowledged_entry(h: History) -> None:
    h.store((A, B), 0)
    h.confirm(0)
    h.close(1, -1, 0, 0)


def conclude_below_an_acknowledged_entry(h: History) -> None:
    h.store((A, B), 0)
    h.confirm(0)
    h.close(1, -1, 0, 0, own=True)


def acknowledge_beyond_the_end(h: History) -> None:
    h.store((A, B), 0)
    h.close(1, -1, 0, 0)
    h.confirm(0)


def read_what_nobody_appended(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.read(0, place(1, 1), 1, "y")


def read_what_another_log_was_given(h: History) -> None:
    h.invoke(1, "x", log_id=OTHER)
    h.read(0, place(1, 0), 0, "x")


def read_before_it_was_invoked(h: History) -> None:
    h.read(0, place(1, 0), 0, "x")
    h.append(1, "x", place(1, 0), 0)


def read_a_refused_append(h: History) -> None:
    h.invoke(1, "x")
    h.fail(1)
    h.read(0, place(1, 0), 0, "x")


def read_the_end_of_a_refused_append(h: History) -> None:
    h.invoke(1, "x y")
    h.fail(1)
    h.read(0, place(1, 0, 1), 1, "y")


def refuse_what_was_read(h: History) -> None:
    h.invoke(1, "x")
    h.read(0, place(1, 0), 0, "x")
    h.fail(1)


def keep_a_refused_append(h: History) -> None:
    h.invoke(1, "x")
    h.fail(1)
    h.finish((1, 0, 0, 0, "x"))


def keep_a_refused_append_beside_its_retry(h: History) -> None:
    h.invoke(1, "x")
    h.fail(1)
    h.append(2, "x", place(1, 1), 1)
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "x"))


def keep_half_an_append(h: History) -> None:
    h.doubt(1, "x y")
    h.finish((1, 0, 0, 0, "x"))


def keep_an_append_in_two_entries(h: History) -> None:
    h.doubt(1, "x y")
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "y"))


def keep_an_append_in_wrong_order(h: History) -> None:
    h.doubt(1, "x y")
    h.finish((1, 0, 0, 0, "y"), (1, 0, 1, 1, "x"))


def double_an_append(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "x"))


def double_an_uncertain_append(h: History) -> None:
    h.doubt(1, "x y")
    h.finish((1, 0, 0, 0, "x"), (1, 0, 1, 1, "y"), (1, 1, 0, 2, "x"), (1, 1, 1, 3, "y"))


def read_an_append_at_two_places(h: History) -> None:
    h.doubt(1, "x")
    h.read(0, place(1, 0), 0, "x")
    h.read(1, place(1, 1), 1, "x")


def find_a_third_copy_of_two(h: History) -> None:
    h.doubt(1, "x")
    h.append(2, "x", place(1, 1), 1)
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "x"), (1, 2, 0, 2, "x"))


# --- O1, O2, O3, G1 ------------------------------------------------------------------------------


def show_two_readers_different_bytes(h: History) -> None:
    h.invoke(1, "x", client=0)
    h.invoke(2, "y", client=1)
    h.read(0, place(1, 0), 0, "x")
    h.read(1, place(1, 0), 0, "y")


def show_two_readers_different_numbers(h: History) -> None:
    h.invoke(1, "x")
    h.read(0, place(1, 0), 0, "x")
    h.read(1, place(1, 0), 1, "x")


def show_one_number_at_two_places(h: History) -> None:
    h.invoke(1, "x", client=0)
    h.invoke(2, "y", client=1)
    h.read(0, place(1, 0), 0, "x")
    h.read(0, place(1, 1), 0, "y")


def take_back_what_was_read(h: History) -> None:
    h.doubt(1, "x")
    h.read(0, place(1, 0), 0, "x")
    h.finish()


def read_other_bytes_at_last(h: History) -> None:
    h.doubt(1, "x")
    h.doubt(2, "y")
    h.read(0, place(1, 0), 0, "x")
    h.finish((1, 0, 0, 0, "y"))


def read_two_records_at_one_place(h: History) -> None:
    h.doubt(1, "x")
    h.doubt(2, "y")
    h.finish((1, 0, 0, 0, "x"), (1, 0, 0, 1, "y"))


def acknowledge_below_another_client(h: History) -> None:
    h.append(1, "x", place(1, 1), 1, client=0)
    h.append(2, "y", place(1, 0), 0, client=1)


def acknowledge_inside_another_append(h: History) -> None:
    h.append(1, "x y", place(1, 0), 0, client=0)
    h.append(2, "z", place(1, 1), 1, client=1)


def find_a_late_append_in_front(h: History) -> None:
    h.append(1, "x", place(1, 1), 1, client=0)
    h.doubt(2, "y", client=1)
    h.finish((1, 0, 0, 0, "y"), (1, 1, 0, 1, "x"))


def find_an_unanswered_append_in_front(h: History) -> None:
    h.append(1, "x", place(1, 1), 1, client=0)
    h.invoke(2, "y", client=1)
    h.finish((1, 0, 0, 0, "y"), (1, 1, 0, 1, "x"))


def turn_a_client_around(h: History) -> None:
    h.append(1, "x", place(1, 1), 1)
    h.append(2, "y", place(1, 0), 0)


def turn_a_pipelined_client_around(h: History) -> None:
    h.invoke(1, "x", PIPELINED)
    h.invoke(2, "y", PIPELINED)
    h.ok(2, place(1, 1), 1)
    h.append(3, "z", place(1, 0), 0, PIPELINED)


def find_a_clients_doubt_in_front(h: History) -> None:
    h.append(1, "x", place(1, 1), 1)
    h.doubt(2, "y")
    h.finish((1, 0, 0, 0, "y"), (1, 1, 0, 1, "x"))


def put_off_what_was_decided(h: History) -> None:
    h.invoke(1, "x")
    h.uncertain(1, is_under_way=False)
    h.append(2, "y", place(1, 0), 0)
    h.finish((1, 0, 0, 0, "y"), (1, 1, 0, 1, "x"))


def turn_a_session_around(h: History) -> None:
    h.invoke(1, "x", client=PIPELINED)
    h.invoke(2, "y", client=PIPELINED)
    h.send_in_order(1, 2)
    h.ok(2, place(1, 0), 0)
    h.uncertain(1)
    h.finish((1, 0, 0, 0, "y"), (1, 1, 0, 1, "x"))


def start_at_one(h: History) -> None:
    h.doubt(1, "x")
    h.finish((1, 0, 0, 1, "x"))


def skip_a_record_before_a_reader(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.append(2, "y", place(1, 1), 1)
    h.append(3, "z", place(1, 2), 2)
    h.read(0, place(1, 0), 0, "x")
    h.read(0, place(1, 2), 2, "z")


def leave_out_a_number(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.append(2, "y", place(1, 1), 2)
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 2, "y"))


def leave_out_an_entry(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.append(2, "y", place(1, 2), 1)
    h.finish((1, 0, 0, 0, "x"), (1, 2, 0, 1, "y"))


def read_a_record_twice(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.finish((1, 0, 0, 0, "x"), (1, 0, 0, 0, "x"))


def leave_out_a_slot(h: History) -> None:
    h.append(1, "x", place(1, 0, 1), 0)
    h.finish((1, 0, 1, 0, "x"))


def end_with_a_control_entry_behind_no_hole(h: History) -> None:
    """Entry 1 has records, which the read leaves out; nobody waited for their answer."""
    h.append(1, "x", place(1, 0), 0)
    h.doubt(2, "p q")
    h.checkers.on_segment_closed(LOG, Epoch(1), EntryId(2), Totals(3), 0, None)
    h.checkers.on_control_entry(LOG, Epoch(1), EntryId(2))
    h.finish((1, 0, 0, 0, "x"))


def end_at_a_hole(h: History) -> None:
    """What the segment ends with is no control entry, and is not there."""
    h.append(1, "x", place(1, 0), 0)
    h.doubt(2, "p q")
    h.doubt(3, "r")
    holes = ((EntryId(1), EntryId(1)),)
    h.checkers.on_segment_closed(LOG, Epoch(1), EntryId(2), Totals(4), 0, None, holes=holes)
    h.finish((1, 0, 0, 0, "x"))


def end_before_the_end(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.close(1, 1, 1, 0)
    h.finish((1, 0, 0, 0, "x"))


def hold_fewer_records_than_said(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.close(1, 0, 2, 0)
    h.finish((1, 0, 0, 0, "x"))


def hold_records_beyond_open_epochs(h: History) -> None:
    h.doubt(1, "x")
    h.finish((2, 0, 0, 0, "x"))


def turn_epochs_around(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.append(2, "y", place(2, 0), 1)
    h.close(1, 0, 1, 0)
    h.finish((2, 0, 0, 1, "y"), (1, 0, 0, 0, "x"))


def close_before_the_predecessor(h: History) -> None:
    h.close(2, 0, 1, 0)


def start_where_the_predecessor_did_not_end(h: History) -> None:
    h.close(1, 0, 3, 0)
    h.close(2, 0, 1, 2)


def close_with_records_and_no_entry(h: History) -> None:
    h.close(1, -1, 1, 0)


def read_beyond_the_end(h: History) -> None:
    h.doubt(1, "x")
    h.close(1, -1, 0, 0)
    h.read(0, place(1, 0), 0, "x")


BAD: dict[str, tuple[Play, ...]] = {
    "D1": (
        lose_an_append, lose_a_record_of_an_append, move_an_append, number_an_append_anew,
        change_bytes_before_a_reader, acknowledge_where_a_reader_saw_another,
        acknowledge_twice_at_one_place, read_to_a_tail_past_an_append,
        lose_what_was_settled_late, close_below_an_acknowledged_entry,
        conclude_below_an_acknowledged_entry, acknowledge_beyond_the_end,
    ),
    "D3": (
        read_what_nobody_appended, read_what_another_log_was_given, read_before_it_was_invoked,
        read_a_refused_append, read_the_end_of_a_refused_append, refuse_what_was_read,
        keep_a_refused_append, keep_a_refused_append_beside_its_retry, keep_half_an_append,
        keep_an_append_in_two_entries, keep_an_append_in_wrong_order,
    ),
    "U1": (
        double_an_append, double_an_uncertain_append, read_an_append_at_two_places,
        find_a_third_copy_of_two,
    ),
    "O1": (
        show_two_readers_different_bytes, show_two_readers_different_numbers,
        show_one_number_at_two_places, take_back_what_was_read, read_other_bytes_at_last,
        read_two_records_at_one_place,
    ),
    "O2": (
        acknowledge_below_another_client, acknowledge_inside_another_append,
        find_a_late_append_in_front, find_an_unanswered_append_in_front,
    ),
    "O3": (
        turn_a_client_around, turn_a_pipelined_client_around, find_a_clients_doubt_in_front,
        put_off_what_was_decided, turn_a_session_around,
    ),
    "G1": (
        start_at_one, leave_out_a_number, leave_out_an_entry, leave_out_a_slot,
        read_a_record_twice,
        end_with_a_control_entry_behind_no_hole, end_at_a_hole,
        end_before_the_end, hold_fewer_records_than_said, hold_records_beyond_open_epochs,
        skip_a_record_before_a_reader,
        turn_epochs_around, close_before_the_predecessor, close_with_records_and_no_entry,
        start_where_the_predecessor_did_not_end, read_beyond_the_end,
    ),
}  # fmt: skip
