"""Histories of metadata logs: what leaves the metadata store, and what stands for it; for N1.

Used by `test_checkers`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from duramen.core.log_node import LogNode
from duramen.core.segment import Segment, Totals
from duramen.ids import EntryId, Epoch, LogId, lsn_of, metadata_log_of
from tests.sim.histories.history import LOG, History, Play, make_segment
from tests.sim.moved_record import MovedRecord, SegmentNode
from tests.unit.nodes import make_log

RELEASED = replace(
    make_log(), log_id=LOG, next_epoch=Epoch(3), last_clean_epoch=2, first_hot_epoch=Epoch(2)
).with_stateless()
"""Of two closed epochs the first is released, and nothing has moved."""


def watch(h: History, *there: Epoch) -> MovedRecord:
    """The record of a run; the segments of these epochs have their nodes."""
    checkers = h.checkers

    def is_there(_: LogId, epoch: Epoch) -> bool:
        return epoch in there

    return MovedRecord(checkers.tally, checkers.count_holders, is_there, Counter())


def make_closed(epoch: int = 1) -> Segment:
    return make_segment(epoch=epoch).closed(
        last_entry=EntryId(0), totals=Totals(1, 1), start_seq_num=0, completed_unix_ms=0, nonce="n"
    )


def claim(log: LogNode = RELEASED) -> LogNode:
    return log.with_metadata(log.metadata.claimed(Epoch(1)), "claim")


# --- bad -----------------------------------------------------------------------------------------


def gone_without_a_record(h: History) -> None:
    record = watch(h, Epoch(2))
    for epoch in (1, 2):
        record.on_node(SegmentNode(make_closed(epoch), 1, 1))
    record.on_log_changed(RELEASED, claim(), opened=Epoch(1))


def gone_while_bookies_keep_it(h: History) -> None:
    watch(h).on_node_gone(RELEASED, make_closed(2))


def opened_without_its_log(h: History) -> None:
    segment = replace(make_segment(), log_id=metadata_log_of(LOG))
    watch(h).on_epoch_opened(segment, claim(), is_set=False)


def counted_from_an_open_epoch(h: History) -> None:
    claimed, first = claim(), lsn_of(Epoch(1), EntryId(0))
    after = claimed.with_metadata(claimed.metadata.rewritten(first, first), "rewrite")
    watch(h, Epoch(1), Epoch(2)).on_log_changed(claimed, after, opened=None)


# --- good ----------------------------------------------------------------------------------------


def claimed_in_one_change(h: History) -> None:
    record = watch(h, Epoch(1), Epoch(2))
    segment = replace(make_segment(), log_id=metadata_log_of(LOG))
    record.on_epoch_opened(segment, claim(), is_set=True)
    record.on_log_changed(RELEASED, claim(), opened=Epoch(1))


BAD: dict[str, tuple[Play, ...]] = {
    "N1": (
        gone_without_a_record, gone_while_bookies_keep_it, opened_without_its_log,
        counted_from_an_open_epoch,
    ),
}  # fmt: skip

GOOD: tuple[Play, ...] = (claimed_in_one_change,)
