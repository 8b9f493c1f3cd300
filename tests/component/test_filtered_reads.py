"""Reads of flexible segments at a real bookie: real HTTP/2, real files, metadata in memory.

The bookie has number 1 in the readers' maps. Answers go through the check that readers make of
them. Not here: what is said of each entry of a range, by a model (`test_range_reads`), waits and
cuts one by one (`test_filtered_polls`), how the frames look (`test_flexible_frames`). Source:
docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", V8, V9, V10, R24, R30.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from duramen.client.bookie_client import BookieClient
from duramen.core.flexible.sending import ReadFilter
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, Member, NodeNumber
from duramen.limits import READ_QUEUE_WAIT_MAX_US
from duramen.runtime.http_client import NoAnswerError
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.wire.bookie_calls import Add, LacUpdate, Marks, ReadRange, ServiceClass, pack_reads
from duramen.wire.disk.journal_format import BLOCK_BYTES
from duramen.wire.entry import HEADER_BYTES, check_entry
from duramen.wire.flexible.envelope import Envelope
from duramen.wire.flexible.filtered_answers import FilteredAnswer
from duramen.wire.flexible.filtered_reads import FilteredRange, pack_filtered_reads
from duramen.wire.repair_calls import Source
from duramen_bookie import handlers
from tests.component.bookie_world import (
    LEDGER,
    LOG,
    OK,
    READ_LAC,
    SEAL,
    Bookie,
    add,
    bodies,
    damage,
    entry,
    expected,
    keep,
    run,
    running,
    span,
    store,
)
from tests.waiting import wait_for

OVERLOADED, GONE = BookieStatus.OVERLOADED, BookieStatus.GONE
NOT_RELEASED = BookieStatus.NOT_RELEASED
CATCH_UP, TAIL = ServiceClass.CATCH_UP_READ, ServiceClass.TAIL_READ
RECOVERY, REPAIR = ServiceClass.RECOVERY, ServiceClass.REPAIR
OWN = NodeNumber(1)


class Reader:
    """A bookie with entries, and a client that reads them as readers of flexible segments do."""

    def __init__(self, bookie: Bookie, client: BookieClient, folder: Path) -> None:
        self.bookie = bookie
        self.folder = folder
        self._client = client

    async def keep(self, *adds: Add) -> None:
        await keep(self.bookie, *adds)

    async def ask(self, *ranges: FilteredRange) -> list[FilteredAnswer]:
        source = Source(
            Member(BookieId("b1"), self.bookie.incarnation), self.bookie.service.data_url
        )
        return await self._client.read_filtered(source, ranges)

    async def ask_one(self, asked: FilteredRange) -> FilteredAnswer:
        (answer,) = await self.ask(asked)
        return answer

    async def settle(self, *entries: int) -> None:
        """Until these are in the entry log."""
        self.bookie.service.running_upkeep().hurry("settling")
        core = self.bookie.service.running_core()

        def is_settled() -> bool:
            return all(core.count_settled(LEDGER, EntryId(e), EntryId(e)) for e in entries)

        await wait_for(is_settled)


@asynccontextmanager
async def reading(folder: Path, tree: MemoryTree | None = None) -> AsyncIterator[Reader]:
    async with running(folder, tree) as bookie:
        client = BookieClient()
        try:
            yield Reader(bookie, client, folder)
        finally:
            await client.close()


def wish(first: int, last: int, service: ServiceClass = CATCH_UP, **more: Any) -> FilteredRange:
    """A row of a reader in whose map the bookie has number 1."""
    bytes_max = more.pop("bytes_max", 1 << 20)
    wanted = ReadRange(LEDGER, EntryId(first), EntryId(last), bytes_max, service=service)
    wanted = wanted._replace(headers_only=more.pop("headers_only", False))
    return FilteredRange(wanted, **{"own": OWN, "bound": EntryId(99), **more})


def up(*numbers: int, senders: dict[int, int] | None = None) -> ReadFilter:
    chosen = {EntryId(block): NodeNumber(node) for block, node in (senders or {}).items()}
    return ReadFilter(frozenset(map(NodeNumber, numbers)), chosen)


def named(*members: int, block: int | None = None) -> Envelope:
    return Envelope(tuple(map(NodeNumber, members)), None if block is None else EntryId(block))


def told(answer: FilteredAnswer) -> list[int]:
    return [number for number, _ in answer.entries]


def identities(numbers: Sequence[int]) -> list[tuple[int, int]]:
    return [(number, check_entry(entry(number)).crc) for number in numbers]


# --- Who sends -----------------------------------------------------------------------------------


def test_an_entry_is_sent_by_whom_envelope_and_filter_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(
                store(0, 1, 2), store(1, 2, 1), store(2, 2, 3), store(3, 2, 1, block=3), add(4)
            )
            everybody = await reader.ask_one(wish(0, 9, read_filter=up(0, 1, 2, 3)))
            assert told(everybody) == [0, 2, 4], "first, not named, without envelope"
            assert (everybody.status, everybody.next, everybody.runs) == (OK, 10, ())
            alone = await reader.ask_one(wish(0, 9, read_filter=up(0, 1, 3)))
            assert told(alone) == [0, 1, 2, 3, 4], "who is not in the filter is down"
            chosen = await reader.ask_one(wish(0, 9, read_filter=up(1, 2, senders={3: 1})))
            assert told(chosen) == [0, 2, 3, 4]
            left = await reader.ask_one(wish(0, 9, read_filter=up(1, 2), own=None))
            assert told(left) == [0, 1, 2, 3, 4], "a guest of the map sends what it has"
            whole = await reader.ask_one(wish(0, 9, filter_number=7, with_envelopes=True))
            assert [(n, bytes(body)) for n, body in whole.entries] == expected(range(5))
            assert whole.filter_number == 7
            assert dict(whole.envelopes) == {
                0: named(1, 2), 1: named(2, 1), 2: named(2, 3), 3: named(2, 1, block=3)
            }  # fmt: skip

    run(scenario)


def test_v8_holders_that_leave_an_entry_to_each_other_say_nothing_of_it(tmp_path: Path) -> None:
    """What nobody sends is no absence: asked without a filter, whoever has it sends it."""

    async def scenario() -> None:
        async with reading(tmp_path / "one") as one, reading(tmp_path / "two") as two:
            await one.keep(store(0, 2, 1), store(1, 1, 2))
            await two.keep(store(0, 1, 2), store(1, 1, 2))
            for reader, own, sent in ((one, 1, [1]), (two, 2, [])):
                asked = wish(0, 1, own=NodeNumber(own))
                filtered = await reader.ask_one(asked._replace(read_filter=up(1, 2)))
                assert (filtered.next, told(filtered), filtered.unvouched) == (2, sent, ())
                assert told(await reader.ask_one(asked)) == [0, 1]

    run(scenario)


def test_a_block_costs_one_run_of_envelopes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(
                *[store(n, 1, 2, block=0) for n in range(6)],
                *[store(n, 2, 1, block=8) for n in range(8, 12)],
            )
            answer = await reader.ask_one(wish(0, 99, is_digest=True, with_envelopes=True))
            assert [tuple(run) for run in answer.runs] == [
                (0, 5, named(1, 2, block=0)), (8, 11, named(2, 1, block=8)),
            ]  # fmt: skip
            assert answer.digests == tuple(identities([*range(6), *range(8, 12)]))

    run(scenario)


def test_settled_entries_are_told_as_hot_ones_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(*[add(n) for n in range(600)])
            await reader.settle(*range(600))
            await reader.keep(add(600), add(602))
            asked = wish(0, 999, with_envelopes=True, bytes_max=50 * len(entry(0)), bound=900)
            settled = await reader.ask_one(asked)
            assert (told(settled), settled.next) == (list(range(50)), 50)
            digests = await reader.ask_one(asked._replace(is_digest=True))
            assert digests.digests == tuple(identities(range(600)))
            assert digests.next == 600, "what is hot is asked for next"
            hot = await reader.ask_one(wish(600, 999, bound=900))
            assert (told(hot), hot.next) == ([600, 602], 901)
            heads = await reader.ask_one(wish(598, 999, headers_only=True, bytes_max=0, bound=900))
            assert [(n, len(bytes(body))) for n, body in heads.entries] == [
                (598, HEADER_BYTES), (599, HEADER_BYTES),
            ]  # fmt: skip

    run(scenario)


def test_settled_copies_keep_the_envelopes_that_they_were_stored_with(tmp_path: Path) -> None:
    async def scenario() -> None:
        rows = [
            add(0), store(1, 1, 2, block=1), add(2), store(3, 2, 1), store(4, 2, 1), add(5),
            store(7, 2, 1),
        ]  # fmt: skip
        kept = {1: named(1, 2, block=1), 3: named(2, 1), 4: named(2, 1), 7: named(2, 1)}
        tree = MemoryTree()
        async with reading(tmp_path, tree) as reader:
            await reader.keep(*rows)
            hot = await reader.ask_one(wish(0, 9, with_envelopes=True))
            await reader.settle(0, 1, 2, 3, 4, 5, 7)
            settled = await reader.ask_one(wish(0, 9, with_envelopes=True))
            assert hot == settled and dict(hot.envelopes) == kept
            assert len(hot.runs) == 3, "entries that are told one after the other share a run"
            mine = await reader.ask_one(wish(0, 9, read_filter=up(1, 2)))
            assert (told(mine), mine.next) == ([0, 1, 2, 5], 10)
        async with reading(tmp_path, tree) as reader:
            again = await reader.ask_one(wish(0, 9, is_digest=True, with_envelopes=True))
            assert dict(again.envelopes) == kept

    run(scenario)


def test_a_row_ends_where_its_bytes_do_and_its_first_entry_comes_always(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(*[store(n, 1, 2) for n in range(4)], store(4, 2, 1), store(5, 1, 2))
            size = len(entry(0))
            for bytes_max, count in ((0, 1), (size, 1), (2 * size, 2), (4 * size + 1, 4)):
                row = wish(0, 9, read_filter=up(1, 2), bytes_max=bytes_max)
                answer = await reader.ask_one(row)
                assert told(answer) == list(range(count))
                assert answer.next == (5 if count == 4 else count)

    run(scenario)


# --- Up to where ---------------------------------------------------------------------------------


@pytest.mark.parametrize("service", [TAIL, CATCH_UP])
def test_v9_r30_nothing_above_lac_and_bound_is_told(tmp_path: Path, service: ServiceClass) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(*[store(n, 1, lac=min(n - 1, 1)) for n in range(6)])
            cut = await reader.ask_one(wish(0, 9, service, bound=NOTHING))
            assert (told(cut), cut.next, cut.lac, cut.highest) == ([0, 1], 2, 1, 5)
            bounded = await reader.ask_one(wish(0, 9, service, bound=EntryId(3)))
            assert (told(bounded), bounded.next, bounded.lac) == ([0, 1, 2, 3], 4, 1)
            later = await reader.ask_one(wish(2, 9, service, bound=NOTHING))
            assert (later.status, later.next, later.lac) == (NOT_RELEASED, 2, 1)
            assert await reader.bookie.lac(READ_LAC) == [Marks(OK, EntryId(1), EntryId(5))]
            assert (await reader.bookie.seal(SEAL))[0].lac == 1, "no bound is kept"

    run(scenario)


@pytest.mark.parametrize("service", [RECOVERY, REPAIR])
def test_recovery_and_repair_are_told_of_all(tmp_path: Path, service: ServiceClass) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(*[store(n, 1) for n in (0, 1, 4)])
            answer = await reader.ask_one(wish(0, 9, service, bound=NOTHING))
            assert (told(answer), answer.next, answer.lac) == ([0, 1, 4], 10, NOTHING)

    run(scenario)


def test_a_poll_waits_for_the_lac_and_not_for_the_entry(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(store(0, 1))
            asked = wish(1, 9, TAIL, bound=NOTHING, with_envelopes=True)
            wanted = asked.wanted._replace(wait_ms=50_000, wait_for=EntryId(1))
            polling = asyncio.create_task(reader.ask_one(asked._replace(wanted=wanted)))
            await reader.bookie.wait_waiters(1)
            await reader.keep(store(1, 1, 2), store(2, 1, 2, lac=0))
            assert not polling.done()
            await reader.bookie.wait_waiters(1)
            written = LacUpdate(LEDGER, EntryId(1), True)
            assert (await reader.bookie.lac(written))[0].status is OK
            answer = await polling
            assert (answer.status, told(answer), answer.next) == (OK, [1], 2)
            assert dict(answer.envelopes) == {1: named(1, 2)}

    run(scenario)


# --- Damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_settled", [False, True])
def test_v10_a_body_that_breaks_in_this_read_is_unvouched_and_hides_none_behind_it(
    tmp_path: Path, is_settled: bool
) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(*[store(n, 1, 2) for n in range(5)], store(5, 2, 1))
            if is_settled:
                await reader.settle(*range(6))
            for number in (1, 3, 5):
                damage(tmp_path, number, pattern="*.de" if is_settled else "*.dj")
            here = await reader.ask_one(wish(0, 5, is_digest=True))
            assert here.digests == tuple(identities(range(6))), "by its book all is here"
            first = await reader.ask_one(wish(0, 9, read_filter=up(1, 2)))
            assert first.next == 10
            if not is_settled:
                assert told(first) == [0, 2, 4] and first.unvouched == ((1, 1), (3, 3))
            again = await reader.ask_one(wish(0, 9))
            assert told(again) == [0, 2, 4] and again.unvouched == ((1, 1), (3, 3), (5, 5))
            left = await reader.ask_one(wish(0, 9, read_filter=up(1, 2)))
            assert (5, 5) in left.unvouched, "also what is another's to send"
            digests = await reader.ask_one(wish(0, 9, is_digest=True))
            assert digests.digests == tuple(identities([0, 2, 4]))
            assert digests.unvouched == ((1, 1), (3, 3), (5, 5))
            await reader.keep(*[store(n, 1, 2, recovery=True) for n in (1, 3, 5)])
            row = wish(0, 9, RECOVERY)
            whole: list[int] = []
            unvouched: list[tuple[int, int]] = []
            while row.wanted.first < 10:
                answer = await reader.ask_one(row)
                whole += told(answer)
                unvouched += answer.unvouched
                row = row._replace(wanted=row.wanted._replace(first=answer.next))
            assert whole == list(range(6)) and not unvouched

    run(scenario)


def test_where_many_bodies_are_broken_a_row_ends_before_it_reads_each_of_them(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(*[add(n) for n in range(200)])
            await reader.settle(*range(200))
            for number in range(10, 190):
                damage(tmp_path, number, pattern="*.de")
            row, sent, count = wish(0, 199, REPAIR), list[int](), 0
            while row.wanted.first < 200:
                answer = await reader.ask_one(row)
                assert all(last < answer.next for _, last in answer.unvouched)
                sent += told(answer)
                row = row._replace(wanted=row.wanted._replace(first=answer.next))
                count += 1
            assert sent == [*range(10), *range(190, 200)] and count == 3, "64 at a time"
            whole = await reader.ask_one(wish(0, 199, REPAIR))
            assert whole.unvouched == ((10, 189),)

    run(scenario)


def test_what_no_index_can_say_is_unvouched_and_no_damage(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(*[store(n, 1) for n in range(4)])
            await reader.settle(*range(4))
            (index,) = tmp_path.rglob("*.idx")
            with index.open("r+b") as file:
                file.seek(BLOCK_BYTES + 8)
                file.write(b"\xff" * 8)
            for is_digest in (True, False):
                answer = await reader.ask_one(wish(0, 9, is_digest=is_digest))
                assert (answer.status, answer.next, told(answer)) == (OK, 10, [])
                assert answer.unvouched == ((0, 3),)
            core = reader.bookie.service.running_core()
            assert not core.list_unknown(LEDGER, EntryId(0), EntryId(9)), "its index is made anew"

    run(scenario)


def test_what_lay_in_a_file_that_is_gone_is_unvouched_and_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with reading(tmp_path, tree) as reader:
            await reader.keep(*[store(n, 1) for n in range(4)])
            await reader.settle(*range(4))
        for path in tmp_path.rglob("*.de"):
            path.unlink()
        async with reading(tmp_path, tree) as reader:
            answer = await reader.ask_one(wish(0, 9, read_filter=up(2)))
            assert (answer.next, told(answer), answer.unvouched) == (10, [], ((0, 3),))
            core = reader.bookie.service.running_core()
            assert core.list_unknown(LEDGER, EntryId(0), EntryId(9)) == [(0, 3)]
            queue = reader.bookie.service.running_upkeep().queue
            await wait_for(lambda: queue.statistics()["reported"] == 1)

    run(scenario)


def test_r15_a_bookie_in_doubt_vouches_for_no_absence(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(store(1, 1), store(4, 2, 1))
            reader.bookie.service.running_core().on_recovered_damage()
            answer = await reader.ask_one(wish(0, 6, read_filter=up(1, 2)))
            assert (told(answer), answer.unvouched) == ([1], ((0, 0), (2, 3), (5, 6)))

    run(scenario)


def test_what_was_never_here_is_absent_and_in_no_table(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            nothing = await reader.ask_one(wish(3, 9))
            assert (nothing.status, nothing.next, told(nothing)) == (OK, 10, [])
            assert (nothing.unvouched, nothing.highest) == ((), NOTHING)

    run(scenario)


# --- Recovery ------------------------------------------------------------------------------------


def test_r24_digests_under_a_seal_are_what_is_durable_here_when_the_seal_is(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(*[store(n, 1, lac=n - 1) for n in range(3)], store(7, 1))
            asked = wish(0, 9, RECOVERY, is_digest=True, bound=NOTHING, bytes_max=0)
            sealing = asked._replace(wanted=asked.wanted._replace(seal_epoch=1))
            answer = await reader.ask_one(sealing)
            assert answer.digests == tuple(identities([0, 1, 2, 7]))
            assert (answer.is_sealed, answer.next, answer.lac, answer.highest) == (True, 10, 1, 7)
            assert await reader.bookie.add(store(8, 1)) == [BookieStatus.SEALED]

    run(scenario)


def test_r14_what_was_accepted_before_the_seal_is_in_its_digest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(store(0, 1))
            asked = wish(0, 50, RECOVERY, is_digest=True)
            sealing = asked._replace(wanted=asked.wanted._replace(seal_epoch=1))
            adding = [asyncio.create_task(reader.bookie.add(store(n, 1))) for n in range(1, 30)]
            answer = await reader.ask_one(sealing)
            stored = [0]
            for number, task in zip(itertools.count(1), adding, strict=False):
                status = (await task)[0]
                assert status in (OK, BookieStatus.SEALED)
                stored += [number] * (status is OK)
            assert answer.digests == tuple(identities(stored))

    run(scenario)


def test_r1_another_incarnation_and_a_dropped_ledger_are_told_before_anything_else(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(store(0, 1))
            body = pack_filtered_reads(Incarnation("f" * 32), [wish(0, 3, bound=NOTHING)])
            reply = await reader.bookie.post("/b/read", body)
            assert reply[36] == BookieStatus.WRONG_INCARNATION
            core = reader.bookie.service.running_core()
            core.drop(LOG, Epoch(1), is_all_below=False)
            plane = reader.bookie.service._plane
            assert plane is not None
            plane.drain()
            await wait_for(lambda: not core.is_alive(LEDGER))
            gone = await reader.ask_one(wish(4, 9, bound=NOTHING))
            assert (gone.status, gone.next) == (GONE, 4)

    run(scenario)


# --- Frames, versions, room ----------------------------------------------------------------------


def test_version_1_serves_a_ledger_with_envelopes_unfiltered_and_uncut(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(*[store(n, 2, 1) for n in range(4)])
            (answer,) = await reader.bookie.read(span(0, 3))
            assert (answer.status, bodies(answer)) == (OK, expected(range(4)))

    run(scenario)


def test_what_contradicts_itself_is_refused_whole_and_seals_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(store(0, 1))
            good = wish(0, 9, RECOVERY)
            sealing = good._replace(wanted=good.wanted._replace(seal_epoch=1))
            waiting = good._replace(wanted=good.wanted._replace(wait_ms=1))
            of_appends = good._replace(wanted=good.wanted._replace(service=ServiceClass.APPEND))
            both = good._replace(
                wanted=good.wanted._replace(headers_only=True), is_digest=True
            )  # fmt: skip
            life = reader.bookie.incarnation
            for bad in (waiting, of_appends, both):
                with pytest.raises(NoAnswerError):
                    await reader.bookie.post("/b/read", pack_filtered_reads(life, [sealing, bad]))
            mixed = bytearray(pack_reads(life, [sealing.wanted]))
            mixed[4] = 2  # rows of version 1 under version 2
            with pytest.raises(NoAnswerError):
                await reader.bookie.post("/b/read", bytes(mixed))
            assert reader.bookie.service.running_core().sealed_epoch(LOG) == 0
            statistics = reader.bookie.service.statistics()["data_plane"]
            assert statistics["frames_refused"] == 4
            assert await reader.ask() == []

    run(scenario)


def test_a_range_that_waited_too_long_for_a_thread_is_overloaded_and_looks_at_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0, READ_QUEUE_WAIT_MAX_US + 1)

    async def scenario() -> None:
        async with reading(tmp_path) as reader:
            await reader.keep(store(0, 1, lac=-1), store(1, 1, lac=0))
            with monkeypatch.context() as patch:
                patch.setattr(handlers, "_read_clock_us", lambda: next(clock))
                late, above = await reader.ask(
                    wish(0, 9, filter_number=3), wish(4, 9, bound=NOTHING)
                )
            assert (late.status, late.next, late.filter_number) == (OVERLOADED, 0, 3)
            assert (late.lac, late.highest) == (0, 1), "what is known is told"
            assert above.status is NOT_RELEASED
            assert told(await reader.ask_one(wish(0, 9))) == [0, 1]

    run(scenario)
