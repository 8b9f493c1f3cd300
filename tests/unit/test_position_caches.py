"""What is remembered of positions has bounds, and what was forgotten is found again, at its cost.

`Positions` keeps points of ledgers and maxima of logs for as long as its process lives, and readers
choose which logs they ask for. Bounds are made small here; counts of headers and of nodes that are
asked for tell what was remembered, and brute force over the log what the answer must be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from duramen.core.segment import Segment
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LogId
from duramen.runtime.reading.positioning import entry_search
from duramen.runtime.reading.positioning import positions as module
from duramen.runtime.reading.positioning.entry_search import SparseIndex
from duramen.runtime.reading.positioning.positions import Positions, Start
from duramen.runtime.reading.positioning.record_search import Key, SearchTarget
from duramen.runtime.reading.positioning.segment_maxima import SegmentMaxima
from duramen.texts import parse_position
from tests.unit.memory_log import BatchPlan, EntryPlan, MemoryLog, SegmentPlan

ENTRY_COUNT = 16
LEDGERS_MAX = 3
LOGS_MAX = 3
SEGMENTS_MAX = 12


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEDGERS_MAX", LEDGERS_MAX)
    monkeypatch.setattr(module, "MAXIMA_LOGS_MAX", LOGS_MAX)
    monkeypatch.setattr(module, "MAXIMA_SEGMENTS_MAX", SEGMENTS_MAX)


class CountedLog(MemoryLog):
    """A log of its own, which counts the nodes of segments that were asked for."""

    def __init__(self, number: int, segment_count: int = 1, entry_count: int = ENTRY_COUNT) -> None:
        self.node_count = 0
        made = iter(range(segment_count * entry_count))
        plans = [
            SegmentPlan([make_entry(next(made)) for _ in range(entry_count)])
            for _ in range(segment_count)
        ]
        super().__init__(plans, is_closed=True, log_id=LogId(number))

    async def read_segment(self, epoch: Epoch) -> Segment | None:
        self.node_count += 1
        return await super().read_segment(epoch)


def make_entry(number: int) -> EntryPlan:
    """Two records, whose txids and times are twice their numbers."""
    values = [4 * number, 4 * number + 2]
    return EntryPlan([BatchPlan([1_000 + value for value in values], values)])


def find(positions: Positions, log: MemoryLog, text: str) -> Start:
    return asyncio.run(positions.find(log, parse_position(text), clamp=False))


def check(positions: Positions, log: MemoryLog, text: str, expected: int) -> None:
    """The first record that is read from there is the one with that number."""
    start = find(positions, log, text)
    assert log.read(start)[0] == expected, (text, start)


def cost_headers(positions: Positions, log: MemoryLog, seq_num: int) -> int:
    before = log.header_count
    check(positions, log, f"seq:{seq_num}", seq_num)
    return log.header_count - before


def cost_nodes(positions: Positions, log: CountedLog, txid: int) -> int:
    before = log.node_count
    check(positions, log, f"txid:{txid}", txid // 2)
    return log.node_count - before


def search_all(positions: Positions, logs: Iterable[CountedLog]) -> None:
    for log in logs:
        check(positions, log, "txid:8", 4)
        check(positions, log, "time:1008", 4)
        statistics = positions.statistics()
        assert statistics["logs"] <= LOGS_MAX, statistics
        assert known_segments(positions) <= SEGMENTS_MAX


def known_segments(positions: Positions) -> int:
    return sum(maxima.count for maxima in positions._maxima.values())


# --- Points of ledgers ----------------------------------------------------------------------------


def test_points_of_few_ledgers_are_kept_and_every_answer_stays_right() -> None:
    positions = Positions()
    logs = [CountedLog(number) for number in range(1, 9)]
    for log in logs + logs[::-1]:
        for seq_num in (0, 7, 30, 31):
            check(positions, log, f"seq:{seq_num}", seq_num)
        assert positions.statistics()["ledgers"] <= LEDGERS_MAX
    assert positions.statistics()["ledgers"] == LEDGERS_MAX


def test_the_ledger_that_was_asked_for_longest_ago_is_forgotten() -> None:
    positions = Positions()
    logs = [CountedLog(number) for number in range(1, LEDGERS_MAX + 2)]
    for log in logs[:LEDGERS_MAX]:
        assert cost_headers(positions, log, 13) > 0
    assert cost_headers(positions, logs[0], 13) == 0, "it is remembered, and used again"
    assert cost_headers(positions, logs[-1], 13) > 0
    assert cost_headers(positions, logs[-1], 13) == 0, "the newest is remembered"
    assert cost_headers(positions, logs[0], 13) == 0
    assert cost_headers(positions, logs[2], 13) == 0
    assert cost_headers(positions, logs[1], 13) > 0, "nobody had asked for it since"


def test_a_reader_whose_ledger_was_forgotten_goes_on_where_it_was() -> None:
    """The end of its last answer is noted; many other logs are read before it comes again."""
    positions = Positions()
    log = CountedLog(1)
    noted = asyncio.run(log.fetch_header(log.segments[Epoch(1)], EntryId(9)))
    positions.note(noted)
    assert find(positions, log, "seq:20") == (1, 10, 20, None, True, False)
    for number in range(2, 2 + LEDGERS_MAX):
        other = CountedLog(number)
        positions.note(asyncio.run(other.fetch_header(other.segments[Epoch(1)], EntryId(3))))
        assert positions.statistics()["ledgers"] <= LEDGERS_MAX
    found = find(positions, log, "seq:20")
    assert not found.is_sequential, "it was forgotten, and is searched for"
    assert log.read(found) == list(range(20, 32))


@pytest.mark.parametrize("kept", [2, 3, 8])
def test_points_inside_a_ledger_are_thinned_out_and_stay_true(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader notes the end of each answer: of a long segment that is a point for each."""
    monkeypatch.setattr(entry_search, "POINTS_MAX", kept)
    index = SparseIndex()
    for entry in range(200):
        index.add(2 * entry, EntryId(entry))
        assert len(index._positions) == len(index._entries) <= kept
        for position in (0, entry, 2 * entry, 2 * entry + 1):
            low, high, is_known = index.narrow(position, EntryId(200))
            assert low <= position // 2 <= high
            assert not is_known or low == position // 2


# --- Maxima of logs -------------------------------------------------------------------------------


def test_maxima_of_few_logs_are_kept_and_every_answer_stays_right() -> None:
    positions = Positions()
    logs = [CountedLog(number, segment_count=2, entry_count=4) for number in range(1, 9)]
    search_all(positions, logs + logs[::-1])
    assert positions.statistics()["logs"] == LOGS_MAX


def test_maxima_of_few_segments_are_kept_however_few_logs_they_are_of() -> None:
    positions = Positions()
    logs = [CountedLog(number, segment_count=5, entry_count=2) for number in range(1, 7)]
    for count, log in enumerate(logs, 1):
        search_all(positions, [log])
        expected = 5 * min(count, 2)
        assert known_segments(positions) == expected, "no more is forgotten than has to be"
    search_all(positions, logs[::-1])
    assert positions.statistics()["logs"] == 2, "of five segments each, where twelve are kept"


def test_a_log_of_more_segments_than_are_kept_is_answered_and_forgotten() -> None:
    positions = Positions()
    small = CountedLog(1, segment_count=2, entry_count=4)
    check(positions, small, "txid:8", 4)
    huge = CountedLog(2, segment_count=SEGMENTS_MAX + 8, entry_count=2)
    for txid in (0, 40, 70):
        check(positions, huge, f"txid:{txid}", txid // 2)
        assert positions.statistics()["logs"] == known_segments(positions) == 0
    check(positions, small, "txid:8", 4)


def test_the_log_that_was_asked_for_longest_ago_is_forgotten() -> None:
    positions = Positions()
    logs = [CountedLog(n, segment_count=3, entry_count=2) for n in range(1, LOGS_MAX + 2)]
    first = cost_nodes(positions, logs[0], 10)
    known = cost_nodes(positions, logs[0], 10)
    assert first == known + 3, "each node is read once, then what is known of it is used"
    for log in logs[1:LOGS_MAX]:
        assert cost_nodes(positions, log, 10) == first
    assert cost_nodes(positions, logs[0], 10) == known
    assert cost_nodes(positions, logs[-1], 10) == first
    assert cost_nodes(positions, logs[-1], 10) == known, "the newest is remembered"
    assert cost_nodes(positions, logs[0], 10) == known
    assert cost_nodes(positions, logs[2], 10) == known
    assert cost_nodes(positions, logs[1], 10) == first, "nobody had asked for it since"


def test_what_was_truncated_counts_no_longer() -> None:
    """A log that is looked through for years keeps the maxima of its live segments alone."""
    positions = Positions()
    log = CountedLog(1, segment_count=10, entry_count=2)
    check(positions, log, "txid:70", 35)
    assert known_segments(positions) == 10
    log.truncate(live_count=8, first_live=9)
    assert find(positions, log, "txid:2").is_moved
    assert known_segments(positions) == 2
    check(positions, log, "txid:70", 35)


def test_searches_at_once_in_one_log_learn_its_segments_once() -> None:
    """Each reads the nodes; only what is missing still is added to what is known."""
    positions = Positions()
    log = CountedLog(1, segment_count=6, entry_count=2)

    async def scenario() -> Sequence[Start]:
        texts = ["txid:0", "txid:20", "time:1020", "txid:46"] * 3
        return await asyncio.gather(
            *(positions.find(log, parse_position(text), clamp=False) for text in texts)
        )

    found = asyncio.run(scenario())
    assert [log.read(start)[0] for start in found] == [0, 10, 10, 23] * 3
    assert known_segments(positions) == 6
    check(positions, log, "txid:24", 12)


class LateLog(CountedLog):
    """A log that is read whole, but only when somebody else has read a part of it."""

    def __init__(self) -> None:
        super().__init__(1, segment_count=8, entry_count=2)
        self.is_partly_read = asyncio.Event()

    async def read_segments(self, epochs: range) -> list[Segment | None]:
        if len(epochs) == 8:
            await self.is_partly_read.wait()
            return [await self.read_segment(Epoch(epoch)) for epoch in epochs]
        return await super().read_segments(epochs)


@pytest.mark.parametrize("first_live", [1, 3])
def test_who_learns_behind_another_knows_all_that_it_asked_for(first_live: int) -> None:
    """What it read begins below what is known by then, or has been given up by then."""
    log, maxima = LateLog(), SegmentMaxima()

    async def scenario() -> None:
        slow = asyncio.create_task(maxima.learn(log, Epoch(1), 8))
        await asyncio.sleep(0)
        await maxima.learn(log, Epoch(first_live), 5)
        log.is_partly_read.set()
        await slow

    asyncio.run(scenario())
    assert maxima.count == 9 - first_live
    for epoch in range(first_live, 9):
        segment = log.segments[Epoch(epoch)]
        assert segment.totals is not None and segment.totals.max_txid is not None
        wanted = SearchTarget(Key.TXID, segment.totals.max_txid)
        assert maxima.find_next(Epoch(1), wanted, 8) == epoch


def test_a_search_that_is_refused_leaves_no_answer_wrong() -> None:
    """Beyond the tail of one log, of whose maxima nothing is found."""
    positions = Positions()
    for number in range(1, 4 * LOGS_MAX):
        log = CountedLog(number, segment_count=2, entry_count=2)
        with pytest.raises(DuramenError, match="beyond the tail"):
            find(positions, log, "txid:99")
        assert positions.statistics()["logs"] <= LOGS_MAX
        check(positions, log, "txid:8", 4)
