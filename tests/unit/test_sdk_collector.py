"""The producer's collector: whatever is put in comes out once, in order, within the limits.

Batches are taken out and settled at any time in between, as the producer's loop does.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.client.rest_client import Appended
from duramen.client.sdk.collector import Collector, PendingBatch
from duramen.errors import DuramenError
from duramen.wire.record_batch import Batch as Decoded
from duramen.wire.record_batch import decode_batch

BATCH_BYTES, BATCH_RECORDS, HELD_BYTES = 40, 5, 2_000

BODIES = st.binary(max_size=50)
RECORDS = st.tuples(
    st.just("add"),
    BODIES,
    st.sampled_from([(), ((b"k", b"v"),)]),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 9),
)
STEPS = st.lists(
    RECORDS
    | st.tuples(st.just("many"), st.lists(BODIES, min_size=1, max_size=20))
    | st.sampled_from([("due",), ("take",), ("settle",)]),
    max_size=40,
)


def check_batch(batch: PendingBatch) -> Decoded:
    decoded = decode_batch(batch.encode(None))
    sizes = [len(body) for body in decoded.bodies]
    if decoded.headers is not None:
        sizes = [
            size + (2 + sum(6 + len(k) + len(v) for k, v in pairs) if pairs else 0)
            for size, pairs in zip(sizes, decoded.headers, strict=True)
        ]
    assert len(sizes) <= BATCH_RECORDS
    assert len(sizes) == 1 or sum(sizes) <= BATCH_BYTES
    return decoded


def encode_value(decoded: Decoded) -> list[Any]:
    count = len(decoded.bodies)
    headers = decoded.headers or [()] * count
    txids = list(decoded.txids) if decoded.txids is not None else [None] * count
    return list(zip(decoded.bodies, headers, txids, strict=True))


@settings(max_examples=150)
@given(STEPS)
def test_records_come_out_once_and_in_order(steps: list[Any]) -> None:
    collector = Collector(
        batch_bytes=BATCH_BYTES, batch_records=BATCH_RECORDS, held_bytes_max=HELD_BYTES
    )
    put: list[Any] = []
    got: list[Any] = []
    places: list[tuple[PendingBatch, int, bytes]] = []
    taken: list[PendingBatch] = []
    contents: dict[int, list[bytes]] = {}

    def take() -> None:
        batch = collector.take()
        if batch is not None:
            decoded = check_batch(batch)
            contents[id(batch)] = decoded.bodies
            got.extend(encode_value(decoded))
            taken.append(batch)

    def settle() -> None:
        if taken:
            collector.settle(taken.pop(0), Appended(0, 1, "e1n0s0"))

    for kind, *arguments in steps:
        match kind:
            case "add":
                body, headers, txid, time_ms = arguments
                if not collector.has_room:
                    continue
                batch, index, _ = collector.add(body, headers, txid, time_ms)
                put.append((body, headers, txid))
                places.append((batch, index, body))
            case "many":
                (bodies,) = arguments
                at = 0
                while at < len(bodies) and collector.has_room:
                    batch, first, count = collector.add_many(bodies, at)
                    places += [(batch, first + i, bodies[at + i]) for i in range(count)]
                    put += [(body, (), None) for body in bodies[at : at + count]]
                    at += count
            case "due":
                collector.make_due()
            case "take":
                take()
            case _:
                settle()
    collector.make_due()
    while collector.waiting():
        take()
    assert got == put
    for batch, index, body in places:
        assert contents[id(batch)][index] == body
    while taken:
        settle()
    assert collector.held_bytes == 0


def test_what_is_refused_is_not_taken() -> None:
    collector = Collector(batch_bytes=10, batch_records=2, held_bytes_max=1)
    collector.add(b"x", (), None, None)
    with pytest.raises(DuramenError, match="overloaded"):
        collector.add(b"y", (), None, None)
    with pytest.raises(DuramenError, match="record_too_large"):
        collector.add(b"y" * (1 << 20 | 1), (), None, None)
    collector.refuse(DuramenError("log_ended", "it has"))
    with pytest.raises(DuramenError, match="log_ended"):
        collector.add(b"y", (), None, None)
    assert not collector.waiting()
