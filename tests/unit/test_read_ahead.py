"""How far a reader reads ahead: more while there is more, and the next segment before its turn.

Drives the reader core as `test_reader_core` does. Source: docs/protocol/reading.md "Read-ahead",
R18.
"""

from duramen.core.reading.effects import WatchMetadata
from duramen.core.reading.read_ahead import FIRST_BYTES, ReadAhead, ReaderLimits
from duramen.ids import Epoch
from tests.unit.reader_bench import Bench, make_log, make_segment, one_read


def test_read_ahead_grows_while_there_is_more_and_begins_anew_at_the_end() -> None:
    ahead = ReadAhead(4 * FIRST_BYTES)
    sizes = [ahead.range_bytes]
    for is_at_end in (False, False, False, True):
        ahead.on_delivered(is_at_end=is_at_end)
        sizes.append(ahead.range_bytes // FIRST_BYTES)
    assert sizes == [FIRST_BYTES, 2, 4, 4, 1]
    look_up = ReadAhead(1_000)
    look_up.on_delivered(is_at_end=False)
    assert look_up.range_bytes == 1_000


def test_a_reader_asks_for_more_while_there_is_more() -> None:
    bench = Bench(limits=ReaderLimits(range_bytes=1 << 20))
    bench.take()
    effects = bench.metadata(make_log(3, 1, 20), make_segment(1, last=19, start=0))
    sizes = []
    for entry in range(3):
        read = one_read(effects)
        sizes.append(read.bytes_max >> 10)
        effects = bench.answer(read, entry)
    assert sizes == [256, 512, 1024]


def test_the_next_segment_is_worth_opening_once_the_end_is_known_and_near() -> None:
    bench = Bench(limits=ReaderLimits(range_bytes=50))  # an entry has 10 bytes
    bench.take()
    effects = bench.metadata(make_log(3, 1, 20), make_segment(1, last=19, start=0))
    assert bench.reader.upcoming_epoch is None, "the size of its entries is not known"
    upcoming: list[int | None] = []
    for first in range(0, 20, 5):
        effects = bench.answer(one_read(effects), *range(first, first + 5))
        upcoming.append(bench.reader.upcoming_epoch)
    assert upcoming == [None, None, 2, None]
    assert effects == [WatchMetadata(Epoch(2))], "entered at the end, and not before"


def test_nobody_opens_what_follows_a_segment_without_an_end() -> None:
    """R18: it may end anywhere."""
    bench = Bench()
    bench.take()
    effects = bench.metadata(make_log(3, 0), make_segment(1))
    bench.answer(one_read(effects), 0, lac=0)
    assert bench.delivered == [(1, 0)] and bench.reader.upcoming_epoch is None
