"""The contract of the cold store's port, run on the twin in memory and on every real kind.

What archives rest on: a name is taken by one writer, a file appears whole or not at all, whoever is
killed leaves nothing that can be read, and a store that cannot be reached says so instead of
"no such file". Every test is handed an empty place.

Source: duramen.runtime.cold.store, docs/cold-store.md.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from duramen.runtime.cold import AlreadyThere, ColdStore, ColdStoreDown, NotThere
from tests.cold_servers import Missing, ObjectServer, running_hdfs, running_s3
from tests.contract.cold_benches import (
    ColdBench,
    FolderColdBench,
    HdfsColdBench,
    MemoryColdBench,
    S3ColdBench,
)
from tests.requirements import leave_out

pytestmark = pytest.mark.timeout(1200)  # the first run builds one server and fetches the other
T = TypeVar("T")

PATH = "v1/c1/0000002a/e0000000003/manifest.json"
BIG = bytes(range(256)) * (3 << 12)  # 3 MiB
LATER_UNIX_MS = 1 << 52


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with serving(running_s3(tmp_path_factory.mktemp("s3"))) as server:
        yield server


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(running_hdfs(tmp_path_factory.mktemp("hdfs"))) as address:
        yield address


@contextmanager
def serving(server: AbstractContextManager[T]) -> Iterator[T]:
    """A server that runs, or a skip that says why there is none."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(server)
        except Missing as missing:
            leave_out(missing.need, missing.detail)
        yield running


@pytest.fixture(
    params=[
        "memory",
        "folder",
        pytest.param("s3", marks=pytest.mark.gate),
        pytest.param("hdfs", marks=pytest.mark.gate),
    ]
)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ColdBench:
    match request.param:
        case "memory":
            return MemoryColdBench()
        case "folder":
            return FolderColdBench(tmp_path)
        case "s3":
            server: ObjectServer = request.getfixturevalue("s3")
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            return S3ColdBench(server)
        case "hdfs":
            return HdfsColdBench(request.getfixturevalue("hdfs"))
        case kind:
            raise AssertionError(kind)


@pytest.fixture
def store(bench: ColdBench) -> ColdStore:
    return bench.open_store()


def read_all(store: ColdStore, path: str) -> bytes:
    return store.read(path, 0, store.size(path))


def list_paths(store: ColdStore, prefix: str) -> list[str]:
    return sorted(file.path for file in store.list(prefix))


def test_a_small_file_is_stored_and_read_in_ranges(store: ColdStore) -> None:
    store.put_new(PATH, b"0123456789")
    assert store.size(PATH) == 10
    assert store.read(PATH, 0, 10) == b"0123456789"
    assert store.read(PATH, 3, 4) == b"3456"
    assert store.read(PATH, 8, 100) == b"89"
    assert store.read(PATH, 10, 5) == b""
    assert store.read(PATH, 1000, 5) == b""
    assert store.read(PATH, 4, 0) == b""


def test_an_empty_file_is_a_file(store: ColdStore) -> None:
    store.put_new("v1/a", b"")
    writer = store.open_writer("v1/b")
    writer.commit()
    for path in ("v1/a", "v1/b"):
        assert store.size(path) == 0
        assert store.read(path, 0, 10) == b""
    assert list_paths(store, "") == ["v1/a", "v1/b"]


def test_a_name_is_taken_once(bench: ColdBench, store: ColdStore) -> None:
    store.put_new(PATH, b"first")
    for other in (store, bench.open_store()):
        with pytest.raises(AlreadyThere):
            other.put_new(PATH, b"second, and longer")
        with pytest.raises(AlreadyThere):
            other.open_writer(PATH)
        assert read_all(other, PATH) == b"first"


def test_of_many_writers_of_a_name_one_wins(bench: ColdBench) -> None:
    """Each from its own store, as executors of two jobs would."""
    count = 8
    start = threading.Barrier(count)

    def put(number: int) -> bool:
        store = bench.open_store()
        start.wait()
        try:
            store.put_new(PATH, bytes([number]) * 100_000)
        except AlreadyThere:
            return False
        return True

    with ThreadPoolExecutor(count) as pool:
        won = list(pool.map(put, range(count)))
    assert won.count(True) == 1
    assert read_all(bench.open_store(), PATH) == bytes([won.index(True)]) * 100_000


def test_a_reader_never_sees_half_a_file(bench: ColdBench, store: ColdStore) -> None:
    """It reads all the time while files of 3 MiB come."""
    other = bench.open_store()
    seen: dict[str, set[int]] = {f"v1/{number}": set() for number in range(4)}
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            for path, sizes in seen.items():
                try:
                    sizes.add(len(other.read(path, 0, 2 * len(BIG))))
                    sizes.add(other.size(path))
                except NotThere:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for path in ("v1/0", "v1/1"):
            store.put_new(path, BIG)
        for path in ("v1/2", "v1/3"):
            writer = store.open_writer(path)
            writer.write(BIG[:1000])
            writer.write(BIG[1000:])
            writer.commit()
    finally:
        is_over.set()
        watcher.join()
    assert all(sizes <= {len(BIG)} for sizes in seen.values())
    assert list_paths(store, "v1") == list(seen)


@pytest.mark.parametrize("part_bytes", [1, 10_000, len(BIG)])
def test_a_large_file_appears_when_it_is_committed(store: ColdStore, part_bytes: int) -> None:
    data = BIG * 5 if part_bytes > 1 else b"little by little"
    writer = store.open_writer(PATH)
    for start in range(0, len(data), part_bytes):
        writer.write(data[start : start + part_bytes])
    with pytest.raises(NotThere):
        store.size(PATH)
    assert list_paths(store, "") == []
    writer.commit()
    assert read_all(store, PATH) == data
    assert list_paths(store, "") == [PATH]
    writer.abort()
    assert store.size(PATH) == len(data)


def test_an_aborted_file_is_none(bench: ColdBench, store: ColdStore) -> None:
    for size_bytes in (10, 20 << 20):
        writer = store.open_writer(PATH)
        writer.write(bytes(size_bytes))
        writer.abort()
        writer.abort()
        with pytest.raises(NotThere):
            store.read(PATH, 0, 1)
    assert list_paths(store, "") == []
    if bench.drops_unfinished:  # HDFS may make a file that was given up while it was asked for
        assert store.drop_unfinished(LATER_UNIX_MS) <= 2
    store.put_new(PATH, b"by another attempt")
    assert read_all(store, PATH) == b"by another attempt"


KILLED_WRITER = """
import sys
from duramen.runtime.cold import open_cold_store

store = open_cold_store(sys.argv[1])
writer = store.open_writer(sys.argv[2])
for _ in range(3):
    writer.write(bytes(6 << 20))
print("written", flush=True)
sys.stdin.read()
"""


def test_a_killed_writer_leaves_nothing_to_read(bench: ColdBench, store: ColdStore) -> None:
    """And what it left of the store's room is found by age."""
    if bench.url is None:
        store.open_writer(PATH).write(b"never committed")
    else:
        kill_writer(bench, bench.url)
    with pytest.raises(NotThere):
        store.size(PATH)
    with pytest.raises(NotThere):
        store.read(PATH, 0, 1)
    assert list_paths(store, "") == []
    if bench.drops_unfinished:
        assert store.drop_unfinished(before_unix_ms=1) == 0
        assert store.drop_unfinished(LATER_UNIX_MS) == 1
        assert store.drop_unfinished(LATER_UNIX_MS) == 0
    store.put_new(PATH, b"by the next attempt")
    assert read_all(store, PATH) == b"by the next attempt"


def kill_writer(bench: ColdBench, url: str) -> None:
    command = [sys.executable, "-c", KILLED_WRITER, url, PATH]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **bench.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)


def test_a_listing_has_what_lies_beneath_a_folder(store: ColdStore) -> None:
    begun_unix_ms = time.time_ns() // 1_000_000
    paths = ["v1/a/1", "v1/a/b/2", "v1/ab/3", "v1/z", "v2/a/1"]
    for path in paths:
        store.put_new(path, path.encode())
    assert list_paths(store, "") == paths
    assert list_paths(store, "v1/a") == list_paths(store, "v1/a/") == paths[:2]
    assert list_paths(store, "v1/a/b") == ["v1/a/b/2"]
    assert list_paths(store, "v3") == list_paths(store, "v1/a/none") == []
    (found,) = store.list("v2")
    assert found.size_bytes == 6
    assert abs(found.modified_unix_ms - begun_unix_ms) < 60_000


def test_a_deleted_file_is_gone_and_its_name_free(store: ColdStore) -> None:
    store.put_new("v1/a/1", b"one")
    store.put_new("v1/a/2", b"two")
    for _ in range(2):
        store.delete("v1/a/1")
        assert list_paths(store, "v1") == ["v1/a/2"]
    with pytest.raises(NotThere):
        store.read("v1/a/1", 0, 1)
    store.delete("v1/none/at/all")
    store.put_new("v1/a/1", b"again")
    assert read_all(store, "v1/a/1") == b"again"


def test_what_is_not_there_is_said_to_be_not_there(store: ColdStore) -> None:
    store.put_new("v1/a/file", b"x")
    for path in ("v1/none", "v9/none/at/all", "v1/a", "v1/a/file/beneath"):
        with pytest.raises(NotThere):
            store.size(path)
        with pytest.raises(NotThere):
            store.read(path, 0, 1)
        with pytest.raises(NotThere):
            store.read(path, 5, 0)
        with pytest.raises(NotThere):
            store.open_file(path)


@pytest.mark.parametrize(
    "path", ["", "/v1/a", "v1//a", "v1/../a", "v1/.hidden", "v1/a b", "v1/", "ä"]
)
def test_a_path_that_some_store_would_change_is_refused(store: ColdStore, path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        store.put_new(path, b"")
    with pytest.raises(ValueError, match="not a path"):
        store.read(path, 0, 1)


def test_an_open_file_is_what_pyarrow_reads(store: ColdStore) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(
        {"n": list(range(50_000)), "body": [bytes([n % 251]) * 20 for n in range(50_000)]}
    )
    made = io.BytesIO()
    parquet.write_table(table, made, row_group_size=10_000)
    store.put_new("v1/part-0.parquet", made.getvalue())
    with store.open_file("v1/part-0.parquet") as file, parquet.ParquetFile(file) as opened:
        assert opened.num_row_groups == 5
        assert opened.read_row_group(3).equals(table.slice(30_000, 10_000))
        assert opened.read().equals(table)


def test_an_open_file_seeks_as_any_other(store: ColdStore) -> None:
    store.put_new("v1/f", BIG)
    with store.open_file("v1/f") as file:
        assert file.seek(-6, io.SEEK_END) == len(BIG) - 6
        assert file.read() == BIG[-6:]
        assert file.seek(100) == 100
        assert file.read(5) == BIG[100:105]
        assert file.seek(10, io.SEEK_CUR) == 115
        assert file.tell() == 115
        assert file.read(200_000) == BIG[115:200_115]
        file.seek(len(BIG) + 10)
        assert file.read(1) == b""
        with pytest.raises(ValueError, match="before the file"):
            file.seek(-1 - len(BIG), io.SEEK_END)


def test_many_threads_share_a_store(store: ColdStore) -> None:
    def use(number: int) -> bool:
        path, data = f"v1/{number}", bytes([number]) * (1000 + number)
        store.put_new(path, data)
        return all(read_all(store, path) == data for _ in range(5))

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(use, range(48)))
    assert len(list_paths(store, "v1")) == 48


@pytest.mark.parametrize("fault", ["down", "without root"])
def test_a_store_that_is_down_says_so_in_every_call(bench: ColdBench, fault: str) -> None:
    """Never "no such file": a proxy would take the archive for damaged. The same where folder,
    bucket or directory is missing: it is not mounted, or has another name."""
    is_down = fault == "down"
    store = bench.open_store_that_is_down() if is_down else bench.open_store_without_root()
    calls: list[Callable[[], Any]] = [
        lambda: store.put_new(PATH, b"x"),
        lambda: write_file(store, b"x"),
        lambda: store.read(PATH, 0, 1),
        lambda: store.size(PATH),
        lambda: store.open_file(PATH),
        lambda: list(store.list("")),
        lambda: list(store.list("v1")),
        lambda: store.delete(PATH),
    ]
    for call in calls:
        with pytest.raises(ColdStoreDown) as raised:
            call()
        assert raised.value.code == "cold_store_unavailable"
        assert raised.value.problem()["retryable"] is True


def write_file(store: ColdStore, data: bytes) -> None:
    writer = store.open_writer(PATH)
    try:
        writer.write(data)
        writer.commit()
    finally:
        writer.abort()
