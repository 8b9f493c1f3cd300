"""A read proxy of the simulated cluster that asks for tails, and reads up to what it is told.

`TailFinder`, `LogCursor`, `LogFollower`, `Bookies` and `RangeFetcher` with its cache run as they
ship, over a session whose reads may be old and whose watches are late. What is called sure must lie
above all that was acknowledged before the question, early appends too (L1); now and then the log is
read from its head up to there, and all of that must come, once and in order (D1).

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final, cast

from duramen.core.reader import ReaderLimits
from duramen.core.replica_order import Place
from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch, LogId
from duramen.runtime.http_client import PeerClient
from duramen.runtime.metadata_store import MetadataStore
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.reading.log_reader import DataLost, LogCursor, Truncated
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import Tail, TailFinder
from duramen.units import MIB, MS
from duramen.wire.metadata_json import read_log, read_segment
from tests.sim.checkers import Checkers
from tests.sim.known_bytes import know_records
from tests.sim.log_record import TailQuestion
from tests.sim.metadata import PATHS, Store, StoreSession
from tests.sim.network import Network
from tests.sim.peers import SimPeers
from tests.sim.processes import BookieNode
from tests.sim.world import Node, World

_PAUSE_US: Final = 500 * MS
"""Mean time between two questions."""

_READ_RATIO: Final = 0.05
"""So many tails are read to from the head of the log."""

_READ_WAIT_S: Final = 8.0
"""A reader that is not there by then is given up: bookies may be down, or cut off."""

_LIMITS: Final = ReaderLimits(range_bytes=64_000, buffer_bytes=128_000, poll_bytes=8_000)

_READERS: Final = 10_000_000
"""Their numbers begin here: each reading is a reader of its own, beyond all others."""

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
        self._rng = random.Random(f"tails {seed}")
        self._store = store
        self._history = history
        self._reading_count = 0
        self._session = StoreSession(store, self, _ignore, _ignore)
        session = cast(MetadataStore, self._session)
        client = cast(PeerClient, SimPeers(network, self, bookies))
        here = Place(self.region, "k0")
        self._bookies = Bookies(session, PATHS.available, here, self._rng, client=client)
        self._fetcher = RangeFetcher(self._bookies, EntryCache(1 * MIB))
        self._finder = TailFinder(self._bookies, self._fetcher)
        self._followers = [
            LogFollower(session, PATHS, LogId(1 + number)) for number in range(log_count)
        ]
        self.begin_life()
        self._session.open()
        self.after(0, self._start)
        self.after(_PAUSE_US, self._ask)

    def _start(self) -> None:
        self.loop.run_task(self._bookies.start())

    def _ask(self) -> None:
        self.loop.run_task(self._find(self._rng.choice(self._followers)))
        self.after(int(self._rng.uniform(0.1, 2) * _PAUSE_US), self._ask)

    async def _find(self, follower: LogFollower) -> None:
        question = self._history.on_tail_asked(follower.log_id)
        try:
            tail = await self._finder.find(follower)
        except DuramenError as error:
            self.world.counts[f"tail: {error.code}"] += 1
            return
        self.world.counts["tail: sure" if tail.is_sure else "tail: not sure"] += 1
        if not (tail.is_sure and tail.is_covered):
            return
        place = Dlsn(tail.epoch, tail.entry, 0)
        self._history.on_tail(self.world.now_us, question, place, tail.seq_num)
        if self._rng.random() < _READ_RATIO:
            await self._read_to(follower, question, tail)

    async def _read_to(self, follower: LogFollower, question: TailQuestion, tail: Tail) -> None:
        """Read the log from its head to a tail that was told."""
        head, _ = self._find_head(follower.log_id)
        try:
            async with asyncio.timeout(_READ_WAIT_S):
                found = await self._read(follower, head, tail)
        except (DuramenError, TimeoutError):
            self.world.counts["tail: given up"] += 1
            return
        self.world.counts["tail: read to"] += 1
        # What was truncated meanwhile may be passed over.
        (epoch, entry), slot = self._find_head(follower.log_id)
        self._history.on_read_to_tail(question, Dlsn(epoch, entry, slot), found)

    async def _read(self, follower: LogFollower, head: Where, tail: Tail) -> list[Dlsn]:
        """The places of all records between the two."""
        found: list[Dlsn] = []
        wanted_seq_num = 0
        self._reading_count += 1
        reader, log_id = _READERS + self._reading_count, follower.log_id
        async with LogCursor(follower, self._fetcher, head, _LIMITS) as cursor:
            await cursor.on_tail(tail)
            while True:
                try:
                    delivered = await cursor.take(wanted_seq_num)
                except Truncated as error:
                    wanted_seq_num = error.left_seq_num
                    self._history.on_reader_gap(reader, log_id)
                    continue
                except DataLost:
                    cursor.pass_loss()
                    self._history.on_reader_gap(reader, log_id)
                    continue
                if delivered is None:
                    assert cursor.position >= (tail.epoch, tail.entry), (cursor.position, tail)
                    return found
                self._note_holes(reader, log_id, delivered.epoch)
                for _, body in delivered.entries:
                    rows = know_records(body, delivered.epoch, delivered.start_seq_num)
                    for dlsn, seq_num, record in rows:
                        found.append(dlsn)
                        self._history.on_read(
                            self.world.now_us, reader, log_id, dlsn, seq_num, record
                        )
                        wanted_seq_num = seq_num + 1

    def _note_holes(self, reader: int, log_id: LogId, epoch: Epoch) -> None:
        """Sequence numbers show a hole of an out_of_order segment, and nothing else does."""
        stored = self._store.find(PATHS.segment(log_id, epoch))
        if stored is None or read_segment(stored.data).holes:
            self._history.on_reader_gap(reader, log_id)

    def _find_head(self, log_id: LogId) -> tuple[Where, int]:
        """The first entry that bookies must have, and the slot of its first live record."""
        stored = self._store.find(PATHS.log(log_id))
        assert stored is not None
        log = read_log(stored.data)
        trim, hot = log.trim.dlsn, (log.first_hot_epoch, EntryId(0))
        return ((trim.epoch, trim.entry), trim.slot) if trim[:2] >= hot else (hot, 0)

    def validate(self) -> None:
        """Nothing of it is a core."""


def _ignore(*_: object) -> None:
    """Nobody listens."""
