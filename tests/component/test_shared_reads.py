"""Reads that several share, and what a reader makes of whatever a bookie answers.

`RangeFetcher` on bookies that answer as told: who asks for what is under way gets its answer, and
tries its own replica where that answer has nothing; only the asked entry is believed. `Bookies` on
a network that answers as told: nothing unverified passes, and an overloaded bookie is left alone.
Source: docs/protocol/reading.md "Which replica", R1, R15.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import cast

import pytest

from duramen.core.quorum import Quorum
from duramen.core.reading.effects import SendRead
from duramen.core.reading.replica_order import Place
from duramen.core.reading.speculation import Speculation
from duramen.core.segment import Fragment, Segment
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member, ledger_of
from duramen.runtime.http_client import (
    NoAnswerError,
    OverloadedError,
    PeerClient,
    UnreachableError,
)
from duramen.runtime.reading import bookies as module
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import MIB, MS, SECOND
from duramen.wire.bookie_calls import (
    ReadAnswer,
    ReadRange,
    ServiceClass,
    pack_read_answers,
    pack_statuses,
    parse_reads,
)
from duramen.wire.entry import HEADER_BYTES
from duramen.wire.record_batch import encode_batch
from tests.unit.cold_entries import SegmentBytes
from tests.waiting import wait_for

LOG = LogId(9)
LEDGER = ledger_of(LOG, Epoch(1))
OTHER_LEDGER = ledger_of(LOG, Epoch(2))
A, B, C, D = (Member(BookieId(n), Incarnation(n.encode().hex() * 16)) for n in "abcd")
ENTRY_COUNT = 12
HANG_US = 120 * SECOND
Answers = Callable[[Member, ReadRange], Awaitable[ReadAnswer]]


def make_entries(ledger: int = LEDGER) -> dict[EntryId, bytes]:
    made = SegmentBytes(ledger_of(LOG, Epoch(ledger & 0xFFFF_FFFF)))
    for number in range(ENTRY_COUNT):
        made.add(encode_batch([b"r%d" % number], number))
    return made.entries


ENTRIES = make_entries()


def give(entries: Iterable[int], *, headers_only: bool = False) -> ReadAnswer:
    """An answer with these entries, in this order."""
    size = HEADER_BYTES if headers_only else None
    run = [(EntryId(number), ENTRIES[EntryId(number)][:size]) for number in entries]
    return ReadAnswer(BookieStatus.OK, NOTHING, NOTHING, False, run)


def refuse(status: BookieStatus) -> ReadAnswer:
    return ReadAnswer(status, NOTHING, NOTHING, False, [])


def make_segment(*ensembles: tuple[int, tuple[Member, ...]], write_quorum: int = 3) -> Segment:
    fragments = ensembles or ((0, (A, B, C)),)
    quorum = Quorum(len(fragments[0][1]), write_quorum, 2)
    made = tuple(Fragment(EntryId(first), members) for first, members in fragments)
    return Segment(LOG, Epoch(1), quorum, made)


class Patient(Speculation):
    """Nobody is late, however slow the machine is."""

    def delay_us(self, asked_count: int) -> int:
        return asked_count * HANG_US


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECOND_POLL_US", HANG_US)


class Order:
    """Members as they come; remembers what it is told of them."""

    def __init__(self) -> None:
        self.late: list[Member] = []
        self.good: list[Member] = []
        self.speculation: Speculation = Patient()

    def rank(self, members: Iterable[Member], _now_us: int) -> list[Member]:
        return sorted(members)

    def on_late(self, member: Member, waited_us: int, _now_us: int) -> None:
        if waited_us >= self.speculation.delay_us(1):
            self.late.append(member)

    def on_success(self, member: Member) -> None:
        self.good.append(member)


class Replicas:
    """Bookies as the fetcher sees them; `answers` by member, or what was asked for."""

    def __init__(self, **answers: ReadAnswer) -> None:
        self.order = Order()
        self.answers = {BookieId(name): answer for name, answer in answers.items()}
        self.asked: list[tuple[Member, ReadRange]] = []
        self.ended: list[Member] = []
        self.gates: dict[BookieId, asyncio.Event] = {}
        """Answers wait for these, where there is one."""
        self.leaving = asyncio.Event()
        """A call that is given up ends when this is set."""
        self.leaving.set()

    async def read(self, member: Member, wanted: ReadRange, _timeout_us: int) -> ReadAnswer:
        self.asked.append((member, wanted))
        try:
            gate = self.gates.get(member.bookie)
            if gate is not None:
                await gate.wait()
        finally:
            self.ended.append(member)
            await self.leaving.wait()
        held = range(wanted.first, min(wanted.last, ENTRY_COUNT - 1) + 1)
        found = self.answers.get(member.bookie)
        return found or give(held, headers_only=wanted.headers_only)

    async def read_ranges(
        self, member: Member, ranges: Sequence[ReadRange], timeout_us: int
    ) -> list[ReadAnswer]:
        return [await self.read(member, wanted, timeout_us) for wanted in ranges]

    @property
    def names(self) -> str:
        return "".join(member.bookie for member, _ in self.asked)


def make_fetcher(replicas: Replicas, cache: EntryCache | None = None) -> RangeFetcher:
    return RangeFetcher(cast("Bookies", replicas), cache or EntryCache())


def read(member: Member, first: int = 0, last: int = 2) -> SendRead:
    return SendRead(1, member, LEDGER, EntryId(first), EntryId(last), MIB, SECOND)


def poll(member: Member, first: int = ENTRY_COUNT) -> SendRead:
    """A long poll for what comes next."""
    entry = EntryId(first)
    return SendRead(
        1, member, LEDGER, entry, entry, MIB, 2 * SECOND, wait_us=SECOND, wait_for=entry
    )


def numbers(answer: ReadAnswer) -> list[int]:
    return [int(entry_id) for entry_id, _ in answer.entries]


async def fetch_late(
    fetcher: RangeFetcher, replicas: Replicas, *reads: SendRead
) -> list[ReadAnswer]:
    """Reads that all wait for the first one's replica, which answers when all are there."""
    gate = replicas.gates[reads[0].member.bookie] = asyncio.Event()
    tasks = [asyncio.create_task(fetcher.fetch(one)) for one in reads]
    await wait_for(lambda: fetcher.statistics()["joined"] == len(reads) - 1)
    gate.set()
    return await asyncio.wait_for(asyncio.gather(*tasks), 20)


# --- Shared reads ---------------------------------------------------------------------------------

NOTHING_GIVEN = [
    BookieStatus.UNREACHABLE,
    BookieStatus.TIMEOUT,
    BookieStatus.UNKNOWN,
    BookieStatus.NO_ENTRY,
    BookieStatus.OVERLOADED,
    BookieStatus.WRONG_INCARNATION,
]


@pytest.mark.parametrize("status", NOTHING_GIVEN)
def test_who_joined_a_read_that_gave_nothing_asks_the_replica_it_named(
    status: BookieStatus,
) -> None:
    async def scenario() -> None:
        replicas = Replicas(a=refuse(status))
        fetcher = make_fetcher(replicas)
        first, joined = await fetch_late(fetcher, replicas, read(A), read(B))
        assert (first.status, numbers(first)) == (status, [])
        assert numbers(joined) == [0, 1, 2] and replicas.names == "ab"

    asyncio.run(scenario())


def test_who_joined_with_the_same_replica_gets_its_failure_and_asks_nobody_again() -> None:
    async def scenario() -> None:
        replicas = Replicas(a=refuse(BookieStatus.TIMEOUT))
        fetcher = make_fetcher(replicas)
        answers = await fetch_late(fetcher, replicas, read(A), read(A), read(A))
        assert [answer.status for answer in answers] == [BookieStatus.TIMEOUT] * 3
        assert replicas.names == "a"

    asyncio.run(scenario())


def test_who_joined_a_read_that_gave_something_asks_nobody() -> None:
    async def scenario() -> None:
        replicas = Replicas()
        answers = await fetch_late(make_fetcher(replicas), replicas, read(A), read(B), read(C))
        assert [numbers(answer) for answer in answers] == [[0, 1, 2]] * 3
        assert replicas.names == "a"

    asyncio.run(scenario())


def test_a_shared_long_poll_that_ends_without_news_is_not_repeated_elsewhere() -> None:
    """Nothing came: another replica would be waited for as long again."""

    async def scenario() -> None:
        replicas = Replicas(a=give([]))
        answers = await fetch_late(make_fetcher(replicas), replicas, poll(A), poll(B))
        assert [numbers(answer) for answer in answers] == [[], []] and replicas.names == "a"

    asyncio.run(scenario())


@pytest.mark.parametrize("ask", [read, poll])
def test_a_replica_that_is_frozen_does_not_hold_up_who_asks_another(
    ask: Callable[[Member], SendRead],
) -> None:
    """Who asks a second one asks that one, whoever is asked for the same already."""

    async def scenario() -> None:
        replicas = Replicas()
        replicas.gates[A.bookie] = asyncio.Event()
        fetcher = make_fetcher(replicas)
        frozen = [asyncio.create_task(fetcher.fetch(ask(A))) for _ in range(2)]
        await wait_for(lambda: fetcher.statistics()["joined"] == 1)
        second = replace(ask(B), is_second=True)
        answers = await asyncio.gather(*(fetcher.fetch(second) for _ in range(3)))
        assert replicas.names == "ab" and fetcher.statistics()["joined"] == 3, "they share theirs"
        assert {tuple(numbers(answer)) for answer in answers} == {
            () if second.wait_us else (0, 1, 2)
        }
        assert not any(task.done() for task in frozen)
        replicas.gates[A.bookie].set()
        await asyncio.gather(*frozen)
        await wait_for(lambda: fetcher.statistics()["reads"] == 0)
        assert fetcher.statistics()["long_polls"] == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("ask", [read, poll])
def test_who_joins_a_read_that_is_late_asks_its_own_replica(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Member], SendRead]
) -> None:
    """A frozen one would hold up, read after read, whoever ranks it last."""

    async def scenario() -> None:
        monkeypatch.setattr(module, "SECOND_POLL_US", 20 * MS)
        replicas = Replicas()
        replicas.order.speculation = Speculation()
        replicas.gates[A.bookie] = asyncio.Event()
        fetcher = make_fetcher(replicas)
        frozen = asyncio.create_task(fetcher.fetch(ask(A)))
        await wait_for(lambda: replicas.names == "a")
        answer = await asyncio.wait_for(fetcher.fetch(ask(B)), 20)
        assert replicas.names == "ab" and fetcher.statistics()["joined"] == 1
        assert numbers(answer) == ([] if ask(B).wait_us else [0, 1, 2])
        await asyncio.wait_for(fetcher.fetch(ask(B)), 20)
        assert fetcher.statistics()["joined"] == 1, "that one is known to be late"
        replicas.gates[A.bookie].set()
        await frozen

    asyncio.run(scenario())


@pytest.mark.parametrize("frozen", ["a", "ab"])
def test_who_looks_a_header_up_does_not_wait_for_a_frozen_replica(frozen: str) -> None:
    async def scenario() -> None:
        replicas = Replicas()
        replicas.order.speculation = Speculation()
        for name in frozen:
            replicas.gates[BookieId(name)] = asyncio.Event()
        looking = make_fetcher(replicas).fetch_header(make_segment(), EntryId(3))
        assert (await asyncio.wait_for(looking, 20)).entry_id == 3
        answered = (A, B, C)[len(frozen)]
        assert replicas.order.late == [A, B, C][: len(frozen)]
        assert replicas.order.good == [answered]
        assert replicas.order.speculation.request_count == len(frozen)
        await wait_for(lambda: len(replicas.ended) == len(frozen) + 1)

    asyncio.run(scenario())


def test_a_late_header_is_taken_if_it_comes_before_the_others() -> None:
    async def scenario() -> None:
        replicas = Replicas()
        replicas.order.speculation = Speculation()
        for name in "abc":
            replicas.gates[BookieId(name)] = asyncio.Event()
        looking = asyncio.create_task(
            make_fetcher(replicas).fetch_header(make_segment(), EntryId(3))
        )
        await wait_for(lambda: replicas.names == "abc")
        replicas.gates[A.bookie].set()
        assert (await looking).entry_id == 3 and replicas.order.good == [A]

    asyncio.run(scenario())


def test_a_long_poll_and_a_read_of_the_same_entry_share_nothing() -> None:
    """A read that waits with a poll gets what is there already only when something new comes."""

    async def scenario() -> None:
        replicas = Replicas(a=give([]))
        replicas.gates[A.bookie] = asyncio.Event()
        fetcher = make_fetcher(replicas)
        waiting = asyncio.create_task(fetcher.fetch(poll(A, 3)))
        await wait_for(lambda: replicas.names == "a")
        assert numbers(await asyncio.wait_for(fetcher.fetch(read(B, 3, 5)), 20)) == [3, 4, 5]
        statistics = fetcher.statistics()
        assert (statistics["long_polls"], statistics["joined"]) == (1, 0)
        replicas.gates[A.bookie].set()
        assert numbers(await waiting) == []
        await wait_for(lambda: fetcher.statistics()["long_polls"] == 0)

    asyncio.run(scenario())


def test_a_long_poll_is_given_up_by_its_last_waiter_alone() -> None:
    async def scenario() -> None:
        replicas = Replicas()
        replicas.gates[A.bookie] = asyncio.Event()
        fetcher = make_fetcher(replicas)
        waiters = [asyncio.create_task(fetcher.fetch(poll(A))) for _ in range(3)]
        await wait_for(lambda: fetcher.statistics()["joined"] == 2)
        for left, waiter in enumerate(waiters):
            assert replicas.ended == [] and fetcher.statistics()["long_polls"] == 1, left
            waiter.cancel()
            await asyncio.wait([waiter])
        await wait_for(lambda: replicas.ended == [A])
        assert fetcher.statistics()["long_polls"] == 0

    asyncio.run(scenario())


def test_a_poll_that_was_given_up_and_ends_late_takes_no_newer_one_with_it() -> None:
    async def scenario() -> None:
        replicas = Replicas()
        replicas.gates[A.bookie] = asyncio.Event()
        replicas.leaving.clear()
        fetcher = make_fetcher(replicas)
        old = asyncio.create_task(fetcher.fetch(poll(A)))
        await wait_for(lambda: len(replicas.asked) == 1)
        old.cancel()
        await asyncio.wait([old])
        new = asyncio.create_task(fetcher.fetch(poll(A)))
        await wait_for(lambda: len(replicas.asked) == 2 and replicas.ended == [A])
        replicas.leaving.set()
        for _ in range(5):
            await asyncio.sleep(0)
        joined = asyncio.create_task(fetcher.fetch(poll(A)))
        await wait_for(lambda: fetcher.statistics()["joined"] == 1)
        replicas.gates[A.bookie].set()
        assert numbers(await new) == numbers(await joined) == []
        assert len(replicas.asked) == 2

    asyncio.run(scenario())


def test_a_read_that_nobody_waits_for_any_more_fills_the_cache() -> None:
    async def scenario() -> None:
        replicas, cache = Replicas(), EntryCache()
        replicas.gates[A.bookie] = asyncio.Event()
        fetcher = make_fetcher(replicas, cache)
        gone = asyncio.create_task(fetcher.fetch(read(A)))
        await wait_for(lambda: replicas.names == "a")
        gone.cancel()
        await asyncio.wait([gone])
        joined = asyncio.create_task(fetcher.fetch(read(B)))
        await wait_for(lambda: fetcher.statistics()["joined"] == 1)
        replicas.gates[A.bookie].set()
        assert numbers(await joined) == [0, 1, 2] and replicas.names == "a"
        assert [cache.has(LEDGER, EntryId(entry)) for entry in range(4)] == [True] * 3 + [False]
        cached = fetcher.find_cached(read(C))
        assert cached is not None and numbers(cached) == [0, 1, 2]
        assert fetcher.find_cached(poll(C, 0)) is None, "who waits for news is not told old ones"

    asyncio.run(scenario())


# --- Only the entry that was asked for ------------------------------------------------------------

OTHERS: dict[str, list[int]] = {
    "the next": [4, 5],
    "one before": [2, 3],
    "the first": [0],
    "the last": [ENTRY_COUNT - 1],
    "backwards": [4, 3],
    "none": [],
}


@pytest.mark.parametrize("headers_only", [False, True])
@pytest.mark.parametrize("given", OTHERS)
def test_another_entry_than_was_asked_for_is_no_answer(given: str, headers_only: bool) -> None:
    async def scenario() -> None:
        wrong = give(OTHERS[given], headers_only=headers_only)
        replicas = Replicas(a=wrong, b=wrong)
        fetcher, segment = make_fetcher(replicas), make_segment()
        if headers_only:
            assert (await fetcher.fetch_header(segment, EntryId(3))).entry_id == 3
        else:
            run = await fetcher.fetch_run(segment, EntryId(3), EntryId(5), MIB)
            assert run == [(number, ENTRIES[EntryId(number)]) for number in (3, 4, 5)]
        assert replicas.names == "abc" and replicas.order.good == [C]
        replicas.answers[C.bookie] = wrong
        with pytest.raises(DuramenError) as caught:
            await fetcher.fetch_header(segment, EntryId(6))
        assert caught.value.code == "data_unavailable"
        with pytest.raises(DuramenError):
            await fetcher.fetch_run(segment, EntryId(6), EntryId(7), MIB)

    asyncio.run(scenario())


def test_what_was_fetched_is_kept_and_asked_for_once() -> None:
    async def scenario() -> None:
        replicas = Replicas(a=give([3]))
        fetcher, segment = make_fetcher(replicas), make_segment()
        for _ in range(2):
            run = await fetcher.fetch_run(segment, EntryId(3), EntryId(5), MIB)
            assert [number for number, _ in run] == [3], "as far as the replica gave it"
        assert (await fetcher.fetch_header(segment, EntryId(3))).entry_id == 3
        assert replicas.names == "a"

    asyncio.run(scenario())


@pytest.mark.parametrize("overloaded", ["a", "b", "c"])
def test_where_one_replica_would_have_answered_the_reader_is_told_to_come_again(
    overloaded: str,
) -> None:
    async def scenario() -> None:
        replicas = Replicas(**dict.fromkeys("abc", refuse(BookieStatus.UNREACHABLE)))
        replicas.answers[BookieId(overloaded)] = refuse(BookieStatus.OVERLOADED)
        with pytest.raises(DuramenError) as caught:
            await make_fetcher(replicas).fetch_header(make_segment(), EntryId(0))
        assert caught.value.code == "overloaded"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("segment", "asked"),
    [
        (make_segment(), [("a", 0, 9), ("b", 0, 9), ("c", 0, 9)]),
        (make_segment((0, (A, B, C)), (4, (B, C, D))), [("a", 0, 3), ("b", 0, 3), ("c", 0, 3)]),
        (make_segment((0, (A, B, C, D)), write_quorum=2), [("a", 0, 0), ("b", 0, 1)]),
    ],
)
def test_nobody_is_asked_for_what_it_cannot_have(
    segment: Segment, asked: list[tuple[str, int, int]]
) -> None:
    """A member holds its fragment, or its runs of a striped one, and reads end there."""

    async def scenario() -> None:
        replicas = Replicas(**dict.fromkeys("abcd", refuse(BookieStatus.NO_ENTRY)))
        with pytest.raises(DuramenError):
            await make_fetcher(replicas).fetch_run(segment, EntryId(0), EntryId(9), MIB)
        assert [(m.bookie, wanted.first, wanted.last) for m, wanted in replicas.asked] == asked

    asyncio.run(scenario())


@pytest.mark.parametrize(("hole", "last"), [(None, ENTRY_COUNT - 1), (4, 3), (0, None)])
def test_what_is_fetched_ahead_ends_before_a_hole(hole: int | None, last: int | None) -> None:
    async def scenario() -> None:
        replicas = Replicas()
        fetcher, opened = make_fetcher(replicas), make_segment()
        holes = () if hole is None else ((EntryId(hole), EntryId(hole)),)
        closed = Segment(
            LOG, Epoch(1), opened.quorum, opened.fragments, ack_mode="out_of_order"
        ).closed(
            last_entry=EntryId(ENTRY_COUNT - 1), totals=opened.fragments[0].totals_before,
            start_seq_num=0, completed_unix_ms=1, nonce="n", holes=holes,
        )  # fmt: skip
        for _ in range(2):
            await fetcher.fetch_ahead(closed)
        expected = [] if last is None else [(0, last)]
        assert [(wanted.first, wanted.last) for _, wanted in replicas.asked] == expected
        assert fetcher.statistics()["segments_early"] == len(expected)

    asyncio.run(scenario())


# --- What comes from the network ------------------------------------------------------------------


class Network:
    """The client of the bookies: gives what a test says, or raises it."""

    def __init__(self) -> None:
        self.answer: bytes | Exception = b""
        self.urls: list[str] = []

    async def call(self, url: str, body: bytes, _timeout_us: int) -> bytes:
        self.urls.append(url)
        parse_reads(body)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class World:
    """Real `Bookies` before that network, and a clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = MemoryStore(MemoryTree())
        self.now_us = 1_000_000
        self.network = Network()
        monkeypatch.setattr(module, "read_clock_us", lambda: self.now_us)
        monkeypatch.setattr(module, "PeerClient", lambda: cast("PeerClient", self.network))
        self.bookies = Bookies(store, "/available", Place("r", "k"), Random(1))
        self.bookies._urls = {A.bookie: "http://a", B.bookie: "http://b"}

    def read(self, *ranges: ReadRange, member: Member = A) -> list[ReadAnswer]:
        return asyncio.run(self.bookies.read_ranges(member, ranges, SECOND))

    def counted(self, name: str) -> int:
        return self.bookies.statistics().get(name, 0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def want(
    first: int = 0, last: int = 3, service: ServiceClass = ServiceClass.CATCH_UP_READ
) -> ReadRange:
    return ReadRange(LEDGER, EntryId(first), EntryId(last), MIB, service=service)


def spoil(answer: ReadAnswer, at: int, body: bytes) -> ReadAnswer:
    entries = list(answer.entries)
    entries[at] = (entries[at][0], body)
    return answer._replace(entries=entries)


def flip(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"DRDR",
        pack_statuses([BookieStatus.OK]),
        pack_read_answers([]),
        pack_read_answers([give([0])]),
        pack_read_answers([give([0])] * 3),
        pack_read_answers([give([0]), give([2])])[:-3],
    ],
)
def test_an_answer_of_another_form_says_nothing_of_any_range(world: World, answer: bytes) -> None:
    world.network.answer = answer
    found = world.read(want(0, 1), want(2, 3))
    assert [(one.status, one.entries) for one in found] == [(BookieStatus.UNKNOWN, [])] * 2
    assert world.counted("malformed") == 1


@pytest.mark.parametrize(
    ("at", "body"),
    [
        (0, flip(ENTRIES[EntryId(0)])),
        (2, flip(ENTRIES[EntryId(2)])),
        (1, ENTRIES[EntryId(2)]),  # a whole entry, and not the one that the answer says
        (1, make_entries(OTHER_LEDGER)[EntryId(1)]),
        (3, ENTRIES[EntryId(3)][:HEADER_BYTES]),
        (0, b""),
    ],
)
def test_an_answer_ends_before_what_is_not_the_entry_that_it_says(
    world: World, at: int, body: bytes
) -> None:
    world.network.answer = pack_read_answers([spoil(give(range(4)), at, body)])
    (found,) = world.read(want())
    assert found.entries == [(number, ENTRIES[EntryId(number)]) for number in range(at)]
    assert found.status is (BookieStatus.OK if at else BookieStatus.UNKNOWN)
    assert world.counted("damaged") == 1


def test_an_overloaded_bookie_is_left_alone_in_the_class_that_it_refused(world: World) -> None:
    world.network.answer = OverloadedError("no room", 300 * MS)
    for expected in (1, 1):  # the second one is not sent
        assert world.read(want())[0].status is BookieStatus.OVERLOADED
        assert len(world.network.urls) == expected
    assert world.counted("spared") == 1
    world.network.answer = pack_read_answers([give([0])])
    assert numbers(world.read(want(service=ServiceClass.TAIL_READ))[0]) == [0]
    assert numbers(world.read(want(), member=B)[0]) == [0]
    world.now_us += 300 * MS - 1
    assert world.read(want())[0].status is BookieStatus.OVERLOADED
    world.now_us += 1
    assert numbers(world.read(want())[0]) == [0]
    assert world.network.urls == ["http://a/b/read"] * 2 + ["http://b/b/read", "http://a/b/read"]


def test_a_bookie_that_says_so_in_its_answer_is_left_alone_too(world: World) -> None:
    world.network.answer = pack_read_answers([refuse(BookieStatus.OVERLOADED), give([2])])
    assert [one.status.name for one in world.read(want(0, 1), want(2, 3))] == ["OVERLOADED", "OK"]
    assert world.read(want())[0].status is BookieStatus.OVERLOADED and world.counted("spared") == 1
    world.now_us += SECOND
    world.network.answer = UnreachableError("refused")
    assert world.read(want())[0].status is BookieStatus.UNREACHABLE


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (UnreachableError("refused"), B),
        (NoAnswerError("late"), B),
        (OverloadedError("no room", MS), A),
    ],
)
def test_a_bookie_that_does_not_answer_is_asked_last_from_then_on(
    world: World, error: Exception, first: Member
) -> None:
    """Whoever asked it; one that says that it has no room is there all the same."""
    here = Place("r", "k")
    world.bookies.order.on_places({A.bookie: here, B.bookie: Place("r", "other")})
    assert world.bookies.order.rank([A, B], world.now_us)[0] == A
    world.network.answer = error
    world.read(want())
    assert world.bookies.order.rank([A, B], world.now_us)[0] == first


@pytest.mark.parametrize("status", [BookieStatus.UNKNOWN, BookieStatus.NO_ENTRY])
def test_a_bookie_that_says_that_it_has_nothing_is_there_all_the_same(
    world: World, status: BookieStatus
) -> None:
    here = Place("r", "k")
    world.bookies.order.on_places({A.bookie: here, B.bookie: Place("r", "other")})
    world.network.answer = pack_read_answers([refuse(status)])
    assert world.read(want())[0].status is status
    assert world.bookies.order.rank([A, B], world.now_us)[0] == A


def test_a_member_that_nobody_knows_is_not_asked(world: World) -> None:
    assert world.read(want(), member=C)[0].status is BookieStatus.UNREACHABLE
    assert world.network.urls == []
