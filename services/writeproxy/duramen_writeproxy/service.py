"""The write proxy as a service: its parts, its life, its numbers.

Start: session with ZooKeeper, roster of sequencers, public port, registration. Stop: new requests
are refused as `server_draining`, those in flight get STOP_WAIT_S, then the open frames end. The
proxy is ready as long as it runs: a lost ZooKeeper does not stop appends to logs that are known.

Called by `main` through the frame of `duramen.runtime.service`. Source: README.md "The processes".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection
from typing import Any, Final

from duramen.runtime.admission.admission import open_admission
from duramen.runtime.admission.quotas import Quotas
from duramen.runtime.audit.recorded_admin import RecordedAdmin
from duramen.runtime.audit.recorded_calls import RecordedCalls
from duramen.runtime.audit.trail import open_trail
from duramen.runtime.cluster_node import wait_own_cluster
from duramen.runtime.http_client import PeerClient
from duramen.runtime.identity.names import Role
from duramen.runtime.members.observing import Observing
from duramen.runtime.public.calls import Side
from duramen.runtime.public.forwarding import make_forwarder
from duramen.runtime.public.serving import complete_app, make_public_server
from duramen.runtime.registry import Registration, Roster
from duramen.runtime.role import ServiceOptions
from duramen.runtime.security.peers import notify_learners
from duramen.runtime.security.process_security import ProcessSecurity, domain_of, learn_role
from duramen.runtime.security.public_certificate import open_public_certificate
from duramen.runtime.standing.call_streams import CallStreams
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.runtime.turning.fitting import FitCheck
from duramen.wire.metadata_json import Paths
from duramen_writeproxy.append_route import AppendRoute
from duramen_writeproxy.appends import Appender
from duramen_writeproxy.cluster.disruptions import add_disruption_routes
from duramen_writeproxy.cluster.journals import JournalCalls, add_journal_routes
from duramen_writeproxy.cluster.maintenance import add_maintenance_routes
from duramen_writeproxy.cluster.placement import add_placement_routes
from duramen_writeproxy.cluster.repair import AuditorCalls, add_repair_routes
from duramen_writeproxy.cluster.routes import add_cluster_routes
from duramen_writeproxy.cluster.security import SecurityReport, add_security_routes
from duramen_writeproxy.cluster.sequencers import Cluster
from duramen_writeproxy.elsewhere import Elsewhere
from duramen_writeproxy.intake.budget import Budget
from duramen_writeproxy.intake.encoder import Encoder
from duramen_writeproxy.intake.stream_route import StreamRoute
from duramen_writeproxy.lanes import Lanes
from duramen_writeproxy.logs.audit_log import AuditLog
from duramen_writeproxy.logs.catalog import CatalogQueries
from duramen_writeproxy.logs.creation import AutoCreator, Creator
from duramen_writeproxy.logs.fencing import FenceRoute
from duramen_writeproxy.logs.handed_records import HandedRecords, add_audit_routes
from duramen_writeproxy.logs.life import add_life_routes
from duramen_writeproxy.logs.names import NameCache
from duramen_writeproxy.metrics import IN_FLIGHT_BYTES
from duramen_writeproxy.rest import make_app
from duramen_writeproxy.rights.calls_for_callers import CallsForCallers
from duramen_writeproxy.rights.grant_routes import add_grant_routes
from duramen_writeproxy.rights.token_routes import add_token_routes
from duramen_writeproxy.routing import Router

_LOG = logging.getLogger(__name__)

STOP_WAIT_S: Final = 5.0
"""Appends that are in flight when the proxy stops have this long to be answered."""


class WriteProxy:
    """One write proxy; to be made inside the running loop.

    Args:
        store: not yet started; closed by `stop`.
    """

    def __init__(
        self,
        options: ServiceOptions,
        store: MetadataStore,
        security: ProcessSecurity | None = None,
    ) -> None:
        self._options = options
        self._store = store
        self._paths = Paths(options.cluster)
        self._security = security
        self._streams = CallStreams(security)
        self._peers = PeerClient(security, self._streams)
        self._roster = Roster(
            store, self._paths.sequencers, self._on_roster,
            learn=notify_learners(learn_role(security, Role.SEQUENCER), self._streams.learn),
        )  # fmt: skip
        self._observing = self._make_observing() if options.takes_part_in_gossip else None
        self._router = Router(lambda: self._roster.nodes, self._list_away)
        self._region: str | None = None
        self._lanes = Lanes(self._peers, lambda: self._region)
        self._names = NameCache(store, self._paths)
        self._appender = Appender(self._router, self._lanes)
        self._budget = Budget()
        self._creator = Creator(self._router, self._peers)
        self._auto_creator = AutoCreator(self._names, self._creator, store, self._paths)
        self._encoder = Encoder()
        self._elsewhere = Elsewhere(
            store, self._paths.write_proxies, options.region, self._router,
            lambda: self._roster.nodes,
        )  # fmt: skip
        self._append_route = AppendRoute(
            self._names, self._auto_creator, self._appender, self._encoder, self._budget,
            elsewhere=self._elsewhere,
        )  # fmt: skip
        catalog = CatalogQueries(store, self._paths, self._names)
        fence_route = FenceRoute(self._names, self._creator)
        self._stream_route = StreamRoute(
            self._names, self._auto_creator, self._appender, self._encoder, self._budget
        )
        app = make_app(self._append_route, catalog, self._creator, fence_route, self._stream_route)
        add_life_routes(app, self._names, self._creator, lambda: self._append_route.is_draining)
        for_callers = CallsForCallers(self._creator, lambda: self._append_route.is_draining)
        add_grant_routes(app, for_callers)
        add_token_routes(app, for_callers)
        certificate = open_public_certificate(options)
        self._forwarder = make_forwarder(
            options, store, self._paths.read_proxies, lambda: self._append_route.is_draining,
            security=security, certificate=certificate,
        )  # fmt: skip
        self._admission = open_admission(options, store, security)
        self._audit_log = AuditLog(self._names, self._creator, self._router, self._peers)
        self._trail = None if security is None else open_trail(options, self._audit_log)
        recorded = None if self._trail is None else RecordedCalls(self._trail, Side.WRITE)
        if security is not None and self._trail is not None:
            security.admin_records = RecordedAdmin(self._trail)
        complete_app(app, self._forwarder)
        self._cluster = Cluster(self._names, self._roster, self._peers)
        self._quotas = Quotas(options, store)
        self._server = make_public_server(
            app, options, self._quotas, self._admission, certificate, recorded=recorded
        )
        self._registration: Registration | None = None
        self._is_started = False
        IN_FLIGHT_BYTES.set_function(lambda: self._budget.held_bytes)

    @property
    def port(self) -> int:
        """The public port."""
        return self._server.port

    def add_admin_routes(self, app: Any) -> None:
        """`/v1/cluster/…`: questions and requests to the whole cluster; and others' records."""
        add_audit_routes(app, HandedRecords(self._audit_log, self._security))
        add_maintenance_routes(app, self._creator)
        add_cluster_routes(app, self._cluster)
        add_placement_routes(app, self._names, self._creator)
        auditor = AuditorCalls(self._store, self._paths, self._cluster)
        add_repair_routes(app, auditor)
        add_disruption_routes(app, auditor)
        add_journal_routes(app, JournalCalls(self._store, self._paths, self._security))
        add_security_routes(app, SecurityReport(self._store, self._paths, self._security))

    async def start(self) -> None:
        """Serve; waits for ZooKeeper for as long as it takes."""
        await wait_own_cluster(self._store, self._paths, domain_of(self._security))
        if self._security is not None:
            self._security.rights.follow(self._store, self._paths)
        if self._admission is not None:
            await self._admission.start()
        fitting = FitCheck(self._store, self._options)
        await fitting.wait_fitting()
        await self._roster.start()
        await self._elsewhere.start()
        if self._observing is not None:
            self._observing.start()
        if self._forwarder is not None:
            await self._forwarder.start()
        if self._trail is not None:
            await self._trail.start()
        await self._server.start()
        options = self._options
        fields = {
            "data_url": options.data_url(self.port),
            "admin_url": options.admin_url(),
            **options.tls_urls(),
            "region": options.region,
            "rack": options.rack,
        }
        path = f"{self._paths.write_proxies}/{options.node_id}"
        self._registration = Registration(self._store, path, fields)
        await self._registration.start()
        await fitting.check_registered()
        self._is_started = True

    async def stop(self) -> None:
        """Refuse what is new, wait for what is in flight, close."""
        self._is_started = False
        self._append_route.is_draining = True
        self._stream_route.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._budget.wait_idle(), STOP_WAIT_S)
        self._lanes.cancel()
        if self._observing is not None:
            await self._observing.stop()
        if self._forwarder is not None:
            await self._forwarder.stop()
        await self._server.stop()
        await self._quotas.stop()
        if self._trail is not None:
            await self._trail.stop()
        self._audit_log.close()
        if self._admission is not None:
            await self._admission.stop()
        self._encoder.close()
        if self._registration is not None:
            await self._registration.stop()
        await self._roster.stop()
        await self._elsewhere.stop()
        await self._peers.close()
        if self._security is not None:
            await self._security.rights.stop()
        await self._store.close()

    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self._is_started

    def statistics(self) -> dict[str, Any]:
        """Requests, lanes, routes, names, metadata."""
        return {
            "requests": self._budget.request_count,
            "in_flight_bytes": self._budget.held_bytes,
            "draining": self._append_route.is_draining,
            "arriving_bytes": self._budget.arriving_bytes,
            "bodies": self._encoder.statistics(),
            "sessions": self._stream_route.statistics(),
            "appends": self._appender.statistics(),
            "lanes": self._lanes.statistics(),
            "streams": self._streams.statistics(),
            "routes": self._router.statistics(),
            "elsewhere": self._elsewhere.statistics(),
            "names": self._names.statistics(),
            "auto_creation": self._auto_creator.statistics(),
            "forwarding": None if self._forwarder is None else self._forwarder.statistics(),
            "metadata": self._store.statistics(),
            "public_certificate": self._server.statistics(),
            "security": None if self._security is None else self._security.statistics(),
            "admission": None if self._admission is None else self._admission.statistics(),
            "quotas": self._quotas.statistics(),
            "audit": None if self._trail is None else self._trail.statistics(),
            "audit_lanes": self._audit_log.statistics(),
            "members": None if self._observing is None else self._observing.statistics(),
        }

    def _make_observing(self) -> Observing:
        roster, own_id = self._roster, self._options.node_id
        return Observing(own_id, self._peers, lambda: roster.nodes, self._on_away)

    def _on_roster(self) -> None:
        if self._observing is not None:
            self._observing.on_roster()
        self._router.on_roster()
        nodes = self._roster.nodes.values()
        # Where all sequencers are in one region, nobody asks where an append comes from.
        is_asked = len({node.get("region") for node in nodes}) > 1
        self._region = self._options.region if is_asked else None
        urls = {node["data_url"] for node in nodes if "data_url" in node}
        self._lanes.keep_only(urls)
        self._audit_log.keep_only(urls)

    def _list_away(self) -> Collection[str]:
        return () if self._observing is None else self._observing.list_away()

    def _on_away(self) -> None:
        """A sequencer answers nobody: what is on its way there is tried elsewhere."""
        _LOG.info("sequencers that answer nobody: %s", ", ".join(sorted(self._list_away())))
        self._appender.end_tries()
