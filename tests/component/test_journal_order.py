"""What the journal acknowledges, and in which order: on a disk that fills up, and once it failed.

Callers are told of their appends in the order in which they were let in, whatever had to wait for
space; what was refused is never written; and after the first failure, of whichever operation on
whichever thread, nobody is told of anything, although every later operation would succeed. What
was told of is compared with what a power cut leaves.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Set

import pytest

from duramen.wire.disk.journal_format import Location, record_bytes
from duramen_bookie.journal.group_commit import IDLE_BEFORE_MARK_S, Journal
from duramen_bookie.journal.writer import JournalPoisoned
from tests.component.journal_world import FILE_BYTES, Opened, add
from tests.component.memory_disk import MemoryDisk
from tests.waiting import WITHIN_S, wait_for

HUGE = 2 * FILE_BYTES
"""No file has room for it but one that is made for it."""

PLENTY = 1_000 * FILE_BYTES


class Gate:
    """Holds the thread that comes to one kind of operation, until it is opened."""

    def __init__(self, operation: str) -> None:
        self.is_reached, self.is_open = threading.Event(), threading.Event()
        self.has_failed = False
        """Whether the operation fails, once the gate is open."""
        self._operation = operation

    def __call__(self, operation: str) -> None:
        if operation == self._operation:
            self.is_reached.set()
            assert self.is_open.wait(WITHIN_S)
            if self.has_failed:
                raise OSError(5, "injected, too")


class Told:
    """A journal, and what its callers were told."""

    def __init__(
        self,
        disk: MemoryDisk,
        file_bytes: int = FILE_BYTES,
        idle_before_mark_s: float = IDLE_BEFORE_MARK_S,
    ) -> None:
        self.disk = disk
        self.let_in: list[int] = []
        self.refused: list[int] = []
        self.numbers: list[int] = []
        self.poisoned: list[JournalPoisoned] = []
        self.late: list[object] = []
        """What was told after the failure."""
        writer = Opened(disk, file_bytes=file_bytes).writer
        self.journal = Journal(
            writer,
            on_poisoned=self.poisoned.append,
            idle_before_mark_s=idle_before_mark_s,
            space_retry_s=0.001,
        )
        self.journal.start()

    def append(self, number: int, size_bytes: int = 20, *, is_urgent: bool = False) -> bool:
        record = add(number, size_bytes)

        def done(where: list[Location]) -> None:
            assert self.journal.read(*where[0]) == record.body
            self.report(number)

        has_room = self.journal.has_room(record_bytes(len(record.body)), is_urgent=is_urgent)
        is_let_in = has_room and self.journal.append_nowait([record], done)
        (self.let_in if is_let_in else self.refused).append(number)
        return is_let_in

    def report(self, number: int) -> None:
        (self.late if self.poisoned else self.numbers).append(number)

    async def wait_told(self) -> None:
        """Everything that was let in was told, in that order, and nothing waits."""
        await wait_for(lambda: len(self.numbers) >= len(self.let_in))
        assert self.numbers == self.let_in
        statistics = self.journal.statistics()
        assert (statistics.waiting_bytes, statistics.waiting_count) == (0, 0)

    def list_durable(self, covered_file_id: int = 0) -> list[int]:
        """The entries that are there after a power cut, in the order of the journal."""
        disk = self.disk.survive(lambda: False)
        disk.total_bytes = PLENTY
        left = Opened(disk, covered_file_id)
        assert not left.result.damages
        return [int(item.header.entry_id) for item in left.delivered]

    async def check_dead(self, expected: list[int], settled: Set[int] = frozenset()) -> None:
        """It has failed: every way in is closed, and nobody is told of more than was expected."""
        await wait_for(lambda: bool(self.poisoned))
        with pytest.raises(JournalPoisoned):
            self.journal.append_nowait([add(99)], self.late.append)
        with pytest.raises(JournalPoisoned):
            self.journal.request_roll(self.late.append)
        self.journal.recycle(self.journal.sealed_file_ids(), lambda: self.late.append("recycled"))
        with pytest.raises(JournalPoisoned):
            await self.journal.close()
        assert (self.numbers, self.late, len(self.poisoned)) == (expected, [], 1)
        durable = self.list_durable(covered_file_id=1 if settled else 0)
        assert set(expected) - settled <= set(durable)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(2 * WITHIN_S):
            await scenario()

    asyncio.run(within())


# --- A disk that fills up -------------------------------------------------------------------------


def test_what_found_the_disk_full_is_written_before_what_came_later() -> None:
    async def scenario() -> None:
        gate = Gate("fdatasync")
        told = Told(MemoryDisk(gate))
        told.append(0)
        await wait_for(gate.is_reached.is_set)
        told.disk.total_bytes = FILE_BYTES
        for number, size_bytes in ((1, HUGE), (2, 20), (3, HUGE), (4, 20)):
            assert told.append(number, size_bytes)
        gate.is_open.set()
        await wait_for(lambda: told.journal.statistics().is_out_of_space)
        await wait_for(lambda: told.numbers == [0])
        assert not told.append(5) and not told.append(6, is_urgent=True), "no more is let in"
        assert told.numbers == [0] and told.journal.statistics().waiting_bytes > 2 * HUGE
        told.disk.total_bytes = PLENTY
        await told.wait_told()
        assert told.journal.statistics().refused_count == 2
        assert told.append(7)
        await told.wait_told()
        await told.journal.close(clean=False)
        assert told.list_durable() == [0, 1, 2, 3, 4, 7]

    run(scenario)


@pytest.mark.parametrize("size_bytes", [2_500, FILE_BYTES // 2])
def test_what_fits_is_written_although_the_next_one_does_not(size_bytes: int) -> None:
    """All of it waited when the disk was found full. The first ones have room in the file, where
    the third one has none, or none behind them."""

    async def scenario() -> None:
        gate = Gate("fdatasync")
        told = Told(MemoryDisk(gate))
        told.append(0, FILE_BYTES // 2)
        await wait_for(gate.is_reached.is_set)
        told.disk.total_bytes = FILE_BYTES
        for number, bytes_ in ((1, 20), (2, 2_500), (3, size_bytes), (4, 20)):
            assert told.append(number, bytes_)
        gate.is_open.set()
        await wait_for(lambda: told.numbers == [0, 1, 2])
        await wait_for(lambda: told.journal.statistics().is_out_of_space)
        assert told.journal.statistics().waiting_count == 2
        assert told.numbers == [0, 1, 2] and told.list_durable() == [0, 1, 2]
        told.disk.total_bytes = PLENTY
        await told.wait_told()
        await told.journal.close(clean=False)
        assert told.list_durable() == [0, 1, 2, 3, 4]

    run(scenario)


def test_what_is_let_in_on_a_full_disk_fits_whatever_waits_before_it() -> None:
    async def scenario() -> None:
        size, gate = 4 * FILE_BYTES, Gate("fdatasync")
        told = Told(MemoryDisk(), file_bytes=size)
        told.disk.total_bytes = size
        told.append(0, size // 2)
        await told.wait_told()
        await wait_for(lambda: told.journal.statistics().is_out_of_space)
        told.disk.hook = gate
        told.append(1)
        await wait_for(gate.is_reached.is_set)
        number = 2
        while told.append(number, 900):
            number += 1
        plain_count = len(told.let_in)
        while told.append(number, 900, is_urgent=True):
            number += 1
        assert len(told.let_in) - 2 > plain_count > 10, "a part of the rest is for the urgent"
        gate.is_open.set()
        await told.wait_told()
        assert told.journal.statistics().file_count == 1
        await told.journal.close(clean=False)
        assert told.list_durable() == told.let_in

    run(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_whenever_the_disk_is_full_the_order_stays_and_the_refused_is_nowhere(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        told = Told(MemoryDisk())
        for first in range(0, 60, 10):
            for number in range(first, first + 10):
                told.disk.total_bytes = rng.choice([FILE_BYTES, PLENTY])
                size_bytes = rng.choice([20, 20, 900, 5_000, 20_000, HUGE])
                told.append(number, size_bytes, is_urgent=rng.random() < 0.2)
                await asyncio.sleep(0)
                assert told.numbers == told.let_in[: len(told.numbers)]
            told.disk.total_bytes = PLENTY
            await told.wait_told()
        await told.journal.close(clean=False)
        assert told.list_durable() == told.let_in
        assert len(told.refused) == told.journal.statistics().refused_count

    run(scenario)


# --- A disk that failed ---------------------------------------------------------------------------


def fail_once(disk: MemoryDisk, operation: str, then: Callable[[str], None] | None = None) -> None:
    """The next operation of a kind fails, and everything after it would succeed."""

    def fail(name: str) -> None:
        if name == operation:
            disk.hook = then
            raise OSError(5, "injected")
        if then is not None:
            then(name)

    disk.hook = fail


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
@pytest.mark.parametrize("size_bytes", [20, 5_000])
def test_after_a_commit_that_failed_nobody_is_told(operation: str, size_bytes: int) -> None:
    """Neither those of that commit, nor those that waited behind it, nor a roll."""

    async def scenario() -> None:
        gate = Gate("fdatasync")
        told = Told(MemoryDisk(gate), idle_before_mark_s=60)
        told.append(0)
        await wait_for(gate.is_reached.is_set)
        for number in range(1, 12):
            told.append(number, size_bytes)
        fail_once(told.disk, operation)
        gate.is_open.set()
        await told.check_dead([0])
        assert told.list_durable() == [0]

    run(scenario)


@pytest.mark.parametrize("operation", ["pwritev", "fsync"])
def test_after_a_roll_that_failed_nobody_is_told(operation: str) -> None:
    """The header of the new file is written, or not; what waits for that file has no place."""

    async def scenario() -> None:
        told = Told(MemoryDisk(), idle_before_mark_s=60)
        told.append(0, 20_000)
        await told.wait_told()
        await wait_for(lambda: told.journal.statistics().is_next_ready)
        fail_once(told.disk, operation)
        assert told.journal.request_roll(told.late.append)
        await told.check_dead([0])
        assert told.list_durable() == [0]

    run(scenario)


def test_after_a_mark_that_failed_nobody_is_told() -> None:
    async def scenario() -> None:
        told = Told(MemoryDisk(), idle_before_mark_s=60)
        told.append(0)
        await told.wait_told()
        await told.journal.close(clean=False)
        again = Told(told.disk, idle_before_mark_s=0.001)
        syncs = iter(("the commit", "its mark"))

        def fail(name: str) -> None:
            if name == "fdatasync" and next(syncs, "") == "its mark":
                again.disk.hook = None
                raise OSError(5, "injected")

        again.disk.hook = fail
        again.append(1)
        await again.check_dead([1])
        assert again.list_durable() == [0, 1]

    run(scenario)


@pytest.mark.parametrize("has_failed_too", [False, True])
@pytest.mark.parametrize("operation", ["rename", "fsync_directory", "create", "truncate"])
def test_what_is_on_its_way_when_the_thread_beside_it_fails_is_not_told(
    operation: str, has_failed_too: bool
) -> None:
    """Files are recycled and made beside the commits: one that is under way ends later, well or
    not, and neither it nor what waits behind it is told of."""

    async def scenario() -> None:
        told = Told(MemoryDisk(), idle_before_mark_s=60)
        told.append(0, 5_000)
        await told.wait_told()
        sealed: list[int] = []
        assert told.journal.request_roll(sealed.append)
        await wait_for(lambda: sealed == [1])
        told.disk.hook = gate = Gate("fdatasync")
        told.append(1)
        await wait_for(gate.is_reached.is_set)
        told.append(2)
        assert told.journal.request_roll(told.late.append)
        fail_once(told.disk, operation, then=gate)
        recycled: list[int] = []
        told.journal.recycle(sealed, lambda: recycled.append(1))
        await wait_for(lambda: bool(told.poisoned))
        # The recycling was done with where making the next file of it has failed.
        assert bool(recycled) == (operation in {"create", "truncate"})
        gate.has_failed = has_failed_too
        gate.is_open.set()
        await told.check_dead([0], settled={0})
        assert told.journal.statistics().waiting_count == 0

    run(scenario)


def test_a_roll_that_had_not_begun_when_the_journal_failed_is_never_told() -> None:
    """The one before it is on the disk by then; there is nothing to roll, and still no answer."""

    async def scenario() -> None:
        told = Told(MemoryDisk(), idle_before_mark_s=60)
        told.append(0, 5_000)
        await told.wait_told()
        sealed: list[int] = []
        assert told.journal.request_roll(sealed.append)
        await wait_for(lambda: sealed == [1])
        told.append(1, 20_000)
        await told.wait_told()
        await wait_for(lambda: told.journal.statistics().is_next_ready)
        told.disk.hook = gate = Gate("fsync")
        assert told.journal.request_roll(sealed.append)
        await wait_for(gate.is_reached.is_set)
        assert told.journal.request_roll(told.late.append)
        fail_once(told.disk, "rename", then=gate)
        told.journal.recycle([1], lambda: told.late.append("recycled"))
        await wait_for(lambda: bool(told.poisoned))
        gate.is_open.set()
        await told.check_dead([0, 1], settled={0})

    run(scenario)


def test_what_was_told_before_the_failure_came_before_its_news() -> None:
    """The loop hears of commits and of the failure in their order, however late it listens."""

    async def scenario() -> None:
        told = Told(MemoryDisk(), idle_before_mark_s=60)
        told.append(0)
        await told.wait_told()
        is_failing = threading.Event()

        def fail(name: str) -> None:
            if name == "fdatasync":
                is_failing.set()
                raise OSError(5, "injected")

        told.disk.hook = gate = Gate("fdatasync")
        told.append(1)
        await wait_for(gate.is_reached.is_set)
        told.append(2)
        told.disk.hook = fail
        gate.is_open.set()
        assert is_failing.wait(WITHIN_S), "this loop does not turn meanwhile"
        assert told.numbers == [0]
        await told.check_dead([0, 1])

    run(scenario)
