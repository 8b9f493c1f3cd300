"""Histories about truncation and retention: those that break T1, and two that do not.

Log nodes are made as they would lie in the metadata store, without the transitions that refuse such
a change: what a broken product writes. Used by `test_checkers`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from duramen.config import LogConfig, parse_log_config
from duramen.core.log_node import LogNode
from duramen.ids import EntryId, Epoch, ledger_of, lsn_of
from duramen.units import HOUR
from tests.sim.histories.history import LOG, A, B, History, Play, place


def trim(h: History, *points: tuple[int, int, int]) -> None:
    """The log is truncated before one (epoch, entry, sequence number) after the other."""
    log = LogNode(LOG, "ns", "log", LogConfig(), next_epoch=Epoch(3))
    h.checkers.on_truncation(LOG, is_asked=True)
    for epoch, entry, seq_num in points:
        lsn = lsn_of(Epoch(epoch), EntryId(entry))
        after = replace(log, trim_lsn=lsn, trim_seq_num=seq_num)
        h.checkers.on_log_changed(h.tick(), log, after)
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
    h.checkers.on_log_changed(h.tick(), live, replace(live, first_live_epoch=Epoch(1)))


def close_first(h: History) -> None:
    h.close(1, 2, 3, 0)
    h.checkers.on_completed(h.tick(), LOG, Epoch(1), 0)


def change(h: History, before: LogNode, **fields: Any) -> LogNode:
    after = replace(before, **fields)
    h.checkers.on_log_changed(h.tick(), before, after)
    return after


def make_log(**retention: str) -> LogNode:
    config = parse_log_config({"retention": retention})
    return LogNode(LOG, "ns", "log", config, next_epoch=Epoch(3), last_clean_epoch=1)


def expire_too_early(h: History) -> None:
    write_three(h)
    close_first(h)
    change(h, make_log(age="1h"), trim_lsn=lsn_of(Epoch(2), EntryId(0)), trim_seq_num=3)


def expire_what_is_not_too_much(h: History) -> None:
    write_three(h)
    close_first(h)
    change(h, make_log(bytes="1KiB"), trim_lsn=lsn_of(Epoch(2), EntryId(0)), trim_seq_num=3)


def give_up_what_nobody_truncated(h: History) -> None:
    write_three(h)
    close_first(h)
    change(h, make_log(), first_live_epoch=Epoch(2))


def give_up_at_once(h: History) -> None:
    write_three(h)
    close_first(h)
    h.checkers.on_truncation(LOG, is_asked=True)
    end = lsn_of(Epoch(2), EntryId(0))
    log = change(h, make_log(truncated="1h"), trim_lsn=end, trim_seq_num=3)
    change(h, log, first_live_epoch=Epoch(2))


def drop_what_is_not_given_up(h: History) -> None:
    write_three(h)
    close_first(h)
    h.checkers.on_dropped(LOG, Epoch(2))


def remove_a_live_segment(h: History) -> None:
    write_three(h)
    close_first(h)
    h.checkers.on_segment_removed(LOG, Epoch(1))


def purge_below_the_end(h: History) -> None:
    write_three(h)
    close_first(h)
    h.checkers.on_purged(ledger_of(LOG, Epoch(1)), EntryId(1))


def skip_what_is_there(h: History) -> None:
    write_three(h)
    h.checkers.on_skip(1, LOG, Epoch(2), EntryId(0))


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


def go_on_after_the_end(h: History) -> None:
    change(h, replace(make_log(), is_ended=True), next_epoch=Epoch(4))


def take_an_end_back(h: History) -> None:
    change(h, replace(make_log(), is_ended=True), is_ended=False)


def give_up_what_is_over(h: History) -> None:
    write_three(h)
    close_first(h)
    h.now_us += 3 * HOUR
    end = lsn_of(Epoch(2), EntryId(0))
    log = change(h, make_log(age="1h", truncated="1h"), trim_lsn=end, trim_seq_num=3)
    h.now_us += HOUR
    change(h, log, first_live_epoch=Epoch(2))
    h.checkers.on_segment_removed(LOG, Epoch(1))
    h.checkers.on_dropped(LOG, Epoch(2))
    h.checkers.on_purged(ledger_of(LOG, Epoch(1)), EntryId(2))
    h.append(7, "u", place(2, 0), 3)
    h.checkers.on_skip(1, LOG, Epoch(2), EntryId(0))
    h.read(1, place(2, 0), 3, "u")
    h.finish((2, 0, 0, 3, "u"))


BAD: dict[str, tuple[Play, ...]] = {
    "E1": (go_on_after_the_end, take_an_end_back),
    "T1": (
        go_back, go_back_in_numbers, trim_above_the_lac, trim_beyond_a_closed_end,
        trim_an_epoch_that_is_not_begun, give_up_what_is_live, name_another_record,
        expire_too_early, expire_what_is_not_too_much, give_up_what_nobody_truncated,
        give_up_at_once, drop_what_is_not_given_up, remove_a_live_segment, purge_below_the_end,
        skip_what_is_there,
    ),
}  # fmt: skip

GOOD: tuple[Play, ...] = (truncate_step_by_step, give_up_what_is_over)
