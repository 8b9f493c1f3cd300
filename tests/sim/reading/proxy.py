"""A read proxy of the simulated cluster: all of `runtime.reading`, and the feeds above it.

Followers of logs, bookies, fetcher with cache and cold store, the finder of tails, positions and
feeds run as they ship, over a session whose reads may be old and whose watches are late. A process
that dies loses all of it; its clients come again. `tails`, `subscribers`, the archiver and the
reading at the end are processes of this kind.

Not here: what clients do with it. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from duramen.core.log_node import LogNode
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.core.reading.replica_order import Place
from duramen.core.sequencer.exactly_once.stamps import SnapshotPart, TokenRecord
from duramen.ids import NOTHING, EntryId, Epoch, LogId, ledger_of
from duramen.runtime.http_client import PeerClient
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.reading.bookies import RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.reading.owner_word import OwnerWords
from duramen.runtime.reading.positioning.log_view import LiveLog
from duramen.runtime.reading.positioning.positions import Positions
from duramen.runtime.reading.tail import TailFinder
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import KIB, MS
from duramen.wire.entry_history import read_history
from duramen.wire.metadata_json import read_any_segment, read_log
from duramen_readproxy.following.feed import Feeds
from duramen_readproxy.following.owner_follower import AskOwners
from duramen_readproxy.following.places import ReadingPlaces
from tests.no_owners import NoOwners
from tests.sim.archive.cold_files import ColdFiles
from tests.sim.checkers import Checkers
from tests.sim.known_bytes import know_entry
from tests.sim.metadata import PATHS, Store, StoreSession
from tests.sim.network import Network
from tests.sim.peers import SimPeers
from tests.sim.processes import BookieNode
from tests.sim.reading.cold import ColdFileReads
from tests.sim.reading.watched import WatchedBookies, WatchedCursor, WatchedFollower
from tests.sim.world import Node, World

LIMITS: Final = ReaderLimits(range_bytes=64_000, buffer_bytes=128_000, poll_bytes=8_000)
_CACHE_BYTES: Final = 256 * KIB
"""Less than a busy log gets in a minute: what was read is read again."""


class Cluster(NamedTuple):
    """What read proxies find."""

    seed: int
    log_count: int
    """Logs have the ids 1 … `log_count`."""
    network: Network
    store: Store
    bookies: dict[str, BookieNode]
    history: Checkers
    cold_files: ColdFiles | None
    owners: Mapping[str, Node]
    """Sequencers that feeds ask; none: they ask nobody."""


class ReadProxy(Node):
    """One process; up from the start."""

    def __init__(self, world: World, name: str, region: str, cluster: Cluster) -> None:
        super().__init__(world, name, region)
        self.cluster = cluster
        self.history = cluster.history
        self.rng = random.Random(f"{name} {cluster.seed}")
        self.session = StoreSession(cluster.store, self, _ignore, _ignore)
        peers = {**cluster.bookies, **cluster.owners}
        self._client = SimPeers(cluster.network, self, peers)
        self.begin()

    def begin(self) -> None:
        """Begin a life; nothing of the one before is known."""
        if self.is_up:
            self.tear_down()
            self.end_life()
        self.begin_life()
        self.session.open()
        store = cast(MetadataStore, self.session)
        self._bookies = WatchedBookies(
            store, PATHS.available, Place(self.region, "k0"), self.rng,
            client=cast(PeerClient, self._client), nodes=self.cluster.bookies,
            history=self.history,
        )  # fmt: skip
        cold_files = self.cluster.cold_files
        cold = None if cold_files is None else ColdFileReads(cold_files, self)
        self.fetcher = RangeFetcher(self._bookies, EntryCache(_CACHE_BYTES), cold)
        self.segment_nodes = SegmentNodes(
            store, PATHS, MetadataRecords(store, PATHS, self.fetcher.fetch_run)
        )
        self.finder = TailFinder(self._bookies, self.fetcher)
        self.feeds = Feeds(self.fetcher, self._make_owners(store))
        self.places = ReadingPlaces()
        self.positions = Positions(lambda: self.world.now_us // MS)
        self._followers: dict[LogId, WatchedFollower] = {}
        self.loop.run_task(self._bookies.start())

    def _make_owners(self, store: MetadataStore) -> AskOwners:
        if not self.cluster.owners:
            return NoOwners()
        return OwnerWords(store, PATHS, cast(PeerClient, self._client))

    def tear_down(self) -> None:
        """End what is under way. No process that is killed does that, and nobody else sees it;
        but what is left to finalizers would wait and set timers there."""
        self.run(self.life, self.loop.cancel_all)

    def follower_of(self, log_id: LogId) -> WatchedFollower:
        """The metadata of a log."""
        follower = self._followers.get(log_id)
        if follower is None:
            store = cast(MetadataStore, self.session)
            follower = WatchedFollower(self.world, store, log_id, self.segment_nodes, self.history)
            self._followers[log_id] = follower
        return follower

    def view_of(self, log_id: LogId) -> LiveLog:
        """A log as searches see it."""
        return LiveLog(self.follower_of(log_id), self.fetcher, self.finder)

    def cursor_at(self, log_id: LogId, position: tuple[Epoch, EntryId]) -> WatchedCursor:
        """A cursor, to be entered."""
        return WatchedCursor(self.follower_of(log_id), self.fetcher, position, LIMITS)

    def read_log(self, log_id: LogId) -> LogNode:
        """The log node as it is now, for what is judged."""
        stored = self.cluster.store.find(PATHS.log(log_id))
        assert stored is not None
        return read_log(stored.data)

    def note_delivered(self, reader: int, log_id: LogId, epoch: Epoch) -> None:
        """Before records of a segment are told of: what may be shown of it, and its holes."""
        bound = self.follower_of(log_id).bounds.get(epoch, NOTHING)
        self.history.on_reader_lac(reader, ledger_of(log_id, epoch), bound)
        stored = self.cluster.store.find(PATHS.segment(log_id, epoch))
        if stored is None or read_any_segment(stored.data).holes:
            # Sequence numbers show a hole of an out_of_order segment, and nothing else does.
            self.history.on_reader_gap(reader, log_id)

    def note_control(
        self, log_id: LogId, epoch: Epoch, entry_id: EntryId, body: bytes
    ) -> str | None:
        """Tell of an entry that has no records; gives the token that it sets."""
        if not know_entry(body).is_control:
            return None
        counts = self.world.counts
        counts["control entry read"] += 1
        found = read_history(body, is_header_only=False).control
        token = found.token if isinstance(found, TokenRecord) else None
        counts["snapshot read"] += isinstance(found, SnapshotPart)
        self.history.on_control_entry(log_id, epoch, entry_id, token)
        return token

    def validate(self) -> None:
        """Nothing of it is a core."""


def _ignore(*_: object) -> None:
    """Nobody listens."""
