"""Holes in tables of Spark: rows that say which numbers have no record, from proxies and archives.

The readers that tasks use, without Spark, before the log of `holed_log`. Source: docs/spark.md,
R25, docs/protocol/reading.md "Holes".
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from duramen.runtime.cold.folder import FolderStore
from pyspark_duramen.catalog import ProxyCatalog
from pyspark_duramen.options import OnTruncation, ReadOptions
from pyspark_duramen.proxy_place import ProxyPlace
from pyspark_duramen.reading.cold import ColdReader, NotFromHere
from pyspark_duramen.reading.hot import HotReader
from pyspark_duramen.reading.places import find_places
from pyspark_duramen.reading.ranges import LogRange, cut_by_records
from pyspark_duramen.reading.task import read_ranges
from pyspark_duramen.table import ARROW_TYPES
from tests.component.holed_log import HOLES, KINDS, NUMBERS, fill
from tests.component.losses import lose
from tests.component.readproxy_world import World, run

NAME = ("ns", "log")
SCHEMA = pa.schema([(name, ARROW_TYPES[name]) for name in ("seq_num", "body", "gap")])

Told = list[int | tuple[str, int, int]]
"""Numbers of records, and gaps with their reason, from where to before where."""

ROWS: Told = [
    0, 1, 2, ("hole", 3, 7), 7, 8, 9, ("hole", 10, 12), 12, ("hole", 13, 15), 15, 16,
]  # fmt: skip


def tell(batches: list[pa.RecordBatch]) -> Told:
    told: Told = []
    for row in [row for rows in batches for row in rows.to_pylist()]:
        if row["gap"] is None:
            assert row["body"] == b"r%d" % row["seq_num"]
            told.append(row["seq_num"])
        else:
            assert row["seq_num"] is None and row["body"] is None
            told.append((*row["gap"].values(),))
    return told


def read_hot(url: str, ranges: list[LogRange], policy: OnTruncation = OnTruncation.FAIL) -> Told:
    with closing(HotReader(ProxyPlace(url), SCHEMA, policy)) as reader:
        return tell([rows for one in ranges for rows in reader.read(one)])


def divide(told: Told, first: int, end: int) -> Told:
    """What a read of a range is to tell, of what a read of the whole log told."""
    found: Told = []
    for one in told:
        if isinstance(one, int):
            found += [one] if first <= one < end else []
        elif one[1] < end and one[2] > first:
            found.append((one[0], max(one[1], first), min(one[2], end)))
    return found


@pytest.mark.parametrize("policy", OnTruncation)
@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_gives_rows_for_holes_whatever_the_policy(kind: str, policy: OnTruncation) -> None:
    async def scenario(world: World) -> None:
        await fill(world, kind)
        url = str(world.http.base_url)
        whole = [LogRange(NAME, 0, 17, 0)]
        assert await asyncio.to_thread(read_hot, url, whole, policy) == ROWS
        for first, end in ((1, 5), (4, 6), (5, 8), (12, 14), (13, 15), (14, 17)):
            found = await asyncio.to_thread(read_hot, url, [LogRange(NAME, first, end, 0)], policy)
            assert found == divide(ROWS, first, end)
        # Tasks of a micro-batch are cut by numbers alone: each tells its part of a hole.
        parts = [one for part in cut_by_records(NAME, 0, 17, 4) for one in part.ranges]
        expected = [row for at in range(0, 17, 4) for row in divide(ROWS, at, min(at + 4, 17))]
        assert await asyncio.to_thread(read_hot, url, parts, policy) == expected

    run(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_an_archived_segment_tells_its_holes_without_a_proxy(kind: str, tmp_path: Path) -> None:
    def read_cold(url: str, cold: str) -> dict[str, Any]:
        with ProxyCatalog(ProxyPlace(url)) as catalog:
            places = list(find_places([LogRange(NAME, 0, 17, 0)], catalog))
        (place, *_) = places
        assert place.cold is not None and (place.first, place.end) == (0, 15)
        found: dict[str, Any] = {}
        with closing(ColdReader(cold, SCHEMA)) as reader:
            for first, end in ((0, 15), (1, 5), (4, 6), (5, 8), (9, 14), (13, 15)):
                wanted = LogRange(NAME, first, end, 0, place.cold)
                found[f"{first} to {end}"] = tell(list(reader.read(wanted)))
        options = ReadOptions(ProxyPlace(url), ("ns/log",), cold_store=cold)
        parts = [one for part in cut_by_records(NAME, 0, 17, 6) for one in part.ranges]
        found["streamed"] = tell([*read_ranges(parts, options, SCHEMA, is_planned=False)])
        return found

    async def scenario(world: World) -> None:
        await fill(world, kind)
        await world.archive(1, store=FolderStore(tmp_path))
        url, cold = str(world.http.base_url), tmp_path.as_uri()
        found = await asyncio.to_thread(read_cold, url, cold)
        cuts = [divide(ROWS, 0, 6), divide(ROWS, 6, 12), divide(ROWS, 12, 17)]
        assert found.pop("streamed") == [row for rows in cuts for row in rows]
        for name, told in found.items():
            first, end = map(int, name.split(" to "))
            assert told == divide(ROWS, first, end), name

    run(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_what_touches_a_loss_is_lost_and_the_archive_leaves_that_to_a_proxy(
    kind: str, tmp_path: Path
) -> None:
    def read_cold(url: str, cold: str) -> None:
        with ProxyCatalog(ProxyPlace(url)) as catalog:
            (place, *_) = find_places([LogRange(NAME, 0, 15, 0)], catalog)
        with closing(ColdReader(cold, SCHEMA)) as reader, pytest.raises(NotFromHere, match="lost"):
            list(reader.read(place))

    async def scenario(world: World) -> None:
        await fill(world, kind)
        await lose(world, 3, 3)
        url = str(world.http.base_url)
        whole = [LogRange(NAME, 0, 17, 0)]
        told = await asyncio.to_thread(read_hot, url, whole, OnTruncation.SKIP)
        assert told == [0, 1, 2, ("lost", 3, 12), 12, ("hole", 13, 15), 15, 16]
        await world.archive(1, store=FolderStore(tmp_path))
        await asyncio.to_thread(read_cold, url, tmp_path.as_uri())

    run(scenario)


def test_the_log_is_what_the_tests_say() -> None:
    spans = [row[1:] for row in ROWS if isinstance(row, tuple)]
    assert spans == [(first, end) for first, end, _, _ in HOLES]
    assert tuple(row for row in ROWS if isinstance(row, int)) == NUMBERS
