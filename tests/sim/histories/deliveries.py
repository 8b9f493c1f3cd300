"""Histories of subscribers and tails: bad ones break G1 or L1, good ones nothing.

A log of four records in two segments, with a millisecond between two appends. Used by
`test_checkers`.
"""

from __future__ import annotations

from duramen.ids import Dlsn, EntryId, Epoch
from duramen.runtime.reading.positioning.positions import Start
from duramen.runtime.reading.tail import Tail
from duramen.texts import Position, PositionKind
from duramen.units import MS
from tests.sim.delivery_record import Delivery
from tests.sim.histories.history import LOG, History, Play, place

_ROWS = ((1, 0, 0, 0, "x"), (1, 1, 0, 1, "y"), (2, 0, 0, 2, "z"), (2, 1, 0, 3, "u"))
_HEAD = Position(PositionKind.HEAD)


def write_four(h: History) -> None:
    for number, (epoch, entry, slot, seq_num, text) in enumerate(_ROWS):
        h.now_us += MS
        h.append(number + 1, text, place(epoch, entry, slot), seq_num)
    h.close(1, 1, 2, 0)


def subscribe(
    h: History, position: Position, start: Dlsn, seq_num: int, *, tail: Tail | None = None
) -> Delivery:
    """Somebody asks for a position now and is told that it lies there."""
    where = Start(start.epoch, start.entry, seq_num, tail)
    return h.checkers.on_start(h.checkers.on_tail_asked(LOG), position, where)


def deliver(delivery: Delivery, *seq_nums: int) -> None:
    for seq_num in seq_nums:
        delivery.take(seq_num)


# --- A subscriber ------------------------------------------------------------------------------


def miss_a_record(h: History) -> None:
    write_four(h)
    deliver(subscribe(h, _HEAD, place(1, 0), 0), 0, 1, 3)
    h.finish(*_ROWS)


def miss_the_first_record(h: History) -> None:
    write_four(h)
    deliver(subscribe(h, _HEAD, place(1, 0), 0), 1, 2, 3)
    h.finish(*_ROWS)


def miss_the_end(h: History) -> None:
    write_four(h)
    deliver(subscribe(h, _HEAD, place(1, 0), 0), 0, 1, 2)
    h.finish(*_ROWS)


def miss_what_a_gap_does_not_tell_of(h: History) -> None:
    write_four(h)
    delivery = subscribe(h, _HEAD, place(1, 0), 0)
    delivery.pass_gap(1)
    deliver(delivery, 2, 3)
    h.finish(*_ROWS)


def get_a_record_again(h: History) -> None:
    write_four(h)
    deliver(subscribe(h, _HEAD, place(1, 0), 0), 0, 1, 1)


def get_records_out_of_order(h: History) -> None:
    write_four(h)
    deliver(subscribe(h, _HEAD, place(1, 0), 0), 0, 2, 1)


def get_what_was_never_there(h: History) -> None:
    write_four(h)
    deliver(subscribe(h, _HEAD, place(1, 0), 0), 0, 1, 2, 3, 4)
    h.finish(*_ROWS)


# --- A position --------------------------------------------------------------------------------


def begin_behind_a_number(h: History) -> None:
    write_four(h)
    subscribe(h, Position(PositionKind.SEQ, 1), place(2, 0), 2).leave()
    h.finish(*_ROWS)


def begin_behind_a_place(h: History) -> None:
    write_four(h)
    subscribe(h, Position(PositionKind.DLSN, dlsn=place(1, 1)), place(2, 0), 2).leave()
    h.finish(*_ROWS)


def begin_before_an_lsn(h: History) -> None:
    write_four(h)
    subscribe(h, Position(PositionKind.LSN, 2 << 32), place(1, 1), 1).leave()
    h.finish(*_ROWS)


def begin_behind_a_time(h: History) -> None:
    write_four(h)
    subscribe(h, Position(PositionKind.TIME, 2), place(2, 0), 2).leave()
    h.finish(*_ROWS)


def begin_before_a_time(h: History) -> None:
    write_four(h)
    subscribe(h, Position(PositionKind.TIME, 3), place(1, 1), 1).leave()
    h.finish(*_ROWS)


# --- A tail ------------------------------------------------------------------------------------


def call_a_tail_sure_beyond_what_anybody_wrote(h: History) -> None:
    write_four(h)
    h.tail(place(2, 3), 5)


def call_a_tail_sure_beyond_the_end(h: History) -> None:
    write_four(h)
    h.doubt(5, "v")
    h.tail(place(2, 3), 5)
    h.finish(*_ROWS)


def number_a_tail_below_what_precedes_it(h: History) -> None:
    h.tail(place(2, 1), 0)
    write_four(h)
    h.finish(*_ROWS)


# --- What may be -------------------------------------------------------------------------------


def deliver_everything(h: History) -> None:
    write_four(h)
    deliver(subscribe(h, _HEAD, place(1, 0), 0), 0, 1, 2, 3)
    deliver(subscribe(h, Position(PositionKind.SEQ, 2), place(2, 0), 2), 2, 3)
    deliver(subscribe(h, Position(PositionKind.TIME, 3), place(2, 0), 2), 2, 3)
    deliver(subscribe(h, Position(PositionKind.LSN, 1 << 32 | 2), place(2, 0), 2), 2, 3)
    # Who leaves need not have all of it, and who was told of a gap not what lies in it.
    left = subscribe(h, _HEAD, place(1, 0), 0)
    deliver(left, 0)
    left.leave()
    told, unsure = subscribe(h, _HEAD, place(1, 0), 0), subscribe(h, _HEAD, place(1, 0), 0)
    told.pass_gap(2)
    unsure.pass_gap()
    deliver(told, 2, 3)
    deliver(unsure, 3)
    h.tail(place(2, 2), 4)
    h.finish(*_ROWS)


def begin_at_the_tail(h: History) -> None:
    subscribe(h, Position(PositionKind.SEQ, 9), place(1, 0), 0).leave()
    write_four(h)
    # A time behind a tail that is not sure is read from there on.
    unsure = Tail(Epoch(1), EntryId(1), EntryId(0), 1, 0, is_sure=False)
    subscribe(h, Position(PositionKind.TIME, 9), place(1, 1), 1, tail=unsure).leave()
    h.finish(*_ROWS)


BAD: dict[str, tuple[Play, ...]] = {
    "G1": (
        miss_a_record, miss_the_first_record, miss_the_end, miss_what_a_gap_does_not_tell_of,
        get_a_record_again, get_records_out_of_order, get_what_was_never_there,
        begin_behind_a_number, begin_behind_a_place, begin_before_an_lsn, begin_behind_a_time,
        begin_before_a_time,
    ),
    "L1": (
        call_a_tail_sure_beyond_what_anybody_wrote, call_a_tail_sure_beyond_the_end,
        number_a_tail_below_what_precedes_it,
    ),
}  # fmt: skip

GOOD: tuple[Play, ...] = (deliver_everything, begin_at_the_tail)
