"""Batches that the SDK compresses: the same records for every reader, fewer bytes on the way.

That each form of an answer shows them is `test_same_records`'s; that nothing is decompressed beyond
its bounds is `tests/unit/test_record_batch.py`'s. Source: docs/protocol/wire.md "Record batch",
docs/sdk.md.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.client import Record
from duramen.core.segment import Totals
from duramen.errors import DuramenError
from duramen.ids import EntryId
from duramen.units import MIB
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.entry import encode_entry
from duramen.wire.read_answers import parse_batches
from duramen.wire.record_batch import decode_batch, encode_batch, read_info
from tests.component import readproxy_world
from tests.component.sdk_scenarios import face, play
from tests.component.sdk_world import FakeCluster

LINES = [b'{"sensor": %d, "state": "nothing happens here"}' % number for number in range(500)]


async def read_all(log: Any) -> list[Any]:
    return [record async for batch in log.read() for record in batch]


def sizes(cluster: FakeCluster, name: str) -> int:
    return sum(len(placed.batch) for placed in cluster.log(name).batches)


@face
def test_what_is_compressed_is_smaller_and_the_same(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        plain, small = client["ns"]["plain"], client["ns"]["small"]
        records = [
            Record(line, headers={"n": b"%d" % number}, txid=number, timestamp=number)
            for number, line in enumerate(LINES)
        ]
        sent_bytes = []
        for log, compression in ((plain, None), (small, "zstd")):
            await log.ensure()
            await log.append(records, compression=compression)
            async with log.producer(batch_records=100, compression=compression) as producer:
                await producer.append_many(LINES)
                await producer.flush()
                sent_bytes.append(producer.statistics()["sent_bytes"])
        found, expected = await read_all(small), await read_all(plain)
        assert len(found) == 2 * len(LINES)
        assert [r[:3] + r[4:] for r in found] == [r[:3] + r[4:] for r in expected]
        assert [r.timestamp_ms for r in found[:500]] == list(range(500))
        batches = cluster.log("ns/small").batches
        assert {read_info(placed.batch).codec for placed in batches} == {Codec.ZSTD}
        assert all(read_info(placed.batch).producer for placed in batches)
        assert sizes(cluster, "ns/small") * 4 < sizes(cluster, "ns/plain")
        assert sent_bytes[1] * 4 < sent_bytes[0], "and the statistics say so"

    play(scenario, face)


@face
def test_a_compression_that_nobody_reads_is_refused(face: str) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        with pytest.raises(DuramenError) as caught:
            await log.append(b"x", compression="gzip")
        assert (caught.value.code, caught.value.field) == ("invalid_argument", "compression")
        with pytest.raises(DuramenError, match="compression is"):
            log.producer(compression="lz4")

    play(scenario, face)


@settings(
    max_examples=15,
    database=None, derandomize=True,
)  # fmt: skip
@given(
    st.lists(
        st.lists(st.binary(max_size=60).map(lambda body: body * 3), min_size=1, max_size=9),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_is_appended_comes_back(batches: list[list[bytes]]) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        for bodies in batches:
            await log.append(bodies, compression="zstd")
            plain = encode_batch(bodies, 0, producer=cluster.arrivals[-1])
            assert len(cluster.log().batches[-1].batch) <= len(plain)
        assert [r.body for r in await read_all(log)] == [b for bodies in batches for b in bodies]

    play(scenario, "async")


def test_an_answer_is_bounded_by_what_a_client_gets_to_decode() -> None:
    """A few KiB of batches could be gigabytes for who asked for one MiB."""

    async def scenario(world: readproxy_world.World) -> None:
        await world.open_segment()
        assert world.segment is not None
        batches = [encode_batch([bytes(MIB)], 5, codec=Codec.ZSTD) for _ in range(4)]
        assert sum(map(len, batches)) < 1_000
        world.totals = Totals(4, sum(map(len, batches)), None, 5)
        entry = encode_entry(
            ledger_id=world.segment.ledger_id, entry_id=EntryId(0), before=Totals(),
            batches=batches, record_count=4, after=world.totals,
        )  # fmt: skip
        await world.store_entry(entry)
        for size, count in (("1KiB", 1), ("1MiB", 1), ("3MiB", 2), ("16MiB", 4)):
            answer = await world.get(f"?bytes={size}", accept=readproxy_world.BATCH)
            placed = parse_batches(answer.content)
            assert len(placed) == count, size
            assert decode_batch(bytes(placed[0].batch)).bodies == [bytes(MIB)]
            assert answer.headers["duramen-next"] == f"seq:{count}"

    readproxy_world.run(scenario)
