"""The data plane over a storage that takes and gives only what a test lets it.

Adds stay in its journal, and reads in its threads, until the test says so: what one class of
service is full of must not hold up another. Not here: the decisions by themselves
(`test_admission`), real sockets and disks (`test_bookie_overload`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import Persist, ReadPlan
from duramen.core.segment import Totals
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, Incarnation, LedgerId, LogId, ledger_of
from duramen.limits import READ_QUEUE_WAIT_MAX_US
from duramen.runtime.http_server import Reply
from duramen.runtime.identity.names import Role, make_identity
from duramen.runtime.security.permitted_roles import BOOKIE_PATHS
from duramen.runtime.stores.metadata_store import MetadataError, Unavailable
from duramen.wire import bookie_calls as calls
from duramen.wire.bookie_calls import (
    Add,
    LacUpdate,
    Marks,
    ReadAnswer,
    ReadRange,
    Seal,
    ServiceClass,
)
from duramen.wire.disk.journal_format import record_bytes
from duramen.wire.entry import encode_entry
from duramen.wire.frame import RETRY_AFTER_HEADER
from duramen_bookie import handlers
from duramen_bookie.admission import ClassLimits
from duramen_bookie.handlers import DataPlane
from tests.component.request_classes import (
    ALICE,
    APPEND,
    BOB,
    CATCH_UP,
    RECOVERY,
    REPAIR,
    SMALL,
    TAIL,
)
from tests.unit.identities import DOMAIN
from tests.waiting import wait_for

OK = BookieStatus.OK
OVERLOADED = BookieStatus.OVERLOADED
LOG = LogId(9)
LEDGER = ledger_of(LOG, Epoch(1))
LIFE = Incarnation("a" * 32)
ENTRY_BYTES = 100
RECORD_BYTES = record_bytes(ENTRY_BYTES)


def entry(number: int, ledger_id: LedgerId = LEDGER) -> bytes:
    return encode_entry(
        ledger_id=ledger_id,
        entry_id=EntryId(number),
        before=Totals(number, number * 36),
        batches=[b"x" * (ENTRY_BYTES - 64)],
        record_count=1,
        after=Totals(number + 1, (number + 1) * 36),
    )


def add(number: int, *, recovery: bool = False) -> Add:
    service = RECOVERY if recovery else APPEND
    return Add(LEDGER, EntryId(number), NOTHING, entry(number), recovery, service)


def span(first: int, count: int = 1, service: ServiceClass = CATCH_UP) -> ReadRange:
    last = EntryId(first + count - 1)
    return ReadRange(LEDGER, EntryId(first), last, 1 << 20, service=service)


class FakeStorage:
    """A journal that syncs when it is told to, and threads that read when they are let."""

    def __init__(self, core: BookieCore) -> None:
        self.core = core
        self.has_room_for = {True, False}
        self.queued: list[Persist] = []
        self.gate = threading.Event()
        self.begun: list[str] = []
        self.failure: Exception | None = None
        self.is_short = True
        self.keeps_envelopes = True

    def secure_format(self) -> None:
        raise AssertionError("nobody sends envelopes")

    def has_room(self, _size_bytes: int, *, is_urgent: bool) -> bool:
        return is_urgent in self.has_room_for

    def append_nowait(
        self, persist: Persist, adds: Sequence[Add], entries: Sequence[bytes]
    ) -> bool:
        assert len(adds) == len(entries)
        self.queued.append(persist)
        return True

    def sync(self) -> None:
        queued, self.queued = self.queued, []
        for persist in queued:
            self.core.on_persisted(persist.token)

    def select(self, plans: Sequence[ReadPlan]) -> tuple[list[Any], bool]:
        place = object()
        readings = [
            SimpleNamespace(
                plan=p, places=[place] * p.entry_count, size_bytes=p.entry_count * ENTRY_BYTES
            )
            for p in plans
        ]
        return readings, self.is_short

    def read(self, readings: Sequence[Any]) -> Any:
        is_inline = threading.current_thread() is threading.main_thread()
        self.begun.append("loop" if is_inline else "thread")
        if not is_inline:
            assert self.gate.wait(20), "the test lets reads go"
            if self.failure is not None:
                raise self.failure
        answers = []
        for reading in readings:
            plan = reading.plan
            entries = [
                (EntryId(plan.first + n), entry(plan.first + n)) for n in range(plan.entry_count)
            ]
            answers.append(ReadAnswer(plan.status, plan.lac, plan.highest, plan.is_sealed, entries))
        return SimpleNamespace(answers=answers, unreadable=[])


class World:
    """A data plane that holds entries 0 to 99, and clients of it."""

    def __init__(self, limits: dict[ServiceClass, ClassLimits] | None = None) -> None:
        self.next_epochs: dict[LogId, Epoch] = {}
        self.asked: list[LogId] = []
        self.metadata = asyncio.Event()
        self.metadata.set()
        self.metadata_error: MetadataError | None = None
        self.core = BookieCore(LIFE)
        for number in range(100):
            crc = int.from_bytes(entry(number)[4:8], "little")
            self.core.on_recovered_add(
                LEDGER, EntryId(number), EntryId(number - 1), crc, is_recovery=False
            )
        self.storage = FakeStorage(self.core)
        self.plane = DataPlane(
            self.core,
            cast(Any, self.storage),
            lambda _ledger: None,
            read_next_epoch=self.read_next_epoch,
            limits=limits or SMALL,
        )

    async def read_next_epoch(self, log_id: LogId) -> Epoch | None:
        self.asked.append(log_id)
        await self.metadata.wait()
        if self.metadata_error is not None:
            raise self.metadata_error
        return self.next_epochs.get(log_id)

    def sync(self) -> None:
        self.storage.sync()
        self.plane.drain()

    def held(self, service: ServiceClass, field: str) -> int:
        return int(self.plane.statistics()["classes"][service.name.lower()][field])

    async def post(self, path: str, body: bytes, peer: str = ALICE) -> bytes:
        reply = Reply(*await self.plane.handle(path, body, peer))
        if reply.status != 200:
            raise Refused(reply)
        return reply.body

    async def add(self, *adds: Add, peer: str = ALICE) -> list[BookieStatus]:
        return calls.parse_statuses(await self.post("/b/add", calls.pack_adds(LIFE, adds), peer))

    async def read(self, *reads: ReadRange, peer: str = ALICE) -> list[ReadAnswer]:
        body = calls.pack_reads(LIFE, reads)
        return calls.parse_read_answers(await self.post("/b/read", body, peer))

    async def seal(self, epoch: int = 1) -> list[Marks]:
        seals = [Seal(LOG, Epoch(epoch), LEDGER)]
        return calls.parse_marks(await self.post("/b/seal", calls.pack_seals(LIFE, seals)), b"DSLR")

    async def lac(self, *, is_write: bool) -> list[Marks]:
        updates = [LacUpdate(LEDGER, EntryId(200), is_write)]
        return calls.parse_marks(await self.post("/b/lac", calls.pack_lacs(LIFE, updates)), b"DLCR")

    async def flood(self, service: ServiceClass, peers: Sequence[str] = (ALICE, BOB)) -> list[Task]:
        """Reads until the class is full; two clients, for one alone gets half."""
        tasks = []
        for number in range(SMALL[service].request_count_max):
            wanted = span(number, service=service)
            tasks.append(asyncio.create_task(self.read(wanted, peer=peers[number % len(peers)])))
        await wait_for(lambda: self.held(service, "requests") == len(tasks))
        return tasks


Task = asyncio.Task[list[ReadAnswer]]


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.status = reply.status
        self.headers = dict(reply.headers)
        self.text = reply.body.decode()


def run(scenario: Callable[[World], Awaitable[None]], world: World | None = None) -> None:
    async def in_world() -> None:
        here = world or World()
        try:
            async with asyncio.timeout(30):
                await scenario(here)
        finally:
            here.storage.gate.set()
            here.plane.stop("the test is over")
            await here.plane.close()
        for service in ServiceClass:
            held = here.plane.statistics()["classes"][service.name.lower()]
            assert held["requests"] == held["add_bytes"] == held["answer_bytes"] == 0, held

    asyncio.run(in_world())


async def synced(world: World, call: Awaitable[list[Any]]) -> list[Any]:
    """The answer to a call, once its seal is durable."""
    task = asyncio.ensure_future(call)
    await wait_for(lambda: bool(world.storage.queued) or task.done())
    world.sync()
    return await task


def far_read(epoch: int) -> ReadRange:
    return span(0, service=RECOVERY)._replace(seal_epoch=epoch)


def test_a_seal_far_above_what_is_known_is_proved_by_the_logs_node() -> None:
    async def scenario(world: World) -> None:
        world.next_epochs[LOG] = Epoch(70_001)
        assert (await synced(world, world.seal(70_000)))[0].status is OK
        assert (await synced(world, world.seal(70_000)))[0].status is OK
        assert world.asked == [LOG], "what was shown is known from then on"
        world.next_epochs[LOG] = Epoch(90_001)
        world.storage.gate.set()
        assert (await synced(world, world.read(far_read(90_000))))[0].is_sealed
        assert world.core.sealed_epoch(LOG) == 90_000

    run(scenario)


@pytest.mark.parametrize("next_epoch", [None, Epoch(3)])
def test_a_seal_that_metadata_does_not_show_is_invalid(next_epoch: Epoch | None) -> None:
    async def scenario(world: World) -> None:
        if next_epoch is not None:
            world.next_epochs[LOG] = next_epoch
        for _ in range(2):
            assert (await world.seal(2**32 - 1))[0].status is BookieStatus.INVALID
            assert (await world.read(far_read(2**32 - 1)))[0].status is BookieStatus.INVALID
        assert world.core.sealed_epoch(LOG) == 0 and not world.storage.queued
        assert (await synced(world, world.seal(2)))[0].status is OK

    run(scenario)


def test_without_metadata_a_far_seal_is_asked_again_and_a_near_one_is_taken() -> None:
    async def scenario(world: World) -> None:
        world.metadata_error = Unavailable("not connected")
        with pytest.raises(Refused, match="metadata_unavailable") as caught:
            await world.seal(5_000)
        assert caught.value.status == 503 and RETRY_AFTER_HEADER in caught.value.headers
        with pytest.raises(Refused, match="metadata_unavailable"):
            await world.read(far_read(5_000))
        assert (await synced(world, world.seal(900)))[0].status is OK
        assert world.core.sealed_epoch(LOG) == 900

    run(scenario)


def test_a_metadata_store_that_hangs_holds_no_seal_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handlers, "SEAL_PROOF_TIMEOUT_US", 1)

    async def scenario(world: World) -> None:
        world.metadata.clear()
        with pytest.raises(Refused, match="metadata_unavailable"):
            await world.seal(5_000)
        assert world.plane.statistics()["seal_proofs_running"] == 0

    run(scenario)


def test_proofs_under_way_are_bounded_and_another_life_asks_for_none() -> None:
    async def scenario(world: World) -> None:
        world.metadata.clear()
        many = [Seal(LogId(n), Epoch(5_000), ledger_of(LogId(n), Epoch(1))) for n in range(1, 65)]
        body = calls.pack_seals(LIFE, many)
        asking = asyncio.create_task(world.post("/b/seal", body))
        await wait_for(lambda: len(world.asked) == 1)
        with pytest.raises(Refused, match="many seals wait"):
            await world.seal(5_000)
        near = asyncio.create_task(world.seal(3))
        await wait_for(lambda: bool(world.storage.queued))
        world.sync()
        assert (await near)[0].status is OK
        other = calls.pack_seals(Incarnation("b" * 32), many)
        (mark, *_) = calls.parse_marks(await world.post("/b/seal", other), b"DSLR")
        assert mark.status is BookieStatus.WRONG_INCARNATION
        world.metadata.set()
        marks = calls.parse_marks(await asking, b"DSLR")
        assert {mark.status for mark in marks} == {BookieStatus.INVALID}
        assert world.asked == [log.log_id for log in many]

    run(scenario)


def test_a_bookie_that_stops_takes_no_seal_that_waited_for_its_proof() -> None:
    async def scenario(world: World) -> None:
        world.metadata.clear()
        world.next_epochs[LOG] = Epoch(9_000)
        sealing = asyncio.create_task(world.seal(5_000))
        await wait_for(lambda: world.asked == [LOG])
        world.plane.stop("the bookie is stopping")
        world.metadata.set()
        with pytest.raises(Refused, match="stopping"):
            await sealing
        assert world.core.sealed_epoch(LOG) == 0 and not world.storage.queued

    run(scenario)


def test_a_flood_of_catch_up_reads_delays_nobody_else() -> None:
    async def scenario(world: World) -> None:
        flood = await world.flood(CATCH_UP)
        await wait_for(lambda: world.storage.begun == ["thread", "thread"])
        assert world.held(CATCH_UP, "reads_waiting") == 4
        with pytest.raises(Refused, match="catch up read: 6 requests") as caught:
            await world.read(span(0))
        assert caught.value.status == 503
        assert caught.value.headers == {"retry-after": "1", RETRY_AFTER_HEADER: "250"}
        (tail,) = await world.read(span(7, service=TAIL))
        assert tail.status is OK and world.storage.begun[2:] == ["loop"]
        recovery = asyncio.create_task(world.read(span(8, service=RECOVERY)))
        await wait_for(lambda: world.storage.begun[3:] == ["thread"])
        assert world.held(CATCH_UP, "reads_waiting") == 4
        world.storage.gate.set()
        assert (await recovery)[0].status is OK
        for number, answers in enumerate(await asyncio.gather(*flood)):
            assert [(e, bytes(body)) for e, body in answers[0].entries] == [(number, entry(number))]
        assert (await world.read(span(0)))[0].status is OK

    run(scenario)


@pytest.mark.parametrize("flooding", [TAIL, RECOVERY, REPAIR])
def test_a_class_without_a_free_thread_holds_no_other_up(flooding: ServiceClass) -> None:
    async def scenario(world: World) -> None:
        world.storage.is_short = False  # tail reads take a thread as well
        flood = await world.flood(flooding)
        others = [s for s in (TAIL, CATCH_UP, RECOVERY, REPAIR) if s is not flooding]
        reads = [asyncio.create_task(world.read(span(50, service=s))) for s in others]
        await wait_for(lambda: len(world.storage.begun) == 1 + len(others))
        assert [world.held(service, "reads_running") for service in others] == [1, 1, 1]
        world.storage.gate.set()
        for answers in await asyncio.gather(*flood, *reads):
            assert answers[0].status is OK

    run(scenario)


def test_a_read_waits_until_the_answers_before_it_have_left() -> None:
    async def scenario(world: World) -> None:
        reads = [asyncio.create_task(world.read(span(n, 6), peer=BOB)) for n in range(3)]
        await wait_for(lambda: world.held(CATCH_UP, "reads_waiting") == 2)
        assert (world.held(CATCH_UP, "reads_running"), world.storage.begun) == (1, ["thread"])
        assert world.held(CATCH_UP, "answer_bytes") == 6 * ENTRY_BYTES
        world.storage.gate.set()
        assert [len((await task)[0].entries) for task in reads] == [6, 6, 6]

    run(scenario)


def test_short_tail_reads_and_answers_without_entries_take_no_thread() -> None:
    async def scenario(world: World) -> None:
        assert (await world.read(span(3, service=TAIL)))[0].status is OK
        missing = [await world.read(span(500, service=service)) for service in ServiceClass]
        assert {a.status for (a,) in missing} == {BookieStatus.NO_ENTRY}
        assert set(world.storage.begun) == {"loop"}

    run(scenario)


def test_a_full_append_class_refuses_appends_and_lets_recovery_and_seals_in() -> None:
    async def scenario(world: World) -> None:
        rows = [add(number) for number in range(200, 204)]
        held = [
            asyncio.create_task(world.add(row, peer=peer))
            for row, peer in zip(rows[:2], (ALICE, BOB), strict=True)
        ]
        await wait_for(lambda: len(world.storage.queued) == 2)
        held.append(asyncio.create_task(world.add(*rows[2:], peer="10.0.0.3:1")))
        await wait_for(lambda: len(world.storage.queued) == 3)
        assert world.held(APPEND, "add_bytes") == 4 * RECORD_BYTES <= 1_000
        assert await world.add(*[add(n) for n in range(300, 310)], peer=BOB) == [OVERLOADED] * 10
        mixed = asyncio.create_task(
            world.add(
                *[add(n) for n in range(400, 410)], add(0, recovery=True), add(500, recovery=True)
            )
        )
        await wait_for(lambda: len(world.storage.queued) == 4)
        sealing = asyncio.create_task(world.seal())
        await wait_for(lambda: len(world.storage.queued) == 5)
        world.sync()
        assert await mixed == [OVERLOADED] * 10 + [OK, OK]
        assert [await task for task in held] == [[OK], [OK], [OK, OK]]
        assert (await sealing)[0].status is OK

    run(scenario)


def test_without_room_the_core_still_says_what_it_knows() -> None:
    async def scenario(world: World) -> None:
        world.storage.has_room_for = set()
        assert await world.add(add(0), add(200), add(1)._replace(entry=b"")) == [
            OK, OVERLOADED, BookieStatus.INVALID,
        ]  # fmt: skip
        world.core.on_recovered_seal(LOG, Epoch(1))
        assert await world.add(add(200)) == [BookieStatus.SEALED]
        assert await world.add(add(200, recovery=True)) == [OVERLOADED]
        assert not world.storage.queued

    run(scenario)


def test_the_journals_reserve_is_for_recovery_and_seals_alone() -> None:
    async def scenario(world: World) -> None:
        world.storage.has_room_for = {True}
        repair = add(201, recovery=True)._replace(service=REPAIR)
        adding = asyncio.create_task(world.add(add(200), repair, add(202, recovery=True)))
        await wait_for(lambda: len(world.storage.queued) == 1)
        sealing = asyncio.create_task(world.seal())
        await wait_for(lambda: len(world.storage.queued) == 2)
        with pytest.raises(Refused, match="append: the journal has no room"):
            await world.lac(is_write=True)
        assert (await world.lac(is_write=False))[0].status is OK
        world.sync()
        assert await adding == [OVERLOADED, OVERLOADED, OK]
        assert (await sealing)[0].status is OK
        world.storage.has_room_for = set()
        for refused in (
            world.seal(2),
            world.read(span(0)._replace(seal_epoch=2, service=RECOVERY)),
        ):
            with pytest.raises(Refused, match="recovery: the journal has no room"):
                await refused
        assert (await world.read(span(0, service=TAIL)))[0].status is OK

    run(scenario)


def test_waiting_polls_hold_nothing_and_all_are_answered() -> None:
    async def scenario(world: World) -> None:
        poll = span(200, service=TAIL)._replace(wait_ms=50_000, wait_for=EntryId(500))
        polls = [asyncio.create_task(world.read(poll, peer=BOB)) for _ in range(300)]
        await wait_for(lambda: world.core.statistics()["waiters"] == 300)
        assert world.held(TAIL, "requests") == world.held(TAIL, "answer_bytes") == 0
        assert (await world.read(span(0, service=TAIL), peer=BOB))[0].status is OK
        adding = asyncio.create_task(world.add(add(200)._replace(lac=EntryId(150))))
        await wait_for(lambda: len(world.storage.queued) == 1)
        world.sync()
        assert await adding == [OK]
        answers = [answer for task in polls for answer in await task]
        found = [a for a in answers if a.status is OK]
        assert len(found) == 1_000 // ENTRY_BYTES, "as many as the class's answers may hold"
        assert {a.status for a in answers} == {OK, OVERLOADED}
        assert {(a.lac, a.highest) for a in answers} == {(150, 200)}, "told to everybody"

    run(scenario)


def test_a_read_that_waited_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    now_us = 0
    monkeypatch.setattr(handlers, "_read_clock_us", lambda: now_us)

    async def scenario(world: World) -> None:
        nonlocal now_us
        flood = await world.flood(RECOVERY)
        await wait_for(lambda: len(world.storage.begun) == 1)
        now_us = READ_QUEUE_WAIT_MAX_US + 1
        world.storage.gate.set()
        answers = [answer for task in flood for answer in await task]
        assert [a.status for a in answers] == [OK, OVERLOADED, OVERLOADED, OVERLOADED]
        assert len(world.storage.begun) == 1
        assert (await world.read(span(0, service=RECOVERY)))[0].status is OK

    run(scenario)


def test_a_read_that_fails_gives_its_room_back() -> None:
    async def scenario(world: World) -> None:
        world.storage.failure = RuntimeError("a fault of the bookie")
        world.storage.gate.set()
        with pytest.raises(RuntimeError, match="a fault of the bookie"):
            await world.read(span(0))
        world.storage.failure = None
        assert (await world.read(span(0)))[0].status is OK

    run(scenario)


def test_a_stop_ends_what_waits_without_a_promise() -> None:
    async def scenario(world: World) -> None:
        flood = await world.flood(CATCH_UP)
        adding = asyncio.create_task(world.add(add(200), add(201, recovery=True)))
        await wait_for(lambda: len(world.storage.queued) == 2)
        world.plane.stop("going")
        results = await asyncio.gather(*flood, adding, world.read(span(0)), return_exceptions=True)
        for result in results:
            assert isinstance(result, Refused)
            assert (result.status, result.text, result.headers) == (503, "going", {})

    run(scenario)


def test_a_client_that_goes_away_gives_its_room_back() -> None:
    async def scenario(world: World) -> None:
        flood = await world.flood(CATCH_UP)
        await wait_for(lambda: len(world.storage.begun) == 2)
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert world.held(CATCH_UP, "requests") == 0
        assert world.held(CATCH_UP, "answer_bytes") == 2 * ENTRY_BYTES, "two are being read"
        world.storage.gate.set()
        assert (await world.read(span(9)))[0].status is OK
        assert len(world.storage.begun) == 3

    run(scenario)


@pytest.mark.parametrize("role", sorted(BOOKIE_PATHS["/b/lac"]))
def test_who_only_asks_for_a_lac_writes_none(role: Role) -> None:
    async def scenario(world: World) -> None:
        async def send(*updates: LacUpdate) -> Reply:
            body = calls.pack_lacs(LIFE, updates)
            return Reply(*await world.plane.handle("/b/lac", body, ALICE, caller))

        caller = make_identity(DOMAIN, role, "one")
        ask = LacUpdate(LEDGER, NOTHING, is_write=False)
        writing = asyncio.create_task(send(ask, LacUpdate(LEDGER, EntryId(200), is_write=True)))
        may_write = role in ("sequencer", "corewriter")
        if may_write:
            await wait_for(lambda: len(world.storage.queued) == 1)
            world.sync()
        assert (await writing).status == (200 if may_write else 403)
        asked = await send(ask)
        (marks,) = calls.parse_marks(asked.body, b"DLCR")
        assert (asked.status, marks.lac) == (200, 200 if may_write else 98)

    run(scenario)
