"""The read proxy as a service: what it is made of, how it starts, stops and shows itself.

Holds nothing durable: a cache, watches, and readers that live as long as their requests. It only
reads ZooKeeper, but for its own ephemeral node.

Run by `main` inside `duramen.runtime.service`. Source: README.md "The processes",
docs/protocol/admin.md "Each role".
"""

from __future__ import annotations

from random import SystemRandom
from typing import Any, Final

from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry

from duramen.core.reading.replica_order import Place
from duramen.errors import DuramenError
from duramen.runtime.admission.admission import open_admission
from duramen.runtime.admission.quotas import Quotas
from duramen.runtime.audit.by_write_proxies import AuditByWriteProxies
from duramen.runtime.audit.recorded_admin import RecordedAdmin
from duramen.runtime.audit.recorded_calls import RecordedCalls
from duramen.runtime.audit.trail import AuditTrail, open_trail
from duramen.runtime.cluster_node import wait_own_cluster
from duramen.runtime.http_client import PeerClient
from duramen.runtime.identity.names import Role
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.public.calls import Side
from duramen.runtime.public.forwarding import make_forwarder
from duramen.runtime.public.serving import complete_app, make_public_server
from duramen.runtime.reading.bookies import Bookies, RangeFetcher, read_clock_us
from duramen.runtime.reading.cache import CACHE_BYTES_DEFAULT, EntryCache
from duramen.runtime.reading.cold_reads import ColdReads, open_cold_reads
from duramen.runtime.reading.metadata import Catalog
from duramen.runtime.reading.owner_word import OwnerWords
from duramen.runtime.reading.positioning.positions import Positions
from duramen.runtime.reading.positioning.segment_edges import SegmentEdges
from duramen.runtime.reading.tail import TailFinder
from duramen.runtime.registry import Registration, Roster
from duramen.runtime.role import ServiceOptions
from duramen.runtime.security.peers import notify_learners
from duramen.runtime.security.process_security import ProcessSecurity, domain_of, learn_role
from duramen.runtime.security.public_certificate import open_public_certificate
from duramen.runtime.standing.call_streams import CallStreams
from duramen.runtime.stores.metadata_store import MetadataStore, SessionState
from duramen.runtime.turning.fitting import FitCheck
from duramen.wire.metadata_json import Paths
from duramen_readproxy.following.encodings import SharedEncodings
from duramen_readproxy.following.feed import Feeds
from duramen_readproxy.following.homes import Homes
from duramen_readproxy.following.places import ReadingPlaces
from duramen_readproxy.following.streams import StreamCounts
from duramen_readproxy.metrics import show_cache, show_cold, show_readers
from duramen_readproxy.requests import Requests
from duramen_readproxy.rest import make_app

_STREAMS_END_S: Final = 2.0
"""How long streams have to say where their readers go on, when the process stops."""


class ReadProxy:
    """A `duramen.runtime.role.RoleService`, and the `rest.Backend` of its routes.

    Args:
        store: not started yet; the service starts and closes it.
        cold: reads of the archive; None: those of `options.cold_store`.
        registry: where the metrics go.
    """

    def __init__(
        self,
        options: ServiceOptions,
        store: MetadataStore,
        *,
        cache_bytes: int = CACHE_BYTES_DEFAULT,
        cold: ColdReads | None = None,
        registry: CollectorRegistry = REGISTRY,
        security: ProcessSecurity | None = None,
    ) -> None:
        self._options = options
        self._store = store
        paths = Paths(options.cluster)
        here = Place(options.region, options.rack)
        self._cache = EntryCache(cache_bytes)
        # The bookies close it.
        self._security = security
        self._streams = CallStreams(security)
        self._client = PeerClient(security, self._streams)
        self._owners = self._make_roster(paths)
        self._bookies = Bookies(
            store, paths.available, here, SystemRandom(), client=self._client,
            learn=learn_role(security, Role.BOOKIE),
        )  # fmt: skip
        self._cold = cold or open_cold_reads(options.cold_store, store, paths)
        self.fetcher = RangeFetcher(self._bookies, self._cache, self._cold)
        self._metadata_records = MetadataRecords(store, paths, self.fetcher.fetch_run)
        segment_nodes = SegmentNodes(store, paths, self._metadata_records)
        self.catalog = Catalog(store, paths, segment_nodes, age_max_us=options.metadata_age_max_us)
        owner_words = OwnerWords(store, paths, self._client, security)
        self.tails = TailFinder(self._bookies, self.fetcher, owner_words.ask)
        self.feeds = Feeds(self.fetcher, owner_words)
        self.encodings = SharedEncodings()
        self.streams = StreamCounts()
        self.places = ReadingPlaces()
        self.homes = Homes(store, paths.read_proxies, options.region)
        self.positions = Positions()
        self.edges = SegmentEdges()
        self.requests = Requests(registry)
        self.app = make_app(self)
        certificate = open_public_certificate(options)
        self._forwarder = make_forwarder(
            options, store, paths.write_proxies, lambda: self._is_draining,
            security=security, certificate=certificate,
        )  # fmt: skip
        self._admission = open_admission(options, store, security)
        self._audit_by: AuditByWriteProxies | None = None
        self._trail: AuditTrail | None = None
        if security is not None:
            self._audit_by = AuditByWriteProxies(store, paths, here, security, certificate)
            self._trail = open_trail(options, self._audit_by)
            security.admin_records = RecordedAdmin(self._trail)
        recorded = None if self._trail is None else RecordedCalls(self._trail, Side.READ)
        complete_app(self.app, self._forwarder)
        self._quotas = Quotas(options, store)
        self._server = make_public_server(
            self.app, options, self._quotas, self._admission, certificate, recorded=recorded
        )
        self._registration = Registration(
            store, f"{paths.read_proxies}/{options.node_id}", self._describe()
        )
        self._cut_off_us: int | None = None
        store.on_session(self._on_session)
        self._is_serving = False
        self._is_draining = False
        show_cache(registry, self._cache, self._bookies)
        show_readers(registry, self.feeds, self.streams, self.places)
        if self._cold is not None:
            show_cold(registry, self._cold)

    @property
    def port(self) -> int:
        """The public port."""
        return self._server.port

    def add_admin_routes(self, app: FastAPI) -> None:
        """The read proxy has no routes of its own beyond those of every service."""

    async def start(self) -> None:
        """Follow the bookies, listen, and be found; waits for ZooKeeper as long as it takes."""
        paths = Paths(self._options.cluster)
        await wait_own_cluster(self._store, paths, domain_of(self._security))
        if self._security is not None:
            self._security.rights.follow(self._store, paths)
        if self._admission is not None:
            await self._admission.start()
        fitting = FitCheck(self._store, self._options)
        await fitting.wait_fitting()
        await self._bookies.start()
        await self._owners.start()
        await self.homes.start()
        if self._forwarder is not None:
            await self._forwarder.start()
        if self._audit_by is not None and self._trail is not None:
            await self._audit_by.start()
            await self._trail.start()
        await self._server.start()
        await self._registration.start()
        await fitting.check_registered()
        self._is_serving = True

    async def stop(self) -> None:
        """Refuse new requests, end the open ones, leave."""
        self._is_draining = True
        self._is_serving = False
        await self._registration.stop()
        # Who waits at a tail is answered, and who streams is told where to go on.
        self.feeds.stop_following()
        self.places.stop_waiting()
        await self.streams.wait_none(_STREAMS_END_S)
        if self._forwarder is not None:
            await self._forwarder.stop()
        await self._server.stop()
        await self._quotas.stop()
        if self._audit_by is not None and self._trail is not None:
            await self._trail.stop()
            await self._audit_by.stop()
        if self._admission is not None:
            await self._admission.stop()
        await self.feeds.stop()
        await self.places.stop()
        await self.fetcher.stop()
        await self.homes.stop()
        await self._owners.stop()
        await self._bookies.stop()
        if self._security is not None:
            await self._security.rights.stop()
        await self._store.close()

    def is_ready(self) -> bool:
        """Whether reads are served now: without ZooKeeper for as long as what is known may be old.

        All read proxies are cut off at the same time: not one of them would be left.
        """
        if self._cut_off_us is None:
            return self._is_serving
        age_us = read_clock_us() - self._cut_off_us
        return self._is_serving and age_us <= self._options.metadata_age_max_us

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._cut_off_us = None
        elif self._cut_off_us is None:
            self._cut_off_us = read_clock_us()

    def statistics(self) -> dict[str, Any]:
        """Every queue and counter."""
        return {
            "requests": self.requests.statistics(),
            "forwarding": None if self._forwarder is None else self._forwarder.statistics(),
            "cache": self._cache.statistics(),
            "bookies": self._bookies.statistics(),
            "upstream": self.fetcher.statistics(),
            "catalog": self.catalog.statistics(),
            "metadata_records": self._metadata_records.statistics(),
            "positions": self.positions.statistics(),
            "segment_edges": self.edges.statistics(),
            "tails": self.tails.statistics(),
            "feeds": self.feeds.statistics(),
            "owner_streams": self._streams.statistics(),
            "encodings": self.encodings.statistics(),
            "streams": self.streams.statistics(),
            "places": self.places.statistics(),
            "homes": self.homes.statistics(),
            "public_certificate": self._server.statistics(),
            "security": None if self._security is None else self._security.statistics(),
            "admission": None if self._admission is None else self._admission.statistics(),
            "quotas": self._quotas.statistics(),
            "audit": None if self._trail is None else self._trail.statistics(),
        }

    def begin_request(self) -> None:
        """Refuse a request while stopping.

        Raises:
            DuramenError: `server_draining`.
        """
        if self._is_draining:
            raise DuramenError("server_draining", "this read proxy is stopping: ask another one")

    def _make_roster(self, paths: Paths) -> Roster:
        """Sequencers, of whom some own the logs that are read here."""
        learn = notify_learners(learn_role(self._security, Role.SEQUENCER), self._streams.learn)
        return Roster(self._store, paths.sequencers, learn=learn)

    def _describe(self) -> dict[str, Any]:
        options = self._options
        return {
            "data_url": options.data_url(self._server.port),
            "admin_url": options.admin_url(),
            **options.tls_urls(),
            "region": options.region,
            "rack": options.rack,
        }
