"""Every kind of position against brute force, over generated logs; and what a search costs.

The logs have empty segments, equal txids over several segments, txids and times in any order,
control entries, holes, several fragments, truncation inside entries, and entries above the LAC; of
some the closed segments lie in a cold store, whose manifests tell of row groups.
Source: docs/protocol/reading.md "Positions", docs/protocol/rest.md "Records".
"""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch
from duramen.runtime.reading.positioning.positions import Positions, Start
from duramen.runtime.reading.tail import Tail
from duramen.texts import Position, PositionKind, parse_position
from tests.unit.memory_log import BatchPlan, EntryPlan, Made, MemoryLog, SegmentPlan

NOW_MS = 1_009
TIMES = st.integers(1_000, 1_006)
BEYOND = "beyond_tail"
NO_TXIDS = "invalid_position"
Expected = tuple[list[int], bool] | str
"""Sequence numbers that a read gives and whether the position moved, or an error's code."""


@st.composite
def make_batch(draw: st.DrawFn) -> BatchPlan:
    times = draw(st.lists(TIMES, min_size=1, max_size=3))
    if not draw(st.integers(0, 3)):
        return BatchPlan(times)
    txids = st.lists(st.integers(0, 6), min_size=len(times), max_size=len(times))
    return BatchPlan(times, draw(txids))


@st.composite
def make_entry(draw: st.DrawFn) -> EntryPlan:
    batches = draw(st.lists(make_batch(), min_size=1, max_size=2))
    kind = draw(st.sampled_from(["plain"] * 5 + ["control", "hole", "fragment"]))
    return EntryPlan(
        batches,
        is_control=kind == "control",
        is_hole=kind == "hole",
        begins_fragment=kind == "fragment",
    )


@st.composite
def make_log(draw: st.DrawFn) -> MemoryLog:
    plans = [
        SegmentPlan(draw(st.lists(make_entry(), max_size=6)), draw(st.integers(0, 2)))
        for _ in range(draw(st.integers(0, 5)))
    ]
    if draw(st.booleans()):
        sort_values(plans)
    log = MemoryLog(plans, is_closed=draw(st.booleans()))
    log.group_entry_count = draw(st.integers(0, 3))
    return log


def sort_values(plans: Iterable[SegmentPlan]) -> None:
    """Make txids and times rise, with many that are equal: how logs usually are."""
    batches = [b for plan in plans for entry in plan.entries for b in entry.batches]
    times = iter(sorted(time for b in batches for time in b.times))
    txids = iter(sorted(txid for b in batches for txid in b.txids or ()))
    for batch in batches:
        batch.times = [next(times) for _ in batch.times]
        batch.txids = batch.txids and [next(txids) for _ in batch.txids]


# --- Brute force ---------------------------------------------------------------------------------


def expect(log: MemoryLog, position: Position) -> Expected:
    """What a read from a position gives, found by looking at every record."""
    trim = log.log.trim_seq_num
    tail = log.tail
    number = position.number
    match position.kind:
        case PositionKind.HEAD:
            return live_from(log, 0), False
        case PositionKind.TAIL:
            first = max(0, tail.seq_num - number)
            return live_from(log, first), first < trim
        case PositionKind.SEQ:
            if number > max(tail.seq_num, trim):
                return BEYOND
            return live_from(log, number), number < trim
        case PositionKind.DLSN:
            assert position.dlsn is not None
            return expect_dlsn(log, position.dlsn)
        case PositionKind.LSN:
            return expect_dlsn(log, Dlsn(Epoch(number >> 32), EntryId(number & 0xFFFF_FFFF), 0))
        case PositionKind.TXID:
            if tail.seq_num and all(made.txid is None for made in log.records):
                return NO_TXIDS
            reaching = [m for m in log.records if m.txid is not None and m.txid >= number]
            return expect_record(log, reaching, BEYOND)
        case PositionKind.TIME:
            reaching = [m for m in log.records if m.timestamp_ms >= number]
            return expect_record(log, reaching, ([], False))
        case PositionKind.AGO:
            return expect(log, Position(PositionKind.TIME, NOW_MS - number // 1000))


def expect_dlsn(log: MemoryLog, dlsn: Dlsn) -> Expected:
    if dlsn < log.trim:
        return live_from(log, 0), log.log.trim_seq_num > 0
    if dlsn > log.tail_dlsn:
        return BEYOND
    return [made.seq_num for made in log.records if made.dlsn >= dlsn], False


def expect_record(log: MemoryLog, reaching: list[Made], beyond: Expected) -> Expected:
    trim = log.log.trim_seq_num
    live = live_from(log, 0)
    first = next((made.seq_num for made in reaching if made.seq_num >= trim), None)
    if first is not None:
        return live_from(log, first), trim > 0 and first == live[0]
    return (live, True) if reaching and trim else beyond


def live_from(log: MemoryLog, first: int) -> list[int]:
    first = max(first, log.log.trim_seq_num)
    return [made.seq_num for made in log.records if made.seq_num >= first]


# --- The property --------------------------------------------------------------------------------


def list_positions(log: MemoryLog) -> list[Position]:
    texts = ["head", "tail"]
    end = max((made.seq_num for made in log.records), default=-1)
    for number in range(end + 4):
        texts += [f"tail-{number}", f"seq:{number}"]
    for epoch in range(log.log.next_epoch + 1):
        for entry in range(7):
            texts.append(f"lsn:e{epoch}n{entry}")
            texts += [f"dlsn:e{epoch}n{entry}s{slot}" for slot in (0, 1, 6)]
    texts += [f"txid:{number}" for number in range(9)]
    texts += [f"time:{number}" for number in range(999, 1_009)]
    texts += [f"ago:{number}ms" for number in range(11)]
    return [parse_position(text) for text in texts]


async def find(positions: Positions, log: MemoryLog, position: Position) -> Start | str:
    try:
        return await positions.find(log, position, clamp=False)
    except DuramenError as error:
        return error.code


async def check_every_position(positions: Positions, log: MemoryLog) -> None:
    reads: dict[tuple[int, int, int], list[int]] = {}
    for position in list_positions(log):
        start = await find(positions, log, position)
        outcome: Expected
        if isinstance(start, Start):
            key = start[:3]
            reads[key] = seq_nums = reads.get(key) or log.read(start)
            assert not seq_nums or start.seq_num <= seq_nums[0], (position, start)
            outcome = seq_nums, start.is_moved
        else:
            outcome = start
            if start == BEYOND:
                at_tail = await positions.find(log, position, clamp=True)
                assert (log.read(at_tail), at_tail.is_moved) == ([], False), position
        expected = expect(log, position)
        if outcome != expected:
            check_hidden(log, position, outcome, expected)


def check_hidden(log: MemoryLog, position: Position, outcome: Expected, expected: Expected) -> None:
    """No live record is wanted, and a maximum that reaches it is of a control entry or a hole:
    whether the truncated prefix held such a record cannot be told."""
    allowed: tuple[Expected, ...] = (BEYOND, ([], False), (live_from(log, 0), True))
    assert outcome in allowed, (position, outcome)
    assert expected in (*allowed, NO_TXIDS), (position, expected)
    lowest = Position(position.kind) if expected == NO_TXIDS else position
    assert has_hidden(log, lowest), (position, outcome, expected)


def has_hidden(log: MemoryLog, position: Position) -> bool:
    """Whether a control entry or a hole raises the running maximum to what is looked for."""
    number = position.number
    match position.kind:
        case PositionKind.TXID:
            return any(txid is not None and txid >= number for txid, _ in log.hidden)
        case PositionKind.AGO:
            return any(time >= NOW_MS - number // 1000 for _, time in log.hidden)
        case PositionKind.TIME:
            return any(time >= number for _, time in log.hidden)
        case _:
            return False


@settings(max_examples=30)
@given(make_log(), st.data())
def test_every_position_is_where_brute_force_finds_it(log: MemoryLog, data: st.DataObject) -> None:
    positions = Positions(lambda: NOW_MS)
    asyncio.run(check_every_position(positions, log))
    for _ in range(2):  # truncated further each time, with what was learnt before
        live_count = data.draw(st.integers(0, len(live_from(log, 0))))
        log.truncate(live_count, data.draw(st.integers(1, 6)))
        asyncio.run(check_every_position(positions, log))


# --- Logs that are worth a name ------------------------------------------------------------------


def plan_entry(*txids: int, time: int = 1_000) -> EntryPlan:
    return EntryPlan([BatchPlan([time] * len(txids), list(txids))])


def find_first(log: MemoryLog, text: str) -> tuple[str, bool]:
    """DLSN of the first record of a read from there, and whether the position moved."""
    start = asyncio.run(Positions(lambda: NOW_MS).find(log, parse_position(text), clamp=False))
    first = log.read(start)[0]
    (made,) = (made for made in log.records if made.seq_num == first)
    return str(made.dlsn), start.is_moved


def test_equal_txids_over_three_segments_begin_with_the_first_of_them() -> None:
    plans = [
        SegmentPlan([plan_entry(1, 2), plan_entry(5, 7)]),
        SegmentPlan(),
        SegmentPlan([plan_entry(7), plan_entry(7, 7)]),
        SegmentPlan([plan_entry(7, 8)]),
    ]
    log = MemoryLog(plans, is_closed=False)
    assert find_first(log, "txid:7") == ("e1n1s1", False)
    assert find_first(log, "txid:6") == ("e1n1s1", False)
    assert find_first(log, "txid:8") == ("e4n0s1", False)
    log.truncate(live_count=4, first_live=1)  # e3n1s0 is the oldest that is left
    assert find_first(log, "txid:7") == ("e3n1s0", True)
    assert find_first(log, "txid:8") == ("e4n0s1", False)


def test_a_time_that_an_empty_or_an_early_segment_passes_is_found_behind_it() -> None:
    """Segments' maxima fall and rise again: no bisection over segments could find these."""
    plans = [
        SegmentPlan([plan_entry(0, time=1_005)]),
        SegmentPlan([plan_entry(0, time=1_001)]),
        SegmentPlan(),
        SegmentPlan([plan_entry(0, time=1_004), plan_entry(0, time=1_009)]),
    ]
    log = MemoryLog(plans, is_closed=True)
    log.truncate(live_count=3, first_live=2)
    assert find_first(log, "time:1000") == ("e2n0s0", True)
    assert find_first(log, "time:1002") == ("e4n0s0", False)
    assert find_first(log, "time:1005") == ("e4n1s0", False)
    assert find_first(log, f"ago:{NOW_MS - 1_005}ms") == ("e4n1s0", False)


def test_a_log_without_txids_says_so_and_an_empty_one_has_a_tail() -> None:
    log = MemoryLog([SegmentPlan([EntryPlan([BatchPlan([1_000])])])], is_closed=False)
    with pytest.raises(DuramenError, match="no record of this log has a txid"):
        find_first(log, "txid:0")
    with pytest.raises(DuramenError, match="beyond the tail seq:0"):
        find_first(MemoryLog([], is_closed=True), "txid:0")


class UnsureLog(MemoryLog):
    """Bookies hold more than its sequencer has confirmed, and it does not answer."""

    async def find_tail(self) -> Tail:
        return self.tail._replace(is_sure=False)


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("text", ["seq:3", "dlsn:e1n2s0"])
def test_a_position_beyond_a_tail_that_is_not_sure_may_yet_be_none(text: str, clamp: bool) -> None:
    """An acknowledged record may lie there: its reader is not wrong, nor to be put back."""
    log = UnsureLog([SegmentPlan([plan_entry(0), plan_entry(1)], 1)], is_closed=False)
    assert log.tail.seq_num == 1
    with pytest.raises(DuramenError) as caught:
        asyncio.run(Positions().find(log, parse_position(text), clamp=clamp))
    assert caught.value.code == "data_unavailable"


@pytest.mark.parametrize("text", ["txid:{}", "time:{}", "seq:{}"])
def test_a_search_in_a_thousand_entries_asks_for_few(text: str) -> None:
    entries = [plan_entry(1_000 + i, time=1_000 + i) for i in range(1_000)]
    log = MemoryLog([SegmentPlan(entries)], is_closed=True)
    for number in (0, 1, 500, 777, 999):
        wanted = text.format(number if text.startswith("seq") else 1_000 + number)
        log.header_count = log.run_count = 0
        assert find_first(log, wanted) == (f"e1n{number}s0", False)
        assert log.header_count <= 10 and log.run_count <= 1


def test_a_number_is_not_counted_from_an_older_log_node() -> None:
    """The tail is in e2, and the log node that is seen does not know that e1 is closed."""
    entry = EntryPlan([BatchPlan([1_000])])
    log = MemoryLog([SegmentPlan([entry] * 4, 0), SegmentPlan([entry] * 2, 0)], is_closed=False)
    tail = log.tail
    assert (tail.epoch, tail.seq_num) == (2, 6)
    position = Position(PositionKind.DLSN, dlsn=Dlsn(Epoch(2), EntryId(0), 0))
    find = Positions(lambda: NOW_MS).find
    assert asyncio.run(find(log, position, clamp=False)).seq_num == 4
    before = MemoryLog([SegmentPlan([entry] * 4, 0)], is_closed=False)
    log.log = before.log.with_new_epoch("n")
    log.find_reach = lambda: asyncio.sleep(0, tail)  # type: ignore[method-assign]
    with pytest.raises(DuramenError, match="e2 is not seen closed"):
        asyncio.run(find(log, position, clamp=False))
