"""Cutting lines into batches: nothing lost, nothing changed, bounds kept, numbers right.

Properties over random streams, chunks and bounds; and the source over real files and pipes.
"""

import contextlib
import fcntl
import os
import queue
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.cli.line_batches import LineCutter, LineSource, LineTooLongError
from duramen.client.bulk_append import PreparedBatch
from duramen.limits import RECORD_BYTES_MAX
from duramen.units import MS, SECOND
from duramen.wire.record_batch import decode_batch
from tests.pauses import observe_for

STREAMS = st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r", b"\0\xff", b"x" * 40])).map(b"".join)


def cut(cutter: LineCutter, data: bytes, chunk_bytes: int) -> list[list[bytes]]:
    groups = []
    for at in range(0, len(data), chunk_bytes):
        cutter.on_chunk(data[at : at + chunk_bytes])
        while (group := cutter.take(is_partial_fine=False)) is not None:
            groups.append(group)
    cutter.on_end()
    while (group := cutter.take(is_partial_fine=False)) is not None:
        groups.append(group)
    return groups


def lines_of(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


@given(STREAMS, st.integers(1, 50), st.integers(1, 60), st.integers(1, 5))
def test_joined_lines_are_the_stream(
    data: bytes, chunk_bytes: int, batch_bytes: int, count: int
) -> None:
    cutter = LineCutter(batch_bytes=batch_bytes, record_count=count)
    groups = cut(cutter, data, chunk_bytes)
    joined = b"".join(line + b"\n" for group in groups for line in group)
    assert joined == (data if data.endswith(b"\n") or not data else data + b"\n")
    assert all(1 <= len(group) <= count for group in groups)
    assert all(len(group) == 1 or sum(map(len, group)) <= batch_bytes for group in groups)
    assert cutter.next_line == 1 + sum(map(len, groups))


@given(STREAMS, st.integers(1, 50), st.integers(0, 10))
def test_skipped_lines_are_left_out(data: bytes, chunk_bytes: int, skipped: int) -> None:
    groups = cut(LineCutter(skip_lines=skipped), data, chunk_bytes)
    assert [line for group in groups for line in group] == lines_of(data)[skipped:]


@given(STREAMS, st.integers(1, 50))
def test_groups_are_full_whatever_the_chunks(data: bytes, chunk_bytes: int) -> None:
    groups = cut(LineCutter(record_count=3), data, chunk_bytes)
    assert [len(group) for group in groups[:-1]] == [3] * (len(groups) - 1)


def test_a_partial_group_is_given_when_asked_for() -> None:
    cutter = LineCutter()
    cutter.on_chunk(b"one\ntwo\nthr")
    assert cutter.take(is_partial_fine=False) is None
    assert cutter.is_holding_lines
    assert cutter.take(is_partial_fine=True) == [b"one", b"two"]
    assert not cutter.is_holding_lines
    assert cutter.take(is_partial_fine=True) is None


def test_the_longest_record_passes_and_a_longer_line_is_named() -> None:
    longest = b"x" * RECORD_BYTES_MAX
    assert cut(LineCutter(), b"a\n" + longest + b"\n", 1 << 20) == [[b"a"], [longest]]
    with pytest.raises(LineTooLongError, match="line 3 "):
        cut(LineCutter(), b"a\nb\n" + longest + b"y\n", 1 << 22)
    with pytest.raises(LineTooLongError, match="line 3 "):
        cut(LineCutter(), b"a\nb\n" + longest + b"y", 1 << 16)


def test_a_line_that_is_too_long_can_be_left_out() -> None:
    data = b"a\n" + b"x" * (3 * RECORD_BYTES_MAX) + b"\nb\n"
    assert cut(LineCutter(skip_lines=2), data, 1 << 16) == [[b"b"]]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def test_a_file_comes_in_full_batches_with_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % i for i in range(25_000)) + b"last")
    with opened(path) as fd:
        source = LineSource(fd, LineCutter())
        batches = list(iter(source.next_batch, None))
        source.close()
    assert [(b.first_line, b.last_line) for b in batches] == [
        (1, 10_000),
        (10_001, 20_000),
        (20_001, 25_001),
    ]
    decoded = decode_batch(batches[-1].encoded)
    assert decoded.bodies[-2:] == [b"24999", b"last"]
    assert sum(b.body_bytes for b in batches) == path.stat().st_size - 25_000


def test_a_pipe_gives_what_is_there_and_close_ends_the_wait() -> None:
    read_fd, write_fd = os.pipe()
    source = LineSource(read_fd, LineCutter())
    os.write(write_fd, b"one\ntwo\nth")
    batch = source.next_batch()
    assert batch is not None
    assert batch.bodies == [b"one", b"two"]
    os.write(write_fd, b"ree")
    os.close(write_fd)
    last = source.next_batch()
    assert last is not None
    assert (last.first_line, last.bodies) == (3, [b"three"])
    assert source.next_batch() is None
    os.close(read_fd)


def count_waiting(fd: int) -> int:
    """Bytes that wait in a pipe."""
    answer = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
    return int.from_bytes(answer, sys.byteorder)


def test_lines_of_a_pipe_wait_for_others_for_as_long_as_is_asked() -> None:
    read_fd, write_fd = os.pipe()
    patient = LineSource(read_fd, LineCutter(record_count=3), linger_us=60 * SECOND)
    found: queue.Queue[PreparedBatch | None] = queue.Queue()

    def take() -> None:
        found.put(patient.next_batch())

    os.write(write_fd, b"one\n")
    thread = threading.Thread(target=take)
    thread.start()
    while count_waiting(read_fd):  # until the first line is taken, and lingers
        observe_for(0.001, what="between two looks")
    os.write(write_fd, b"two\n")
    os.write(write_fd, b"three\nfour\n")
    batch = found.get(timeout=10)  # full: it waits no longer
    assert batch is not None and batch.bodies == [b"one", b"two", b"three"]
    thread.join()
    thread = threading.Thread(target=take)
    thread.start()
    patient.close()
    assert found.get(timeout=10) is None  # what lingers when it is closed is not sent
    thread.join()
    hasty = LineSource(read_fd, LineCutter(), linger_us=20 * MS)
    os.write(write_fd, b"five\n")
    last = hasty.next_batch()
    assert last is not None and last.bodies == [b"five"]
    os.close(read_fd)
    os.close(write_fd)


def test_a_closed_source_gives_nothing_more() -> None:
    read_fd, write_fd = os.pipe()
    source = LineSource(read_fd, LineCutter())
    source.close()
    source.close()
    assert source.next_batch() is None
    os.close(read_fd)
    os.close(write_fd)
