"""The transmit buffer: packing, positions, and which answer an append that never arrived gets (R9).

Source: docs/protocol/write.md "Window and flush".
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.config import parse_log_config
from duramen.core.segment import Totals
from duramen.core.sequencer.effects import Complete
from duramen.core.sequencer.transmit import QueuedAppend, TransmitBuffer
from duramen.ids import Dlsn, EntryId, Epoch
from duramen.limits import ENTRY_BYTES_MAX, ENTRY_TARGET_BYTES
from duramen.units import MS


def append(
    append_id: int, size: int = 10, count: int = 1, deadline_us: int = 10**7
) -> QueuedAppend:
    return QueuedAppend(append_id, b"x" * size, count, None, 1_000 + append_id, deadline_us)


def filled(*appends: QueuedAppend) -> TransmitBuffer:
    buffer = TransmitBuffer()
    for one in appends:
        buffer.push(one, 0)
    buffer.validate()
    return buffer


def admit_all(_append: QueuedAppend) -> bool:
    return True


def test_an_entry_takes_what_waits_up_to_its_target_and_always_one() -> None:
    half = ENTRY_TARGET_BYTES // 2
    buffer = filled(append(1, half), append(2, half), append(3, 1), append(4, 3 * half), append(5))
    assert [one.append_id for one in buffer.take(admit_all)] == [1, 2]
    assert [one.append_id for one in buffer.take(admit_all)] == [3]
    assert [one.append_id for one in buffer.take(admit_all)] == [4]
    assert [one.append_id for one in buffer.take(admit_all)] == [5]
    assert buffer.is_empty and buffer.queued_bytes == 0


def test_what_readers_must_decode_at_once_is_bounded() -> None:
    """A thousand batches of zeroes fit an entry compressed, and no reader's memory decoded."""
    half = ENTRY_BYTES_MAX // 2
    sizes = [half, half, 1, ENTRY_BYTES_MAX, half]
    buffer = filled(
        *(replace(append(number), decoded_bytes=size) for number, size in enumerate(sizes))
    )
    entries = [[one.append_id for one in buffer.take(admit_all)] for _ in range(4)]
    assert entries == [[0, 1], [2], [3], [4]]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=9), st.integers(0, 50), st.integers(0, 50))
def test_positions_follow_one_another(counts: list[int], before: int, start: int) -> None:
    buffer = filled(*(append(i, count=count) for i, count in enumerate(counts)))
    buffer.place(EntryId(4), buffer.take(admit_all), Totals(record_count=before))
    buffer.validate()
    answers = buffer.complete(Epoch(2), EntryId(4), start)
    slot = 0
    for one, count in zip(answers, counts, strict=True):
        assert isinstance(one, Complete)
        assert one.start == Dlsn(Epoch(2), EntryId(4), slot)
        assert one.seq_num == start + before + slot
        slot += count
        assert one.tail[:2] == (Dlsn(Epoch(2), EntryId(4), slot), start + before + slot)
    assert buffer.is_empty and buffer.complete(Epoch(2), EntryId(4), start) == []


def test_what_was_sent_is_uncertain_and_what_was_not_gets_the_code() -> None:
    buffer = filled(append(1, deadline_us=50), append(2, deadline_us=200))
    buffer.place(EntryId(0), buffer.take(admit_all), Totals())
    buffer.push(append(3, deadline_us=50), 0)
    buffer.push(append(4, deadline_us=200), 0)
    answers = buffer.expire(100, "log_unavailable", "why")
    assert [(one.append_id, one.code) for one in answers] == [
        (3, "log_unavailable"), (1, "append_uncertain"),
    ]  # fmt: skip
    buffer.validate()
    done = buffer.complete(Epoch(1), EntryId(0), 0)
    assert [one.append_id for one in done] == [2], "an expired append is not answered twice"
    assert done[0].seq_num == 1, "and yet it keeps its place"
    assert [one.append_id for one in buffer.yield_queued()] == [4]
    assert buffer.queued_bytes == 0


def test_giving_up_answers_everything_once() -> None:
    buffer = filled(append(1), append(2))
    buffer.place(EntryId(0), buffer.take(admit_all), Totals())
    buffer.push(append(3), 0)
    assert [(one.append_id, one.code) for one in buffer.fail_sent("sealed")] == [
        (1, "append_uncertain"), (2, "append_uncertain"),
    ]  # fmt: skip
    assert [one.code for one in buffer.fail_queued("log_ended", "over")] == ["log_ended"]
    assert buffer.is_empty
    assert buffer.fail_sent("again") == [] and buffer.fail_queued("x", "y") == []


@pytest.mark.parametrize(
    ("flush", "arrivals_us", "sizes", "due_us"),
    [
        ({"policy": "immediate"}, (5, 9), (10, 10), 5),
        ({"policy": "periodic"}, (5, 9), (10, 10), 5 + 2 * MS),
        ({"policy": "periodic"}, (5, 9), (10, ENTRY_TARGET_BYTES), 5),
        ({"policy": "size", "size": "20B"}, (5, 9), (10, 9), 5 + 50 * MS),
        ({"policy": "size", "size": "20B"}, (5, 9), (10, 10), 5),
        ({"policy": "size", "size": "1GiB"}, (5, 9), (10, ENTRY_TARGET_BYTES), 5),
    ],
)
def test_what_waits_is_due_as_the_flush_policy_says(
    flush: dict[str, str], arrivals_us: tuple[int, ...], sizes: tuple[int, ...], due_us: int
) -> None:
    buffer = TransmitBuffer()
    policy = parse_log_config({"flush": flush}).flush
    assert buffer.due_us(policy) is None
    for append_id, (at_us, size) in enumerate(zip(arrivals_us, sizes, strict=True)):
        buffer.push(append(append_id, size), at_us)
    assert buffer.due_us(policy) == due_us


@pytest.mark.parametrize(("policy", "wait_us"), [("periodic", 2 * MS), ("size", 50 * MS)])
def test_nobody_waits_for_company_for_more_than_half_of_its_time(policy: str, wait_us: int) -> None:
    """Whoever it is in the queue, and also when others have gone, or come before it again."""
    flush = parse_log_config({"flush": {"policy": policy}}).flush
    buffer = TransmitBuffer()
    rng = random.Random(7)
    for number in range(400):
        now_us = 100 * number
        match rng.randrange(6):
            case 0:
                buffer.place(EntryId(number), buffer.take(admit_all), Totals())
            case 1:
                buffer.expire(now_us, "log_unavailable", "why")
            case 2:
                buffer.push_back([append(1_000 + number, deadline_us=now_us + 5_000)])
            case _:
                buffer.push(append(number, deadline_us=now_us + rng.randrange(50_000)), now_us)
        buffer.validate()
        if buffer.queue:
            queued = list(zip(buffer.queue, buffer._arrivals_us, strict=True))
            half_us = min((one.deadline_us + at_us) // 2 for one, at_us in queued)
            assert buffer.due_us(flush) == min(queued[0][1] + wait_us, half_us)


def test_who_is_oldest_is_known_after_others_have_gone() -> None:
    buffer = TransmitBuffer()
    periodic = parse_log_config({"flush": {"policy": "periodic"}}).flush
    for append_id, (at_us, deadline_us) in enumerate([(1, 50), (2, 10**7), (3, 50), (4, 10**7)]):
        buffer.push(append(append_id, ENTRY_TARGET_BYTES // 4, deadline_us=deadline_us), at_us)
    assert [fail.append_id for fail in buffer.expire(100, "log_unavailable", "why")] == [0, 2]
    buffer.validate()
    assert buffer.due_us(periodic) == 2 + 2 * MS and buffer.count == 2
    buffer.place(EntryId(0), buffer.take(admit_all), Totals())
    buffer.validate()
    assert buffer.due_us(periodic) is None and buffer.count == 2, "in flight counts as well"
