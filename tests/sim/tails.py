"""A read proxy of the simulated cluster that asks for tails, and reads up to what it is told.

The tail is looked for by the production `TailFinder`; played are its neighbours: a follower of the
log's nodes that is never behind, and the way to the bookies. What is called sure must lie above all
that was acknowledged before the question, early appends too (L1); now and then the log is read from
its head up to there, and all of that must come (D1). Its chance and its links are its own: what
else a seed draws does not depend on it, and cuts between it and bookies are those of its name.

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from typing import Any, Final, cast

from duramen.core import reader as rd
from duramen.core.log_node import LogNode
from duramen.core.reading import effects as rx
from duramen.core.reading.effects import SendRead
from duramen.core.replica_order import Place, ReplicaOrder
from duramen.core.segment import Segment
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import NOTHING, BookieId, Dlsn, EntryId, Epoch, LedgerId, LogId, Member
from duramen.runtime.reading.tail import TailFinder
from duramen.units import MS, SECOND
from duramen.wire.bookie_calls import LacUpdate, Marks, ReadAnswer, ReadRange, Service
from duramen.wire.entry import EntryError, EntryInfo
from duramen.wire.metadata_json import read_log, read_segment
from tests.sim.checkers import Checkers
from tests.sim.known_bytes import know_entry, know_records
from tests.sim.log_record import TailQuestion
from tests.sim.metadata import PATHS, Store
from tests.sim.network import Network
from tests.sim.node_loop import Promise
from tests.sim.processes import BookieNode
from tests.sim.workload import check_entries
from tests.sim.world import Node, World

_PAUSE_US: Final = 500 * MS
"""Mean time between two questions."""

_READ_RATIO: Final = 0.05
"""So many tails are read to from the head of the log."""

_READ_WAIT_US: Final = 8 * SECOND
"""A reader that is not there by then is given up: bookies may be down, or cut off."""

_WATCH_US: Final = 300 * MS

Where = tuple[Epoch, EntryId]


class TailNode(Node):
    """The read proxy; works until the run ends.

    Args:
        log_count: logs have the ids 1 … `log_count`.
        history: told of what is called sure.
    """

    def __init__(
        self,
        world: World,
        seed: int,
        log_count: int,
        *,
        network: Network,
        store: Store,
        bookies: dict[str, BookieNode],
        history: Checkers,
    ) -> None:
        super().__init__(world, "tails", next(iter(bookies.values())).region)
        self.rng = random.Random(f"tails {seed}")
        self.network = network
        self.store = store
        self.bookies = bookies
        self._history = history
        self._finder = TailFinder(cast(Any, _Bookies(self)), cast(Any, _Fetcher(self)))
        self._followers = [_Follower(self, LogId(1 + number)) for number in range(log_count)]
        self.begin_life()
        self.after(_PAUSE_US, self._ask)

    def _ask(self) -> None:
        follower = self.rng.choice(self._followers)
        self.loop.enter(lambda: self.loop.run_task(self._find(follower)))
        self.after(int(self.rng.uniform(0.1, 2) * _PAUSE_US), self._ask)

    async def _find(self, follower: _Follower) -> None:
        question = self._history.on_tail_asked(follower.log_id)
        try:
            tail = await self._finder.find(cast(Any, follower))
        except DuramenError as error:
            self.world.counts[f"tail: {error.code}"] += 1
            return
        self.world.counts["tail: sure" if tail.is_sure else "tail: not sure"] += 1
        if not (tail.is_sure and tail.is_covered):
            return
        place = Dlsn(tail.epoch, tail.entry, 0)
        self._history.on_tail(self.world.now_us, question, place, tail.seq_num)
        if self.rng.random() < _READ_RATIO:
            await self._read_to(follower, question, place)

    async def _read_to(self, follower: _Follower, question: TailQuestion, tail: Dlsn) -> None:
        """Read the log from its head to a tail that was told."""
        head, _ = await follower.read_head()
        reading = _Reading(self, follower, head, (tail.epoch, tail.entry))
        found = await reading.run()
        self.world.counts["tail: given up" if found is None else "tail: read to"] += 1
        if found is not None:
            # What was truncated meanwhile may be passed over.
            (epoch, entry), slot = await follower.read_head()
            self._history.on_read_to_tail(question, Dlsn(epoch, entry, slot), found)

    def validate(self) -> None:
        """Nothing of it is a core."""

    # --- Its links -------------------------------------------------------------------------------

    async def call(self, member: Member, kind: str, row: Any, timeout_us: int) -> Any:
        """A bookie's answer to one row; a status of the caller's own where none comes."""
        answer: Promise[Any] = Promise()
        self.after(timeout_us, answer.settle, BookieStatus.TIMEOUT)
        bookie = self.bookies[member.bookie]
        if not self.network.is_cut(self.name, bookie.name):
            self.world.at(self._delay_us(), self._arrive, bookie, kind, member, row, answer)
        return await answer

    def _arrive(
        self, bookie: BookieNode, kind: str, member: Member, row: Any, answer: Promise[Any]
    ) -> None:
        if not bookie.is_listening:
            self.after(self._delay_us(), answer.settle, BookieStatus.UNREACHABLE)
            return

        def reply(rows: Any) -> None:
            value = rows if isinstance(rows, BookieStatus) else rows[0]
            if not self.network.is_cut(bookie.name, self.name):
                self.after(self._delay_us(), answer.settle, value)

        bookie.run(bookie.life, bookie.serve, kind, (member.incarnation, [row]), reply)

    def _delay_us(self) -> int:
        return 120 + self.rng.randrange(400)


class _Reading:
    """One reader, driven from a place to another; given up where it does not come there in time."""

    def __init__(self, node: TailNode, follower: _Follower, start: Where, end: Where) -> None:
        places = {
            BookieId(name): Place(bookie.region, bookie.rack)
            for name, bookie in node.bookies.items()
        }
        order = ReplicaOrder(Place(node.region, "k0"), node.rng)
        order.on_places(places)
        self._node = node
        self._follower = follower
        self._end = end
        self._limits = rd.ReaderLimits(range_bytes=64_000, buffer_bytes=128_000, poll_bytes=8_000)
        self._core = rd.Reader(start, order, is_following=True, limits=self._limits)
        self._reads: set[int] = set()
        self._timer_at_us: int | None = None
        self._found: list[Dlsn] = []
        self._over: Promise[list[Dlsn] | None] = Promise()

    async def run(self) -> list[Dlsn] | None:
        """The places of all records that came; None: it did not get there."""
        self._node.after(_READ_WAIT_US, self._over.settle, None)
        self._look_again()
        self._pump()
        return await self._over

    def _pump(self) -> None:
        while not self._over.done() and (effects := self._core.take_effects()):
            for effect in effects:
                self._act(effect)
        if self._core.position >= self._end:
            self._over.settle(self._found)

    def _act(self, effect: rx.Effect) -> None:
        node = self._node
        match effect:
            case rx.SendRead():
                self._reads.add(effect.read_id)
                node.loop.enter(lambda: node.loop.run_task(self._read(effect)))
            case rx.CancelRead(read_id):
                self._reads.discard(read_id)
            case rx.ReadMetadata(epoch):
                node.loop.enter(lambda: node.loop.run_task(self._read_metadata(epoch)))
            case rx.SetTimer(at_us):
                self._timer_at_us = at_us
                node.after(max(0, at_us - node.world.now_us), self._on_timer, at_us)
            case rx.Deliver(epoch, start_seq_num, entries):
                size = 0
                for _, body in entries:
                    size += len(body)
                    self._found += [row[0] for row in know_records(body, epoch, start_seq_num)]
                node.after(0, self._consume, size)
            case rx.Gap() | rx.Skip():
                pass

    def _consume(self, size: int) -> None:
        self._core.on_consumed(size, self._node.world.now_us)
        self._pump()

    def _on_timer(self, at_us: int) -> None:
        if at_us == self._timer_at_us and not self._over.done():
            self._timer_at_us = None
            self._core.on_timer(self._node.world.now_us)
            self._pump()

    def _look_again(self) -> None:
        """A watch on the log's nodes, as late as any."""
        if not self._over.done():
            work = self._read_metadata(self._core.epoch)
            self._node.loop.enter(lambda: self._node.loop.run_task(work))
            self._node.after(_WATCH_US, self._look_again)

    async def _read_metadata(self, epoch: Epoch) -> None:
        found = await self._follower.refresh(epoch, is_synced=True)
        if epoch == self._core.epoch and not self._over.done():
            self._core.on_metadata(*found, self._node.world.now_us)
            self._pump()

    async def _read(self, read: SendRead) -> None:
        answer = ReadAnswer(BookieStatus.UNREACHABLE, NOTHING, NOTHING, False, ())
        if not read.is_cold:
            answer = await _Fetcher(self._node).fetch(read)
        if self._over.done() or read.read_id not in self._reads:
            return
        self._reads.discard(read.read_id)
        entries, status = check_entries(read.ledger_id, answer.entries), answer.status
        if answer.entries and not entries:
            status = BookieStatus.UNKNOWN
        self._core.on_read_answer(
            read.read_id, status=status, lac=answer.lac, highest=answer.highest,
            is_sealed=answer.is_sealed, entries=entries, now_us=self._node.world.now_us,
        )  # fmt: skip
        self._pump()


class _Bookies:
    """As much of `Bookies` as a finder of tails asks for."""

    def __init__(self, node: TailNode) -> None:
        self._node = node

    async def read_lac(self, member: Member, ledger_id: LedgerId, timeout_us: int) -> Marks:
        row = LacUpdate(ledger_id, NOTHING, is_write=False)
        answer = await self._node.call(member, "lac", row, timeout_us)
        if isinstance(answer, BookieStatus):
            return Marks(answer, NOTHING, NOTHING)
        return Marks(*answer)


class _Fetcher:
    """As much of `RangeFetcher` as a finder of tails asks for, without a cache."""

    def __init__(self, node: TailNode) -> None:
        self._node = node

    async def fetch(self, read: SendRead) -> ReadAnswer:
        row = ReadRange(
            read.ledger_id, read.first, read.last, read.bytes_max,
            wait_ms=read.wait_us // MS, wait_for=read.wait_for, service=Service.TAIL_READ,
        )  # fmt: skip
        answer = await self._node.call(read.member, "read", row, read.timeout_us)
        if isinstance(answer, BookieStatus):
            return ReadAnswer(answer, NOTHING, NOTHING, False, ())
        return ReadAnswer(*answer)

    async def fetch_header(self, segment: Segment, entry_id: EntryId) -> EntryInfo:
        for member in segment.fragment_of(entry_id).ensemble:
            row = ReadRange(segment.ledger_id, entry_id, entry_id, 1)
            answer = await self._node.call(member, "read", row, 2 * SECOND)
            if answer is not None and not isinstance(answer, BookieStatus) and answer[4]:
                try:
                    return know_entry(bytes(answer[4][0][1]))
                except EntryError:
                    continue
        raise DuramenError("data_unavailable", "no replica gave it")


class _Follower:
    """As much of `LogFollower` as a finder of tails asks for; never behind."""

    def __init__(self, node: TailNode, log_id: LogId) -> None:
        self.log_id = log_id
        self._node = node

    def peek(self, _epoch: Epoch) -> None:
        return None

    def known_lac(self, _epoch: Epoch) -> EntryId:
        return NOTHING

    async def read_head(self) -> tuple[Where, int]:
        """The first entry that bookies must have, and the slot of its first live record."""
        log, _ = await self.refresh(Epoch(1), is_synced=True)
        trim, hot = log.trim.dlsn, (log.first_hot_epoch, EntryId(0))
        return ((trim.epoch, trim.entry), trim.slot) if trim[:2] >= hot else (hot, 0)

    async def refresh(self, epoch: Epoch, *, is_synced: bool) -> tuple[LogNode, Segment | None]:
        assert is_synced, "a tail is looked for in what is true now"
        await self._node.pass_time(self._node.rng.randrange(1 * MS, 5 * MS))
        store = self._node.store
        log, segment = store.find(PATHS.log(self.log_id)), None
        node = store.find(PATHS.segment(self.log_id, epoch))
        assert log is not None
        if node is not None:
            segment = read_segment(node.data)
        return read_log(log.data), segment
