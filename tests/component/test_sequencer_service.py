"""What a sequencer's service does by itself when bookies or other sequencers go.

The service is the product's, with its ports, on a store in memory; the others are nodes that the
test deletes. What it has in place of events, a look every while, is an hour away here. Its parts
have tests of their own; of processes it is in tests/process/test_repair.py and test_ownership.py.
Source: docs/protocol/metadata.md "Rules for every change", docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from duramen.errors import DuramenError
from duramen.ids import Epoch, LogId, SequencerId
from duramen.runtime.role import ServiceOptions
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import HOUR, SECOND
from duramen.wire.metadata_json import Paths, encode_node, read_node
from duramen.wire.nodes.formats import PROCESS_FORMATS, understands
from duramen_sequencer import log_host
from duramen_sequencer.ownership.weighing import Weighing
from duramen_sequencer.service import SequencerService
from tests.component.host_world import Lanes
from tests.unit.exact_log import Log
from tests.waiting import wait_for

PATHS: Final = Paths("test")
BOOKIE: Final = f"{PATHS.available}/b0"
OTHER: Final = f"{PATHS.sequencers}/s1"


class World:
    """A sequencer beside a bookie and another sequencer; it has looked once at everything."""

    def __init__(self) -> None:
        tree = MemoryTree()
        self.setup = MemoryStore(tree)
        options = ServiceOptions(
            "sequencer", "test", "s0", "127.0.0.1", 0, 0, "", "x", "a", "none", 4.0, None,
            audit_interval_us=HOUR,
        )  # fmt: skip
        self.service = SequencerService(options, MemoryStore(tree))

    async def start(self) -> None:
        await self.setup.start()
        url, place = {"data_url": "http://127.0.0.1:1"}, {"region": "x", "rack": "a"}
        fields = {**url, **place, "incarnation": "0" * 32, "state": "rw", "draining": False}
        for path in (BOOKIE, OTHER):
            await self.setup.create(path, encode_node(fields), make_parents=True)
        await self.service.start()
        await wait_for(lambda: self.audit_count() > 0 and self.scan_count() > 0)

    async def stop(self) -> None:
        await self.service.stop()
        await self.setup.close()

    async def remove(self, path: str) -> None:
        await self.setup.delete(path, version=0)

    def statistics(self) -> dict[str, Any]:
        return self.service.statistics()

    def audit_count(self) -> int:
        return int(self.statistics()["repair"]["rounds"])

    def scan_count(self) -> int:
        return int(self.statistics()["orphan_scans"])


def run(scenario: Callable[[World], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        world = World()
        await world.start()
        try:
            await scenario(world)
        finally:
            await world.stop()

    monkeypatch.setattr(log_host, "_SCAN_INTERVAL_S", HOUR / SECOND)
    asyncio.run(play())


def test_when_a_bookie_goes_its_copies_are_audited_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        assert world.statistics()["repair"]["is_auditor"]
        before = world.audit_count()
        await world.remove(BOOKIE)
        await wait_for(lambda: world.audit_count() > before)

    run(scenario, monkeypatch)


def test_a_sequencer_says_that_it_understands_flexible_logs_also_after_it_met_silent_bookies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        path = f"{PATHS.sequencers}/s0"

        async def read() -> dict[str, Any]:
            stored = await world.setup.get(path)
            return {} if stored is None else read_node(stored.data)

        async def has_looked() -> bool:
            return "unreached" in await read()

        assert understands(await read(), PROCESS_FORMATS)
        await wait_for(has_looked)
        assert understands(await read(), PROCESS_FORMATS)

    run(scenario, monkeypatch)


def test_a_share_that_is_given_live_stands_in_the_node_and_stays_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        path = f"{PATHS.sequencers}/s0"

        async def says(**wanted: Any) -> bool:
            stored = await world.setup.get(path)
            said = {} if stored is None else read_node(stored.data)
            return wanted.items() <= said.items()

        weighing = Weighing(SequencerId("s0"), world.service._registration.change)
        answer = await weighing.weigh({"sequencer_weight": 3})
        assert answer == {"id": "s0", "sequencer_weight": 3.0}
        await wait_for(lambda: says(weight=3.0, region="x"))
        world.service._registration.change({"unreached": ["b0"]})
        await wait_for(lambda: says(weight=3.0, unreached=["b0"]))
        for wrong in (None, True, "2", -1, 1001):
            with pytest.raises(DuramenError) as caught:
                await weighing.weigh({"sequencer_weight": wrong})
            assert caught.value.field == "sequencer_weight"
        status, _, body, *_ = await world.service._on_call(
            "/s/control", b'{"op": "weigh", "sequencer_weight": 0}', None
        )
        assert (status, json.loads(body)["sequencer_weight"]) == (200, 0.0)
        await wait_for(lambda: says(weight=0.0))

    run(scenario, monkeypatch)


def test_when_a_sequencer_goes_its_logs_are_looked_for_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        before = world.scan_count()
        await world.remove(OTHER)
        await wait_for(lambda: world.scan_count() > before)

    run(scenario, monkeypatch)


def test_an_admin_answer_tells_a_fencing_token_only_to_who_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        core = Log().driver.core
        core.pipeline.admission.table.token = "the holder's"
        driver = make_driver(world, LogId(7))
        driver.core = core
        app = FastAPI()
        world.service.add_admin_routes(app)
        drivers = cast(Any, world.service.host.drivers)
        drivers[LogId(7)] = driver
        async with AsyncClient(transport=ASGITransport(app), base_url="http://admin") as operator:
            for path in ("/v1/logs", "/v1/logs/7", "/v1/logs/7?tokens=false"):
                answer = await operator.get(path)
                assert answer.status_code == 200 and "the holder's" not in answer.text, path
                assert '"has_fencing_token":true' in answer.text
            asked = (await operator.get("/v1/logs/7?tokens=true")).json()
            assert asked["fencing_token"] == "the holder's"
        del drivers[LogId(7)]

    run(scenario, monkeypatch)


def test_logs_and_retention_are_told_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        drivers = cast(Any, world.service.host.drivers)
        drivers[LogId(9)] = idle = make_driver(world, LogId(9))
        drivers[LogId(7)] = busy = make_driver(world, LogId(7))
        busy.core = Log().driver.core
        assert busy.core.view is not None and busy.core.writer is not None
        busy.core.pipeline.admission.table.token = "the holder's \u00fc"
        cast(Any, busy).load = SimpleNamespace(rates=lambda _now_us: (0.001, 1234.5))
        retention = cast(Any, world.service)._retention
        retention._held[LogId(7)] = retention._unarchived[LogId(9)] = Epoch(3)
        app = FastAPI()
        world.service.add_admin_routes(app)
        told = {"log_id": "7", "core": repr(busy.core), **busy.statistics()}
        listed = [
            {"log_id": str(log_id), **driver.statistics()}
            for log_id, driver in ((LogId(7), busy), (LogId(9), idle))
        ]
        async with AsyncClient(transport=ASGITransport(app), base_url="http://admin") as operator:
            for path, expected in (
                ("/v1/logs", listed),
                ("/v1/logs/7", told),
                ("/v1/logs/7?tokens=true", {**told, "fencing_token": "the holder's \u00fc"}),
                ("/v1/logs/9", {"log_id": "9", "core": repr(idle.core), **idle.statistics()}),
            ):
                assert (await operator.get(path)).content == encode_value(expected), path
            answer = await operator.post("/v1/retention")
            assert answer.content == encode_value(retention.statistics())
        schemas = app.openapi()["components"]["schemas"]
        assert schemas["RunLogAnswer"]["required"] == list(listed[0])
        assert schemas["ShownLogAnswer"]["required"] == list(told)
        assert [*schemas["ShownLogAnswer"]["properties"]] == [*told, "fencing_token"]
        assert schemas["RetentionAnswer"]["required"] == list(retention.statistics())
        drivers.clear()

    run(scenario, monkeypatch)


def make_driver(world: World, log_id: LogId) -> LogDriver:
    lanes, unused = cast(Any, Lanes()), cast(Any, None)
    return LogDriver(log_id, cast(Any, world.service)._context, lanes, unused, unused)


def encode_value(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
