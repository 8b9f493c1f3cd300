"""An auditor is asked whether something may be stopped, and grants it; two of them, races, deaths.

Source: docs/protocol/disruption.md.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from duramen.core.duty import Duty
from duramen.core.segment import Segment, Totals
from duramen.errors import DuramenError
from duramen.ids import BookieId, EntryId
from duramen.runtime.stores.metadata_store import OutcomeUnknown, Rejected
from duramen.wire.metadata_json import encode_bookie, encode_node
from duramen.wire.nodes.disruptions import read_disruptions
from duramen_sequencer.repair import auditor
from duramen_sequencer.repair.disruption import book, granting
from tests.component.repair_world import PATHS, RepairWorld, Seat, repair_world
from tests.unit.repair_world import make_segment, member
from tests.waiting import wait_for

Act = Callable[[RepairWorld, Seat], Awaitable[None]]


def run(act: Act, names: str = "abcd", *segments: Segment) -> None:
    async def play() -> None:
        async with repair_world(names) as world:
            for segment in segments or [make_segment([(0, "abc")], 9, proved=True)]:
                await world.add(segment)
            seat = await world.seat("s0", grace_s=1_000)
            await wait_for(lambda: seat.auditor.last_whole is not None)
            await act(world, seat)

    asyncio.run(play())


def ask(target: str, **fields: Any) -> dict[str, Any]:
    """A question with a token of its own."""
    drawn = {"token": secrets.token_hex(16), "target": target, "kind": "restart", "holder": "op"}
    return {**drawn, **fields}


async def take(seat: Seat, target: str, **fields: Any) -> dict[str, Any]:
    return await seat.operations.take_disruption(ask(target, **fields))


async def end_all(seat: Seat) -> None:
    for grant in (await seat.operations.list_disruptions())["grants"]:
        await seat.operations.end_disruption(grant["token"])


def codes(answer: dict[str, Any]) -> list[str]:
    assert answer["allowed"] is (answer["grant"] is not None)
    assert all(reason["detail"] for reason in answer["reasons"]), "each says why"
    return [reason["code"] for reason in answer["reasons"]]


async def refused(work: Awaitable[Any]) -> DuramenError:
    with pytest.raises(DuramenError) as caught:
        await work
    return caught.value


# --- One at a time -------------------------------------------------------------------------------


def test_one_at_a_time_until_its_holder_ends_it() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        first = await take(seat, "bookie/a")
        assert codes(first) == [] and first["grant"]["target"] == "bookie/a"
        for target in ("bookie/b", "sequencer/s0"):
            denied = await take(seat, target, holder="another")
            assert codes(denied) == ["granted"]
            (reason,) = denied["reasons"]
            assert "op may restart bookie/a now" in reason["detail"]
            assert first["grant"]["token"] in reason["detail"], "the way out"
        advice = await seat.operations.judge_disruption("b", "restart")
        assert [reason["code"] for reason in advice["reasons"]] == ["granted"]
        (shown,) = (await seat.operations.list_disruptions())["grants"]
        assert shown["token"] == first["grant"]["token"]
        assert 300_000 < shown["over_in_ms"] <= 305_000, "longer than its holder counts"
        assert (await seat.operations.end_disruption(shown["token"]))["ended"]
        assert not (await seat.operations.end_disruption(shown["token"]))["ended"], "twice is once"
        assert codes(await take(seat, "bookie/b", holder="another")) == []

    run(act)


def test_asked_again_with_its_token_it_is_the_same_grant_and_only_then() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        question = ask("bookie/a")
        first = (await seat.operations.take_disruption(question))["grant"]
        again = (await seat.operations.take_disruption({**question, "life_ms": 400_000}))["grant"]
        assert (again["token"], again["life_ms"]) == (first["token"], 400_000)
        again = (await seat.operations.take_disruption({**question, "life_ms": 20_000}))["grant"]
        assert again["life_ms"] == 400_000, "never shorter than its holder may count"
        assert codes(await take(seat, "bookie/a")) == ["granted"], "the same words in another hand"
        other = {**question, "target": "bookie/b"}
        assert (await refused(seat.operations.take_disruption(other))).field == "token"
        await world.lose("b")
        denied = await seat.operations.take_disruption(question)
        assert codes(denied) == ["placement", "too_few_copies"], "judged anew"
        (kept,) = (await seat.operations.list_disruptions())["grants"]
        assert kept["token"] == first["token"], "its holder may be in the middle of it"

    run(act)


def test_the_bookies_of_a_rack_stop_together_as_far_as_copies_allow() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        for name in "ab":
            await world.move(name, "k-shared")
        assert codes(await take(seat, "rack/r/k-shared")) == ["no_spare"], "Qa copies are not left"
        await world.move("b", "k-b")
        await world.move("d", "k-shared")
        assert codes(await take(seat, "rack/r/k-shared")) == []
        assert codes(await take(seat, "bookie/a")) == ["granted"]
        await end_all(seat)
        assert (await refused(take(seat, "rack/r/k-9"))).field == "target"

    run(act)


def test_of_two_auditors_who_judge_at_once_one_judges_again() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        other = await world.seat("s1", grace_s=1_000)
        other.auditor.is_leader = True  # it has not noticed yet that it leads no more
        both = await asyncio.gather(
            take(seat, "bookie/a"), take(other, "bookie/b", holder="another")
        )
        assert sorted(map(codes, both)) == [[], ["granted"]]
        assert len((await seat.operations.list_disruptions())["grants"]) == 1
        other.auditor.is_leader = False

    run(act)


def test_a_grant_whose_fate_was_unknown_is_found() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        before = (await take(seat, "bookie/d"))["grant"]["token"]
        await seat.operations.end_disruption(before)
        is_lost = [True]

        def lose_answer() -> None:
            if is_lost:
                is_lost.clear()
                raise OutcomeUnknown("the connection went")

        seat.store.after_write = lose_answer
        answer = await take(seat, "bookie/a")
        assert codes(answer) == [] and not is_lost
        assert [g["token"] for g in (await seat.operations.list_disruptions())["grants"]] == [
            answer["grant"]["token"]
        ]

    run(act)


# --- Time ----------------------------------------------------------------------------------------


def set_clock(seat: Seat, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clock by which the auditor counts, to be moved by hand."""
    clock_us = [1_000_000]
    monkeypatch.setattr(seat.auditor.grant_book, "_clock_us", lambda: clock_us[0])
    return clock_us


def test_a_dead_holders_grant_is_over_and_goes_with_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        clock_us = set_clock(seat, monkeypatch)
        grant = (await take(seat, "bookie/a", life_ms=10_000))["grant"]
        clock_us[0] += 14_999_000
        assert codes(await take(seat, "bookie/b", holder="x")) == ["granted"]
        clock_us[0] += 1_000
        assert (await seat.operations.renew_disruption(grant["token"]))["grant"] is None
        await seat.auditor.grant_book.sweep()
        found = await world.setup.get(PATHS.disruptions)
        assert found is not None and read_disruptions(found.data).grants == ()
        assert codes(await take(seat, "bookie/b", holder="x")) == []

    run(act)


def test_a_token_that_is_asked_with_again_when_its_grant_is_over_is_a_grant_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        clock_us = set_clock(seat, monkeypatch)
        question = ask("bookie/a", life_ms=10_000)
        await seat.operations.take_disruption(question)
        clock_us[0] += 20_000_000  # and no round has taken it out
        again = (await seat.operations.take_disruption(question))["grant"]
        assert again["over_in_ms"] == 15_000
        assert codes(await take(seat, "bookie/b")) == ["granted"]

    run(act)


def test_who_is_the_auditor_again_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        clock_us = set_clock(seat, monkeypatch)
        await take(seat, "bookie/a", life_ms=10_000)
        clock_us[0] += 14_000_000
        seat.auditor.on_leadership(False)
        seat.auditor.on_leadership(True)
        assert codes(await take(seat, "bookie/b")) == ["granted"]
        clock_us[0] += 14_000_000
        assert codes(await take(seat, "bookie/b")) == ["granted"]
        clock_us[0] += 1_000_000
        assert codes(await take(seat, "bookie/b")) == []

    run(act)


@pytest.mark.parametrize("how", ["session", "leadership"])
def test_who_leads_no_more_when_it_has_judged_grants_nothing(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        if how == "session":
            ids = iter(range(100))
            monkeypatch.setattr(book.GrantBook, "session_id", property(lambda _: next(ids)))
        else:

            async def lose() -> None:
                seat.auditor.is_leader = False

            world.sequencers.on_asked = lose
        error = await refused(take(seat, "bookie/a"))
        assert error.code == "metadata_unavailable" and "the auditor changed" in error.detail
        assert await world.setup.get(PATHS.disruptions) is None

    run(act)


def test_a_question_that_was_judged_for_too_long_grants_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        monkeypatch.setattr(granting, "_GRANTED_WITHIN_US", -1)
        assert (await refused(take(seat, "bookie/a"))).code == "overloaded"
        assert await world.setup.get(PATHS.disruptions) is None

    run(act)


def test_so_many_wait_and_who_only_looks_is_not_among_them() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        go_on = asyncio.Event()

        async def hold_up() -> None:
            await go_on.wait()

        world.sequencers.on_asked = hold_up
        takes = [asyncio.create_task(take(seat, f"bookie/{name}")) for name in "abcdabcda"]
        await wait_for(lambda: seat.granting.statistics()["takes_waiting"] == 8)
        assert (await refused(take(seat, "bookie/a"))).code == "overloaded"
        look = asyncio.create_task(seat.operations.judge_disruption("a", "restart"))
        go_on.set()
        assert (await look)["allowed"] in {True, False}
        granted = [answer["grant"] for answer in await asyncio.gather(*takes)]
        assert sum(one is not None for one in granted) == 1

    run(act)


@pytest.mark.parametrize("operation", ["renew", "end"])
def test_a_conflict_has_a_change_made_again(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        token = (await take(seat, "bookie/a"))["grant"]["token"]
        page_book = seat.auditor.grant_book
        write = page_book.write

        async def meet_another(*arguments: Any) -> None:
            monkeypatch.setattr(page_book, "write", write)
            found = await world.setup.get(PATHS.disruptions)
            assert found is not None
            await world.setup.set(PATHS.disruptions, found.data, version=found.version)
            await write(*arguments)

        monkeypatch.setattr(page_book, "write", meet_another)
        if operation == "renew":
            assert (await seat.operations.renew_disruption(token))["grant"]["token"] == token
        else:
            assert await seat.operations.end_disruption(token) == {"token": token, "ended": True}

    run(act)


def test_a_renewed_grant_lasts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        clock_us = set_clock(seat, monkeypatch)
        grant = (await take(seat, "bookie/a", life_ms=10_000))["grant"]
        for _ in range(3):
            clock_us[0] += 9_000_000
            renewed = (await seat.operations.renew_disruption(grant["token"]))["grant"]
            assert renewed["token"] == grant["token"]
        assert codes(await take(seat, "bookie/b", holder="x")) == ["granted"]

    run(act)


# --- What owners know ----------------------------------------------------------------------------


def test_a_member_that_is_behind_holds_no_good_copy() -> None:
    segment = make_segment([(0, "abc")])

    async def act(world: RepairWorld, seat: Seat) -> None:
        world.sequencers.write(segment)
        assert (await seat.operations.judge_disruption("a", "restart"))["allowed"]
        world.sequencers.write(segment, member("b"))
        assert codes(await take(seat, "bookie/a")) == ["not_coverable", "too_few_copies"]
        assert codes(await take(seat, "bookie/b")) == [], "who is behind may be stopped"

    run(act, "abcd", segment)


def test_owners_are_asked_before_metadata_are_read() -> None:
    """An owner writes down what it owes, forgets it, and closes: between two questions of ours."""
    segment = make_segment([(0, "abc")])

    async def act(world: RepairWorld, seat: Seat) -> None:
        world.sequencers.write(segment)
        world.bookies["b"].is_silent = True  # so that nobody mends it meanwhile

        async def close() -> None:
            world.sequencers.on_asked = None
            await world.owe(segment, "b", 3, 4)

        world.sequencers.on_asked = close
        assert codes(await take(seat, "bookie/a")) == ["not_coverable", "too_few_copies"]

    run(act, "abcd", segment)


@pytest.mark.parametrize("what", ["gone", "behind", "unreached"])
def test_what_changes_during_the_walk_has_it_judged_again(what: str) -> None:
    segment = make_segment([(0, "abc")])

    async def act(world: RepairWorld, seat: Seat) -> None:
        world.sequencers.write(segment)
        asked = []

        async def change() -> None:
            asked.append(1)
            if len(asked) != 2:  # the look behind the walk
                return
            match what:
                case "gone":
                    await world.lose("b")
                case "behind":
                    world.sequencers.write(segment, member("b"))
                case _:
                    world.unreached.append(BookieId("b"))

        world.sequencers.on_asked = change
        assert "too_few_copies" in codes(await take(seat, "bookie/a"))
        assert len(asked) == 4

    run(act, "abcd", segment)


def test_what_is_noted_and_closed_behind_an_owners_word_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segment = make_segment([(0, "abc")])

    async def act(world: RepairWorld, seat: Seat) -> None:
        world.sequencers.write(segment)
        world.bookies["b"].is_silent = True  # so that nobody mends it meanwhile
        list_noted = seat.auditor.readings.list_noted

        async def close_behind(*arguments: Any) -> list[int]:
            monkeypatch.setattr(seat.auditor.readings, "list_noted", list_noted)
            noted = await list_noted(*arguments)
            await world.owe(segment, "b", 3, 4)
            closed = (await world.segment()).closed(
                last_entry=EntryId(4), totals=Totals(5, 5), start_seq_num=0, completed_unix_ms=1,
                nonce="closed",
            ).with_proved(EntryId(0), "proved")  # fmt: skip
            await world.change(closed)
            del world.sequencers.behind["s0"][str(segment.ledger_id)]
            return noted

        monkeypatch.setattr(seat.auditor.readings, "list_noted", close_behind)
        assert codes(await take(seat, "bookie/a")) == ["too_few_copies"]

    run(act, "abcd", segment)


def test_a_segment_whose_owner_fell_silent_during_the_walk_is_an_orphan() -> None:
    segment = make_segment([(0, "abc")])

    async def act(world: RepairWorld, seat: Seat) -> None:
        world.sequencers.write(segment)
        asked = []

        async def fall_silent() -> None:
            asked.append(1)
            if len(asked) == 2:
                world.sequencers.silent = ["s0"]

        world.sequencers.on_asked = fall_silent
        assert codes(await take(seat, "bookie/a")) == ["orphan"]

    run(act, "abcd", segment)


def test_a_segment_that_was_begun_behind_the_walk_has_it_judged_again() -> None:
    segment = make_segment([(0, "abc")])

    async def act(world: RepairWorld, seat: Seat) -> None:
        world.sequencers.write(segment)
        asked = []

        async def roll() -> None:
            asked.append(1)
            if len(asked) == 2:
                world.sequencers.write(make_segment([(0, "abc")], epoch=2), member("b"))

        world.sequencers.on_asked = roll
        await take(seat, "bookie/a")
        assert len(asked) == 4

    run(act, "abcd", segment)


def test_a_removal_asks_no_owner() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        async def fail() -> None:
            raise AssertionError("what is drained is named by no segment")

        world.sequencers.on_asked = fail
        denied = await seat.operations.judge_disruption("a", "remove")
        assert [reason["code"] for reason in denied["reasons"]] == ["named", "not_drained"]

    run(act, "abcd", make_segment([(0, "abc")]))


def test_a_bookie_to_which_a_recovery_writes_is_not_restarted() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        world.sequencers.recovering = ["d"]
        assert codes(await take(seat, "bookie/d")) == ["in_recovery"]
        assert codes(await take(seat, "bookie/a")) == []

    run(act)


def test_a_silent_sequencer_matters_only_where_nobody_else_speaks() -> None:
    segment = make_segment([(0, "abc")], log_id=6)

    async def act(world: RepairWorld, seat: Seat) -> None:
        world.sequencers.silent = ["s1"]
        denied = await take(seat, "bookie/a")
        assert codes(denied) == ["orphan"] and denied["logs_at_risk"] == ["ns/log6"]
        world.sequencers.of_before = {"s0"}
        assert codes(await take(seat, "bookie/a")) == ["orphan"]
        assert codes(await take(seat, "bookie/d")) == [], "it has nothing to do with it"

    run(act, "abcd", segment)


def test_a_segment_that_was_opened_during_the_walk_is_asked_about_again() -> None:
    segment = make_segment([(0, "abc")])

    async def act(world: RepairWorld, seat: Seat) -> None:
        asked = []

        async def open_it() -> None:
            asked.append(1)
            if len(asked) == 2:
                world.sequencers.write(segment)

        world.sequencers.on_asked = open_it
        assert codes(await take(seat, "bookie/a")) == []

    run(act, "abcd", segment)


def test_of_an_embedded_writers_segment_who_came_later_may_lack_something() -> None:
    segment = make_segment([(0, "abc")])

    async def act(world: RepairWorld, seat: Seat) -> None:
        path = PATHS.owner(segment.log_id)
        owner = {"sequencer": "s7", "epoch": 1, "data_url": "http://s7"}
        await world.setup.create(path, encode_node(owner), make_parents=True)
        assert codes(await take(seat, "bookie/a")) == ["orphan"], "it is no sequencer any more"
        found = await world.setup.get(path)
        assert found is not None
        embedded = {**owner, "data_url": ""}
        await world.setup.set(path, encode_node(embedded), version=found.version)
        assert codes(await take(seat, "bookie/a")) == []
        await end_all(seat)
        await world.remove(f"{PATHS.available}/b")
        await world.publish("b")
        assert codes(await take(seat, "bookie/a")) == ["not_coverable", "too_few_copies"]

    run(act, "abcd", segment)


# --- Removal -------------------------------------------------------------------------------------


def test_only_what_is_drained_is_removed_and_stays_drained_until_then() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        assert codes(await take(seat, "bookie/d", kind="remove")) == ["not_drained"]
        await world.lose("d")
        assert (await seat.operations.judge_disruption("d", "remove"))["allowed"]
        assert codes(await take(seat, "bookie/d", kind="remove")) == ["not_drained"], "may return"
        await world.publish("d")
        await set_duty(world, "d", Duty.DRAINED)
        question = ask("bookie/d", kind="remove")
        assert codes(await seat.operations.take_disruption(question)) == []
        error = await refused(seat.operations.cancel_drain("d"))
        assert error.code == "condition_failed" and question["token"] in error.detail
        assert (await world.node("d")).duty is Duty.DRAINED
        await seat.operations.end_disruption(question["token"])
        assert (await seat.operations.cancel_drain("d"))["duty"] == "serving"

    run(act)


def test_a_drain_that_is_cancelled_before_the_removal_is_written_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        await set_duty(world, "d", Duty.DRAINED)
        book = seat.auditor.grant_book
        await book.make()  # so that only the bookie's own node tells
        write = book.write

        async def cancel_first(*arguments: Any) -> None:
            monkeypatch.setattr(book, "write", write)
            await seat.operations.cancel_drain("d")
            await write(*arguments)

        monkeypatch.setattr(book, "write", cancel_first)
        assert codes(await take(seat, "bookie/d", kind="remove")) == ["not_drained"]
        assert (await world.node("d")).duty is Duty.SERVING

    run(act)


def test_a_removal_that_is_written_before_a_drain_is_cancelled_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        await set_duty(world, "d", Duty.DRAINED)
        await seat.auditor.grant_book.make()
        commit = seat.store.commit

        async def grant_first(ops: Any) -> tuple[int, ...]:
            monkeypatch.setattr(seat.store, "commit", commit)
            assert codes(await take(seat, "bookie/d", kind="remove")) == []
            return await commit(ops)

        monkeypatch.setattr(seat.store, "commit", grant_first)
        error = await refused(seat.operations.cancel_drain("d"))
        assert error.code == "condition_failed"
        assert (await world.node("d")).duty is Duty.DRAINED

    run(act)


async def set_duty(world: RepairWorld, name: str, duty: Duty) -> None:
    path = PATHS.bookie(name)
    found = await world.setup.get(path)
    assert found is not None
    node = replace(await world.node(name), duty=duty)
    await world.setup.set(path, encode_bookie(node), version=found.version)
    await world.publish(name)


# --- What can be accepted ------------------------------------------------------------------------


def test_what_a_person_accepts_is_kept_and_hides_nothing_else() -> None:
    segment = make_segment([(0, "abc")], 9, proved=True, quorum=(3, 3))

    async def act(world: RepairWorld, seat: Seat) -> None:
        assert codes(await take(seat, "bookie/a")) == ["no_spare"]
        taken = await take(seat, "bookie/a", accepts=["no_spare", "no_spare"])
        assert codes(taken) == ["no_spare"] and taken["grant"]["accepts"] == ["no_spare"]
        await end_all(seat)
        await world.lose("b")
        denied = await take(seat, "bookie/a", accepts=["no_spare", "placement"])
        assert codes(denied) == ["no_spare", "placement", "too_few_copies"]

    run(act, "abcd", segment)


# --- Sequencers and members of ZooKeeper ---------------------------------------------------------


def test_the_last_sequencer_is_stopped_only_by_who_says_that_it_is_an_outage() -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        first = await take(seat, "sequencer/s0")
        assert codes(first) == []
        await end_all(seat)
        world.sequencers.weights["s1"] = 0.0
        denied = await take(seat, "sequencer/s0")
        assert codes(denied) == ["alone"] and "accept it" in denied["reasons"][0]["detail"]
        meant = await take(seat, "sequencer/s0", accepts=["alone"])
        assert codes(meant) == ["alone"] and meant["grant"]["accepts"] == ["alone"]
        await end_all(seat)
        assert (await refused(take(seat, "sequencer/s9"))).field == "target"

    run(act)


@pytest.mark.parametrize(
    ("voters", "others", "found"),
    [(3, 2, []), (3, 1, ["quorum"]), (5, 3, []), (5, 2, ["quorum"]), (1, 0, ["quorum"])],
)
def test_a_member_of_zookeeper_leaves_a_majority(
    voters: int, others: int, found: list[str]
) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        asked = {"voters": voters, "others_serving": others}
        assert codes(await take(seat, "zookeeper/z-0", **asked)) == found
        await end_all(seat)
        accepted = await take(seat, "zookeeper/z-0", **asked, accepts=["quorum"])
        assert codes(accepted) == found and accepted["grant"]
        assert codes(await take(seat, "zookeeper/z-1", **asked)) == ["granted"]

    run(act)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"token": "x"}, "token"), ({"token": "A" * 32}, "token"), ({"target": "a"}, "target"),
        ({"target": 5}, "target"), ({"target": "bookie/\x1b"}, "target"),
        ({"kind": "explode"}, "kind"), ({"holder": ""}, "holder"),
        ({"holder": "x" * 201}, "holder"), ({"holder": "\x1b"}, "holder"),
        ({"life_ms": 9_999}, "life_ms"), ({"life_ms": 600_001}, "life_ms"),
        ({"life_ms": True}, "life_ms"), ({"accepts": ["granted"]}, "accepts"),
        ({"accepts": "quorum"}, "accepts"), ({"accepts": [["quorum"]]}, "accepts"),
        ({"target": "zookeeper/z"}, "voters"), ({"target": "rack/r/k", "kind": "remove"}, "kind"),
        ({"target": "zookeeper/z", "voters": 3, "others_serving": 3}, "others_serving"),
        ({"target": "bookie/z"}, "target"),
    ],
)  # fmt: skip
def test_a_question_that_is_wrong_names_its_field(fields: dict[str, Any], field: str) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        question = {**ask("bookie/a"), **fields}
        assert (await refused(seat.operations.take_disruption(question))).field == field
        assert await world.setup.get(PATHS.disruptions) is None, "nothing was written"

    run(act)


def test_a_node_that_is_not_understood_grants_nothing_and_ends_no_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def act(world: RepairWorld, seat: Seat) -> None:
        await world.setup.create(PATHS.disruptions, b'{"v":1}', make_parents=True)
        await set_duty(world, "d", Duty.DRAINED)
        for work in (
            take(seat, "bookie/a"), seat.operations.judge_disruption("a", "restart"),
            seat.operations.list_disruptions(), seat.operations.cancel_drain("d"),
        ):  # fmt: skip
            error = await refused(work)
            assert error.code == "metadata_unavailable" and PATHS.disruptions in error.detail
        await seat.auditor.grant_book.sweep()
        monkeypatch.setattr(seat.store, "sync", AsyncMock(side_effect=Rejected("no rights")))
        await seat.auditor.grant_book.sweep()

    run(act)


def test_the_auditor_looks_at_grants_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "SWEEP_S", 0.001)

    async def act(world: RepairWorld, seat: Seat) -> None:
        clock_us = set_clock(seat, monkeypatch)
        await take(seat, "bookie/a", life_ms=10_000)
        clock_us[0] += 15_000_000

        async def is_out() -> bool:
            found = await world.setup.get(PATHS.disruptions)
            return found is not None and read_disruptions(found.data).grants == ()

        await wait_for(is_out)

    run(act)
