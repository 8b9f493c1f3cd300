"""The operator's Lease by the official client, on a fake API server and a real one.

The store of tests/kubernetes/leading judges as these two do: who was first, and what is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from duramen_operator.kube import Refused
from duramen_operator.leading.hand import LEASE_S
from duramen_operator.leading.keeper import LeaseCalls
from duramen_operator.typed.leases import OperatorLease
from tests.kubernetes.cluster.accounts import Rules
from tests.kubernetes.leading.lease_world import LeaseStore, Wire
from tests.kubernetes.typed.worlds import OpenWorld, connected

VERBS: Final = ["get", "create", "update", "delete"]
LEASES: Final[Rules] = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": VERBS}
]

Case = Callable[[LeaseCalls], Awaitable[None]]


async def make_and_renew(lease: LeaseCalls) -> None:
    assert await lease.read() is None
    made = await lease.create("one_1")
    assert (made.holder, made.duration_s, made.transition_count) == ("one_1", LEASE_S, 0)
    renewed = await lease.take(made, "one_1")
    assert renewed.uid == made.uid
    assert renewed.resource_version != made.resource_version
    assert renewed.renewed != made.renewed
    assert await lease.read() == renewed


async def be_second(lease: LeaseCalls) -> None:
    made = await lease.create("one_1")
    with pytest.raises(Refused) as caught:
        await lease.create("two_2")
    assert caught.value.status == 409
    taken = await lease.take(made, "two_2")
    assert taken.holder == "two_2"
    for call in (lease.take(made, "one_1"), lease.delete(made)):
        with pytest.raises(Refused) as caught:
            await call
        assert caught.value.status == 409
    assert await lease.read() == taken


async def come_too_late(lease: LeaseCalls) -> None:
    made = await lease.create("one_1")
    await lease.delete(made)
    assert await lease.read() is None
    for call in (lease.take(made, "one_1"), lease.delete(made)):
        with pytest.raises(Refused) as caught:
            await call
        assert caught.value.status in (404, 409)
    again = await lease.create("two_2")
    with pytest.raises(Refused) as caught:
        await lease.take(made, "one_1")
    assert caught.value.status == 409
    assert await lease.read() == again


CASES: Final[tuple[Case, ...]] = (make_and_renew, be_second, come_too_late)


@pytest.mark.parametrize("case", CASES)
def test_of_two_writers_one_is_refused(open_world: OpenWorld, case: Case) -> None:
    async def play() -> None:
        async with connected(world) as (client, _):
            await case(OperatorLease(client, world.namespace))

    with open_world(LEASES) as world:
        asyncio.run(play())


@pytest.mark.parametrize("case", CASES)
def test_the_store_of_the_keepers_judges_so_too(case: Case) -> None:
    asyncio.run(_play_on_the_store(case))


async def _play_on_the_store(case: Case) -> None:
    await case(Wire(LeaseStore()))


def test_who_may_not_is_told_so(open_world: OpenWorld) -> None:
    async def play() -> None:
        async with connected(world) as (client, _):
            with pytest.raises(Refused) as caught:
                await OperatorLease(client, world.namespace).create("one_1")
            assert caught.value.status == 403

    with open_world([{**LEASES[0], "verbs": ["get"]}]) as world:
        asyncio.run(play())
