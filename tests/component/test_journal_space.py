"""The journal on disks that are full or bad, and what its threads make of requests and of space.

A full disk costs the next file and nothing else; a disk that fails poisons; a bad spare is given
up; what the page cache shows and the disk does not hold is not believed.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from duramen.wire.disk.journal_format import BLOCK_BYTES
from duramen_bookie.journal.group_commit import Journal
from duramen_bookie.journal.names import generation_name, spare_name
from duramen_bookie.journal.recycling import NoSpaceError
from duramen_bookie.journal.writer import JournalPoisoned, JournalWriter
from tests.component.journal_world import FILE_BYTES, Cutter, Opened, add, fill, refuse_poison
from tests.component.memory_disk import MemoryDisk
from tests.waiting import wait_for

# --- Disks that are full or bad -------------------------------------------------------------------


def test_a_full_disk_costs_the_next_file_and_nothing_else() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    disk.total_bytes = FILE_BYTES + 100
    assert not opened.writer.prepare_next()
    assert opened.writer.is_out_of_space and not opened.writer.is_poisoned
    number = 0
    while opened.writer.room_bytes > 1000:
        opened.writer.commit([add(number, 800)])
        number += 1
    with pytest.raises(NoSpaceError):
        opened.writer.commit([add(number, 2000)])
    assert opened.writer.roll() == 0
    opened.writer.commit([add(number, 10)])
    assert list(disk.files) == ["j/000001.dj"]
    disk.total_bytes = 10 * FILE_BYTES
    opened.writer.commit([add(number + 1, 2000)])
    assert not opened.writer.is_out_of_space and opened.writer.file_id > 1
    assert Opened(disk).numbers == set(range(number + 2))


def test_a_preallocation_that_finds_the_disk_full_leaves_nothing_behind() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)

    def fill_up(operation: str) -> None:
        if operation == "preallocate":
            raise OSError(28, "somebody else was faster")

    disk.hook = fill_up
    assert not opened.writer.prepare_next() and not opened.writer.is_poisoned
    assert list(disk.files) == ["j/000001.dj"]
    disk.hook = None
    assert opened.writer.prepare_next()


def test_a_disk_that_fails_at_the_next_file_poisons() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)

    def fail(operation: str) -> None:
        raise OSError(5, "injected")

    disk.hook = fail
    with pytest.raises(JournalPoisoned):
        opened.writer.prepare_next()
    disk.hook = None
    with pytest.raises(JournalPoisoned):
        opened.writer.commit([add(0)])


def test_an_unclean_start_on_a_full_disk_gets_a_small_file() -> None:
    disk = MemoryDisk()
    opened = Opened(disk, file_bytes=1 << 20)
    fill(opened)
    disk.total_bytes = (1 << 20) + 64 * BLOCK_BYTES
    again = Opened(disk, file_bytes=1 << 20)
    assert again.numbers == set(range(8)) and again.writer.is_out_of_space
    assert again.writer.room_bytes > 1000
    again.writer.commit([add(8)])
    assert Opened(disk, file_bytes=1 << 20).numbers == set(range(9))
    disk.total_bytes = disk.total_bytes - disk.usage("j").free_bytes
    with pytest.raises(OSError, match="no room"):
        Opened(disk, file_bytes=1 << 20)


def test_a_spare_that_cannot_be_read_is_given_up() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    opened.writer.commit([add(0)])
    opened.writer.roll()
    opened.writer.recycle([1])
    disk.files[f"j/{spare_name(1)}"].bad_blocks = {3}
    assert opened.writer.prepare_next()
    ready = opened.writer.supply.next
    assert ready is not None and not ready.is_recycled
    opened.check_no_leak()
    assert not disk.exists(f"j/{generation_name(ready.file_id)}")


def test_the_tail_is_read_past_the_page_cache() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    fill(opened)

    def fail(operation: str) -> None:
        if operation == "fdatasync":
            disk.hook = None
            raise OSError(5, "injected")

    disk.hook = fail
    with pytest.raises(JournalPoisoned):
        opened.writer.commit([add(8)])
    # The process starts anew, the machine does not: the cache still shows what the disk lost.
    again = Opened(disk)
    assert again.numbers == set(range(8)) and not again.result.damages
    assert Opened(disk.survive(lambda: False)).numbers == set(range(8))


def test_what_a_killed_process_left_in_the_page_cache_is_synced_before_it_is_built_on() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    opened.writer.commit([add(0)])
    opened.writer.prepare_next()
    disk.hook = Cutter(1)
    with pytest.raises(JournalPoisoned):
        opened.writer.roll()
    disk.hook = None
    again = Opened(disk)
    assert again.result.last_file_id == 2 and again.numbers == {0}
    last = Opened(disk.survive(lambda: False))
    assert last.numbers == {0} and not last.result.damages


# --- The thread -----------------------------------------------------------------------------------


def start_journal(disk: MemoryDisk, file_bytes: int = FILE_BYTES, **options: object) -> Journal:
    options.setdefault("on_poisoned", refuse_poison)
    writer = Opened(disk, file_bytes=file_bytes).writer
    journal = Journal(writer, **options)  # type: ignore[arg-type]
    journal.start()
    return journal


async def append(journal: Journal, number: int, size_bytes: int = 20) -> None:
    waiting = asyncio.get_running_loop().create_future()
    assert journal.append_nowait([add(number, size_bytes)], waiting.set_result)
    await asyncio.wait_for(waiting, 20)


def test_a_roll_and_the_recycling_are_requests() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        journal = start_journal(disk)
        sealed: list[int] = []
        done: list[int] = []
        for round_ in range(5):
            await append(journal, round_)
            assert journal.request_roll(sealed.append)
            await wait_for(lambda: len(sealed) > len(done))
            assert journal.sealed_file_ids() == sealed[-1:]
            journal.recycle(sealed[-1:], partial(done.append, round_))
            await wait_for(lambda: len(sealed) == len(done))
            await wait_for(lambda: journal.statistics().is_next_ready)
        assert journal.statistics().recycled_count > 2
        await journal.close()
        assert not journal.request_roll(sealed.append)
        journal.recycle([], done.clear)
        await asyncio.sleep(0)
        assert len(done) == 5
        again = Opened(disk, sealed[-1])
        assert again.result.is_clean and not again.delivered
        again.check_no_leak()

    asyncio.run(scenario())


def test_the_next_file_is_made_beside_the_commits() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        journal = start_journal(disk)
        for number in range(6):
            await append(journal, number, 3000)
        await wait_for(lambda: journal.statistics().is_next_ready)
        assert journal.statistics().file_id == 1
        for number in range(6, 12):
            await append(journal, number, 3000)
        assert journal.statistics().file_id == 2
        await journal.close()

    asyncio.run(scenario())


def test_on_a_full_disk_the_rest_of_the_file_is_for_the_urgent() -> None:
    async def scenario() -> None:
        disk, size = MemoryDisk(), 4 * FILE_BYTES
        journal = start_journal(disk, size, space_retry_s=0.001)
        disk.total_bytes = size
        number = 0
        await append(journal, number, size // 2)
        await wait_for(lambda: journal.statistics().is_out_of_space)
        while journal.has_room(1000):
            number += 1
            await append(journal, number, 900)
        assert journal.has_room(1000, is_urgent=True)
        urgent: list[object] = []
        assert journal.append_nowait([add(number + 1)], urgent.append)
        await wait_for(lambda: bool(urgent))
        disk.total_bytes = 10 * size
        await wait_for(lambda: journal.has_room(80_000))
        for more in range(number + 2, number + 10):
            await append(journal, more, 15_000)
        assert journal.statistics().file_id > 1
        await journal.close()
        assert Opened(disk, file_bytes=size).numbers == set(range(number + 10))

    asyncio.run(scenario())


def refuse(where: object) -> None:
    raise AssertionError(where)


def test_what_was_let_in_before_the_disk_was_full_waits_for_space() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        journal = start_journal(disk, space_retry_s=0.001)
        disk.total_bytes = FILE_BYTES
        done: list[object] = []
        assert journal.append_nowait([add(0, 2 * FILE_BYTES)], done.append)
        await wait_for(lambda: journal.statistics().is_out_of_space)
        assert not done and not journal.statistics().is_poisoned
        disk.total_bytes = 10 * FILE_BYTES
        await wait_for(lambda: bool(done))
        await journal.close()
        assert Opened(disk).numbers == {0}

    asyncio.run(scenario())


def test_what_waits_for_space_at_a_stop_is_not_answered() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        journal = start_journal(disk, space_retry_s=60.0)
        disk.total_bytes = FILE_BYTES
        assert journal.append_nowait([add(0, 2 * FILE_BYTES)], refuse)
        await wait_for(lambda: journal.statistics().is_out_of_space)
        await journal.close()
        assert Opened(disk).result.is_clean

    asyncio.run(scenario())


def test_files_are_given_up_wherever_their_last_reader_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A collection may begin under the journal's own lock: the callback must not wait for it."""

    async def scenario() -> None:
        journal = start_journal(MemoryDisk())
        await append(journal, 0)
        sealed: list[int] = []
        journal.request_roll(sealed.append)
        await wait_for(lambda: bool(sealed))
        done: list[int] = []
        left = [partial(journal.recycle, sealed, partial(done.append, 1))]

        def let_go(writer: JournalWriter) -> int:
            if left:
                left.pop()()
            return 1 << 20

        monkeypatch.setattr(JournalWriter, "room_bytes", property(let_go))
        journal.statistics()
        await wait_for(lambda: done == [1])
        await journal.close()

    asyncio.run(scenario())


def test_a_disk_that_fails_beside_the_commits_poisons() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        poisoned: list[JournalPoisoned] = []
        journal = start_journal(disk, on_poisoned=poisoned.append)
        await append(journal, 0)

        def fail(operation: str) -> None:
            if operation == "rename":
                raise OSError(5, "injected")

        sealed: list[int] = []
        journal.request_roll(sealed.append)
        await wait_for(lambda: bool(sealed))
        disk.hook = fail
        journal.recycle(sealed, lambda: refuse(None))
        await wait_for(lambda: bool(poisoned))
        with pytest.raises(JournalPoisoned):
            journal.append_nowait([add(1)], refuse)
        with pytest.raises(JournalPoisoned):
            await journal.close()
        assert len(poisoned) == 1

    asyncio.run(scenario())
