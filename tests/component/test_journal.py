"""The journal on a disk that can lose what was not synced, and on the real one.

Power cuts are enumerated: at every operation, with all, none or some of
the unsynced sectors kept. No cut may lose what was acknowledged, bring back what was absent, or
look like corruption. Here too: group commit, poisoning, flipped bits, and SIGKILL of a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from duramen.ids import NOTHING, EntryId, Incarnation
from duramen.wire.disk.journal_format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    JournalRecord,
    Location,
    RecordKind,
    record_bytes,
)
from duramen_bookie.file_system import PosixFileSystem
from duramen_bookie.journal.findings import (
    Damage,
    DamageKind,
    JournalMismatch,
    ReplayedRecord,
    ReplayResult,
)
from duramen_bookie.journal.group_commit import Journal
from duramen_bookie.journal.replay import open_journal, replay
from duramen_bookie.journal.writer import JournalPoisoned, JournalWriter
from tests.component.journal_world import (
    FILE_BYTES,
    INCARNATION,
    LEDGER,
    Cutter,
    add,
    refuse_poison,
)
from tests.component.memory_disk import MemoryDisk, MemoryFile, PowerCut
from tests.waiting import wait_for


class Opened:
    """A journal that was opened, and the numbers that replay delivered."""

    def __init__(self, disk: MemoryDisk, file_bytes: int = FILE_BYTES) -> None:
        self.delivered: list[ReplayedRecord] = []
        self.writer: JournalWriter
        self.result: ReplayResult
        self.writer, self.result = open_journal(
            "j", disk, INCARNATION, self.delivered.append,
            now_unix_us=lambda: 1_700_000_000_000_000, file_bytes=file_bytes,
        )  # fmt: skip
        for item in self.delivered:
            body = self.writer.read(item.location)
            assert body.startswith(b"%d:" % item.header.entry_id) and body[:64] == item.body

    @property
    def numbers(self) -> list[int]:
        return [int(item.header.entry_id) for item in self.delivered]


def fill(disk: MemoryDisk, commits: int = 4, each: int = 2) -> Opened:
    """A fresh journal with small commits 0 … , stopped without an end."""
    opened = Opened(disk)
    for commit in range(commits):
        opened.writer.commit([add(commit * each + index) for index in range(each)])
    return opened


# --- Opening again --------------------------------------------------------------------------------


def test_a_clean_stop_is_continued_in_the_same_file() -> None:
    disk = MemoryDisk()
    opened = fill(disk)
    opened.writer.write_end()
    for round_ in range(3):
        opened = Opened(disk)
        assert opened.result.is_clean and opened.result.cut is None and len(disk.files) == 1
        assert opened.numbers == list(range(8 + round_))
        opened.writer.commit([add(8 + round_)])
        opened.writer.write_end()
    assert not opened.result.damages


def test_every_start_after_an_unclean_stop_cuts_and_copies() -> None:
    disk = MemoryDisk()
    opened = fill(disk)
    opened = Opened(disk)
    assert not opened.result.is_clean and not opened.result.damages
    assert opened.numbers == list(range(8)) and opened.result.torn_bytes == 0
    assert [item.header.entry_id for item in opened.result.tail] == [6, 7]
    assert [item.location.file_id for item in opened.delivered] == [1] * 6 + [2] * 2
    assert opened.writer.next_commit > opened.result.next_commit > 1 << 16
    for _ in range(3):
        opened = Opened(disk)
        assert opened.numbers == list(range(8)) and not opened.result.tail
        assert not opened.result.is_clean and not opened.result.damages
    assert len(disk.files) == 5


def test_commit_numbers_and_file_ids_never_repeat() -> None:
    disk = MemoryDisk()
    seen: list[int] = []
    opened = Opened(MemoryDisk())
    for round_ in range(6):
        opened = Opened(disk)
        assert opened.writer.next_commit > max(seen, default=0)
        opened.writer.commit([add(round_)])
        seen.append(opened.writer.next_commit - 1)
        if round_ % 2:
            opened.writer.write_end()
    assert opened.numbers[-1] == 4 and sorted(set(opened.numbers)) == [0, 1, 2, 3, 4]
    assert seen == sorted(set(seen)) and len(disk.files) == 4


def test_a_full_file_is_followed_by_the_next() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    for number in range(40):
        opened.writer.commit([add(number, size_bytes=3000)])
    opened.writer.commit([add(40, size_bytes=3 * FILE_BYTES)])
    opened.writer.commit([add(41)])
    assert len(disk.files) > 5
    again = Opened(disk)
    assert again.numbers == list(range(42)) and not again.result.damages
    assert again.result.record_count == 42


def test_files_of_another_bookie_are_refused() -> None:
    disk = MemoryDisk()
    fill(disk)
    with pytest.raises(JournalMismatch):
        replay("j", disk, Incarnation("f" * 32), lambda item: None)


def test_other_names_in_the_directory_are_left_alone() -> None:
    disk = MemoryDisk()
    fill(disk)
    disk.files["j/lost+found"] = disk.files["j/1.dj"] = MemoryFile(disk, b"?")
    assert set(Opened(disk).numbers) == set(range(8))


# --- Torn tail ------------------------------------------------------------------------------------


def tail_range(disk: MemoryDisk) -> tuple[int, int]:
    """Where the last commit lies in the only file."""
    tail = replay("j", disk.copy(), INCARNATION, lambda item: None).tail
    return tail[0].header.commit_start, tail[0].header.commit_end


def check_torn(disk: MemoryDisk) -> None:
    """Commits 0–5 are there, of 6 and 7 what verifies, twice over; nothing looks damaged."""
    first = Opened(disk)
    kept = set(first.numbers)
    assert set(range(6)) <= kept <= set(range(8))
    assert not first.result.damages and not first.result.is_clean
    first.writer.commit([add(8)])
    second = Opened(disk.survive(lambda: False))
    assert set(second.numbers) == kept | {8} and not second.result.damages


@pytest.mark.parametrize("spoil", ["zeros", "flip", "truncate"])
def test_a_torn_last_commit_loses_nothing_else(spoil: str) -> None:
    whole = MemoryDisk()
    fill(whole)
    start, end = tail_range(whole)
    for at in range(start, end):
        disk = whole.copy()
        file = disk.last
        if spoil == "zeros":
            file.data[at:end] = bytes(end - at)
        elif spoil == "flip":
            file.data[at] ^= 0x10
        else:
            del file.data[at:]
        file.durable = bytearray(file.data)
        check_torn(disk)


def test_bytes_behind_the_last_commit_are_the_next_one_torn() -> None:
    disk = MemoryDisk()
    fill(disk)
    _, end = tail_range(disk)
    disk.last.spoil(end + 64, b"\xff" * 64)
    again = Opened(disk)
    assert again.numbers == list(range(8)) and not again.result.damages
    assert again.result.torn_bytes == 128 and not again.result.tail


# --- Corruption -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["later commit", "mark", "end", "roll"])
def test_damage_below_the_durable_mark_is_reported_and_stays_so(stop: str) -> None:
    whole = MemoryDisk()
    opened = fill(whole)
    start, end = BLOCK_BYTES, opened.writer.offset
    name = max(whole.files)
    if stop == "later commit":
        _, end = tail_range(whole)[1], tail_range(whole)[0]
    elif stop == "mark":
        opened.writer.write_mark()
    elif stop == "end":
        opened.writer.write_end()
    else:
        opened.writer.commit([add(8, size_bytes=FILE_BYTES)])
    for at in range(start, end):
        disk = whole.copy()
        file = disk.files[name]
        file.data[at] ^= 0x10
        file.durable = bytearray(file.data)
        check_corrupt(disk, at)


def check_corrupt(disk: MemoryDisk, at: int) -> None:
    first = Opened(disk)
    everything = set(range(8)) | ({8} & set(first.numbers))
    lost = everything - set(first.numbers)
    assert len(lost) <= 1
    assert lost or not first.result.damages  # zeros behind a body are under no checksum
    for damage in first.result.damages:
        assert damage.start <= at < damage.end and damage.file_id == 1
        if damage.kind is DamageKind.RECORD:
            assert damage.header is not None and {damage.header.entry_id} == lost
    again = Opened(disk.survive(lambda: False))
    assert set(again.numbers) == set(first.numbers)
    assert set(again.result.damages) == set(first.result.damages)


def test_damage_in_a_body_names_the_record() -> None:
    disk = MemoryDisk()
    opened = fill(disk)
    disk.last.spoil(BLOCK_BYTES + HEADER_BYTES + 3, b"?")
    opened = Opened(disk)
    (damage,) = opened.result.damages
    assert damage.kind is DamageKind.RECORD and damage.header is not None
    assert (damage.header.ledger_id, damage.header.entry_id) == (LEDGER, 0)
    assert opened.numbers == list(range(1, 8))


def test_a_lost_write_is_found_by_the_chain() -> None:
    whole = MemoryDisk()
    fill(whole)
    start = BLOCK_BYTES + 2 * (HEADER_BYTES + 24)
    end = start + 2 * (HEADER_BYTES + 24)
    whole.last.spoil(start, bytes(end - start))
    opened = Opened(whole)
    assert opened.result.damages == [Damage(DamageKind.RANGE, 1, start, end)]
    assert opened.numbers == [0, 1, 4, 5, 6, 7]


def test_a_last_commit_lost_before_a_roll_is_found() -> None:
    disk = MemoryDisk()
    opened = fill(disk)
    start, end = tail_range(disk)
    opened.writer.commit([add(8, size_bytes=FILE_BYTES)])
    disk.files["j/000001.dj"].data[start:end] = bytes(end - start)
    again = Opened(disk)
    assert again.result.damages == [Damage(DamageKind.RANGE, 1, start, FILE_BYTES)]
    assert set(again.numbers) == {0, 1, 2, 3, 4, 5, 8}


def test_a_lost_file_header_loses_no_record() -> None:
    disk = MemoryDisk()
    fill(disk)
    disk.last.spoil(0, bytes(BLOCK_BYTES))
    opened = Opened(disk)
    assert [damage.kind for damage in opened.result.damages] == [DamageKind.FILE_HEADER]
    assert set(opened.numbers) == set(range(8))


def test_a_missing_file_is_damage() -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    for number in range(20):
        opened.writer.commit([add(number, size_bytes=4000)])
    del disk.files["j/000002.dj"]
    again = Opened(disk)
    assert [(d.kind, d.file_id) for d in again.result.damages] == [(DamageKind.FILE, 2)]
    assert set(again.numbers) < set(range(20))


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_read_error_is_corruption_even_in_the_tail(is_marked: bool) -> None:
    disk = MemoryDisk()
    opened = Opened(disk)
    for number in range(4):
        opened.writer.commit([add(number, size_bytes=6000)])
    if is_marked:
        opened.writer.write_mark()
    bad = opened.writer.offset // BLOCK_BYTES - is_marked - 1
    disk.last.bad_blocks = {bad}
    bad_range = (bad * BLOCK_BYTES, (bad + 1) * BLOCK_BYTES)
    first = Opened(disk)
    assert set(first.numbers) == {0, 1, 2}
    assert any((d.start, d.end) == bad_range for d in first.result.damages)
    disk.files["j/000001.dj"].bad_blocks = set()
    again = Opened(disk)
    assert set(again.numbers) >= {0, 1, 2}
    assert any((d.start, d.end) == bad_range for d in again.result.damages) or 3 in again.numbers


def test_an_entry_that_holds_journal_bytes_is_not_taken_for_records() -> None:
    disk = MemoryDisk()
    opened = fill(disk)
    copy = bytes(disk.last.data[BLOCK_BYTES : BLOCK_BYTES + 800])
    evil = JournalRecord(RecordKind.ADD, LEDGER, EntryId(8), NOTHING, b"8:".ljust(8, b"x") + copy)
    offset = opened.writer.offset
    opened.writer.commit([evil])
    opened.writer.commit([add(9)])
    disk.last.spoil(offset, b"?")
    again = Opened(disk)
    assert again.numbers == [*range(8), 9]
    assert [(d.kind, d.start) for d in again.result.damages] == [(DamageKind.RANGE, offset)]


def fill_many_files(rng: random.Random) -> tuple[MemoryDisk, set[int], set[int]]:
    """Files by rolling and unclean starts; all numbers, and those of the last commit."""
    disk = MemoryDisk()
    numbers = iter(range(1000))
    last: set[int] = set()
    for _ in range(3):
        opened = Opened(disk)
        assert not opened.result.damages
        for _ in range(rng.randrange(2, 12)):
            commit = [add(next(numbers), rng.randrange(10, 4000)) for _ in range(2)]
            opened.writer.commit(commit)
            last = {int(record.entry_id) for record in commit}
            if rng.random() < 0.2:
                opened.writer.write_mark()
        if rng.random() < 0.3:
            opened.writer.write_end()
    return disk, set(range(next(numbers))), last


@pytest.mark.parametrize("seed", range(150))
def test_one_damaged_range_anywhere_is_never_silent(seed: int) -> None:
    rng = random.Random(seed)
    disk, everything, last = fill_many_files(rng)
    file = disk.files[rng.choice(sorted(disk.files))]
    start = rng.randrange(len(file.data))
    end = min(len(file.data), start + rng.choice([1, 8, 512, 4096, 9000]))
    spoilt = [bytes(end - start), rng.randbytes(end - start), bytes(file.data[: end - start])]
    file.data[start:end] = rng.choice(spoilt)
    file.durable = bytearray(file.data)
    first = Opened(disk)
    lost = everything - set(first.numbers)
    assert set(first.numbers) <= everything
    # The limit of what can be told: if a range takes the last commit, its mark and all that lay
    # behind the commit before, that one counts as the last, and as torn.
    assert lost <= last or last <= lost or first.result.damages
    again = Opened(disk)
    assert set(again.numbers) == set(first.numbers)
    assert set(again.result.damages) >= set(first.result.damages)


# --- Power cuts at every operation ----------------------------------------------------------------


def use(disk: MemoryDisk, first: int, acked: list[int], seen: set[int] | None) -> None:
    """Open, work, stop; `seen`: what earlier starts delivered or acknowledged, all else absent."""
    opened = Opened(disk)
    assert not opened.result.damages, opened.result
    delivered = set(opened.numbers)
    assert set(acked) <= delivered
    if seen is not None:
        assert delivered == seen | set(acked), "an absence that was answered came to life"
    acked += sorted(delivered - set(acked))
    for number in range(first, first + 6, 2):
        size = 9000 if number % 3 == 0 else 700
        opened.writer.commit([add(number, size), add(number + 1, 100)])
        acked += [number, number + 1]
        if number % 4 == 0:
            opened.writer.write_mark()
    opened.writer.write_end()


@pytest.mark.parametrize("layer", ["all", "none", "some"])
def test_no_power_cut_loses_resurrects_or_looks_like_corruption(layer: str) -> None:
    rng = random.Random(20)

    def keep() -> bool:
        return layer == "all" or (layer == "some" and rng.random() < 0.5)

    for first_cut in range(1000):
        disk = MemoryDisk(Cutter(first_cut))
        acked: list[int] = []
        try:
            for first in (0, 10, 20):
                use(disk, first, acked, None)
            break
        except (PowerCut, JournalPoisoned):
            pass
        before = disk.survive(keep)
        for second_cut in range(14):
            check_second_cut(before.copy(), second_cut, list(acked), keep)
    else:
        raise AssertionError("the history has no end")
    assert first_cut > 30


def check_second_cut(
    disk: MemoryDisk, cut: int, acked: list[int], keep: Callable[[], bool]
) -> None:
    """Cut again while the first cut is recovered from, then once more, then look."""
    disk.hook = Cutter(cut)
    with contextlib.suppress(PowerCut, JournalPoisoned):
        use(disk, 100, acked, None)
    disk = disk.survive(keep)
    opened = Opened(disk)
    assert set(acked) <= set(opened.numbers) and not opened.result.damages
    seen = set(opened.numbers)
    disk = disk.survive(keep)
    again = Opened(disk)
    assert set(again.numbers) == seen and not again.result.damages


# --- The thread -----------------------------------------------------------------------------------


def start_journal(disk: MemoryDisk, **options: object) -> Journal:
    options.setdefault("on_poisoned", refuse_poison)
    journal = Journal(Opened(disk, file_bytes=64 << 10).writer, **options)  # type: ignore[arg-type]
    journal.start()
    return journal


def test_everything_that_waits_is_one_sync() -> None:
    async def scenario() -> None:
        is_open, is_waiting = threading.Event(), threading.Event()
        disk = MemoryDisk()
        journal = start_journal(disk, idle_before_mark_s=60)

        def hook(operation: str) -> None:
            if operation == "fdatasync":
                is_waiting.set()
                assert is_open.wait(20)

        disk.hook = hook
        answers: list[tuple[int, list[Location]]] = []

        def answer(number: int) -> Callable[[list[Location]], None]:
            return lambda where: answers.append((number, where))

        journal.append_nowait([add(0)], answer(0))
        await wait_for(is_waiting.is_set)
        for number in range(1, 101):
            pair = [add(number), add(1000 + number)]
            assert journal.append_nowait(pair, answer(number))
        assert not answers and disk.counts["fdatasync"] == 1
        is_open.set()
        await wait_for(lambda: len(answers) == 101)
        assert [number for number, _ in answers] == list(range(101))
        assert disk.counts["fdatasync"] == disk.counts["pwritev"] - 1 == 2
        assert journal.statistics().commit_count == 2
        for number, where in answers:
            assert journal.read(*where[0]).startswith(b"%d:" % number)
            assert len(where) == (1 if number == 0 else 2)
        await journal.close()
        assert Opened(disk).result.is_clean

    asyncio.run(scenario())


def test_the_bound_refuses_and_the_reserve_lets_in() -> None:
    async def scenario() -> None:
        is_open = threading.Event()
        disk = MemoryDisk()
        journal = start_journal(disk, queue_bytes_max=10_000)
        disk.hook = lambda operation: assert_true(is_open.wait(20))
        done: list[int] = []
        accepted = 0
        size_bytes = record_bytes(len(add(0, 900).body))
        while journal.has_room(size_bytes):
            assert journal.append_nowait([add(accepted, 900)], lambda where: done.append(1))
            accepted += 1
        assert accepted == 10_000 // (900 + 4 + HEADER_BYTES)
        assert journal.statistics().refused_count == 1
        assert journal.has_room(size_bytes, is_urgent=True)
        assert journal.append_nowait([add(99, 900)], lambda where: done.append(1))
        is_open.set()
        await wait_for(lambda: len(done) == accepted + 1)
        assert journal.statistics().waiting_bytes == 0
        assert journal.has_room(20_000)
        assert journal.append_nowait([add(100, 20_000)], lambda where: done.append(1))
        await journal.close(clean=False)
        assert len(done) == accepted + 2 and not Opened(disk).result.is_clean

    asyncio.run(scenario())


def assert_true(value: bool) -> None:
    assert value


def test_idleness_is_marked_once() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        journal = start_journal(disk, idle_before_mark_s=0.001)
        done: list[object] = []
        sent: list[int] = []
        for number in range(3):
            sent.append(number)
            journal.append_nowait([add(number)], done.append)
            await wait_for(lambda: journal.statistics().mark_count == len(sent))
            await wait_for(lambda: len(done) == len(sent))
        await journal.close(clean=False)
        assert journal.statistics().mark_count == 3 and disk.counts["fdatasync"] == 6
        again = Opened(disk)
        assert not again.result.tail and again.numbers == [0, 1, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync", "create"])
def test_a_failed_write_or_sync_poisons(operation: str) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        poisoned: list[JournalPoisoned] = []
        journal = start_journal(disk, on_poisoned=poisoned.append)
        done: list[object] = []
        journal.append_nowait([add(0)], done.append)
        await wait_for(lambda: len(done) == 1)

        def fail(name: str) -> None:
            if name == operation:
                disk.hook = None  # the next try would succeed: it must not come
                raise OSError(5, "injected")

        disk.hook = fail
        journal.append_nowait([add(1, 2 * FILE_BYTES if operation == "create" else 9)], done.append)
        journal.append_nowait([add(2)], done.append)
        await wait_for(lambda: bool(poisoned))
        counts = dict(disk.counts)
        with pytest.raises(JournalPoisoned):
            journal.append_nowait([add(3)], done.append)
        with pytest.raises(JournalPoisoned):
            await journal.close()
        assert len(done) == 1 and len(poisoned) == 1 and disk.counts == counts
        again = Opened(disk.survive(lambda: False))
        assert again.numbers == [0] and not again.result.damages and not again.result.is_clean

    asyncio.run(scenario())


def test_a_caller_that_fails_does_not_keep_the_others_waiting() -> None:
    async def scenario() -> None:
        journal = start_journal(MemoryDisk())
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, about: errors.append(about))
        done: list[object] = []
        journal.append_nowait([add(0)], lambda where: done[1])  # type: ignore[arg-type]
        journal.append_nowait([add(1)], done.append)
        await journal.close()
        assert len(done) == 1 and len(errors) == 1

    asyncio.run(scenario())


# --- The real disk --------------------------------------------------------------------------------

WRITER = """
import asyncio, os, sys
from duramen.ids import Incarnation
from duramen_bookie.file_system import PosixFileSystem
from duramen_bookie.journal.group_commit import Journal
from duramen_bookie.journal.replay import open_journal
from tests.component.journal_world import INCARNATION, add
from tests.waiting import wait_for

async def main(directory, number):
    writer, _ = open_journal(directory, PosixFileSystem(), INCARNATION, lambda item: None,
                             now_unix_us=lambda: 0, file_bytes=1 << 20)
    journal = Journal(writer, on_poisoned=lambda error: os._exit(3))
    journal.start()
    while True:
        waiting = [asyncio.get_running_loop().create_future() for _ in range(5)]
        for future in waiting:
            journal.append_nowait([add(number, 500 + number % 3000)], future.set_result)
            number += 1
        await asyncio.gather(*waiting)
        os.write(1, b"%d\\n" % number)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_a_killed_process_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    acked = 0
    for round_ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(acked)],
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        )
        assert process.stdout is not None
        for _ in range(100 + 37 * round_):
            acked = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split(b"\n")
        acked = max([acked, *[int(line) for line in rest[:-1]]])
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        found: list[ReplayedRecord] = []
        result = replay(str(tmp_path), PosixFileSystem(), INCARNATION, found.append)
        numbers = {int(item.header.entry_id) for item in [*found, *result.tail]}
        for file in result.files.values():
            file.close()
        assert set(range(acked)) <= numbers and not result.damages
        acked = max(numbers) + 1


def test_the_real_disk_reads_back_what_was_written(tmp_path: Path) -> None:
    directory = str(tmp_path / "journal")
    fs = PosixFileSystem()
    writer, _ = open_journal(
        directory, fs, INCARNATION, lambda item: None, now_unix_us=lambda: 0, file_bytes=1 << 20
    )
    # More buffers than one pwritev takes, and bodies of every remainder of 8.
    commit = [add(number, 20 + number % 8) for number in range(1500)]
    locations = writer.commit(commit)
    assert [writer.read(where) for where in locations] == [record.body for record in commit]
    writer.write_end()
    writer.close()
    found: list[ReplayedRecord] = []
    writer, result = open_journal(
        directory, fs, INCARNATION, found.append, now_unix_us=lambda: 0, file_bytes=1 << 20
    )
    assert result.is_clean and [item.location for item in found] == locations
    with pytest.raises(OSError, match="beyond the end"):
        writer.read(Location(1, (1 << 20) - 4, 8))
    writer.close()
