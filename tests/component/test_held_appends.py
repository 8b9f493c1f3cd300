"""Appends that wait until a log's owner is known, and takeovers that wait for their turn.

Hosts on one store in memory, before a bookie that does everything at once (`host_world`). Whose a
log is in the end is in `test_ownership`. Source: docs/protocol/ownership.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from duramen.config import Window
from duramen.ids import LogId, metadata_log_of
from duramen.runtime.stores.metadata_store import Op
from duramen.wire.sequencer_calls import AppendedBatch, Redirect
from duramen_sequencer import log_host
from duramen_sequencer.log_host import LogHost
from tests.component.host_world import HostWorld
from tests.component.ownership_world import FIRST, GONE, LOG, SECOND, code_of, play
from tests.waiting import wait_for


def test_no_more_small_appends_wait_for_a_logs_owner_than_for_a_log() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST)
        waiting = [world.append(host, LOG) for _ in range(Window().entries)]
        refused = world.append(host, LOG)
        assert refused.done() and code_of(refused.result()) == "window_full"
        assert not any(append.done() for append in waiting), "the owner is still looked up"
        results = await asyncio.gather(*waiting)
        starts = [result.start.seq_num for result in results if isinstance(result, AppendedBatch)]
        assert starts == list(range(len(waiting)))

    play(scenario)


def test_nobody_appends_to_a_metadata_log() -> None:
    async def scenario(world: HostWorld) -> None:
        host, metadata_log = await world.add_host(FIRST), metadata_log_of(LOG)
        await world.add_log(metadata_log)
        assert code_of(await world.append(host, metadata_log)) == "log_not_found"
        assert not world.owner_exists(metadata_log) and metadata_log not in host.drivers

    play(scenario)


def test_an_append_whose_time_ran_out_while_its_log_left_is_not_stored_any_more() -> None:
    async def scenario(world: HostWorld) -> None:
        host = await world.add_host(FIRST)
        assert isinstance(await world.append(host, LOG), AppendedBatch)
        assert await host.leave(LOG, "a test")
        late, early = world.append(host, LOG, timeout_s=0), world.append(host, LOG)
        assert not late.done(), "both wait for the log's next owner"
        host.release_held(LOG)
        assert late.done() and code_of(late.result()) == "log_unavailable"
        result = await early
        assert isinstance(result, AppendedBatch) and result.start.seq_num == 1

    play(scenario)


def count_takeovers(host: LogHost) -> int:
    found = host.statistics()
    return int(found["takeovers_running"] + found["takeovers_waiting"])


def test_a_takeover_that_comes_to_nothing_gives_its_turn_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a log waits for its turn another sequencer takes it: there is nothing left to do."""

    async def scenario(world: HostWorld) -> None:
        monkeypatch.setattr(log_host, "_TAKEOVER_COUNT", 1)
        host = await world.add_host(FIRST)
        await world.add_host(SECOND, {"weight": 0})
        await wait_for(lambda: host.claims.url_of(SECOND) is not None)
        taken, next_one = LogId(100), LogId(101)
        for log_id in (taken, next_one):
            await world.add_log(log_id, f"log-{log_id}")
        store, go_on = world.stores[FIRST], asyncio.Event()
        commit = store.commit

        async def dawdle(ops: Sequence[Op]) -> tuple[int, ...]:
            await go_on.wait()
            return await commit(ops)

        monkeypatch.setattr(store, "commit", dawdle)
        appends = []
        for log_id in (LOG, taken, next_one):
            appends.append(world.append(host, log_id))
            await wait_for(lambda: count_takeovers(host) == len(appends))
        await world.own_elsewhere(taken, SECOND, GONE)
        go_on.set()
        result = await appends[1]
        assert isinstance(result, Redirect) and result.sequencer_id == SECOND
        assert host.statistics()["takeovers_waiting"] == 0, "its turn was the next one's at once"
        for append in (appends[0], appends[2]):
            assert isinstance(await append, AppendedBatch)

    play(scenario)
