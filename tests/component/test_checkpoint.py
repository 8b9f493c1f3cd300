"""The checkpoint: round trips, the golden file, and its two copies through damage and power cuts.

One copy may be lost in any way at any time; a power cut at any moment of writing leaves the old
checkpoint or the new one. No flipped bit is missed. Simulated disk, enumerated states.
"""

import errno
import random

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.core.bookie.bookie_state import CoreSnapshot, LedgerSnapshot, LogSnapshot
from duramen.core.entry_ranges import EntryRanges
from duramen.ids import NOTHING, EntryId, Epoch, Incarnation, LedgerId, LogId
from duramen.wire.disk.checkpoint_format import (
    Checkpoint,
    CheckpointFormatError,
    EntryLogFileRef,
    encode_checkpoint,
    parse_checkpoint,
)
from duramen_bookie.checkpoint import (
    CheckpointDamaged,
    CheckpointMismatch,
    read_checkpoint,
    secure_checkpoint,
    write_checkpoint,
)
from tests.crash.disk import CrashStates, Disk, Operation
from tests.golden import read_golden

INCARNATION = Incarnation("0123456789abcdef0123456789abcdef")
OTHER = Incarnation("fedcba9876543210fedcba9876543210")
A, B = "/data/checkpoint-a", "/data/checkpoint-b"

STATE = CoreSnapshot(
    logs=(
        LogSnapshot(LogId(7), 3, Epoch(2), EntryRanges([(4, 4), (6, 9)])),
        LogSnapshot(LogId(8), 0, Epoch(0), EntryRanges()),
        LogSnapshot(LogId((1 << 31) - 1), (1 << 32) - 1, Epoch((1 << 32) - 1), EntryRanges()),
    ),
    ledgers=(
        LedgerSnapshot(
            LedgerId(7 << 32 | 3), EntryId(40), EntryId(45), EntryRanges([(0, 30), (33, 41)]),
            EntryRanges([(31, 32), (45, 45)]), False,
        ),
        LedgerSnapshot(
            LedgerId(8 << 32 | 1), NOTHING, NOTHING, EntryRanges(), EntryRanges(), True
        ),
        LedgerSnapshot(
            LedgerId((1 << 63) - 1), EntryId((1 << 32) - 2), EntryId((1 << 32) - 2),
            EntryRanges([(0, (1 << 32) - 2)]), EntryRanges(), False,
        ),
    ),
    is_everything_doubtful=True,
)  # fmt: skip
CHECKPOINT = Checkpoint(
    number=17,
    incarnation=INCARNATION,
    covered_file_id=12,
    entry_log_files=(EntryLogFileRef(3, 0, 1 << 30, 0xCAFE_F00D), EntryLogFileRef(5, 1, 8192, 1)),
    next_entry_log_file_id=6,
    state=STATE,
)
EMPTY = Checkpoint(0, INCARNATION, 0, (), 1, CoreSnapshot((), (), False))

u32 = st.integers(0, (1 << 32) - 1)
entry_ids = st.integers(-1, (1 << 32) - 2).map(EntryId)
pairs = st.tuples(u32, u32).map(lambda pair: (min(pair), max(pair)))
ranges = st.lists(pairs, max_size=5).map(EntryRanges)
log_ids = st.integers(1, (1 << 32) - 1).map(LogId)
logs = st.builds(LogSnapshot, log_ids, u32, u32.map(Epoch), ranges, st.just(0))
bounded_logs = st.builds(LogSnapshot, log_ids, u32, u32.map(Epoch), ranges, u32)
ledgers = st.builds(
    LedgerSnapshot, st.integers(1, (1 << 64) - 1).map(LedgerId), entry_ids, entry_ids, ranges,
    ranges, st.booleans(),
)  # fmt: skip
u64 = st.integers(0, (1 << 64) - 1)
states = st.one_of(
    st.builds(
        CoreSnapshot, st.lists(logs, max_size=5).map(tuple),
        st.lists(ledgers, max_size=5).map(tuple), st.booleans(), st.just(0),
    ),
    st.builds(
        CoreSnapshot, st.lists(bounded_logs, max_size=5).map(tuple),
        st.lists(ledgers, max_size=5).map(tuple), st.just(True), st.integers(1, (1 << 64) - 1),
    ),
)  # fmt: skip
checkpoints = st.builds(
    Checkpoint, u64, st.just(INCARNATION), u64,
    st.lists(st.builds(EntryLogFileRef, u64, u32, u64, u32), max_size=4).map(tuple), u64, states,
)  # fmt: skip


def make_disk() -> Disk:
    disk = Disk(random.Random(3))
    disk.make_directory("/data")
    disk.fsync_directory("/data")
    return disk


def read(disk: Disk) -> Checkpoint | None:
    """What both ways of reading agree on; the second makes the copies alike."""
    found = read_checkpoint(disk, "/data", INCARNATION)
    assert secure_checkpoint(disk, "/data", INCARNATION) == found
    if found is not None:
        assert disk.inode(A).data == disk.inode(B).data == encode_checkpoint(found)
    assert disk.open_count == 0
    return found


# --- Bytes ----------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(checkpoints)
def test_a_checkpoint_is_read_as_it_was_written(checkpoint: Checkpoint) -> None:
    assert parse_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


def test_the_golden_checkpoint_is_written_and_read_as_ever() -> None:
    golden = read_golden("checkpoint-v1.bin", encode_checkpoint(CHECKPOINT))
    assert parse_checkpoint(golden) == CHECKPOINT


def test_a_checkpoint_of_disks_with_envelopes_differs_in_its_version_alone() -> None:
    newest = CHECKPOINT._replace(has_envelopes=True)
    golden = read_golden("checkpoint-v2.bin", encode_checkpoint(newest))
    old = encode_checkpoint(CHECKPOINT)
    assert parse_checkpoint(golden) == newest
    assert golden[:-4] == old[:4] + b"\2" + old[5:-4]


def test_a_bound_of_the_doubt_and_what_is_newer_are_read_as_they_were_written() -> None:
    logs = tuple([log._replace(newer_from=number * 7) for number, log in enumerate(STATE.logs)])
    bounded = CHECKPOINT._replace(state=STATE._replace(logs=logs, doubt_until=(5 << 32) + 9))
    data = read_golden("checkpoint-bounded-v1.bin", encode_checkpoint(bounded))
    assert parse_checkpoint(data) == bounded
    head = bytearray(data[:-4])
    head[5] = 2  # bounded, and no doubt
    with pytest.raises(CheckpointFormatError, match="flags 0x2"):
        parse_checkpoint(bytes(head) + google_crc32c.value(bytes(head)).to_bytes(4, "little"))


def test_no_flipped_bit_and_no_missing_byte_is_missed() -> None:
    data = encode_checkpoint(CHECKPOINT)
    for at in range(len(data)):
        assert parse_checkpoint(data[:at]) is None
        for bit in range(8):
            damaged = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            assert parse_checkpoint(damaged) is None
    assert parse_checkpoint(data + b"\0") is None


@pytest.mark.parametrize(
    ("at", "value"),
    [(4, 3), (5, 4), (48, 3), (52, 4), (52, 2), (56, 2), (60, 9), (64 + 48 + 4 * 4, 10)],
)
def test_an_intact_checkpoint_of_another_form_is_refused(at: int, value: int) -> None:
    data = bytearray(encode_checkpoint(CHECKPOINT)[:-4])
    data[at] = value
    data += google_crc32c.value(bytes(data)).to_bytes(4, "little")
    with pytest.raises(CheckpointFormatError):
        parse_checkpoint(bytes(data))


def test_numbers_are_little_endian_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_checkpoint(CHECKPOINT)
    start = 64 + 2 * 24
    assert data[start : start + 8] == bytes([7, 0, 0, 0, 3, 0, 0, 0])
    monkeypatch.setattr("sys.byteorder", "big")
    swapped = encode_checkpoint(CHECKPOINT)
    assert swapped[start : start + 8] == bytes([0, 0, 0, 7, 0, 0, 0, 3])
    assert parse_checkpoint(swapped) == CHECKPOINT


def test_an_idle_ledger_takes_little() -> None:
    rows = [
        LedgerSnapshot(
            LedgerId(log << 32 | 1), EntryId(9), EntryId(9), EntryRanges([(0, 9)]), EntryRanges(),
            False,
        )
        for log in range(1, 1001)
    ]  # fmt: skip
    data = encode_checkpoint(EMPTY._replace(state=CoreSnapshot((), tuple(rows), False)))
    assert len(data) <= 40 * len(rows)


# --- Copies ---------------------------------------------------------------------------------------


def test_both_copies_say_the_same_when_writing_returns() -> None:
    disk = make_disk()
    assert read(disk) is None
    for number in range(3):
        wanted = CHECKPOINT._replace(number=number)
        write_checkpoint(disk, "/data", wanted)
        assert disk.list_files() == [A, B] and disk.open_count == 0
        assert disk.inode(A).durable == disk.inode(B).durable == encode_checkpoint(wanted)
        assert read(disk) == wanted


def test_each_copy_is_synced_before_it_is_renamed_and_the_name_before_the_next() -> None:
    disk = make_disk()
    seen: list[Operation] = []
    disk.hook = seen.append
    write_checkpoint(disk, "/data", CHECKPOINT)
    steps = [(op.name, op.path) for op in seen if op.name not in {"create", "preallocate"}]
    assert steps == [
        step
        for path in (A, B)
        for step in [
            ("pwritev", f"{path}.new"),
            ("fsync", f"{path}.new"),
            ("rename", path),
            ("fsync_directory", "/data"),
        ]
    ]


@pytest.mark.parametrize("path", [A, B])
def test_one_copy_may_be_damaged_anyhow(path: str) -> None:
    size = len(encode_checkpoint(CHECKPOINT))
    for bit in range(0, size * 8, 37):
        disk = make_disk()
        write_checkpoint(disk, "/data", CHECKPOINT)
        disk.flip_bit(path, bit)
        assert read(disk) == CHECKPOINT
    for cut in (0, 1, 63, size - 1):
        disk = make_disk()
        write_checkpoint(disk, "/data", CHECKPOINT)
        file = disk.open(path)
        file.truncate(cut)
        file.close()
        assert read(disk) == CHECKPOINT
    disk = make_disk()
    write_checkpoint(disk, "/data", CHECKPOINT)
    disk.remove(path)
    assert read(disk) == CHECKPOINT
    disk.spoil(path, 0, 1)
    assert read_checkpoint(disk, "/data", INCARNATION) == CHECKPOINT
    # The bad sectors are the old file's: another one takes its name.
    assert secure_checkpoint(disk, "/data", INCARNATION) == CHECKPOINT
    assert read(disk) == CHECKPOINT


def test_no_whole_copy_is_damage_and_not_a_new_bookie() -> None:
    for first, second in (("flip", "flip"), ("flip", "remove"), ("remove", "spoil")):
        disk = make_disk()
        write_checkpoint(disk, "/data", CHECKPOINT)
        for path, fault in ((A, first), (B, second)):
            if fault == "flip":
                disk.flip_bit(path, 999)
            elif fault == "spoil":
                disk.spoil(path, 0, 1)
            else:
                disk.remove(path)
        for way in (read_checkpoint, secure_checkpoint):
            with pytest.raises(CheckpointDamaged):
                way(disk, "/data", INCARNATION)


def test_the_newer_copy_counts_and_the_older_serves_when_it_is_lost() -> None:
    older, newer = CHECKPOINT, CHECKPOINT._replace(number=18, covered_file_id=13)
    for newer_path in (A, B):
        disk = make_disk()
        write_checkpoint(disk, "/data", older)
        file = disk.open(newer_path)
        file.pwritev([encode_checkpoint(newer)], 0)
        file.fsync()
        file.close()
        lost = disk.copy()
        assert read(disk) == newer
        lost.flip_bit(newer_path, 1000)
        assert read(lost) == older


def test_another_life_is_refused() -> None:
    disk = make_disk()
    write_checkpoint(disk, "/data", CHECKPOINT._replace(incarnation=OTHER))
    for way in (read_checkpoint, secure_checkpoint):
        with pytest.raises(CheckpointMismatch, match=OTHER):
            way(disk, "/data", INCARNATION)


@pytest.mark.parametrize("name", ["create", "preallocate", "pwritev", "fsync", "rename"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_failed_write_leaves_a_whole_checkpoint_and_can_be_tried_again(
    name: str, nth: int
) -> None:
    disk = make_disk()
    write_checkpoint(disk, "/data", CHECKPOINT)
    newer = CHECKPOINT._replace(number=18)
    disk.fail_at(name, nth, errno.ENOSPC)
    with pytest.raises(OSError, match="injected"):
        write_checkpoint(disk, "/data", newer)
    disk.hook = None
    assert disk.open_count == 0
    assert read(disk.copy()) == (CHECKPOINT if nth == 1 else newer)
    newest = CHECKPOINT._replace(number=19)
    write_checkpoint(disk, "/data", newest)
    assert read(disk) == newest and disk.list_files() == [A, B]


def test_a_power_cut_at_any_moment_leaves_the_old_or_the_new() -> None:
    """Before every operation of three checkpoints in a row; all states, or 200 of each."""
    large = EMPTY._replace(number=18, state=CoreSnapshot((), STATE.ledgers * 20, False))
    rng = random.Random(7)
    disk = make_disk()
    allowed: list[Checkpoint | None] = [None]
    state_count = 0

    def look(_: Operation) -> None:
        nonlocal state_count
        for state in CrashStates(disk, 200, rng):
            state_count += 1
            found = read_checkpoint(state, "/data", INCARNATION)
            assert found in allowed
            # What the next start makes of it survives the next power cut, too.
            assert secure_checkpoint(state, "/data", INCARNATION) == found
            for again in CrashStates(state, 3, rng):
                assert read(again) == found

    for wanted in (CHECKPOINT, large, CHECKPOINT._replace(number=19)):
        allowed.append(wanted)
        disk.hook = look
        write_checkpoint(disk, "/data", wanted)
        disk.hook = None
        allowed[:] = [wanted]
        look(Operation("after all", "/data"))
    assert state_count > 300
