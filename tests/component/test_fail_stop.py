"""A broken invariant stops the log, the bookie or the reader that it is in, and nothing else.

The core of one log is made to raise wherever it is entered; the log is let go, what waits is told
that it is uncertain, others go on, and the next owner recovers. A class test looks for ways into a
core that nobody guards. Source: duramen.runtime.sequencer.log_driver, docs/protocol/ownership.md.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duramen.core.hashing import rank_nodes
from duramen.core.reading.reader import Reader
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.sequencer import log_driver
from duramen.wire.sequencer_calls import AppendedBatch
from tests.component.host_world import HostWorld, host_world
from tests.component.readproxy_world import World as ReadWorld
from tests.component.readproxy_world import run as run_reads
from tests.waiting import wait_for

LOG, OTHER = LogId(9), LogId(10)
FIRST, SECOND = rank_nodes("ns/log", {"s0": 1.0, "s1": 1.0})

WHEN_OPEN = ("append", "pump", "take_effects", "on_add", "wakeup_at_us")
WHEN_TAKEN = ("take_over", "on_metadata", "on_seal", "on_commit")

READS_OF_CORE = frozenset({"statistics"})
"""What cannot break a core, or is asked by nobody who would suffer."""


def play(scenario: Callable[[HostWorld], Awaitable[None]]) -> None:
    async def work() -> None:
        async with host_world() as world:
            await world.add_log(LOG)
            await world.add_log(OTHER, "other")
            await scenario(world)

    asyncio.run(work())


def break_core(core: Any, name: str) -> None:
    """From now on an input of the core raises."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError(f"planted in {name}")

    setattr(core, name, fail)


def told(fate: Any) -> str:
    assert isinstance(fate, DuramenError), fate
    return fate.code


@pytest.mark.parametrize("name", WHEN_OPEN)
def test_an_open_log_whose_core_breaks_is_let_go(name: str) -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST)
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        assert isinstance(await world.append(host, OTHER), AppendedBatch)
        driver = host.drivers[LOG]
        host._context.rolls.enter(LOG)
        break_core(driver.core, name)
        waiting = world.append(host, LOG)
        await wait_for(lambda: driver.fault is not None)
        assert LOG not in host.drivers
        assert LOG not in host._context.rolls, "a place that nobody leaves is one less for ever"
        assert host.statistics()["broken_invariants"] == 1
        assert "planted" in host.stories.report(LOG)[-1]["reason"]
        assert isinstance(await world.append(host, OTHER), AppendedBatch), "a log beside it goes on"
        await wait_for(waiting.done)

        await wait_for(lambda: not world.owner_exists(LOG))
        pending_owner = await world.add_host(SECOND)
        answer = await world.append(pending_owner, LOG, tried=(FIRST,))
        assert isinstance(answer, AppendedBatch), answer

    play(scenario)


@pytest.mark.parametrize("name", WHEN_TAKEN)
def test_a_takeover_whose_core_breaks_leaves_the_log_to_others(name: str) -> None:
    async def scenario(world: HostWorld) -> None:
        host, pending_owner = await world.add_host(FIRST), await world.add_host(SECOND)
        before = await world.append(host, LOG)
        assert isinstance(before, AppendedBatch)
        host.drivers[LOG].release()  # unclosed, so that there is something to seal
        await wait_for(lambda: LOG not in host.drivers)
        driver = host.drive(LOG)
        break_core(driver.core, name)
        fate = world.append(host, LOG)
        await wait_for(lambda: driver.fault is not None)
        await wait_for(fate.done)
        assert isinstance(await world.append(pending_owner, LOG, tried=(FIRST,)), AppendedBatch)

    play(scenario)


def test_what_waits_at_a_broken_log_is_uncertain_and_what_comes_later_is_not() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST)
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        world.lanes[FIRST].is_silent = True
        waiting = [world.append(host, LOG) for _ in range(3)]
        driver = host.drivers[LOG]
        break_core(driver.core, "pump")
        driver.flush()
        assert [told(await fate) for fate in waiting] == ["append_uncertain"] * 3
        late: list[Any] = []
        driver.append(world.make_append(), late.append)
        assert told(late[0]) == "log_unavailable", "the core never had it"

    play(scenario)


def test_every_way_into_a_core_is_guarded() -> None:
    """A method of the driver that enters the core stops the log at its faults."""
    tree = ast.parse(inspect.getsource(log_driver))
    (driver,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "LogDriver"]
    unguarded = []
    for method in driver.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        entered = {
            call.func.attr
            for call in ast.walk(method)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and ast.unparse(call.func.value) == "self.core"
        }
        is_guarded = any(ast.unparse(d) == "stops_at_faults" for d in method.decorator_list)
        is_spawned = f"self._spawn(self.{method.name}, " in inspect.getsource(log_driver)
        if entered - READS_OF_CORE and not (is_guarded or is_spawned):
            unguarded.append(f"{method.name}: {sorted(entered)}")
    called_by_flush = [name for name in unguarded if not name.startswith("_set_timer")]
    assert called_by_flush == []


@pytest.mark.parametrize("name", ["on_read_answer", "on_metadata", "on_timer"])
def test_a_reader_whose_core_breaks_fails_its_read_alone(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def scenario(world: ReadWorld) -> None:
        await world.fill()
        with monkeypatch.context() as patch:
            patch.setattr(Reader, name, fail)
            answer = await world.get("?from=seq:31&wait=3s")
            assert answer.status_code == 500, answer.text
        assert len((await world.read("?from=head"))["records"]) == 31

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("planted")

    run_reads(scenario)
