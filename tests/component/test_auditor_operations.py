"""What an auditor is asked: drains, disruption, rebalance; how others name it, over REST.

Source: docs/protocol/repair.md "Asking".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from duramen.core.duty import Duty
from duramen.core.segment import Segment, Totals
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LogId
from duramen.runtime.admin import add_problem_handler
from duramen.runtime.public.cluster_answers import PassedOn
from duramen.runtime.public.repair_answers import (
    AcceptedLossAnswer,
    AuditedBookiesAnswer,
    DisruptionAnswer,
    DisruptionsAnswer,
    DutyAnswer,
    EndedDisruptionAnswer,
    RebalanceAnswer,
    RebalancePlanAnswer,
    RenewedDisruptionAnswer,
    RepairAnswer,
    StandingAnswer,
    TakenDisruptionAnswer,
)
from duramen.runtime.sequencer.log_driver import now_us
from duramen.units import SECOND
from duramen.wire.metadata_json import encode_bookie, encode_node
from duramen_sequencer.repair.admin_routes import add_repair_routes
from duramen_sequencer.repair.auditor import AuditPace
from duramen_sequencer.repair.operations import RepairOperations
from tests.component.repair_world import PATHS, RepairWorld, Seat, repair_world
from tests.unit.repair_world import make_segment, members
from tests.waiting import wait_for

Act = Callable[[RepairWorld], Awaitable[None]]


def run(act: Act, names: str = "abcd") -> None:
    async def play() -> None:
        async with repair_world(names) as world:
            await act(world)

    asyncio.run(play())


async def wait_duty(world: RepairWorld, name: str, duty: Duty) -> None:
    async def has_it() -> bool:
        return (await world.node(name)).duty is duty

    await wait_for(has_it)


async def sit(world: RepairWorld, name: str = "s0") -> Seat:
    """An auditor that has read everything once."""
    seat = await world.seat(name, grace_s=1_000)
    await wait_for(lambda: seat.auditor.last_whole is not None)
    return seat


async def refused(work: Awaitable[Any]) -> DuramenError:
    with pytest.raises(DuramenError) as caught:
        await work
    return caught.value


# --- Drains ------------------------------------------------------------------------------------


def test_a_drain_moves_every_copy_and_ends_in_drained() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(
            make_segment([(0, "abc"), (5, "abd")], 9, proved=True),
            make_segment([(0, "abc"), (5, "bcd")], epoch=2, proved=True),
        )
        seat = await sit(world)
        answer = await seat.operations.drain("a")
        assert answer["duty"] == "draining"
        assert await seat.operations.drain("a") == answer, "asked twice is once"
        await world.publish("a")
        seat.auditor.want_round()
        await wait_for(lambda: _is_named_nowhere(world, "a"))
        await wait_duty(world, "a", Duty.LEAVING)
        await seat.wait_rounds(3)
        assert (await world.node("a")).duty is Duty.LEAVING, "it has not published it"
        (shown,) = (await seat.operations.show())["drains"]
        assert (shown["duty"], shown["fragments"]) == ("leaving", 0)
        assert "not published" in shown["waits_for"]
        await world.publish("a")
        seat.auditor.want_round()
        await wait_duty(world, "a", Duty.DRAINED)
        for epoch in (1, 2):
            world.assert_right(await world.segment(epoch=epoch))
        removal = await seat.operations.judge_disruption("a", "remove")
        assert removal["allowed"] and removal["metadata_age_ms"] >= 0

    run(act, "abcde")


def test_a_drain_waits_until_the_bookie_obeys_and_is_there() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        seat = await sit(world)
        await seat.operations.drain("d")
        await seat.wait_rounds(3)
        assert (await world.node("d")).duty is Duty.DRAINING, "nobody names it, and it did not obey"
        await world.publish("d")
        await seat.wait_rounds(2)
        assert (await world.node("d")).duty is Duty.LEAVING
        await world.lose("d")
        await seat.wait_rounds(3)
        assert (await world.node("d")).duty is Duty.LEAVING

    run(act, "abcde")


def test_a_segment_of_a_sequencer_with_an_old_view_sends_the_bookie_back() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, log_id=1, proved=True))
        seat = await sit(world)
        await seat.operations.drain("d")
        await world.publish("d")
        await wait_duty_by_rounds(world, seat, "d", Duty.LEAVING)
        await world.add(make_segment([(0, "bcd")], 9, log_id=2, proved=True))
        await world.publish("d")
        await seat.wait_rounds(1)
        await wait_duty(world, "d", Duty.DRAINING)
        assert not (await seat.operations.judge_disruption("d", "remove"))["allowed"]
        await world.publish("d")
        await wait_for(lambda: _is_named_nowhere(world, "d", (1, 2)))
        await wait_duty_by_rounds(world, seat, "d", Duty.LEAVING)
        await world.publish("d")
        await wait_duty_by_rounds(world, seat, "d", Duty.DRAINED)

    run(act, "abcde")


def test_a_drain_does_not_end_beside_a_recovery_which_may_have_acks_of_the_bookie() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")]).marked("recovered by another"))
        seat = await sit(world)
        await seat.operations.drain("d")
        await world.publish("d")
        await wait_duty_by_rounds(world, seat, "d", Duty.LEAVING)
        await world.publish("d")
        await seat.wait_rounds(3)
        assert (await world.node("d")).duty is Duty.LEAVING
        (shown,) = (await seat.operations.show())["drains"]
        assert "1 recoveries" in shown["waits_for"]
        await world.change((await world.segment()).closed(
            last_entry=EntryId(4), totals=Totals(5, 5), start_seq_num=0, completed_unix_ms=1,
            nonce="closed",
        ))  # fmt: skip
        await wait_duty_by_rounds(world, seat, "d", Duty.DRAINED)

    run(act, "abcde")


async def wait_duty_by_rounds(world: RepairWorld, seat: Seat, name: str, duty: Duty) -> None:
    for _ in range(10):
        if (await world.node(name)).duty is duty:
            return
        await seat.wait_rounds()
    raise AssertionError(f"{name} is {(await world.node(name)).duty}")


def test_a_round_that_could_not_read_everything_ends_no_drain() -> None:
    async def act(world: RepairWorld) -> None:
        log = await world.add(make_segment([(0, "abc")], 9, proved=True))
        seat = await sit(world)
        segment = await world.segment()
        await world.remove(PATHS.segment(log.log_id, segment.epoch))
        await seat.operations.drain("d")
        await world.publish("d")
        await seat.wait_rounds(4)
        assert seat.auditor.last is not None and not seat.auditor.last.is_whole
        assert (await world.node("d")).duty is Duty.DRAINING
        answer = await seat.operations.judge_disruption("d", "remove")
        assert [reason["code"] for reason in answer["reasons"]] == ["not_drained", "unread"]

    run(act, "abcde")


def test_the_owner_is_asked_to_roll_off_a_bookie_that_drains() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")]))
        seat = await sit(world)
        await seat.operations.drain("a")
        await world.publish("a")
        await seat.wait_rounds(1)
        await wait_for(lambda: bool(world.rolls))
        assert await world.ensembles() == ["abc"]

    run(act)


def test_so_many_drains_as_the_others_can_hold() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        seat = await sit(world)
        await seat.operations.drain("a")
        error = await refused(seat.operations.drain("b"))
        assert error.code == "placement_impossible" and "ensemble_size 3" in error.detail
        assert "without b 2 bookies in 2 racks may take" in error.detail
        assert "(logs ns/log5): add bookies" in error.detail
        assert (await world.node("b")).duty is Duty.SERVING
        assert (await refused(seat.operations.drain("z"))).field == "bookie"

    run(act)


GRACE_S = 0.05


@pytest.mark.parametrize("is_open", [False, True])
def test_what_keeps_copies_on_a_bookie_that_drains_is_told_with_its_logs(*, is_open: bool) -> None:
    async def act(world: RepairWorld) -> None:
        ends = () if is_open else (9,)
        await world.add(make_segment([(0, "abc")], *ends, proved=not is_open))
        await world.add(make_segment([(0, "bcd")], 9, log_id=6, proved=True))
        seat = await world.seat(grace_s=GRACE_S)
        await seat.wait_rounds(1)
        await seat.operations.drain("a")
        await world.lose("d")
        await world.publish("a")
        await see_stuck(seat, is_stuck=True)
        why = (
            "2 bookies in 2 racks may take new data, and new segments need ensemble_size 3 with "
            "min_racks 2 and min_regions 1"
            if is_open
            else "no bookie can take the copy: 2 take new data, and min_racks 2, min_regions 1 "
            "must hold for every write set"
        )
        stuck = {
            "fragments": 1, "kind": "place", "reason": why, "logs": ["ns/log5"], "logs_count": 1,
        }  # fmt: skip
        for _ in range(3):
            await seat.wait_rounds(1)
            assert await read_stuck(seat) == {"a": stuck}, "it says the same in each round"
        (drain,) = (await seat.operations.show())["drains"]
        wanted = f"1 fragments name it, and 1 fragment of ns/log5 cannot leave it: {why}"
        assert drain["waits_for"] == wanted
        world.bookies["d"].is_silent = False
        await world.publish("d")
        await see_stuck(seat, is_stuck=False)
        if not is_open:
            await world.wait_ensembles("dbc")

    run(act)


def test_logs_that_keep_nothing_on_a_bookie_do_not_hold_up_its_drain() -> None:
    """As an open segment elsewhere, whose next one has no place."""

    async def act(world: RepairWorld) -> None:
        wide = {"ensemble_size": 4, "write_quorum": 3, "ack_quorum": 2}
        await world.add(make_segment([(0, "bcde")], log_id=5), replication=wide)
        await world.add(make_segment([(0, "abc")], 9, log_id=6, proved=True))
        seat = await world.seat(grace_s=GRACE_S)
        await seat.wait_rounds(1)
        await seat.operations.drain("a")
        await world.lose("e")
        ends_us = now_us() + int(4 * GRACE_S * SECOND)
        while now_us() < ends_us:
            await seat.wait_rounds(1)
            assert await read_stuck(seat) == {}
        await world.publish("a")
        await wait_duty_after_rounds(world, seat, "a", Duty.LEAVING)

    run(act, "abcde")


def test_what_was_stuck_goes_on_once_another_drain_was_cancelled() -> None:
    """The word of that bookie comes after the round that saw the cancellation."""

    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        seat = await world.seat(grace_s=GRACE_S)
        await seat.wait_rounds(1)
        await seat.operations.drain("d")
        await world.publish("d")
        await change_node(world, "a", duty=Duty.DRAINING)  # as one that was there before
        await world.publish("a")
        await see_stuck(seat, is_stuck=True)
        await seat.operations.cancel_drain("d")
        await seat.wait_rounds(1)
        await see_stuck(seat, is_stuck=True)
        await world.publish("d")
        await see_stuck(seat, is_stuck=False)
        await world.wait_ensembles("dbc")

    run(act)


def test_a_segment_rolls_off_a_bookie_by_what_its_log_asks_now() -> None:
    """It has three members, of which the log wants two by now, and two are left."""

    async def act(world: RepairWorld) -> None:
        narrow = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2}
        await world.add(make_segment([(0, "abc")]), replication=narrow)
        seat = await world.seat(grace_s=GRACE_S)
        await seat.wait_rounds(1)
        await seat.operations.drain("a")
        await world.publish("a")
        await seat.wait_rounds(1)
        await wait_for(lambda: bool(world.rolls))

    run(act, "abc")


PREFER: dict[str, Any] = {"placement": "prefer", "min_racks": 2}


@pytest.mark.parametrize("case", ["fewer copies", "the same rack"])
def test_no_roll_is_asked_for_that_makes_nothing_better(case: str) -> None:
    """A log that prefers to go on takes what there is, and would roll again for it."""

    async def act(world: RepairWorld) -> None:
        if case == "the same rack":
            for name in "abcd":
                await world.move(name, "k")
        await world.add(make_segment([(0, "abc")]), replication=PREFER)
        seat = await world.seat(grace_s=GRACE_S)
        await seat.wait_rounds(1)
        if case == "fewer copies":
            await world.lose("c")
            await world.lose("d")

        async def is_put_off() -> bool:
            await seat.wait_rounds(1)
            return bool(seat.auditor.backlog.statistics()["postponed"])

        await wait_for(is_put_off)
        problem = "lost" if case == "fewer copies" else "misplaced"
        assert seat.auditor.backlog.statistics()["by_problem"] == {problem: 1}
        assert world.rolls == []

    run(act)


async def wait_duty_after_rounds(world: RepairWorld, seat: Seat, name: str, duty: Duty) -> None:
    async def has_it() -> bool:
        await seat.wait_rounds(1)
        return (await world.node(name)).duty is duty

    await wait_for(has_it)


async def read_stuck(seat: Seat) -> dict[str, Any]:
    rows = (await seat.operations.list_bookies())["bookies"]
    return {row["bookie"]: row["stuck"] for row in rows if row["stuck"] is not None}


async def see_stuck(seat: Seat, *, is_stuck: bool) -> None:
    async def is_so() -> bool:
        await seat.wait_rounds(1)
        return bool(await read_stuck(seat)) == is_stuck

    await wait_for(is_so)


@pytest.mark.parametrize("duty", [Duty.DRAINING, Duty.LEAVING, Duty.DRAINED])
def test_a_drain_can_be_cancelled_in_any_state_and_keeps_what_it_does_not_know(duty: Duty) -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        path = PATHS.bookie("d")
        found = await world.setup.get(path)
        assert found is not None
        node = replace(await world.node("d"), duty=duty, extra={"colour": "blue"})
        await world.setup.set(path, encode_bookie(node), version=found.version)
        seat = await sit(world)
        assert (await seat.operations.cancel_drain("d"))["duty"] == "serving"
        now = await world.node("d")
        assert now.duty is Duty.SERVING and now.extra == {"colour": "blue"}

    run(act)


async def _is_named_nowhere(world: RepairWorld, name: str, logs: tuple[int, ...] = (5,)) -> bool:
    for log_id in logs:
        for epoch in (1, 2):
            if await world.setup.get(PATHS.segment(LogId(log_id), Epoch(epoch))) is None:
                continue
            if any(name in ensemble for ensemble in await world.ensembles(log_id, epoch)):
                return False
    return True


# --- Disruption --------------------------------------------------------------------------------


def test_disruption_is_judged_on_what_stands_there_now() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        seat = await sit(world)
        ask = seat.operations.judge_disruption
        assert (await ask("a", "restart"))["allowed"]
        assert not (await ask("a", "remove"))["allowed"]
        await world.lose("b")  # no round has seen it
        answer = await ask("a", "restart")
        assert (answer["allowed"], answer["logs_at_risk"]) == (False, ["ns/log5"])
        assert [reason["code"] for reason in answer["reasons"]] == ["too_few_copies"]
        assert (await refused(ask("z", "restart"))).field == "bookie"
        assert (await refused(ask("a", "explode"))).field == "kind"

    run(act, "abcde")


def test_owed_copies_deny_a_restart() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc")], 9, proved=True)
        await world.add(segment)
        seat = await sit(world)
        world.bookies["b"].is_silent = True  # so that nobody mends it meanwhile
        await world.owe(segment, "b", 3, 4)
        assert not (await seat.operations.judge_disruption("a", "restart"))["allowed"]
        assert (await seat.operations.judge_disruption("b", "restart"))["allowed"]

    run(act)


# --- Rebalance ---------------------------------------------------------------------------------


def many(count: int) -> list[Segment]:
    return [make_segment([(0, "abc")], 9, log_id=i + 1, proved=True) for i in range(count)]


async def count_copies(world: RepairWorld, count: int) -> dict[str, int]:
    copies = dict.fromkeys(world.bookies, 0)
    for log_id in range(1, count + 1):
        for name in (await world.ensembles(log_id))[0]:
            copies[name] += 1
    return copies


def test_a_new_bookie_gets_its_share_and_the_rebalance_ends() -> None:
    async def act(world: RepairWorld) -> None:
        for segment in many(20):
            await world.add(segment)
        seat = await sit(world)
        dry = await seat.operations.start_rebalance({"dry_run": True})
        assert dry["moves"] and not (await seat.operations.show_rebalance())["running"]
        assert (await count_copies(world, 20))["d"] == 0
        assert (await seat.operations.start_rebalance({}))["running"]

        async def is_over() -> bool:
            seat.auditor.want_round()
            return not (await seat.operations.show_rebalance())["running"]

        await wait_for(is_over)
        copies = await count_copies(world, 20)
        assert all(12 <= n <= 17 for n in copies.values()), copies
        for log_id in range(1, 21):
            world.assert_right(await world.segment(log_id))

    run(act)


def test_a_rebalance_goes_on_with_the_next_auditor_and_stops_when_told() -> None:
    async def act(world: RepairWorld) -> None:
        for segment in many(20):
            await world.add(segment)
        first = await sit(world)
        world.bookies["d"].forgets = True  # nothing comes of it yet
        await first.operations.start_rebalance({"tolerance": 0.2})
        await first.stop()
        world.bookies["d"].forgets = False
        second = await sit(world, "s1")
        shown = await second.operations.show_rebalance()
        assert shown["running"] and shown["request"]["tolerance"] == 0.2

        async def has_some() -> bool:
            second.auditor.want_round()
            return (await count_copies(world, 20))["d"] > 0

        await wait_for(has_some)
        assert not (await second.operations.stop_rebalance())["running"]
        for bad in ({"tolerance": 7}, {"tolerance": True}, {"dry_run": "yes"}):
            assert (await refused(second.operations.start_rebalance(bad))).field in bad

    run(act)


# --- Asking ------------------------------------------------------------------------------------


def make_client(operations: RepairOperations) -> httpx.AsyncClient:
    app = FastAPI()
    add_problem_handler(app)
    add_repair_routes(app, operations)
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://admin")


def test_every_route_answers_at_the_auditor() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        seat = await sit(world)
        async with make_client(seat.operations) as client:
            shown = (await client.get("/v1/repair")).json()
            assert shown["auditor"] == "s0" and shown["last_round"]["whole"]
            bookies = (await client.get("/v1/repair/bookies")).json()["bookies"]
            assert [(b["bookie"], b["copies"], b["bytes"]) for b in bookies] == [
                ("a", 1, 1000), ("b", 1, 1000), ("c", 1, 1000), ("d", 0, 0)
            ]  # fmt: skip
            asked = await client.get("/v1/bookies/d/disruption", params={"kind": "remove"})
            assert [r["code"] for r in asked.json()["reasons"]] == ["not_drained"]
            drained = await client.post("/v1/bookies/d/drain")
            assert (drained.status_code, drained.json()["duty"]) == (200, "draining")
            assert (await client.post("/v1/bookies/c/drain")).status_code == 422
            cancelled = await client.post("/v1/bookies/d/cancel-drain")
            assert cancelled.json()["duty"] == "serving"
            begun = await client.post("/v1/rebalance", json={"dry_run": True})
            assert begun.json()["dry_run"] is True
            assert (await client.get("/v1/rebalance")).json()["running"] is False
            assert (await client.delete("/v1/rebalance")).json()["running"] is False
            bad = await client.post("/v1/rebalance", json={"dry": True})
            assert (bad.status_code, bad.json()["code"]) == (400, "unknown_field")

    run(act)


QUESTION = {
    "token": "0" * 32, "target": "zookeeper/z", "kind": "restart", "holder": "op", "voters": 3,
    "others_serving": 2,
}  # fmt: skip


class NotedOperations:
    """The operations, and what they gave last."""

    def __init__(self, operations: RepairOperations) -> None:
        self._operations = operations
        self.given: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def run(*arguments: Any) -> dict[str, Any]:
            self.given = await getattr(self._operations, name)(*arguments)
            return self.given

        return run


def list_undescribed(answer: Any) -> list[str]:
    """Members of a real answer that its model does not have."""
    if isinstance(answer, list):
        return [name for part in answer for name in list_undescribed(part)]
    if not isinstance(answer, BaseModel):
        return []
    parts = [list_undescribed(getattr(answer, name)) for name in type(answer).model_fields]
    return sum(parts, list(answer.model_extra or ()))


def test_answers_are_those_of_the_operations_byte_for_byte_and_are_described() -> None:
    async def act(world: RepairWorld) -> None:
        segment = make_segment([(0, "abc")], 9, proved=True)
        await world.add(segment)
        for log_id in range(6, 12):
            await world.add(make_segment([(0, "bcd")], 9, log_id=log_id, proved=True))
        for name in "bc":
            del world.bookies[name].entries[segment.ledger_id][EntryId(4)]
        await lose_for_ever(world, "a")
        await change_node(world, "e", weight=0.00001)
        seat = await sit(world)
        await wait_for(lambda: bool(seat.auditor.backlog.list_unrepairable()))
        await seat.operations.drain("f")
        await seat.wait_rounds(1)
        noted = NotedOperations(seat.operations)
        gone = {"incarnation": world.bookies["a"].member.incarnation}
        calls: list[tuple[str, str, Any, type[PassedOn]]] = [
            ("GET", "repair", None, RepairAnswer),
            ("POST", "rebalance", {"dry_run": True}, RebalancePlanAnswer),
            ("POST", "bookies/f/drain", None, DutyAnswer),
            ("GET", "repair/bookies", None, AuditedBookiesAnswer),
            ("GET", "bookies/a/disruption?kind=remove", None, DisruptionAnswer),
            ("POST", "disruptions", QUESTION, TakenDisruptionAnswer),
            ("GET", "disruptions", None, DisruptionsAnswer),
            ("GET", "disruptions/standing", None, StandingAnswer),
            ("POST", "disruptions/none/renew", None, RenewedDisruptionAnswer),
            ("DELETE", "disruptions/none", None, EndedDisruptionAnswer),
            ("POST", "bookies/f/cancel-drain", None, DutyAnswer),
            ("POST", "bookies/a/accept-loss", gone, AcceptedLossAnswer),
            ("GET", "rebalance", None, RebalanceAnswer),
            ("POST", "rebalance", {"tolerance": 0.2}, RebalanceAnswer),
            ("DELETE", "rebalance", None, RebalanceAnswer),
        ]
        told: set[str] = set()
        async with make_client(cast(RepairOperations, noted)) as client:
            for method, path, body, model in calls:
                answer = await client.request(method, f"/v1/{path}", json=body)
                assert answer.status_code == 200, answer.text
                assert answer.content == encode_value(noted.given), path
                assert list_undescribed(model.model_validate(noted.given)) == [], path
                told |= {name for name, part in noted.given.items() if part}
        wanted = {"unrepairable", "drains", "moves", "bookies", "reasons", "request", "grants"}
        assert wanted <= told

    run(act, "abcdefg")


async def lose_for_ever(world: RepairWorld, name: str) -> None:
    lost = world.bookies[name].member
    node = {"bookie": name, "region": "r", "rack": f"k-{name}", "replaced_by": "x", "nonce": "n"}
    await world.setup.create(PATHS.lost(lost.incarnation), encode_node(node), make_parents=True)
    await world.lose(name)


async def change_node(world: RepairWorld, name: str, **fields: Any) -> None:
    found = await world.setup.get(PATHS.bookie(name))
    assert found is not None
    data = encode_bookie(replace(await world.node(name), **fields))
    await world.setup.set(PATHS.bookie(name), data, version=found.version)


def encode_value(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def test_another_sequencer_redirects_and_names_the_auditor() -> None:
    async def act(world: RepairWorld) -> None:
        await sit(world)
        other = await world.seat("s1")
        await wait_for(lambda: bool(other.election.holder))
        async with make_client(other.operations) as client:
            asked = await client.get("/v1/bookies/a/disruption", params={"kind": "restart"})
            assert asked.status_code == 307
            where = "http://s0:1/v1/bookies/a/disruption?kind=restart"
            assert asked.headers["location"] == where
        answer = await other.operations.by_name["repair"]({})
        assert answer == {"auditor": {"sequencer": "s0", "admin_url": "http://s0:1"}}

    run(act)


def test_without_an_auditor_the_answer_is_to_try_again() -> None:
    async def act(world: RepairWorld) -> None:
        seat = Seat(world, "s9", AuditPace())
        async with make_client(seat.operations) as client:
            asked = await client.get("/v1/repair")
            assert (asked.status_code, asked.json()["retryable"]) == (503, True)

    run(act)


def test_two_members_of_a_fragment_are_moved_one_after_the_other() -> None:
    async def act(world: RepairWorld) -> None:
        await world.add(make_segment([(0, "abc")], 9, proved=True))
        seat = await sit(world)
        for name in "ab":
            await seat.operations.drain(name)
            await world.publish(name)
        seat.auditor.want_round()
        await wait_for(lambda: _are_new(world))
        world.assert_right(await world.segment())

    async def _are_new(world: RepairWorld) -> bool:
        segment = await world.segment()
        return set(segment.last_fragment.ensemble) <= set(members("cdef"))

    run(act, "cdefab")


def test_a_bookie_in_doubt_is_listed_as_such() -> None:
    async def act(world: RepairWorld) -> None:
        await world.publish("b", doubtful=True)
        seat = await sit(world)
        rows = (await seat.operations.list_bookies())["bookies"]
        assert {row["bookie"]: row["doubtful"] for row in rows} == {
            "a": False, "b": True, "c": False, "d": False,
        }  # fmt: skip

    run(act)
