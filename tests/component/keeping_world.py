"""One sequencer's keepers on a store in memory, before bookies that keep what they are given.

The bookies do everything at once; of logs that they are deaf to they answer nothing. What a cluster
understands is what the test says. Used by `test_keeping`.
Source: docs/protocol/metadata-logs.md "Words", "Changes".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from duramen.core.cold_copy import ColdCopy
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.configuring import WRITE_QUORUM_MIN
from duramen.core.metadata_log.listing import PlacedRecord
from duramen.core.metadata_log.record import MetadataKind
from duramen.core.placement import Candidate
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.segment_base import SegmentBase
from duramen.core.sequencer.effects import SendAdd, SendWave
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    Member,
    log_of,
    lsn_of,
    metadata_log_of,
)
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen.runtime.sequencer.process import make_context
from duramen.units import MS
from duramen.wire.metadata_json import (
    encode_log,
    encode_segment,
    read_any_segment,
    read_log,
)
from duramen.wire.nodes.metadata_entries import read_metadata_entry
from duramen.wire.sequencer_calls import AppendedBatch
from duramen_sequencer.flexible.tree_format import TreeFormat
from duramen_sequencer.life import keeping
from duramen_sequencer.life.keeping import Keeping
from duramen_sequencer.life.metadata_logs import MetadataLogNodes
from tests.component.host_world import PATHS, HostWorld, Lanes, host_world
from tests.waiting import wait_for

LOG = LogId(9)
METADATA_LOG = metadata_log_of(LOG)
MEMBERS = [Member(BookieId(f"b{i}"), Incarnation("0" * 32)) for i in range(WRITE_QUORUM_MIN)]
COPY = ColdCopy("0a" * 16, "1b" * 32, 100, 5, 6)
REST_MS = 50


class Shelves(Lanes):
    """Bookies that keep what they are given; of the logs in `deaf` they answer nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[tuple[LedgerId, EntryId], bytes] = {}
        self.deaf: set[LogId] = set()
        self.unanswered_count = 0
        self.read_count = 0

    def add(self, effect: SendAdd | SendWave, sink: Any) -> None:
        if log_of(effect.ledger_id) in self.deaf:
            self.unanswered_count += 1
        else:
            self.entries[effect.ledger_id, effect.entry] = effect.payload
            super().add(effect, sink)

    async def fetch_run(
        self, segment: SegmentBase, first: EntryId, last: EntryId, _bytes_max: int
    ) -> Sequence[tuple[EntryId, bytes]]:
        self.read_count += 1
        wanted = map(EntryId, range(first, last + 1))
        return [(entry, self.entries[segment.ledger_id, entry]) for entry in wanted]


class Tree:
    """Whether every process understands metadata logs, as the test says."""

    def __init__(self) -> None:
        self.ask_count = 0
        self.refusal = ""

    async def ensure(self, _field: str) -> None:
        self.ask_count += 1
        if self.refusal:
            raise DuramenError("placement_impossible", self.refusal)


class World:
    """One sequencer that looks after one log."""

    def __init__(self, hosts: HostWorld) -> None:
        self.hosts = hosts
        self.shelves = Shelves()
        self.tree = Tree()
        self.is_ours: Callable[[LogNode], bool] = lambda _: True
        self.now_ms = (COPY.rechecked_unix_ms or 0) + REST_MS
        self.keeping: Keeping

    async def begin(self) -> None:
        await self.hosts.add_log(LOG)
        self.host = await self.hosts.add_host("s0")
        self.store, context = self.hosts.stores["s0"], self.hosts.contexts["s0"]
        context.encode_entry = make_context("s0").encode_entry
        context.candidates = [Candidate(member, "r", f"k{member.bookie}") for member in MEMBERS]
        context.locations = {one.member: one for one in context.candidates}
        self.host._lanes = cast(Any, self.shelves)
        self.keeping = self.make_keeping()
        self.keeping.start()
        self.store.on_session(self.keeping.on_session)

    def make_keeping(self, tree: TreeFormat | None = None) -> Keeping:
        async def is_ours(log: LogNode) -> bool:
            return self.is_ours(log)

        return Keeping(
            self.host,
            self.hosts.contexts["s0"],
            MetadataLogNodes(self.store, PATHS),
            MetadataRecords(self.store, PATHS, self.shelves.fetch_run),
            tree or cast(Any, self.tree),
            is_ours=is_ours,
            rest_us=REST_MS * MS,
        )

    # --- The log ---------------------------------------------------------------------------------

    async def read(self, log_id: LogId = LOG) -> LogNode | None:
        found = await self.store.get(PATHS.log(log_id))
        return None if found is None else read_log(found.data)

    async def log(self, log_id: LogId = LOG) -> LogNode:
        log = await self.read(log_id)
        assert log is not None
        return log

    async def set_log(self, log: LogNode) -> None:
        found = await self.hosts.setup.get(PATHS.log(LOG))
        assert found is not None
        await self.hosts.setup.set(PATHS.log(LOG), encode_log(log), version=found.version)

    async def release_epochs(self, count: int) -> None:
        """So many more closed epochs of which the hot copies are gone, and one that is hot."""
        log = await self.log()
        first = log.next_epoch
        for epoch in map(Epoch, range(first, first + count + 1)):
            fragments = (Fragment(EntryId(0), tuple(MEMBERS[:1])),)
            segment = Segment(LOG, epoch, Quorum(1, 1, 1), fragments).closed(
                last_entry=EntryId(0), totals=Totals(1, 10), completed_unix_ms=5, nonce="c",
                start_seq_num=log.totals.record_count + epoch - first,
            )  # fmt: skip
            path = PATHS.segment(LOG, epoch)
            data = encode_segment(segment.with_cold_copy(COPY, f"n{epoch}"))
            await self.hosts.setup.create(path, data)
        last = Epoch(first + count)
        totals = log.totals._replace(record_count=log.totals.record_count + count + 1)
        snapshot_lsn = lsn_of(last, EntryId(0))
        await self.set_log(
            replace(log, next_epoch=Epoch(last + 1), last_clean_epoch=last, totals=totals,
                    first_hot_epoch=last, snapshot_lsn=snapshot_lsn, nonce="released")
        )  # fmt: skip

    async def own(self) -> LogDriver:
        """Have the log here, with an open epoch."""
        assert isinstance(await self.hosts.append(self.host, LOG), AppendedBatch)
        return self.host.drivers[LOG]

    async def roll(self) -> Epoch:
        """Close the open epoch, open the next one."""
        driver = self.host.drivers[LOG]
        before = cast(Any, driver.core.writer).segment.epoch

        def has_rolled() -> bool:
            writer = driver.core.writer
            return writer is not None and writer.segment.epoch > before

        driver.core.request_roll()
        driver.flush()
        await wait_for(has_rolled)
        return Epoch(before + 1)

    # --- The keeper ------------------------------------------------------------------------------

    async def want(self) -> bool:
        """As a round of retention; passes that it leads to are over. Whether there was one."""
        count = self.count("passes")
        self.keeping.want(await self.log())
        await self.rest()
        return self.count("passes") > count

    def fence(self) -> LogDriver:
        """Bookies tell the keeper that its first epoch is sealed."""
        driver = self.host._metadata_drivers[METADATA_LOG]
        writer = driver.core.writer
        assert writer is not None
        for member in writer.segment.members:
            driver.on_add(member, Epoch(1), EntryId(0), BookieStatus.SEALED)
        driver.flush()
        return driver

    async def rest(self) -> None:
        await wait_for(lambda: not self.keeping._waiting and not self.keeping._passes)

    def count(self, name: str) -> int:
        count: int = self.keeping.statistics()[name]
        return count

    async def records(self) -> list[PlacedRecord]:
        """All that closed epochs of the metadata log hold."""
        metadata_log = await self.read(METADATA_LOG)
        last = 0 if metadata_log is None else metadata_log.last_clean_epoch
        placed: list[PlacedRecord] = []
        for epoch in map(Epoch, range(1, last + 1)):
            found = await self.store.get(PATHS.segment(METADATA_LOG, epoch))
            assert found is not None
            segment = read_any_segment(found.data)
            for entry in map(EntryId, range((segment.last_entry or 0) + 1)):
                placed += read_metadata_entry(self.shelves.entries[segment.ledger_id, entry], LOG)
        return placed

    async def told(self) -> list[tuple[int, bool, bool]]:
        """Of each record of history: its epoch, whether it was closed, whether it has the
        configuration."""
        return [
            (one.record.epoch, one.record.segment.is_closed, one.record.config is not None)
            for one in await self.records()
            if one.record.kind is MetadataKind.TOLD
        ]


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with host_world() as hosts:
            world = World(hosts)
            await world.begin()
            patch.setattr(keeping, "read_unix_ms", lambda: world.now_ms)
            try:
                await scenario(world)
            finally:
                await world.keeping.stop()

    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(run())
