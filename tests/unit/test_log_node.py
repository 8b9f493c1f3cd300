"""The log node's transitions: epochs without a gap, LCE and totals that move together (R2, R4).

Also gives `make_log`, the log that other tests of the cores start from.
Source: docs/protocol/metadata.md "logs/…: the log node".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, Member, lsn_of
from tests.unit.core_fakes import LOG_ID
from tests.unit.nodes import make_log


def close_segment(epoch: int, totals: Totals, last_entry: int = 0) -> Segment:
    """A closed segment of one bookie."""
    ensemble = (Member(BookieId("b0"), Incarnation("0" * 32)),)
    segment = Segment(
        LOG_ID, Epoch(epoch), Quorum(1, 1, 1), (Fragment(EntryId(0), ensemble),)
    )  # fmt: skip
    return segment.closed(
        last_entry=EntryId(last_entry),
        totals=totals,
        start_seq_num=0,
        completed_unix_ms=0,
        nonce="c",
    )


def test_the_unclosed_epochs_follow_from_the_node_alone() -> None:
    log = make_log()
    assert log.unclosed_epochs == ()
    log = log.with_new_epoch("a").with_new_epoch("b")
    assert log.unclosed_epochs == (1, 2)
    log = log.with_clean(close_segment(1, Totals()), "c")
    assert log.unclosed_epochs == (2,) and log.nonce == "c"


def test_totals_add_up_and_keep_the_greatest() -> None:
    log = make_log().with_new_epoch("a").with_new_epoch("b")
    log = log.with_clean(close_segment(1, Totals(3, 30, 9, 1_000)), "c")
    log = log.with_clean(close_segment(2, Totals(2, 5, 4, None)), "d")
    assert log.totals == Totals(5, 35, 9, 1_000)


def test_a_log_is_stateless_while_every_close_said_so() -> None:
    log = make_log().with_new_epoch("n")
    assert log.is_stateless, "nothing is closed yet"
    log = log.with_clean(close_segment(1, Totals()), "c")
    assert not log.is_stateless, "whoever closed it did not say so"
    log = log.with_stateless()
    assert log.is_stateless and log.snapshot_lsn == lsn_of(Epoch(2), NOTHING)
    log = log.with_new_epoch("n").with_clean(close_segment(2, Totals()), "c")
    assert not log.is_stateless, "that was said of epoch 1"


def test_a_close_out_of_order_is_a_mistake_of_ours() -> None:
    log = make_log().with_new_epoch("a").with_new_epoch("b")
    with pytest.raises(AssertionError):
        log.with_clean(close_segment(2, Totals()), "c")


def test_only_a_closed_segment_moves_the_lce() -> None:
    log = make_log().with_new_epoch("a")
    closed = close_segment(1, Totals())
    with pytest.raises(AssertionError):
        log.with_clean(
            Segment(LOG_ID, Epoch(1), closed.quorum, closed.fragments), "c"
        )  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"last_clean_epoch": 1},
        {"last_clean_epoch": -1},
        {"first_live_epoch": Epoch(2)},
        {"first_live_epoch": Epoch(0)},
        {"trim_seq_num": -1},
    ],
)
def test_the_invariants_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        replace(make_log(), **fields).validate()


# --- Hot copies released -------------------------------------------------------------------------


def closed_log(epoch_count: int) -> LogNode:
    """Epochs that are all closed and carry no state."""
    log = make_log()
    for epoch in range(1, epoch_count + 1):
        log = log.with_new_epoch("n").with_clean(close_segment(epoch, Totals(1, 1)), "c")
    return log.with_stateless()


def test_the_first_hot_epoch_rises_and_bookies_keep_from_the_greater_bound_on() -> None:
    log = closed_log(3).with_first_hot_epoch(Epoch(3), "h")
    assert (log.first_hot_epoch, log.first_kept_epoch, log.nonce) == (3, 3, "h")
    assert log.first_live_epoch == 1 and log.trim == closed_log(3).trim, "all stays readable"
    with pytest.raises(AssertionError):
        log.with_first_hot_epoch(Epoch(2), "h")
    truncated = replace(log, first_live_epoch=Epoch(4), truncated_below=Epoch(4))
    assert truncated.validated().first_kept_epoch == 4


def test_no_unclosed_epoch_is_released() -> None:
    log = closed_log(2).with_new_epoch("n")
    assert log.with_first_hot_epoch(Epoch(3), "h").first_hot_epoch == 3
    with pytest.raises(AssertionError, match="5"):
        replace(log, snapshot_lsn=lsn_of(Epoch(9), EntryId(0))).with_first_hot_epoch(Epoch(4), "h")


def test_what_a_takeover_may_read_is_not_released() -> None:
    log = replace(closed_log(3), snapshot_lsn=lsn_of(Epoch(2), EntryId(7)))
    assert log.first_stateful_epoch == 2
    assert log.with_first_hot_epoch(Epoch(2), "h").first_kept_epoch == 2
    with pytest.raises(AssertionError, match="5"):
        log.with_first_hot_epoch(Epoch(3), "h")
    unknown = replace(log, snapshot_lsn=None)
    assert unknown.first_stateful_epoch == 1
    with pytest.raises(AssertionError, match="5"):
        unknown.with_first_hot_epoch(Epoch(2), "h")
