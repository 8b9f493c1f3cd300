"""A small world for the cores of one log: virtual time, seeded faults, and a check of what is left.

The production cores (`LogSequencer` with its writer and recovery) run against fake bookies and a
fake metadata store; every effect is carried out and every result fed back, late, doubled, out of
order or lost. Same seed, same trace. Not the simulator of tests/sim: no disks, readers, proxies or
clients' retries; only what it takes to see an acknowledged append lost, doubled or moved.

Called by `test_log_sequencer.py`. Source: docs/protocol/metadata.md "The changes",
docs/protocol/write.md "Roll", docs/protocol/recovery.md, docs/testing.md "Invariants".
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import CommitOutcome, LogView, StoredEntry
from duramen.core.sequencer.exactly_once.stamps import HistoryEntry
from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, Member, SequencerId, epoch_of
from duramen.units import MS, SECOND
from duramen.wire.control_record import encode_control
from duramen.wire.entry import check_entry
from duramen.wire.entry_history import read_history
from tests.unit.core_fakes import LOG_ID, FakeBookie, FakeStore
from tests.unit.core_formatting import encode_plain_entry, format_effect, format_writes
from tests.unit.core_judgement import Fate, Judgement

SHAPES = (
    (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 4, 3), (5, 3, 2), (5, 5, 3), (3, 3, 3), (5, 5, 2),
    (3, 3, 1), (4, 2, 1),
)  # fmt: skip
FAULTS = (
    "crash bookie", "slow bookie", "wipe bookie", "takeover", "roll", "stop", "release",
    "crash sequencer", "pause sequencer", "metadata outage", "loss", "expire session", "damage",
    "crash bookie", "crash bookie", "slow bookie", "cut off", "suspend rolling", "reconfigure",
)  # fmt: skip


Request = fx.SendAdd | fx.SendWave | fx.SendDigest | fx.SendLac | fx.SendSeal | fx.SendRecoveryRead


@dataclass(slots=True)
class Node:
    """One sequencer process as far as one log is concerned."""

    index: int
    context: SequencerContext
    core: LogSequencer
    life: int = 0
    paused_until_us: int = 0
    cut_off: set[str] = field(default_factory=set)
    timer_at_us: int | None = None


class World:
    """Everything of one run; `run` plays it and `check` judges it.

    Args:
        copysets: `mixed`: the log's configuration changes between the two kinds.
    """

    def __init__(self, seed: int, *, fault_us: int = 6 * SECOND, copysets: str = "striped") -> None:
        self.copysets = copysets
        self.rng = random.Random(seed)
        self.now_us = 0
        self.counts: Counter[str] = Counter()
        self.fates: dict[int, Fate] = {}
        self.fault_us = fault_us
        self._digest = hashlib.sha256()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._loss_ratio = 0.0
        self._is_store_up = True
        self._wipes_left = 1
        self._dense_until_us = 0
        self._calm_us = self.rng.choice([200 * MS, 800 * MS, 2 * SECOND])
        self._unknown_ratio = self.rng.choice([0.02, 0.1, 0.4])
        self.story: list[str] = []
        self._record_story = False
        self.shape = self.rng.choice(SHAPES)
        ensemble, _, ack = self.shape
        count = self.rng.choice([ensemble, 5, 5])
        self.bookies = {f"b{i}": FakeBookie(f"b{i}") for i in range(count)}
        placement = self.rng.choice(["strict", "prefer"])
        config = parse_log_config({
            **self._draw_replication(placement, is_flexible=copysets != "striped"),
            "roll": {"interval": self.rng.choice(["1s", "1h"]), "idle_close": "3s",
                     "size": self.rng.choice(["1KiB", "1MiB"])},
            "owed_bytes_max": self.rng.choice(["200B", "64MiB"]),
            "commit": self.rng.choice(["lac", "lac", "control"]),
            "early_append": random.Random(f"early {seed}").random() < 0.5,
            "flush": {"policy": self.rng.choice(["immediate", "immediate", "periodic", "size"]),
                      "size": "300B"},
        })  # fmt: skip
        self.store = FakeStore(LogNode(LOG_ID, "ns", "log", config))
        self.members_lost: list[Member] = []
        self.owed: list[fx.PersistOwed] = []
        self._placed_at: dict[int, Node] = {}
        self.nodes = [self._make_node(i) for i in range(self.rng.randint(1, 3))]
        self._nemesis = [f for f in FAULTS if self.rng.random() < 0.6] or ["takeover"]
        if ack < 2:
            self._nemesis = [f for f in self._nemesis if f != "wipe bookie"]

    def _draw_replication(self, placement: str, *, is_flexible: bool) -> dict[str, Any]:
        ensemble, write, ack = self.shape
        if not is_flexible:
            return {"replication": {
                "ensemble_size": ensemble, "write_quorum": write, "ack_quorum": ack,
                "min_racks": min(2, ack), "placement": placement,
            }}  # fmt: skip
        return {
            "copysets": "flexible", "nodeset": {"tolerate": self.rng.randrange(ack)},
            "sticky": self.rng.choice(["on", "off"]),
            "window": {"stall": self.rng.choice(["1s", "1s", "10s"])},
            "replication": {"node": ack, "rack": min(2, ack), "extras": self.rng.randrange(2),
                            "placement": "prefer"},
        }  # fmt: skip

    @property
    def digest(self) -> str:
        """Of the whole trace: same seed, same digest."""
        return self._digest.hexdigest()

    # --- time ------------------------------------------------------------------------------------

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do something later."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._sequence, action))

    def advance(self, until_us: int) -> None:
        """Play events up to an instant."""
        while self._heap and self._heap[0][0] <= until_us:
            self.now_us, _, action = heapq.heappop(self._heap)
            action()
        self.now_us = until_us

    def report(self, what: str) -> None:
        """Add a line to the trace."""
        self._digest.update(f"{self.now_us} {what}\n".encode())
        if self._record_story:
            self.story.append(f"{self.now_us / 1e6:10.6f} {what}")

    def _delay_us(self) -> int:
        if self.rng.random() < 0.03:
            return self.rng.randrange(20 * MS, 400 * MS)
        return self.rng.randrange(200, 3 * MS)

    # --- run -------------------------------------------------------------------------------------

    def run(self, *, with_story: bool = False) -> World:
        """Faults, then peace, then one sequencer closes everything."""
        self._record_story = with_story
        self.at(0, self._append)
        self.at(self.rng.randrange(SECOND), self._disturb)
        self.advance(self.fault_us)
        self._heal()
        self.advance(self.now_us + 15 * SECOND)
        closer = self.rng.choice(self.nodes)
        self.counts["stall"] += sum(node.core.stall_count for node in self.nodes)
        for node in self.nodes:
            if node is not closer:
                self.feed(node, lambda core: core.release())
        for _ in range(20):
            if closer.core.state is LogState.IDLE:
                self.feed(closer, lambda core: core.take_over(self.now_us, close_only=True))
            else:
                self.feed(closer, lambda core: core.stop(self.now_us))
            self.advance(self.now_us + 5 * SECOND)
            if closer.core.state is LogState.IDLE and not self.store.log.unclosed_epochs:
                break
        return self

    def _heal(self) -> None:
        self.report("heal")
        self._loss_ratio = 0.0
        self._is_store_up = True
        for bookie in self.bookies.values():
            bookie.is_up, bookie.slow_us, bookie.doubt_ratio = True, 0, 0.0
        self._resume_rolling()
        for node in self.nodes:
            node.context.is_metadata_reachable = True
            node.cut_off.clear()
        self._list_bookies()

    def _append(self) -> None:
        if self.now_us >= self.fault_us:
            return
        node = self.rng.choice(self.nodes)
        append_id = len(self.fates) + 1
        batch = f"append {append_id} ".encode() + b"." * self.rng.randrange(100)
        fate = Fate(batch, self.rng.randint(1, 4), self.now_us)
        is_eager = self.rng.random() < 0.1 or self.store.owner is None
        if node.paused_until_us <= self.now_us and (node.core.is_owner or is_eager):
            self.fates[append_id] = fate
            self._placed_at[append_id] = node
            append = QueuedAppend(
                append_id, batch, fate.record_count, append_id if append_id % 3 else None,
                self.now_us // MS, self.now_us + 10 * SECOND,
            )  # fmt: skip

            def push(core: LogSequencer) -> None:
                if not core.is_owner:
                    core.take_over(self.now_us)
                core.append(append, self.now_us)

            self.feed(node, push)
        # Dense around each fault, when much is under way and little is acknowledged.
        gap_us = 2 * MS if self.now_us < self._dense_until_us else 120 * MS
        self.at(self.rng.randrange(gap_us), self._append)

    # --- faults ----------------------------------------------------------------------------------

    def _disturb(self) -> None:
        if self.now_us >= self.fault_us:
            return
        kind = self.rng.choice(self._nemesis)
        node = self.rng.choice(self.nodes)
        bookie = self.rng.choice(list(self.bookies.values()))
        span_us = self.rng.randrange(100 * MS, 5 * SECOND)
        self.counts[kind] += 1
        self.report(f"{kind} {bookie.name} s{node.index} {span_us}")
        match kind:
            case "crash bookie":
                self._crash_bookie(bookie, span_us)
            case "slow bookie":
                bookie.slow_us = self.rng.choice([300 * MS, 3 * SECOND])
                self.at(span_us, lambda: setattr(bookie, "slow_us", 0))
            case "wipe bookie" if self._wipes_left:
                self._wipes_left -= 1
                self.members_lost.append(bookie.member)
                bookie.entries, bookie.lacs, bookie.sealed = {}, {}, 0
                bookie.life += 1
                self._list_bookies()
            case "takeover":
                close_only = self.rng.random() < 0.3
                self.feed(node, lambda core: core.take_over(self.now_us, close_only=close_only))
            case "roll":
                self.feed(node, lambda core: core.request_roll())
            case "stop":
                self.feed(node, lambda core: core.stop(self.now_us))
            case "release":
                self.feed(node, lambda core: core.release())
            case "crash sequencer":
                self._crash_node(node)
            case "pause sequencer":
                node.paused_until_us = self.now_us + span_us
                if self.rng.random() < 0.5:
                    self._expire(node)
            case "metadata outage":
                self._set_store(False)
                self.at(span_us, lambda: self._set_store(True))
            case "loss":
                self._loss_ratio = self.rng.choice([0.02, 0.2])
                self.at(span_us, lambda: setattr(self, "_loss_ratio", 0.0))
            case "expire session":
                self._expire(node)
            case "cut off":
                node.cut_off.add(bookie.name)
                self.at(span_us, lambda: node.cut_off.discard(bookie.name))
            case "suspend rolling":
                for each in self.nodes:
                    each.context.is_rolling_suspended = True
                self.at(span_us, self._resume_rolling)
            case "reconfigure":
                self._reconfigure(node)
            case "damage":
                bookie.doubt_ratio = 0.7
                self.at(span_us, lambda: setattr(bookie, "doubt_ratio", 0.0))
        self._dense_until_us = self.now_us + self.rng.randrange(80 * MS)
        self.at(self.rng.randrange(20 * MS, self._calm_us), self._disturb)

    def _resume_rolling(self) -> None:
        for node in self.nodes:
            node.context.is_rolling_suspended = False

    def _reconfigure(self, told: Node) -> None:
        """Somebody changes the log's configuration; one sequencer is told, the others read it."""
        log = self.store.log
        config = log.config.model_copy(update={"commit": self.rng.choice(["lac", "control"])})
        if self.copysets == "mixed":
            drawn = self._draw_replication("prefer", is_flexible=self.rng.random() < 0.5)
            kept = config.to_json()
            for name in ("copysets", "nodeset", "sticky", "replication"):
                kept.pop(name, None)
            kept["window"].pop("stall", None)
            config = parse_log_config({**kept, **drawn})
        else:
            ensemble, write, ack = self.shape
            update = {"write_quorum": self.rng.randint(ack, write), "ensemble_size": ensemble}
            if config.is_flexible:
                update = {"extras": self.rng.randrange(2)}
            replication = config.replication.model_copy(update=update)
            config = config.model_copy(update={"replication": replication})
        version = log.config_version + 1
        news = replace(log, config=config, config_version=version, nonce=f"config {version}")
        assert self.store.commit((fx.SetLog(news, self.store.log_version),), SequencerId("admin"))
        self.at(self._delay_us(), lambda: self.feed(
            told, lambda core: core.on_config(config, version, self.now_us)))  # fmt: skip

    def _crash_bookie(self, bookie: FakeBookie, span_us: int) -> None:
        def restart() -> None:
            bookie.is_up = True
            self.at(self.rng.randrange(SECOND), self._list_bookies)

        bookie.is_up = False
        self.at(self.rng.randrange(2 * SECOND), self._list_bookies)
        self.at(span_us, restart)

    def _list_bookies(self) -> None:
        for node in self.nodes:
            up = [b for b in self.bookies.values() if b.is_up]
            node.context.candidates = [b.candidate for b in up]
            node.context.locations = {b.member: b.candidate for b in self.bookies.values()}
            node.context.serving = [b.serving for b in self.bookies.values()]
            node.context.roster = {b.member: True for b in up}
            self.feed(node, lambda core: core.on_bookies_changed(self.now_us))

    def _crash_node(self, node: Node) -> None:
        for append_id in self._waiting_at(node):
            self.fates[append_id].answer = fx.Fail(append_id, "append_uncertain", "crashed")
        self.nodes[node.index] = self._make_node(node.index, node.life + 1)
        self.at(self.rng.randrange(4 * SECOND), lambda: self._expire(node))

    def _waiting_at(self, node: Node) -> list[int]:
        waiting = [i for i, at in self._placed_at.items() if at is node]
        return [i for i in waiting if self.fates[i].answer is None]

    def _expire(self, node: Node) -> None:
        """The session of a sequencer ends; safety never depends on it."""
        owner = self.store.owner
        if owner is not None and owner.sequencer_id == node.context.sequencer_id:
            self.store.owner = None

    def _set_store(self, is_up: bool) -> None:
        self._is_store_up = is_up
        for node in self.nodes:
            node.context.is_metadata_reachable = is_up

    # --- cores and their effects -----------------------------------------------------------------

    def _make_node(self, index: int, life: int = 0) -> Node:
        context = SequencerContext(
            SequencerId(f"s{index}"), random.Random(self.rng.getrandbits(64)), encode_plain_entry,
            encode_control=encode_control,
        )  # fmt: skip
        context.candidates = [b.candidate for b in self.bookies.values() if b.is_up]
        context.locations = {b.member: b.candidate for b in self.bookies.values()}
        context.serving = [b.serving for b in self.bookies.values()]
        context.roster = {b.member: True for b in self.bookies.values() if b.is_up}
        context.is_metadata_reachable = self._is_store_up
        return Node(index, context, LogSequencer(LOG_ID, context), life)

    def feed(self, node: Node, event: Callable[[LogSequencer], None]) -> None:
        """One event for a core, unless it crashed; later if it is paused; then its effects."""
        if self.nodes[node.index] is not node:
            return
        if node.paused_until_us > self.now_us:
            self.at(node.paused_until_us - self.now_us, lambda: self.feed(node, event))
            return
        core = node.core
        before = self._states(core)
        event(core)
        core.pump(self.now_us)
        core.validate()
        after = self._states(core)
        self.counts["member suspended"] += core.writer is not None and bool(core.writer.suspended)
        if before != after:
            self.report(f"s{node.index} {core!r}")
            for old, new in zip(before, after, strict=True):
                if old != new:
                    self.counts[f"{old}→{new}"] += 1
        for effect in core.take_effects():
            self._carry_out(node, effect)
        self._set_timer(node)

    @staticmethod
    def _states(core: LogSequencer) -> tuple[str, str, str]:
        writer = "-" if core.writer is None else core.writer.state.value
        recovery = "-" if core.recovery is None else core.recovery.state.value
        return core.state.value, f"writer {writer}", f"recovery {recovery}"

    def _set_timer(self, node: Node) -> None:
        wake_us = node.core.wakeup_at_us(self.now_us)
        if wake_us is None or (node.timer_at_us is not None and node.timer_at_us <= wake_us):
            return
        at_us = node.timer_at_us = max(wake_us, self.now_us + 1)

        def fire() -> None:
            if node.timer_at_us == at_us:
                node.timer_at_us = None
                self.feed(node, lambda core: core.on_timer(self.now_us))

        self.at(at_us - self.now_us, fire)

    def _carry_out(self, node: Node, effect: fx.Effect) -> None:
        match effect:
            case (
                fx.SendAdd() | fx.SendWave() | fx.SendDigest() | fx.SendLac() | fx.SendSeal()
                | fx.SendRecoveryRead()
            ):  # fmt: skip
                self.report(f"s{node.index} {format_effect(effect)}")
                self._call(node, effect)
            case fx.ReadMetadata(token):
                self._read_store(node, token)
            case fx.Commit(token, writes):
                self._commit(node, token, writes)
            case fx.PersistOwed():
                self.counts["persist owed"] += 1
                if self._is_store_up:
                    self.owed.append(effect)
                    self.at(self._delay_us(), lambda: self.feed(
                        node, lambda core: core.on_owed_persisted(effect)))  # fmt: skip
            case fx.ReadSegment(token, epoch):
                self._read_segment_node(node, token, epoch)
            case fx.ReadHistory():
                self._read_history(node, effect)
            case fx.Complete() | fx.CompleteEarly() | fx.OldDuplicate() | fx.Fail() | fx.Yield():
                fate = self.fates[effect.append_id]
                assert fate.answer is None, f"answered twice: {fate} {effect}"
                fate.answer, fate.answered_us = effect, self.now_us
                self.counts[type(effect).__name__] += 1
                self.report(f"s{node.index} {effect}")
                self.on_answered(effect.append_id)

    def on_answered(self, append_id: int) -> None:
        """An append has its fate."""

    # --- bookies ---------------------------------------------------------------------------------

    def _call(self, node: Node, effect: Request) -> None:
        bookie = self.bookies[effect.member.bookie]

        def reply(status: BookieStatus, result: Any = None) -> None:
            self.feed(node, lambda core: self._report(core, effect, status, result))

        def arrive() -> None:
            if not bookie.is_up or bookie.name in node.cut_off:
                self.counts["unreachable"] += 1
                self.at(self._delay_us(), lambda: reply(BookieStatus.UNREACHABLE))
                return
            status, result = self._serve(bookie, effect)
            self.counts[f"{type(effect).__name__} {status.name}"] += 1
            delay_us = self._delay_us() + bookie.slow_us
            if self.rng.random() < self._loss_ratio:
                self.at(2 * SECOND, lambda: reply(BookieStatus.TIMEOUT))
            else:
                if delay_us > 2 * SECOND:
                    self.at(2 * SECOND, lambda: reply(BookieStatus.TIMEOUT))
                self.at(delay_us, lambda: reply(status, result))

        if self.rng.random() < self._loss_ratio:
            self.at(2 * SECOND, lambda: reply(BookieStatus.TIMEOUT))
            return
        self.at(self._delay_us(), arrive)
        if self.rng.random() < 0.01:
            self.at(self._delay_us(), arrive)

    def _serve(self, bookie: FakeBookie, effect: Request) -> tuple[BookieStatus, Any]:
        if effect.member != bookie.member:
            return BookieStatus.WRONG_INCARNATION, None
        match effect:
            case fx.SendAdd():
                return bookie.add(effect), None
            case fx.SendWave():
                return bookie.add_wave(effect), None
            case fx.SendDigest():
                return BookieStatus.OK, bookie.digest(effect)
            case fx.SendLac():
                return bookie.lac(effect), None
            case fx.SendSeal(_, _, epoch):
                return BookieStatus.OK, bookie.seal(epoch)
            case fx.SendRecoveryRead(_, ledger_id, entry):
                bookie.seal(epoch_of(ledger_id))
                if self.rng.random() < bookie.doubt_ratio:
                    return BookieStatus.UNKNOWN, None
                payload = bookie.entries.get(ledger_id, {}).get(entry)
                if payload is None:
                    return BookieStatus.NO_ENTRY, None
                return BookieStatus.OK, self._stored(payload)
        raise AssertionError(effect)

    def _report(
        self, core: LogSequencer, effect: fx.Effect, status: BookieStatus, result: Any
    ) -> None:
        now_us = self.now_us
        match effect:
            case fx.SendAdd(member, ledger_id, entry) | fx.SendWave(member, ledger_id, entry):
                core.on_add(member, epoch_of(ledger_id), entry, status, now_us)
            case fx.SendDigest(member, ledger_id):
                core.on_digest(member, epoch_of(ledger_id), status, result, now_us)
            case fx.SendLac(member, ledger_id):
                core.on_lac(member, epoch_of(ledger_id), status, now_us, effect.round_id)
            case fx.SendSeal(member, _, epoch):
                lac, highest = result or (NOTHING, NOTHING)
                core.on_seal(member, epoch, status, lac, highest, now_us)
            case fx.SendRecoveryRead(member, ledger_id, entry):
                core.on_read(member, epoch_of(ledger_id), entry, status, result, now_us)

    @staticmethod
    def _stored(payload: bytes) -> StoredEntry:
        info = check_entry(payload)
        return StoredEntry(
            payload, info.totals, info.has_state, info.record_count, zlib.crc32(payload)
        )

    # --- history ---------------------------------------------------------------------------------

    def _read_segment_node(self, node: Node, token: int, epoch: Epoch) -> None:
        def reply() -> None:
            is_there = self._is_store_up and epoch >= self.store.log.first_live_epoch
            found = self.store.segments[epoch][0] if is_there else None
            self.feed(node, lambda core: core.on_segment(token, found, self.now_us))

        self.at(self._delay_us(), reply)

    def _read_history(self, node: Node, effect: fx.ReadHistory) -> None:
        """The first replica that is up and has the entry, some entries of it."""

        def reply() -> None:
            entries = self._find_history(node, effect)
            self.counts["history read" if entries else "history not read"] += 1
            self.feed(node, lambda core: core.on_history(effect.token, entries, self.now_us))

        self.at(self._delay_us(), reply)

    def _find_history(self, node: Node, effect: fx.ReadHistory) -> list[HistoryEntry] | None:
        segment = effect.segment
        for member in segment.list_holders(effect.first):
            bookie = self.bookies[member.bookie]
            held = bookie.entries.get(segment.ledger_id, {})
            if bookie.is_up and bookie.member == member and bookie.name not in node.cut_off:
                last = min(effect.last, effect.first + self.rng.randrange(6))
                numbers = map(EntryId, range(effect.first, last + 1))
                payloads = [held[i] for i in itertools.takewhile(held.__contains__, numbers)]
                if payloads:
                    is_headers_only = effect.is_headers_only
                    return [self.history_of(p, is_headers_only) for p in payloads]
        return None

    def history_of(self, payload: bytes, is_headers_only: bool) -> HistoryEntry:
        """What an entry says; stand-ins for batches have no producers."""
        return read_history(payload, is_header_only=is_headers_only)

    # --- metadata --------------------------------------------------------------------------------

    def _read_store(self, node: Node, token: int) -> None:
        """The log node first, then the segments that it names, then the owner: not atomic."""

        def reply(view: LogView | None) -> None:
            self.at(self._delay_us(), lambda: self.feed(
                node, lambda core: core.on_metadata(token, view, self.now_us)))  # fmt: skip

        def read_log() -> None:
            if not self._is_store_up or self.rng.random() < self._loss_ratio:
                self.counts["metadata read failed"] += 1
                reply(None)
                return
            log, version = self.store.log, self.store.log_version
            gap_us = self.rng.choice([0, 0, 0, self._delay_us()])
            self.at(gap_us, lambda: read_segments(log, version))

        def read_segments(log: LogNode, version: int) -> None:
            segments = tuple(self.store.segments[epoch] for epoch in log.unclosed_epochs)
            if any(segment.is_closed for segment, _ in segments):
                self.counts["torn view"] += 1
            reply(LogView(log, version, segments, self.store.owner))

        self.at(self._delay_us(), read_log)

    def _commit(self, node: Node, token: int, writes: tuple[fx.Write, ...]) -> None:
        name = node.context.sequencer_id

        def reply(outcome: CommitOutcome) -> None:
            self.counts[f"commit {outcome.name}"] += 1
            self.at(self._delay_us(), lambda: self.feed(
                node, lambda core: core.on_commit(token, outcome, self.now_us)))  # fmt: skip

        def apply() -> CommitOutcome:
            done = self.store.commit(writes, name)
            self.report(f"s{node.index} commit {token} {done} {format_writes(writes)}")
            return CommitOutcome.APPLIED if done else CommitOutcome.CONFLICT

        def arrive() -> None:
            fate = self.rng.random()
            if not self._is_store_up:
                unsent = fate < 0.3
                reply(CommitOutcome.UNAVAILABLE if unsent else CommitOutcome.UNKNOWN)
                if fate > 0.8:
                    self.counts["unknown, applied later"] += apply() is CommitOutcome.APPLIED
            elif fate < self._unknown_ratio * 0.4:
                self.counts["unknown, applied"] += apply() is CommitOutcome.APPLIED
                reply(CommitOutcome.UNKNOWN)
            elif fate < self._unknown_ratio * 0.8:
                reply(CommitOutcome.UNKNOWN)
                self.at(self.rng.randrange(800 * MS), late)
            elif fate < self._unknown_ratio:
                self.counts["unknown, never applied"] += 1
                reply(CommitOutcome.UNKNOWN)
            else:
                reply(apply())

        def late() -> None:
            self.counts["unknown, applied later"] += apply() is CommitOutcome.APPLIED

        self.at(self._delay_us(), arrive)

    # --- judgement -------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that everything is closed, whole, and where it was acknowledged."""
        Judgement(
            self.store, self.bookies, members_lost=self.members_lost, fates=self.fates,
            counts=self.counts, is_repeated=self.is_repeated,
        ).check()  # fmt: skip

    def is_repeated(self, append_id: int) -> bool:
        """Whether another append has the same batch: what one was refused, the other may store."""
        return False
