"""A log that its sequencer cannot carry is named where people look, and only while it is hot.

A host with a bookie that answers nothing: the log's window fills, and appends are refused.
Source: docs/protocol/ownership.md "Hot logs".
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from duramen.runtime.sequencer import log_driver
from duramen.runtime.sequencer.loads import WINDOW_US
from duramen.wire.sequencer_calls import AppendedBatch, AppendResult
from duramen_sequencer.ownership import hot_logs
from duramen_sequencer.ownership.hand_over import HandOver
from duramen_sequencer.ownership.hot_logs import HOT_LOG, HotLogs
from tests.component.host_world import HostWorld
from tests.component.ownership_world import FIRST, LOG, code_of, play
from tests.waiting import wait_for


def told() -> dict[tuple[str, str], float]:
    [metric] = HOT_LOG.collect()
    return {(s.labels["log"], s.labels["reason"]): s.value for s in metric.samples}


async def row_of(hand_over: HandOver) -> dict[str, Any]:
    [row] = (await hand_over.operations["owned"]({}))["logs"]
    return cast(dict[str, Any], row)


def test_a_full_window_makes_a_log_hot_until_it_has_room_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST)
        hand_over, hot = HandOver(host, cast(Any, None)), HotLogs(host)
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        hot.look(0.0)
        assert (await row_of(hand_over))["hot"] is None and told() == {}
        world.lanes[FIRST].is_silent = True
        driver = host.drivers[LOG]
        appends: list[asyncio.Future[AppendResult]] = []
        while not any(each.done() for each in appends):
            assert len(appends) < 10_000
            appends += [world.append(host, LOG) for _ in range(100)]
        refused = next(each for each in appends if each.done())
        assert code_of(refused.result()) == "window_full"
        await wait_for(lambda: sum(each.done() for each in appends) >= 50)
        hot.look(0.0)
        assert (await row_of(hand_over))["hot"] == "window"
        assert told() == {("ns/log", "window"): 1.0}
        later_us = log_driver.now_us() + 3 * WINDOW_US
        monkeypatch.setattr(hot_logs, "now_us", lambda: later_us)
        hot.look(0.0)
        assert (await row_of(hand_over))["hot"] is None and told() == {}
        driver.release()
        await hot.stop()

    play(scenario)


def test_a_log_that_keeps_its_sequencer_busy_is_hot() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST)
        hot = HotLogs(host)
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        hot.look(1.0)
        assert host.hot == {LOG: "cpu"} and told() == {("ns/log", "cpu"): 1.0}
        await hot.stop()
        assert host.hot == {} and told() == {}

    play(scenario)
