"""Requests as Prometheus learns of them: what became of each, how long it took, what was sent.

A request lasts from its head to the end of its answer, and a stream to its last piece. Its time is
that to the first byte of the answer, without what it waited at the tail: a quiet log says nothing
of the proxy. Refusals have an outcome and no time. Labels hold no names of logs.

Called by the REST routes and `streams`. Source: docs/protocol/admin.md "Metrics".
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Literal, Self

from prometheus_client import CollectorRegistry, Counter, Histogram

from duramen.errors import DuramenError
from duramen.runtime.admission.callers import AdmittedCall

OK: Final = "ok"
GONE: Final = "client_gone"
"""The client went before its answer was whole."""

CUT_OFF: Final = "client_slow"
"""A client that took nothing for long was cut off."""

Call = Literal["records", "tail", "segments", "epochs", "log"]


class Requests:
    """All requests of a read proxy."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open_count = 0
        self.begun_count = 0
        self.outcomes = Counter(
            "duramen_readproxy_requests",
            "Requests by what they asked for and what became of them",
            ["call", "outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "duramen_readproxy_request_seconds",
            "From the request's head to the first byte of its answer, without waits at the tail",
            ["call"],
            registry=registry,
            # What is cached takes about 1 ms; a read that waits out a frozen bookie seconds.
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20),
        )
        self.sent_bytes = Counter(
            "duramen_readproxy_sent_bytes",
            "Bytes of answers with records, by their form",
            ["form"],
            registry=registry,
        )

    def open(self, call: Call) -> OpenRequest:
        """One request, for the length of a `with` block."""
        return OpenRequest(self, call)

    def statistics(self) -> dict[str, int]:
        """Requests that are open now, and all since the start."""
        return {"open": self.open_count, "begun": self.begun_count}


class OpenRequest:
    """One request and its answer.

    What its `with` block raises is its outcome; a stream outlives the block. No generator makes the
    block: thousands of requests wait in one.
    """

    __slots__ = (
        "_began_s",
        "_is_answered",
        "_requests",
        "admitted",
        "call",
        "is_stream",
        "outcome",
        "waited_us",
    )

    def __init__(self, requests: Requests, call: Call) -> None:
        self._requests = requests
        self._began_s = time.perf_counter()
        self._is_answered = False
        self.call = call
        self.admitted: AdmittedCall | None = None
        """Whose it is; None: nobody is asked who it is."""
        self.is_stream = False
        """Whether its answer goes on after the route has returned, and ends it itself."""
        self.outcome = OK
        self.waited_us = 0
        """How long it waited at the tail of its log, for what came next."""

    def __enter__(self) -> Self:
        self._requests.open_count += 1
        self._requests.begun_count += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        if error is not None:
            self.end(error)
        elif not self.is_stream:
            self.note_answer()
            self.end()

    def note_answer(self) -> None:
        """The first byte of the answer goes out, unless it is a refusal."""
        if self.outcome == OK and not self._is_answered:
            self._is_answered = True
            spent_s = time.perf_counter() - self._began_s - self.waited_us / 1e6
            self._requests.seconds.labels(self.call).observe(max(0.0, spent_s))

    def note_sent(self, form: str, size_bytes: int) -> None:
        """Bytes of an answer with records."""
        self._requests.sent_bytes.labels(form).inc(size_bytes)

    def fail(self, error: BaseException) -> None:
        """The answer does not come to its end, and why; the first reason stands."""
        if self.outcome != OK:
            return
        match error:
            case DuramenError():
                self.outcome = error.code
            case asyncio.CancelledError() | GeneratorExit():
                self.outcome = GONE
            case TimeoutError():
                self.outcome = CUT_OFF
            case _:
                self.outcome = "internal"

    def end(self, error: BaseException | None = None) -> None:
        """It is over: once for each."""
        if error is not None:
            self.fail(error)
        self._requests.open_count -= 1
        self._requests.outcomes.labels(self.call, self.outcome).inc()
