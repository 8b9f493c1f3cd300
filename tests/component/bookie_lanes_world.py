"""Lanes of a sequencer before bookies that the test plays by hand.

`FakeClient` answers each call as the test decides; `Sink` notes what the log's core is told.
Used by `test_bookie_lanes` and `test_recovery_lanes`. Source: docs/protocol/wire.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

from duramen.core.flexible.recovery import Digest
from duramen.core.placement.node_states import NodeStates
from duramen.core.sequencer.effects import SendAdd, StoredEntry
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member, ledger_of
from duramen.runtime.http_client import OverloadedError
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.units import MS
from duramen.wire import bookie_calls as calls

OK = BookieStatus.OK
MEMBER = Member(BookieId("b0"), Incarnation("0" * 32))
LOG = LogId(9)
LEDGER = ledger_of(LOG, Epoch(1))
BUSY = OverloadedError("HTTP 503", retry_after_us=1 * MS)


class Call(NamedTuple):
    """One call that the bookie got."""

    verb: str
    body: bytes
    timeout_us: int

    @property
    def entries(self) -> list[int]:
        return [add.entry_id for add in calls.parse_any_adds(self.body)[1]]


Decide = Callable[[Call], Awaitable[bytes]]


class FakeClient:
    """Answers as `decide` says; without it everything is fine."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.decide: Decide = self.accept

    async def call(self, url: str, body: bytes, timeout_us: int) -> bytes:
        call = Call(url.rpartition("/")[2], body, timeout_us)
        self.calls.append(call)
        return await self.decide(call)

    async def accept(self, call: Call) -> bytes:
        if call.verb == "add":
            return calls.pack_statuses([OK] * len(call.entries))
        magic = b"DSLR" if call.verb == "seal" else b"DLCR"
        return calls.pack_marks(magic, [calls.Marks(OK, NOTHING, NOTHING)])

    async def refuse(self, _call: Call) -> bytes:
        raise BUSY

    def refuse_first(self, count: int) -> Decide:
        async def decide(call: Call) -> bytes:
            if len(self.calls) <= count:
                raise BUSY
            return await self.accept(call)

        return decide


class Sink:
    """What was reported, in order."""

    def __init__(self) -> None:
        self.adds: list[tuple[int, BookieStatus]] = []
        self.others: list[BookieStatus] = []
        self.stored: list[StoredEntry | None] = []
        self.digests: list[Digest | None] = []

    def on_add(self, _member: Member, _epoch: Epoch, entry: EntryId, status: BookieStatus) -> None:
        self.adds.append((entry, status))

    def on_lac(self, _member: Member, _epoch: Epoch, status: BookieStatus, _round_id: int) -> None:
        self.others.append(status)

    def on_seal(self, _member: Member, _epoch: Epoch, marks: calls.Marks) -> None:
        self.others.append(marks.status)

    def on_read(
        self,
        _member: Member,
        _epoch: Epoch,
        _entry: EntryId,
        status: BookieStatus,
        stored: StoredEntry | None,
    ) -> None:
        self.others.append(status)
        self.stored.append(stored)

    def on_digest(
        self, _member: Member, _epoch: Epoch, status: BookieStatus, digest: Digest | None
    ) -> None:
        self.others.append(status)
        self.digests.append(digest)

    def flush(self) -> None:
        pass


class World:
    """Lanes to one bookie."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.lanes = BookieLanes(
            cast(Any, self.client), lambda _bookie: "http://b0", NodeWatch(NodeStates())
        )
        self.sink = Sink()

    def add(
        self, *entries: int, is_recovery: bool = False, size: int = 10, log_id: LogId = LOG
    ) -> None:
        ledger_id = ledger_of(log_id, Epoch(1))
        for entry in entries:
            effect = SendAdd(
                MEMBER, ledger_id, EntryId(entry), NOTHING, b"x" * size, is_recovery=is_recovery
            )
            self.lanes.add(effect, self.sink)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def in_world() -> None:
        async with asyncio.timeout(30):
            await scenario(World())

    asyncio.run(in_world())
