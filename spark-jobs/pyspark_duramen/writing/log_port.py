"""The log behind a delivery: appends by REST, and reads back what another try has written.

A batch that the log knows by its sequence is found by the place that the log remembers, or, for
those before the last 64, by looking back through the log for the producer's stamp, which batches
carry in their header. Called by `writing.task`. Source: docs/protocol/wire.md,
docs/protocol/rest.md "Append".
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from duramen.client.blocking.portal import Portal
from duramen.client.rest_client import Appended, BulkReadAnswer, RestClient
from duramen.client.retry import Pauses, RetryPolicy, repeat_while_refused
from duramen.client.sdk.delivery import check_count, deliver
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError, UnreachableError
from duramen.units import MIB
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.read_answers import PlacedBatch
from duramen.wire.record_batch import (
    TIMESTAMPS,
    BatchError,
    BatchProducer,
    check_records,
    encode_batch,
    header_size,
    read_info,
)
from pyspark_duramen.catalog import RETRY_S, LogName
from pyspark_duramen.writing.rows import Row

_ANSWER_BYTES: Final = 8 * MIB
_LOOK_BACK_RECORDS: Final = 10_000
"""The first step back; each further one is four times as long."""

_NEVER: Final = (1 << 53) - 1
"""The last sequence that may be named, where no producer comes to: the log refuses it, and says
which it expects."""


class RestLogPort:
    """One log, for one producer and epoch; implements `delivery.LogPort`."""

    def __init__(
        self, portal: Portal, client: RestClient, log: LogName, stamp: BatchProducer, codec: Codec
    ) -> None:
        """`stamp`: id and epoch; its sequence counts for nothing."""
        self._portal = portal
        self._client = client
        self._log = log
        self._stamp = stamp
        self._codec = codec
        self._places: dict[int, int] = {}
        """Where batches begin that this try has seen: sequence numbers by sequence."""

    def append(self, sequence: int, rows: list[Row]) -> Appended:
        """Append a batch, with as many tries as it takes; see `delivery.LogPort`."""
        batch = self._encode(sequence, rows)
        appended = self._portal.call(self._deliver(batch, len(rows)))
        if appended.start is not None:
            self._places[sequence] = appended.start
        return appended

    def read_back(self, sequence: int, appended: Appended) -> list[Row]:
        """The rows of a batch that is in the log; see `delivery.LogPort`."""
        if appended.start is not None:
            found = self._find(sequence, appended.start, appended.start + 1)
        else:
            found = self._look_back(sequence)
        if found is None:
            detail = (
                f"batch {sequence} of producer {self._stamp.producer_id} is in "
                f"{'/'.join(self._log)}, but cannot be found there any more to be compared"
            )
            raise DuramenError("data_lost", detail)
        return _list_rows(found)

    def count_batches(self) -> int:
        """How many batches of this producer and epoch are in the log."""
        try:
            self._portal.call(self._deliver(self._encode(_NEVER, [Row(b"?")]), 1))
        except DuramenError as error:
            if error.code == "producer_unknown":
                return 0
            expected = error.facts.get("expected_producer_seq")
            if error.code != "producer_gap" or not isinstance(expected, int):
                raise
            return expected
        raise DuramenError("internal", "the log took a sequence that it could not expect")

    def _encode(self, sequence: int, rows: list[Row]) -> bytes:
        bodies = [row.body for row in rows]
        has_headers = any(row.headers for row in rows)
        headers = [row.headers for row in rows] if has_headers else None
        try:
            check_records(bodies, None if headers is None else list(map(header_size, headers)))
        except BatchError as error:
            raise DuramenError(error.code, str(error), field="body") from None
        txids = [row.txid for row in rows if row.txid is not None]
        times = [row.timestamp_ms for row in rows if row.timestamp_ms is not None]
        assert len(txids) in (0, len(rows)) and len(times) in (0, len(rows))
        return encode_batch(
            bodies,
            time.time_ns() // 1_000_000,
            timestamps_ms=times or None,
            txids=txids or None,
            headers=headers,
            producer=self._stamp._replace(sequence=sequence),
            codec=self._codec,
        )

    async def _deliver(self, batch: bytes, count: int) -> Appended:
        async def send() -> Appended:
            appended = await self._client.append(*self._log, batch)
            # What another try has sent under this sequence may be of another size.
            return appended if appended.is_duplicate else check_count(appended, count)

        try:
            pauses = Pauses(RetryPolicy(within_s=RETRY_S))
            return await deliver(send, pauses, may_be_sent_twice=True)
        except UnreachableError as error:
            raise DuramenError("log_unavailable", str(error)) from error

    # --- what is there already -------------------------------------------------------------------

    def _look_back(self, sequence: int) -> PlacedBatch | None:
        """A batch whose place the log has forgotten; it lies between others of this producer."""
        known = self._places.get(sequence - 1)
        if known is not None:
            return self._find(sequence, known, self._tail())
        end, step = self._tail(), _LOOK_BACK_RECORDS
        head = self._head()
        while end > head:
            begin = max(head, end - step)
            found = self._find(sequence, begin, end)
            if found is not None:
                return found
            end, step = begin, step * 4
        return None

    def _find(self, sequence: int, first: int, end: int) -> PlacedBatch | None:
        """The batch with a sequence among records `first` up to, not including, `end`."""
        wanted = self._stamp._replace(sequence=sequence)
        at = first
        while at < end:
            answer = self._portal.call(self._read(f"seq:{at}"))
            for placed in answer.batches:
                if read_info(placed.batch).producer == wanted:
                    self._places[sequence] = placed.seq_num
                    return placed
            following = int(answer.next_position.removeprefix("seq:"))
            if following <= at:
                return None
            at = following
        return None

    async def _read(self, position: str) -> BulkReadAnswer:
        try:
            return await repeat_while_refused(
                lambda: self._client.read(*self._log, position, most_bytes=_ANSWER_BYTES),
                timeout_s=RETRY_S, is_read=True,
            )  # fmt: skip
        except PeerError as error:
            raise DuramenError("log_unavailable", str(error)) from error

    def _head(self) -> int:
        return int(self._portal.call(self._client.show_log(*self._log))["head"]["seq_num"])

    def _tail(self) -> int:
        return self._portal.call(self._client.find_tail(*self._log))


def _list_rows(placed: PlacedBatch) -> list[Row]:
    batch = placed.decode()
    count = batch.info.record_count
    nothing: list[None] = [None] * count
    txids: Sequence[int | None] = nothing if batch.txids is None else batch.txids
    times: Sequence[int | None] = nothing
    if batch.info.flags & TIMESTAMPS:
        times = batch.timestamps_ms
    return list(map(Row, batch.bodies, batch.headers or [()] * count, txids, times))
