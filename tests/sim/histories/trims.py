"""Histories about truncation: those that break T1, and one that does not.

Log nodes are made as they would lie in the metadata store, without the transitions that refuse such
a change: what a broken product writes. Used by `test_checkers`.
"""

from __future__ import annotations

from dataclasses import replace

from duramen.config import LogConfig
from duramen.core.log_node import LogNode
from duramen.ids import EntryId, Epoch, lsn_of
from tests.sim.histories.history import LOG, A, B, History, Play, place


def trim(h: History, *points: tuple[int, int, int]) -> None:
    """The log is truncated before one (epoch, entry, sequence number) after the other."""
    log = LogNode(LOG, "ns", "log", LogConfig(), next_epoch=Epoch(3))
    for epoch, entry, seq_num in points:
        lsn = lsn_of(Epoch(epoch), EntryId(entry))
        after = replace(log, trim_lsn=lsn, trim_seq_num=seq_num)
        h.checkers.on_log_changed(log, after)
        log = after


def write_three(h: History) -> None:
    for number, body in enumerate("xyz"):
        h.store((A, B), number)
        h.append(number, body, place(1, number), number)
        h.confirm(number)


def go_back(h: History) -> None:
    write_three(h)
    trim(h, (1, 2, 2), (1, 1, 1))


def go_back_in_numbers(h: History) -> None:
    write_three(h)
    trim(h, (1, 1, 1), (1, 2, 0))


def trim_above_the_lac(h: History) -> None:
    write_three(h)
    trim(h, (1, 4, 4))


def trim_beyond_a_closed_end(h: History) -> None:
    write_three(h)
    h.close(1, 2, 3, 0)
    trim(h, (1, 4, 3))


def trim_an_epoch_that_is_not_begun(h: History) -> None:
    write_three(h)
    trim(h, (2, 0, 3))


def give_up_what_is_live(h: History) -> None:
    log = LogNode(LOG, "ns", "log", LogConfig(), next_epoch=Epoch(3), last_clean_epoch=1)
    live = replace(log, trim_lsn=lsn_of(Epoch(1), EntryId(1)), first_live_epoch=Epoch(2))
    h.checkers.on_log_changed(live, replace(live, first_live_epoch=Epoch(1)))


def name_another_record(h: History) -> None:
    write_three(h)
    trim(h, (1, 1, 2))
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "y"), (1, 2, 0, 2, "z"))


def truncate_step_by_step(h: History) -> None:
    write_three(h)
    trim(h, (1, 1, 1), (1, 3, 3))
    h.close(1, 2, 3, 0)
    trim(h, (1, 3, 3), (2, 0, 3))
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "y"), (1, 2, 0, 2, "z"))


BAD: dict[str, tuple[Play, ...]] = {
    "T1": (
        go_back, go_back_in_numbers, trim_above_the_lac, trim_beyond_a_closed_end,
        trim_an_epoch_that_is_not_begun, give_up_what_is_live, name_another_record,
    ),
}  # fmt: skip

GOOD: tuple[Play, ...] = (truncate_step_by_step,)
