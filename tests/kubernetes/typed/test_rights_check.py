"""What is said of missing rights, when, and until when.

The server is the fake one; that it judges as the real one does is shown in test_reviews.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duramen_operator.serving import metrics
from duramen_operator.serving.rights_check import RightsCheck
from tests.kubernetes.cluster.accounts import Rules
from tests.kubernetes.typed.fake_api import Fault
from tests.kubernetes.typed.worlds import EVENTS, FakeWorld, connected, fake_world, list_rules
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(EVENTS, tmp_path) as found:
        yield found


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_in_thread, condition, HANG_S, "the next look")


def read_gauge() -> float | None:
    return metrics.registry.get_sample_value("duramen_operator_missing_rights")


def test_a_missing_right_is_said_once_and_its_grant_ends_the_check(
    world: FakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    lacking = [rule for rule in list_rules() if rule["apiGroups"] != ["policy"]]
    turns = iter([lacking, lacking, list_rules()])
    figures = []

    def find_rules() -> Rules:
        figures.append(read_gauge())
        return next(turns)

    async def run() -> None:
        async with connected(world) as (client, _):
            world.api.find_rules = find_rules
            await asyncio.wait_for(RightsCheck(client, "here", again_s=0.0).run(), HANG_S)

    caplog.set_level("INFO", "duramen_operator")
    asyncio.run(run())
    assert [*figures[1:], read_gauge()] == [6.0, 6.0, 0.0]
    assert [record.message for record in caplog.records] == [
        "the operator may not, in namespace here: get, list, watch, create, patch, delete "
        "poddisruptionbudgets.policy (drains of nodes wait). The chart's Role grants it",
        "the operator has every right in namespace here that it needs",
    ]


def test_a_check_that_may_not_ask_says_so_and_ends(
    world: FakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with connected(world) as (client, _):
            world.api.may_review = False
            await asyncio.wait_for(RightsCheck(client, "here").run(), HANG_S)

    caplog.set_level("INFO", "duramen_operator")
    asyncio.run(run())
    (record,) = caplog.records
    assert "could not be checked" in record.message
    assert "no reviews here" in record.message


@pytest.mark.parametrize(
    "fault",
    [Fault(201, "application/json", b"[]"), Fault(503, "text/plain", b"starting")],
    ids=["no answer", "starting"],
)
def test_a_check_outlives_an_api_server_that_is_away(
    world: FakeWorld, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with connected(world) as (client, _):
            world.api.fault = fault
            task = asyncio.create_task(RightsCheck(client, "here", again_s=0.01).run())
            async with asyncio.timeout(HANG_S):
                await until(lambda: client.statistics()["calls"] >= 3)
                world.api.rules = list_rules()
                world.api.fault = None
                await task

    caplog.set_level("INFO", "duramen_operator")
    asyncio.run(run())
    assert {record.levelname for record in caplog.records} == {"WARNING"}
