"""Record batches of what an application appends: checked, then encoded in bulk.

Everything that is wrong with records is said here, before anything is sent or queued. What a batch
looks like is `wire.record_batch`'s; producers collect their records in `sdk.collector`.

Called by `sdk.log` and `client.core`. Source: docs/protocol/wire.md "Record batch",
docs/protocol/rest.md "Append".
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from duramen.client.sdk.values import (
    Record,
    check_body,
    check_txid,
    encode_headers,
    find_time_ms,
)
from duramen.errors import DuramenError
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.record_batch import BatchError, check_records, encode_batch, header_size
from duramen.wire.record_batch import BatchProducer as Stamp

Records = bytes | Record | Sequence[bytes | Record]
"""What can be appended at once."""


def list_records(records: Records) -> list[Record]:
    """One record or several, as they may be given to an append."""
    if isinstance(records, bytes | Record):
        records = (records,)
    return [item if isinstance(item, Record) else Record(item) for item in records]


def encode_records(items: Sequence[Record], stamp: Stamp | None, codec: Codec) -> bytes:
    """The record batch of an append.

    Args:
        stamp: of an idempotent producer.
        codec: how the records are compressed.

    Raises:
        DuramenError: a record, or all of them together, cannot be appended: the field says which.
    """
    bodies = [item.body for item in items]
    for item in items:
        check_body(item.body)
        check_txid(item.txid)
    headers = [encode_headers(item.headers) for item in items]
    has_headers = any(headers)
    try:
        check_records(bodies, [header_size(pairs) for pairs in headers] if has_headers else None)
    except BatchError as error:
        raise DuramenError(error.code, str(error), field="records") from None
    txids = [item.txid for item in items if item.txid is not None]
    if txids and len(txids) != len(items):
        detail = "all records of an append have a txid, or none has"
        raise DuramenError("invalid_argument", detail, field="txid")
    now_ms = time.time_ns() // 1_000_000
    times = [now_ms if item.timestamp is None else find_time_ms(item.timestamp) for item in items]
    return encode_batch(
        bodies,
        now_ms,
        timestamps_ms=times if any(item.timestamp is not None for item in items) else None,
        txids=txids or None,
        headers=headers if has_headers else None,
        producer=stamp,
        codec=codec,
    )
