"""The sequencer as a service: metadata, rosters, logs, data plane, admin routes.

Wires the parts together and holds nothing else. Starts ready once it is registered and knows which
bookies and sequencers there are; stops by closing its open segments.

Called by `main`. Source: README.md "The processes", docs/protocol/admin.md "Each role".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from fastapi import FastAPI

from duramen.client.bookie_client import BookieClient
from duramen.core.log_node import LogNode
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.audit.by_admin_ports import open_handed_trail
from duramen.runtime.cluster_node import wait_cluster
from duramen.runtime.edge.embedded_server import ServerLimits
from duramen.runtime.http_client import PeerClient
from duramen.runtime.http_server import Answer, DataServer, make_guard
from duramen.runtime.identity.names import Identity, Role
from duramen.runtime.members.gossiping import Gossiping
from duramen.runtime.metadata_log.entry_reads import open_segment_nodes
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.reading.cold_reads import open_cold_reads
from duramen.runtime.registry import Registration, Roster
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.roster_calls import RosterCalls
from duramen.runtime.security.peers import notify_learners
from duramen.runtime.security.permitted_roles import SEQUENCER_PATHS
from duramen.runtime.security.process_security import (
    ProcessSecurity,
    domain_of,
    learn_role,
)
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.maintenance import Maintenance
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.runtime.sequencer.process import make_context
from duramen.runtime.sequencer.surveyor import Surveyor
from duramen.runtime.standing.call_streams import CallStreams
from duramen.runtime.standing.process_name import STREAM_URL
from duramen.runtime.standing.stream_server import (
    Send,
    StreamServer,
    describe_server,
    make_stream_server,
)
from duramen.runtime.stores.metadata_store import MetadataStore, Rejected, SessionState
from duramen.runtime.stores.service_store import make_service_store
from duramen.runtime.turning.fitting import FitCheck
from duramen.units import MIB
from duramen.wire.member_calls import PATH as MEMBERS_PATH
from duramen.wire.metadata_json import MetadataJsonError, Paths
from duramen.wire.sequencer_calls import LAC_PATH
from duramen_sequencer.append_frames import AppendFrames
from duramen_sequencer.control import Control, Operation
from duramen_sequencer.fencing import set_token
from duramen_sequencer.flexible.tree_format import TreeFormat
from duramen_sequencer.life.boundaries import Boundaries
from duramen_sequencer.life.keeping import Keeping
from duramen_sequencer.life.metadata_logs import MetadataLogNodes
from duramen_sequencer.life.operations import LifeOperations
from duramen_sequencer.life.retention import RetentionRounds
from duramen_sequencer.log_changes import AUDITOR, LogChanges
from duramen_sequencer.log_host import LogHost
from duramen_sequencer.log_routes import add_log_routes
from duramen_sequencer.ownership.admin_routes import add_ownership_routes
from duramen_sequencer.ownership.balancing import Balancing
from duramen_sequencer.ownership.hand_over import HandOver
from duramen_sequencer.ownership.hot_logs import HotLogs
from duramen_sequencer.ownership.lac_waits import LacWaits
from duramen_sequencer.ownership.reaching import Reaching
from duramen_sequencer.ownership.reliefs import LogReliefs
from duramen_sequencer.ownership.weighing import Weighing
from duramen_sequencer.placement_operations import PlacementOperations
from duramen_sequencer.placement_routes import add_placement_routes
from duramen_sequencer.repair.admin_routes import add_repair_routes
from duramen_sequencer.repair.auditor import Auditor, AuditPace
from duramen_sequencer.repair.disruption.granting import Granting
from duramen_sequencer.repair.disruption.judging import BookieJudge
from duramen_sequencer.repair.disruption.lags import REPORT_LAGS, report_lags
from duramen_sequencer.repair.election import Election
from duramen_sequencer.repair.operations import RepairOperations

_LOG = logging.getLogger(__name__)

_COLD_CACHE_BYTES: Final = 32 * MIB
"""Two row groups: what is read of the archive here is headers, for truncations."""


class SequencerService:
    """One sequencer process."""

    def __init__(
        self,
        options: ServiceOptions,
        store: MetadataStore,
        security: ProcessSecurity | None = None,
    ) -> None:
        self._options = options
        self._store = store
        self._security = security
        self._paths = Paths(options.cluster)
        self._handed_trail = open_handed_trail(options, store, self._paths, security)
        self._streams = CallStreams(security)
        self._client = PeerClient(security, self._streams)
        self._context = make_context(options.node_id)
        self._surveyor, self._sequencers = self._make_rosters()
        lanes = BookieLanes(self._client, self._surveyor.urls.get, NodeWatch(self._context.nodes))
        own_id = self._context.sequencer_id
        link = MetadataLink(store, self._paths, own_id, options.data_url())
        self._gossiping = self._make_gossiping() if options.takes_part_in_gossip else None
        away = self._list_away
        self.host = LogHost(own_id, self._context, lanes, link, self._sequencers, away=away)
        self._hand_over = HandOver(self.host, self._client)
        self._maintenance = Maintenance(
            store, self._paths, self._on_maintenance, self._count_changing
        )
        self._placement = PlacementOperations(store, self._paths, self._surveyor)
        check_config = self._placement.check_config
        changes = LogChanges(store, self._paths, self.host, self._client, check_config)
        self._cold = open_cold_reads(
            options.cold_store, store, self._paths, cache_bytes=_COLD_CACHE_BYTES
        )
        segments = open_segment_nodes(store, self._paths, lanes)
        self._life = LifeOperations(self.host, link, Boundaries(segments, lanes, self._cold))
        self._keeping = self._make_keeping(link, segments.records)
        self._retention = RetentionRounds(
            link, segments, self.host.looks_after, self._context.rng,
            keeper=self._keeping if options.keeps_metadata_logs else None,
        )  # fmt: skip
        self._balancing = self._make_balancing()
        self._auditor, self._election = self._make_auditor(link, changes)
        self._repair = self._make_repair(link)
        operations: dict[str, Operation] = {
            "roll": changes.roll,
            "reconfigure": changes.reconfigure,
            "config_changed": changes.learn,
            "report_state": changes.report_state,
            "report_tail": changes.report_tail,
            "fence": partial(set_token, self.host),
            "suspend": self._maintenance.suspend,
            "weigh": Weighing(own_id, self._change_node).weigh,
            **self._life.by_name,
            **self._hand_over.operations,
            **self._placement.by_name,
            **self._repair.by_name,
            "members": self._describe_members,
            REPORT_LAGS: self._report_lags,
        }
        tally = None if security is None else security.tally
        self._control = Control(store, self._paths, operations, check_config, tally=tally)
        self._frames, self._lac_waits = AppendFrames(self.host), LacWaits(self.host.drivers.get)
        self._server, self._stream_server = self._make_servers()
        self._registration = registration = self._make_registration()
        self._reaching = Reaching(
            self._client,
            lambda: self._surveyor.urls,
            lambda unreached: registration.change({"unreached": unreached}),
        )
        self._hot_logs = HotLogs(self.host)
        self._reliefs = LogReliefs(self.host, self._context, options.give_up_after_us)
        self._is_ready = False

    async def start(self) -> None:
        """Register, learn who is there, listen, look for orphans.

        Waits for ZooKeeper for as long as it takes.

        Raises:
            StartRefusedError: what is at the cluster's place is none of ours.
        """
        try:
            await wait_cluster(self._store, self._paths, domain_of(self._security))
        except (Rejected, MetadataJsonError) as error:
            raise StartRefusedError(f"ZooKeeper holds something else: {error}") from error
        if self._security is not None:
            self._security.rights.follow(self._store, self._paths)
        if self._handed_trail is not None:
            await self._handed_trail.start()
        options = self._options
        fitting = FitCheck(self._store, options)
        await fitting.wait_fitting()
        self._store.on_session(self._on_session)
        await self._surveyor.start()
        await self._maintenance.start()
        await self._server.start()
        if self._stream_server is not None:
            await self._stream_server.start()
            url = options.stream_url(self._stream_server.port, self._streams.process)
            self._registration.change({STREAM_URL: url})
        await self._registration.start()
        await fitting.check_registered()
        await self._sequencers.start()
        if self._gossiping is not None:
            self._gossiping.start()
        self.host.start()
        self._reaching.start()
        self._reliefs.start(lambda: self._reaching.reach.unreached)
        self._hot_logs.start()
        self._keeping.start()
        self._retention.start()
        await self._election.start()
        self._is_ready = True

    async def stop(self) -> None:
        """Close the open segments, then everything else."""
        self._is_ready = False
        self._lac_waits.stop()
        if self._handed_trail is not None:
            # The audit log may be one of those that are closed next.
            await self._handed_trail.stop()
        await self._election.stop()
        await self._balancing.stop()
        await self._auditor.stop()
        await self._retention.stop()
        await self._keeping.stop()
        await self._hot_logs.stop()
        await self._reliefs.stop()
        await self._reaching.stop()
        if self._gossiping is not None:
            await self._gossiping.stop()
        await self.host.stop()
        await self._registration.stop()
        await self._maintenance.stop()
        if self._stream_server is not None:
            await self._stream_server.stop()
        await self._server.stop()
        await self._surveyor.stop()
        await self._sequencers.stop()
        if self._cold is not None:
            await self._cold.stop()
        if self._security is not None:
            await self._security.rights.stop()
        await self._store.close()
        await self._client.close()

    def is_ready(self) -> bool:
        """Whether appends can be taken, as far as this process is concerned."""
        return self._is_ready

    def statistics(self) -> dict[str, Any]:
        """Every queue and counter."""
        return {
            "server": self._server.statistics(),
            "streams": self._streams.statistics(),
            "stream_server": describe_server(self._stream_server),
            "frames": self._frames.statistics(),
            "lac_waits": self._lac_waits.statistics(),
            "cold": None if self._cold is None else self._cold.statistics(),
            "metadata": self._store.statistics(),
            **self._surveyor.statistics(),
            "rolls": self._context.rolls.statistics(),
            "rolling_suspended": self._context.is_rolling_suspended,
            "life": self._life.statistics(),
            "retention": self._retention.statistics(),
            "metadata_logs": self._keeping.statistics(),
            **self._reaching.statistics(),
            **self._reliefs.statistics(),
            "balancer": self._balancing.statistics(),
            "repair": self._auditor.statistics(),
            "disruptions": self._repair.statistics(),
            "members": None if self._gossiping is None else self._gossiping.statistics(),
            "security": None if self._security is None else self._security.statistics(),
            "audit": None if self._handed_trail is None else self._handed_trail.statistics(),
            **self.host.statistics(),
        }

    def add_admin_routes(self, app: FastAPI) -> None:
        """What an administrator asks one sequencer: its logs, placement, owners, repair."""
        add_log_routes(app, self.host.drivers, self._retention)
        add_placement_routes(app, self._placement)
        add_ownership_routes(app, self.host, self._hand_over, self._store, self._paths)
        add_repair_routes(app, self._repair)

    def _make_rosters(self) -> tuple[Surveyor, Roster]:
        """Bookies, and sequencers; who calls them has to know who they are."""
        surveyor = Surveyor(
            self._store, self._paths, self._context, self._on_bookies_changed,
            steady_after_us=self._options.bookie_steady_after_us,
            learn=notify_learners(learn_role(self._security, Role.BOOKIE), self._streams.learn),
        )  # fmt: skip
        sequencers = Roster(
            self._store, self._paths.sequencers, self._on_sequencers_changed,
            learn=learn_role(self._security, Role.SEQUENCER),
        )  # fmt: skip
        return surveyor, sequencers

    def _make_registration(self) -> Registration:
        options = self._options
        fields = {
            "data_url": options.data_url(),
            "admin_url": options.admin_url(),
            **options.tls_urls(),
            "region": options.region,
            "rack": options.rack,
            "weight": options.weight,
        }
        return Registration(self._store, f"{self._paths.sequencers}/{options.node_id}", fields)

    def _make_balancing(self) -> Balancing:
        return Balancing(
            self._sequencers,
            RosterCalls(self._sequencers, self._client),
            lambda: self.host.has_session() and not self._context.is_rolling_suspended,
            is_wanted=self._options.is_balancing,
        )

    def _make_keeping(self, link: MetadataLink, records: MetadataRecords) -> Keeping:
        store, paths = self._store, self._paths

        async def is_ours(log: LogNode) -> bool:
            return self.host.looks_after(log, await link.read_keeper(log.log_id))

        return Keeping(
            self.host,
            self._context,
            MetadataLogNodes(store, paths),
            records,
            TreeFormat(store, paths),
            is_ours=is_ours,
        )

    def _make_auditor(self, link: MetadataLink, changes: LogChanges) -> tuple[Auditor, Election]:
        options = self._options

        async def ask_roll(log_id: LogId) -> object:
            return await changes.roll({"log_id": str(log_id), "by": AUDITOR})

        pace = AuditPace(options.audit_interval_us, grace_us=options.lost_bookie_grace_us)
        auditor = Auditor(link, BookieClient(self._security), ask_roll, self._context.rng, pace)
        fields = {
            "sequencer": options.node_id,
            "admin_url": options.admin_url(),
            **options.tls_urls(),
        }

        def on_leadership(is_held: bool) -> None:
            auditor.on_leadership(is_held)
            self._balancing.on_leadership(is_held)

        election = Election(self._store, self._paths.auditor, fields, on_leadership)
        return auditor, election

    def _make_repair(self, link: MetadataLink) -> RepairOperations:
        auditor, rng = self._auditor, self._context.rng
        calls = RosterCalls(self._sequencers, self._client)
        judge = BookieJudge(
            auditor.readings, link, calls, lambda: self._reaching.reach.unreached, rng
        )
        granting = Granting(auditor.grant_book, judge, calls, lambda: auditor.is_leader)
        return RepairOperations(auditor, self._election, granting)

    def _make_servers(self) -> tuple[DataServer, StreamServer | None]:
        options, security = self._options, self._security
        streams = make_stream_server(
            options, self._streams.process, self._on_request, security, SEQUENCER_PATHS
        )
        server = DataServer(
            options.host,
            options.data_port,
            self._on_call,
            self._frames.on_call,
            gate=options.make_gate(),
            guard=make_guard(security, SEQUENCER_PATHS, options.tls_data_port),
            limits=ServerLimits(connection_count=options.connection_count),
        )
        return server, streams

    def _make_gossiping(self) -> Gossiping:
        sequencers = self._sequencers
        own_id = self._options.node_id
        return Gossiping(
            own_id, self._client, lambda: sequencers.nodes, lambda: sequencers.made,
            lambda: self._surveyor.urls,
        )  # fmt: skip

    def _list_away(self) -> list[str]:
        return [] if self._gossiping is None else self._gossiping.list_away()

    # --- calls -----------------------------------------------------------------------------------

    async def _describe_members(self, _request: dict[str, Any]) -> dict[str, Any]:
        """What this process makes of the others; None: it does not gossip."""
        found = {"members": None} if self._gossiping is None else self._gossiping.describe()
        return {"sequencer": self._options.node_id, **found}

    async def _report_lags(self, _request: dict[str, Any]) -> dict[str, Any]:
        return await report_lags(self.host.list_drivers)

    async def _on_call(self, path: str, body: bytes, caller: Identity | None) -> Answer:
        if path == MEMBERS_PATH and self._gossiping is not None:
            return await self._gossiping.on_call(body, caller)
        if path == LAC_PATH:
            return await self._lac_waits.on_call(body)
        if path != "/s/control":
            return 404, "text/plain", b"the sequencer serves /s/append, /s/lac and /s/control"
        try:
            answer = await self._control.handle(body, caller)
            return 200, "application/json", json.dumps(answer).encode()
        except DuramenError as error:
            problem = json.dumps(error.problem()).encode()
            return error.kind.status, "application/problem+json", problem

    def _on_request(
        self, path: str, body: bytes, _peer: str, caller: Identity | None, send: Send
    ) -> Awaitable[Answer | None]:
        """A request on a standing stream."""
        answering = self._frames.on_call(path, body, send)
        return self._on_call(path, body, caller) if answering is None else answering

    def _change_node(self, change: Mapping[str, Any]) -> None:
        self._registration.change(change)

    # --- changes around --------------------------------------------------------------------------

    def _on_bookies_changed(self) -> None:
        if self._gossiping is not None:
            self._gossiping.on_bookies()
        self.host.on_bookies_changed()
        self._auditor.want_round()

    def _on_sequencers_changed(self) -> None:
        if self._gossiping is not None:
            self._gossiping.on_roster()
        self.host.want_scan()

    def _on_maintenance(self, is_suspended: bool) -> None:
        self._context.is_rolling_suspended = is_suspended
        for driver in list(self.host.drivers.values()):
            driver.flush()

    def _count_changing(self) -> int:
        """Logs that wait for ZooKeeper in the middle of a roll or an ensemble change."""
        cores = [driver.core for driver in self.host.drivers.values()]
        return sum(core.is_changing for core in cores)

    def _on_session(self, state: SessionState) -> None:
        _LOG.info("metadata session: %s", state.value)
        self.host.on_session(state)
        self._retention.on_session(state)
        self._keeping.on_session(state)


def make_service(
    options: ServiceOptions, _fail: Callable[[str], None], security: ProcessSecurity | None
) -> SequencerService:
    """Build the service on ZooKeeper."""
    return SequencerService(options, make_service_store(options), security)
