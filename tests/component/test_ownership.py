"""What hosts of logs do with ownership: hints, losses, stops, hand-overs, sessions, memory.

Hosts on one store in memory, before a bookie that does everything at once (`host_world`). An owner
that is there is a listening socket; one that is gone is a port on which nothing listens.
Source: docs/protocol/ownership.md "Whose is a log".
"""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from duramen.config import LogConfig
from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.ownership.balancer import HOLD_OFF_US
from duramen.core.sequencer.log_state import LogState
from duramen.errors import DuramenError
from duramen.ids import BookieId, Epoch, Incarnation, LogId, SequencerId
from duramen.runtime.sequencer.log_driver import LogDriver, now_us
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.memory_store import MemoryStore
from duramen.runtime.stores.metadata_store import Stored, Watch
from duramen.wire.metadata_json import read_any_segment, read_log
from duramen.wire.sequencer_calls import AppendedBatch, Redirect
from duramen_sequencer import log_host
from duramen_sequencer.ownership import claims
from duramen_sequencer.ownership.hand_over import HandOver
from tests.component.host_world import CONFIG, PATHS, HostWorld
from tests.component.ownership_world import (
    FIRST,
    GONE,
    LOG,
    SECOND,
    THIRD,
    code_of,
    play,
    two_hosts,
)  # fmt: skip
from tests.unit.nodes import make_log
from tests.waiting import wait_for


@asynccontextmanager
async def listening() -> AsyncIterator[str]:
    """The url of a process that accepts connections and says nothing, as one that is paused."""
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


# --- Embedded writers ----------------------------------------------------------------------------


def test_a_log_of_an_embedded_writer_is_refused_until_its_session_ends() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST)
        writer = MemoryStore(world.tree)
        await writer.start()
        link = MetadataLink(writer, PATHS, SequencerId("core-app"), "")
        await link.keep_owner(LOG, Epoch(1))
        for tried in ((), ("core-app",), (SECOND, THIRD)):
            refusal = await world.append(host, LOG, tried=tried)
            assert code_of(refusal) == "log_held" and "core-app" in str(refusal)
        assert host.statistics()["probes"] == 0
        await writer.close()
        assert isinstance(await world.append(host, LOG), AppendedBatch)

    play(scenario)


# --- Hints ---------------------------------------------------------------------------------------


def test_an_owner_that_refuses_connections_loses_its_log_to_the_next_at_once() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(SECOND)
        await world.add_host(FIRST)
        await world.own_elsewhere(LOG, FIRST, GONE)
        assert isinstance(await world.append(host, LOG), Redirect), "without a hint it is believed"
        assert isinstance(await world.append(host, LOG, tried=(FIRST,)), AppendedBatch)
        assert host.statistics()["hinted_takeovers"] == 1

    play(scenario)


async def read_owner_fields(world: HostWorld) -> dict[str, Any]:
    stored = await world.setup.get(PATHS.owner(LOG))
    assert stored is not None
    fields: dict[str, Any] = json.loads(stored.data)
    return fields


def test_an_owner_that_is_away_loses_its_log_to_the_next_and_the_node_says_by_what() -> None:
    async def scenario(world: HostWorld) -> None:
        async with listening() as url:
            host = await world.add_host(SECOND)
            await world.add_host(FIRST, {"data_url": url})
            await world.own_elsewhere(LOG, FIRST, url)
            world.away = [FIRST]
            assert isinstance(await world.append(host, LOG), AppendedBatch), "nobody tried it"
            assert host.statistics()["away_takeovers"] == 1
            assert (await read_owner_fields(world))["by_hint"] is True
            (event, *_) = host.stories.report(LOG)
            assert event["reason"] == "an append came, and its owner is away"

    play(scenario)


def test_no_hint_takes_a_log_from_whoever_has_it_by_a_hint() -> None:
    async def scenario(world: HostWorld) -> None:
        async with listening() as url:
            host = await world.add_host(SECOND)
            await world.add_host(FIRST, {"data_url": url})
            await world.own_elsewhere(LOG, FIRST, url, by_hint=True)
            world.away = [FIRST]
            assert code_of(await world.append(host, LOG)) == "log_unavailable"
            assert host.statistics()["away_takeovers"] == 0
            stored = await world.setup.get(PATHS.owner(LOG))
            assert stored is not None
            await world.setup.delete(PATHS.owner(LOG), version=stored.version)
            assert isinstance(await world.append(host, LOG), AppendedBatch), "its session ended"
            assert "by_hint" not in await read_owner_fields(world)

    play(scenario)


def test_an_owner_that_is_away_and_refuses_connections_is_gone_which_is_no_hint() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(SECOND)
        await world.add_host(FIRST)
        await world.own_elsewhere(LOG, FIRST, GONE, by_hint=True)
        world.away = [FIRST]
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        assert "by_hint" not in await read_owner_fields(world)
        assert host.statistics()["hinted_takeovers"] == 1

    play(scenario)


def test_a_hint_that_another_followed_before_is_not_followed_again() -> None:
    """Two followers of one hint: who claims later finds the other's mark, and gives the log up."""

    async def scenario(world: HostWorld) -> None:
        async with listening() as url:
            host = await world.add_host(SECOND)
            await world.add_host(FIRST, {"data_url": url})
            await world.add_host(THIRD, {"data_url": url})
            await world.own_elsewhere(LOG, THIRD, url, by_hint=True)
            # It was told to take over while the log was still the frozen one's.
            host._context.hints.note(LOG, now_us())
            host.take_over(LOG, demand=1)
            await wait_for(lambda: LOG not in host.drivers)
            assert (await read_owner_fields(world))["sequencer"] == THIRD
            result = await world.append(host, LOG)
            assert isinstance(result, Redirect) and result.sequencer_id == THIRD

    play(scenario)


def test_a_log_that_is_handed_over_is_nobodys_by_a_hint() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(SECOND)
        host._context.hints.note(LOG, now_us())
        operations = HandOver(host, cast(Any, None)).operations
        await operations["take"]({"log_id": str(LOG), "from": FIRST})
        await wait_for(lambda: world.owner_exists(LOG))
        assert "by_hint" not in await read_owner_fields(world)

    play(scenario)


def test_a_log_without_an_owner_goes_to_nobody_who_is_away() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(SECOND)
        await world.add_host(FIRST)
        assert isinstance(await world.append(host, LOG), Redirect), "the hash names the first"
        world.away = [FIRST]
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        assert "by_hint" not in await read_owner_fields(world)

    play(scenario)


def test_an_owner_that_takes_connections_is_waited_for_however_often_it_was_tried() -> None:
    async def scenario(world: HostWorld) -> None:
        async with listening() as url:
            host = await world.add_host(SECOND)
            await world.add_host(FIRST, {"data_url": url})
            await world.own_elsewhere(LOG, FIRST, url)
            result = await world.append(host, LOG, tried=(FIRST,))
            assert code_of(result) == "log_unavailable"
            assert host.statistics()["hinted_takeovers"] == 0
            assert LOG not in host.drivers

    play(scenario)


def test_an_owner_that_lets_go_while_it_is_waited_for_is_succeeded() -> None:
    async def scenario(world: HostWorld) -> None:
        async with listening() as url:
            host = await world.add_host(SECOND)
            await world.add_host(FIRST, {"data_url": url})
            await world.own_elsewhere(LOG, FIRST, url)
            append = world.append(host, LOG, tried=(FIRST,))
            await wait_for(lambda: host.statistics()["probes"] == 1)
            stored = await world.setup.get(PATHS.owner(LOG))
            assert stored is not None
            await world.setup.delete(PATHS.owner(LOG), version=stored.version)
            assert isinstance(await append, AppendedBatch)

    play(scenario)


def test_an_owner_that_has_let_go_is_succeeded_behind_a_server_that_lags() -> None:
    """What the second look reads is no older than that look, whatever ZooKeeper server answers."""

    async def scenario(world: HostWorld) -> None:
        async with listening() as url:
            host = await world.add_host(SECOND)
            await world.add_host(FIRST, {"data_url": url})
            await world.own_elsewhere(LOG, FIRST, url)
            store, is_behind = world.stores[SECOND], True
            old, get, sync = world.tree.get(PATHS.owner(LOG)), store.get, store.sync
            assert old is not None

            async def lag(path: str, watch: Watch | None = None) -> Stored | None:
                return old if is_behind and path == PATHS.owner(LOG) else await get(path, watch)

            async def catch_up(path: str) -> None:
                nonlocal is_behind
                await sync(path)
                is_behind = False

            store.get, store.sync = lag, catch_up  # type: ignore[method-assign]
            await world.setup.delete(PATHS.owner(LOG), version=old.version)
            assert isinstance(await world.append(host, LOG, tried=(FIRST,)), AppendedBatch)

    play(scenario)


def test_many_logs_of_one_dead_owner_share_a_probe() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(SECOND)
        for number in range(20):
            await world.add_log(LogId(100 + number), f"log-{number}")
            await world.own_elsewhere(LogId(100 + number), FIRST, GONE)
        appends = [world.append(host, LogId(100 + number), tried=(FIRST,)) for number in range(20)]
        assert all(isinstance(result, AppendedBatch) for result in await asyncio.gather(*appends))
        assert host.statistics()["probes"] == 1

    play(scenario)


def test_a_redirect_names_nobody_who_was_tried() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(THIRD)
        await world.add_host(FIRST)
        await world.add_host(SECOND)
        await wait_for(lambda: len(host.claims.rank(make_log())) == 3)
        for tried, named in (((), FIRST), ((FIRST,), SECOND)):
            result = await world.append(host, LOG, tried=tried)
            assert isinstance(result, Redirect) and result.sequencer_id == named
        # Appends that share a look do not share what they have tried.
        both = [world.append(host, LOG, tried=(name,)) for name in (FIRST, SECOND)]
        assert all(isinstance(result, AppendedBatch) for result in await asyncio.gather(*both))

    play(scenario)


def test_weights_decide_whom_the_hash_names() -> None:
    async def scenario(world: HostWorld) -> None:
        await world.add_host(FIRST, {"weight": 0})
        host = await world.add_host(SECOND)
        assert host.claims.rank(make_log()) == [SECOND]
        assert isinstance(await world.append(host, LOG), AppendedBatch)

    play(scenario)


# --- Losses --------------------------------------------------------------------------------------


def test_a_log_that_was_taken_away_is_not_claimed_back_at_once() -> None:
    async def scenario(world: HostWorld) -> None:
        first, second = await world.add_host(FIRST), await world.add_host(SECOND)
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        # The other believes that the first is gone, which it is not: it takes the log.
        assert isinstance(await world.append(second, LOG, tried=(FIRST,)), AppendedBatch)
        first.drivers[LOG].core.request_roll()
        first.drivers[LOG].flush()
        await wait_for(lambda: LOG not in first.drivers)
        assert first.statistics()["lost_logs"] == 1
        # Now the first is told that the second is gone: it leaves the log alone for a pause.
        refused = await world.append(first, LOG, tried=(SECOND,))
        assert isinstance(refused, DuramenError) and refused.code == "log_unavailable"
        assert refused.retry_after_ms
        [*_, event] = first.stories.report(LOG)
        assert event["event"] == "given up" and "another sequencer" in event["reason"]

    play(scenario)


# --- Leaving -------------------------------------------------------------------------------------


def test_a_stop_hands_every_log_over_and_nothing_is_recovered() -> None:
    async def scenario(world: HostWorld) -> None:
        first, second = await world.add_host(FIRST), await world.add_host(SECOND)
        logs = [LogId(100 + number) for number in range(20)]
        for log_id in logs:
            await world.add_log(log_id, f"log-{log_id}")
            assert isinstance(await world.append(first, log_id, tried=(SECOND,)), AppendedBatch)
        stop = asyncio.create_task(first.stop())
        await wait_for(lambda: first.statistics()["leaving_count"] == len(logs))
        results = await asyncio.gather(*(world.append(first, log_id) for log_id in logs))
        await stop
        for result in results:
            assert isinstance(result, Redirect) and result.sequencer_id == SECOND
        for log_id in logs:
            assert isinstance(await world.append(second, log_id, tried=(FIRST,)), AppendedBatch)
        assert second.statistics()["recoveries"] == 0 and world.lanes[SECOND].seal_count == 0
        assert second.statistics()["takeovers"] == len(logs)

    play(scenario)


def test_a_log_that_leaves_closes_once_and_what_was_never_sent_waits_for_its_next_owner() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST)
        await world.add_host(SECOND)
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        # More than the pipeline takes at once: some are queued when the log begins to leave.
        appends = [world.append(host, LOG) for _ in range(10)]
        assert await host.leave(LOG, "a test")
        answered = [append.result() for append in appends if append.done()]
        assert 0 < len(answered) < 10 and all(isinstance(r, AppendedBatch) for r in answered)
        assert await unclosed(world, LOG) == () and host.statistics()["rolls"] == 1
        host.release_held(LOG)
        results = await asyncio.gather(*appends)
        starts = [r.start.seq_num for r in results if isinstance(r, AppendedBatch)]
        assert starts == list(range(1, 11)), "in order, in the old epoch and in the next one"

    play(scenario)


def test_a_stop_that_takes_too_long_answers_what_waits_and_leaves_the_rest_to_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: HostWorld) -> None:
        monkeypatch.setattr(log_host, "_STOP_S", 0.05)
        first, second = await world.add_host(FIRST), await world.add_host(SECOND)
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        world.lanes[FIRST].is_silent = True
        sent = world.append(first, LOG)
        stop = asyncio.create_task(first.stop())
        await wait_for(lambda: first.is_leaving(LOG))
        held = world.append(first, LOG)
        await stop
        assert code_of(await sent) == "append_uncertain"
        assert code_of(await held) in {"server_draining", "log_unavailable"}
        # Its node is still there and says that it lives: only its end, or its session's, helps.
        result = await world.append(second, LOG, tried=(FIRST,))
        assert isinstance(result, AppendedBatch) and second.statistics()["recoveries"] == 1

    play(scenario)


def test_a_log_is_handed_over_while_appends_go_on() -> None:
    async def scenario(world: HostWorld) -> None:
        _, first, second, hand_over = await two_hosts(world)
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        asked = asyncio.create_task(hand_over.hand_over(LOG, SECOND))
        await wait_for(lambda: first.is_leaving(LOG))
        meanwhile = world.append(first, LOG)
        answer = await asked
        assert answer == {"from": FIRST, "to": SECOND, "epoch": 1, "closed": True}
        redirect = await meanwhile
        assert isinstance(redirect, Redirect) and redirect.sequencer_id == SECOND
        result = await world.append(second, LOG, tried=(FIRST,))
        assert isinstance(result, AppendedBatch) and result.start.dlsn.epoch == 2
        assert second.statistics()["recoveries"] == 0
        # The hash still names the first, and the owner node names the second.
        redirect = await world.append(first, LOG)
        assert isinstance(redirect, Redirect) and redirect.sequencer_id == SECOND
        events = [event["event"] for event in first.stories.report(LOG)]
        assert events == ["takeover", "claimed", "appends in", "leaves", "closes", "closed"]
        assert second.stories.report(LOG)[0]["event"] == "taken"

    play(scenario)


def test_the_balancer_gets_no_log_that_has_just_come_and_the_story_says_why_one_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: HostWorld) -> None:
        _, first, second, hand_over = await two_hosts(world)
        ask = hand_over.operations["hand_over"]
        request = {"op": "hand_over", "log_id": str(LOG), "to": SECOND, "balancing": True}
        request["reason"] = f"{FIRST} carried 1.8 times its share"
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        with pytest.raises(DuramenError, match="has just come"):
            await ask(request)
        [row] = (await hand_over.operations["owned"]({}))["logs"]
        assert row["held_s"] == 0
        monkeypatch.setattr(LogDriver, "held_us", HOLD_OFF_US)
        assert (await ask(request))["to"] == SECOND
        [left] = [e for e in first.stories.report(LOG) if e["event"] == "leaves"]
        assert left["reason"] == f"handed over to {SECOND}, because {request['reason']}"
        taken = second.stories.report(LOG)[0]["reason"]
        assert taken == f"handed over by {FIRST}, because {request['reason']}"

    play(scenario)


def test_a_log_that_is_to_be_where_its_writers_are_says_where_that_is() -> None:
    async def scenario(world: HostWorld) -> None:
        wire, first, second, hand_over = await two_hosts(world)
        log_id = LogId(LOG + 1)
        config = CONFIG.model_copy(update={"owner_region": "writers"})
        await world.add_log(log_id, "near", config=config)
        for each in (LOG, log_id):
            for _ in range(20):
                append = world.append(first, each, region="us", tried=(SECOND,))
                assert isinstance(await append, AppendedBatch)
        plain, near = (await hand_over.operations["owned"]({}))["logs"]
        assert "writers_region" not in plain and not near["came_for_region"]
        assert near["writers_region"] == "us"
        await hand_over.hand_over(log_id, SECOND, is_for_region=True)
        await wait_for(lambda: second.drivers[log_id].core.state is LogState.ACTIVE)
        [came] = (await wire.by_url["http://127.0.0.1:2"].operations["owned"]({}))["logs"]
        assert came["came_for_region"]
        back = await wire.by_url["http://127.0.0.1:2"].hand_over(log_id, FIRST)
        assert back["closed"] and not first.drivers[log_id].came_for_region

    play(scenario)


def test_how_long_a_log_is_here_counts_over_its_epochs_and_ends_with_it() -> None:
    async def scenario(world: HostWorld) -> None:
        _, first, second, hand_over = await two_hosts(world)
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        driver = first.drivers[LOG]
        before_us = driver.held_us
        driver.core.request_roll()
        driver.flush()
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        await wait_for(lambda: driver.core.roll_count == 1)
        assert driver.held_us > before_us > 0
        await hand_over.hand_over(LOG, SECOND)
        assert driver.held_us == 0 and second.drivers[LOG].held_us > 0

    play(scenario)


def test_a_target_that_does_not_answer_leaves_the_log_to_the_hash() -> None:
    async def scenario(world: HostWorld) -> None:
        wire, first, _, hand_over = await two_hosts(world)
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        wire.is_cut = True
        await hand_over.hand_over(LOG, SECOND)
        assert isinstance(await world.append(first, LOG), AppendedBatch), "the hash names it again"

    play(scenario)


def test_of_many_logs_that_were_handed_over_the_last_pending_owners_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody takes them: where nobody is remembered, the hash names this sequencer."""

    async def scenario(world: HostWorld) -> None:
        monkeypatch.setattr(claims, "_PENDING_OWNER_COUNT_MAX", 3)
        _, first, _, _ = await two_hosts(world)
        logs = [LogId(100 + number) for number in range(8)]
        for log_id in logs:
            await world.add_log(log_id)
        for log_id in (*logs, logs[0]):
            first.claims.note_pending_owner(log_id, SECOND)
        named = [await first.find_owner(log_id) for log_id in logs]
        pending_owners = [None if redirect is None else redirect.sequencer_id for redirect in named]
        assert pending_owners == [SECOND, *[None] * 5, SECOND, SECOND]

    play(scenario)


@pytest.mark.parametrize(
    ("to", "code"), [("nobody", "invalid_argument"), (FIRST, "invalid_argument")]
)
def test_a_hand_over_to_nobody_is_refused_and_the_log_stays(to: str, code: str) -> None:
    async def scenario(world: HostWorld) -> None:
        _, first, _, hand_over = await two_hosts(world)
        with pytest.raises(DuramenError, match="log_unavailable"):
            await hand_over.hand_over(LOG, None)
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        with pytest.raises(DuramenError) as caught:
            await hand_over.hand_over(LOG, to)
        assert (caught.value.code, caught.value.field) == (code, "to")
        assert isinstance(await world.append(first, LOG), AppendedBatch)

    play(scenario)


# --- Sessions ------------------------------------------------------------------------------------


def test_without_a_session_open_segments_go_on_and_nothing_else() -> None:
    async def scenario(world: HostWorld) -> None:
        _, first, second, hand_over = await two_hosts(world)
        other = LogId(10)
        await world.add_log(other, "other")
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        first.start()
        await wait_for(lambda: first.scan_count > 0)
        world.stores[FIRST].disconnect()
        await wait_for(lambda: not first.has_session())
        scans = first.scan_count
        first.want_scan()
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        assert code_of(await world.append(first, other)) == "metadata_unavailable"
        with pytest.raises(DuramenError, match="metadata_unavailable"):
            await hand_over.hand_over(LOG, SECOND)
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        assert first.scan_count == scans
        world.stores[FIRST].reconnect()
        await wait_for(lambda: first.scan_count > scans)
        assert second.statistics()["takeovers"] == 0

    play(scenario)


@pytest.mark.parametrize("is_taken", [True, False])
def test_who_comes_back_after_its_session_lets_go_of_what_others_took(*, is_taken: bool) -> None:
    """As a process that was frozen: nobody appends to the log here, so nothing else would tell."""

    async def scenario(world: HostWorld) -> None:
        _, first, second, _ = await two_hosts(world)
        assert isinstance(await world.append(first, LOG), AppendedBatch)
        store = world.stores[FIRST]
        store.disconnect()
        world.tree.expire(store.session_id)
        if is_taken:
            assert isinstance(await world.append(second, LOG, tried=(FIRST,)), AppendedBatch)
        store.reconnect()
        await wait_for(first.has_session)
        await wait_for(lambda: (LOG in first.drivers) != is_taken)
        owner = await first.claims._link.read_owner(LOG)
        if is_taken:
            assert owner is not None and owner.sequencer_id == SECOND
            events = first.stories.report(LOG)
            assert events[-1]["reason"] == "another sequencer took the log over"
            assert first.statistics()["lost_logs"] == 1
        else:
            await wait_for(lambda: world.tree.get(PATHS.owner(LOG)) is not None)
            assert isinstance(await world.append(first, LOG), AppendedBatch)
            assert first.statistics()["takeovers"] == 1

    play(scenario)


# --- Many logs -----------------------------------------------------------------------------------


def test_takeovers_are_bounded_and_all_come_to_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: HostWorld) -> None:
        monkeypatch.setattr(log_host, "_TAKEOVER_COUNT", 4)
        host = await world.add_host(FIRST)
        logs = [LogId(100 + number) for number in range(60)]
        for log_id in logs:
            await world.add_log(log_id, f"log-{log_id}")
        most = 0
        appends = [world.append(host, log_id) for log_id in logs]
        while not all(append.done() for append in appends):
            most = max(most, int(host.statistics()["takeovers_running"]))
            await asyncio.sleep(0)
        assert all(isinstance(append.result(), AppendedBatch) for append in appends)
        assert 1 <= most <= 4

    play(scenario)


TWENTY_BOOKIES = [
    ServingBookie(BookieId(f"b{n}"), "r", f"k{n % 5}", Incarnation(f"{n:032}")) for n in range(20)
]
"""As many as a nodeset has."""


@pytest.mark.parametrize("copysets", ["striped", "flexible"])
def test_an_idle_log_leaves_nothing_but_a_short_story(copysets: str) -> None:
    """≤ 2 KB each, measured; the driver of a log that is closed is dropped."""
    config = CONFIG if copysets == "striped" else LogConfig(copysets="flexible")

    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST)
        world.contexts[FIRST].serving = TWENTY_BOOKIES
        count = 80
        logs = [LogId(1000 + number) for number in range(count)]
        for log_id in logs:
            await world.add_log(log_id, f"log-{log_id}", config=config)
        gc.collect()
        tracemalloc.start()
        for log_id in logs:
            assert isinstance(await world.append(host, log_id), AppendedBatch)
            await host.leave(log_id, "idle")
            host.release_held(log_id)
        await wait_for(lambda: not host.drivers)
        gc.collect()
        ours = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(True, "*/duramen_sequencer/*"),
             tracemalloc.Filter(True, "*/duramen/core/*")]
        )  # fmt: skip
        tracemalloc.stop()
        each_bytes = sum(stat.size for stat in ours.statistics("filename")) / count
        assert each_bytes < 2_048, f"{each_bytes:.0f} bytes an idle log"
        print(f"{each_bytes:.0f} bytes an idle log, {copysets}")
        assert host.statistics()["takeovers"] == count
        node = world.tree.get(PATHS.segment(logs[0], Epoch(1)))
        assert node is not None
        is_flexible = isinstance(read_any_segment(node.data), FlexibleSegment)
        assert is_flexible == (copysets == "flexible")
        assert await unclosed(world, logs[0]) == (), "nothing is left to recover"

    play(scenario)


def test_the_driver_of_an_idle_log_goes_at_once() -> None:
    """Nothing in it may refer to itself: the collector of cycles looks rarely (`runtime.service`),
    and ten thousand logs that wait for it are hundreds of MiB."""

    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST)
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        left = weakref.ref(host.drivers[LOG]), weakref.ref(host.drivers[LOG].core)
        gc.collect()
        gc.disable()
        try:
            await host.leave(LOG, "idle")
            host.release_held(LOG)
            await wait_for(lambda: not host.drivers)
            await wait_for(lambda: [one() for one in left] == [None, None])
        finally:
            gc.enable()

    play(scenario)


async def unclosed(world: HostWorld, log_id: LogId) -> tuple[Epoch, ...]:
    stored = await world.setup.get(PATHS.log(log_id))
    assert stored is not None
    return read_log(stored.data).unclosed_epochs
