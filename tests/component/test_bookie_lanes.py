"""The sequencer's lanes before bookies that are full: alive, asked again, not yet failed.

The client is a fake that answers calls as a test decides, on the real wire format. Not here: what
the cores do with a status. Source: docs/protocol/wire.md "Overload".
"""

from __future__ import annotations

import asyncio

import pytest

from duramen.core.sequencer.effects import SendLac, SendRecoveryRead, SendSeal
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, LogId
from duramen.limits import STORE_TIMEOUT_US
from duramen.runtime.http_client import NoAnswerError, OverloadedError, UnreachableError
from duramen.runtime.sequencer import store_lane
from duramen.units import MS
from duramen.wire import bookie_calls as calls
from tests.component.bookie_lanes_world import (
    BUSY,
    LEDGER,
    LOG,
    MEMBER,
    OK,
    Call,
    World,
    run,
)
from tests.pauses import stay
from tests.waiting import wait_for

OVERLOADED = BookieStatus.OVERLOADED


def test_a_frame_refused_for_overload_is_sent_again_as_advised() -> None:
    async def scenario(world: World) -> None:
        world.client.decide = world.client.refuse_first(3)
        world.add(0, 1)
        await wait_for(lambda: len(world.sink.adds) == 2)
        assert world.sink.adds == [(0, OK), (1, OK)]
        assert [call.entries for call in world.client.calls] == [[0, 1]] * 4
        timeouts_us = [call.timeout_us for call in world.client.calls]
        assert timeouts_us[0] <= STORE_TIMEOUT_US, "one time-out for all tries"
        assert timeouts_us == sorted(timeouts_us, reverse=True)
        assert world.lanes.statistics()["calls_overloaded"] == 3

    run(scenario)


def test_rows_refused_for_overload_are_sent_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_lane, "OVERLOADED_PAUSE_US", 1 * MS)

    async def scenario(world: World) -> None:
        async def decide(call: Call) -> bytes:
            if len(world.client.calls) == 1:
                return calls.pack_statuses([OVERLOADED, OK, OVERLOADED])
            return await world.client.accept(call)

        world.client.decide = decide
        world.add(0, 1, 2)
        await wait_for(lambda: len(world.sink.adds) == 3)
        assert world.sink.adds == [(1, OK), (0, OK), (2, OK)], "what was taken is told at once"
        assert [call.entries for call in world.client.calls] == [[0, 1, 2], [0, 2]]
        assert world.lanes.statistics()["by_bookie"]["b0 append"]["adds_overloaded"] == 2

    run(scenario)


@pytest.mark.parametrize("is_whole_call", [True, False])
def test_a_bookie_that_stays_full_for_the_whole_time_out_fails_its_member(
    monkeypatch: pytest.MonkeyPatch, *, is_whole_call: bool
) -> None:
    monkeypatch.setattr(store_lane, "STORE_TIMEOUT_US", 20 * MS)
    monkeypatch.setattr(store_lane, "OVERLOADED_PAUSE_US", 5 * MS)

    async def scenario(world: World) -> None:
        async def refuse_rows(call: Call) -> bytes:
            return calls.pack_statuses([OVERLOADED] * len(call.entries))

        world.client.decide = world.client.refuse if is_whole_call else refuse_rows
        world.add(0)
        await wait_for(lambda: len(world.sink.adds) == 1)
        assert world.sink.adds == [(0, OVERLOADED)]
        assert world.lanes.statistics()["by_bookie"]["b0 append"]["frames_in_flight"] == 0

    run(scenario)


def test_advice_beyond_the_time_out_is_not_ignored_but_reported() -> None:
    async def scenario(world: World) -> None:
        async def refuse(_call: Call) -> bytes:
            raise OverloadedError("HTTP 503", retry_after_us=STORE_TIMEOUT_US)

        world.client.decide = refuse
        world.add(0)
        await wait_for(lambda: len(world.sink.adds) == 1)
        assert world.sink.adds == [(0, OVERLOADED)] and len(world.client.calls) == 1

    run(scenario)


def test_seals_and_lacs_are_asked_again_and_recovery_reads_go_elsewhere() -> None:
    async def scenario(world: World) -> None:
        world.client.decide = world.client.refuse_first(1)
        world.lanes.seal(SendSeal(MEMBER, LOG, Epoch(1)), world.sink)
        await wait_for(lambda: world.sink.others == [OK])
        world.client.calls.clear()
        world.lanes.send_lac(SendLac(MEMBER, LEDGER, EntryId(3)), world.sink)
        await wait_for(lambda: world.sink.others == [OK, OK])
        world.client.calls.clear()
        world.lanes.read(SendRecoveryRead(MEMBER, LEDGER, EntryId(3)), world.sink)
        await wait_for(lambda: world.sink.others == [OK, OK, OVERLOADED])
        assert len(world.client.calls) == 1

    run(scenario)


def test_write_backs_do_not_wait_behind_appends_that_find_no_room() -> None:
    async def scenario(world: World) -> None:
        async def decide(call: Call) -> bytes:
            (service,) = {add.service for add in calls.parse_adds(call.body)[1]}
            if service is calls.ServiceClass.APPEND:
                raise BUSY
            return await world.client.accept(call)

        world.client.decide = decide
        world.add(*range(8), size=4 << 20)  # more frames than may be in flight
        world.add(100, is_recovery=True)
        await wait_for(lambda: bool(world.sink.adds))
        assert world.sink.adds == [(100, OK)]
        append_lane = world.lanes.statistics()["by_bookie"]["b0 append"]
        assert (append_lane["frames_in_flight"], append_lane["waiting_count"]) == (3, 5)
        world.client.decide = world.client.accept
        await wait_for(lambda: len(world.sink.adds) == 9)

    run(scenario)


def test_a_log_with_much_to_send_delays_the_others_by_one_add() -> None:
    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def hold(call: Call) -> bytes:
            await gate.wait()
            return await world.client.accept(call)

        world.client.decide = hold
        world.add(*range(12), size=4 << 20)  # three frames are under way, nine adds wait
        await wait_for(lambda: len(world.client.calls) == 3)
        world.add(100, 101, log_id=LogId(10))
        world.add(200, log_id=LogId(11))
        gate.set()
        await wait_for(lambda: len(world.sink.adds) == 15)
        sent = [entry for call in world.client.calls for entry in call.entries]
        assert sent[:3] == [0, 1, 2]
        assert sent.index(100) == 4 and sent.index(200) == 5, "one add of the hot log before them"
        assert sent.index(101) == 7, "and one between the two of the same log"
        assert [entry for entry in sent if entry < 100] == list(range(12)), "in order within a log"
        lane = world.lanes.statistics()["by_bookie"]["b0 append"]
        assert (lane["waiting_count"], lane["waiting_logs"], lane["waiting_bytes"]) == (0, 0, 0)

    run(scenario)


@pytest.mark.parametrize(
    ("error", "status", "count"),
    [
        (UnreachableError("gone"), BookieStatus.UNREACHABLE, 5),
        (NoAnswerError("late"), BookieStatus.TIMEOUT, 1),
    ],
)
def test_other_failures_are_reported_at_once(
    error: Exception, status: BookieStatus, count: int
) -> None:
    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def fail(_call: Call) -> bytes:
            await gate.wait()
            raise error

        async def hold(_call: Call) -> bytes:
            await stay()
            raise AssertionError

        world.client.decide = fail
        world.add(0, size=4 << 20)
        await wait_for(lambda: len(world.client.calls) == 1)
        world.client.decide = hold
        world.add(*range(1, 7), size=4 << 20)
        await wait_for(lambda: len(world.client.calls) == 3)
        gate.set()
        await wait_for(lambda: len(world.sink.adds) == count)
        assert {found for _, found in world.sink.adds} == {status}
        assert world.sink.adds[0] == (0, status), "and what waits behind, if nobody is there"

    run(scenario)
