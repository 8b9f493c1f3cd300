"""What one `CoreClient` is made of: the same parts as a sequencer and a read proxy, in one process.

Wires them and holds nothing else. `Owning` is what its open logs are given, `ReadParts` what its
readers are given; both live on one metadata store and one roster of bookies each.

Called by `core.client`. Source: README.md "The processes", ADR 0013.
"""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom
from typing import NamedTuple

from duramen.core.reading.replica_order import Place
from duramen.core.sequencer.context import SequencerContext
from duramen.ids import BookieId
from duramen.runtime.http_client import PeerClient
from duramen.runtime.identity.names import Role
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.reading.cold_reads import open_cold_reads
from duramen.runtime.reading.metadata import Catalog, LogFollower
from duramen.runtime.reading.owner_word import OwnerWords
from duramen.runtime.reading.positioning.log_view import LiveLog
from duramen.runtime.reading.positioning.positions import Positions
from duramen.runtime.reading.tail import TailFinder
from duramen.runtime.security.process_security import ProcessSecurity, learn_role
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.runtime.sequencer.process import make_context
from duramen.runtime.sequencer.story import Stories
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.metadata_json import Paths

EMBEDDED_URL = ""
"""In the owner node: nobody can send appends there (docs/protocol/metadata.md)."""


class Owning(NamedTuple):
    """What every log that this process owns is driven with."""

    context: SequencerContext
    lanes: BookieLanes
    link: MetadataLink
    stories: Stories


class ReadParts(NamedTuple):
    """What every reader of this process reads with."""

    bookies: Bookies
    fetcher: RangeFetcher
    catalog: Catalog
    tails: TailFinder
    positions: Positions

    def view(self, follower: LogFollower) -> LiveLog:
        """A log, as searches for positions see it."""
        return LiveLog(follower, self.fetcher, self.tails)


def make_owning(
    store: MetadataStore,
    paths: Paths,
    writer_id: str,
    client: PeerClient,
    find_url: Callable[[BookieId], str | None],
) -> Owning:
    """Parts of a process that has no data port and gives no log up while nobody appends."""
    context = make_context(writer_id)
    context.holds_logs = True
    link = MetadataLink(store, paths, context.sequencer_id, EMBEDDED_URL)
    lanes = BookieLanes(client, find_url, NodeWatch(context.nodes))
    return Owning(context, lanes, link, Stories())


def make_reading(
    store: MetadataStore,
    paths: Paths,
    here: Place,
    cache_bytes: int,
    cold_store: str | None,
    *,
    client: PeerClient,
    security: ProcessSecurity | None,
) -> ReadParts:
    """Parts that read. The cache is there for what is read ahead of a reader, for no more.

    Args:
        client: asks the owners of logs.
        cold_store: URL of the archive; None: what lies there alone cannot be read.
        security: the client's.

    Raises:
        DuramenError: `invalid_argument`: no such URL.
    """
    bookies = Bookies(
        store, paths.available, here, SystemRandom(),
        client=PeerClient(security), learn=learn_role(security, Role.BOOKIE),
    )  # fmt: skip
    cold = open_cold_reads(cold_store, store, paths)
    fetcher = RangeFetcher(bookies, EntryCache(cache_bytes), cold)
    tails = TailFinder(bookies, fetcher, OwnerWords(store, paths, client, security).ask)
    records = MetadataRecords(store, paths, fetcher.fetch_run)
    catalog = Catalog(store, paths, SegmentNodes(store, paths, records))
    return ReadParts(bookies, fetcher, catalog, tails, Positions())
