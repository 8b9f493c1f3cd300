"""The same records in every form: what goes in as JSON, NDJSON, raw or batch comes out alike.

In: over real HTTP into a write proxy, compared by the encoded batch that reaches the sequencer,
byte for byte. Out: from a read proxy, compared record by record. The records are drawn: any bytes,
headers, times and txids; in as UTF-8 where they are, as base64 always; stored compressed or not,
by their client or with their entry.
Out each says by itself whether it is base64, where that was not asked for.
Source: docs/protocol/rest.md "Either proxy".
"""

import base64
import json
from typing import Any, NamedTuple, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.core.segment import Totals
from duramen.ids import EntryId
from duramen.texts import LAST_TIME_MS, format_time
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.edge.batch_stream import MEDIA_TYPE, StreamedBatch, pack_streamed
from duramen.wire.entry import encode_entry
from duramen.wire.read_answers import parse_batches
from duramen.wire.record_batch import Header, decode_batch, encode_batch
from duramen.wire.record_json import DeliveredRecord, iterate_records, read_record
from tests.component import readproxy_world, writeproxy_world
from tests.component.event_stream import EVENTS
from tests.component.raw_http import open_call
from tests.component.readproxy_world import BATCH, NDJSON
from tests.component.writeproxy_world import RAW, RECORDS

T = TypeVar("T")


class Drawn(NamedTuple):
    """Records as an application means them."""

    bodies: list[bytes]
    headers: list[tuple[Header, ...]]
    times_ms: list[int]
    txids: list[int] | None
    codec: Codec
    is_compressing: bool

    def encode(self, codec: Codec = Codec.NONE) -> bytes:
        return encode_batch(
            self.bodies,
            0,
            timestamps_ms=self.times_ms,
            txids=self.txids,
            headers=self.headers if any(self.headers) else None,
            codec=codec,
        )

    def is_text(self) -> bool:
        texts = [*self.bodies, *(part for pairs in self.headers for pair in pairs for part in pair)]
        try:
            b" ".join(texts).decode()
            return all(text.decode() is not None for text in texts)
        except UnicodeDecodeError:
            return False

    def encode_records(self, *, is_base64: bool) -> list[dict[str, Any]]:
        def text(data: bytes) -> str:
            return base64.b64encode(data).decode() if is_base64 else data.decode()

        documents = []
        for index, body in enumerate(self.bodies):
            # A time is a number or a text: both mean the same.
            time_ms = self.times_ms[index]
            document: dict[str, Any] = {
                "body": text(body),
                "timestamp": time_ms if index % 2 else format_time(time_ms),
            }
            if self.headers[index]:
                pairs = self.headers[index]
                document["headers"] = [[text(name), text(value)] for name, value in pairs]
            if self.txids is not None:
                document["txid"] = self.txids[index]
            documents.append(document)
        return documents


any_bytes = (
    st.binary(max_size=40)
    | st.text(max_size=20).map(str.encode)
    | st.text(min_size=1, max_size=4).map(lambda text: text.encode() * 50)
)
pairs = st.tuples(any_bytes.filter(bool), any_bytes)


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    count = draw(st.integers(1, 6))

    def several(values: st.SearchStrategy[T]) -> st.SearchStrategy[list[T]]:
        return st.lists(values, min_size=count, max_size=count)

    return Drawn(
        draw(several(any_bytes)),
        draw(several(st.lists(pairs, max_size=3).map(tuple))),
        draw(several(st.integers(0, LAST_TIME_MS))),
        draw(st.none() | several(st.integers(0, (1 << 53) - 1)).map(sorted)),
        draw(st.sampled_from(Codec)),
        draw(st.booleans()),
    )


few = settings(
    max_examples=8,
    database=None, derandomize=True,
)  # fmt: skip


@few
@given(st.lists(drawn(), min_size=4, max_size=8))
def test_in(batches: list[Drawn]) -> None:
    async def scenario(world: writeproxy_world.World) -> None:
        for batch in batches:
            first = len(world.rows)
            for is_base64 in (True, False) if batch.is_text() else (True,):
                await _send_every_form(world, batch, is_base64=is_base64)
            for row in world.rows[first:]:
                assert bytes(row.batch) == batch.encode()
            status, _ = await world.append(batch.bodies[0], content_type=RAW)
            assert status == 200
            assert decode_batch(bytes(world.rows[-1].batch)).bodies == batch.bodies[:1]

    writeproxy_world.run(scenario)


async def _send_every_form(world: writeproxy_world.World, batch: Drawn, *, is_base64: bool) -> None:
    records = batch.encode_records(is_base64=is_base64)
    form = {"duramen_format": "base64" if is_base64 else "utf-8"}
    document = json.dumps({"records": records}, ensure_ascii=is_base64).encode()
    lines = "\n".join(json.dumps(record) for record in records).encode()
    for media, body in (
        ("application/json", document),
        (NDJSON, lines),
        (BATCH, batch.encode()),
    ):
        status, problem = await world.append(body, content_type=media, **form)
        assert status == 200, problem
    for media, body in (
        (NDJSON, document),
        (MEDIA_TYPE, pack_streamed(StreamedBatch(batch.encode()))),
    ):
        path = f"{RECORDS}:stream"
        call = await open_call("h1", world.proxy.port, path, content_type=media, **form)
        await call.send(body)
        await call.end()
        assert "start" in json.loads(await call.read_line())
        call.close()


@few
@given(st.lists(drawn(), min_size=4, max_size=8))
def test_out(batches: list[Drawn]) -> None:
    async def scenario(world: readproxy_world.World) -> None:
        await world.open_segment()
        start = 0
        for batch in batches:
            await _store(world, batch)
            count = len(batch.bodies)
            expected = await _read_batches(world, start, count)
            meant = zip(batch.bodies, batch.headers, batch.times_ms, strict=True)
            assert [(r.body, r.headers, r.timestamp_ms) for r in expected] == list(meant)
            if batch.txids is None:
                assert {r.txid for r in expected} == {None}
            else:
                assert [r.txid for r in expected] == batch.txids
            assert [r.seq_num for r in expected] == list(range(start, start + count))
            for is_base64 in (True, False):
                for media in ("application/json", NDJSON, EVENTS):
                    assert expected == await _read_texts(
                        world, start, count, media, is_base64=is_base64
                    )
            start += count

    readproxy_world.run(scenario)


async def _store(world: readproxy_world.World, batch: Drawn) -> None:
    assert world.segment is not None
    before, encoded = world.totals, batch.encode(batch.codec)
    max_txid = None if batch.txids is None else max(batch.txids)
    world.totals = before.plus(
        Totals(len(batch.bodies), len(encoded), max_txid, max(batch.times_ms))
    )
    entry = encode_entry(
        ledger_id=world.segment.ledger_id, entry_id=EntryId(world.entry_count), before=before,
        batches=[encoded], record_count=len(batch.bodies), after=world.totals,
        is_compressing=batch.is_compressing,
    )  # fmt: skip
    await world.store_entry(entry)


async def _read_batches(
    world: readproxy_world.World, start: int, count: int
) -> list[DeliveredRecord]:
    answer = await world.get(f"?from={start}&count={count}", accept=BATCH)
    assert answer.status_code == 200, answer.text
    return [
        record for placed in parse_batches(answer.content) for record in iterate_records(placed)
    ]


async def _read_texts(
    world: readproxy_world.World, start: int, count: int, media: str, *, is_base64: bool
) -> list[DeliveredRecord]:
    form = "base64" if is_base64 else "utf-8"
    query = f"?from={start}&count={count}&wait=0s"
    answer = await world.get(query, accept=media, duramen_format=form)
    assert answer.status_code == 200, answer.text
    if media == EVENTS:
        events = [
            json.loads(line.removeprefix(b"data: "))
            for line in answer.content.split(b"\n")
            if line.startswith(b'data: {"records"')
        ]
        documents = [document for event in events for document in event["records"]]
    elif media == NDJSON:
        documents = [json.loads(line) for line in answer.content.splitlines()]
    else:
        documents = answer.json()["records"]
    return [read_record(document, is_base64=is_base64) for document in documents]
