"""Data-plane frames: golden files of every call and answer, round trips, and refusal of the rest.

Bookie calls (`wire.bookie_calls`), append calls (`wire.sequencer_calls`) and the binary answer of a
read (`wire.read_answers`) travel in the same frame. Source: docs/protocol/wire.md.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.core.segment import Totals
from duramen.core.status import BookieStatus
from duramen.errors import ERRORS, DuramenError
from duramen.ids import (
    LAST_ENTRY_ID,
    NOTHING,
    BookieId,
    Dlsn,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    Member,
    SequencerId,
)
from duramen.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORD_COUNT_MAX,
    LONG_POLL_MAX_US,
    PULL_RANGE_COUNT_MAX,
)
from duramen.units import MS
from duramen.wire import bookie_calls as calls
from duramen.wire import repair_calls, sequencer_calls
from duramen.wire.bookie_calls import (
    Add,
    LacUpdate,
    Marks,
    ReadAnswer,
    ReadRange,
    Seal,
    ServiceClass,
)
from duramen.wire.entry import check_entry, encode_entry
from duramen.wire.frame import (
    HEADER_BYTES,
    FrameError,
    frame_size,
    pack_frame,
    parse_frame,
    split_payload,
)
from duramen.wire.read_answers import PlacedBatch, pack_batches, parse_batches
from duramen.wire.record_batch import encode_batch
from duramen.wire.repair_calls import (
    Inventory,
    InventoryAnswer,
    Pull,
    PullAnswer,
    PulledRange,
    Source,
)
from duramen.wire.sequencer_calls import (
    AlreadyStored,
    Append,
    AppendedBatch,
    AppendedEarly,
    AppendOptions,
    LacWait,
    LogMark,
    OpenLac,
    Redirect,
)
from tests.golden import read_golden
from tests.unit.flexible_frames import FLEXIBLE_FRAMES

LIFE = Incarnation("0123456789abcdef0123456789abcdef")
LEDGER = LedgerId(7 << 32 | 3)
BATCH = encode_batch([b"one", b"two"], 1_000)
ADDS = [
    Add(LEDGER, EntryId(0), NOTHING, b"first"),
    Add(LEDGER, EntryId(5), EntryId(4), b"", True, ServiceClass.RECOVERY, 3),
]
STATUSES = [status for status in BookieStatus if status <= BookieStatus.INVALID]
READS = [
    ReadRange(LEDGER, EntryId(4), EntryId(9), 1 << 20, seal_epoch=3, service=ServiceClass.RECOVERY),
    ReadRange(LEDGER, EntryId(0), NOTHING, 0, headers_only=True),
]
WAIT = [ReadRange(LEDGER, EntryId(4), EntryId(4), 100, wait_ms=60_000, wait_for=EntryId(4))]
READ_ANSWERS = [
    ReadAnswer(BookieStatus.OK, EntryId(4), EntryId(9), True, [(EntryId(4), b"abc")]),
    ReadAnswer(BookieStatus.NO_ENTRY, NOTHING, NOTHING, False, []),
]
SEALS = [Seal(LogId(7), Epoch(3), LEDGER)]
LACS = [LacUpdate(LEDGER, EntryId(4), True), LacUpdate(LEDGER, NOTHING, False)]
MARKS = [
    Marks(BookieStatus.OK, EntryId(4), EntryId(9)),
    Marks(BookieStatus.SEALED, NOTHING, NOTHING),
]
APPENDS_V1 = [Append(LogId(7), 10_000, BATCH), Append(LogId(8), 0, b"")]
APPENDS = [
    Append(LogId(7), 10_000, BATCH),
    Append(LogId(8), 0, b""),
    Append(LogId(9), 5, BATCH, AppendOptions(0, "one at a time", ("sequencer-1",))),
    Append(LogId(9), 5, b"", AppendOptions(match_seq_num=1 << 40)),
]
START = LogMark(Dlsn(Epoch(3), EntryId(17), 2), 1_002, 1_700_000_000_000)
TAIL = LogMark(Dlsn(Epoch(3), EntryId(17), 9), 1_009, 1_700_000_000_000)
RESULTS: list[tuple[int, sequencer_calls.AppendResult]] = [
    (1, AppendedBatch(START, 2, TAIL)),
    (0, Redirect(SequencerId("s1"), "http://127.0.0.1:7201")),
    (2, DuramenError("window_full", "wait", field="log", retry_after_ms=200)),
]
LAC_WAIT = LacWait(LogId(7), Epoch(3), NOTHING, 10_000)
OPEN_LAC = OpenLac(Epoch(3), EntryId(17))
PLACED = [PlacedBatch(Dlsn(Epoch(3), EntryId(17), 2), 1_002, 2, BATCH)]

INVENTORY = Inventory(LEDGER, EntryId(4), EntryId(900))
INVENTORY_ANSWER = InventoryAnswer(
    BookieStatus.OK,
    lac=EntryId(8),
    highest=EntryId(9),
    next=EntryId(10),
    entries=((EntryId(4), 0xDEAD_BEEF), (EntryId(7), 7)),
    unknown=((EntryId(5), EntryId(6)),),
)
PULL = Pull(
    LEDGER,
    ranges=[(EntryId(0), EntryId(0)), (EntryId(4), EntryId(9))],
    sources=[Source(Member(BookieId("bookie-2"), LIFE), "")],
    lac=EntryId(9),
    budget_bytes=1 << 20,
)
PULL_ANSWER = PullAnswer(
    BookieStatus.OK,
    next=EntryId(8),
    copied_count=2,
    copied_bytes=5_000_000_000,
    ranges=(
        PulledRange(EntryId(0), EntryId(0), BookieStatus.OK),
        PulledRange(EntryId(4), EntryId(7), BookieStatus.UNREACHABLE),
    ),
)

Parse = Callable[[bytes], Any]
FRAMES: dict[str, tuple[bytes, Parse, Any]] = {
    "bookie-add": (calls.pack_adds(LIFE, ADDS), calls.parse_adds, (LIFE, ADDS)),
    "bookie-add-answer": (calls.pack_statuses(STATUSES), calls.parse_statuses, STATUSES),
    "bookie-read": (calls.pack_reads(LIFE, READS), calls.parse_reads, (LIFE, READS)),
    "bookie-read-wait": (calls.pack_reads(LIFE, WAIT), calls.parse_reads, (LIFE, WAIT)),
    "bookie-read-answer": (
        calls.pack_read_answers(READ_ANSWERS), calls.parse_read_answers, READ_ANSWERS,
    ),
    "bookie-seal": (calls.pack_seals(LIFE, SEALS), calls.parse_seals, (LIFE, SEALS)),
    "bookie-seal-answer": (
        calls.pack_marks(b"DSLR", MARKS), lambda data: calls.parse_marks(data, b"DSLR"), MARKS,
    ),
    "bookie-lac": (calls.pack_lacs(LIFE, LACS), calls.parse_lacs, (LIFE, LACS)),
    "bookie-lac-answer": (
        calls.pack_marks(b"DLCR", MARKS), lambda data: calls.parse_marks(data, b"DLCR"), MARKS,
    ),
    "bookie-inventory": (
        repair_calls.pack_inventory(LIFE, INVENTORY),
        repair_calls.parse_inventory, (LIFE, INVENTORY),
    ),
    "bookie-inventory-answer": (
        repair_calls.pack_inventory_answer(INVENTORY_ANSWER),
        repair_calls.parse_inventory_answer, INVENTORY_ANSWER,
    ),
    "bookie-pull": (repair_calls.pack_pull(LIFE, PULL), repair_calls.parse_pull, (LIFE, PULL)),
    "bookie-pull-answer": (
        repair_calls.pack_pull_answer(PULL_ANSWER), repair_calls.parse_pull_answer, PULL_ANSWER,
    ),
    "read-answer": (pack_batches(PLACED), parse_batches, PLACED),
    "sequencer-lac": (
        sequencer_calls.pack_lac_wait(LAC_WAIT), sequencer_calls.parse_lac_wait, LAC_WAIT,
    ),
    "sequencer-lac-answer": (
        sequencer_calls.pack_open_lac(OPEN_LAC), sequencer_calls.parse_open_lac, OPEN_LAC,
    ),
    **FLEXIBLE_FRAMES,
}  # fmt: skip


VERSIONS = {**dict.fromkeys(FLEXIBLE_FRAMES, 2), "bookie-pull": 2, "bookie-pull-mapped": 3}
"""Of those that are not at their first one."""


@pytest.mark.parametrize("name", FRAMES)
def test_golden_frames(name: str) -> None:
    spelt, parse, value = FRAMES[name]
    golden = read_golden(f"frame-{name}-v{VERSIONS.get(name, 1)}.bin", spelt)
    assert parse(golden) == value
    assert frame_size(golden[:HEADER_BYTES], golden[:4]) == len(golden)
    with pytest.raises(FrameError):
        frame_size(golden[:HEADER_BYTES], b"????")


@pytest.mark.parametrize(("version", "appends"), [(1, APPENDS_V1), (2, APPENDS)])
def test_golden_appends_of_each_version(version: int, appends: list[Append]) -> None:
    spelt = sequencer_calls.pack_appends(appends)
    golden = read_golden(f"frame-append-v{version}.bin", None if version == 1 else spelt)
    assert sequencer_calls.parse_appends(golden) == appends


def test_a_pull_of_version_1_names_addresses_too() -> None:
    golden = read_golden("frame-bookie-pull-v1.bin", None)
    source = PULL.sources[0]._replace(data_url="http://127.0.0.1:7101")
    assert repair_calls.parse_pull(golden) == (LIFE, PULL._replace(sources=[source]))


def test_no_address_leaves_with_a_pull() -> None:
    source = PULL.sources[0]._replace(data_url="http://127.0.0.1:7101")
    spelt = repair_calls.pack_pull(LIFE, PULL._replace(sources=[source]))
    assert spelt == repair_calls.pack_pull(LIFE, PULL)


def test_a_proxy_may_say_in_which_region_it_is() -> None:
    row = Append(LogId(9), 5, b"", AppendOptions(tried=("s1",), region="eu"))
    spelt = sequencer_calls.pack_appends([row, row, APPENDS[3]])
    assert spelt.count(b'{"region": "eu", "tried": ["s1"]}') == 2
    assert sequencer_calls.parse_appends(spelt) == [row, row, APPENDS[3]]
    wrong = spelt.replace(b'"eu"', b"1234")
    with pytest.raises(FrameError, match="options"):
        sequencer_calls.parse_appends(wrong)


def test_a_request_without_sense_in_its_options_is_refused() -> None:
    spelt = sequencer_calls.pack_appends([Append(LogId(9), 5, b"", AppendOptions(7))])
    for wrong in (b'{"match_seq_num": 7', b'{"match_seq_num":-7}', b'["match_seq_num", 7]'):
        body = spelt[: -len(b'{"match_seq_num": 7}')] + wrong.ljust(len(b'{"match_seq_num": 7}'))
        with pytest.raises(FrameError, match="options"):
            sequencer_calls.parse_appends(body)


def test_golden_append_answer() -> None:
    spelt = sequencer_calls.pack_results(RESULTS)
    parsed = sequencer_calls.parse_results(read_golden("frame-append-answer-v1.bin", spelt))
    assert parsed[:2] == RESULTS[:2]
    index, error = parsed[2]
    assert index == 2 and isinstance(error, DuramenError)
    assert (error.code, error.detail, error.field) == ("window_full", "wait", "log")
    assert error.retry_after_ms == 200 and not error.uncertain


def test_golden_early_answer() -> None:
    early: sequencer_calls.AppendResult = AppendedEarly(START.dlsn, 2, 1_700_000_000_000)
    spelt = sequencer_calls.pack_results([(4, early)])
    golden = read_golden("frame-append-answer-early-v1.bin", spelt)
    assert sequencer_calls.parse_results(golden) == [(4, early)]


@pytest.mark.parametrize("code", ERRORS)
def test_every_error_travels_with_its_certainty(code: str) -> None:
    for uncertain in (None, True, False):
        error = DuramenError(code, "why", uncertain=uncertain)
        ((_, back),) = sequencer_calls.parse_results(sequencer_calls.pack_results([(0, error)]))
        assert isinstance(back, DuramenError)
        assert (back.code, back.uncertain) == (code, error.uncertain)


@pytest.mark.parametrize("found", [None, (1, NOTHING), (9, LAST_ENTRY_ID)])
def test_what_is_open_travels_as_it_is(found: tuple[int, int] | None) -> None:
    word = None if found is None else OpenLac(Epoch(found[0]), EntryId(found[1]))
    assert sequencer_calls.parse_open_lac(sequencer_calls.pack_open_lac(word)) == word


@pytest.mark.parametrize("row_count", [0, 2])
def test_a_wait_is_for_one_log_and_has_a_bound(row_count: int) -> None:
    row = struct.Struct("<IIII")
    with pytest.raises(FrameError, match="one row"):
        sequencer_calls.parse_lac_wait(pack_frame(b"DLWQ", row, [(7, 3, 0, 1)] * row_count))
    with pytest.raises(FrameError, match="10001 ms"):
        sequencer_calls.parse_lac_wait(pack_frame(b"DLWQ", row, [(7, 3, 0, 10_001)]))


def test_duplicates_travel_with_and_without_their_positions() -> None:
    results: list[tuple[int, sequencer_calls.AppendResult]] = [
        (0, AppendedBatch(START, 2, TAIL, is_duplicate=True)), (1, AlreadyStored()),
    ]  # fmt: skip
    assert sequencer_calls.parse_results(sequencer_calls.pack_results(results)) == results


def test_what_was_expected_travels_with_a_refusal() -> None:
    facts = {"expected_seq_num": 7, "tail": {"seq_num": 7}}
    error = DuramenError("condition_failed", "no", field="match_seq_num", facts=facts)
    ((_, back),) = sequencer_calls.parse_results(sequencer_calls.pack_results([(0, error)]))
    assert isinstance(back, DuramenError) and back.facts == facts
    assert back.problem() == error.problem() and back.problem()["expected_seq_num"] == 7


def test_the_end_of_an_append_is_one_past_its_last_record() -> None:
    end = AppendedBatch(START, 2, TAIL).end
    assert end == LogMark(Dlsn(Epoch(3), EntryId(17), 4), 1_004, START.timestamp_ms)


ALL = {
    **{name: (spelt, parse) for name, (spelt, parse, _) in FRAMES.items()},
    "append-answer": (sequencer_calls.pack_results(RESULTS), sequencer_calls.parse_results),
}


@given(st.sampled_from(sorted(ALL)), st.data())
def test_a_flipped_bit_in_header_or_rows_is_noticed(name: str, data: st.DataObject) -> None:
    spelt, parse = ALL[name]
    rows = struct.unpack_from("<HI", spelt, 6)
    end = HEADER_BYTES + rows[0] * rows[1]
    damaged = bytearray(spelt)
    bit = data.draw(st.integers(0, end * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        parse(bytes(damaged))


@settings(max_examples=400)
@given(st.sampled_from(sorted(ALL)), st.data())
def test_rows_that_lie_raise_one_error_only_under_a_right_crc(
    name: str, data: st.DataObject
) -> None:
    spelt, parse = ALL[name]
    size, count = struct.unpack_from("<HI", spelt, 6)
    end = HEADER_BYTES + size * count
    damaged = bytearray(spelt)
    places = st.integers(0, len(spelt) - 1)
    for at in data.draw(st.lists(places, min_size=1, max_size=5)):
        damaged[at] = data.draw(st.integers(0, 255))
    crc = google_crc32c.value(bytes(damaged[:32]) + bytes(damaged[HEADER_BYTES:end]))
    damaged[32:36] = crc.to_bytes(4, "little")
    with contextlib.suppress(FrameError):
        parse(bytes(damaged))


@given(st.sampled_from(sorted(ALL)), st.binary(max_size=120))
def test_arbitrary_bytes_are_refused(name: str, data: bytes) -> None:
    spelt, parse = ALL[name]
    for start in (0, 4, HEADER_BYTES):
        with pytest.raises(FrameError):
            parse(spelt[:start] + b"\x00" + data)


@pytest.mark.parametrize("name", ALL)
def test_a_frame_is_refused_when_cut_or_taken_for_another(name: str) -> None:
    spelt, parse = ALL[name]
    for size in range(0, len(spelt), 3):
        with pytest.raises(FrameError):
            parse(spelt[:size])
    with pytest.raises(FrameError):
        parse(spelt + b"x")
    for other, (bytes_of_other, _) in ALL.items():
        if bytes_of_other[:4] != spelt[:4]:
            with pytest.raises(FrameError):
                parse(bytes_of_other)
            assert other != name


@pytest.mark.parametrize(
    "add",
    [
        Add(LEDGER, EntryId(3), EntryId(3), b""),
        Add(LEDGER, EntryId(3), EntryId(4), b""),
        Add(LEDGER, EntryId(0xFFFF_FFFF), NOTHING, b""),
    ],
)
def test_an_add_whose_lac_is_not_below_its_entry_is_refused(add: Add) -> None:
    with pytest.raises(FrameError):
        calls.parse_adds(calls.pack_adds(LIFE, [add]))


def test_only_a_single_range_may_wait_and_not_for_ever() -> None:
    with pytest.raises(FrameError, match="single"):
        calls.parse_reads(calls.pack_reads(LIFE, [*WAIT, *READS]))
    long = WAIT[0]._replace(wait_ms=LONG_POLL_MAX_US // MS + 1)
    with pytest.raises(FrameError, match="60 s"):
        calls.parse_reads(calls.pack_reads(LIFE, [long]))


@pytest.mark.parametrize(
    "name",
    [
        "bookie-inventory-answer", "bookie-inventory-marked-answer", "bookie-pull",
        "bookie-pull-answer", "bookie-pull-mapped",
    ],
)  # fmt: skip
def test_a_flipped_bit_in_what_repair_decides_on_is_noticed(name: str) -> None:
    spelt, parse, _ = FRAMES[name]
    for at in range(HEADER_BYTES, len(spelt)):
        damaged = bytearray(spelt)
        damaged[at] ^= 1
        with pytest.raises(FrameError):
            parse(bytes(damaged))


@pytest.mark.parametrize(
    "inventory",
    [
        Inventory(LEDGER, EntryId(0), NOTHING),
        Inventory(LEDGER, EntryId(4), NOTHING, is_marked=True),
        Inventory(LEDGER, EntryId(4), EntryId(3), is_marked=True),
    ],
)
def test_an_inventory_of_nothing_asks_for_the_mark_alone(inventory: Inventory) -> None:
    with pytest.raises(FrameError, match="a range goes"):
        repair_calls.parse_inventory(repair_calls.pack_inventory(LIFE, inventory))


@pytest.mark.parametrize(
    "pull",
    [
        PULL._replace(ranges=[]),
        PULL._replace(ranges=[(EntryId(1), EntryId(0))]),
        PULL._replace(ranges=[(EntryId(0), EntryId(4)), (EntryId(4), EntryId(5))]),
        PULL._replace(ranges=[(EntryId(0), EntryId(0xFFFF_FFFF))]),
        PULL._replace(ranges=[(EntryId(2 * i), EntryId(2 * i)) for i in range(5_000)]),
        PULL._replace(sources=[]),
        PULL._replace(sources=[*PULL.sources] * 65),
        PULL._replace(sources=[Source(Member(BookieId("b"), Incarnation("none")), "")]),
        *[
            PULL._replace(sources=[Source(Member(BookieId(name), LIFE), "")])
            for name in ("", ".", "..", "../bookies/b", "b\n", "b" * 513)
        ],
    ],
)  # fmt: skip
def test_a_pull_that_makes_no_sense_is_refused(pull: Pull) -> None:
    assert len(PULL.ranges) < PULL_RANGE_COUNT_MAX < 5_000
    with pytest.raises(FrameError):
        repair_calls.parse_pull(repair_calls.pack_pull(LIFE, pull))


def test_what_a_pull_could_not_get_is_told_with_its_reason() -> None:
    assert PULL_ANSWER.missing == [PULL_ANSWER.ranges[1]]


def test_frames_of_a_stream_come_out_whole_and_in_order() -> None:
    one, two = (sequencer_calls.pack_results([result]) for result in RESULTS[:2])
    buffer = bytearray()
    found: list[bytes] = []
    for at in range(0, len(one + two), 7):
        buffer += (one + two)[at : at + 7]
        while (frame := sequencer_calls.take_frame(buffer)) is not None:
            found.append(frame)
    assert found == [one, two] and not buffer


@given(st.lists(st.binary(max_size=9), max_size=5), st.binary(max_size=9))
def test_payloads_are_cut_exactly(items: Sequence[bytes], rest: bytes) -> None:
    whole = memoryview(b"".join(items))
    assert split_payload(whole, map(len, items)) == list(items)
    if rest:
        with pytest.raises(FrameError):
            split_payload(memoryview(b"".join([*items, rest])), map(len, items))


def test_an_empty_frame_and_its_flags() -> None:
    row = struct.Struct("<I")
    frame = parse_frame(pack_frame(b"TEST", row, [], incarnation=LIFE, flags=5), b"TEST", row)
    assert (frame.flags, frame.incarnation, frame.rows, bytes(frame.payload)) == (5, LIFE, [], b"")


def test_the_largest_legal_batch_fits_an_entry_that_bookies_take() -> None:
    """Once it did not: bookies refused the frame, and the log stood still."""
    count = BATCH_RECORD_COUNT_MAX
    bodies = [b"x" * (BATCH_BYTES_MAX // count)] * count
    batch = encode_batch(bodies, 0, txids=range(count), timestamps_ms=range(count))
    after = Totals(count, len(batch), count - 1, count - 1)
    entry = encode_entry(
        ledger_id=LEDGER,
        entry_id=EntryId(0),
        before=Totals(),
        batches=[batch],
        record_count=count,
        after=after,
    )
    frame = calls.pack_adds(LIFE, [Add(LEDGER, EntryId(0), NOTHING, entry)])
    (add,) = calls.parse_adds(frame)[1]
    assert check_entry(bytes(add.entry)).record_count == count
