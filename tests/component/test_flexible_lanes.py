"""The sequencer's lanes of flexible logs: waves with envelopes, digests, reads of a recovery.

A wave is not insisted upon, since its log has other nodes. The fake client answers as a test
decides, on the real wire format. Source: docs/protocol/waves.md "What the window bounds",
docs/protocol/envelopes.md, R14, R24.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import Any

import pytest

from duramen.core.flexible.recovery import Digest
from duramen.core.placement.node_states import ListReason
from duramen.core.segment import Totals
from duramen.core.sequencer.effects import SendDigest, SendRecoveryRead, SendWave, StoredEntry
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    NodeNumber,
    ledger_of,
)
from duramen.limits import STORE_TIMEOUT_US
from duramen.runtime.http_client import NoAnswerError, OverloadedError
from duramen.runtime.sequencer import bookie_lanes, store_lane
from duramen.units import MIB, MS
from duramen.wire import bookie_calls as calls
from duramen.wire.entry import encode_entry, read_entry_info
from duramen.wire.flexible.envelope import Envelope, parse_envelope
from duramen.wire.flexible.filtered_answers import (
    EnvelopeRun,
    FilteredAnswer,
    pack_filtered_answers,
)
from duramen.wire.flexible.filtered_reads import parse_filtered_reads
from tests.component.bookie_lanes_world import LEDGER, MEMBER, OK, Call, World, run
from tests.pauses import stay
from tests.waiting import wait_for

UNREACHABLE = BookieStatus.UNREACHABLE
COPYSET = (NodeNumber(2), NodeNumber(0), NodeNumber(5))
OTHER = Member(BookieId("b1"), Incarnation("1" * 32))


def make_body(entry: int, size: int = 9) -> bytes:
    return encode_entry(
        ledger_id=LEDGER, entry_id=EntryId(entry), before=Totals(), batches=[b"x" * size],
        record_count=1, after=Totals(1, size),
    )  # fmt: skip


def send(world: World, entry: int, *, size: int = 9, is_recovery: bool = False) -> None:
    wave = SendWave(
        MEMBER, LEDGER, EntryId(entry), NOTHING, make_body(entry, size), COPYSET, EntryId(0),
        is_recovery=is_recovery,
    )  # fmt: skip
    world.lanes.add(wave, world.sink)


def answer(**fields: Any) -> bytes:
    told = FilteredAnswer(
        OK, NOTHING, EntryId(9), is_sealed=True, filter_number=0, next=EntryId(10)
    )
    return pack_filtered_answers([told._replace(**fields)])


async def wait_count(found: Sized, count: int) -> None:
    """Until so many have come."""
    await wait_for(lambda: len(found) >= count)


# --- Waves ---------------------------------------------------------------------------------------


def test_a_wave_carries_the_envelope_of_its_entry() -> None:
    async def scenario(world: World) -> None:
        for entry in (0, 1, 1):  # the same entry twice: two nodes of one wave are spelt once
            send(world, entry)
        await wait_for(lambda: len(world.sink.adds) == 3)
        (call,) = world.client.calls
        for add in calls.parse_any_adds(call.body)[1]:
            crc = read_entry_info(add.entry).crc
            found = parse_envelope(bytes(add.envelope), add.ledger_id, add.entry_id, crc)
            assert found == Envelope(COPYSET, EntryId(0))

    run(scenario)


def test_an_overloaded_bookie_is_not_asked_again_for_a_wave() -> None:
    async def scenario(world: World) -> None:
        world.client.decide = world.client.refuse
        send(world, 0)
        await wait_for(lambda: len(world.sink.adds) == 1)
        send(world, 1, is_recovery=True)  # a recovery has no such choice
        await wait_for(lambda: len(world.client.calls) > 3)
        assert world.sink.adds == [(0, BookieStatus.OVERLOADED)]

    run(scenario)


def test_rows_of_a_wave_that_are_refused_for_overload_are_told_at_once() -> None:
    async def scenario(world: World) -> None:
        async def decide(_: Call) -> bytes:
            return calls.pack_statuses([BookieStatus.OVERLOADED, OK])

        world.client.decide = decide
        send(world, 0)
        send(world, 1)
        await wait_for(lambda: len(world.sink.adds) == 2)
        assert world.sink.adds == [(0, BookieStatus.OVERLOADED), (1, OK)]
        assert len(world.client.calls) == 1

    run(scenario)


def test_a_wave_that_did_not_leave_in_time_was_sent_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_us = 0
    for module in (store_lane, bookie_lanes):
        monkeypatch.setattr(module, "_read_clock_us", lambda: now_us)

    async def scenario(world: World) -> None:
        nonlocal now_us
        gate = asyncio.Event()

        async def fail(_: Call) -> bytes:
            await gate.wait()
            raise NoAnswerError("late")

        world.client.decide = fail
        for entry in range(3):
            send(world, entry)
            await wait_count(world.client.calls, entry + 1)
        send(world, 3)
        now_us = 1
        send(world, 4)
        now_us = STORE_TIMEOUT_US
        world.client.decide = world.client.accept
        gate.set()
        await wait_for(lambda: len(world.sink.adds) == 5)
        assert dict(world.sink.adds)[3] is UNREACHABLE, "it surely stored nothing"
        assert dict(world.sink.adds)[4] is OK
        (lane,) = world.lanes.statistics()["by_bookie"].values()
        assert (lane["adds_not_sent"], lane["waiting_count"], lane["waiting_bytes"]) == (1, 0, 0)

    run(scenario)


def test_a_bookie_that_too_much_waits_for_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_lane, "WAVE_BYTES_MAX", 2 * MIB)

    async def scenario(world: World) -> None:
        async def hold(_: Call) -> bytes:
            await stay()
            raise AssertionError

        world.client.decide = hold
        for entry in range(3):
            send(world, entry, size=MIB - 64)
            await wait_count(world.client.calls, entry + 1)
        send(world, 3, size=MIB - 64)
        send(world, 4, size=MIB - 64)
        world.lanes.watch.on_answered(OTHER, [OK], 0)  # somebody else is heard: it is not us
        send(world, 5)
        assert not world.sink.adds, "its log is told later: it is in the middle of asking"
        await wait_for(lambda: len(world.sink.adds) == 1)
        assert world.sink.adds == [(5, UNREACHABLE)]
        (listed,) = world.lanes.statistics()["listed"]
        assert (listed["bookie"], listed["reason"]) == (MEMBER.bookie, ListReason.SLOW.value)

    run(scenario)


# --- Recovery ------------------------------------------------------------------------------------


def test_a_digest_is_put_together_of_as_many_answers_as_it_takes() -> None:
    async def scenario(world: World) -> None:
        parts = iter([
            answer(digests=[(EntryId(3), 33)], next=EntryId(5), unvouched=((4, 4),)),
            answer(digests=[(EntryId(7), 77)], next=EntryId(9), unvouched=((5, 6),)),
            answer(digests=[], next=EntryId(10)),
        ])  # fmt: skip

        async def decide(_: Call) -> bytes:
            return next(parts)

        world.client.decide = decide
        world.lanes.ask_digest(SendDigest(MEMBER, LEDGER, EntryId(3), EntryId(9)), world.sink)
        await wait_for(lambda: bool(world.sink.digests))
        assert world.sink.others == [OK]
        assert world.sink.digests == [
            Digest({EntryId(3): 33, EntryId(7): 77}, frozenset(map(EntryId, (4, 5, 6))))
        ]
        asked = [one for call in world.client.calls for one in parse_filtered_reads(call.body)[1]]
        assert [(one.wanted.first, one.wanted.last) for one in asked] == [(3, 9), (5, 9), (9, 9)]
        assert {(one.wanted.seal_epoch, one.is_digest, one.is_cut) for one in asked} == {
            (1, True, False)
        }

    run(scenario)


@pytest.mark.parametrize(
    ("broken", "status"),
    [
        (answer(digests=[], next=EntryId(3)), BookieStatus.UNKNOWN),  # it would be asked for ever
        (answer(digests=[(EntryId(1), 1)]), BookieStatus.UNKNOWN),
        (answer(status=BookieStatus.WRONG_INCARNATION, next=EntryId(3)), None),
        (OverloadedError("busy", retry_after_us=1 * MS), BookieStatus.OVERLOADED),
    ],
)
def test_a_digest_that_is_none_says_nothing(
    broken: bytes | Exception, status: BookieStatus | None
) -> None:
    async def scenario(world: World) -> None:
        async def decide(_: Call) -> bytes:
            if isinstance(broken, Exception):
                raise broken
            return broken

        world.client.decide = decide
        world.lanes.ask_digest(SendDigest(MEMBER, LEDGER, EntryId(3), EntryId(9)), world.sink)
        await wait_for(lambda: bool(world.sink.digests))
        assert world.sink.digests == [None]
        assert world.sink.others == [status or BookieStatus.WRONG_INCARNATION]

    run(scenario)


def test_a_recovery_reads_the_body_with_whom_its_envelope_names() -> None:
    found = iter([
        answer(
            entries=[(EntryId(4), make_body(4))], next=EntryId(5),
            runs=[EnvelopeRun(EntryId(4), EntryId(4), Envelope(COPYSET))],
        ),
        answer(entries=[(EntryId(4), make_body(4))], next=EntryId(5)),
        answer(entries=[(EntryId(4), make_body(4)[:-1] + b"y")], next=EntryId(5)),
        answer(next=EntryId(5)),
        answer(next=EntryId(5), unvouched=((4, 4),)),
    ])  # fmt: skip

    async def scenario(world: World) -> None:
        async def decide(_: Call) -> bytes:
            return next(found)

        world.client.decide = decide
        for count in range(1, 6):
            effect = SendRecoveryRead(MEMBER, LEDGER, EntryId(4), is_flexible=True)
            world.lanes.read(effect, world.sink)
            await wait_count(world.sink.others, count)
        unknown = BookieStatus.UNKNOWN
        assert world.sink.others == [OK, OK, unknown, BookieStatus.NO_ENTRY, unknown]
        body = make_body(4)
        whole = StoredEntry(
            body, Totals(1, 9), False, record_count=1, identity=read_entry_info(body).crc,
            copyset=COPYSET,
        )  # fmt: skip
        assert world.sink.stored[0] == whole
        without = world.sink.stored[1]
        assert without is not None and without.copyset == ()
        for call in world.client.calls:
            ((asked,),) = parse_filtered_reads(call.body)[1:]
            assert (asked.wanted.first, asked.wanted.last, asked.wanted.seal_epoch) == (4, 4, 1)
            assert asked.with_envelopes and asked.read_filter is None

    run(scenario)


def test_an_entry_of_another_log_is_none_of_a_flexible_one() -> None:
    other = encode_entry(
        ledger_id=ledger_of(LogId(10), Epoch(1)), entry_id=EntryId(4), before=Totals(),
        batches=[b"x" * 9], record_count=1, after=Totals(1, 9),
    )  # fmt: skip

    async def scenario(world: World) -> None:
        async def decide(_: Call) -> bytes:
            return answer(entries=[(EntryId(4), other)], next=EntryId(5))

        world.client.decide = decide
        world.lanes.read(SendRecoveryRead(MEMBER, LEDGER, EntryId(4), is_flexible=True), world.sink)
        await wait_for(lambda: bool(world.sink.others))
        assert (world.sink.others, world.sink.stored) == ([BookieStatus.UNKNOWN], [None])

    run(scenario)
