"""What a pull makes of sources and of its own bookie when they misbehave, without a network.

The client, the pace and the place where copies go are made up; the rest of a pull is the real one.
`test_repair_calls` pulls between real bookies. Source: docs/protocol/repair.md,
docs/protocol/envelopes.md "Read: `POST /b/read`, version 2" (pull, version 3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from duramen.core.bookie import BookieCore
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    NodeNumber,
    ledger_of,
)
from duramen.units import MIB
from duramen.wire.bookie_calls import Add, ReadAnswer, ReadRange, ServiceClass
from duramen.wire.entry import check_entry
from duramen.wire.flexible.envelope import Envelope, parse_envelope
from duramen.wire.flexible.filtered_answers import FilteredAnswer, group_runs
from duramen.wire.flexible.filtered_reads import FilteredRange
from duramen.wire.repair_calls import Pull, PullAnswer, PullMap, Source
from duramen_bookie.repair.pulling import Puller, name_copy
from duramen_bookie.upkeep.pacing import Pace
from tests.component.bookie_world import entry as make_entry

LEDGER = ledger_of(LogId(9), Epoch(1))
OK = BookieStatus.OK
SOURCE = Source(Member(BookieId("b1"), Incarnation("b" * 32)), "http://made-up")
OTHER = Source(Member(BookieId("b2"), Incarnation("c" * 32)), "http://made-up-too")
HANG_S = 30.0
"""A bound on a hang, not a promise."""


class Sources:
    """Answers every range with the same entries, wanted or not."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers

    async def read(self, _: Source, ranges: Sequence[ReadRange], __: int) -> list[ReadAnswer]:
        entries = [(EntryId(number), b"entry %d" % number) for number in self._numbers]
        ok = BookieStatus.OK
        return [ReadAnswer(ok, EntryId(9), EntryId(9), False, entries) for _ in ranges]


class Copies:
    """Where copies go; answers each with one status."""

    def __init__(self, status: BookieStatus) -> None:
        self.status = status
        self.stored: list[int] = []
        self.adds: list[Add] = []

    async def store(self, adds: Sequence[Add], _: str) -> list[BookieStatus]:
        self.stored += [add.entry_id for add in adds]
        self.adds += adds
        return [self.status] * len(adds)


async def find_as_named(source: Source) -> Source | None:
    return source


def make_puller(numbers: Sequence[int], copies: Copies) -> Puller:
    client: Any = Sources(numbers)
    core = BookieCore(Incarnation("a" * 32))
    return Puller(core, client, find_as_named, copies.store, Pace(MIB))


def test_what_nobody_asked_for_is_not_stored() -> None:
    copies = Copies(BookieStatus.OK)

    async def scenario() -> None:
        wanted = Pull(LEDGER, [(EntryId(2), EntryId(3))], [SOURCE], EntryId(9), MIB)
        answer = await make_puller([1, 2, 3, 9], copies).pull(wanted)
        assert (answer.status, answer.copied_count) == (BookieStatus.OK, 2)

    asyncio.run(scenario())
    assert copies.stored == [2, 3]


def test_a_bookie_without_room_is_not_asked_beyond_the_pulls_time() -> None:
    copies = Copies(BookieStatus.OVERLOADED)

    async def scenario() -> None:
        add = Add(LEDGER, EntryId(0), EntryId(-1), b"entry", is_recovery=True)
        async with asyncio.timeout(HANG_S):
            found = await make_puller([], copies).store([add], deadline_us=0)
        assert found == [(0, BookieStatus.OVERLOADED)]

    asyncio.run(scenario())
    assert copies.stored == [0], "it was tried once"


# --- With a map: flexible segments ---------------------------------------------------------------

Held = dict[int, Envelope | None]
MAP = PullMap(NodeNumber(4), tuple(map(NodeNumber, (0, 1, 4, 9))))


def named(*members: int, block: int | None = None) -> Envelope:
    return Envelope(tuple(map(NodeNumber, members)), None if block is None else EntryId(block))


class Holders:
    """Answers as bookies do: what each has, what it cannot vouch for, and how much it looks at."""

    def __init__(self, held: dict[Source, Held], *, unvouched: dict[Source, list[Run]]) -> None:
        self._held = held
        self._unvouched = unvouched
        self.look_count = 1 << 16
        self.refusal = OK
        self.asked: list[FilteredRange] = []

    async def read_filtered(
        self, source: Source, ranges: Sequence[FilteredRange], _: int
    ) -> list[FilteredAnswer]:
        self.asked += ranges
        return [self._answer(source, one.wanted) for one in ranges]

    def _answer(self, source: Source, wanted: ReadRange) -> FilteredAnswer:
        end = min(wanted.last + 1, wanted.first + self.look_count)
        if self.refusal is not OK:
            return FilteredAnswer(self.refusal, NOTHING, NOTHING, False, 0, wanted.first)
        looked = range(wanted.first, end)
        found = [n for n in sorted(self._held.get(source, {})) if n in looked]
        doubts = [
            (EntryId(max(first, wanted.first)), EntryId(min(last, end - 1)))
            for first, last in self._unvouched.get(source, [])
            if first < end and last >= wanted.first
        ]
        return FilteredAnswer(
            OK, NOTHING, NOTHING, False, 0, EntryId(end),
            entries=[(EntryId(n), make_entry(n)) for n in found], unvouched=doubts,
            runs=group_runs((EntryId(n), self._held[source][n]) for n in found),
        )  # fmt: skip


Run = tuple[int, int]


def pull_mapped(
    held: dict[Source, Held],
    *ranges: Run,
    unvouched: dict[Source, list[Run]] | None = None,
    **more: Any,
) -> tuple[PullAnswer, Copies, Holders]:
    """A pull from two sources of a flexible segment."""
    copies = Copies(OK)
    holders: Any = Holders(held, unvouched=unvouched or {})
    for name, value in more.items():
        setattr(holders, name, value)
    core = BookieCore(Incarnation("a" * 32))
    puller = Puller(core, holders, find_as_named, copies.store, Pace(MIB))

    async def scenario() -> PullAnswer:
        asked = [(EntryId(first), EntryId(last)) for first, last in ranges]
        async with asyncio.timeout(HANG_S):
            return await puller.pull(Pull(LEDGER, asked, [SOURCE, OTHER], EntryId(9), MIB, MAP))

    return asyncio.run(scenario()), copies, holders


def parts(answer: PullAnswer) -> list[tuple[int, int, BookieStatus]]:
    return [(part.first, part.last, part.status) for part in answer.ranges]


def test_a_copy_names_whom_the_source_names_less_who_left_and_who_pulls_last() -> None:
    for source, copy in (
        (named(1, 0), named(1, 0, 4)),
        (named(9, 2, 1, block=7), named(9, 1, 4, block=7)),
        (named(2, 300), named(4)),
        (named(0, 4, 3, 1), named(0, 4, 1)),
    ):
        assert name_copy(source, MAP) == copy
        assert name_copy(copy, MAP) == copy, "repair of repair names no more"


def test_copies_of_a_flexible_segment_have_envelopes_as_the_sources_have() -> None:
    held: dict[Source, Held] = {
        SOURCE: {2: named(1, 3, block=0), 3: None}, OTHER: {4: named(4, 0)}
    }  # fmt: skip
    answer, copies, holders = pull_mapped(held, (2, 4))
    assert parts(answer) == [(2, 4, OK)] and answer.copied_count == 3
    found = {}
    for add in copies.adds:
        assert (add.is_recovery, add.service) == (True, ServiceClass.REPAIR)
        assert bytes(add.entry) == make_entry(add.entry_id)
        identity = check_entry(bytes(add.entry)).crc
        found[int(add.entry_id)] = (
            parse_envelope(bytes(add.envelope), LEDGER, add.entry_id, identity)
            if add.envelope
            else None
        )
    assert found == {2: named(1, 4, block=0), 3: None, 4: named(4, 0)}
    assert all(
        one.with_envelopes and one.read_filter is None and not one.is_cut for one in holders.asked
    )


def test_what_no_source_has_is_missing_for_the_reason_that_leaves_the_most_hope() -> None:
    held: dict[Source, Held] = {SOURCE: {7: None}, OTHER: {7: None}}
    unvouched = {SOURCE: [(2, 3)], OTHER: [(3, 5)]}
    answer, copies, holders = pull_mapped(held, (0, 9), unvouched=unvouched)
    no_entry, unknown = BookieStatus.NO_ENTRY, BookieStatus.UNKNOWN
    assert parts(answer) == [(0, 1, no_entry), (2, 5, unknown), (6, 6, no_entry), (7, 7, OK),
                             (8, 9, no_entry)]  # fmt: skip
    assert copies.stored == [7] and len(holders.asked) < 20, "ranges are decided whole"


def test_what_a_source_did_not_look_at_is_not_missing_there() -> None:
    unreachable = BookieStatus.UNREACHABLE
    answer, _, _ = pull_mapped({}, (0, 5), look_count=2)
    assert parts(answer) == [(0, 5, BookieStatus.NO_ENTRY)], "it is asked on, and looks further"
    answer, _, _ = pull_mapped({}, (0, 2), look_count=0)
    assert parts(answer) == [(0, 2, unreachable)]
    answer, _, _ = pull_mapped({}, (0, 2), refusal=BookieStatus.OVERLOADED)
    assert parts(answer) == [(0, 2, unreachable)]
    for refusal in (BookieStatus.GONE, BookieStatus.WRONG_INCARNATION):
        answer, _, holders = pull_mapped({}, (0, 1_000), refusal=refusal)
        assert parts(answer) == [(0, 1_000, refusal)] and len(holders.asked) == 2
