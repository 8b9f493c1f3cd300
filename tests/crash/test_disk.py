"""The disk model itself: what a power cut may leave after each kind of operation, and nothing else.

The model judges the storage engine, so each of its promises is held here: what is synced stays,
every subset of the rest is among the states, names follow their order, faults do what they say.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from duramen_bookie.file_system import FileSystem
from tests.crash.disk import SECTOR_BYTES, Disk, Operation, PowerCut, crash_states

A, B, C = b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES, b"c" * SECTOR_BYTES
ZEROS = bytes(SECTOR_BYTES)


def make_disk(**options: int) -> Disk:
    disk = Disk(random.Random(5), **options)
    disk.make_directory("d")
    disk.fsync_directory("")
    return disk


def put(disk: Disk, path: str, content: bytes) -> None:
    """A durable file."""
    file = disk.open(path, is_new=True)
    file.pwritev([content], 0)
    file.fsync()
    file.close()
    disk.fsync_directory(path.rpartition("/")[0])


def read_all(disk: Disk) -> dict[str, bytes]:
    return {path: bytes(disk.inode(path).data) for path in disk.list_files()}


def states(disk: Disk, limit: int = 10_000) -> list[dict[str, bytes]]:
    found = crash_states(disk, limit, random.Random(1))
    return [read_all(state) for state in found]


def contents(disk: Disk, path: str = "d/x") -> set[bytes]:
    return {state[path] for state in states(disk)}


def names(disk: Disk) -> set[tuple[str, ...]]:
    return {tuple(sorted(state)) for state in states(disk)}


def test_the_model_is_a_file_system() -> None:
    fs: FileSystem = make_disk()
    assert fs.list_names("") == ["d"] and fs.list_names("d") == []


# --- Contents -------------------------------------------------------------------------------------


def test_what_is_synced_is_in_the_only_state() -> None:
    disk = make_disk()
    put(disk, "d/x", A + B)
    assert states(disk) == [{"d/x": A + B}]


def test_every_subset_of_unsynced_sectors_is_a_state() -> None:
    disk = make_disk()
    put(disk, "d/x", A * 3)
    disk.open("d/x").pwritev([B + B, B], 0)
    assert len(states(disk)) == 8
    assert contents(disk) == {x + y + z for x in (A, B) for y in (A, B) for z in (A, B)}


def test_a_sector_written_twice_has_every_version_and_no_mixture() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    file = disk.open("d/x")
    file.pwritev([B[:256]], 0)
    file.pwritev([C[:256]], 256)
    assert contents(disk) == {A, B[:256] + A[:256], B[:256] + C[:256]}


def test_writing_what_is_there_already_makes_no_state() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    disk.open("d/x").pwritev([A], 0)
    assert len(states(disk)) == 1


def test_a_sync_of_one_file_says_nothing_about_another() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    put(disk, "d/y", A)
    x, y = disk.open("d/x"), disk.open("d/y")
    x.pwritev([B], 0)
    y.pwritev([B], 0)
    y.fdatasync()
    assert states(disk) == [{"d/x": A, "d/y": B}, {"d/x": B, "d/y": B}]


def test_a_new_size_is_kept_or_lost_apart_from_what_was_written() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    disk.open("d/x").pwritev([B], SECTOR_BYTES)
    assert contents(disk) == {A, A + ZEROS, A + B}


def test_a_truncation_happened_or_not() -> None:
    disk = make_disk()
    put(disk, "d/x", A + B)
    file = disk.open("d/x")
    file.truncate(SECTOR_BYTES)
    assert contents(disk) >= {A + B, A}
    file.fsync()
    assert contents(disk) == {A}
    file.truncate(2 * SECTOR_BYTES)
    assert contents(disk) == {A, A + ZEROS} and file.pread(2000, 0) == A + ZEROS


def test_preallocated_space_reads_as_zeros() -> None:
    disk = make_disk()
    file = disk.open("d/x", is_new=True)
    file.preallocate(1000)
    file.fsync()
    disk.fsync_directory("d")
    assert contents(disk) == {bytes(1000)} and file.size_bytes() == disk.size_bytes("d/x") == 1000


# --- Names ----------------------------------------------------------------------------------------


def test_a_new_name_needs_the_directory_to_be_synced() -> None:
    disk = make_disk()
    file = disk.open("d/x", is_new=True)
    file.pwritev([A], 0)
    file.fsync()
    assert states(disk) == [{}, {"d/x": A}]
    disk.fsync_directory("d")
    assert states(disk) == [{"d/x": A}]


def test_a_synced_name_may_have_lost_content() -> None:
    disk = make_disk()
    disk.open("d/x", is_new=True).pwritev([A], 0)
    disk.fsync_directory("d")
    assert contents(disk) == {b"", ZEROS, A}


def test_names_are_independent_of_one_another() -> None:
    disk = make_disk()
    for path in ("d/x", "d/y"):
        disk.open(path, is_new=True).fsync()
    assert names(disk) == {(), ("d/x",), ("d/y",), ("d/x", "d/y")}


def test_a_rename_that_replaces_is_atomic() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    put(disk, "d/x.new", B)
    disk.rename("d/x.new", "d/x")
    assert states(disk) == [{"d/x": A, "d/x.new": B}, {"d/x": B}]
    disk.fsync_directory("d")
    assert states(disk) == [{"d/x": B}]


def test_a_rename_does_not_outlive_the_creation_before_it() -> None:
    disk = make_disk()
    file = disk.open("d/x.new", is_new=True)
    file.pwritev([A], 0)
    file.fsync()
    disk.rename("d/x.new", "d/x")
    assert names(disk) == {(), ("d/x.new",), ("d/x",)}


def test_a_rename_without_a_sync_of_the_content_may_leave_an_empty_file() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    disk.open("d/x.new", is_new=True).pwritev([B], 0)
    disk.rename("d/x.new", "d/x")
    assert {"d/x": b""} in states(disk) and {"d/x": A} in states(disk)


def test_a_removed_file_may_come_back_with_what_was_written_to_it_since() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    file = disk.open("d/x")
    disk.remove("d/x")
    file.pwritev([B], 0)
    file.fsync()
    assert states(disk) == [{"d/x": B}, {}]
    with pytest.raises(FileNotFoundError):
        disk.open("d/x")
    disk.fsync_directory("d")
    assert states(disk) == [{}]


def test_a_recycled_file_may_be_found_under_each_name_with_each_content() -> None:
    disk = make_disk()
    put(disk, "d/1", A)
    disk.rename("d/1", "d/2")
    disk.open("d/2").pwritev([B], 0)
    assert {(*state,) for state in map(dict.items, states(disk))} == {
        (("d/1", A),), (("d/1", B),), (("d/2", A),), (("d/2", B),),
    }  # fmt: skip


def test_a_sync_of_one_directory_says_nothing_about_another() -> None:
    disk = make_disk()
    disk.make_directory("e")
    disk.fsync_directory("")
    for path in ("d/x", "e/x"):
        disk.open(path, is_new=True).fsync()
    disk.fsync_directory("d")
    assert names(disk) == {("d/x",), ("d/x", "e/x")}


def test_a_rename_between_directories_is_durable_with_either_and_so_is_what_it_builds_on() -> None:
    disk = make_disk()
    disk.make_directory("e")
    disk.fsync_directory("")
    disk.open("d/x", is_new=True).fsync()
    disk.open("d/y", is_new=True).fsync()
    disk.rename("d/x", "e/x")
    disk.fsync_directory("e")
    assert names(disk) == {("e/x",), ("d/y", "e/x")}


def test_a_directory_is_lost_with_all_that_is_in_it_until_something_in_it_is_synced() -> None:
    disk = make_disk()
    disk.make_directory("d/e/f")
    found = {tuple(sorted(s._directories)) for s in crash_states(disk, 99, random.Random(1))}
    assert found == {("", "d"), ("", "d", "d/e"), ("", "d", "d/e", "d/e/f")}
    disk.open("d/e/f/x", is_new=True).fsync()
    disk.fsync_directory("d/e/f")
    (state,) = crash_states(disk, 99, random.Random(1))
    assert state.list_files() == ["d/e/f/x"] and state.list_names("d") == ["e"]


# --- States ---------------------------------------------------------------------------------------


def test_a_sample_has_both_extremes_no_repeats_and_says_of_how_many() -> None:
    disk = make_disk()
    put(disk, "d/x", A * 20)
    disk.open("d/x").pwritev([B * 20], 0)
    sample = crash_states(disk, 50, random.Random(3))
    assert (sample.count, sample.total_count, sample.is_complete) == (50, 1 << 20, False)
    choices = list(sample.choices())
    assert len(choices) == len(set(choices)) == 50
    found = [bytes(state.inode("d/x").data) for state in crash_states(disk, 50, random.Random(3))]
    assert A * 20 in found and B * 20 in found
    assert found == [bytes(sample.make(choice).inode("d/x").data) for choice in choices]
    everything = crash_states(disk, 1 << 20, random.Random(3))
    assert everything.is_complete and everything.count == 1 << 20


def test_a_sample_of_nearly_everything_ends() -> None:
    disk = make_disk()
    put(disk, "d/x", A * 5)
    disk.open("d/x").pwritev([B * 5], 0)
    assert len(states(disk, 31)) == 31


def test_many_pending_names_are_sampled() -> None:
    disk = make_disk()
    for number in range(12):
        disk.open(f"d/{number}", is_new=True).fsync()
    found = crash_states(disk, 300, random.Random(3))
    assert found.total_count == 1 << 12 and not found.is_complete and len(list(found)) == 300


def test_a_state_is_a_disk_of_its_own() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    disk.open("d/x").pwritev([B], 0)
    first, second = crash_states(disk, 2, random.Random(1))
    first.open("d/x").pwritev([C], 0)
    first.remove("d/x")
    first.open("d/y", is_new=True)
    assert read_all(second) == {"d/x": B} and read_all(disk) == {"d/x": B}
    assert read_all(first) == {"d/y": b""} and first.inode("d/y").number > 1


def test_a_copy_keeps_what_is_unsynced() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    disk.open("d/x").pwritev([B], 0)
    disk.rename("d/x", "d/y")
    copy = disk.copy()
    copy.open("d/y").fsync()
    assert states(copy) == [{"d/x": B}, {"d/y": B}]
    assert len(states(disk)) == 4


# --- Hooks and faults -----------------------------------------------------------------------------


def test_every_operation_passes_the_hook_before_it_happens() -> None:
    disk = make_disk()
    seen: list[tuple[str, str]] = []
    disk.hook = seen.append
    disk.make_directory("d/e")
    file = disk.open("d/e/x", is_new=True)
    file.preallocate(10)
    file.pwritev([b"1"], 0)
    file.truncate(5)
    file.fdatasync()
    file.fsync()
    disk.rename("d/e/x", "d/e/y")
    disk.fsync_directory("d/e")
    disk.remove("d/e/y")
    assert seen == [
        Operation(*pair)
        for pair in [
            ("make_directory", "d/e"), ("create", "d/e/x"), ("preallocate", "d/e/x"),
            ("pwritev", "d/e/x"), ("truncate", "d/e/x"), ("fdatasync", "d/e/x"),
            ("fsync", "d/e/x"), ("rename", "d/e/y"), ("fsync_directory", "d/e"),
            ("remove", "d/e/y"),
        ]
    ]  # fmt: skip
    assert disk.counts["pwritev"] == 1


def test_a_power_cut_in_the_hook_leaves_the_disk_as_it_was() -> None:
    disk = make_disk()
    put(disk, "d/x", A)

    def cut(operation: Operation) -> None:
        raise PowerCut(operation)

    disk.hook = cut
    changes: list[Callable[[], None]] = [
        lambda: disk.open("d/x").pwritev([B], 0),
        lambda: disk.rename("d/x", "d/y"),
        lambda: disk.remove("d/x"),
    ]
    for change in changes:
        with pytest.raises(PowerCut):
            change()
    assert states(disk) == [{"d/x": A}]


def test_a_failed_sync_leaves_some_sectors_that_no_later_sync_writes() -> None:
    disk = make_disk()
    put(disk, "d/x", A * 64)
    disk.fail_at("fdatasync", 2)
    file = disk.open("d/x")
    file.fdatasync()
    file.pwritev([B * 64], 0)
    with pytest.raises(OSError, match="injected") as caught:
        file.fdatasync()
    assert caught.value.errno == errno.EIO
    file.fdatasync()
    assert file.pread(64 * SECTOR_BYTES, 0) == B * 64
    (content,) = contents(disk)
    assert set(content) == set(b"ab") and file.pread_direct(64 * SECTOR_BYTES, 0) == content
    file.pwritev([C * 64], 0)
    file.fdatasync()
    assert contents(disk) == {C * 64}


def test_reading_past_the_cache_sees_what_is_dirty() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    file = disk.open("d/x")
    file.pwritev([B], 0)
    assert file.pread_direct(SECTOR_BYTES, 0) == B and len(states(disk)) == 2


def test_a_failed_write_may_have_got_anywhere() -> None:
    got = set()
    for seed in range(50):
        disk = Disk(random.Random(seed))
        put(disk, "x", A * 4)
        disk.fail_at("pwritev", 1, errno.ENOSPC)
        with pytest.raises(OSError, match="injected"):
            disk.open("x").pwritev([B * 4], 0)
        got.add(disk.open("x").pread(1 << 20, 0))
    assert got == {B * count + A * (4 - count) for count in range(5)}


def test_a_full_disk_refuses_to_grow_and_takes_more_after_a_removal() -> None:
    disk = make_disk(capacity_bytes=4096)
    disk.open("d/x", is_new=True).preallocate(3000)
    file = disk.open("d/y", is_new=True)
    assert disk.usage("d").free_bytes == 1096
    ways: list[Callable[[], None]] = [
        lambda: file.preallocate(2000),
        lambda: file.pwritev([bytes(2000)], 0),
        lambda: file.truncate(2000),
    ]
    for grow in ways:
        with pytest.raises(OSError, match="full") as caught:
            grow()
        assert caught.value.errno == errno.ENOSPC
    disk.remove("d/x")
    file.preallocate(2000)
    assert disk.usage("d") == (4096, 2096)


def test_bad_sectors_fail_reads_that_touch_them() -> None:
    disk = make_disk()
    put(disk, "d/x", A * 4)
    disk.spoil("d/x", 512, 1024)
    file = disk.open("d/x")
    assert file.pread(512, 0) == A and file.pread(512, 1024) == A
    for read in (file.pread, file.pread_direct):
        with pytest.raises(OSError, match="bad sector"):
            read(2, 511)
    (state,) = crash_states(disk, 2, random.Random(1))
    with pytest.raises(OSError, match="bad sector"):
        state.open("d/x").pread(1, 512)


def test_a_flipped_bit_is_on_the_device_and_in_what_is_mapped() -> None:
    disk = make_disk()
    put(disk, "d/x", ZEROS)
    view = disk.map("d/x")
    disk.flip_bit("d/x", 8 * 3 + 1)
    assert view[3] == 2 and view.readonly and contents(disk) == {b"\0\0\0\x02".ljust(512, b"\0")}


def test_missing_and_existing_files_are_told_apart() -> None:
    disk = make_disk()
    put(disk, "d/x", A)
    with pytest.raises(FileExistsError):
        disk.open("d/x", is_new=True)
    for act in (
        lambda: disk.open("d/y"),
        lambda: disk.remove("d/y"),
        lambda: disk.rename("d/y", "d/z"),
        lambda: disk.open("e/x", is_new=True),
        lambda: disk.list_names("e"),
    ):
        with pytest.raises(FileNotFoundError):
            act()
    assert disk.exists("d/x") and disk.exists("d") and not disk.exists("d/y")


def test_open_files_are_counted() -> None:
    disk = make_disk()
    first, second = disk.open("d/x", is_new=True), disk.open("d/x")
    assert disk.open_count == 2
    first.close()
    second.close()
    assert disk.open_count == 0
