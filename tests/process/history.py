"""Appends with payloads that name themselves, and the check of what a complete read returns.

Each append is one batch of a few records; a record's body says which append and which place in it.
An outcome is `ok` with its positions, `fail` (certainly not appended) or `info` (uncertain), as in
the histories of docs/testing.md. The check reads the log from head to tail through a fresh
client.

Checked (docs/testing.md "Invariants"): D1 acknowledged is there, same place and bytes; D3 nothing
invented, nothing of a refused append; O2/O3 order; U1 once; G1 sequence numbers 0 … n − 1.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from duramen.client.records import open_batches
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.wire.record_batch import encode_batch
from tests.pauses import let_pass
from tests.process.answers import repeat_safely
from tests.process.times import HANG_S

NAMESPACE = "default"


class Failure(NamedTuple):
    """An append that was not acknowledged: from when to when it was tried, and what was said."""

    began_s: float
    ended_s: float
    code: str


@dataclass
class History:
    """What one writer did to one log."""

    log: str
    namespace: str = NAMESPACE
    record_bytes: int = 100
    records_per_append: int = 3
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    early: list[int] = field(default_factory=list)
    """Acknowledged without a sequence number."""
    uncertain: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    acked_s: list[float] = field(default_factory=list)
    """When each append was acknowledged, by the monotonic clock."""
    failed: list[Failure] = field(default_factory=list)
    count: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def bodies(self, number: int) -> list[bytes]:
        """The bodies of append `number`."""
        pad = b"." * self.record_bytes
        return [
            (b"%s/%d/%d " % (self.log.encode(), number, place) + pad)[: self.record_bytes]
            for place in range(self.records_per_append)
        ]

    async def append(self, client: RestClient) -> bool:
        """Make one more append and note its outcome; True if it was acknowledged."""
        try:
            return await self._append(client)
        finally:
            self.changed.set()

    async def wait_acknowledged(self, count: int, timeout_s: float = HANG_S) -> None:
        """Until that many appends are acknowledged."""
        await self._wait(lambda: len(self.acknowledged) >= count, timeout_s)

    async def wait_early(self, timeout_s: float = HANG_S) -> None:
        """Return once an append was acknowledged without a sequence number."""
        await self._wait(lambda: bool(self.early), timeout_s)

    async def wait_failed(self, count: int, timeout_s: float = HANG_S) -> None:
        """Until that many appends have failed or become uncertain."""
        await self._wait(lambda: len(self.codes) >= count, timeout_s)

    async def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def _append(self, client: RestClient) -> bool:
        number = self.count
        self.count += 1
        batch, began_s = encode_batch(self.bodies(number), timestamp_ms=1), time.monotonic()
        try:
            done = await client.append(self.namespace, self.log, batch)
        except (DuramenError, PeerError) as error:
            is_uncertain = isinstance(error, DuramenError) and error.uncertain
            (self.uncertain if is_uncertain else self.refused).append(number)
            self.codes.append(error.code if isinstance(error, DuramenError) else "unreachable")
            self.failed.append(Failure(began_s, time.monotonic(), self.codes[-1]))
            return False
        self.acked_s.append(time.monotonic())
        if done.start is None or done.end is None:
            self.early.append(number)
        else:
            self.acknowledged[number] = (done.start, done.end)
        return True

    async def append_until(
        self, client: RestClient, stop: asyncio.Event, *, rest_s: float = 0.0
    ) -> None:
        """Append one after the other until told to stop.

        Args:
            rest_s: between two, where many appends prove no more than some do.
        """
        while not stop.is_set():
            if not await self.append(client):
                # Nobody answers: do not spin, the fault is what the test is about.
                await let_pass(0.1, what="before a client tries again", until=stop)
            elif rest_s:
                await let_pass(rest_s, what="the pace of the load", until=stop)

    def silences(self, begin_s: float, end_s: float) -> list[float]:
        """The moments that bound the times without an acknowledgement in an interval."""
        return [begin_s, *[at_s for at_s in self.acked_s if begin_s < at_s < end_s], end_s]

    def check(self, bodies: list[bytes]) -> None:
        """Compare a complete read with the history."""
        places: dict[bytes, int] = {}
        for seq_num, body in enumerate(bodies):
            assert body not in places, f"U1: {body!r} at {places[body]} and {seq_num}"
            places[body] = seq_num
        for number, (start, end) in self.acknowledged.items():
            assert bodies[start:end] == self.bodies(number), f"D1: append {number} at {start}"
        for number in self.early:
            assert all(body in places for body in self.bodies(number)), f"D1: early append {number}"
        known = (*self.acknowledged, *self.early, *self.uncertain)
        allowed = {b: n for n in known for b in self.bodies(n)}
        for body in bodies:
            assert body in allowed, f"D3: {body!r} was never appended, or was refused"
        order = [allowed[body] for body in bodies]
        assert order == sorted(order), "O3: one writer's appends are out of order"
        for number in self.uncertain:
            present = [body in places for body in self.bodies(number)]
            assert all(present) or not any(present), f"append {number} is there in part"


async def read_log(source: str | RestClient, log: str, *, expect_count: int = 0) -> list[bytes]:
    """Every body from head to tail, through a fresh client; asserts gapless numbers (G1).

    Waits until at least `expect_count` records can be read: recovery of what a dead sequencer left
    goes on beside the reader. A client that is given is closed.
    """
    client = RestClient(source) if isinstance(source, str) else source
    bodies: list[bytes] = []
    position = "head"
    try:
        while True:
            read = partial(client.read, NAMESPACE, log, position, most_bytes=4 << 20, wait_ms=300)
            answer = await repeat_safely(read)
            for records in open_batches(answer.batches, first=len(bodies)):
                assert records.first == len(bodies), f"G1: {records.first} after {len(bodies)}"
                bodies += records.bodies
            position = answer.next_position
            if answer.is_at_tail and not answer.batches and len(bodies) >= expect_count:
                return bodies
    finally:
        await client.close()
