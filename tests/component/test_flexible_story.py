"""Why a flexible log's owner rolls for another nodeset, as its story tells it.

A real host, driver and core on lanes that store at once; which nodeset is chosen is in the unit
tests. Source: docs/protocol/ownership.md "Story", docs/protocol/flexible.md "Choosing the nodeset".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

from duramen.config import LogConfig, parse_log_config
from duramen.core.flexible.nodeset import ServingBookie
from duramen.ids import BookieId, Incarnation, LogId, Member
from duramen.runtime.http_client import PeerClient
from duramen.wire.metadata_json import encode_log, read_log
from duramen.wire.sequencer_calls import AppendedBatch
from duramen_sequencer.log_changes import AUDITOR, LogChanges
from duramen_sequencer.log_host import LogHost
from tests.component.host_world import PATHS, HostWorld, host_world
from tests.waiting import wait_for

LOG = LogId(7)


def make_config(**fields: Any) -> LogConfig:
    small: dict[str, Any] = {
        "copysets": "flexible", "replication": {"node": 1, "rack": 1}, "nodeset": {"tolerate": 0},
    }  # fmt: skip
    return parse_log_config({**small, **fields})


def bookie(index: int) -> ServingBookie:
    return ServingBookie(BookieId(f"b{index}"), "r", "k", Incarnation(f"{index:032x}"))


def serve(world: HostWorld, *bookies: ServingBookie) -> None:
    """These are the bookies that there are, from now on."""
    context = world.contexts["s0"]
    context.serving = list(bookies)
    context.roster = {Member(one.bookie, one.incarnation): True for one in bookies}
    world.hosts["s0"].on_bookies_changed()


async def reconfigure(world: HostWorld, config: LogConfig) -> None:
    """Store the configuration, and tell the owner."""
    path = PATHS.log(LOG)
    stored = await world.setup.get(path)
    assert stored is not None
    log = read_log(stored.data)
    log = replace(log, config=config, config_version=log.config_version + 1)
    await world.setup.set(path, encode_log(log), version=stored.version)
    world.hosts["s0"].drivers[LOG].on_config(config, log.config_version)


def tell(host: LogHost, event: str) -> list[str]:
    return [told.get("reason", "") for told in host.stories.report(LOG) if told["event"] == event]


def run(scenario: Callable[[HostWorld], Awaitable[None]]) -> None:
    async def play() -> None:
        async with host_world() as world:
            await scenario(world)

    asyncio.run(play())


def test_a_roll_that_somebody_asked_for_says_who() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host("s0")
        serve(world, bookie(0))
        await world.add_log(LOG, config=make_config())
        changes = LogChanges(world.setup, PATHS, host, cast(PeerClient, None))
        for count, (by, said) in enumerate(
            (({"by": AUDITOR}, "asked for by the auditor"), ({}, "asked for by somebody"))
        ):
            assert isinstance(await world.append(host, LOG), AppendedBatch)
            assert (await changes.roll({"log_id": str(LOG), **by}))["epoch"] is not None
            assert len(tell(host, "rolls")) == count + 1
            assert tell(host, "rolls")[-1].partition(":")[0] == said

    run(scenario)


def test_a_roll_for_another_nodeset_says_what_is_another() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host("s0")
        serve(world, bookie(0))
        await world.add_log(LOG, config=make_config())
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        assert tell(host, "rolls") == []

        serve(world, bookie(0), bookie(1))
        await wait_for(lambda: len(tell(host, "rolls")) == 1)
        assert tell(host, "rolls")[-1] == "2 nodes instead of 1; b1 joins the nodeset"
        assert isinstance(await world.append(host, LOG), AppendedBatch)

        serve(world, bookie(0), replace(bookie(1), weight=2.0))
        await wait_for(lambda: len(tell(host, "rolls")) == 2)
        assert tell(host, "rolls")[-1] == "b1 has weight 2 and had 1"
        assert isinstance(await world.append(host, LOG), AppendedBatch)

        await reconfigure(world, make_config(replication={"node": 1, "rack": 1, "extras": 1}))
        await wait_for(lambda: len(tell(host, "rolls")) == 3)
        assert tell(host, "rolls")[-1].startswith("replication node 1, rack 1, region 1, extras 0")
        assert isinstance(await world.append(host, LOG), AppendedBatch)

        striped = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1, "min_racks": 1}
        await reconfigure(world, parse_log_config({"replication": striped}))
        await wait_for(lambda: len(tell(host, "rolls")) == 4)
        assert tell(host, "rolls")[-1] == "copysets are striped now"
        assert isinstance(await world.append(host, LOG), AppendedBatch)

        driver = host.drivers[LOG]
        driver.core.request_roll()
        driver.flush()
        await wait_for(lambda: len(tell(host, "closes")) == 5)
        assert len(tell(host, "rolls")) == 4, "nothing is another"

    run(scenario)
