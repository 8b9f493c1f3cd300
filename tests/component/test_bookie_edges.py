"""Where a bookie meets its disk and its callers: short writes, bad blocks, locks, who has left.

One step each, of the service where it takes one. Whole journals, crashes and real full disks are
elsewhere (`tests/crash`, `tests/process`).
"""

import asyncio
import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from prometheus_client import REGISTRY

from duramen.core.status import BookieStatus
from duramen.ids import BookieId, EntryId, Incarnation
from duramen.runtime.role import StartRefusedError
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.wire.bookie_calls import ServiceClass, pack_adds, pack_reads
from duramen.wire.metadata_json import read_node
from duramen_bookie import metrics
from duramen_bookie.admission import AdmissionControl
from duramen_bookie.cookie import Cookie, Directory
from duramen_bookie.file_system import FileWindow, PosixFileSystem
from duramen_bookie.journal.writer import JournalPoisoned
from tests.component.bookie_world import LEDGER, PATHS, add, damage, run, running, span
from tests.component.request_classes import ALICE, SMALL
from tests.waiting import wait_for

BLOCK_BYTES = 4096


def test_a_write_that_the_kernel_cuts_short_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_some(descriptor: int, buffers: Sequence[bytes], offset: int) -> int:
        return os.pwrite(descriptor, b"".join(buffers)[:3], offset)

    monkeypatch.setattr(os, "pwritev", write_some)
    file = PosixFileSystem().open(str(tmp_path / "file"), is_new=True)
    file.pwritev([b"abcd", b"efgh"], 2)
    assert file.pread(10, 0) == b"\0\0abcdefgh"
    file.close()


def test_a_block_that_cannot_be_read_is_told_of() -> None:
    class Disk:
        def size_bytes(self) -> int:
            return 3 * BLOCK_BYTES

        def pread(self, length_bytes: int, offset: int) -> bytes:
            if offset < 2 * BLOCK_BYTES and offset + length_bytes > BLOCK_BYTES:
                raise OSError("bad block")
            return b"x" * length_bytes

    disk: Any = Disk()
    window = FileWindow(disk)
    data = window.slice(0, 3 * BLOCK_BYTES)
    assert data == b"x" * BLOCK_BYTES + bytes(BLOCK_BYTES) + b"x" * BLOCK_BYTES
    assert window.unreadable == [(BLOCK_BYTES, 2 * BLOCK_BYTES)]


def test_a_directory_is_held_by_one(tmp_path: Path) -> None:
    held = Directory(tmp_path, "data")
    with pytest.raises(StartRefusedError, match="held by another process"):
        Directory(tmp_path, "data")
    held.release()
    Directory(tmp_path, "data").release()


def test_a_cookie_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace, fsync = os.replace, os.fsync

    def note_sync(descriptor: int) -> None:
        done.append("file" if stat.S_ISREG(os.fstat(descriptor).st_mode) else "directory")
        fsync(descriptor)

    def note_replace(old: Path, new: Path) -> None:
        done.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    directory = Directory(tmp_path, "data")
    directory.write_cookie(Cookie("c", BookieId("b1"), Incarnation("a" * 32), "v"))
    directory.release()
    assert done == ["file", "directory", "rename", "directory"]


def test_a_client_gets_its_bytes_back() -> None:
    admission: AdmissionControl[None] = AdmissionControl(SMALL)
    for _ in range(3):
        admission.release(admission.take(ServiceClass.APPEND, ALICE, add_bytes=400))
    assert admission.statistics()["append"]["add_bytes"] == 0


def test_upkeep_that_was_suspended_is_resumed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            app = FastAPI()
            bookie.service.add_admin_routes(app)
            transport = ASGITransport(app)
            async with AsyncClient(transport=transport, base_url="http://admin") as client:
                states = []
                for is_on in (True, False):
                    path = "/v1/upkeep/compaction/suspended"
                    answer = await client.put(path, json={"is_on": is_on})
                    states.append(answer.json()["compaction"]["pace"]["state"])
        assert states == ["suspended", "running"]

    run(scenario)


def test_a_poll_ends_with_whoever_waits_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            plane = bookie.service._plane
            assert plane is not None
            poll = span(0)._replace(wait_ms=60_000, wait_for=EntryId(2))
            body = pack_reads(bookie.incarnation, [poll])
            waiting = asyncio.create_task(plane.handle("/b/read", body, ALICE))
            await bookie.wait_waiters(1)
            waiting.cancel()
            await bookie.wait_waiters(0)

    run(scenario)


def test_damage_that_a_read_meets_is_reported_with_that_reason(tmp_path: Path) -> None:
    tree = MemoryTree()

    async def scenario() -> None:
        async with running(tmp_path, tree) as bookie:
            await bookie.add(add(0), add(1))
            damage(tmp_path, 1, pattern="*.dj")
            (answer,) = await bookie.read(span(1))
            assert answer.status is BookieStatus.UNKNOWN
            await wait_for(lambda: tree.get(PATHS.queued(LEDGER)) is not None)
        found = tree.get(PATHS.queued(LEDGER))
        assert found is not None
        assert list(read_node(found.data)["reports"].values()) == ["read"]

    run(scenario)


def test_a_poisoned_journal_is_told_to_whoever_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            plane, storage = bookie.service._plane, bookie.service._storage
            assert plane is not None and storage is not None

            def fail(*_: object) -> bool:
                raise JournalPoisoned("the disk is gone")

            failing: Any = storage
            failing.append_nowait = fail
            body = pack_adds(bookie.incarnation, [add(0)])
            async with asyncio.timeout(30):
                status, _, text = (await plane.handle("/b/add", body, ALICE))[:3]
            assert status == 503 and b"the disk is gone" in text

    run(scenario)


def test_metrics_show_the_fullest_disk_and_nothing_where_nothing_is_known() -> None:
    upkeep = {
        "space": {"disks": [{"used_ratio": 0.9}, {"used_ratio": 0.2}]},
        "carrier": {"copied_entry_count": 1},
        "repair_queue": {"waiting": 2},
    }
    storage = {"shelf": {"data_bytes": 3, "live_bytes": 4}, "journal": {"sealed_file_ids": []}}
    metrics.show_upkeep(lambda: upkeep, lambda: storage)
    assert REGISTRY.get_sample_value("duramen_bookie_disk_used_ratio") == 0.9
    fields = ("connections", "connections_waiting", "bodies_bytes", "bodies_waiting")
    metrics.show_server(lambda: dict.fromkeys(fields))
    shown = REGISTRY.get_sample_value("duramen_bookie_open_connections")
    assert shown is not None and math.isnan(shown)
