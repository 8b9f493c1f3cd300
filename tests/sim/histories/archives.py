"""Histories about the archive: those that break A1, and two that do not.

Nodes are made as they would lie in the metadata store, without the transitions that refuse such a
change: what a broken product writes. Used by `test_checkers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from duramen.config import parse_log_config
from duramen.core.cold_copy import ColdCopy
from duramen.core.log_node import LogNode
from duramen.core.segment import Segment, Totals
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, Member, lsn_of
from duramen.units import HOUR
from tests.sim.histories.history import LOG, A, B, C, D, History, Play, make_segment, place

COPY = ColdCopy("0a" * 16, "1b" * 32, 10, verified_unix_ms=1)
TOLD = COPY.rechecked(2)
WHOLE = (0, 1, 2)


def make_log(policy: str = "move", keep_hot: str = "0s") -> LogNode:
    """A log of which nobody has produced anything up to its first epoch."""
    config = parse_log_config({"tiering": {"policy": policy, "keep_hot": keep_hot}})
    log = LogNode(LOG, "ns", "log", config, next_epoch=Epoch(3), last_clean_epoch=1)
    return replace(log, snapshot_lsn=lsn_of(Epoch(2), NOTHING))


def close_first(h: History) -> Segment:
    for number, body in enumerate("xyz"):
        h.store((A, B), number)
        h.append(number, body, place(1, number), number)
        h.confirm(number)
    h.close(1, 2, 3, 0)
    h.checkers.on_completed(h.tick(), LOG, Epoch(1), 0)
    return make_segment().closed(
        last_entry=EntryId(2), totals=Totals(3), start_seq_num=0, completed_unix_ms=0, nonce=""
    )


def name(
    h: History, before: Segment, copy: ColdCopy | None, entries: Sequence[int] = WHOLE
) -> Segment:
    after = replace(before, cold_copy=copy)
    h.checkers.on_copies_changed(h.tick(), before, after, entries)
    return after


def release(h: History, log: LogNode, epoch: int = 2) -> LogNode:
    after = replace(log, first_hot_epoch=Epoch(epoch))
    h.checkers.on_log_changed(h.tick(), log, after)
    return after


def archive_first(h: History) -> Segment:
    return name(h, name(h, close_first(h), COPY), TOLD)


def release_without_a_copy(h: History) -> None:
    close_first(h)
    release(h, make_log())


def release_without_a_second_look(h: History) -> None:
    name(h, close_first(h), COPY)
    release(h, make_log())


def release_what_was_taken_back(h: History) -> None:
    name(h, archive_first(h), None)
    release(h, make_log())


def release_against_the_policy(h: History) -> None:
    archive_first(h)
    release(h, make_log("copy"))


def release_too_early(h: History) -> None:
    archive_first(h)
    release(h, make_log(keep_hot="1h"))


def release_what_takeovers_read(h: History) -> None:
    archive_first(h)
    release(h, replace(make_log(), snapshot_lsn=lsn_of(Epoch(1), EntryId(1))))


def release_where_nobody_knows_what_takeovers_read(h: History) -> None:
    archive_first(h)
    release(h, replace(make_log(), snapshot_lsn=None))


def release_what_is_open(h: History) -> None:
    archive_first(h)
    release(h, replace(make_log(), snapshot_lsn=lsn_of(Epoch(9), NOTHING)), 3)


def bring_back(h: History) -> None:
    archive_first(h)
    release(h, release(h, make_log()), 1)


def forget_the_only_copy(h: History) -> None:
    cold = archive_first(h)
    release(h, make_log())
    name(h, cold, None)


def name_a_part(h: History) -> None:
    name(h, close_first(h), COPY, (0, 1))


def name_more(h: History) -> None:
    name(h, close_first(h), COPY, (0, 1, 2, 3))


def move_released_copies(h: History) -> None:
    cold = archive_first(h)
    release(h, make_log())
    h.now_us += HOUR
    fragment = replace(cold.fragments[0], ensemble=(A, B, D))
    h.checkers.on_copies_changed(h.tick(), cold, replace(cold, fragments=(fragment,)))


def copy_what_was_released(h: History) -> None:
    cold = archive_first(h)
    release(h, make_log())
    h.now_us += HOUR
    h.checkers.on_pulled(h.tick(), cold.ledger_id)


def go_the_whole_way(h: History) -> None:
    cold = archive_first(h)
    h.now_us += HOUR
    release(h, make_log(keep_hot="1h"))
    h.checkers.on_dropped(LOG, Epoch(2))
    # A repair that was under way, and another copy that takes the place of the first one.
    h.checkers.on_pulled(h.tick(), cold.ledger_id)
    moved = replace(cold.fragments[0], ensemble=(A, B, Member(BookieId("c"), Incarnation("2"))))
    after = replace(cold, fragments=(moved,))
    h.checkers.on_copies_changed(h.tick(), cold, after)
    name(h, after, replace(TOLD, attempt="2c" * 16))
    h.read(1, place(1, 0), 0, "x")
    h.finish((1, 0, 0, 0, "x"), (1, 1, 0, 1, "y"), (1, 2, 0, 2, "z"))


def release_an_empty_one(h: History) -> None:
    h.close(1, NOTHING, 0, 0)
    h.checkers.on_completed(h.tick(), LOG, Epoch(1), 0)
    release(h, make_log())


def take_back_what_is_hot_too(h: History) -> None:
    hot = name(h, archive_first(h), None)
    moved = replace(hot, fragments=(replace(hot.fragments[0], ensemble=(A, C, D)),))
    h.checkers.on_copies_changed(h.tick(), hot, moved)
    name(h, moved, COPY)


BAD: dict[str, tuple[Play, ...]] = {
    "A1": (
        release_without_a_copy, release_without_a_second_look, release_what_was_taken_back,
        release_against_the_policy, release_too_early, release_what_takeovers_read,
        release_where_nobody_knows_what_takeovers_read, release_what_is_open, bring_back,
        forget_the_only_copy, name_a_part, name_more, move_released_copies,
        copy_what_was_released,
    ),
}  # fmt: skip

GOOD: tuple[Play, ...] = (go_the_whole_way, release_an_empty_one, take_back_what_is_hot_too)
