"""Control calls of the sequencer on a store in memory: configurations, rolls, maintenance.

The host is a real one without bookies: nothing is opened here, so what a changed configuration does
to an open segment is in the unit tests and in tests/process/test_rolling.py. Source: R3, R19.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.exactly_once.stamps import Stamp
from duramen.errors import DuramenError
from duramen.ids import Epoch, SequencerId
from duramen.runtime.http_client import PeerClient, UnreachableError
from duramen.runtime.registry import Roster
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.maintenance import Maintenance
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import OutcomeUnknown
from duramen.wire.metadata_json import Paths, encode_log, encode_node, read_log
from duramen.wire.nodes.formats import PROCESS_FORMATS
from duramen_sequencer.log_changes import AUDITOR, LogChanges
from duramen_sequencer.log_host import LogHost
from tests.unit.core_fakes import LOG_ID, FakeStore
from tests.unit.exact_log import Log
from tests.unit.nodes import make_log
from tests.unit.sequencer_driver import Driver
from tests.waiting import wait_for

PATHS = Paths("test")
TEXT = str(LOG_ID)


class Peers:
    """Calls to other sequencers, as they are sent."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answer: tuple[int, dict[str, Any]] | Exception = (200, {"epoch": 7})

    async def request_json(
        self, _method: str, url: str, body: bytes, _timeout_us: int
    ) -> tuple[int, bytes]:
        self.calls.append((url, json.loads(body)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer[0], json.dumps(self.answer[1]).encode()


class Doubtful(MemoryStore):
    """Every write is applied, and nobody is told."""

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        await super().set(path, data, version=version)
        raise OutcomeUnknown("the connection broke")


class World:
    """One sequencer's `LogChanges` beside another one that owns the log."""

    def __init__(self, kind: type[MemoryStore]) -> None:
        self.store = kind(MemoryTree())
        self.peers = Peers()
        self.client = PeerClient()
        self.sequencers = Roster(self.store, PATHS.sequencers)
        name = SequencerId("s0")
        context = SequencerContext(name, random.Random(1), lambda *_, **__: b"")
        link = MetadataLink(self.store, PATHS, name, "http://s0")
        lanes = BookieLanes(self.client, lambda _: None, NodeWatch(context.nodes))
        self.host = LogHost(name, context, lanes, link, self.sequencers)
        self.changes = LogChanges(self.store, PATHS, self.host, cast(PeerClient, self.peers))

    async def own_elsewhere(self) -> None:
        fields = {"sequencer": "s1", "epoch": 1, "data_url": "http://s1"}
        await self.store.create(PATHS.owner(LOG_ID), encode_node(fields))

    async def reconfigure(self, patch: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return await self.changes.reconfigure({"log_id": TEXT, "config": patch, **fields})


@asynccontextmanager
async def made(kind: type[MemoryStore]) -> AsyncIterator[World]:
    world = World(kind)
    await world.store.start()
    await world.store.create(PATHS.log(LOG_ID), encode_log(make_log()), make_parents=True)
    for name in ("s0", "s1"):
        node = encode_node({"data_url": f"http://{name}"})
        await world.store.create(f"{PATHS.sequencers}/{name}", node, make_parents=True)
    await world.sequencers.start()
    try:
        yield world
    finally:
        await world.sequencers.stop()
        await world.client.close()
        await world.store.close()


def run(
    scenario: Callable[[World], Awaitable[None]], kind: type[MemoryStore] = MemoryStore
) -> None:
    async def play() -> None:
        async with asyncio.timeout(30), made(kind) as world:
            await scenario(world)

    asyncio.run(play())


@pytest.mark.parametrize("kind", [MemoryStore, Doubtful])
def test_the_fields_that_are_named_change_and_the_owner_is_told(kind: type[MemoryStore]) -> None:
    async def scenario(world: World) -> None:
        await world.own_elsewhere()
        answer = await world.reconfigure({"replication": {"ack_quorum": 3}, "commit_delay": "9ms"})
        assert answer["changed"] and answer["config_version"] == 2
        stored = await world.store.get(PATHS.log(LOG_ID))
        assert stored is not None and stored.version == 1, "changed once, whatever was doubtful"
        config = read_log(stored.data).config
        assert config.to_json() == answer["config"]
        assert (config.striped.ack_quorum, config.striped.write_quorum) == (3, 3)
        told = {"op": "config_changed", "log_id": TEXT, "forwarded": True}
        assert world.peers.calls == [("http://s1/s/control", told)]

    run(scenario, kind)


def test_compression_is_switched_on_once_all_read_what_it_makes() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(DuramenError, match="not read by s0, s1: upgrade first"):
            await world.reconfigure({"compression": "zstd"})
        assert (await world.reconfigure({"compression": "none"}))["changed"] is False
        today = encode_node({"formats": dict(PROCESS_FORMATS)})
        for name in ("s0", "s1"):
            await world.store.set(f"{PATHS.sequencers}/{name}", today, version=0)
        answer = await world.reconfigure({"compression": "zstd"})
        assert answer["changed"] and answer["config"]["compression"] == "zstd"
        # Whoever comes later keeps nobody from other changes, nor from switching it off.
        await world.store.create(f"{PATHS.available}/b0", encode_node({}), make_parents=True)
        assert (await world.reconfigure({"commit_delay": "9ms"}))["changed"]
        assert (await world.reconfigure({"compression": "none"}))["changed"]
        stored = await world.store.get(PATHS.log(LOG_ID))
        assert stored is not None and b"compression" not in stored.data

    run(scenario)


def test_who_has_read_an_older_configuration_does_not_write_over_the_next_one() -> None:
    async def scenario(world: World) -> None:
        first = await world.reconfigure({"commit_delay": "9ms"}, config_version=1)
        assert first["config_version"] == 2
        with pytest.raises(DuramenError) as caught:
            await world.reconfigure({"commit_delay": "7ms"}, config_version=1)
        assert (caught.value.code, caught.value.field) == ("config_conflict", "config_version")
        assert "has version 2" in caught.value.detail
        stored = await world.store.get(PATHS.log(LOG_ID))
        assert stored is not None
        assert read_log(stored.data).config.to_json() == first["config"]
        assert (await world.reconfigure({"commit_delay": "7ms"}, config_version=2))["changed"]

    run(scenario)


def test_the_same_configuration_is_not_written_again() -> None:
    async def scenario(world: World) -> None:
        answer = await world.reconfigure({"commit": "lac"})
        assert not answer["changed"] and answer["config_version"] == 1
        assert world.peers.calls == []

    run(scenario)


def test_what_a_call_changed_is_its_own_in_each_try_whatever_came_between() -> None:
    """Its answer got lost, and the owner has rolled before it was sent again."""

    async def scenario(world: World) -> None:
        fields: dict[str, Any] = {"config_version": 1, "nonce": "ours"}
        first = await world.reconfigure({"commit": "control"}, **fields)
        stored = await world.store.get(PATHS.log(LOG_ID))
        assert stored is not None
        rolled = read_log(stored.data).with_new_epoch("roll")
        await world.store.set(PATHS.log(LOG_ID), encode_log(rolled), version=stored.version)
        assert await world.reconfigure({"commit": "control"}, **fields) == first
        assert first["changed"] and first["config_version"] == 2
        other = await world.reconfigure({"commit": "control"}, nonce="another")
        assert not other["changed"]

    run(scenario)


def test_an_owner_that_does_not_answer_does_not_undo_the_change() -> None:
    async def scenario(world: World) -> None:
        await world.own_elsewhere()
        world.peers.answer = UnreachableError("gone")
        assert (await world.reconfigure({"commit": "control"}))["changed"]

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        ({"log_id": "x", "config": {}}, "invalid_argument", "log_id"),
        ({"log_id": "99999999999", "config": {}}, "invalid_argument", "log_id"),
        ({"log_id": "12", "config": {}}, "log_not_found", "log"),
        ({"log_id": TEXT, "config": []}, "invalid_argument", "config"),
        ({"log_id": TEXT, "config": {"colour": 1}}, "unknown_field", "colour"),
        ({"log_id": TEXT, "config": {"commit": "maybe"}}, "invalid_argument", "commit"),
        ({"log_id": TEXT, "config": {"roll": 7}}, "invalid_argument", "roll"),
        ({"log_id": TEXT, "config": {}, "nonce": ""}, "invalid_argument", "nonce"),
        ({"log_id": TEXT, "config": {}, "nonce": 1}, "invalid_argument", "nonce"),
        ({"log_id": TEXT, "config": {}, "nonce": "n" * 65}, "invalid_argument", "nonce"),
        (
            {"log_id": TEXT, "config": {}, "config_version": 2},
            "config_conflict",
            "config_version",
        ),
    ],
)
def test_a_bad_change_is_refused_with_its_field(
    request_: dict[str, Any], code: str, field: str
) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(DuramenError) as caught:
            await world.changes.reconfigure(request_)
        assert (caught.value.code, caught.value.field) == (code, field)
        stored = await world.store.get(PATHS.log(LOG_ID))
        assert stored is not None and stored.version == 0

    run(scenario)


def test_a_deleted_log_is_not_changed() -> None:
    async def scenario(world: World) -> None:
        deleted = encode_log(replace(make_log(), is_deleted=True))
        await world.store.set(PATHS.log(LOG_ID), deleted, version=0)
        with pytest.raises(DuramenError, match="log_deleted"):
            await world.reconfigure({"commit": "control"})

    run(scenario)


def test_a_roll_is_passed_on_to_the_owner_once() -> None:
    async def scenario(world: World) -> None:
        await world.own_elsewhere()
        assert await world.changes.roll({"log_id": TEXT}) == {"epoch": 7}
        forwarded = {"op": "roll", "log_id": TEXT, "by": None, "forwarded": True}
        assert world.peers.calls == [("http://s1/s/control", forwarded)]
        assert await world.changes.roll({"log_id": TEXT, "by": AUDITOR}) == {"epoch": 7}
        assert world.peers.calls[1:] == [("http://s1/s/control", {**forwarded, "by": AUDITOR})]
        assert await world.changes.roll(forwarded) == {"epoch": None}, "nothing is open here"
        world.peers.answer = (503, {"code": "log_unavailable", "detail": "not yet"})
        with pytest.raises(DuramenError, match="not yet"):
            await world.changes.roll({"log_id": TEXT})

    run(scenario)


def test_maintenance_is_seen_by_all_and_outlives_restarts() -> None:
    async def scenario(world: World) -> None:
        await world.store.create(PATHS.cluster, b"{}", make_parents=True)
        seen: list[tuple[str, bool]] = []

        def follow(name: str) -> Maintenance:
            return Maintenance(world.store, PATHS, lambda on: seen.append((name, on)), lambda: 0)

        first, second = follow("first"), follow("second")
        await first.start()
        await second.start()
        assert seen == []
        assert await first.suspend({"rolling": True}) == {"rolling_suspended": True, "under_way": 0}
        await wait_for(lambda: second.is_rolling_suspended)
        third = follow("third")
        await third.start()
        assert third.is_rolling_suspended, "it is known before the sequencer serves"
        await second.suspend({"rolling": False})
        await wait_for(lambda: not (first.is_rolling_suspended or third.is_rolling_suspended))
        assert seen.count(("first", True)) == seen.count(("first", False)) == 1
        with pytest.raises(DuramenError, match="true or false"):
            await first.suspend({"rolling": "yes"})
        for each in (first, second, third):
            await each.stop()

    run(scenario)


def test_suspending_waits_for_changes_under_way_and_tells_of_those_that_stay() -> None:
    async def scenario(world: World) -> None:
        await world.store.create(PATHS.cluster, b"{}", make_parents=True)
        counts = [2, 1, 0, 0]
        maintenance = Maintenance(world.store, PATHS, lambda _: None, lambda: counts.pop(0))
        assert (await maintenance.suspend({"rolling": True}))["under_way"] == 0
        stuck = Maintenance(world.store, PATHS, lambda _: None, lambda: 3)
        assert (await stuck.suspend({"rolling": True}))["under_way"] == 3

    run(scenario)


# --- A wish for another ack_mode (R29) -----------------------------------------------------------

LATE = {"ack_mode": "out_of_order"}


async def read_mode(world: World) -> str:
    stored = await world.store.get(PATHS.log(LOG_ID))
    assert stored is not None
    return read_log(stored.data).config.ack_mode


async def leave_unclosed(world: World) -> None:
    """The log has an open epoch, of which its node says nothing."""
    log = replace(make_log(), next_epoch=Epoch(3), last_clean_epoch=Epoch(1))
    await world.store.set(PATHS.log(LOG_ID), encode_log(log), version=0)


def test_a_log_with_producers_keeps_its_order_and_its_owner_names_them() -> None:
    async def scenario(world: World) -> None:
        await leave_unclosed(world)
        await world.own_elsewhere()
        world.peers.answer = (200, {"state": "a fencing token, producer p"})
        with pytest.raises(DuramenError, match="a fencing token, producer p, and they") as refusal:
            await world.reconfigure(LATE)
        assert (refusal.value.code, refusal.value.field) == ("needs_ordered", "ack_mode")
        asked = {"op": "report_state", "log_id": TEXT, "forwarded": True}
        assert world.peers.calls == [("http://s1/s/control", asked)]
        assert await read_mode(world) == "ordered"
        world.peers.answer = (200, {"state": ""})
        assert (await world.reconfigure(LATE))["changed"]
        assert await read_mode(world) == "out_of_order"
        assert [call["op"] for _, call in world.peers.calls[2:]] == ["config_changed"]

    run(scenario)


def test_what_the_owner_does_not_know_is_not_taken_for_nothing() -> None:
    async def scenario(world: World) -> None:
        await leave_unclosed(world)
        await world.own_elsewhere()
        for answer in ((503, {"code": "log_unavailable"}), UnreachableError("gone")):
            world.peers.answer = answer
            with pytest.raises(DuramenError, match="log_unavailable"):
                await world.reconfigure(LATE)
        with pytest.raises(DuramenError, match="it is s1's now"):
            await world.changes.report_state({"log_id": TEXT})
        assert await read_mode(world) == "ordered" and not world.host.drivers

    run(scenario)


def test_of_a_log_that_nobody_writes_its_node_tells() -> None:
    async def scenario(world: World) -> None:
        log = replace(make_log(), next_epoch=Epoch(3), last_clean_epoch=Epoch(2)).with_stateless()
        await world.store.set(PATHS.log(LOG_ID), encode_log(log), version=0)
        assert (await world.reconfigure(LATE))["changed"]
        assert not world.host.drivers

    run(scenario)


def test_where_nobody_knows_the_log_is_taken_over() -> None:
    async def scenario(world: World) -> None:
        await leave_unclosed(world)
        node = await world.store.get(f"{PATHS.sequencers}/s1")
        assert node is not None
        await world.store.delete(f"{PATHS.sequencers}/s1", version=node.version)
        await wait_for(lambda: len(world.sequencers.nodes) == 1)
        with pytest.raises(DuramenError, match="being read"):
            await world.changes.report_state({"log_id": TEXT})
        with pytest.raises(DuramenError, match=r"being read|being taken over"):
            await world.reconfigure(LATE)
        assert LOG_ID in world.host.drivers
        assert await read_mode(world) == "ordered"

    run(scenario)


def test_the_way_back_to_order_asks_nobody() -> None:
    async def scenario(world: World) -> None:
        await world.reconfigure(LATE)
        world.peers.calls.clear()
        await world.own_elsewhere()
        assert (await world.reconfigure({"ack_mode": "ordered"}))["changed"]
        assert [call["op"] for _, call in world.peers.calls] == ["config_changed"]

    run(scenario)


def test_the_owner_reports_its_producers_and_both_ends_of_its_epoch() -> None:
    async def scenario(world: World) -> None:
        log = Log()
        world.host.drivers[LOG_ID] = cast(Any, SimpleNamespace(core=log.driver.core))
        request = {"log_id": TEXT}
        assert await world.changes.report_state(request) == {"state": ""}
        for number in range(7):
            log.append(Stamp(f"p{number}", 0, 0))
        log.store()
        told = (await world.changes.report_state(request))["state"]
        assert told == "producer p0, producer p1, producer p2, producer p3, producer p4 and 2 more"
        writer = log.driver.core.writer
        assert writer is not None
        answer = {end: [writer.lac, 14, 5] for end in ("released", "acknowledged")}
        assert await world.changes.report_tail(request) == {"epoch": 1, **answer}
        log.driver.core.release()
        for call in (world.changes.report_state, world.changes.report_tail):
            with pytest.raises(DuramenError, match="log_unavailable"):
                await call(request)
        world.host.drivers.clear()

    run(scenario)


def test_the_acknowledged_end_is_ahead_of_the_released_one() -> None:
    async def scenario(world: World) -> None:
        config = make_log().config.model_copy(update=LATE)
        log = Log(Driver(FakeStore(replace(make_log(), config=config))))
        log.driver.activate()
        world.host.drivers[LOG_ID] = cast(Any, SimpleNamespace(core=log.driver.core))
        log.append()
        log.driver.take(fx.SendAdd)
        log.append()
        log.driver.store_all()
        answer = {"epoch": 1, "released": [-1, 0, 0], "acknowledged": [1, 4, 5]}
        assert await world.changes.report_tail({"log_id": TEXT}) == answer
        world.host.drivers.clear()

    run(scenario)
