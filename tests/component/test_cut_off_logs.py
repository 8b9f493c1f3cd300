"""Logs whose owner reaches ZooKeeper and none of their bookies: given up to who says he does.

Real hosts on one store in memory; what each reaches stands in its roster node. The decision itself
is `tests/unit/test_relief.py`'s. Also the questions to bookies, and what is published of them.
Source: docs/protocol/ownership.md "Cut off from bookies", ADR 0023.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from duramen.core.hashing import rank_nodes
from duramen.core.ownership.reach import PROBE_US
from duramen.core.sequencer.log_state import LogState
from duramen.errors import DuramenError
from duramen.ids import BookieId, LogId
from duramen.limits import GIVE_UP_AFTER_US
from duramen.runtime.http_client import NoAnswerError, OverloadedError, UnreachableError
from duramen.wire.sequencer_calls import AppendedBatch, Redirect
from duramen_sequencer.log_host import LogHost
from duramen_sequencer.ownership import reaching
from duramen_sequencer.ownership.reaching import Reaching
from duramen_sequencer.ownership.reliefs import LogReliefs
from tests.component.host_world import HostWorld, host_world
from tests.waiting import wait_for

LOG = LogId(9)
FIRST, SECOND = rank_nodes("ns/log", {"s0": 1.0, "s1": 1.0})
CUT_OFF: dict[str, Any] = {"unreached": ["b0"]}
FREE: dict[str, Any] = {"unreached": []}


def play(scenario: Callable[[HostWorld], Awaitable[None]]) -> None:
    async def work() -> None:
        async with host_world() as world:
            await world.add_log(LOG)
            await scenario(world)

    asyncio.run(work())


def reliefs_of(host: LogHost) -> LogReliefs:
    return LogReliefs(host, host._context, GIVE_UP_AFTER_US)


async def stand_still(reliefs: LogReliefs, own: tuple[str, ...] = ("b0",)) -> None:
    """Look now, and when the grace is over."""
    await reliefs.look(own, 0)
    await reliefs.look(own, GIVE_UP_AFTER_US)


def test_a_log_that_is_cut_off_goes_to_who_reaches_its_bookies() -> None:
    async def scenario(world: HostWorld) -> None:
        host, pending_owner = (
            await world.add_host(FIRST, CUT_OFF),
            await world.add_host(SECOND, FREE),
        )
        assert isinstance(await world.append(host, LOG, tried=(SECOND,)), AppendedBatch)
        world.lanes[FIRST].is_silent = True
        sent = world.append(host, LOG)
        await stand_still(reliefs_of(host))
        fate = await sent
        assert isinstance(fate, DuramenError) and fate.code == "append_uncertain", fate
        assert not world.owner_exists(LOG)
        answer = await world.append(host, LOG)
        assert isinstance(answer, Redirect) and answer.sequencer_id == SECOND
        assert isinstance(await world.append(pending_owner, LOG, tried=(FIRST,)), AppendedBatch)
        assert world.lanes[SECOND].seal_count > 0, "what was left open is sealed first"
        assert host.stories.report(LOG)[-1]["event"] == "given up"

    play(scenario)


@pytest.mark.parametrize("said", [{"unreached": ["b0"]}, {}, {"unreached": "b0"}])
def test_a_log_stays_where_nobody_says_that_he_could_serve_it(said: dict[str, Any]) -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST, CUT_OFF)
        await world.add_host(SECOND, said)
        assert isinstance(await world.append(host, LOG, tried=(SECOND,)), AppendedBatch)
        reliefs = reliefs_of(host)
        await stand_still(reliefs)
        assert host.drivers[LOG].core.state is LogState.ACTIVE
        assert reliefs.statistics() == {"stalled_logs": 1, "logs_given_up": 0}

    play(scenario)


@pytest.mark.parametrize("reason", ["no session", "suspended", "leaving", "reached"])
def test_nothing_is_given_up_while(reason: str) -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST, CUT_OFF)
        await world.add_host(SECOND, FREE)
        assert isinstance(await world.append(host, LOG, tried=(SECOND,)), AppendedBatch)
        own: tuple[str, ...] = ("b0",)
        match reason:
            case "no session":
                host.has_session = lambda: False  # type: ignore[method-assign]
            case "suspended":
                host._context.is_rolling_suspended = True
            case "leaving":
                host._leaving[LOG] = cast(Any, None)
            case _:
                own = ()
        await stand_still(reliefs_of(host), own)
        assert host.drivers[LOG].core.state is LogState.ACTIVE
        host._leaving.clear()

    play(scenario)


def test_a_claim_goes_past_who_reaches_too_few_bookies() -> None:
    async def scenario(world: HostWorld) -> None:
        host, pending_owner = (
            await world.add_host(FIRST, CUT_OFF),
            await world.add_host(SECOND, FREE),
        )
        answer = await world.append(host, LOG)
        assert isinstance(answer, Redirect) and answer.sequencer_id == SECOND
        assert isinstance(await world.append(pending_owner, LOG), AppendedBatch)

    play(scenario)


def test_where_all_are_cut_off_the_hash_decides() -> None:
    async def scenario(world: HostWorld) -> None:
        host, pending_owner = (
            await world.add_host(FIRST, CUT_OFF),
            await world.add_host(SECOND, CUT_OFF),
        )
        answer = await world.append(pending_owner, LOG)
        assert isinstance(answer, Redirect) and answer.sequencer_id == FIRST
        assert isinstance(await world.append(host, LOG), AppendedBatch)

    play(scenario)


def test_an_orphan_is_closed_by_one_that_can() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST, CUT_OFF)
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        host.drivers[LOG].release("as a dead owner")
        await host.link.drop_owner(LOG)
        pending_owner = await world.add_host(SECOND, FREE)
        await wait_for(lambda: SECOND in host.claims._sequencers.nodes)
        await host._close_if_orphan(LOG)
        assert LOG not in host.drivers or host.drivers[LOG].core.state is LogState.IDLE
        await pending_owner._close_if_orphan(LOG)
        await wait_for(lambda: world.lanes[SECOND].seal_count > 0)

    play(scenario)


# --- Questions to bookies ------------------------------------------------------------------------


class Client:
    """Bookies whose answers are set by hand; None: an answer."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception | None] = {}
        self.asked: list[str] = []

    async def call(self, url: str, _body: bytes, _timeout_us: int) -> bytes:
        self.asked.append(url)
        error = self.errors.get(url.removesuffix("/b/lac"))
        if error is not None:
            raise error
        return b""


def test_what_is_not_reached_is_published_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        clock = {"us": 0}
        monkeypatch.setattr(reaching, "now_us", lambda: clock["us"])
        client, said = Client(), list[list[str]]()
        urls = {BookieId(name): f"http://{name}" for name in ("b0", "b1", "b2")}
        asking = Reaching(cast(Any, client), lambda: urls, said.append)

        async def ask(**errors: Exception) -> None:
            client.errors = {f"http://{name}": error for name, error in errors.items()}
            clock["us"] += PROBE_US
            await asking.ask()

        await ask()
        assert said == [[]]
        assert sorted(client.asked) == [f"{url}/b/lac" for url in urls.values()]
        for _ in range(3):
            await ask(
                b0=OverloadedError("full", 1), b1=NoAnswerError("late"), b2=UnreachableError("no")
            )  # fmt: skip
        assert said == [[], ["b1", "b2"]], "one that has no room is there"
        assert asking.statistics() == {"unreached_bookies": ["b1", "b2"]}
        for _ in range(3):
            await ask()
        assert said == [[], ["b1", "b2"], []]

    asyncio.run(scenario())
