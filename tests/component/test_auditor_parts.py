"""Steps of the auditor that must not go wrong once: what it records, and what it forgets when.

Commits on a store in memory, and an auditor whose rounds and worker are made up. Whole audits are
in `test_auditor`, races of commits in `tests/unit/test_repair_races.py`.
"""

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duramen.core.entry_ranges import EntryRanges
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, SegmentState, Totals
from duramen.core.status import BookieStatus
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    SequencerId,
    ledger_of,
)
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Unavailable
from duramen.wire.metadata_json import (
    Paths,
    encode_node,
    encode_segment,
    read_node,
    read_segment,
)
from duramen.wire.repair_calls import InventoryAnswer, PullAnswer
from duramen_sequencer.repair.auditor import Auditor
from duramen_sequencer.repair.commits import Commits, settled_fragment
from duramen_sequencer.repair.copying import Copier
from duramen_sequencer.repair.readings import Notes, OwedNote
from duramen_sequencer.repair.rebalancing import Rebalancing
from duramen_sequencer.repair.rounds import Round, Rounds
from duramen_sequencer.repair.worker import Done, RepairWorker
from tests.pauses import stay
from tests.unit.nodes import make_log
from tests.waiting import wait_for

PATHS = Paths("test")
LOG, EPOCH = LogId(9), Epoch(1)
LEDGER = ledger_of(LOG, EPOCH)
HANG_S = 30.0
"""A bound on a hang, not a promise."""


def member(number: int, life: str = "a") -> Member:
    return Member(BookieId(f"b{number}"), Incarnation(life * 32))


FIRST = Fragment(EntryId(0), (member(0), member(1), member(2)))
LAST = Fragment(EntryId(5), (member(0), member(1), member(3)))
OPEN = Segment(LOG, EPOCH, Quorum(3, 3, 2), (FIRST, LAST))
CLOSED = OPEN.closed(
    last_entry=EntryId(9),
    totals=Totals(10, 100),
    start_seq_num=0,
    completed_unix_ms=5,
    nonce="n",
)


class World:
    """A store with one segment in it, and a link to it."""

    def __init__(self) -> None:
        self.store = MemoryStore(MemoryTree())
        self.link = MetadataLink(self.store, PATHS, SequencerId("s1"), "http://s1")

    async def put(self, segment: Segment) -> None:
        await self.store.start()
        path = PATHS.segment(LOG, EPOCH)
        await self.store.create(path, encode_segment(segment), make_parents=True)

    async def read(self) -> Segment:
        found = await self.store.get(PATHS.segment(LOG, EPOCH))
        assert found is not None
        return read_segment(found.data)

    def make_auditor(self) -> Auditor:
        nobody = cast(Any, None)
        return Auditor(self.link, nobody, nobody, random.Random(1))


def test_no_bookie_gets_a_second_copy_by_a_new_life() -> None:
    async def scenario() -> None:
        world = World()
        await world.put(CLOSED)
        swap: Any = type("Swap", (), {"old": member(0), "new": member(2, life="b")})
        assert not await Commits(world.link).swap(LOG, EPOCH, FIRST, swap)
        assert await world.read() == CLOSED

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("before", "kept"), [(encode_node({"tolerance": 0.1, "only": "r1"}), "r1"), (b"no JSON", None)]
)
def test_a_rebalance_that_is_asked_again_keeps_what_a_newer_version_wrote(
    before: bytes, kept: str | None
) -> None:
    async def scenario() -> None:
        world = World()
        await world.store.start()
        await world.store.create(PATHS.rebalance, before, make_parents=True)
        commits = Commits(world.link)
        await Rebalancing(world.store, PATHS, commits, cast(Any, None)).request(0.3)
        stored = await world.store.get(PATHS.rebalance)
        assert stored is not None
        node = read_node(stored.data)
        assert (node["tolerance"], node.get("only")) == (0.3, kept)

    asyncio.run(scenario())


def test_a_fragment_is_proved_by_the_members_that_were_compared() -> None:
    async def scenario() -> None:
        world = World()
        await world.put(CLOSED)
        commits = Commits(world.link)
        compared = replace(FIRST, ensemble=(member(0), member(1), member(4)))
        assert not await commits.prove(LOG, EPOCH, compared)
        assert await world.read() == CLOSED
        assert await commits.prove(LOG, EPOCH, FIRST)

    asyncio.run(scenario())


def test_repair_leaves_alone_what_the_writer_or_recovery_may_change() -> None:
    assert settled_fragment(OPEN, EntryId(0)) == FIRST
    assert settled_fragment(OPEN, EntryId(5)) is None
    assert settled_fragment(CLOSED, EntryId(5)) == LAST
    recovering = replace(OPEN, state=SegmentState.IN_RECOVERY)
    assert settled_fragment(recovering, EntryId(0)) is None


def test_a_term_begins_without_absences_of_another_one() -> None:
    async def scenario() -> None:
        auditor = World().make_auditor()
        forgotten: list[str] = []
        absences: Any = auditor.readings.absences
        absences.forget = lambda: forgotten.append("absences")
        auditor.on_leadership(True)
        auditor.on_leadership(False)
        assert forgotten == ["absences"]

    asyncio.run(scenario())


def test_a_task_that_is_cut_is_given_back() -> None:
    async def scenario() -> None:
        auditor: Any = World().make_auditor()
        begun = asyncio.Event()
        cut: list[object] = []

        class RepairWorker:
            async def run(self, _: object) -> None:
                begun.set()
                await stay()

        auditor._worker = RepairWorker()
        auditor.backlog.on_cut = cut.append
        task = asyncio.create_task(auditor._run("the task"))
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert cut == ["the task"]

    asyncio.run(scenario())


def test_after_a_round_that_was_cut_notes_are_watched_again() -> None:
    async def scenario() -> None:
        auditor: Any = World().make_auditor()
        assert auditor._watch("owed") is not None
        assert auditor._watch("owed") is None, "one watch is enough"

        async def fail() -> None:
            raise Unavailable("cut off")

        auditor.audit = fail
        auditor.on_leadership(True)
        await wait_for(lambda: auditor.statistics()["rounds_cut"] == 1)
        auditor.on_leadership(False)
        assert auditor._watch("owed") is not None

    asyncio.run(scenario())


class Noting:
    """In the place of a part: notes which of its methods were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def note(*_: object) -> None:
            self.called.append(name)

        def note_now(*_: object) -> None:
            self.called.append(name)

        return note_now if name == "keep_only" else note


def test_a_round_that_left_something_out_ends_no_task() -> None:
    async def scenario() -> None:
        backlog = Noting()
        readings: Any = SimpleNamespace(doubts=SimpleNamespace(end_round=lambda _: None))
        rounds = Rounds(readings, cast(Any, backlog), cast(Any, Noting()))
        this = Round(VIEW, 0)
        this.found.add(cast(Any, "a finding"))
        await rounds.finish(this)
        assert backlog.called == []
        this.is_whole = True
        await rounds.finish(this)
        assert backlog.called == ["keep_only"]

    asyncio.run(scenario())


def test_a_settled_note_keeps_the_fields_of_a_newer_version() -> None:
    async def scenario() -> None:
        store = MemoryStore(MemoryTree())
        link = MetadataLink(store, Paths("c"), SequencerId("s0"), "url")
        path = link.paths.owed(LEDGER, member(0))
        await store.start()
        data = encode_node({"ranges": [[0, 9]], "later": 1})
        await store.create(path, data, make_parents=True)
        note = OwedNote(path, 0, [(0, 9)], read_node(data))
        await Commits(link).settle_owed(note, EntryRanges([(3, 9)]))
        stored = await store.get(path)
        assert stored is not None
        assert read_node(stored.data) == {"ranges": [[3, 9]], "later": 1}

    asyncio.run(scenario())


def test_notes_about_a_ledger_that_is_not_known_yet_stay() -> None:
    async def scenario() -> None:
        log = replace(make_log(), next_epoch=EPOCH)
        note = OwedNote("/a/note", 0, [(0, 9)], {})

        class Read:
            doubts = SimpleNamespace(end_round=lambda _: None)

            async def read_log(self, _: object) -> Any:
                return log

            async def read_segment(self, *_: object) -> None:
                return None

            async def read_notes(self, _: object) -> Notes:
                return Notes({member(0): note}, None)

        commits = Noting()
        rounds = Rounds(cast(Any, Read()), cast(Any, Noting()), cast(Any, commits))
        this = Round(VIEW, 0, is_whole=True, noted=frozenset({LEDGER}))
        await rounds.finish(this)
        assert commits.called == []

    asyncio.run(scenario())


def test_a_fragment_is_moved_only_while_it_is_proved() -> None:
    """What has one whole copy may have it at the very bookie that is to give it up."""

    async def scenario() -> None:
        copier, nobody = Noting(), cast(Any, None)
        view = SimpleNamespace(candidates=lambda: [SimpleNamespace(member=member(4))])
        worker = RepairWorker(
            nobody,
            nobody,
            cast(Any, copier),
            nobody,
            nobody,
            lambda: cast(Any, view),
            nobody,
            nobody,
        )
        subject: Any = SimpleNamespace(
            log=make_log(), segment=CLOSED, stretch=SimpleNamespace(fragment=FIRST)
        )
        swap: Any = SimpleNamespace(old=member(0), new=member(4))
        assert await worker._move(nobody, subject, swap) == Done()
        assert copier.called == []

    asyncio.run(scenario())


# --- Copies --------------------------------------------------------------------------------------

PIECE = cast(Any, SimpleNamespace(first=EntryId(0), last=EntryId(9)))
VIEW = cast(
    Any,
    SimpleNamespace(
        bookies={
            f"b{number}": SimpleNamespace(member=member(number), data_url=f"http://b{number}")
            for number in range(2)
        }
    ),
)


class Bookies:
    """Answers inventories and pulls with the same, whatever is asked."""

    def __init__(self, *, following: int | None) -> None:
        self.following = None if following is None else EntryId(following)
        self.call_count = 0

    async def take_inventory(self, *_: object) -> InventoryAnswer:
        self.call_count += 1
        unknown = [(EntryId(3), EntryId(4))]
        return InventoryAnswer(BookieStatus.OK, next=self.following, unknown=unknown)

    async def pull(self, *_: object) -> PullAnswer:
        self.call_count += 1
        return PullAnswer(BookieStatus.OK, self.following, 0, 0, [])


def test_an_inventory_that_does_not_get_further_is_none() -> None:
    bookies = Bookies(following=0)

    async def scenario() -> None:
        async with asyncio.timeout(HANG_S):
            held = await Copier(cast(Any, bookies)).take_holdings(LEDGER, PIECE, member(0), VIEW)
        assert held is None

    asyncio.run(scenario())
    assert bookies.call_count == 1


def test_an_inventory_tells_what_a_bookie_cannot_vouch_for() -> None:
    async def scenario() -> None:
        copier = Copier(cast(Any, Bookies(following=None)))
        held = await copier.take_holdings(LEDGER, PIECE, member(0), VIEW)
        assert held is not None and list(held.unknown) == [(3, 4)]

    asyncio.run(scenario())


def test_a_pull_that_gains_nothing_is_given_up() -> None:
    bookies = Bookies(following=0)

    async def scenario() -> None:
        missing, copier = [(EntryId(0), EntryId(9))], Copier(cast(Any, bookies))
        async with asyncio.timeout(HANG_S):
            await copier.pull(LEDGER, member(0), missing, [member(1)], VIEW, lambda _: None)

    asyncio.run(scenario())
    assert bookies.call_count == 3
