"""Hosts of sequencers on one metadata store in memory, and the bookies that they need.

The bookies are lanes that answer at once and hold nothing: an add is durable, a seal finds an empty
ledger. Silent, they answer no add. Enough for what hosts decide: who claims, when, what waits, what
is forgotten. What bookies must hold is for other tests. Used by `test_ownership` and others.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from duramen.config import LogConfig
from duramen.core.placement import Candidate
from duramen.core.placement.node_states import NodeStates
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import SendAdd, SendLac, SendRecoveryRead, SendSeal, SendWave
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, Epoch, Incarnation, LogId, Member, SequencerId, epoch_of
from duramen.runtime.registry import Roster
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import SECOND
from duramen.wire.bookie_calls import Marks
from duramen.wire.control_record import encode_control
from duramen.wire.metadata_json import Paths, encode_log, encode_node
from duramen.wire.sequencer_calls import AppendResult
from duramen_sequencer.log_host import LogHost
from tests.unit.nodes import make_log

PATHS = Paths("test")
CONFIG = LogConfig.model_validate(
    {
        "replication": {
            "ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1, "min_racks": 1,
        },
    }
)  # fmt: skip
MEMBER = Member(BookieId("b0"), Incarnation("0" * 32))


class Lanes:
    """A bookie that does everything at once, in the place of `BookieLanes`."""

    def __init__(self) -> None:
        self.watch = NodeWatch(NodeStates())
        self.seal_count = 0
        self.is_silent = False
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def add(self, effect: SendAdd | SendWave, sink: Any) -> None:
        if self.is_silent:
            return

        def answer() -> None:
            sink.on_add(effect.member, epoch_of(effect.ledger_id), effect.entry, BookieStatus.OK)
            sink.flush()

        asyncio.get_running_loop().call_soon(answer)

    def send_lac(self, effect: SendLac, sink: Any) -> None:
        def answer() -> None:
            epoch = epoch_of(effect.ledger_id)
            sink.on_lac(effect.member, epoch, BookieStatus.OK, effect.round_id)
            sink.flush()

        asyncio.get_running_loop().call_soon(answer)

    def seal(self, effect: SendSeal, sink: Any) -> None:
        self.seal_count += 1

        def answer() -> None:
            sink.on_seal(effect.member, effect.epoch, Marks(BookieStatus.OK, NOTHING, NOTHING))
            sink.flush()

        asyncio.get_running_loop().call_soon(answer)

    def read(self, effect: SendRecoveryRead, sink: Any) -> None:
        def answer() -> None:
            epoch = epoch_of(effect.ledger_id)
            sink.on_read(effect.member, epoch, effect.entry, BookieStatus.NO_ENTRY, None)
            sink.flush()

        asyncio.get_running_loop().call_soon(answer)

    def statistics(self) -> dict[str, int]:
        return {}


class HostWorld:
    """Hosts by name, all live, on one tree."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.setup = MemoryStore(self.tree)
        self.stores: dict[str, MemoryStore] = {}
        self.hosts: dict[str, LogHost] = {}
        self.lanes: dict[str, Lanes] = {}
        self.contexts: dict[str, SequencerContext] = {}
        self.away: list[str] = []
        """Whom all sequencers take for away."""
        self._rosters: list[Roster] = []
        self._append_count = 0

    async def add_log(self, log_id: LogId, name: str = "log", **changes: Any) -> None:
        """A log without epochs."""
        changes = {"config": CONFIG, **changes}
        log = replace(make_log(), log_id=log_id, name=name, **changes)
        await self.setup.create(PATHS.log(log_id), encode_log(log), make_parents=True)
        await self.setup.create(PATHS.segments(log_id), b"", make_parents=True)

    async def add_host(self, name: str, fields: Mapping[str, Any] | None = None) -> LogHost:
        """A sequencer; its data url is where nothing listens unless `fields` say otherwise."""
        store = self.stores[name] = MemoryStore(self.tree)
        await store.start()
        url = (fields or {}).get("data_url", "http://127.0.0.1:1")
        node = {"data_url": url, **(fields or {})}
        await store.create(
            f"{PATHS.sequencers}/{name}", encode_node(node), ephemeral=True, make_parents=True
        )
        candidate = Candidate(MEMBER, "r", "k")
        context = self.contexts[name] = SequencerContext(
            SequencerId(name),
            random.Random(1),
            lambda *_, **__: b"",
            encode_control=encode_control,
        )
        context.candidates, context.locations = [candidate], {MEMBER: candidate}
        lanes = self.lanes[name] = Lanes()
        roster = Roster(store, PATHS.sequencers)
        self._rosters.append(roster)
        link = MetadataLink(store, PATHS, SequencerId(name), url)
        host = LogHost(
            SequencerId(name), context, cast(Any, lanes), link, roster, away=lambda: self.away
        )
        await roster.start()
        store.on_session(host.on_session)
        self.hosts[name] = host
        return host

    def append(
        self,
        host: LogHost,
        log_id: LogId,
        *,
        tried: tuple[str, ...] = (),
        timeout_s: float = 10,
        region: str | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Submit one append; the future gets its answer."""
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        queued = self.make_append(tried=tried, timeout_s=timeout_s)
        queued = replace(queued, region=region)
        driver = host.submit(log_id, queued, future.set_result)
        if driver is not None:
            driver.flush()
        return future

    def make_append(self, *, tried: tuple[str, ...] = (), timeout_s: float = 10) -> QueuedAppend:
        """One append, with a number of its own."""
        self._append_count += 1
        deadline_us = now_us() + int(timeout_s * SECOND)
        return QueuedAppend(self._append_count, b"batch", 1, None, 0, deadline_us, tried=tried)

    def owner_exists(self, log_id: LogId) -> bool:
        """Whether somebody is known to own the log."""
        return self.tree.get(PATHS.owner(log_id)) is not None

    async def own_elsewhere(
        self, log_id: LogId, owner: str, url: str, *, by_hint: bool = False
    ) -> None:
        """An owner node of somebody else."""
        link = MetadataLink(self.setup, PATHS, SequencerId(owner), url)
        await link.keep_owner(log_id, Epoch(1), by_hint=by_hint)

    async def close(self) -> None:
        """End everything that runs."""
        for host in self.hosts.values():
            await host.stop()
        for roster in self._rosters:
            await roster.stop()
        for store in (*self.stores.values(), self.setup):
            await store.close()


@asynccontextmanager
async def host_world() -> AsyncIterator[HostWorld]:
    """A world without hosts and logs, and its end."""
    world = HostWorld()
    await world.setup.start()
    try:
        async with asyncio.timeout(30):
            yield world
    finally:
        await world.close()
