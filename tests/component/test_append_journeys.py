"""Where an append goes while a sequencer is frozen, and what is said of one that failed half-way.

Sequencers are played by hand under a clock that stands still (`lane_world`), or scripted behind the
real proxy (`writeproxy_world`). What each answer of a sequencer leads to is in `test_writeproxy`.
Source: duramen_writeproxy.appends, docs/protocol/errors.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duramen.core.hashing import rank_nodes
from duramen.ids import LogId
from duramen.wire.record_batch import BatchProducer
from duramen_writeproxy.appends import Appender, OrderedBatch
from duramen_writeproxy.lanes import GRACE_S, Lanes
from duramen_writeproxy.routing import Router
from tests.component import writeproxy_world
from tests.component.lane_world import MOMENT_S, OK, UNCERTAIN, HandPeers, fate_of
from tests.component.still_clock import run_still, wait_clock, wait_quiet
from tests.component.writeproxy_world import World

KEY = "ns/log"
FIRST, SECOND = rank_nodes(KEY, {"s0": 1.0, "s1": 1.0})
"""The sequencer that the hash names for the log, and the other one."""

TIMEOUT_S = 10.0


class Journeys:
    """Appends of a proxy between two sequencers."""

    def __init__(self) -> None:
        self.peers = HandPeers()
        live = {name: {"data_url": f"http://{name}"} for name in (FIRST, SECOND)}
        self.away: set[str] = set()
        router = Router(lambda: live, lambda: self.away)
        self._appender = Appender(router, Lanes(self.peers))
        self.begin_s = asyncio.get_running_loop().time()

    @property
    def urls(self) -> list[str]:
        """Who was asked, in turn."""
        return [frame.url for frame in self.peers.frames]

    def statistics(self) -> dict[str, int]:
        return self._appender.statistics()

    def put(self, *, is_repeatable: bool) -> asyncio.Task[Any]:
        """Begin to append."""
        deadline = self.begin_s + TIMEOUT_S
        return asyncio.create_task(
            self._appender.append(KEY, LogId(1), b"x", deadline, is_repeatable=is_repeatable)
        )

    def put_session(self) -> asyncio.Task[Any]:
        """Begin to append two batches of a producer in their order."""
        deadline = self.begin_s + TIMEOUT_S
        batches = [OrderedBatch(b"x", producer=BatchProducer("p", 0, i)) for i in (0, 1)]
        return asyncio.create_task(self._appender.append_in_order(KEY, LogId(1), batches, deadline))

    def notice(self, *names: str) -> None:
        """These answer nobody from now on."""
        self.away = set(names)
        self._appender.end_tries()

    async def wait_after(self, elapsed_s: float) -> None:
        await wait_clock(self.begin_s + elapsed_s)
        await wait_quiet()


def play(scenario: Callable[[Journeys], Awaitable[None]]) -> None:
    async def work() -> None:
        await scenario(Journeys())

    run_still(work())


def test_an_append_of_a_producer_leaves_a_frozen_sequencer_while_it_has_time() -> None:
    async def scenario(journeys: Journeys) -> None:
        task = journeys.put(is_repeatable=True)
        await journeys.wait_after(TIMEOUT_S / 2)
        assert journeys.urls == [f"http://{name}/s/append" for name in (FIRST, SECOND)]
        _, second = journeys.peers.frames
        assert second.rows[0].options.tried == (FIRST,)
        await second.answer_all()
        assert fate_of(task) == OK

    play(scenario)


def test_an_append_without_a_producer_waits_for_its_one_answer_all_the_time_it_has() -> None:
    async def scenario(journeys: Journeys) -> None:
        task = journeys.put(is_repeatable=False)
        await journeys.wait_after(TIMEOUT_S - MOMENT_S)
        assert not task.done()
        await journeys.wait_after(TIMEOUT_S + GRACE_S + MOMENT_S)
        assert fate_of(task) == UNCERTAIN
        assert journeys.urls == [f"http://{FIRST}/s/append"]

    play(scenario)


def test_what_may_be_repeated_leaves_a_sequencer_that_is_found_to_be_away_at_once() -> None:
    async def scenario(journeys: Journeys) -> None:
        task, lone = journeys.put(is_repeatable=True), journeys.put(is_repeatable=False)
        await journeys.wait_after(1.0)
        journeys.notice(FIRST)
        await journeys.wait_after(1.0 + 0.1)
        urls = [f"http://{name}/s/append" for name in (FIRST, SECOND)]
        assert journeys.urls == urls
        second = journeys.peers.frames[-1]
        assert [row.options.tried for row in second.rows] == [(FIRST,)]
        await second.answer_all()
        assert fate_of(task) == OK
        assert not lone.done(), "nobody may send it again"
        assert journeys.statistics()["ended_tries"] == 1
        lone.cancel()

    play(scenario)


def test_a_session_leaves_a_sequencer_that_is_found_to_be_away() -> None:
    async def scenario(journeys: Journeys) -> None:
        task = journeys.put_session()
        await journeys.wait_after(1.0)
        journeys.notice(FIRST)
        await journeys.wait_after(1.0 + 0.1)
        assert journeys.urls == [f"http://{name}/s/append" for name in (FIRST, SECOND)]
        second = journeys.peers.frames[-1]
        assert len(second.rows) == 2
        await second.answer_all()
        await wait_quiet()
        assert task.done() and len(task.result()) == 2

    play(scenario)


def test_what_comes_later_passes_over_who_is_away_and_says_so() -> None:
    async def scenario(journeys: Journeys) -> None:
        task = journeys.put(is_repeatable=False)
        await wait_quiet()
        await journeys.peers.frames[-1].answer_all()
        assert fate_of(task) == OK
        assert journeys.urls == [f"http://{FIRST}/s/append"], "it is known as the owner"
        journeys.notice(FIRST)
        for is_repeatable in (False, True):
            task = journeys.put(is_repeatable=is_repeatable)
            await wait_quiet()
            (row,) = journeys.peers.frames[-1].rows
            assert journeys.urls[-1] == f"http://{SECOND}/s/append"
            assert row.options.tried == (FIRST,), "its own view may be older"
            await journeys.peers.frames[-1].answer_all()
            assert fate_of(task) == OK
        journeys.notice()
        task = journeys.put(is_repeatable=False)
        await wait_quiet()
        assert journeys.urls[-1] == f"http://{SECOND}/s/append", "it answered for the log"
        await journeys.peers.frames[-1].answer_all()
        assert fate_of(task) == OK

    play(scenario)


def test_an_append_that_failed_for_an_unknown_reason_may_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mistake of the proxy, behind the sequencer's acknowledgement."""

    async def scenario(world: World) -> None:
        def forget(_log_id: LogId, _owner: object) -> None:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(world.proxy._router, "learn", forget)
        status, problem = await world.append()
        assert (status, problem["code"], problem["uncertain"]) == (500, "internal", True)
        assert len(world.rows) == 1, "it is stored"
        assert "mistake" not in problem["detail"]

    writeproxy_world.run(scenario)
