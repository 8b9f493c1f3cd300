"""Simulated sequencer processes: routing, takeover, orphans, as `log_host` and the service do them.

A node holds the logs' drivers and the lanes, and is told of rosters and its session. Killed, it
forgets everything; paused, it comes back as a zombie with its old state and what waited for it.
The logs themselves are in `log_drivers`.

Called by `run`, `nemesis` and clients. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from duramen.config import LogConfig
from duramen.core.hashing import rank_nodes
from duramen.core.placement import Candidate
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.log_sequencer import LogState
from duramen.core.sequencer.surroundings import Surroundings
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import (
    EntryId,
    Epoch,
    LedgerId,
    LogId,
    Member,
    SequencerId,
)
from duramen.runtime.metadata_store import MetadataError, SessionState
from duramen.units import MS, SECOND
from duramen.wire.bookie_calls import Add, Service
from duramen.wire.entry import CONTROL, STATE, encode_entry
from duramen.wire.exactly_once.control_record import spell_control
from duramen.wire.metadata_json import read_log, spell_log
from duramen.wire.sequencer_calls import AppendResult, Redirect
from duramen_sequencer.metadata_link import MetadataLink
from tests.sim.log_drivers import Answer, SimDriver, SimLane, Waiting, Watcher, bind
from tests.sim.metadata import Store, StoreSession
from tests.sim.network import Network
from tests.sim.options import Options
from tests.sim.processes import PATHS, BookieNode, Reply
from tests.sim.world import Node, World

_SCAN_INTERVAL_US: Final = 10 * SECOND
_SCAN_AFTER_CHANGE_US: Final = 200 * MS
_STOP_US: Final = 8 * SECOND


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
        watcher: Watcher,
    ) -> None:
        regions = sorted({region for region, _ in options.places})
        super().__init__(world, f"s{index}", regions[index % len(regions)])
        self.sequencer_id = SequencerId(self.name)
        self.watcher = watcher
        self.session = StoreSession(store, self, self._on_session, self._on_rosters)
        self.link = MetadataLink(self.session, PATHS, self.sequencer_id, self.name)
        self.drivers: dict[LogId, SimDriver] = {}
        self.around: Surroundings
        self._store = store
        self._network = network
        self._bookies = bookies
        self._seen: dict[str, BookieNode] = {}
        self._lanes: dict[Member, SimLane] = {}
        self._busy: dict[Member, SimLane] = {}
        self._sequencers: tuple[str, ...] = ()
        self._routing: dict[LogId, list[tuple[QueuedAppend, Answer]]] = {}
        self._ready: list[tuple[Reply, Any]] = []
        self._append_count = 0
        self._is_stopping = False
        self._log_count = len(options.logs)

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
        self.drivers, self._routing, self._lanes, self._busy = {}, {}, {}, {}
        self._seen = {}
        self._ready = []
        self._is_stopping = False
        self.session.open()
        self._store.sequencers[self.name] = self.session
        self._store.tell_rosters()
        self._on_rosters()
        self.world.note(self.name, "start")
        self.after(_SCAN_AFTER_CHANGE_US, self._scan)
        self.after(_SCAN_INTERVAL_US, self._scan_again)

    def crash(self) -> None:
        """Killed: the session expires later."""
        if self.is_up:
            self.end_life()
            self.world.note(self.name, "killed")

    def stop(self) -> None:
        """Close the open segments in peace, then end."""
        if self.is_up and not self._is_stopping:
            self._is_stopping = True
            self.world.note(self.name, "stopping")
            for driver in list(self.drivers.values()):
                driver.core.stop(self.world.now_us)
                driver.flush()
            self.kick()
            self.after(100 * MS, self._finish_stop, self.world.now_us + _STOP_US)

    def _finish_stop(self, until_us: int) -> None:
        busy = [d for d in self.drivers.values() if d.core.state is not LogState.IDLE]
        if busy and self.world.now_us < until_us:
            self.after(100 * MS, self._finish_stop, until_us)
            return
        self.world.counts["stopped in peace"] += not busy
        for driver in busy:
            driver.core.release()
            driver.flush()
        self.kick()
        self.session.end()
        self.end_life()
        self.world.note(self.name, "stopped")

    def _on_session(self, state: SessionState) -> None:
        self.around.is_metadata_reachable = state is SessionState.CONNECTED
        self.world.note(self.name, f"session {state.value}")
        if state is not SessionState.CONNECTED:
            return
        self._store.sequencers[self.name] = self.session
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
        candidates = []
        locations: dict[Member, Candidate] = dict(self.around.locations or {})
        for name, (candidate, _) in sorted(self._store.bookies.items()):
            self._seen[name] = self._bookies[name]
            candidates.append(candidate)
            locations[candidate.member] = candidate
        self.around.candidates = candidates
        self.around.locations = locations
        sequencers = tuple(sorted(self._store.sequencers))
        if sequencers != self._sequencers:
            self._sequencers = sequencers
            self.after(_SCAN_AFTER_CHANGE_US, self._scan)
        for driver in list(self.drivers.values()):
            driver.core.on_bookies_changed(self.world.now_us)
            driver.flush()
        self.kick()

    # --- Appends (as `log_host`) -----------------------------------------------------------------

    def serve(self, kind: str, body: Any, reply: Reply) -> None:
        assert kind == "append", kind
        touched: dict[LogId, SimDriver] = {}
        for row, log_id, batch, record_count, deadline_us in body:
            self._append_count += 1
            queued = QueuedAppend(
                self._append_count, batch, record_count, None, self.world.now_us // MS,
                self.world.now_us + deadline_us,
            )  # fmt: skip
            driver = self.submit(log_id, queued, _answer_row(self, reply, row))
            if driver is not None:
                touched[log_id] = driver
        for driver in touched.values():
            driver.flush()
        self.kick()

    def submit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> SimDriver | None:
        """Give an append to its log; returns the driver to flush if it is here already."""
        driver = self.drivers.get(log_id)
        if driver is not None and driver.core.is_owner:
            driver.append(append, answer)
            return driver
        if self._is_stopping:
            answer(DuramenError("server_draining", "this sequencer is stopping"))
            return None
        waiting = self._routing.get(log_id)
        if waiting is not None:
            waiting.append((append, answer))
        else:
            self._routing[log_id] = [(append, answer)]
            self.spawn(self.find_owner(log_id), bind(self._on_routed, log_id))
        return None

    def resubmit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> None:
        """Route anew what a log gave back unsent, unless its time is over."""
        if append.deadline_us <= self.world.now_us:
            answer(DuramenError("log_unavailable", "the log changed its owner"))
            return
        driver = self.submit(log_id, append, answer)
        if driver is not None:
            driver.flush()

    async def find_owner(self, log_id: LogId) -> AppendResult | None:
        """Where its appends belong; None: here. A refusal if that cannot be known."""
        try:
            owner = await self.link.read_owner(log_id)
            if owner is not None and owner.sequencer_id in self._sequencers:
                is_ours = owner.sequencer_id == self.sequencer_id
                return None if is_ours else Redirect(owner.sequencer_id, owner.data_url)
            first = await self._rank(log_id)
        except MetadataError as error:
            return DuramenError("metadata_unavailable", str(error))
        if first is None or first == self.name:
            return None
        return Redirect(SequencerId(first), first)

    async def _rank(self, log_id: LogId) -> str | None:
        stored = await self.session.get(PATHS.log(log_id))
        assert stored is not None
        log = read_log(stored.data)
        ranked = rank_nodes(f"{log.namespace}/{log.name}", dict.fromkeys(self._sequencers, 1.0))
        return ranked[0] if ranked else None

    def _on_routed(self, log_id: LogId, fate: AppendResult | None) -> None:
        waiting = self._routing.pop(log_id)
        if fate is not None:
            for _, answer in waiting:
                answer(fate)
            self.kick()
            return
        driver = self.drive(log_id)
        driver.core.take_over(self.world.now_us)
        self.world.counts["takeover asked"] += 1
        for append, answer in waiting:
            driver.append(append, answer)
        driver.flush()
        self.kick()

    def drive(self, log_id: LogId) -> SimDriver:
        """The log's driver, made if need be."""
        driver = self.drivers.get(log_id)
        if driver is None:
            driver = self.drivers[log_id] = SimDriver(self, log_id)
        return driver

    def disturb(self, log_id: LogId, what: str) -> None:
        """An operator's or another sequencer's request, at any time."""
        driver = self.drive(log_id)
        now_us = self.world.now_us
        match what:
            case "roll":
                driver.core.request_roll()
            case "close":
                driver.core.stop(now_us)
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
            racks = max(part.min_racks, part.min_regions)
            changed = part.model_copy(update={
                "ack_quorum": self.world.rng.randint(max(racks, 2), part.write_quorum),
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
        if self.session.session is SessionState.CONNECTED and not self._is_stopping:
            for number in range(self._log_count):
                self.spawn(self._close_if_orphan(LogId(number + 1)))

    async def _close_if_orphan(self, log_id: LogId) -> None:
        driver = self.drivers.get(log_id)
        if driver is not None and driver.core.state is not LogState.IDLE:
            return
        try:
            stored = await self.session.get(PATHS.log(log_id))
            assert stored is not None
            if not read_log(stored.data).unclosed_epochs:
                return
            owner = await self.link.read_owner(log_id)
            heir = await self._rank(log_id) if owner is None else owner.sequencer_id
        except MetadataError:
            return
        if heir == self.name and not self._is_stopping:
            self.world.counts["orphan found"] += 1
            self.disturb(log_id, "close orphan")

    # --- Calls -----------------------------------------------------------------------------------

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
