"""What a read asks for, and what it makes of batches: options, filters, ranges, columns, offsets.

Without Spark's session and without a cluster. Filters are held against plain Python on rows with
nulls: what they keep must be what SQL keeps, and their bounds must never be too narrow.
Source: docs/spark.md, docs/protocol/rest.md "Records".
"""

from __future__ import annotations

import datetime
import itertools
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch
from duramen.units import MIB
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.edge.batch_columns import open_columns
from duramen.wire.read_answers import PlacedBatch
from duramen.wire.record_batch import BatchError, BatchProducer, encode_batch
from pyspark_duramen import find_lag
from pyspark_duramen.catalog import ArchivedCopy, CatalogSegment, LogFacts
from pyspark_duramen.options import OnTruncation, ReadOptions, WriteOptions
from pyspark_duramen.reading.columns import make_rows, open_pieces
from pyspark_duramen.reading.gaps import GapReason, RecordGap, make_gap_row
from pyspark_duramen.reading.places import split_by_segments
from pyspark_duramen.reading.predicates import LAST_NUMBER, split_filters
from pyspark_duramen.reading.ranges import LogRange, RangePartition, balance, cut_by_records
from pyspark_duramen.streaming.offsets import (
    LogOffset,
    encode_offsets,
    find_begin,
    read_offsets,
    share,
)
from pyspark_duramen.table import ARROW_TYPES, check_schema
from pyspark_duramen.writing.rows import check_columns, read_rows

LOG = ("shop", "orders")
READ = {"url": "http://localhost:1", "logs": "shop/orders"}
EVERYTHING = pa.schema([pa.field(name, kind) for name, kind in ARROW_TYPES.items()])
UTC = datetime.UTC


# --- Options --------------------------------------------------------------------------------------


def test_options_of_a_read() -> None:
    options = ReadOptions.parse(
        READ | {"From": "tail-5", "on_truncation": "skip", "partition_bytes": "1MiB"}
    )
    assert (options.start, options.on_truncation) == ("tail-5", OnTruncation.SKIP)
    assert (options.partition_bytes, options.until) == (MIB, None)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"form": "head"}, "form"),
        ({"path": "shop/orders"}, "path"),
        ({"logs": "orders"}, "logs"),
        ({"logs": " , "}, "logs"),
        ({"url": ""}, "url"),
        ({"on_truncation": "pass"}, "on_truncation"),
        ({"max_records_per_trigger": "0"}, "max_records_per_trigger"),
        ({"partition_bytes": "much"}, "partition_bytes"),
        ({"from": "soon"}, "from"),
    ],
)
def test_a_wrong_option_of_a_read_is_refused_by_its_name(
    change: dict[str, str], field: str
) -> None:
    with pytest.raises(DuramenError) as caught:
        ReadOptions.parse(READ | change)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"from": "head"}, "from"),
        ({"logs": "shop/*"}, "log"),
        ({"write_id": "x" * 41}, "write_id"),
        ({"batch_bytes": "5MiB"}, "batch_bytes"),
        ({"compression": "lz4"}, "compression"),
    ],
)
def test_a_wrong_option_of_a_write_is_refused_by_its_name(
    change: dict[str, str], field: str
) -> None:
    with pytest.raises(DuramenError) as caught:
        WriteOptions.parse(READ | change)
    assert caught.value.field == field


# --- Columns --------------------------------------------------------------------------------------


def place(seq_num: int, batch: bytes, record_count: int) -> PlacedBatch:
    dlsn = Dlsn(Epoch(3), EntryId(7), 2)
    return PlacedBatch(dlsn, seq_num, record_count, memoryview(batch))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_batches_become_rows(codec: Codec) -> None:
    first = encode_batch(
        [b"zero", b"", b"x" * 1000],
        5,
        timestamps_ms=[1, 2, 3],
        txids=[7, 7, 9],
        headers=[[(b"a", b"1"), (b"a", b"")], [], [(b"\xff", b"2")]],
        producer=BatchProducer("p", 1 << 40, 4),
        codec=codec,
    )
    second = encode_batch([b"three", b"four"], 6, codec=codec)
    pieces = open_pieces([place(10, first, 3), place(13, second, 2)], 11, 14)
    rows = make_rows(pieces, LOG, EVERYTHING).to_pylist()
    at = datetime.datetime(1970, 1, 1, tzinfo=UTC)
    base = {"namespace": "shop", "log": "orders", "epoch": 3, "entry": 7, "gap": None}
    made = {"producer_id": "p", "producer_epoch": 1 << 40, "producer_seq": 4}
    nobody = {"producer_id": None, "producer_epoch": None, "producer_seq": None}
    assert rows == [
        base | made | {
            "seq_num": 11, "slot": 3, "txid": 7, "timestamp_ms": 2, "headers": [], "body": b"",
            "timestamp": at + datetime.timedelta(milliseconds=2),
        },
        base | made | {
            "seq_num": 12, "slot": 4, "txid": 9, "timestamp_ms": 3, "body": b"x" * 1000,
            "headers": [{"name": b"\xff", "value": b"2"}],
            "timestamp": at + datetime.timedelta(milliseconds=3),
        },
        base | nobody | {
            "seq_num": 13, "slot": 2, "txid": None, "timestamp_ms": 6, "headers": [],
            "body": b"three", "timestamp": at + datetime.timedelta(milliseconds=6),
        },
    ]  # fmt: skip


def test_a_damaged_batch_is_no_rows() -> None:
    batch = bytearray(encode_batch([b"zero", b"one"], 5))
    for at in (20, 70, len(batch) - 1):
        damaged = bytearray(batch)
        damaged[at] ^= 1
        with pytest.raises(BatchError):
            open_columns(bytes(damaged))
    with pytest.raises(BatchError):
        open_pieces([place(0, bytes(batch), 3)], 0, 3)


def test_a_schema_is_of_columns_that_there_are() -> None:
    wanted = StructType([StructField("body", BinaryType()), StructField("seq_num", LongType())])
    assert check_schema(wanted).names == ["body", "seq_num"]
    for field in (StructField("crc", LongType()), StructField("seq_num", IntegerType())):
        with pytest.raises(DuramenError) as caught:
            check_schema(StructType([field]))
        assert caught.value.field == field.name


def test_a_gap_has_a_row() -> None:
    row = make_gap_row(RecordGap(GapReason.TRUNCATED, 3, 9), LOG, EVERYTHING).to_pylist()[0]
    known = {name: value for name, value in row.items() if value is not None}
    gap = {"reason": "truncated", "first_seq_num": 3, "end_seq_num": 9}
    assert known == {"namespace": "shop", "log": "orders", "gap": gap}


# --- Filters --------------------------------------------------------------------------------------

ROWS: list[dict[str, Any]] = [
    {"seq_num": n, "txid": None if n % 5 == 0 else n // 2, "timestamp_ms": 1000 + n * 7 % 40}
    for n in range(40)
] + [{"seq_num": None, "txid": None, "timestamp_ms": None}]


def sql(each: ds.Filter, row: dict[str, Any]) -> bool:
    """What SQL keeps."""
    value = row[each.attribute[0]]  # type: ignore[attr-defined]
    other = getattr(each, "value", None)
    match each:
        case ds.IsNull():
            return value is None
        case ds.IsNotNull():
            return value is not None
        case ds.EqualNullSafe():
            return bool(value == other)
        case _ if value is None:
            return False
        case ds.In():
            return value in each.value
        case ds.EqualTo():
            return bool(value == other)
        case ds.GreaterThan():
            return bool(value > each.value)
        case ds.GreaterThanOrEqual():
            return bool(value >= each.value)
        case ds.LessThan():
            return bool(value < each.value)
        case _:
            return bool(value <= each.value)  # type: ignore[attr-defined]


def make_filters(rng: random.Random) -> list[ds.Filter]:
    kinds: list[Any] = [
        ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan,
        ds.LessThanOrEqual,
    ]  # fmt: skip
    made: list[ds.Filter] = []
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(["seq_num", "txid", "timestamp_ms"])
        value = rng.randint(-5, 60) + (1000 if name == "timestamp_ms" else 0)
        made.append(
            rng.choice(
                [rng.choice(kinds)((name,), value)] * 4
                + [ds.In((name,), (value, value + 3)), ds.IsNotNull((name,)), ds.IsNull((name,))]
            )
        )
    return made


@pytest.mark.parametrize("seed", range(200))
def test_filters_keep_what_sql_keeps_and_bound_no_row_away(seed: int) -> None:
    filters = make_filters(random.Random(seed))
    predicates, left = split_filters(filters, EVERYTHING.names)
    assert left == []
    kept = [row for row in ROWS if all(sql(each, row) for each in filters)]
    assert predicates.keep(pa.RecordBatch.from_pylist(ROWS)).to_pylist() == kept
    for name, row in itertools.product(("seq_num", "txid", "timestamp_ms"), kept):
        low, high = predicates.find_bounds(name)
        assert row[name] is None or low <= row[name] < high


def test_filters_choose_logs_and_positions() -> None:
    moment = datetime.datetime(2026, 1, 1)
    filters: list[ds.Filter] = [
        ds.EqualTo(("namespace",), "shop"),
        ds.In(("log",), ("orders", "bills")),
        ds.GreaterThan(("timestamp",), moment),
        ds.GreaterThanOrEqual(("txid",), 5),
        ds.LessThan(("txid",), 9),
        ds.EqualTo(("body",), b"x"),
        ds.Not(ds.EqualTo(("seq_num",), 1)),
        ds.EqualTo(("seq_num",), 1 << 70),
    ]
    predicates, left = split_filters(filters, EVERYTHING.names)
    assert left == filters[5:]
    assert predicates.has_log(LOG) and not predicates.has_log(("shop", "x"))
    assert not predicates.has_log(("lab", "orders"))
    unix_ms = int(moment.replace(tzinfo=UTC).timestamp() * 1000)
    assert predicates.list_starts() == ["txid:5", f"time:{unix_ms}"]
    assert predicates.find_end() == "txid:10"
    assert predicates.find_bounds("seq_num") == (0, LAST_NUMBER)
    assert split_filters(filters, ["body"])[1] == filters


# --- Ranges ---------------------------------------------------------------------------------------


def test_partitions_are_balanced_by_bytes_and_lose_nothing() -> None:
    ranges = [
        LogRange(LOG, 0, 1000, 100 * MIB),
        LogRange(LOG, 1000, 1001, 10),
        LogRange(("shop", "small"), 0, 5, 100),
        LogRange(("shop", "none"), 5, 5, 0),
        LogRange(("shop", "big"), 7, 8, 90 * MIB),
    ]
    partitions = balance(ranges, 32 * MIB)
    found = [each for part in partitions for each in part.ranges]
    assert [part.log for part in found if part.log != LOG] == [("shop", "small"), ("shop", "big")]
    seqs = [n for part in found if part.log == LOG for n in range(part.first, part.end)]
    assert seqs == list(range(1001))
    sizes = [sum(each.size_bytes for each in part.ranges) for part in partitions]
    assert len(partitions) == 5 and max(sizes[:4]) <= 32 * MIB


def test_segments_say_where_ranges_lie() -> None:
    segments = [
        CatalogSegment(1, 0, 100, 1000, ArchivedCopy("a", "aa")),
        CatalogSegment(2, 100, 200, 9000),
        CatalogSegment(4, 210, 300, 900),
    ]
    facts = LogFacts("5", 0, 350)

    def split(first: int, end: int, *, has_cold_store: bool) -> list[tuple[int, int, bool]]:
        return [
            (part.first, part.end, part.cold is not None)
            for part in split_by_segments(
                LOG, facts, segments, first, end, has_cold_store=has_cold_store
            )
        ]

    assert split(50, 350, has_cold_store=True) == [
        (50, 100, True), (100, 200, False), (200, 210, False), (210, 300, False), (300, 350, False),
    ]  # fmt: skip
    assert split(0, 60, has_cold_store=False) == [(0, 60, False)]
    assert split(120, 130, has_cold_store=True) == [(120, 130, False)]
    whole = balance(split_by_segments(LOG, facts, segments, 0, 350, has_cold_store=False), 32 * MIB)
    assert [(each.first, each.end) for each in whole[0].ranges] == [(0, 350)]


def test_micro_batches_are_cut_by_numbers_alone() -> None:
    partitions = cut_by_records(LOG, 5, 26, 10)
    assert all(isinstance(each, RangePartition) for each in partitions)
    found = [(each.first, each.end) for part in partitions for each in part.ranges]
    assert found == [(5, 15), (15, 25), (25, 26)]


# --- Offsets --------------------------------------------------------------------------------------


def test_offsets_are_json_and_back() -> None:
    offsets = {("b", "y"): LogOffset("7", 3, 9), ("a", "x.y"): LogOffset("1", 0, 0)}
    spelled = encode_offsets(offsets)
    assert list(spelled) == ["a/x.y", "b/y"]
    assert read_offsets(spelled) == offsets
    for bad in ({"a/b": 5}, {"a/b": {"id": "1"}}, {"a/b": {"id": "1", "first": "x", "seq": 1}}):
        with pytest.raises(ValueError, match="no offsets of logs"):
            read_offsets(bad)


def test_a_micro_batch_begins_where_the_last_one_ended_or_its_log_began() -> None:
    after = LogOffset("1", 4, 20)
    assert find_begin(LogOffset("1", 4, 10), after) == 10
    assert find_begin(None, after) == 4
    assert find_begin(LogOffset("1", 17, 17), after) == 4, "the first micro-batch, repeated"
    assert find_begin(LogOffset("0", 0, 99), after) == 4, "another log of this name"


@pytest.mark.parametrize("seed", range(100))
def test_a_limit_is_used_up_and_never_passed(seed: int) -> None:
    rng = random.Random(seed)
    lags = {("n", f"log{n}"): rng.choice([0, 1, 2, 5, 1000]) for n in range(rng.randint(1, 6))}
    most = rng.randint(1, 1500)
    shares = share(lags, most)
    assert sum(shares.values()) == min(most, sum(lags.values()))
    assert all(0 <= shares[log] <= lag for log, lag in lags.items())


def test_lag_is_what_progress_says() -> None:
    end = '{"a/b": {"id": "1", "first": 0, "seq": 10}, "a/c": {"id": "2", "first": 0, "seq": 5}}'
    latest = (
        '{"a/b": {"id": "1", "first": 0, "seq": 25}, "a/c": {"id": "3", "first": 2, "seq": 9},'
        ' "a/d": {"id": "4", "first": 1, "seq": 4}}'
    )
    sources = [{"endOffset": end, "latestOffset": latest}, {"endOffset": "{}"}]
    assert find_lag({"sources": sources}) == {"a/b": 15, "a/c": 7, "a/d": 3}
    assert find_lag({"sources": [{"endOffset": "5", "latestOffset": '{"0": 3}'}]}) == {}
    assert find_lag(None) == {}


# --- Rows to be written ---------------------------------------------------------------------------


KINDS = {
    "bigint": LongType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "string": StringType(),
    "timestamp": TimestampType(),
}


def make_schema(ddl: str) -> StructType:
    """As `StructType.fromDDL`, which needs a session."""
    pairs = [column.split() for column in ddl.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def test_rows_of_arrow_batches() -> None:
    batch = pa.RecordBatch.from_pylist(
        [
            {"body": "a", "headers": [("k", "v")], "namespace": "n", "log": "x"},
            {"body": "b", "headers": None, "namespace": "n", "log": "x"},
            {"body": "c", "headers": [], "namespace": "n", "log": "y"},
        ],
        pa.schema(
            [
                ("body", pa.string()),
                ("headers", pa.map_(pa.string(), pa.string())),
                ("namespace", pa.string()),
                ("log", pa.string()),
            ]
        ),
    )
    found = [(log, [tuple(row) for row in rows]) for log, rows in read_rows(batch, None)]
    assert found == [
        (("n", "x"), [(b"a", ((b"k", b"v"),), None, None), (b"b", (), None, None)]),
        (("n", "y"), [(b"c", (), None, None)]),
    ]


@pytest.mark.parametrize(
    ("ddl", "log", "field"),
    [
        ("txid bigint", LOG, "body"),
        ("body binary, seq_num bigint", LOG, "seq_num"),
        ("body int", LOG, "body"),
        ("body binary, timestamp timestamp, timestamp_ms bigint", LOG, "timestamp"),
        ("body binary", None, "logs"),
        ("body binary, namespace string, log string", LOG, "logs"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused(
    ddl: str, log: tuple[str, str] | None, field: str
) -> None:
    with pytest.raises(DuramenError) as caught:
        check_columns(make_schema(ddl), log)
    assert caught.value.field == field
