"""A reader at entries that are lost: it says so, and goes on behind them.

Holes and everything else of the reader's core are in `test_reader_core`, whose bench this uses.
Source: R15, docs/protocol/reading.md "What may be shown".
"""

from __future__ import annotations

from duramen.core.reading.effects import Gap
from duramen.ids import EntryId, Epoch
from tests.unit.reader_bench import Bench, make_log, make_segment, one_read


def test_what_is_lost_is_reported_as_loss_and_passed_up_to_the_next_segment() -> None:
    closed = make_segment(1, last=5, start=0)
    segment = closed.with_lost([(1, 2), (4, 5)], "n")
    bench = Bench(is_following=False)
    bench.take()
    read = one_read(bench.metadata(make_log(3, 2), segment))
    gap, effect = bench.answer(read, 0, 1, 2, 3)
    assert gap == Gap(Epoch(1), EntryId(1), EntryId(2), is_lost=True)
    gap, *_ = bench.answer(one_read([effect]), 3)
    assert gap == Gap(Epoch(1), EntryId(4), EntryId(5), is_lost=True)
    assert bench.delivered == [(1, 0), (1, 3)], "also where a bookie shows one that was lost"
    assert bench.reader.epoch == 2
