"""Simulated sequencer processes: lanes, rosters, session, calls, background work.

A node holds the lanes and the logs' host (`hosting`), and is told of rosters and its session.
Killed, it forgets everything; paused, it comes back as a zombie with its old state and what waited
for it. Hand-overs and retention are the production classes (`ownership.hand_over`,
`life.retention`); a log's fencing token is set as `fencing` does. Its part in repair is a seat
(`repair.seat`).

Called by `run`, `nemesis` and clients. Documented in docs/testing.md.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, cast

from duramen.config import LogConfig
from duramen.core.duty import Duty
from duramen.core.log_node import Ending
from duramen.core.ownership.reach import PROBE_US, Reach
from duramen.core.placement import Candidate
from duramen.core.placement.roster import choose_candidates, read_rows
from duramen.core.quorum import Quorum
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.exactly_once.stamps import SetToken, Stamp, TokenRecord
from duramen.core.sequencer.surroundings import Surroundings
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    Member,
    SequencerId,
)
from duramen.limits import APPEND_TIMEOUT_US
from duramen.runtime.http_client import NoAnswerError, UnreachableError
from duramen.runtime.metadata_store import MetadataError, SessionState
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.units import MS, SECOND
from duramen.wire.bookie_calls import Add, Service
from duramen.wire.entry import CONTROL, STATE, encode_entry
from duramen.wire.exactly_once.control_record import spell_control
from duramen.wire.metadata_json import read_bookie, read_log, spell_log
from duramen.wire.record_batch import read_info
from duramen.wire.record_json import spell_mark
from duramen.wire.sequencer_calls import (
    NO_OPTIONS,
    Appended,
    AppendOptions,
    AppendResult,
    Redirect,
)
from duramen_sequencer.life.retention import RetentionRounds
from duramen_sequencer.ownership.hand_over import HandOver
from duramen_sequencer.ownership.reliefs import LogReliefs
from tests.sim.hosting import Process, SimHost, SimProbes, SimRoster
from tests.sim.log_drivers import Answer, SimDriver, SimLane, Waiting, Watcher, bind
from tests.sim.metadata import PATHS, Store, StoreSession
from tests.sim.network import Network
from tests.sim.node_loop import Promise
from tests.sim.options import Options, can_place
from tests.sim.processes import BookieNode, Reply
from tests.sim.repair.seat import AuditSeat
from tests.sim.world import Node, World

_SCAN_INTERVAL_US: Final = 10 * SECOND
_SCAN_AFTER_CHANGE_US: Final = 200 * MS
_RETENTION_US: Final = (SECOND, 4 * SECOND)


class AppendRow(NamedTuple):
    """One batch of a frame of appends."""

    row: int
    log_id: LogId
    batch: bytes
    deadline_us: int
    options: AppendOptions = NO_OPTIONS


class SimPeers:
    """`http_client.PeerClient` between simulated processes, as far as control calls go."""

    def __init__(self, network: Network, node: Node, peers: dict[str, SequencerNode]) -> None:
        self._network = network
        self._node = node
        self._peers = peers

    async def request_json(
        self, method: str, url: str, body: bytes, timeout_us: int
    ) -> tuple[int, bytes]:
        """Ask the sequencer that the url names; raises as the production client does."""
        answer: Promise[tuple[BookieStatus, Any]] = Promise()
        name = url.removesuffix("/s/control")

        def on_answer(status: BookieStatus, value: Any) -> None:
            answer.settle((status, value))

        peer = self._peers[name]
        # As a stream: a connection never doubles what it carries.
        self._network.call(self._node, peer, "control", body, timeout_us, on_answer, is_stream=True)
        status, value = await answer
        if status is BookieStatus.UNREACHABLE:
            raise UnreachableError(name)
        if status is not BookieStatus.OK:
            raise NoAnswerError(name)
        return cast(tuple[int, bytes], value)


class SequencerNode(Process):
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
        self.link = MetadataLink(self.session, PATHS, self.sequencer_id, self.name)
        self.around: Surroundings
        self.host: SimHost
        self.retention: RetentionRounds
        self.seat: AuditSeat | None = None
        self._store = store
        self._network = network
        self._bookies = bookies
        self._peers = peers
        self._roster = SimRoster()
        self._seen: dict[str, BookieNode] = {}
        self._lanes: dict[Member, SimLane] = {}
        self._busy: dict[Member, SimLane] = {}
        self._sequencers: dict[str, tuple[str, ...]] = {}
        self._has_reliefs = options.has_reliefs
        self.reach: Reach
        self.reliefs: LogReliefs
        self._ready: list[tuple[Reply, Any]] = []
        self._append_count = 0
        self._command_ids = itertools.count(-1, -1)
        self._hand_over: HandOver
        self._log_count = len(options.logs)
        self._has_repair = options.has_repair
        self._least_ack_quorum = min(log.replication.ack_quorum for log in options.logs)

    @property
    def drivers(self) -> dict[LogId, SimDriver]:
        """The logs that are driven here."""
        return self.host.drivers

    @property
    def has_session(self) -> bool:
        """Whether the metadata store is known to hold this process's session."""
        return self.session.session is SessionState.CONNECTED

    def make_driver(self, log_id: LogId) -> SimDriver:
        """A log's driver with an idle core."""
        return SimDriver(self, log_id)

    # --- Life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """A fresh process: everything is forgotten."""
        if self.is_up:
            return
        self.begin_life()
        self.around = Surroundings(
            self.sequencer_id, random.Random(self.world.rng.getrandbits(64)), _encode,
            spell_control=spell_control,
        )  # fmt: skip
        self._lanes, self._busy, self._seen, self._ready = {}, {}, {}, []
        self.host = SimHost(
            self, self._roster, SimProbes(self._network, self, cast(Any, self._peers))
        )
        self._hand_over = HandOver(
            cast(Any, self.host), cast(Any, SimPeers(self._network, self, self._peers))
        )
        self.retention = RetentionRounds(
            self.link, self.host.looks_after, self.around.rng,
            now_unix_ms=lambda: self.around.unix_ms(self.world.now_us),
        )  # fmt: skip
        self.session.open()
        self._store.sequencers[self.name] = self.session
        self._store.tell_rosters()
        self.reach = Reach()
        self.reliefs = LogReliefs(cast(Any, self.host), self.around)
        if self._has_reliefs:
            self.after(0, self._ask_again)
            self.after(SECOND, self._look_for_relief)
        self.seat = None
        if self._has_repair:
            peers = SimPeers(self._network, self, self._peers)
            self.seat = AuditSeat(self, self._network, self._bookies, peers)
        self._on_rosters()
        self.world.note(self.name, "start")
        self.after(_SCAN_AFTER_CHANGE_US, self._scan)
        self.after(_SCAN_INTERVAL_US, self._scan_again)
        self.after(self.world.between(*_RETENTION_US), self._look_after_again)

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
        if self.seat is not None:
            await self.seat.stop()
        await self.host.stop()
        self.session.end()
        self.end_life()
        self.world.note(self.name, "stopped")

    def _on_session(self, state: SessionState) -> None:
        self.around.is_metadata_reachable = state is SessionState.CONNECTED
        self.world.note(self.name, f"session {state.value}")
        self.host.on_session(state)
        if state is not SessionState.CONNECTED:
            return
        self._store.sequencers[self.name] = self.session
        self._store.tell_rosters()
        for driver in list(self.drivers.values()):
            writer = driver.core.writer
            if writer is not None:
                self.spawn(self._keep(driver, writer.segment.epoch))
        self.after(_SCAN_AFTER_CHANGE_US, self._scan)

    async def _keep(self, driver: SimDriver, epoch: Epoch) -> None:
        is_kept = await self.link.keep_owner(driver.log_id, epoch)
        writer = driver.core.writer
        is_same = writer is not None and writer.segment.epoch == epoch
        if not is_kept and is_same and not driver.core.is_changing:
            driver.core.release("another sequencer took the log over", loss=1)
            driver.flush()
            self.kick()

    def _on_rosters(self) -> None:
        rows = read_rows(self._store.bookies, self._store.read_registered(), ())
        locations: dict[Member, Candidate] = dict(self.around.locations or {})
        for row in rows:
            locations[row.candidate.member] = row.candidate
        for name in self._store.bookies:
            self._seen[name] = self._bookies[name]
        self.around.candidates = choose_candidates(rows)
        self.around.locations = locations
        said = self._store.unreached
        sequencers = {name: said.get(name, ()) for name in sorted(self._store.sequencers)}
        if sequencers != self._sequencers:
            self._sequencers = sequencers
            self._roster.learn(sequencers)
            self.after(_SCAN_AFTER_CHANGE_US, self._scan)
        for driver in list(self.drivers.values()):
            driver.core.on_bookies_changed(self.world.now_us)
            driver.flush()
        if self.seat is not None:
            self.seat.auditor.want_round()
        self.kick()

    # --- Reach (as `ownership.reaching` and the loop of `ownership.reliefs`) ----------------------

    def _ask_again(self) -> None:
        self.after(PROBE_US, self._ask_again)
        self.reach.learn([BookieId(name) for name in self._store.bookies], self.world.now_us)
        for name in self._store.bookies:
            bookie = self._bookies[name]
            body: tuple[Incarnation, list[Any]] = (Incarnation("0" * 32), [])
            on_answer = partial(self._on_asked, BookieId(name))
            self._network.call(self, bookie, "lac", body, PROBE_US, on_answer)
        self._publish()

    def _on_asked(self, bookie: BookieId, status: BookieStatus, _value: Any) -> None:
        is_heard = status is BookieStatus.OK
        self.reach.on_answer(bookie, is_heard=is_heard, now_us=self.world.now_us)
        self._publish()

    def _publish(self) -> None:
        """Say it in the roster, if the store can be reached; it is tried again by and by."""
        store, unreached = self._store, self.reach.unreached
        is_heard = self.has_session and store.is_reachable(self.name)
        if is_heard and store.unreached.get(self.name) != unreached:
            self.world.note(self.name, "reaches not", *unreached)
            self.world.counts["reach changed"] += 1
            store.unreached[self.name] = unreached
            store.tell_rosters()

    def _look_for_relief(self) -> None:
        self.after(SECOND, self._look_for_relief)
        self.spawn(self.reliefs.look(self.reach.unreached, self.world.now_us))

    # --- Calls of others (as `append_frames` and `control`) --------------------------------------

    def serve(self, kind: str, body: Any, reply: Reply) -> None:
        if kind == "control":
            self.spawn(self._control(json.loads(body)), reply)
            return
        assert kind == "append", kind
        touched: dict[LogId, SimDriver] = {}
        for row, log_id, batch, deadline_us, options in body:
            self._append_count += 1
            info = read_info(batch)
            queued = QueuedAppend(
                self._append_count, batch, info.record_count, info.max_txid,
                info.max_timestamp_ms, self.world.now_us + deadline_us, info.min_txid,
                None if info.producer is None else Stamp(*info.producer),
                options.match_seq_num, options.fencing_token, tried=options.tried,
            )  # fmt: skip
            driver = self.host.submit(log_id, queued, _answer_row(self, reply, row))
            if driver is not None:
                touched[log_id] = driver
        for driver in touched.values():
            driver.flush()
        self.kick()

    async def _control(self, request: dict[str, Any]) -> tuple[int, bytes]:
        operations = {**self._hand_over.operations, "fence": self._set_token}
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
        self.kick()
        return status, json.dumps(answer).encode()

    async def _set_token(self, request: dict[str, Any]) -> dict[str, Any]:
        """As `fencing.set_token` and `submit`."""
        command = SetToken(request["token"], request.get("expected"))
        fate: Promise[AppendResult] = Promise()
        append = QueuedAppend(
            next(self._command_ids), spell_control(TokenRecord(command.token)), record_count=0,
            max_txid=None, max_timestamp_ms=0, deadline_us=self.world.now_us + APPEND_TIMEOUT_US,
            command=command,
        )  # fmt: skip
        driver = self.host.submit(LogId(int(request["log_id"])), append, fate.settle)
        if driver is not None:
            driver.flush()
        self.kick()
        match result := await fate:
            case DuramenError():
                raise result
            case Redirect(sequencer_id, url):
                return {"owner": sequencer_id, "url": url}
            case Appended():
                tail = result.tail
                return {"tail": spell_mark(tail.seq_num, tail.timestamp_ms, tail.dlsn)}
            case _:
                raise AssertionError(f"no answer to a command: {result}")

    # --- Whose the logs are ----------------------------------------------------------------------

    def resubmit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> None:
        """Route anew what a log gave back unsent."""
        self.host.resubmit(log_id, append, answer)

    def on_idle(self, driver: SimDriver) -> None:
        """The log is nobody's here any more."""
        self.host.on_idle(driver)

    def on_broken(self, driver: SimDriver) -> None:
        """An invariant of the log's core is broken."""
        self.host.on_broken(driver)

    def hand_over(self, log_id: LogId) -> None:
        """An operator, or the balancer, gives one of this process's logs to the next by hash."""
        request = {"op": "hand_over", "log_id": str(log_id)}
        self.spawn(self._control(request), self._on_handed_over)

    def _on_handed_over(self, answer: tuple[int, bytes]) -> None:
        status, body = answer
        document = json.loads(body)
        fate = document["code"] if status != 200 else f"closed {document['closed']}"
        self.world.counts[f"hand-over: {fate}"] += 1

    def disturb(self, log_id: LogId, what: str) -> None:
        """An operator's or another sequencer's request, at any time."""
        if self.host.is_leaving(log_id):
            return
        driver = self.host.drive(log_id)
        now_us = self.world.now_us
        match what:
            case "roll":
                driver.core.request_roll()
            case "close":
                driver.core.stop(now_us)
            case "end":
                driver.core.finish(Ending.END, now_us)
            case _:
                driver.core.take_over(now_us, close_only=what == "close orphan")
        driver.flush()
        self.kick()

    def suspend(self, span_us: int) -> None:
        """Rolling and ensemble changes are suspended for a while."""
        self.around.is_rolling_suspended = True
        self.after(span_us, self._resume)

    def _resume(self) -> None:
        self.around.is_rolling_suspended = False

    def reconfigure(self, log_id: LogId) -> None:
        """An operator changes the log's configuration through this sequencer."""
        self.spawn(self._reconfigure(log_id), bind(self._on_reconfigured, log_id))

    async def _reconfigure(self, log_id: LogId) -> tuple[LogConfig, int] | None:
        path = PATHS.log(log_id)
        try:
            await self.session.sync(path)
            stored = await self.session.get(path)
            assert stored is not None
            log = read_log(stored.data)
            part = log.config.replication
            size, write, racks, regions = (
                part.ensemble_size, part.write_quorum, part.min_racks, part.min_regions,
            )  # fmt: skip
            # Disks are lost within a budget that the lowest ack quorum of the beginning allows.
            possible = [
                ack
                for ack in range(self._least_ack_quorum, write + 1)
                if can_place(self._list_places(), Quorum(size, write, ack), racks, regions)
            ]
            changed = part.model_copy(update={
                "ack_quorum": self.world.rng.choice([*possible, part.ack_quorum]),
            })  # fmt: skip
            config = log.config.model_copy(update={
                "replication": changed, "commit": self.world.rng.choice(("lac", "control")),
            })  # fmt: skip
            version = log.config_version + 1
            news = replace(log, config=config, config_version=version, nonce=f"config {version}")
            await self.session.set(path, spell_log(news), version=stored.version)
        except MetadataError:
            return None
        return config, version

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

    def _on_reconfigured(self, log_id: LogId, news: tuple[LogConfig, int] | None) -> None:
        driver = self.drivers.get(log_id)
        if news is not None and driver is not None:
            self.world.counts["reconfigured where it is driven"] += 1
            driver.core.on_config(*news, self.world.now_us)
            driver.flush()
            self.kick()

    # --- Orphans ---------------------------------------------------------------------------------

    def _scan_again(self) -> None:
        self._scan()
        self.after(_SCAN_INTERVAL_US, self._scan_again)

    def _scan(self) -> None:
        for number in range(self._log_count):
            self.spawn(self.host.close_if_orphan(LogId(number + 1)))

    # --- Retention -------------------------------------------------------------------------------

    def _look_after_again(self) -> None:
        self.after(self.world.between(*_RETENTION_US), self._look_after_again)
        if self.host.has_session():
            self.spawn(self._look_after())

    async def _look_after(self) -> None:
        """As `RetentionRounds.run_round`, one log after the other."""
        for number in range(self._log_count):
            try:
                await self.retention._visit(LogId(number + 1))
            except MetadataError:
                return

    # --- Calls to bookies -------------------------------------------------------------------------

    def add(self, effect: fx.SendAdd, driver: SimDriver) -> None:
        """Queue an add for its bookie; `kick` sends."""
        lane = self._lanes.get(effect.member)
        if lane is None:
            lane = self._lanes[effect.member] = SimLane(self, effect.member)
        service = Service.RECOVERY if effect.is_recovery else Service.APPEND
        add = Add(
            effect.ledger_id, effect.entry, effect.lac, effect.payload, effect.is_recovery, service
        )
        lane.push(Waiting(add, driver))
        self._busy[effect.member] = lane

    def post(
        self,
        member: Member,
        kind: str,
        rows: Any,
        timeout_us: int,
        on_answer: Callable[[BookieStatus, Any], None],
    ) -> None:
        """One call to a bookie."""
        bookie = self._seen.get(member.bookie)
        if bookie is None:
            self.after(1, on_answer, BookieStatus.UNREACHABLE, None)
            return
        body = (member.incarnation, rows)
        self._network.call(self, bookie, kind, body, timeout_us, on_answer)

    def answer_later(self, reply: Reply, row: int, result: AppendResult) -> None:
        """Answers of one event share a message."""
        self._ready.append((reply, (row, result)))

    def kick(self) -> None:
        """The end of an event of this process: frames and answers leave."""
        while self._busy:
            lanes, self._busy = self._busy, {}
            for lane in lanes.values():
                lane.kick()
        if self._ready:
            ready, self._ready = self._ready, []
            # Bound methods of one call are equal, and calls come in the order of the answers.
            parts: list[tuple[Reply, list[Any]]] = []
            for reply, row in ready:
                if not parts or parts[-1][0] != reply:
                    parts.append((reply, []))
                parts[-1][1].append(row)
            for reply, rows in parts:
                reply(rows)

    def validate(self) -> None:
        for driver in self.drivers.values():
            driver.validate()


def _answer_row(node: SequencerNode, reply: Reply, row: int) -> Answer:
    def answer(result: AppendResult) -> None:
        node.answer_later(reply, row, result)

    return answer


def _encode(  # noqa: PLR0917 - the shape of `EncodeEntry`
    ledger_id: LedgerId, entry: EntryId, before: Any, batches: Any, record_count: int, after: Any,
    *, is_control: bool = False, has_state: bool = False,
) -> bytes:  # fmt: skip
    return encode_entry(
        ledger_id=ledger_id, entry_id=entry, before=before, batches=batches,
        record_count=record_count, after=after, flags=CONTROL * is_control | STATE * has_state,
    )  # fmt: skip
