"""A bookie as its clients see it: real HTTP/2, a real journal on disk, metadata in memory.

The service runs inside the test's event loop; a restart is a second service on the same directory.
Not here: processes that are killed, and ZooKeeper itself (process tests).
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response

from duramen.config import LogConfig
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    ledger_of,
)
from duramen.runtime.admin import add_problem_handler
from duramen.runtime.http_client import NoAnswerError
from duramen.runtime.public.answers import Answer
from duramen.runtime.public.cluster_answers import JournalAnswer
from duramen.runtime.role import StartRefusedError
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.bookie_calls import (
    Add,
    LacUpdate,
    Marks,
    pack_adds,
)
from duramen.wire.metadata_json import encode_log, encode_segment, read_node
from duramen_bookie.admin import (
    BookieStateAnswer,
    DamagedEntryAnswer,
    DiskAnswer,
    DisksAnswer,
    ScrubAnswer,
    ScrubPassAnswer,
    UpkeepAnswer,
)
from duramen_bookie.file_system import DiskFile, PosixFile, PosixFileSystem
from tests.component.bookie_world import (
    LEDGER,
    LOG,
    OK,
    PATHS,
    READ_LAC,
    SEAL,
    Bookie,
    add,
    bodies,
    entry,
    expected,
    run,
    running,
    span,
)
from tests.waiting import wait_for

UNKNOWN = BookieStatus.UNKNOWN
NO_ENTRY = BookieStatus.NO_ENTRY
DEADLINE_S = 60


WRITE_LAC = LacUpdate(LEDGER, EntryId(2), True)

# --- Round trips ---------------------------------------------------------------------------------


def test_entries_come_back_as_they_were_added(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            assert await bookie.add(*[add(n, lac=n - 1) for n in range(5)]) == [OK] * 5
            (answer,) = await bookie.read(span(1, 9))
            assert (answer.status, answer.lac, answer.highest) == (OK, 3, 4)
            assert bodies(answer) == expected([1, 2, 3, 4])
            (missing,) = await bookie.read(span(5))
            assert (missing.status, missing.entries) == (BookieStatus.NO_ENTRY, [])

    run(scenario)


def test_reads_are_bounded_in_bytes_and_give_one_entry_at_least(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            size = 700_000
            assert await bookie.add(*[add(n, size=size) for n in range(4)]) == [OK] * 4
            few, one, many = [
                (await bookie.read(span(0, 9, bytes_max)))[0]
                for bytes_max in (2 * (size + 64), 0, 1 << 30)
            ]
            assert bodies(few) == expected([0, 1], size)
            assert bodies(one) == expected([0], size)
            assert bodies(many) == expected([0, 1, 2, 3], size), "read in a thread"

    run(scenario)


def test_an_answer_frame_has_a_bound_beyond_which_ranges_are_overloaded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            size = 4_000_000
            for number in range(5):
                assert await bookie.add(add(number, size=size)) == [OK]
            answers = await bookie.read(*[span(n, n, 1 << 30) for n in range(5)])
            assert [a.status for a in answers] == [OK] * 4 + [BookieStatus.OVERLOADED]
            assert bodies(answers[3]) == expected([3], size)

    run(scenario)


def test_headers_alone_can_be_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await bookie.add(add(0), add(1))
            (answer,) = await bookie.read(span(0, 1)._replace(headers_only=True))
            assert bodies(answer) == [(n, entry(n)[:64]) for n in (0, 1)]

    run(scenario)


def test_bad_entries_are_invalid_and_their_neighbours_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            damaged = bytearray(entry(0))
            damaged[-1] ^= 1
            statuses = await bookie.add(
                add(0)._replace(entry=bytes(damaged)),
                add(1)._replace(entry=entry(2)),
                add(2),
                add(3)._replace(entry=b"short"),
            )
            invalid = BookieStatus.INVALID
            assert statuses == [invalid, invalid, OK, invalid]
            assert await bookie.add(add(2), add(2, size=50)) == [OK, BookieStatus.DIFFERENT]

    run(scenario)


def test_a_seal_refuses_the_owner_and_lets_recovery_write(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await bookie.add(add(0), add(1, lac=0))
            assert await bookie.seal(SEAL) == [Marks(OK, EntryId(0), EntryId(1))]
            assert await bookie.add(add(2)) == [BookieStatus.SEALED]
            assert (await bookie.lac(WRITE_LAC))[0].status is BookieStatus.SEALED
            assert await bookie.add(add(2, lac=1, recovery=True)) == [OK]
            assert await bookie.lac(READ_LAC) == [Marks(OK, EntryId(0), EntryId(2))]

    run(scenario)


def test_a_read_with_a_seal_seals(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            (answer,) = await bookie.read(span(0)._replace(seal_epoch=1))
            assert (answer.status, answer.is_sealed) == (BookieStatus.NO_ENTRY, True)
            assert await bookie.add(add(0)) == [BookieStatus.SEALED]

    run(scenario)


def test_a_far_seal_is_taken_only_of_an_epoch_that_the_logs_node_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path, tree) as bookie:
            far = SEAL._replace(epoch=Epoch(2**32 - 1))
            old = SEAL._replace(epoch=Epoch(4_999))
            invalid = BookieStatus.INVALID
            assert (await bookie.seal(far))[0].status is invalid, "no node, no epoch"
            node = LogNode(LOG, "a", "l", LogConfig(), next_epoch=Epoch(5_000))
            store = MemoryStore(tree)
            await store.start()
            await store.create(PATHS.log(LOG), encode_log(node), make_parents=True)
            (answer,) = await bookie.read(span(0)._replace(seal_epoch=2**32 - 1))
            assert answer.status is invalid
            assert (await bookie.seal(far))[0].status is invalid
            assert await bookie.add(add(0)) == [OK], "the log lives"
            assert (await bookie.seal(old))[0].status is OK
            assert await bookie.add(add(1)) == [BookieStatus.SEALED]
            await store.close()
        async with running(tmp_path, tree) as bookie:
            assert (await bookie.seal(old))[0].status is OK
            assert bookie.service.statistics()["data_plane"]["seal_proofs"] == 0

    run(scenario)


def test_a_lac_write_is_read_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            assert await bookie.lac(WRITE_LAC) == [Marks(OK, EntryId(2), NOTHING)]
            assert await bookie.lac(READ_LAC) == [Marks(OK, EntryId(2), NOTHING)]

    run(scenario)


def test_another_incarnation_is_refused_by_every_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            life, wrong = Incarnation("f" * 32), BookieStatus.WRONG_INCARNATION
            assert await bookie.add(add(0), add(1), life=life) == [wrong, wrong]
            assert (await bookie.read(span(0), life=life))[0].status is wrong
            assert (await bookie.seal(SEAL, life=life))[0].status is wrong
            assert (await bookie.lac(WRITE_LAC, life=life))[0].status is wrong

    run(scenario)


# --- Long polls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("waker", ["add", "lac", "seal"])
def test_a_long_poll_is_woken(tmp_path: Path, waker: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            poll = span(0)._replace(wait_ms=50_000, wait_for=EntryId(2))
            waiting = asyncio.create_task(bookie.read(poll))
            await bookie.wait_waiters(1)
            if waker == "add":
                await bookie.add(add(0))
            elif waker == "lac":
                await bookie.lac(WRITE_LAC)
            else:
                await bookie.seal(SEAL)
            (answer,) = await waiting
            found = (bodies(answer), answer.lac, answer.is_sealed)
            wanted = {"add": ([(0, entry(0))], -1, False), "lac": ([], 2, False)}
            assert found == wanted.get(waker, ([], -1, True))

    run(scenario)


def test_a_long_poll_ends_with_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            (answer,) = await bookie.read(span(0)._replace(wait_ms=1, wait_for=EntryId(0)))
            assert answer.status is BookieStatus.NO_ENTRY
            await bookie.wait_waiters(0)

    run(scenario)


# --- Restarts and identity -----------------------------------------------------------------------


def test_a_restart_keeps_entries_seals_and_lacs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as first:
            await first.add(*[add(n) for n in range(3)], add(7))
            await first.lac(WRITE_LAC)
            await first.seal(SEAL)
            assert (tmp_path / "DIRTY").exists()
        assert not (tmp_path / "DIRTY").exists()
        async with running(tmp_path, first.tree) as second:
            assert second.incarnation == first.incarnation
            assert second.service.describe_journal()["replay"]["was_clean"]
            (answer,) = await second.read(span(0, 9))
            assert bodies(answer) == expected([0, 1, 2])
            assert (answer.lac, answer.highest, answer.is_sealed) == (2, 7, True)
            assert await second.add(add(8)) == [BookieStatus.SEALED]
            assert await second.add(add(7, recovery=True)) == [OK]

    run(scenario)


def test_an_entry_damaged_on_the_disk_is_unknown_until_it_is_written_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await bookie.add(add(0), add(1))
            (journal,) = (tmp_path / "journal").glob("*.dj")
            data = journal.read_bytes()
            at = data.index(entry(1)) + 90
            with journal.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 1]))
            both, second = await bookie.read(span(0, 1), span(1))
            assert bodies(both) == expected([0])
            assert second.status is BookieStatus.UNKNOWN
            assert await bookie.add(add(1, recovery=True)) == [OK]
            assert bodies((await bookie.read(span(1)))[0]) == expected([1])

    run(scenario)


def test_a_start_on_the_wrong_disk_is_refused_and_leaves_it_alone(tmp_path: Path) -> None:
    """All of its cases: test_identity."""

    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await bookie.add(add(0))
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(StartRefusedError, match=r"StaleDisk: .* check --id"):
            async with running(tmp_path, bookie.tree, "b2"):
                pass
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before

    run(scenario)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            with pytest.raises(StartRefusedError, match="held by another process"):
                async with running(tmp_path, bookie.tree):
                    pass
            assert await bookie.add(add(0)) == [OK]

    run(scenario)


def test_a_bookie_registers_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            assert bookie.service.is_ready()
            found = bookie.tree.get(f"{PATHS.available}/b1")
            assert found is not None and found.ephemeral_session
            fields = read_node(found.data)
            assert fields["incarnation"] == bookie.incarnation
            assert fields["data_url"] == bookie.service.data_url
            assert (fields["state"], fields["draining"], fields["rack"]) == ("rw", False, "r1")
        assert bookie.tree.get(f"{PATHS.available}/b1") is None

    run(scenario)


# --- Disk faults ---------------------------------------------------------------------------------


class FailingFile(PosixFile):
    """A disk whose syncs fail once a test says so."""

    is_broken = False

    def fdatasync(self) -> None:
        if FailingFile.is_broken:
            raise OSError(errno.EIO, "the disk is gone")
        super().fdatasync()


class FailingFileSystem(PosixFileSystem):
    def open(self, path: str, *, is_new: bool = False) -> DiskFile:
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if is_new else 0)
        return FailingFile(os.open(path, flags, 0o600))


def test_a_failed_sync_acknowledges_nothing_and_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen_bookie.service.PosixFileSystem", FailingFileSystem)
    monkeypatch.setattr(FailingFile, "is_broken", False)

    async def scenario() -> None:
        failures: list[str] = []
        async with running(tmp_path, failures=failures) as bookie:
            assert await bookie.add(add(0)) == [OK]
            FailingFile.is_broken = True
            for number in (1, 2):
                with pytest.raises(NoAnswerError, match="HTTP 503"):
                    await bookie.add(add(number))
            assert not bookie.service.is_ready()
        assert len(failures) == 1 and "the disk is gone" in failures[0]
        assert (tmp_path / "DIRTY").exists()

    run(scenario)


def open_segment() -> Segment:
    member = Member(BookieId("b1"), Incarnation("a" * 32))
    fragment = Fragment(EntryId(0), (member,))
    return Segment(LOG, Epoch(1), Quorum(1, 1, 1), (fragment,))


def test_r10_after_damage_the_owner_is_refused_until_its_segment_is_proved_open(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            for number in range(3):
                await bookie.add(add(number))
        (journal,) = (tmp_path / "journal").glob("*.dj")
        damage_header(journal, entry(1))
        async with running(tmp_path, bookie.tree) as bookie:
            assert [a.status for a in await bookie.read(span(0), span(1))] == [OK, UNKNOWN]
            assert await bookie.add(add(3)) == [UNKNOWN]
            assert await bookie.add(add(1, recovery=True)) == [OK]
            store = MemoryStore(bookie.tree)
            await store.start()
            path = PATHS.segment(LOG, Epoch(1))
            await store.create(path, encode_segment(open_segment()), make_parents=True)
            while await bookie.add(add(3)) == [UNKNOWN]:
                pass  # each refusal asks for the segment again
            assert [a.status for a in await bookie.read(span(1), span(3))] == [OK, OK]

    run(scenario)


def test_r15_a_ledger_begun_after_the_damage_is_vouched_for_over_further_starts(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            store = MemoryStore(bookie.tree)
            await store.start()
            await make_segment(store, Epoch(1))
            for number in range(3):
                await bookie.add(add(number))
        (journal,) = (tmp_path / "journal").glob("*.dj")
        damage_header(journal, entry(1))
        old, new = span(9), span(9)._replace(ledger_id=ledger_of(LOG, Epoch(2)))
        for start in range(3):
            async with running(tmp_path, bookie.tree) as bookie:
                if start == 0:
                    await make_segment(store, Epoch(2))
                async with asyncio.timeout(DEADLINE_S):
                    while [a.status for a in await bookie.read(new)] != [NO_ENTRY]:
                        pass  # a refusal asks for the segment's node
                if start == 0:
                    await wait_for(lambda: carried_count(bookie) > 0)
                assert [a.status for a in await bookie.read(old)] == [UNKNOWN]

    run(scenario)


def carried_count(bookie: Bookie) -> int:
    """How often the journal was settled, so that no later start meets its damage."""
    return int(bookie.service.statistics()["upkeep"]["carrier"]["carried_count"])


async def make_segment(store: MemoryStore, epoch: Epoch) -> None:
    segment = replace(open_segment(), epoch=epoch)
    await store.create(PATHS.segment(LOG, epoch), encode_segment(segment), make_parents=True)


def damage_header(journal: Path, stored: bytes) -> None:
    """Flip a bit in the header of the record of an entry: what stood there is not known."""
    data = journal.read_bytes()
    at = data.index(stored) - 60
    with journal.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))


# --- Bad input and the admin port ----------------------------------------------------------------


def test_bad_frames_are_refused_and_harm_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            good = pack_adds(bookie.incarnation, [add(0)])
            flipped = bytes([*good[:40], good[40] ^ 1, *good[41:]])
            for path in ("/b/add", "/b/read", "/b/seal", "/b/lac"):
                for body in (b"", b"x" * 100, good[:-1], flipped, good + b"0"):
                    with pytest.raises(NoAnswerError, match="HTTP 400"):
                        await bookie.post(path, body)
            with pytest.raises(NoAnswerError, match="HTTP 404"):
                await bookie.post("/b/none", good)
            assert await bookie.add(add(0)) == [OK]

    run(scenario)


def test_the_admin_routes_tell_what_is_held(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await bookie.add(add(0), add(1), add(5, lac=1))
            await bookie.seal(SEAL)
            app = FastAPI()
            bookie.service.add_admin_routes(app)
            admin = AsyncClient(transport=ASGITransport(app), base_url="http://bookie")
            answer = await admin.get("/v1/state")
            state = answer.json()
            assert_described(answer, bookie.service.describe(), BookieStateAnswer)
            assert (state["entries"], state["ledgers"], state["sealed_logs"]) == (3, 1, 1)
            (ledger,) = (await admin.get("/v1/ledgers")).json()["ledgers"]
            assert (ledger["lac"], ledger["highest"], ledger["entries"]) == (1, 5, 3)
            held = (await admin.get(f"/v1/ledgers/{LEDGER}/entries")).json()
            assert held == {"ledger_id": str(LEDGER), "ranges": [[0, 1], [5, 5]]}
            assert (await admin.get("/v1/ledgers")).json()["has_more"] is False
            # Its thread counts on for a moment after the last record is durable.
            told: dict[str, Any] = {}
            while told != (told := bookie.service.describe_journal()):
                answer = await admin.get("/v1/journal")
            journal = answer.json()
            assert journal["state"] == "running" and journal["record_count"] == 4
            assert_described(answer, told, JournalAnswer)
            space = bookie.service.running_upkeep().space
            assert_described(await admin.get("/v1/disks"), space.describe(), DisksAnswer)
            answer = await admin.put("/v1/read-only", json={"is_on": True})
            assert answer.json()["is_switched_read_only"] is True
            assert_described(answer, space.describe(), DisksAnswer)
            assert list(space.describe()["disks"][0]) == list(DiskAnswer.model_fields)
            assert json.dumps(bookie.service.statistics())

    run(scenario)


def test_the_admin_routes_tell_of_upkeep_byte_for_byte(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await bookie.add(add(0))
            app = FastAPI()
            bookie.service.add_admin_routes(app)
            admin = AsyncClient(transport=ASGITransport(app), base_url="http://bookie")
            upkeep = bookie.service.running_upkeep()
            await upkeep.scrub.run_pass()
            record = upkeep.scrub._log
            record.recent.append((LEDGER, EntryId(3)))
            for running_pass in (None, record.last):
                record.running = running_pass
                answer = await admin.get("/v1/scrub")
                assert_described(answer, upkeep.scrub.describe(), ScrubAnswer)
            told = upkeep.scrub.describe()
            assert list(told["last_pass"]) == list(ScrubPassAnswer.model_fields)
            assert list(told["recent_damage"][0]) == list(DamagedEntryAnswer.model_fields)
            for answer in (
                await admin.get("/v1/upkeep"),
                await admin.put("/v1/upkeep/scrub/suspended", json={"is_on": False}),
            ):
                assert_described(answer, upkeep.statistics(), UpkeepAnswer)

    run(scenario)


def assert_described(answer: Response, told: dict[str, Any], model: type[Answer]) -> None:
    """The answer is what the part told, byte for byte, and the model has each of its members."""
    assert answer.content == json.dumps(told, separators=(",", ":")).encode()
    assert list(told) == list(model.model_fields)


def test_ledgers_are_listed_a_page_at_a_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            ids = [ledger_of(LogId(log), Epoch(epoch)) for log in (3, 7, 8) for epoch in (1, 2, 9)]
            adds = [Add(it, EntryId(0), NOTHING, entry(0, ledger=it)) for it in ids]
            await bookie.add(*reversed(adds))
            app = FastAPI()
            add_problem_handler(app)
            bookie.service.add_admin_routes(app)
            admin = AsyncClient(transport=ASGITransport(app), base_url="http://bookie")
            for limit in (1, 2, 3, 4, 9, 10):
                listed: list[int] = []
                after, has_more = "", True
                while has_more:
                    page = (await admin.get(f"/v1/ledgers?limit={limit}{after}")).json()
                    assert 0 < len(page["ledgers"]) <= limit
                    listed += [int(ledger["ledger_id"]) for ledger in page["ledgers"]]
                    after, has_more = f"&after={listed[-1]}", page["has_more"]
                assert listed == ids, limit
            gone = f"?after={ledger_of(LogId(5), Epoch(1))}"
            page = (await admin.get("/v1/ledgers" + gone)).json()
            assert [int(it["ledger_id"]) for it in page["ledgers"]] == ids[3:]
            wrong = await admin.get("/v1/ledgers?after=first")
            assert (wrong.status_code, wrong.json()["field"]) == (400, "after")
            for limit in (0, 10_001):
                assert (await admin.get(f"/v1/ledgers?limit={limit}")).status_code == 422
            described = (await admin.get("/openapi.json")).json()["paths"]["/v1/ledgers"]["get"]
            assert {p["name"] for p in described["parameters"]} == {"limit", "after"}

    run(scenario)
