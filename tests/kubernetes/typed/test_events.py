"""Events by the official client, on a fake API server and a real one: the same cases on both.

So is what every typed call does with a refusal and with a token that ran out.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from duramen_operator.kube import Refused
from duramen_operator.plan.observed import Ref
from duramen_operator.plan.steps import Event
from duramen_operator.typed.events import make_event, report_event
from tests.kubernetes.typed.worlds import EVENTS, OpenWorld, World, connected

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
WHOLE_SECOND = MOMENT.replace(microsecond=0)
ABOUT = Ref("duramen.io/v1alpha1", "LogCluster", "main")


def make_step(at: datetime = MOMENT) -> Event:
    return Event(ABOUT, "uid-1", "Serving", "it serves", at, at)


@pytest.mark.parametrize("at", [MOMENT, WHOLE_SECOND], ids=["micro", "whole second"])
def test_an_event_arrives_with_all_that_it_tells(open_world: OpenWorld, at: datetime) -> None:
    async def report(world: World) -> None:
        async with connected(world) as (client, _):
            await report_event(client, make_step(at), world.namespace)

    with open_world(EVENTS) as world:
        asyncio.run(report(world))
        metadata = make_event(make_step(at), world.namespace).metadata
        assert metadata is not None
        assert metadata.name is not None
        found = world.find_event(metadata.name)
        assert found is not None
        assert found["eventTime"] == at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        assert found["reportingController"] == "duramen.io/duramen-operator"
        assert found["reportingInstance"] == "duramen-operator"
        told = (found["action"], found["reason"], found["note"], found["type"])
        assert told == ("Reconcile", "Serving", "it serves", "Normal")
        assert found["regarding"] == {
            "apiVersion": ABOUT.api_version,
            "kind": ABOUT.kind,
            "name": ABOUT.name,
            "namespace": world.namespace,
            "uid": "uid-1",
        }


def test_an_event_told_twice_is_a_conflict(open_world: OpenWorld) -> None:
    async def report(world: World) -> None:
        async with connected(world) as (client, _):
            await report_event(client, make_step(), world.namespace)
            with pytest.raises(Refused) as caught:
                await report_event(client, make_step(), world.namespace)
            assert caught.value.status == 409
            assert caught.value.problem.code == "AlreadyExists"
            assert caught.value.problem.is_retryable
            assert client.statistics() == {
                "calls": 2, "refused": 1, "unreachable": 0, "in_flight": 0,
            }  # fmt: skip

    with open_world(EVENTS) as world:
        asyncio.run(report(world))


def test_without_the_right_an_event_is_refused(open_world: OpenWorld) -> None:
    async def report(world: World) -> None:
        async with connected(world) as (client, _):
            with pytest.raises(Refused) as caught:
                await report_event(client, make_step(), world.namespace)
            assert caught.value.status == 403
            assert caught.value.problem.code == "Forbidden"
            assert not caught.value.problem.is_retryable

    with open_world([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]) as world:
        asyncio.run(report(world))


def test_a_token_that_ran_out_is_read_again(open_world: OpenWorld) -> None:
    async def report(world: World) -> None:
        async with connected(world) as (client, kube):
            spoilt = replace(kube.login, token="spoilt")
            kube.login = spoilt
            await report_event(client, make_step(), world.namespace)
            assert kube.login != spoilt
            world.write_token("spoilt")
            kube.login = spoilt
            with pytest.raises(Refused) as caught:
                await report_event(client, make_step(WHOLE_SECOND), world.namespace)
            assert caught.value.status == 401

    with open_world(EVENTS) as world:
        asyncio.run(report(world))


def test_an_event_told_twice_has_one_name() -> None:
    long = Event(ABOUT, "uid-1", "Serving", "it serves " * 200, MOMENT, MOMENT)
    one, two = make_event(long, "here"), make_event(long, "here")
    assert one == two
    assert len(one.note or "") == 1024
    other = make_event(Event(ABOUT, "uid-2", "Serving", "it serves " * 200, MOMENT, MOMENT), "here")
    assert one.metadata is not None
    assert other.metadata is not None
    assert other.metadata.name != one.metadata.name
