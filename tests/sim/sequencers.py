"""Simulated sequencer processes: rosters, session, calls, background work.

A node stands for `SequencerService`. What that puts together runs here as it ships, in the node's
event loop: the logs' host (`hosting`), lanes, append frames, hand-overs, retention, the look at
bookies and the reliefs. The roster, the session and the network around them are played. Killed, a
node forgets everything; paused, it comes back as a zombie with its old state and what waited for
it. Its part in repair is a seat (`repair.seat`).

Called by `run`, `nemesis` and clients. Documented in docs/testing.md.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from duramen.config import FlexibleReplication, LogConfig, Replication
from duramen.core.duty import Duty
from duramen.core.flexible.nodeset import list_serving
from duramen.core.log_node import Ending
from duramen.core.placement import Candidate
from duramen.core.placement.node_states import ListReason, NodeStates
from duramen.core.placement.roster import choose_candidates, list_present, read_rows
from duramen.core.quorum import Quorum
from duramen.core.sequencer.context import SequencerContext
from duramen.errors import DuramenError
from duramen.ids import (
    BookieId,
    EntryId,
    LedgerId,
    LogId,
    Member,
    SequencerId,
    metadata_log_of,
)
from duramen.runtime.http_client import PeerClient
from duramen.runtime.metadata_log.entry_reads import open_segment_nodes
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.runtime.stores.metadata_store import MetadataError, SessionState
from duramen.units import MS, SECOND
from duramen.wire.control_record import encode_control
from duramen.wire.entry import CONTROL, STATE, encode_entry, read_entry_info
from duramen.wire.metadata_json import encode_log, read_bookie, read_log
from duramen.wire.sequencer_calls import LAC_PATH
from duramen_sequencer.append_frames import AppendFrames
from duramen_sequencer.fencing import set_token
from duramen_sequencer.life.keeping import Keeping
from duramen_sequencer.life.retention import RetentionRounds
from duramen_sequencer.ownership.hand_over import HandOver, Operation
from duramen_sequencer.ownership.lac_waits import LacWaits
from duramen_sequencer.ownership.reaching import Reaching
from duramen_sequencer.ownership.reliefs import LogReliefs
from tests.sim.hosting import CountedLink, SimHost, SimProbes, SimRoster
from tests.sim.keeping import make_keeping
from tests.sim.log_kinds import copies_of
from tests.sim.members.hints import HintMarks, MarkedHints
from tests.sim.members.seats import SimGossiping
from tests.sim.metadata import PATHS, Store, StoreSession
from tests.sim.network import MEMBERS, Network
from tests.sim.options import Options, can_place
from tests.sim.peers import SimPeers
from tests.sim.processes import BookieNode, Reply
from tests.sim.repair.seat import AuditSeat
from tests.sim.watched_driver import WatchedDriver, Watcher
from tests.sim.world import Node, World

_RETENTION_US: Final = (SECOND, 4 * SECOND)


class _CountedNodes(NodeStates):
    """The lists of bookies of one life, counted."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def _note_listed(self, reason: ListReason) -> None:
        self._world.counts[f"bookie listed: {reason.value}"] += 1
        super()._note_listed(reason)


class SequencerNode(Node):
    """One sequencer process: its logs, lanes and link."""

    def __init__(
        self,
        world: World,
        index: int,
        *,
        options: Options,
        store: Store,
        network: Network,
        bookies: dict[str, BookieNode],
        peers: dict[str, SequencerNode],
        watcher: Watcher,
    ) -> None:
        regions = sorted({region for region, _ in options.places})
        super().__init__(world, f"s{index}", regions[index % len(regions)])
        self.sequencer_id = SequencerId(self.name)
        self.watcher = watcher
        self.session = StoreSession(store, self, self._on_session, self._on_rosters)
        self.link: CountedLink = CountedLink(
            self, self.session, PATHS, self.sequencer_id, self.name
        )
        self.context: SequencerContext
        self.host: SimHost
        self.lanes: BookieLanes
        self.retention: RetentionRounds
        self.keeping: Keeping | None = None
        self.marks: HintMarks
        self.gossiping: SimGossiping | None = None
        self.seat: AuditSeat | None = None
        self._store = store
        self._network = network
        self._bookies = bookies
        self._peers = peers
        self._roster = SimRoster()
        self._seen: set[str] = set()
        self._sequencers: dict[str, tuple[str, ...]] = {}
        self._has_metadata_logs = options.has_metadata_logs
        self._has_reliefs = options.has_reliefs
        self._has_gossip = options.has_gossip
        self._unreached: tuple[str, ...] = ()
        self._frames: AppendFrames
        self._lac_waits: LacWaits
        self._hand_over: HandOver
        self._log_count = len(options.logs)
        chance = random.Random(f"clock {self.name} {options.clock_skew_us}")
        self._clock_offset_us = int(chance.random() * options.clock_skew_us)
        self._has_repair = options.has_repair
        self._least_ack_quorum = min(map(copies_of, options.logs))
        self._kinds = options.log_kinds
        self._uses = options.log_uses

    @property
    def drivers(self) -> dict[LogId, LogDriver]:
        """The logs that are driven here."""
        return self.host.drivers

    @property
    def has_session(self) -> bool:
        """Whether the metadata store is known to hold this process's session."""
        return self.session.session is SessionState.CONNECTED

    # --- Life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """A fresh process: everything is forgotten."""
        if not self.is_up:
            self.begin_life()
            self.loop.enter(self._start)

    def _start(self) -> None:
        self.marks = HintMarks(lambda: self.world.now_us)
        self.context = SequencerContext(
            self.sequencer_id, random.Random(self.world.rng.getrandbits(64)), self._encode,
            encode_control=encode_control, unix_offset_us=self._clock_offset_us,
            nodes=_CountedNodes(self.world), hints=MarkedHints(self.marks),
        )  # fmt: skip
        self._seen = set()
        bookies = cast(PeerClient, SimPeers(self._network, self, self._bookies))
        peers = cast(PeerClient, SimPeers(self._network, self, self._peers))
        self.lanes = BookieLanes(bookies, self._find_url, NodeWatch(self.context.nodes))
        probes = SimProbes(self._network, self, self._peers)
        self.host = SimHost(self, self.lanes, self._roster, probes)
        self._frames = AppendFrames(self.host)
        self._lac_waits = LacWaits(self.host.drivers.get)
        self._hand_over = HandOver(self.host, peers)
        segments = open_segment_nodes(self.link.store, self.link.paths, self.lanes)
        self.keeping = None
        if self._has_metadata_logs:
            self.keeping = make_keeping(self, self.host, segments.records)
            self.keeping.start()
        self.retention = RetentionRounds(
            self.link, segments, self.host.looks_after, self.context.rng, keeper=self.keeping,
            now_unix_ms=lambda: self.context.unix_ms(self.world.now_us),
        )  # fmt: skip
        self.session.open()
        self._store.sequencers[self.name] = self.session
        self._store.report_rosters()
        if self._has_reliefs:
            reaching = Reaching(bookies, self._list_urls, self._publish)
            reaching.start()
            LogReliefs(self.host, self.context).start(lambda: reaching.reach.unreached)
        self.seat = None
        if self._has_repair:
            self.seat = AuditSeat(self, self._network, self._bookies, peers)
        self.gossiping = self._make_gossiping() if self._has_gossip else None
        self._on_rosters()
        if self.gossiping is not None:
            self.gossiping.start()
        self.world.note(self.name, "start")
        self.host.start()
        self.after(self.world.between(*_RETENTION_US), self._look_after_again)

    def _make_gossiping(self) -> SimGossiping:
        processes: dict[str, Node] = {**self._bookies, **self._peers}
        return SimGossiping(self, self._network, self._store, processes)

    def list_away(self) -> Collection[str]:
        """The sequencers that answer nobody, as gossip says."""
        return () if self.gossiping is None else self.gossiping.list_away()

    def crash(self) -> None:
        """Killed: the session expires later."""
        if self.is_up:
            self.end_life()
            self.world.note(self.name, "killed")

    def stop(self) -> None:
        """Close the open segments in peace, then end."""
        if self.is_up and not self.host.is_stopping:
            self.world.note(self.name, "stopping")
            self.loop.run_task(self._stop())

    async def _stop(self) -> None:
        self._lac_waits.stop()
        if self.seat is not None:
            await self.seat.stop()
        if self.gossiping is not None:
            await self.gossiping.stop()
        if self.keeping is not None:
            await self.keeping.stop()
        busy = [driver for driver in self.drivers.values() if not driver.is_done]
        await self.host.stop()
        self.world.counts["stopped in peace"] += all(driver.is_done for driver in busy)
        # What was held is routed before the process ends.
        await self.pass_time(100 * MS)
        self.session.end()
        self.end_life()
        self.world.note(self.name, "stopped")

    def _on_session(self, state: SessionState) -> None:
        self.world.note(self.name, f"session {state.value}")
        self.host.on_session(state)
        if self.keeping is not None:
            self.keeping.on_session(state)
        if state is SessionState.CONNECTED:
            self._store.sequencers[self.name] = self.session
            self._store.report_rosters()

    def _on_rosters(self) -> None:
        rows = read_rows(self._store.bookies, self._store.read_registered(), ())
        locations: dict[Member, Candidate] = dict(self.context.locations or {})
        for row in rows:
            locations[row.candidate.member] = row.candidate
        self._seen.update(self._store.bookies)
        self.context.candidates = choose_candidates(rows)
        self.context.locations = locations
        self.context.serving = list_serving(rows)
        roster = list_present(rows)
        if roster != self.context.roster:
            self.context.roster = roster
        said = self._store.unreached
        sequencers = {name: said.get(name, ()) for name in sorted(self._store.sequencers)}
        if sequencers != self._sequencers:
            self._sequencers = sequencers
            self._roster.learn(sequencers)
            self.host.want_scan()
        if self.gossiping is not None:
            self.gossiping.learn(sequencers)
        self.host.on_bookies_changed()
        if self.seat is not None:
            self.seat.auditor.want_round()

    def _find_url(self, bookie: BookieId) -> str | None:
        return bookie if bookie in self._seen else None

    # --- Reach ------------------------------------------------------------------------------------

    def _list_urls(self) -> dict[BookieId, str]:
        return {BookieId(name): name for name in self._store.bookies}

    def _publish(self, unreached: list[str]) -> None:
        """Say it in the roster, as soon as the store can be reached."""
        self._unreached = tuple(unreached)
        self._try_to_publish()

    def _try_to_publish(self) -> None:
        store, unreached = self._store, self._unreached
        if store.unreached.get(self.name, ()) == unreached:
            return
        if not self.has_session or not store.is_reachable(self.name):
            self.after(SECOND, self._try_to_publish)
            return
        self.world.note(self.name, "reaches not", *unreached)
        self.world.counts["reach changed"] += 1
        store.unreached[self.name] = unreached
        store.report_rosters()

    # --- Calls of others -------------------------------------------------------------------------

    def serve(self, kind: str, body: Any, reply: Reply) -> None:
        if kind == "control":
            self.loop.run_task(self._answer_control(json.loads(body), reply))
            return
        if kind == MEMBERS:
            self.loop.run_task(self._answer_member(body, reply))
            return
        if kind == LAC_PATH:
            self.loop.run_task(self._answer_lac(body, reply))
            return
        assert kind == "append", kind
        self.loop.run_task(self._answer_lane(body, reply))

    async def _answer_lac(self, body: bytes, reply: Reply) -> None:
        answer = await self._lac_waits.on_call(body)
        assert answer[0] == 200, "there are not so many readers"
        self.world.counts["lac told by an owner"] += 1
        reply(answer[2])

    async def _answer_lane(self, body: bytes, reply: Reply) -> None:
        """A frame of a write proxy: pieces of its answer are numbered, the last one is empty."""
        numbers = itertools.count()

        async def send(piece: bytes) -> None:
            reply((next(numbers), piece))

        answered = self._frames.on_call("/s/append", body, send)
        assert answered is not None
        await answered
        reply((next(numbers), b""))

    async def _answer_member(self, body: bytes, reply: Reply) -> None:
        assert self.gossiping is not None
        reply(await self.gossiping.answer(body))

    async def _answer_control(self, request: dict[str, Any], reply: Reply) -> None:
        reply(await self._control(request))

    async def _control(self, request: dict[str, Any]) -> tuple[int, bytes]:
        operations: dict[str, Operation] = {
            **self._hand_over.operations,
            "fence": partial(set_token, self.host),
        }
        if self.seat is not None:
            operations["roll"] = self.seat.changes.roll
        try:
            answer = await operations[request["op"]](request)
            status = 200
        except MetadataError as error:
            problem = DuramenError("metadata_unavailable", str(error)).problem()
            status, answer = problem["status"], problem
        except DuramenError as error:
            status, answer = error.kind.status, error.problem()
        return status, json.dumps(answer).encode()

    # --- Whose the logs are ----------------------------------------------------------------------

    def hand_over(self, log_id: LogId) -> None:
        """An operator, or the balancer, gives one of this process's logs to the next by hash."""
        self.loop.run_task(self._ask_hand_over({"op": "hand_over", "log_id": str(log_id)}))

    async def _ask_hand_over(self, request: dict[str, Any]) -> None:
        status, body = await self._control(request)
        document = json.loads(body)
        fate = document["code"] if status != 200 else f"closed {document['closed']}"
        self.world.counts[f"hand-over: {fate}"] += 1

    def disturb(self, log_id: LogId, what: str) -> None:
        """An operator's or another sequencer's request, at any time."""
        if self.host.is_leaving(log_id):
            return
        driver = self.host.drive(log_id)
        match what:
            case "roll":
                driver.core.request_roll()
            case "close":
                driver._begin_leaving()
            case "end":
                driver.finish(Ending.END)
            case _:
                self.marks.forget(log_id)
                driver.take_over(close_only=what == "close orphan", is_owner_gone=True)
        driver.flush()

    def suspend(self, span_us: int) -> None:
        """Rolling and ensemble changes are suspended for a while."""
        self.context.is_rolling_suspended = True
        self.after(span_us, self._resume)

    def _resume(self) -> None:
        self.context.is_rolling_suspended = False

    def reconfigure(self, log_id: LogId, ack_mode: str | None = None) -> None:
        """An operator changes the log's configuration through this sequencer.

        Args:
            ack_mode: what is to change, and nothing else; None: something of it, as it is drawn.
        """
        self.loop.run_task(self._reconfigure(log_id, ack_mode))

    async def _reconfigure(self, log_id: LogId, ack_mode: str | None) -> None:
        path = PATHS.log(log_id)
        try:
            await self.session.sync(path)
            stored = await self.session.get(path)
            assert stored is not None
            log = read_log(stored.data)
            if ack_mode is None:
                config = self._draw_config(log_id, log.config)
            else:
                config = log.config.model_copy(update={"ack_mode": ack_mode})
            version = log.config_version + 1
            news = replace(log, config=config, config_version=version, nonce=f"config {version}")
            await self.session.set(path, encode_log(news), version=stored.version)
        except MetadataError:
            return
        driver = self.drivers.get(log_id)
        if driver is not None:
            self.world.counts["reconfigured where it is driven"] += 1
            driver.on_config(config, version)

    def _draw_config(self, log_id: LogId, config: LogConfig) -> LogConfig:
        before = self._turn(log_id, config)
        first, _ = self._kinds[log_id - 1]
        return before.model_copy(update={
            "replication": self._draw_replication(before),
            "commit": self.world.rng.choice(("lac", "control")),
            "ack_mode": self._draw_ack_mode(log_id),
            "compression": self.world.rng.choice(("none", first.compression)),
        })  # fmt: skip

    def _draw_ack_mode(self, log_id: LogId) -> str:
        """A wish: a log that has producers or a token by then stays as it is (R29).

        Written past the look at the log's owner, which `LogChanges` takes before: who comes between
        that look and the change is met often so.
        """
        if not self._uses[log_id - 1].changes_mode:
            return self._kinds[log_id - 1][0].ack_mode
        self.world.counts["log may change its mode"] += 1
        return self.world.rng.choice(("ordered", "out_of_order"))

    def _turn(self, log_id: LogId, config: LogConfig) -> LogConfig:
        """Of a log with two kinds, now and then the other one."""
        first, other = self._kinds[log_id - 1]
        if other is None or self.world.rng.random() < 0.3:
            return config
        self.world.counts["log changed its kind"] += 1
        return other if first.is_flexible == config.is_flexible else first

    def _draw_replication(self, config: LogConfig) -> Replication | FlexibleReplication:
        """Disks are lost within a budget that the fewest copies of the beginning allow."""
        part = config.replication
        if isinstance(part, FlexibleReplication):
            extras = self.world.rng.randrange(2) if config.nodeset.size is None else part.extras
            return part.model_copy(update={"extras": extras})
        size, write, racks, regions = (
            part.ensemble_size, part.write_quorum, part.min_racks, part.min_regions,
        )  # fmt: skip
        possible = [
            ack
            for ack in range(self._least_ack_quorum, write + 1)
            if can_place(self._list_places(), Quorum(size, write, ack), racks, regions)
        ]
        return part.model_copy(update={
            "ack_quorum": self.world.rng.choice([*possible, part.ack_quorum]),
        })  # fmt: skip

    def _list_places(self) -> tuple[tuple[str, str], ...]:
        """Where the bookies are that are to stay: operators ask for nothing that needs others."""
        staying = []
        for bookie in self._bookies.values():
            if bookie.is_removed:
                continue
            stored = self._store.find(PATHS.bookie(bookie.member.bookie))
            if stored is None or read_bookie(stored.data).duty is Duty.SERVING:
                staying.append((bookie.region, bookie.rack))
        return tuple(staying)

    # --- Retention -------------------------------------------------------------------------------

    def _look_after_again(self) -> None:
        self.after(self.world.between(*_RETENTION_US), self._look_after_again)
        if self.host.has_session():
            self.spawn(self._look_after())

    async def _look_after(self) -> None:
        """As `RetentionRounds.run_round`, one log after the other."""
        log_ids = [LogId(number + 1) for number in range(self._log_count)]
        if self._has_metadata_logs:
            log_ids += [metadata_log_of(log_id) for log_id in log_ids]
        for log_id in log_ids:
            try:
                await self.retention._visit(log_id)
            except MetadataError:
                return

    def _encode(  # noqa: PLR0917 - the shape of `EncodeEntry`
        self, ledger_id: LedgerId, entry: EntryId, before: Any, batches: Any, record_count: int,
        after: Any, *, is_control: bool = False, has_state: bool = False,
        is_compressing: bool = False,
    ) -> bytes:  # fmt: skip
        encoded = encode_entry(
            ledger_id=ledger_id, entry_id=entry, before=before, batches=batches,
            record_count=record_count, after=after, flags=CONTROL * is_control | STATE * has_state,
            is_compressing=is_compressing,
        )  # fmt: skip
        self.world.counts["entry compressed"] += read_entry_info(encoded).is_compressed
        return encoded

    def validate(self) -> None:
        for driver in self.host.list_drivers():
            cast(WatchedDriver, driver).validate()
        self.context.nodes.validate()
