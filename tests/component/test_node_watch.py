"""What one log's store met at a bookie, the other logs of the process do not meet again (R27).

A host with production lanes; the bookies are a client that answers, or never does. Not here: who is
listed (`test_node_states`), what a writer makes of it (`test_ledger_writer`).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from duramen.config import LogConfig
from duramen.core.placement import Candidate
from duramen.core.placement.node_states import NodeStates
from duramen.core.sequencer.context import SequencerContext
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, Incarnation, LogId, Member, SequencerId, log_of
from duramen.limits import STORE_TIMEOUT_US
from duramen.runtime.http_client import NoAnswerError
from duramen.runtime.registry import Roster
from duramen.runtime.sequencer import bookie_lanes, node_watch, store_lane
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.units import SECOND
from duramen.wire import bookie_calls as calls
from duramen.wire.control_record import encode_control
from duramen_sequencer.log_host import LogHost
from tests.component.host_world import PATHS, HostWorld
from tests.waiting import wait_for

OK = BookieStatus.OK
BOOKIES = ("b0", "b1", "b2", "b3")
CONFIG = LogConfig.model_validate(
    {
        "replication": {
            "ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "min_racks": 1,
        },
    }
)  # fmt: skip


class Bookies:
    """Four that store nothing and say that they did; who is silent answers nothing."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.is_over = {LogId(number): asyncio.Event() for number in (1, 2, 3)}
        """Of the log's stores at who is silent: their time is over."""
        self.adds: Counter[tuple[str, LogId]] = Counter()

    async def call(self, url: str, body: bytes, timeout_us: int) -> bytes:
        _, _, name, _, verb = url.split("/")
        adds = []
        if verb == "add":
            adds = calls.parse_adds(body)[1]
            self.adds.update((name, log_of(add.ledger_id)) for add in adds)
        if name in self.silent:
            await (self.is_over[log_of(adds[0].ledger_id)] if adds else asyncio.Event()).wait()
            raise NoAnswerError("no answer in time")
        if verb == "add":
            return calls.pack_statuses([OK] * len(adds))
        magic = b"DSLR" if verb == "seal" else b"DLCR"
        return calls.pack_marks(magic, [calls.Marks(OK, NOTHING, NOTHING)])


class World(HostWorld):
    """One host of three logs, each with an open segment."""

    host: LogHost
    context: SequencerContext

    def __init__(self) -> None:
        super().__init__()
        self.bookies = Bookies()

    async def begin(self) -> None:
        for number in (1, 2, 3):
            await self.add_log(LogId(number), f"log{number}", config=CONFIG)
        candidates = [
            Candidate(Member(BookieId(name), Incarnation("0" * 32)), "r", name, 1.0)
            for name in BOOKIES
        ]
        self.context = context = SequencerContext(
            SequencerId("s0"), random.Random(1), lambda *_, **__: b"x" * 20,
            encode_control=encode_control,
        )  # fmt: skip
        context.candidates = candidates
        context.locations = {candidate.member: candidate for candidate in candidates}
        lanes = BookieLanes(
            cast(Any, self.bookies), lambda name: f"http://{name}", NodeWatch(context.nodes)
        )
        link = MetadataLink(self.setup, PATHS, SequencerId("s0"), "http://s0")
        self.host = LogHost(
            SequencerId("s0"), context, lanes, link, Roster(self.setup, PATHS.sequencers)
        )
        self.hosts["s0"] = self.host
        self.setup.on_session(self.host.on_session)
        for number in (1, 2, 3):
            await self.append(self.host, LogId(number))

    def ensemble(self, number: int) -> set[str]:
        """Who takes the log's entries now."""
        writer = self.host.drivers[LogId(number)].core.writer
        assert writer is not None
        return {member.bookie for member in writer.segment.members}

    def listed(self) -> dict[str, Any]:
        rows = self.host.statistics()["lanes"]["listed"]
        return {row["bookie"]: row for row in rows}


@asynccontextmanager
async def world_of_three() -> AsyncIterator[World]:
    world = World()
    await world.setup.start()
    try:
        async with asyncio.timeout(30):
            await world.begin()
            yield world
    finally:
        await world.close()


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands for the lists, but for 1 µs a look: nothing that is listed is taken off."""
    looks = itertools.count(1)
    for module in (bookie_lanes, node_watch, store_lane):
        monkeypatch.setattr(module, "_read_clock_us", looks.__next__)


@pytest.mark.usefixtures("still")
def test_three_logs_do_not_each_find_the_same_silent_bookie() -> None:
    async def scenario() -> None:
        async with world_of_three() as world:
            # The one that is silent is in all ensembles: the others are three of four.
            (frozen, *_) = set.intersection(*[world.ensemble(number) for number in (1, 2, 3)])
            world.bookies.silent.add(frozen)
            before = world.bookies.adds[frozen, LogId(3)]
            await world.append(world.host, LogId(1))
            world.bookies.is_over[LogId(1)].set()
            await wait_for(lambda: frozen in world.listed())
            assert world.listed()[frozen]["reason"] == "silent"
            await world.append(world.host, LogId(2))
            await world.append(world.host, LogId(3))
            await wait_for(lambda: not any(frozen in world.ensemble(n) for n in (1, 2, 3)))
            assert world.bookies.adds[frozen, LogId(3)] == before, "nobody asks it again"

    asyncio.run(scenario())


@pytest.mark.usefixtures("still")
def test_what_waits_at_the_silent_bookie_goes_elsewhere_before_its_own_time_out() -> None:
    async def scenario() -> None:
        async with world_of_three() as world:
            (frozen, *_) = set.intersection(*[world.ensemble(number) for number in (1, 2)])
            world.bookies.silent.add(frozen)
            await world.append(world.host, LogId(1))
            await world.append(world.host, LogId(2))  # its own time-out never comes
            world.bookies.is_over[LogId(1)].set()
            await wait_for(lambda: frozen not in world.ensemble(2))
            statistics = world.host.statistics()["lanes"]
            assert statistics["listings"] == {"silent": 1}

    asyncio.run(scenario())


def test_who_slept_takes_its_own_late_time_outs_for_no_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = NodeStates()
    watch = NodeWatch(nodes)
    a, b = (Member(BookieId(name), Incarnation("0" * 32)) for name in ("b0", "b1"))
    now_us = 10 * SECOND
    monkeypatch.setattr(node_watch, "_read_clock_us", lambda: now_us)

    async def scenario() -> None:
        watch.on_answered(b, [OK], now_us - 1)
        watch.on_failed(a, BookieStatus.TIMEOUT, now_us - 5 * SECOND)
        assert not nodes.shunned
        watch.on_failed(a, BookieStatus.TIMEOUT, now_us - STORE_TIMEOUT_US)
        assert nodes.shunned == {a}
        watch.stop()

    asyncio.run(scenario())


def test_the_bookie_is_taken_again_when_its_time_is_over() -> None:
    async def scenario() -> None:
        async with world_of_three() as world:
            (frozen, *_) = world.ensemble(1)
            world.bookies.silent.add(frozen)
            await world.append(world.host, LogId(1))
            await world.append(world.host, LogId(2))  # others are heard after it was asked
            world.bookies.is_over[LogId(1)].set()
            await wait_for(lambda: bool(world.host.statistics()["lanes"]["listings"]))
            await wait_for(lambda: not world.context.nodes.shunned)
            assert all(candidate.is_steady for candidate in world.context.list_candidates())

    asyncio.run(scenario())
