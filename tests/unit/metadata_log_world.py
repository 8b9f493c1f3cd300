"""A log, its metadata log and their keepers in a world where anything may happen in between.

One log node, its segment nodes, and the entries of its metadata log, changed by atomic changes as a
metadata store makes them: each by version, and each of a keeper's wants in several steps. Between
any two of them another keeper, the archive, retention, a configuration or a reader may come; a
keeper may die; an answer may be lost, and the change applied all the same, at once, later or never.
The world knows every version that a node has had, and says what must be true at each moment.

`broken` names rules that this world does not keep, so that a test sees whether it would notice.
Source: docs/protocol/metadata-logs.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from duramen.core.cold_copy import ColdCopy
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.keeper import (
    AppendMetadata,
    ClaimEpoch,
    CommitMarks,
    Keeper,
    KeeperView,
    Look,
    MakeLog,
    ReadAll,
    TrimLog,
)
from duramen.core.metadata_log.listing import (
    PlacedRecord,
    SegmentListing,
    Whereabouts,
    find_counting,
)
from duramen.core.metadata_log.lookup import ListingLookup, LookupStep, SegmentLookup, Unreadable
from duramen.core.metadata_log.moving import StoredNode, first_to_move
from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    Lsn,
    Member,
    lsn_of,
    metadata_log_of,
)
from tests.unit.core_fakes import LOG_ID
from tests.unit.nodes import make_log

MEMBER = Member(BookieId("b0"), Incarnation("0" * 32))
KEEPER_COUNT = 2
LATE_COUNT_MAX = 3


@dataclass(slots=True)
class Node:
    """A segment node."""

    segment: Segment
    version: int
    made: int


@dataclass(slots=True)
class MetadataEpoch:
    """An epoch of the metadata log, as bookies have it."""

    entry_count: int = 0
    is_sealed: bool = False


class World:
    """Everything that is stored, and what it must be."""

    def __init__(
        self, rng: random.Random, broken: Collection[str] = (), hearing: float = 0.9
    ) -> None:
        self.rng = rng
        self.hearing = hearing
        """How often an answer comes."""

        self.broken = broken
        self.log: LogNode = make_log()
        self.version = 0
        self.nodes: dict[Epoch, Node] = {}
        self.metadata_log: LogNode | None = None
        self.epochs: dict[Epoch, MetadataEpoch] = {}
        self.records: list[PlacedRecord] = []
        self.versions: dict[Epoch, list[Segment]] = {}
        """Every version that a node has had; the last one is what the segment is for ever once the
        node is gone."""

        self.told: set[Epoch] = set()
        """Epochs of which a configuration was told."""

        self.late: list[Callable[[], bool]] = []
        """Changes of unknown fate, which may still be applied."""

        self.counts = dict.fromkeys(("moves", "rewrites", "trims", "claims", "conflicts"), 0)
        self._transaction = 0
        self._nonce = 0

    def make_nonce(self) -> str:
        self._nonce += 1
        return f"n{self._nonce}"

    def set_log(self, log: LogNode) -> None:
        self.log = log
        self.version += 1

    # --- What others do --------------------------------------------------------------------------

    def open_epoch(self) -> None:
        if self.log.unclosed_epochs:
            return
        epoch = self.log.next_epoch
        self.set_log(self.log.with_new_epoch(self.make_nonce()))
        self._transaction += 1
        fragment = Fragment(EntryId(0), (MEMBER,))
        segment = Segment(LOG_ID, epoch, Quorum(1, 1, 1), (fragment,), nonce=self.make_nonce())
        self.nodes[epoch] = Node(segment, 0, self._transaction)
        self.versions[epoch] = [segment]

    def close_epoch(self) -> None:
        for epoch in self.log.unclosed_epochs:
            segment = self.nodes[epoch].segment.closed(
                last_entry=EntryId(self.rng.randrange(-1, 2)),
                totals=Totals(1, 10),
                start_seq_num=self.log.totals.record_count,
                completed_unix_ms=0,
                nonce=self.make_nonce(),
            )
            self.set_node(epoch, segment)
            log = self.log.with_clean(segment, self.make_nonce()).with_stateless()
            self.set_log(log)

    def set_node(self, epoch: Epoch, segment: Segment) -> None:
        node = self.nodes[epoch]
        self.nodes[epoch] = Node(segment, node.version + 1, node.made)
        self.versions[epoch].append(segment)

    def archive(self) -> None:
        """Work of the archive at any closed segment, most often at the oldest that is hot."""
        closed = [epoch for epoch, node in self.nodes.items() if node.segment.is_closed]
        hot = [epoch for epoch in closed if epoch >= self.log.first_hot_epoch]
        if closed:
            self.archive_epoch(self.rng.choice(hot[:1] * 3 + closed))

    def archive_epoch(self, epoch: Epoch) -> None:
        """A cold copy, a second look at it, or another copy in its place."""
        segment = self.nodes[epoch].segment
        if segment.cold_copy is not None and not segment.cold_copy.is_rechecked:
            return self.set_node(epoch, segment.with_recheck(2, self.make_nonce()))
        copy = ColdCopy(f"{self.rng.getrandbits(128):032x}", "1b" * 32, 100, 1)
        if segment.cold_copy is not None:
            copy = copy.rechecked(2)
        return self.set_node(epoch, segment.with_cold_copy(copy, self.make_nonce()))

    def release(self) -> None:
        epoch = self.log.first_kept_epoch
        node = self.nodes.get(epoch)
        if node is None or not node.segment.is_closed:
            return
        is_archived = node.segment.last_entry == -1 or (
            node.segment.cold_copy is not None and node.segment.cold_copy.is_rechecked
        )
        if is_archived:
            self.set_log(self.log.with_first_hot_epoch(Epoch(epoch + 1), self.make_nonce()))

    def give_up(self) -> None:
        """The oldest live segment."""
        epoch = Epoch(self.log.first_live_epoch + 1)
        if epoch > self.log.last_clean_epoch:
            return
        self.set_log(replace(self.log, first_live_epoch=epoch, nonce=self.make_nonce()))
        self.nodes = {e: node for e, node in self.nodes.items() if e >= epoch}

    def configure(self) -> None:
        version = self.log.config_version + 1
        self.set_log(replace(self.log, config_version=version, nonce=self.make_nonce()))

    def drop_trimmed(self) -> None:
        """Bookies forget what lies below the metadata log's trim point."""
        if self.metadata_log is not None:
            trim = self.metadata_log.trim.lsn
            self.records = [placed for placed in self.records if placed.lsn >= trim]

    def apply_late(self) -> None:
        if self.late:
            self.late.pop(self.rng.randrange(len(self.late)))()

    # --- Changes of keepers ----------------------------------------------------------------------

    def make_metadata_log(self, version: int) -> bool:
        if version != self.version or self.metadata_log is not None:
            return False
        self.metadata_log = replace(make_log(), log_id=metadata_log_of(LOG_ID))
        return True

    def claim(self, want: ClaimEpoch) -> Epoch | None:
        """The next epoch of the metadata log; None: the log node is another one by now."""
        assert self.metadata_log is not None
        if want.version != self.version:
            self.counts["conflicts"] += 1
            return None
        epoch = self.metadata_log.next_epoch
        self.metadata_log = self.metadata_log.with_new_epoch(self.make_nonce())
        self.epochs[epoch] = MetadataEpoch()
        if "claim-checks-only" not in self.broken:
            marks = want.log.metadata.claimed(epoch)
            self.set_log(want.log.with_metadata(marks, self.make_nonce()))
        self.counts["claims"] += 1
        return epoch

    def seal_below(self, epoch: Epoch) -> None:
        """Recovery: nothing more gets into older epochs, and what is there stays."""
        assert self.metadata_log is not None
        for older, state in self.epochs.items():
            if older < epoch:
                state.is_sealed = True
        clean = max(self.metadata_log.last_clean_epoch, epoch - 1)
        self.metadata_log = replace(self.metadata_log, last_clean_epoch=clean)

    def append(self, epoch: Epoch, records: Sequence[MetadataRecord]) -> tuple[Lsn, Lsn] | None:
        state = self.epochs[epoch]
        if state.is_sealed:
            return None
        lsns = []
        self.told.update(record.epoch for record in records if record.config is not None)
        for index, record in enumerate(records, 1):
            lsns.append(lsn_of(epoch, EntryId(state.entry_count)))
            self.records.append(PlacedRecord(lsns[-1], record))
            state.entry_count += self.rng.randrange(2) or index == len(records)
        self.records.sort(key=lambda placed: placed.lsn)
        return lsns[0], lsns[-1]

    def close(self, epoch: Epoch) -> bool:
        """Whether its keeper closes it: nobody has sealed it before."""
        is_open = not self.epochs[epoch].is_sealed
        self.epochs[epoch].is_sealed = True
        return is_open

    def commit(self, want: CommitMarks) -> bool:
        """One `multi()`: all of it, or nothing."""
        is_same = want.version == self.version or "any-log-node" in self.broken
        if "trims-before-the-commit" in self.broken and not want.deleted:
            self._trim_to(want.log.metadata.first_lsn or Lsn(0))
        are_same = all(
            (node := self.nodes.get(stored.segment.epoch)) is not None
            and (node.version == stored.version or "any-node-version" in self.broken)
            for stored in want.deleted
        )
        if not (is_same and are_same):
            self.counts["conflicts"] += 1
            return False
        for stored in want.deleted:
            del self.nodes[stored.segment.epoch]
        self.counts["moves" if want.deleted else "rewrites"] += 1
        self.set_log(want.log)
        return True

    def trim(self, want: TrimLog) -> bool:
        assert self.metadata_log is not None
        if want.version != self.version:
            return False
        self._trim_to(want.lsn)
        return True

    def _trim_to(self, lsn: Lsn) -> None:
        assert self.metadata_log is not None
        self.metadata_log = replace(self.metadata_log, trim_lsn=lsn, trim_seq_num=1)
        self.counts["trims"] += 1

    # --- What must be true -----------------------------------------------------------------------

    def check(self) -> None:
        """Nothing is unlisted, and nothing is listed as what it was before."""
        counting = find_counting(self.log, self.records)
        for epoch in map(Epoch, range(self.log.first_live_epoch, self.log.next_epoch)):
            node = self.nodes.get(epoch)
            if node is not None:
                found = node.segment
            else:
                assert epoch in counting, f"e{epoch} is unlisted: {self.log}"
                found = counting[epoch].segment  # type: ignore[assignment]
            assert found == self.versions[epoch][-1], f"e{epoch} is listed as it was"
        self._check_history()

    def _check_history(self) -> None:
        """What was told of an epoch stays told, for as long as the epoch lives."""
        first = self.log.metadata.first_lsn or 0
        known = {p.record.epoch for p in self.records if p.lsn >= first and p.record.config}
        lost = {epoch for epoch in self.told - known if epoch >= self.log.first_live_epoch}
        assert not lost, f"history is lost: {lost}"

    def read_records(self, log: LogNode) -> list[PlacedRecord] | None:
        """What a reader is given; None: trimmed above what that version says."""
        marks, metadata_log = log.metadata, self.metadata_log
        assert metadata_log is not None
        first = marks.first_lsn or lsn_of(Epoch(1), EntryId(0))
        if metadata_log.trim.lsn > first and "trimmed-is-read-on" not in self.broken:
            return None
        return [p for p in self.records if first <= p.lsn <= (marks.lsn or 0)]


class KeeperProcess:
    """One process that believes to be the keeper; it dies, and another one comes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.keeper = Keeper(world.make_nonce)
        self._steps: Iterator[None] | None = None

    def step(self) -> None:
        """One more step of what is under way, or the beginning of something."""
        if self._steps is None:
            if not self.keeper.outbox:
                if self.keeper.is_resting:
                    self.keeper.wake()
                return
            self._steps = self._carry_out()
        if next(self._steps, "over") == "over":
            self._steps = None

    def die(self) -> None:
        self.keeper = Keeper(self.world.make_nonce)
        self._steps = None

    def tell(self) -> None:
        """History of some node that is there."""
        world = self.world
        epochs = list(world.nodes)
        if epochs:
            node = world.nodes[world.rng.choice(epochs)]
            config = {"of": node.segment.epoch}
            self.keeper.tell(
                MetadataRecord(MetadataKind.TOLD, node.segment, node.version, node.made, 1, config)
            )

    def _carry_out(self) -> Iterator[None]:
        want = self.keeper.outbox.popleft()
        match want:
            case Look():
                yield from self._look()
            case MakeLog(version=version):
                yield
                self.world.make_metadata_log(version)
                yield
                self.keeper.on_changed(is_worth_a_look=self._hears())
            case ClaimEpoch():
                yield from self._open(want)
            case ReadAll(first=first):
                yield from self._read(first)
            case AppendMetadata(epoch=epoch, records=records):
                yield from self._append(epoch, records)
            case CommitMarks() | TrimLog():
                yield from self._change(want)

    def _hears(self) -> bool:
        return self.world.rng.random() < self.world.hearing

    def _look(self) -> Iterator[None]:
        world = self.world
        yield
        log, version, metadata_log = world.log, world.version, world.metadata_log
        own = self.keeper.epoch or self.keeper.closed_epoch
        if "claim-checks-only" in world.broken and own is not None:
            log = replace(log, metadata=log.metadata._replace(epoch=int(own)))
        yield
        stored: list[StoredNode] = []
        epoch = first_to_move(log)
        while (node := world.nodes.get(epoch)) is not None and len(stored) < 4:
            stored.append(StoredNode(node.segment, node.version, node.made, 700))
            epoch = Epoch(epoch + 1)
            if world.rng.random() < 0.3:
                yield
        view = KeeperView(log, version, metadata_log, stored, 1 << 62, is_keeper=True)
        self.keeper.on_look(view if self._hears() else None)

    def _open(self, want: ClaimEpoch) -> Iterator[None]:
        yield
        epoch = self.world.claim(want)
        yield
        if epoch is None or not self._hears():
            return self.keeper.on_opened(None)
        if "looks-before-it-seals" not in self.world.broken:
            self.world.seal_below(epoch)
        yield
        return self.keeper.on_opened(epoch)

    def _read(self, first: Lsn | None) -> Iterator[None]:
        yield
        world = self.world
        assert world.metadata_log is not None
        begins = world.metadata_log.trim.lsn
        is_there = first is None or first >= begins
        records = [p for p in world.records if p.lsn >= max(first or 0, begins)]
        if "rewrite-reads-what-counts" in world.broken:
            records = [p for p in records if p.lsn <= (world.log.metadata.lsn or 0)]
        yield
        self.keeper.on_read(records if is_there and self._hears() else None)

    def _append(self, epoch: Epoch, records: Sequence[MetadataRecord]) -> Iterator[None]:
        yield
        self.world.seal_below(epoch)  # nothing new: it did when it opened the epoch
        placed = self.world.append(epoch, records) if self._hears() else None
        yield
        if placed is not None and not self.world.close(epoch):
            placed = None
        yield
        first, last = placed if placed is not None and self._hears() else (None, None)
        self.keeper.on_appended(first, last)

    def _change(self, want: CommitMarks | TrimLog) -> Iterator[None]:
        world = self.world

        def apply() -> bool:
            return world.commit(want) if isinstance(want, CommitMarks) else world.trim(want)

        yield
        if self._hears():
            apply()
        elif world.rng.random() < 0.5 and len(world.late) < LATE_COUNT_MAX:
            world.late.append(apply)
        yield
        self.keeper.on_changed(is_worth_a_look=self._hears())


class Reader:
    """Looks up one epoch or all of them, a step at a time, and compares with what was there."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ended_count = 0
        self._begin()

    def _begin(self) -> None:
        world = self.world
        last = max(1, world.log.next_epoch)
        is_listing = world.rng.random() < 0.4
        epoch = Epoch(world.rng.randint(1, last))
        self.lookup = ListingLookup() if is_listing else SegmentLookup(epoch)
        self._seen = {epoch: len(versions) - 1 for epoch, versions in world.versions.items()}

    def step(self) -> None:
        lookup, world = self.lookup, self.world
        log = lookup.log
        match lookup.wanted:
            case LookupStep.LOG:
                lookup.on_log(world.log)
            case LookupStep.NODE:
                assert isinstance(lookup, SegmentLookup)
                node = world.nodes.get(lookup.epoch)
                lookup.on_node(None if node is None else node.segment)
            case LookupStep.NODES:
                assert isinstance(lookup, ListingLookup)
                lookup.on_nodes({epoch: node.segment for epoch, node in world.nodes.items()})
            case LookupStep.RECORDS:
                assert log is not None
                lookup.on_records(world.read_records(log))
            case LookupStep.NOTHING:
                self._compare()
                self.ended_count += 1
                self._begin()

    def _compare(self) -> None:
        lookup, world = self.lookup, self.world
        match lookup.result:
            case SegmentListing(log=log, segments=segments, unreadable=unreadable):
                assert not unreadable, unreadable
                epochs = [segment.epoch for segment in segments]
                assert epochs == list(range(log.first_live_epoch, log.next_epoch))
                for segment in segments:
                    self._compare_segment(segment)
            case Segment() as segment:
                self._compare_segment(segment)
            case Whereabouts.GIVEN_UP:
                assert isinstance(lookup, SegmentLookup)
                assert lookup.epoch < world.log.first_live_epoch
            case Whereabouts.NOT_YET:
                assert isinstance(lookup, SegmentLookup) and lookup.log is not None
                assert lookup.epoch >= lookup.log.next_epoch
            case result:
                assert result is Unreadable.TOO_MANY_CHANGES, result

    def _compare_segment(self, segment: object) -> None:
        assert isinstance(segment, Segment)
        since = max(0, self._seen.get(segment.epoch, 0))
        current = self.world.versions[segment.epoch][since:]
        assert segment in current, f"e{segment.epoch} was shown as it was before"


def play(seed: int, step_count: int, broken: Collection[str] = ()) -> World:
    """A life of that many steps; raises when anything is not as it must be."""
    rng = random.Random(seed)
    world = World(rng, broken)
    keepers = [KeeperProcess(world) for _ in range(KEEPER_COUNT)]
    readers = [Reader(world), Reader(world)]
    chances: Mapping[Callable[[], None], int] = {
        keepers[0].step: 80,
        keepers[1].step: rng.choice([0, 5, 80]),
        **{keeper.die: 1 for keeper in keepers},
        **{keeper.tell: 2 for keeper in keepers},
        **{reader.step: 15 for reader in readers},
        world.open_epoch: 5,
        world.close_epoch: 5,
        world.archive: 10,
        world.release: 8,
        world.give_up: 1,
        world.configure: 1,
        world.drop_trimmed: 2,
        world.apply_late: 3,
    }
    for action in rng.choices(list(chances), list(chances.values()), k=step_count):
        action()
        world.check()
    return world
