"""The data source `duramen` on a real cluster: batch and streams, reads and writes, faults.

One cluster with two sequencers, one session. What a query gives is compared with what was appended,
record for record. The two promises that are tried with faults: a streaming read over 20 rolls, a
sequencer killed and a restart from its checkpoint gives every record once; a streaming write whose
task, and then whose driver, dies between write and commit leaves every record once.
Source: docs/spark.md.
"""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from duramen.client import Record, SyncClient, SyncLog
from duramen.core.segment import SegmentState
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LogId
from duramen.wire.metadata_json import encode_segment, read_segment
from pyspark_duramen import find_lag
from pyspark_duramen.catalog import ProxyCatalog
from pyspark_duramen.options import OnTruncation, ReadOptions
from pyspark_duramen.proxy_place import ProxyPlace
from pyspark_duramen.reading.cold import ColdReader, NotFromHere
from pyspark_duramen.reading.hot import HotReader
from pyspark_duramen.reading.places import find_places
from pyspark_duramen.reading.ranges import LogRange
from pyspark_duramen.reading.reader import LogReader
from pyspark_duramen.reading.task import read_ranges
from pyspark_duramen.streaming.reader import LogStreamReader
from pyspark_duramen.table import ARROW_TYPES
from tests.component import readproxy_world
from tests.component.holed_log import HOLES, KINDS, NUMBERS
from tests.component.holed_log import fill as fill_with_holes
from tests.process.cluster import LocalCluster, run, running_plain_cluster
from tests.process.copies import open_store
from tests.process.metadata_nodes import change_node
from tests.process.times import HANG_S
from tests.spark.archive_world import World, fill_log
from tests.spark.faulty_sources import DyingSource
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = "log string, seq_num bigint, body binary, gap " + (
    "struct<reason: string, first_seq_num: bigint, end_seq_num: bigint>"
)


FLEXIBLE = {"copysets": "flexible", "replication": {"node": 2, "rack": 2}}


class Site:
    """Cluster, client and session of one test."""

    def __init__(self, cluster: LocalCluster, client: SyncClient, spark: SparkSession) -> None:
        self.cluster, self.client, self.spark = cluster, client, spark
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        state = cluster.state()
        self.write_url, self.read_url = state["write_url"], state["read_url"]

    def make_log(self, name: str, **config: Any) -> SyncLog:
        log = self.client["default"][name]
        log.ensure(config)
        return log

    def read(self, logs: str, **options: Any) -> DataFrame:
        reader = self.spark.read.format("duramen").option("url", self.read_url)
        return reader.option("logs", logs).options(**options).load()

    def stream(self, logs: str, **options: Any) -> DataStreamReader:
        reader = self.spark.readStream.format("duramen").option("url", self.read_url)
        return reader.option("logs", logs).options(**options).schema(COLUMNS)

    def bodies(self, log: SyncLog) -> list[bytes]:
        return [body for batch in log.read() for body in batch.bodies]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of which one sequencer can be spared."""
    folder = tmp_path_factory.mktemp("source") / "c"
    with running_plain_cluster(folder, "--sequencers", "2") as started:
        yield started


@pytest.fixture
def site(cluster: LocalCluster, spark: SparkSession) -> Iterator[Site]:
    state = cluster.state()
    with SyncClient(state["write_url"], read_url=state["read_url"]) as client:
        yield Site(cluster, client, spark)


def fill(log: SyncLog, first: int, count: int, *, size_bytes: int = 0) -> None:
    """Records whose body begins with their sequence number; two appends of every hundred."""
    for begin in range(first, first + count, 50):
        end = min(begin + 50, first + count)
        log.append(
            [
                Record(
                    b"%d " % n + b"x" * size_bytes,
                    txid=n // 3,
                    headers=[("n", str(n))] if n % 2 else (),
                    timestamp=1_700_000_000_000 + n,
                )
                for n in range(begin, end)
            ]
        )


def finish(query: StreamingQuery) -> None:
    """Wait for a query with Trigger.AvailableNow."""
    assert query.awaitTermination(int(HANG_S)), "the query does not end"


def numbers(table: DataFrame) -> list[int]:
    return [int(bytes(row.body)) for row in table.select("body").collect()]


# --- Batch ----------------------------------------------------------------------------------------


def test_a_log_is_a_table(site: Site) -> None:
    log = site.make_log("table", roll={"size": "64KiB"})
    fill(log, 0, 400, size_bytes=300)
    assert len(log.segments()) > 1
    table = site.read("default/table", partition_bytes="40KiB").cache()
    assert table.rdd.getNumPartitions() > 2
    rows = sorted(table.collect(), key=lambda row: row.seq_num)
    found = [record for batch in log.read() for record in batch]
    assert len(rows) == len(found) == 400
    for row, record in zip(rows, found, strict=True):
        assert (row.namespace, row.log, row.seq_num) == ("default", "table", record.seq_num)
        assert (row.epoch, row.entry, row.slot) == tuple(record.dlsn)
        assert (row.txid, row.timestamp_ms) == (record.txid, record.timestamp_ms)
        assert [(bytes(h.name), bytes(h.value)) for h in row.headers] == list(record.headers)
        assert bytes(row.body) == record.body and row.gap is None
    seconds = table.select(sql.min("timestamp").cast("double").alias("s")).first()
    assert seconds is not None and seconds.s == 1_700_000_000.0
    table.unpersist()


@pytest.mark.parametrize("is_pushed", [True, False])
def test_filters_give_the_same_rows_pushed_down_or_not(site: Site, is_pushed: bool) -> None:
    name = f"filtered-{is_pushed}"
    log = site.make_log(name, roll={"size": "8KiB"})
    fill(log, 0, 300)
    setting = "spark.sql.python.filterPushdown.enabled"
    before = site.spark.conf.get(setting)
    site.spark.conf.set(setting, str(is_pushed).lower())
    try:
        table = site.read("default/filtered-*").where(sql.col("log") == name)
        for condition, expected in (
            ("seq_num between 100 and 119", range(100, 120)),
            ("txid >= 50 and txid < 53", range(150, 159)),
            ("timestamp_ms >= 1700000000290", range(290, 300)),
            ("timestamp < timestamp_millis(1700000000003)", range(3)),
            ("seq_num in (5, 7) or seq_num = 9", (5, 7, 9)),
            ("txid = 77 and size(headers) = 1", (231, 233)),
            ("seq_num > 1000", ()),
        ):
            assert sorted(numbers(table.where(condition))) == list(expected), condition
    finally:
        site.spark.conf.set(setting, before or "false")


def test_positions_bound_a_read_and_what_is_truncated_is_refused_or_said(site: Site) -> None:
    log = site.make_log("bounded", roll={"size": "4KiB"})
    fill(log, 0, 300)
    bounded = site.read("default/bounded", **{"from": "tail-20", "until": "txid:97"})
    assert sorted(numbers(bounded)) == list(range(280, 291))
    log.truncate(120)
    assert site.read("default/bounded").count() == 180
    with pytest.raises(Exception, match="records 100 to 119 are truncated"):
        site.read("default/bounded", **{"from": "seq:100"}).count()
    skipping = site.read("default/bounded", **{"from": "100", "on_truncation": "skip"})
    gaps = [row.gap.asDict() for row in skipping.where("gap is not null").collect()]
    assert gaps == [{"reason": "truncated", "first_seq_num": 100, "end_seq_num": 120}]
    assert sorted(numbers(skipping.where("seq_num is not null"))) == list(range(120, 300))


@pytest.mark.parametrize(("log", "config"), [("archived", {}), ("spread", FLEXIBLE)])
def test_archived_segments_are_read_from_the_archive_whole_or_by_a_proxy(
    site: Site, tmp_path: Path, log: str, config: dict[str, Any]
) -> None:
    cold = tmp_path / "cold"
    cold.mkdir()
    world = World(site.cluster, cold)
    run(fill_log(site.cluster, log, rolls=3, tiering="copy", **config))
    code, report = world.archive(f"default/{log}")
    assert (code, report["segments"]) == (0, {"archived": 3})
    name, everything = ("default", log), pa.schema(list(ARROW_TYPES.items()))
    with ProxyCatalog(ProxyPlace(site.read_url)) as catalog:
        tail = catalog.find_facts([name])[name].tail
        places = list(find_places([LogRange(name, 0, tail, 0)], catalog))
    assert [place.cold is not None for place in places] == [True, True, True, False]

    def read_cold() -> list[dict[str, Any]]:
        with closing(ColdReader(world.cold_url, everything)) as reader:
            return [row for p in places[:3] for rows in reader.read(p) for row in rows.to_pylist()]

    with closing(HotReader(ProxyPlace(site.read_url), everything, OnTruncation.FAIL)) as reader:
        hot = [row for rows in reader.read(LogRange(name, 0, tail, 0)) for row in rows.to_pylist()]
    assert read_cold() == hot[: places[3].first]

    options = ReadOptions(ProxyPlace(site.read_url), (f"default/{log}",), cold_store=world.cold_url)
    whole = [LogRange(name, 0, tail, 0)]
    streamed = read_ranges(whole, options, everything, is_planned=False)
    assert [row for rows in streamed for row in rows.to_pylist()] == hot

    def read_by_spark() -> list[tuple[int, bytes]]:
        table = site.read(f"default/{log}", cold_store=world.cold_url)
        return sorted((row.seq_num, bytes(row.body)) for row in table.collect())

    bodies = [(row["seq_num"], row["body"]) for row in hot]
    assert read_by_spark() == bodies
    part = max(cold.rglob("*.parquet"), key=lambda path: path.stat().st_size)
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.chmod(0o644)
    part.write_bytes(data)
    with pytest.raises(NotFromHere, match="other bytes"):
        read_cold()
    assert read_by_spark() == bodies, "a proxy gives what the archive does not"


def test_records_that_are_lost_end_a_read_or_have_a_row(site: Site) -> None:
    log = site.make_log("lossy")
    for n in range(4):
        log.append([b"%d" % (2 * n), b"%d" % (2 * n + 1)])
    log_id = LogId(int(log.show()["log_id"]))

    def note_lost(data: bytes) -> bytes | None:
        """Entry 1 is recorded as lost, once its segment is closed; bookies are not to be asked."""
        segment = read_segment(data)
        if segment.state is not SegmentState.CLOSED:
            return None
        return encode_segment(segment.with_lost([(EntryId(1), EntryId(1))], "lost"))

    async def lose_entry() -> None:
        async with open_store(site.cluster) as (store, paths):
            await change_node(store, paths.segment(log_id, Epoch(1)), note_lost)

    log.roll()
    run(lose_entry())
    wanted = LogRange(("default", "lossy"), 1, 8, 0)
    schema = pa.schema([(name, ARROW_TYPES[name]) for name in ("seq_num", "gap")])
    with closing(HotReader(ProxyPlace(site.read_url), schema, OnTruncation.SKIP)) as reader:
        rows = [row for rows in reader.read(wanted) for row in rows.to_pylist()]
    gap = {"reason": "lost", "first_seq_num": 2, "end_seq_num": 4}
    assert [row["gap"] or row["seq_num"] for row in rows] == [1, gap, 4, 5, 6, 7]
    with ProxyCatalog(ProxyPlace(site.read_url)) as catalog:
        assert catalog.locate([wanted.log], "seq:2") == {wanted.log: 4}
        assert catalog.sample_record_bytes({wanted.log: 2})[wanted.log] > 1
    with closing(HotReader(ProxyPlace(site.read_url), schema, OnTruncation.FAIL)) as reader:
        found = reader.read(wanted)
        assert next(found).column("seq_num").to_pylist() == [1]
        with pytest.raises(DuramenError, match="records 2 to 3 of default/lossy are lost"):
            next(found)


@pytest.mark.parametrize("kind", KINDS)
def test_holes_are_rows_of_a_table_and_of_a_stream(site: Site, kind: str, tmp_path: Path) -> None:
    """A read proxy in this process has the log of `holed_log`; Spark's workers ask it."""
    wanted = {*NUMBERS, *(("hole", first, end) for first, end, _, _ in HOLES)}

    def tell(table: DataFrame) -> list[object]:
        rows = table.select("seq_num", "gap").collect()
        return [row.seq_num if row.gap is None else tuple(row.gap) for row in rows]

    def query(url: str) -> None:
        for skipping in ("fail", "skip"):
            options = {"url": url, "logs": "ns/log", "on_truncation": skipping}
            told = tell(site.spark.read.format("duramen").options(**options).load())
            assert len(told) == len(wanted) and set(told) == wanted
        stream = site.stream("ns/log", url=url, max_records_per_trigger=50).load()
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "check"))
        finish(writer.trigger(availableNow=True).start())
        told = tell(site.spark.read.parquet(str(tmp_path / "out")))
        assert len(told) == len(wanted) and set(told) == wanted

    async def scenario(world: readproxy_world.World) -> None:
        await fill_with_holes(world, kind)
        await asyncio.to_thread(query, str(world.http.base_url))

    readproxy_world.run(scenario, within_s=HANG_S)


def test_what_cannot_be_read_is_refused_by_its_name(site: Site) -> None:
    for options, said in (
        ({"form": "head"}, "option form"),
        ({"logs": "default/nobody"}, "there is no log default/nobody"),
    ):
        given = {"logs": "default/nobody"} | options
        with pytest.raises(Exception, match=said):
            site.read(given.pop("logs"), **given).count()


def test_a_batch_write_with_a_killed_task_writes_each_row_once(site: Site, tmp_path: Path) -> None:
    # Of most batches of a repeated task the log knows no more than that they are there.
    log = site.make_log("written", producers={"results_kept": 2})
    site.spark.dataSource.register(DyingSource)
    rows = site.spark.range(0, 3000, 1, 3).selectExpr(
        "cast(id as string) as body",
        "array(named_struct('name', 'id', 'value', cast(id as string))) as headers",
        "1600000000000 + id as timestamp_ms",
    )
    marker = tmp_path / "died"

    def save(rows: DataFrame) -> None:
        writer = rows.write.format("dying_duramen").mode("append").option("write_id", "w1")
        writer = writer.option("url", site.write_url).option("logs", "default/written")
        writer.option("die_marker", str(marker)).option("batch_bytes", "4KiB").save()

    save(rows)
    assert marker.exists()
    assert sorted(map(int, site.bodies(log))) == list(range(3000))
    # The same write again, as after a driver's death, in another order: everything is there.
    save(rows.sortWithinPartitions(sql.desc("timestamp_ms")))
    assert log.tail().seq_num == 3000
    with pytest.raises(Exception, match="its input is another than it was"):
        save(rows.where("body != '7'"))
    assert log.tail().seq_num == 3000
    last = next(iter(log.read(2999))).records[0]
    body = last.body
    assert last.headers == ((b"id", body),)
    assert last.timestamp_ms == 1_600_000_000_000 + int(body)
    with pytest.raises(Exception, match="a log is appended to"):
        rows.write.format("duramen").options(url=site.write_url, logs="default/written").mode(
            "overwrite"
        ).save()


def test_rows_go_to_the_log_that_they_name(site: Site) -> None:
    logs = [site.make_log(f"routed-{n}") for n in range(3)]
    rows = site.spark.range(0, 90, 1, 2).selectExpr(
        "cast(id as string) as body", "'default' as namespace",
        "concat('routed-', id % 3) as log",
    )  # fmt: skip
    rows.write.format("duramen").option("url", site.read_url).mode("append").save()
    for n, log in enumerate(logs):
        assert sorted(map(int, site.bodies(log))) == list(range(n, 90, 3))


# --- Streams --------------------------------------------------------------------------------------


def test_a_stream_takes_new_logs_says_its_lag_and_passes_what_is_gone(
    site: Site, tmp_path: Path
) -> None:
    first = site.make_log("many-a", roll={"size": "4KiB"})
    fill(first, 0, 100)

    def run_once(**options: Any) -> list[Any]:
        stream = site.stream("default/many-*", max_records_per_trigger=40, **options).load()
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "check"))
        query = writer.trigger(availableNow=True).start()
        finish(query)
        return list(query.recentProgress)

    progress = [each for each in run_once() if each["numInputRows"]]
    assert [each["numInputRows"] for each in progress] == [40, 40, 20]
    assert [find_lag(each) for each in progress] == [{"default/many-a": lag} for lag in (60, 20, 0)]
    second = site.make_log("many-b")
    fill(second, 0, 30)
    fill(first, 100, 200)
    first.truncate(250)
    with pytest.raises(Exception, match=r"records 100 to 1\d\d of default/many-a are truncated"):
        run_once()
    run_once(on_truncation="skip")
    out = site.spark.read.parquet(str(tmp_path / "out"))
    assert sorted(numbers(out.where("log = 'many-b'"))) == list(range(30))
    found = sorted(numbers(out.where("log = 'many-a' and gap is null")))
    assert found == [*range(100), *range(250, 300)]
    gaps = out.where("gap is not null").select("gap.*").orderBy("first_seq_num").collect()
    assert {row.reason for row in gaps} == {"truncated"}
    assert [n for row in gaps for n in range(row.first_seq_num, row.end_seq_num)] == list(
        range(100, 250)
    )


def test_a_log_whose_segment_is_open_is_cut_by_what_its_records_look_like(site: Site) -> None:
    log = site.make_log("open")
    fill(log, 0, 200, size_bytes=2000)
    options = ReadOptions(ProxyPlace(site.read_url), ("default/open",), partition_bytes=100_000)
    schema = pa.schema([("seq_num", pa.int64())])
    reader = LogReader(options, schema)
    partitions = reader.partitions()
    assert 4 <= len(partitions) <= 6, "400 kB"
    found = [rows.column("seq_num").to_pylist() for p in partitions for rows in reader.read(p)]
    assert [n for numbers in found for n in numbers] == list(range(200))


def test_a_log_that_is_deleted_and_made_anew_is_another_one(site: Site) -> None:
    log = site.make_log("renewed")
    fill(log, 0, 10)
    schema = pa.schema([(name, ARROW_TYPES[name]) for name in ("seq_num", "gap")])
    patterns = ("default/renewed*",)
    strict = LogStreamReader(ReadOptions(ProxyPlace(site.read_url), patterns), schema)
    lenient = LogStreamReader(
        ReadOptions(ProxyPlace(site.read_url), patterns, on_truncation=OnTruncation.SKIP), schema
    )
    try:
        start = strict.initialOffset()
        old = strict.latestOffset(start, ReadMaxRows(4))
        assert old["default/renewed"]["seq"] == 4
        assert strict.latestOffset(old, ReadMaxBytes(1))["default/renewed"]["seq"] == 5
        log.delete()
        with pytest.raises(DuramenError, match="was deleted when it had been read up to 4"):
            strict.latestOffset(old, ReadAllAvailable())
        assert lenient.latestOffset(old, ReadAllAvailable()) == old
        fill(site.make_log("renewed"), 0, 3)
        new = lenient.latestOffset(old, ReadAllAvailable())
        assert new["default/renewed"]["seq"] == 3 and new != old
        rows = [
            row
            for partition in lenient.partitions(old, new)
            for rows in lenient.read(partition)
            for row in rows.to_pylist()
        ]
        gap = {"reason": "deleted", "first_seq_num": 4, "end_seq_num": None}
        assert [row["gap"] or row["seq_num"] for row in rows] == [gap, 0, 1, 2]
        assert lenient.partitions(new, new) == []
    finally:
        strict.stop()
        lenient.stop()


def test_a_stream_over_twenty_rolls_a_killed_sequencer_and_a_restart_gives_each_record_once(
    site: Site, tmp_path: Path
) -> None:
    log = site.make_log("rolling", roll={"size": "4KiB"})
    count = 2400
    done = threading.Event()

    def append() -> None:
        for first in range(0, count, 50):
            fill(log, first, 50, size_bytes=60)
            if first == 1000:
                site.cluster.send(find_owner(site, "rolling"), signal.SIGKILL)
        done.set()

    def start() -> StreamingQuery:
        stream = site.stream("default/rolling", max_records_per_trigger=300).load()
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "check"))
        return writer.trigger(processingTime="200 milliseconds").start()

    def reached(query: StreamingQuery) -> int:
        error = query.exception()
        assert error is None, error
        last = query.lastProgress
        if last is None or not last["sources"][0]["endOffset"]:
            return 0
        text = str(last["sources"][0]["endOffset"])
        return int(text.partition('"seq": ')[2].partition("}")[0])

    writer = threading.Thread(target=append)
    writer.start()
    query = start()
    try:
        wait_in_thread(lambda: reached(query) >= 600, HANG_S, "the query to be under way")
        query.stop()
        query = start()
        writer.join(HANG_S)
        assert done.is_set()
        wait_in_thread(lambda: reached(query) >= count, HANG_S, "the query to come to the end")
    finally:
        query.stop()
        writer.join(HANG_S)
    assert len(log.segments()) > 20
    out = site.spark.read.parquet(str(tmp_path / "out"))
    rows = sorted(out.select("seq_num", "body").collect(), key=lambda row: row.seq_num)
    assert [row.seq_num for row in rows] == list(range(count))
    assert [int(bytes(row.body).split()[0]) for row in rows] == list(range(count))


def find_owner(site: Site, name: str) -> str:
    """The sequencer that has a log open."""
    log_id = site.client["default"][name].show()["log_id"]
    for node_id in site.cluster.ids("sequencer"):
        logs = httpx.get(f"{site.cluster.process(node_id)['admin_url']}/v1/logs", timeout=30).json()
        if any(log["log_id"] == log_id and log["epoch"] for log in logs):
            return node_id
    raise AssertionError("nobody has the log open")


def test_a_streaming_write_whose_task_and_driver_die_before_commit_writes_each_row_once(
    site: Site, tmp_path: Path
) -> None:
    source, target = site.make_log("from"), site.make_log("into")
    fill(source, 0, 900)
    site.spark.dataSource.register(DyingSource)
    marker = tmp_path / "died"

    def start() -> StreamingQuery:
        # 300 records in three partitions for each micro-batch.
        stream = site.stream(
            "default/from", max_records_per_trigger=300, partition_records=100
        ).load()
        writer = stream.select("body").writeStream.format("dying_duramen")
        writer = writer.option("url", site.write_url).option("logs", "default/into")
        writer = writer.option("die_marker", str(marker)).option("batch_bytes", "128")
        writer = writer.option("checkpointLocation", str(tmp_path / "check"))
        return writer.trigger(availableNow=True).start()

    with pytest.raises(Exception, match="the driver dies here"):
        finish(start())
    assert marker.exists() and marker.with_suffix(".commit").exists()
    assert target.tail().seq_num == 900, "micro-batch 2 was written, and not committed"
    fill(source, 900, 100)
    finish(start())
    assert sorted(int(body) for body in site.bodies(target)) == list(range(1000))


# --- The page -------------------------------------------------------------------------------------


def test_the_examples_of_the_page_run(site: Site, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "spark_page"}
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(example, names)
    spark, url = site.spark, site.read_url
    shop = site.client["shop"]
    shop.ensure()
    for name in ("orders", "greetings", "loud"):
        shop[name].ensure()
    shop["orders"].append([b"order %d" % n for n in range(10)])
    orders = names["read_orders"](spark, url).collect()
    assert sorted(row.body for row in orders) == [f"order {n}" for n in range(10)]
    before = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    assert sum(count for _, count in names["count_by_minute"](spark, url)) == 10
    spark.conf.set("spark.sql.python.filterPushdown.enabled", before or "false")
    names["copy_to_parquet"](spark, url, str(tmp_path))
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 10
    for _ in range(2):
        names["write_greetings"](spark, url)
    finish(names["shout"](spark, url, str(tmp_path)))
    assert sorted(site.bodies(shop["loud"])) == sorted(b"HELLO %d" % n for n in range(1000))
