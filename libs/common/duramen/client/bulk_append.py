"""Appends a stream of prepared record batches to one log, in order, and measures it.

Exactly one batch is in flight, so that the log keeps the order of the source; the source prepares
the next one in a thread meanwhile. Refusals that are worth it are repeated, and so is an append of
unknown fate whose batch has a producer; without one, or when the time is up, it ends the run,
because only the caller can tell what may be sent again.

Called by `duramen append` and by the local cluster's demo. What a batch is made of is the source's
matter. Source: docs/protocol/rest.md "Append", docs/testing.md "Histories".
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from duramen.client.rest_client import Appended, RestClient
from duramen.client.retry import Pauses, RetryPolicy
from duramen.client.sdk.delivery import check_count, deliver
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.wire.record_batch import BatchProducer


class PreparedBatch(NamedTuple):
    """One batch, encoded; `first_line` is the number of its first record in the source, from 1."""

    first_line: int
    bodies: Sequence[bytes]
    body_bytes: int
    encoded: bytes
    producer: BatchProducer | None = None

    @property
    def last_line(self) -> int:
        """Number of its last record in the source."""
        return self.first_line + len(self.bodies) - 1


class BatchSource(Protocol):
    """Where batches come from."""

    def next_batch(self) -> PreparedBatch | None:
        """The next batch, None at the end; called in a thread, may wait for input."""

    def close(self) -> None:
        """Makes a waiting and every later `next_batch` return None; called from the event loop."""


class AppendFigures:
    """What a run has done so far."""

    def __init__(self) -> None:
        self.record_count = 0
        self.body_bytes = 0
        self.batch_count = 0
        self.seconds = 0.0
        self.first_seq_num: int | None = None
        self.end_seq_num: int | None = None
        self.last_dlsn: str | None = None
        self.last_line = 0
        self.latencies_s = array("d")

    def on_appended(self, batch: PreparedBatch, appended: Appended, latency_s: float) -> None:
        """Count an acknowledged batch."""
        self.record_count += len(batch.bodies)
        self.body_bytes += batch.body_bytes
        self.batch_count += 1
        if self.first_seq_num is None:
            self.first_seq_num = appended.start
        self.end_seq_num = appended.end
        self.last_dlsn = appended.dlsn
        self.last_line = batch.last_line
        self.latencies_s.append(latency_s)


class UncertainAppendError(Exception):
    """A batch may or may not be stored; everything before it is, nothing after it was sent."""

    def __init__(self, batch: PreparedBatch, cause: DuramenError) -> None:
        super().__init__(cause.detail)
        self.batch = batch
        self.cause = cause


class _StoppedError(Exception):
    """The batch in flight is given up, and nothing of it is stored."""


class _BatchInFlight:
    """What is known of the batch in flight."""

    def __init__(self) -> None:
        self.is_trying = False
        self.was_uncertain = False
        self.is_stored = False
        self.task: asyncio.Task[Appended] | None = None

    @property
    def may_be_stored(self) -> bool:
        """Whether giving it up now would leave its fate open."""
        return self.is_trying or self.was_uncertain


class BulkAppender:
    """Appends to one log."""

    def __init__(
        self,
        client: RestClient,
        namespace: str,
        log: str,
        *,
        timeout_s: float,
        on_progress: Callable[[AppendFigures], None] = lambda _: None,
        on_history: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """`timeout_s` bounds the repeated tries of one batch; `on_history` gets every completed
        try as an object of docs/testing.md "Histories"."""
        self._client = client
        self._namespace = namespace
        self._log = log
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._on_history = on_history
        self.figures = AppendFigures()
        self._flight = _BatchInFlight()
        self._is_stopping = False

    @property
    def is_waiting(self) -> bool:
        """Whether a batch was sent of which it is not known yet whether it is stored."""
        return self._flight.may_be_stored and not self._flight.is_stored

    def stop(self) -> None:
        """End behind the batch in flight; one of which nothing can be stored is not repeated.

        `run` returns then. Closing the source is the caller's part.
        """
        self._is_stopping = True
        if not self.is_waiting:
            self.abandon()

    def abandon(self) -> None:
        """End at once; a batch that may be stored makes `run` raise UncertainAppendError."""
        self._is_stopping = True
        if self._flight.task is not None:
            self._flight.task.cancel()

    async def run(self, source: BatchSource) -> None:
        """Append everything that the source gives; `figures` count also when this raises.

        Raises:
            UncertainAppendError: the fate of one batch is open.
            DuramenError, PeerError: refused or unreachable; nothing of that batch is stored.
        """
        began_s = time.perf_counter()
        prepared = asyncio.create_task(asyncio.to_thread(source.next_batch))
        try:
            while (batch := await prepared) is not None and not self._is_stopping:
                prepared = asyncio.create_task(asyncio.to_thread(source.next_batch))
                await self._append(batch)
                self._on_progress(self.figures)
        finally:
            self.figures.seconds = time.perf_counter() - began_s
            source.close()
            # A batch that is not sent any more is nobody's matter, nor what is wrong with it.
            await asyncio.gather(prepared, return_exceptions=True)

    async def _append(self, batch: PreparedBatch) -> None:
        self._flight = flight = _BatchInFlight()
        began_s = time.perf_counter()
        flight.task = asyncio.create_task(
            deliver(
                lambda: self._try_append(batch, flight, began_s),
                Pauses(RetryPolicy(within_s=self._timeout_s)),
                may_be_sent_twice=batch.producer is not None,
            )
        )
        try:
            await flight.task
        except _StoppedError:
            return
        except asyncio.CancelledError:
            if not (self._is_stopping and flight.task.cancelled()):
                raise
            if self.is_waiting:
                cause = DuramenError("append_uncertain", "interrupted before there was an answer")
                raise UncertainAppendError(batch, cause) from None
        except DuramenError as error:
            if error.uncertain:
                raise UncertainAppendError(batch, error) from error
            raise

    async def _try_append(
        self, batch: PreparedBatch, flight: _BatchInFlight, began_s: float
    ) -> Appended:
        began_ns = time.monotonic_ns()
        flight.is_trying = True
        try:
            appended = await self._client.append(self._namespace, self._log, batch.encoded)
            check_count(appended, len(batch.bodies))
        except DuramenError as error:
            flight.is_trying = False
            flight.was_uncertain |= error.uncertain
            outcome = "info" if error.uncertain else "fail"
            self._record(batch, began_ns, {"outcome": outcome, "code": error.code})
            self._check_stop(flight, error)
            raise
        except PeerError as error:
            flight.is_trying = False
            self._record(batch, began_ns, {"outcome": "fail", "code": "unreachable"})
            self._check_stop(flight, error)
            raise
        # First of all: it is stored, whatever becomes of the history and of this process.
        flight.is_stored = True
        self.figures.on_appended(batch, appended, time.perf_counter() - began_s)
        place = {"start": appended.start, "end": appended.end, "dlsn": appended.dlsn}
        self._record(batch, began_ns, place | {"outcome": "ok"})
        return appended

    def _check_stop(self, flight: _BatchInFlight, error: Exception) -> None:
        if self._is_stopping and not flight.may_be_stored:
            raise _StoppedError from error

    def _record(self, batch: PreparedBatch, began_ns: int, outcome: dict[str, Any]) -> None:
        if self._on_history is None:
            return
        ended_ns = time.monotonic_ns()
        operation = {
            "t0_ns": began_ns,
            "t1_ns": ended_ns,
            "proc": f"append-{os.getpid()}",
            "op": "append",
            "log": f"{self._namespace}/{self._log}",
            "n": len(batch.bodies),
            "hash": [hashlib.sha256(body).hexdigest() for body in batch.bodies],
        }
        if batch.producer is not None:
            operation |= {"producer": batch.producer.producer_id, "seq": batch.producer.sequence}
        self._on_history(operation | outcome)
