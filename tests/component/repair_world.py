"""An auditor on a metadata store in memory, among bookies that are written to the wire contract.

A bookie here is a dictionary of entry identities that answers `inventory` and `pull`; every call
goes through the real spelling of both (`wire.repair_calls`) but no socket. It can lie, be silent,
hold damage, or stop in the middle. Segments are written as their owners would leave them.
`assert_right` says what must hold at any moment, whoever was killed where.
Used by `test_auditor…`. Source: docs/protocol/wire.md, docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

from duramen.client.bookie_client import BookieClient
from duramen.core.duty import Duty
from duramen.core.entry_ranges import group_ranges
from duramen.core.flexible.repair.evidence import DamageMark
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.segment import Segment, Totals
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    LedgerId,
    LogId,
    Member,
    SequencerId,
)
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import MS, SECOND
from duramen.wire import repair_calls as calls
from duramen.wire.bookie_calls import ReadAnswer, ReadRange
from duramen.wire.entry import encode_entry
from duramen.wire.metadata_json import (
    BookieNode,
    Paths,
    encode_bookie,
    encode_log,
    encode_node,
    encode_segment,
    read_any_segment,
    read_bookie,
    read_segment,
)
from duramen_sequencer.repair.auditor import Auditor, AuditPace
from duramen_sequencer.repair.disruption.granting import Granting
from duramen_sequencer.repair.disruption.judging import BookieJudge
from duramen_sequencer.repair.election import Election
from duramen_sequencer.repair.operations import RepairOperations
from tests.unit.repair_world import log_of_segments, make_log, member
from tests.waiting import wait_for

PATHS = Paths("c")


class FakeBookie:
    """Entries of ledgers by their identities, and what is wrong with the bookie."""

    def __init__(self, name: str, rack: str | None = None) -> None:
        self.name = name
        self.member = member(name)
        self.rack = rack or f"k-{name}"
        self.entries: dict[LedgerId, dict[EntryId, int]] = {}
        self.unknown: set[tuple[LedgerId, EntryId]] = set()
        self.is_silent = False
        self.forgets = False
        """It says that it has copied, and has not."""
        self.rows_per_call = 1_000
        self.pull_count = 0
        self.node_maps: list[calls.PullMap | None] = []
        self.mark: DamageMark | None = DamageMark(1 << 32)
        """None: it tells none, as a bookie of the version before."""
        self.on_call: Callable[[str], None] = lambda _: None

    def hold(self, ledger_id: LedgerId, entries: Sequence[EntryId]) -> None:
        held = self.entries.setdefault(ledger_id, {})
        held.update({entry: identity_of(ledger_id, entry) for entry in entries})

    def take_inventory(self, asked: calls.Inventory) -> calls.InventoryAnswer:
        held = self.entries.get(asked.ledger_id, {})
        in_range = [e for e in sorted(held) if asked.first <= e <= asked.last]
        told, rest = in_range[: self.rows_per_call], in_range[self.rows_per_call :]
        unknown = [
            entry
            for ledger_id, entry in sorted(self.unknown)
            if ledger_id == asked.ledger_id and asked.first <= entry <= asked.last
        ]
        return calls.InventoryAnswer(
            BookieStatus.OK,
            next=rest[0] if rest else None,
            entries=[(e, held[e]) for e in told if e not in unknown],
            unknown=[(EntryId(a), EntryId(b)) for a, b in group_ranges(unknown)],
            mark=self.mark if asked.is_marked else None,
        )

    def pull(self, asked: calls.Pull, find: Callable[[Member], FakeBookie | None]) -> Any:
        self.pull_count += 1
        self.node_maps.append(asked.node_map)
        held = self.entries.setdefault(asked.ledger_id, {})
        wanted = [EntryId(e) for a, b in asked.ranges for e in range(a, b + 1)]
        now, rest = wanted[: self.rows_per_call], wanted[self.rows_per_call :]
        copied, missing = [], []
        for entry in now:
            found = None
            for source in asked.sources:
                other = find(source.member)
                good = other is not None and (asked.ledger_id, entry) not in other.unknown
                if other is not None and good and not other.is_silent:
                    found = other.entries.get(asked.ledger_id, {}).get(entry, found)
            if found is None:
                missing.append(entry)
            elif not self.forgets:
                held[entry] = found
                self.unknown.discard((asked.ledger_id, entry))
                copied.append(entry)
        ranges = [calls.PulledRange(EntryId(a), EntryId(b), BookieStatus.OK)
                  for a, b in group_ranges(copied)]  # fmt: skip
        ranges += [calls.PulledRange(EntryId(a), EntryId(b), BookieStatus.NO_ENTRY)
                   for a, b in group_ranges(missing)]  # fmt: skip
        return calls.PullAnswer(
            BookieStatus.OK, rest[0] if rest else None, len(copied), 100 * len(copied),
            sorted(ranges),
        )  # fmt: skip


class FakeClient:
    """Calls to the fake bookies, spelled and parsed as on the wire."""

    def __init__(self, bookies: dict[str, FakeBookie]) -> None:
        self._bookies = bookies
        self.is_closed = False

    def find(self, wanted: Member) -> FakeBookie | None:
        found = self._bookies.get(wanted.bookie)
        return found if found is not None and found.member == wanted else None

    async def take_inventory(
        self, source: calls.Source, asked: calls.Inventory, _timeout_us: int = 0
    ) -> calls.InventoryAnswer:
        bookie = await self._reach(source, "mark" if asked.is_empty else "inventory")
        if isinstance(bookie, BookieStatus):
            return calls.InventoryAnswer(bookie)
        if asked.is_marked and bookie.mark is None:
            return calls.InventoryAnswer(BookieStatus.INVALID)
        _, parsed = calls.parse_inventory(calls.pack_inventory(source.member.incarnation, asked))
        answer = bookie.take_inventory(parsed)
        return calls.parse_inventory_answer(calls.pack_inventory_answer(answer))

    async def pull(
        self, target: calls.Source, asked: calls.Pull, _timeout_us: int = 0
    ) -> calls.PullAnswer:
        bookie = await self._reach(target, "pull")
        if isinstance(bookie, BookieStatus):
            return calls.PullAnswer(bookie)
        _, parsed = calls.parse_any_pull(calls.pack_pull(target.member.incarnation, asked))
        answer = bookie.pull(parsed, self.find)
        return calls.parse_pull_answer(calls.pack_pull_answer(answer))

    async def read(self, source: calls.Source, wanted: list[ReadRange]) -> list[ReadAnswer]:
        """Headers of entries of one record each."""
        bookie = await self._reach(source, "read")
        if isinstance(bookie, BookieStatus):
            return [ReadAnswer(bookie, NOTHING, NOTHING, False, []) for _ in wanted]
        return [
            ReadAnswer(BookieStatus.OK, NOTHING, NOTHING, False, [(one.first, make_entry(one))])
            if one.first in bookie.entries.get(one.ledger_id, {})
            else ReadAnswer(BookieStatus.NO_ENTRY, NOTHING, NOTHING, False, [])
            for one in wanted
        ]

    async def close(self) -> None:
        self.is_closed = True

    async def _reach(self, source: calls.Source, kind: str) -> FakeBookie | BookieStatus:
        await asyncio.sleep(0)
        bookie = self.find(source.member)
        if bookie is None or bookie.is_silent:
            return BookieStatus.UNREACHABLE
        bookie.on_call(kind)
        await asyncio.sleep(0)
        return bookie


class CountingStore(MemoryStore):
    """The store in memory; tells of every write before it is sent, and of every one applied."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.before_write: Callable[[Any], None] = lambda _: None
        self.after_write: Callable[[], None] = lambda: None

    async def commit(self, ops: Any) -> tuple[int, ...]:
        self.before_write(ops)
        done = await super().commit(ops)
        self.after_write()
        return done


class FakeSequencers:
    """What the sequencers of a cluster say of their open segments, when the auditor asks."""

    def __init__(self) -> None:
        self.behind: dict[str, dict[str, list[list[str]]]] = {"s0": {}, "s1": {}}
        """Sequencer → ledger that it writes → members that are behind."""
        self.of_before: set[str] = set()
        """Of a version that does not know the question."""
        self.silent: list[str] = []
        self.recovering: list[str] = []
        self.weights: dict[str, float] = {}
        self.on_asked: Callable[[], Awaitable[None]] | None = None

    def write(self, segment: AnySegment, *behind: Member) -> None:
        """The first one writes this segment."""
        self.behind["s0"][str(segment.ledger_id)] = [[*one] for one in behind]

    async def ask_all(
        self, message: Mapping[str, Any], timeout_us: int = 0
    ) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
        """Every answer, and who gave none."""
        assert message == {"op": "report_lags"} and timeout_us > 0
        if self.on_asked is not None:
            await self.on_asked()
        answers = [
            (
                name,
                {} if name in self.of_before else {"behind": told, "recovering": self.recovering},
            )
            for name, told in sorted(self.behind.items())
            if name not in self.silent
        ]
        return [*answers, *((name, {}) for name in sorted(self.of_before))], list(self.silent)

    def weight_of(self, name: str) -> float:
        """One, unless it was said otherwise."""
        return self.weights.get(name, 1.0)


class Seat:
    """One sequencer's part in repair."""

    def __init__(self, world: RepairWorld, name: str, pace: AuditPace) -> None:
        self.store = CountingStore(world.tree)
        link = MetadataLink(self.store, PATHS, SequencerId(name), f"http://{name}")
        client = FakeClient(world.bookies)
        rng = random.Random(5)
        self.auditor = Auditor(link, cast(BookieClient, client), world.roll, rng, pace)
        fields = {"sequencer": name, "admin_url": f"http://{name}:1"}
        self.election = Election(self.store, PATHS.auditor, fields, self.auditor.on_leadership)
        judge = BookieJudge(
            self.auditor.readings, link, world.sequencers, lambda: world.unreached, rng
        )
        self.granting = Granting(
            self.auditor.grant_book, judge, world.sequencers, lambda: self.auditor.is_leader
        )
        self.operations = RepairOperations(self.auditor, self.election, self.granting)

    async def start(self) -> None:
        await self.store.start()
        await self.election.start()

    async def stop(self) -> None:
        await self.election.stop()
        await self.auditor.stop()
        await self.store.close()

    async def wait_rounds(self, count: int = 1) -> None:
        """So many more whole looks, each begun after the one before had ended."""
        for _ in range(count + 1):  # the one that runs now may have begun long ago
            wanted = self.auditor.statistics()["rounds"] + 1
            self.auditor.want_round()
            await wait_for(partial(self._has_rounds, wanted))

    def _has_rounds(self, count: int) -> bool:
        return bool(self.auditor.statistics()["rounds"] >= count)


class RepairWorld:
    """Bookies, logs and auditors on one tree."""

    def __init__(self, names: str) -> None:
        self.tree = MemoryTree()
        self.setup = MemoryStore(self.tree)
        self.bookies = {name: FakeBookie(name) for name in names}
        self.sequencers = FakeSequencers()
        self.unreached: list[BookieId] = []
        self.rolls: list[LogId] = []
        self.on_roll: Callable[[LogId], None] = lambda _: None
        self._seats: list[Seat] = []

    # --- Setting up ------------------------------------------------------------------------------

    async def begin(self) -> None:
        await self.setup.start()
        await self.setup.create(PATHS.cluster, encode_node({"last_log_id": 0}), make_parents=True)
        for bookie in self.bookies.values():
            await self.register(bookie)

    async def register(self, bookie: FakeBookie) -> None:
        """The bookie's own node, and that it is there."""
        node = BookieNode(bookie.member.incarnation, "r", bookie.rack)
        await self.setup.create(PATHS.bookie(bookie.name), encode_bookie(node), make_parents=True)
        await self.publish(bookie.name)

    async def move(self, name: str, rack: str) -> None:
        """Another rack, by the bookie's own node."""
        path = PATHS.bookie(name)
        found = await self.setup.get(path)
        assert found is not None
        moved = replace(await self.node(name), rack=rack)
        await self.setup.set(path, encode_bookie(moved), version=found.version)

    async def publish(self, name: str, **changes: Any) -> None:
        """What a bookie that follows its own node says of itself."""
        duty = (await self.node(name)).duty
        fields = {
            "incarnation": self.bookies[name].member.incarnation,
            "data_url": f"http://{name}", "state": "rw", "free_bytes": 1, "duty": duty.value,
            "draining": duty is not Duty.SERVING, "formats": {"segment": 2, "envelope": 1},
            **changes,
        }  # fmt: skip
        path = f"{PATHS.available}/{name}"
        found = await self.setup.get(path)
        if found is None:
            await self.setup.create(path, encode_node(fields), make_parents=True)
        else:
            await self.setup.set(path, encode_node(fields), version=found.version)

    async def lose(self, name: str) -> None:
        """The bookie is gone, for all that others can see."""
        self.bookies[name].is_silent = True
        await self.remove(f"{PATHS.available}/{name}")

    async def remove(self, path: str) -> None:
        found = await self.setup.get(path)
        assert found is not None, path
        await self.setup.delete(path, version=found.version)

    async def add_flexible(self, segment: FlexibleSegment, copies: Mapping[str, str]) -> LogNode:
        """A log of one flexible segment, with copies at bookies by the entries' digits."""
        for name, entries in copies.items():
            self.bookies[name].hold(segment.ledger_id, [EntryId(int(e)) for e in entries])
        log = replace(make_log(segment.log_id), next_epoch=Epoch(2))
        log = replace(log, last_clean_epoch=int(segment.is_closed)).with_stateless()
        await self._write_log(log, segment)
        return log

    async def add(self, *segments: Segment, **fields: Any) -> LogNode:
        """A log of these segments, with every copy where its segment says."""
        log = log_of_segments(segments, **fields)
        for segment in segments:
            end = segment.last_entry
            last = segment.last_fragment.first_entry + 4 if end is None else end
            for entry in range(last + 1):
                for one in segment.write_set_of(EntryId(entry)):
                    if one.bookie in self.bookies:
                        self.bookies[one.bookie].hold(segment.ledger_id, [EntryId(entry)])
        await self._write_log(log, *segments)
        return log

    async def _write_log(self, log: LogNode, *segments: AnySegment) -> None:
        for segment in segments:
            path = PATHS.segment(log.log_id, segment.epoch)
            await self.setup.create(path, encode_segment(segment), make_parents=True)
        found = await self.setup.get(PATHS.log(log.log_id))
        assert found is not None
        await self.setup.set(PATHS.log(log.log_id), encode_log(log), version=found.version)
        cluster = await self.setup.get(PATHS.cluster)
        assert cluster is not None
        data = encode_node({"last_log_id": int(log.log_id)})
        await self.setup.set(PATHS.cluster, data, version=cluster.version)

    async def owe(self, segment: Segment, name: str, first: int, last: int) -> str:
        """A note that the bookie is owed entries, which it really misses."""
        path = PATHS.owed(segment.ledger_id, self.bookies[name].member)
        data = encode_node({"ranges": [[first, last]]})
        await self.setup.create(path, data, make_parents=True)
        for entry in range(first, last + 1):
            self.bookies[name].entries[segment.ledger_id].pop(EntryId(entry), None)
        return path

    async def report(self, segment: AnySegment, name: str, *entries: int) -> str:
        """A report of damage, with the damage."""
        who = self.bookies[name].member
        reports = {f"{who.bookie}.{who.incarnation}": "scrub"}
        fields = {"ledger_id": str(segment.ledger_id), "reports": reports, "nonce": "0" * 32}
        path = PATHS.queued(segment.ledger_id)
        await self.setup.create(path, encode_node(fields), make_parents=True)
        self.bookies[name].unknown |= {(segment.ledger_id, EntryId(e)) for e in entries}
        return path

    async def seat(
        self,
        name: str = "s0",
        *,
        interval_s: float = 60,
        grace_s: float = 0,
        before_write: Callable[[Any], None] = lambda _: None,
    ) -> Seat:
        """A sequencer that stands for election; its writes are shown from the first on."""
        pace = AuditPace(int(interval_s * SECOND), 1 * MS, int(grace_s * SECOND))
        seat = Seat(self, name, pace)
        seat.store.before_write = before_write
        self._seats.append(seat)
        await seat.start()
        return seat

    async def roll(self, log_id: LogId) -> object:
        self.rolls.append(log_id)
        self.on_roll(log_id)
        return {"epoch": 1}

    async def end(self) -> None:
        for seat in self._seats:
            await seat.stop()
        await self.setup.close()

    # --- Looking ---------------------------------------------------------------------------------

    async def segment(self, log_id: int = 5, epoch: int = 1) -> Segment:
        found = await self.setup.get(PATHS.segment(LogId(log_id), Epoch(epoch)))
        assert found is not None
        return read_segment(found.data)

    async def flexible(self, log_id: int = 5, epoch: int = 1) -> FlexibleSegment:
        found = await self.setup.get(PATHS.segment(LogId(log_id), Epoch(epoch)))
        assert found is not None
        segment = read_any_segment(found.data)
        assert isinstance(segment, FlexibleSegment)
        return segment

    async def change(self, changed: AnySegment) -> None:
        """An owner's compare-and-set, on what it read just now."""
        path = PATHS.segment(changed.log_id, changed.epoch)
        found = await self.setup.get(path)
        assert found is not None
        await self.setup.set(path, encode_segment(changed), version=found.version)

    async def ensembles(self, log_id: int = 5, epoch: int = 1) -> list[str]:
        segment = await self.segment(log_id, epoch)
        return ["".join(m.bookie for m in f.ensemble) for f in segment.fragments]

    async def node(self, name: str) -> BookieNode:
        found = await self.setup.get(PATHS.bookie(name))
        assert found is not None
        return read_bookie(found.data)

    async def wait_ensembles(self, *wanted: str, log_id: int = 5) -> None:
        async def hold() -> bool:
            return await self.ensembles(log_id) == list(wanted)

        await wait_for(hold)

    def assert_right(self, segment: Segment, gone: str = "") -> None:
        """Whoever is named, not gone and not owed anything holds all that he is to hold."""
        for fragment in segment.fragments if segment.is_closed else segment.fragments[:-1]:
            following = [f for f in segment.fragments if f.first_entry > fragment.first_entry]
            last = following[0].first_entry - 1 if following else (segment.last_entry or 0)
            for entry in range(fragment.first_entry, last + 1):
                for one in segment.write_set_of(EntryId(entry)):
                    bookie = self.bookies[one.bookie]
                    if one.bookie in gone:
                        continue
                    assert bookie.member == one, f"{one} is another life"
                    held = bookie.entries.get(segment.ledger_id, {})
                    assert held.get(EntryId(entry)) == identity_of(
                        segment.ledger_id, EntryId(entry)
                    ), f"{one.bookie} is named for entry {entry} of {segment} and lacks it"


def identity_of(ledger_id: LedgerId, entry: EntryId) -> int:
    """The identity that every good copy of an entry has."""
    return (ledger_id * 31 + entry * 7) & 0xFFFF_FFFF


def make_entry(asked: ReadRange) -> bytes:
    """The first entry of a range, with one record."""
    return encode_entry(
        ledger_id=asked.ledger_id, entry_id=asked.first, batches=[bytes(100)], record_count=1,
        before=Totals(asked.first, 100 * asked.first),
        after=Totals(asked.first + 1, 100 * asked.first + 100),
    )  # fmt: skip


def renew(bookie: FakeBookie, life: int) -> None:
    """Empty disks, and a new incarnation on them."""
    bookie.member = replace_member(bookie.member, life)
    bookie.entries.clear()


def replace_member(old: Member, life: int) -> Member:
    return member(BookieId(old.bookie), life)


@asynccontextmanager
async def repair_world(names: str = "abcd") -> AsyncIterator[RepairWorld]:
    """Bookies that are there, no log, no auditor; and the end of all of them."""
    world = RepairWorld(names)
    await world.begin()
    try:
        async with asyncio.timeout(30):
            yield world
    finally:
        await world.end()
