"""The small world of `core_world` with producers, conditions and tokens among its appends.

Each producer sends one batch after the other, repeats what is uncertain, refused for now or given
back until it is in the log, at whatever sequencer, and now and then repeats what was acknowledged.
Retention truncates every closed segment soon, and gives up whatever it may.
Batches are stand-ins, so what a rebuild reads of them is looked up, not parsed.

Called by `test_exactly_once_world.py`. Source: docs/protocol/write.md "Exactly once",
docs/testing.md "Invariants".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial

from duramen.core.life.retention import carry_out, judge
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.exactly_once.stamps import (
    HistoryEntry,
    Stamp,
    StampedBatch,
)
from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.ids import Epoch, SequencerId
from duramen.units import MS, SECOND
from duramen.wire.entry import HEADER_BYTES, read_entry_info
from tests.unit.core_judgement import Fate
from tests.unit.core_world import Node, World

_RETRIED = (
    "append_uncertain", "log_unavailable", "metadata_unavailable", "not_enough_bookies",
    "overloaded", "window_full",
)  # fmt: skip
_COUNTS = (1, 2, 3)


@dataclass(slots=True)
class Sender:
    """One producer and the batch that it tries to append."""

    name: str
    epoch: int = 0
    sequence: int = 0
    batch: bytes = b""
    record_count: int = 1
    waiting: set[int] = field(default_factory=set)
    done: dict[Stamp, fx.Complete | None] = field(default_factory=dict)

    @property
    def stamp(self) -> Stamp:
        """Of the batch that is tried."""
        return Stamp(self.name, self.epoch, self.sequence)


class ProducerWorld(World):
    """Producers beside the plain appends of `World`."""

    def __init__(self, seed: int, *, fault_us: int = 6 * SECOND, copysets: str = "striped") -> None:
        super().__init__(seed, fault_us=fault_us, copysets=copysets)
        self.senders = [Sender(f"p{i}") for i in range(self.rng.randint(1, 3))]
        self.tries: dict[int, tuple[Sender, Stamp]] = {}
        self.stamps: dict[bytes, tuple[Stamp, int]] = {}
        kept = self.rng.choice([1, 2, 64])
        config = self.store.log.config
        producers = config.producers.model_copy(update={"results_kept": kept})
        retention = config.retention.model_copy(update={"age": None, "truncated": 0})
        config = config.model_copy(update={"producers": producers, "retention": retention})
        self.store.log = replace(self.store.log, config=config)
        for sender in self.senders:
            self.at(self.rng.randrange(200 * MS), partial(self._produce, sender))
        self.at(self.rng.randrange(500 * MS), self._retain)

    # --- retention -------------------------------------------------------------------------------

    def _retain(self) -> None:
        """Truncate all that is closed, and give up at once what retention allows to be given up."""
        if self.now_us < self.fault_us + 10 * SECOND:
            self.at(self.rng.randrange(SECOND), self._retain)
        log = self.store.log
        if not self._is_store_up or not log.last_clean_epoch:
            return
        unix_ms = self.now_us // MS
        if log.trim < log.closed_end:
            end = log.closed_end
            log = log.with_trim(end, release=end, unix_ms=unix_ms, nonce="trim")
        epochs = range(log.first_live_epoch, log.last_clean_epoch + 1)
        closed = [self.store.segments[Epoch(epoch)][0] for epoch in epochs]
        verdict = judge(log, closed, closed, unix_ms)
        log = carry_out(log, verdict, now_unix_ms=unix_ms, nonce="retention") or log
        given_up_count = log.first_live_epoch - self.store.log.first_live_epoch
        self.counts["segments given up"] += given_up_count
        self.counts["segments kept for a rebuild"] += log.truncated_below > log.first_live_epoch
        if log is not self.store.log:
            write = fx.SetLog(log, self.store.log_version)
            assert self.store.commit((write,), SequencerId("retention"))

    # --- producers -------------------------------------------------------------------------------

    def _produce(self, sender: Sender) -> None:
        """Send the next batch, or the same again; sometimes one that is in the log already."""
        if self.now_us >= self.fault_us + 10 * SECOND:
            return
        stamp = sender.stamp
        if stamp not in sender.done and not sender.batch:
            sender.batch = f"append of {sender.name}/{sender.epoch}/{sender.sequence} ".encode()
            sender.record_count = self.rng.choice(_COUNTS)
            self.stamps[sender.batch] = (stamp, sender.record_count)
        self._try(sender, stamp, sender.batch, sender.record_count)
        if self.rng.random() < 0.1:
            self._try(sender, stamp, sender.batch, sender.record_count)
        if sender.done and self.rng.random() < 0.1:
            old = self.rng.choice(list(sender.done))
            batch = f"append of {old.producer_id}/{old.epoch}/{old.sequence} ".encode()
            if old.epoch == sender.epoch:
                self._try(sender, old, batch, self.stamps[batch][1])
        self.at(self.rng.randrange(200 * MS), lambda: self._produce(sender))

    def _try(self, sender: Sender, stamp: Stamp, batch: bytes, record_count: int) -> None:
        node = self.rng.choice(self.nodes)
        if len(sender.waiting) > 3 or node.paused_until_us > self.now_us:
            return
        is_eager = self.rng.random() < 0.3 or self.store.owner is None
        if not node.core.is_owner and not is_eager:
            return
        append_id = len(self.fates) + 1
        self.fates[append_id] = Fate(batch, record_count, self.now_us)
        self.tries[append_id] = (sender, stamp)
        self._placed_at[append_id] = node
        sender.waiting.add(append_id)
        append = QueuedAppend(
            append_id, batch, record_count, None, self.now_us // MS, self.now_us + 5 * SECOND,
            stamp=stamp,
        )  # fmt: skip
        self.feed(node, lambda core: self._push(core, append))

    def _push(self, core: LogSequencer, append: QueuedAppend) -> None:
        if not core.is_owner:
            core.take_over(self.now_us)
        core.append(append, self.now_us)

    def _crash_node(self, node: Node) -> None:
        waiting = self._waiting_at(node)
        super()._crash_node(node)
        for append_id in waiting:
            self.on_answered(append_id)

    def on_answered(self, append_id: int) -> None:
        """Go on with the next batch once this one is in the log."""
        if append_id not in self.tries:
            return
        sender, stamp = self.tries[append_id]
        sender.waiting.discard(append_id)
        answer = self.fates[append_id].answer
        if isinstance(answer, fx.Fail):
            self.counts[f"stamped {answer.code}"] += 1
            late = answer.code == "producer_fenced" and stamp.epoch < sender.epoch
            assert answer.code in _RETRIED or late, f"{stamp}: {answer}"
        elif isinstance(answer, fx.Complete | fx.OldDuplicate):
            self._note_done(sender, stamp, answer)

    def _note_done(
        self, sender: Sender, stamp: Stamp, answer: fx.Complete | fx.OldDuplicate
    ) -> None:
        place = answer if isinstance(answer, fx.Complete) else None
        self.counts["duplicate"] += place is not None and place.is_duplicate
        self.counts["duplicate without positions"] += place is None
        known = sender.done.get(stamp)
        if known is not None and place is not None:
            assert (known.start, known.seq_num) == (place.start, place.seq_num), (known, place)
        sender.done[stamp] = known or place
        if stamp == sender.stamp:
            sender.batch = b""
            if self.rng.random() < 0.05:
                sender.epoch, sender.sequence = sender.epoch + 1, 0
            else:
                sender.sequence += 1

    # --- what a rebuild reads --------------------------------------------------------------------

    def history_of(self, payload: bytes, is_headers_only: bool) -> HistoryEntry:
        """As `wire.entry_history`, for the stand-ins of batches."""
        info = read_entry_info(payload)
        if is_headers_only or info.is_control or not info.has_state:
            return super().history_of(payload, is_headers_only)
        by_batch = {fate.batch: fate.record_count for fate in self.fates.values()}
        stamped = []
        slot = 0
        for batch in _split(payload[HEADER_BYTES:]):
            if batch in self.stamps:
                stamp, count = self.stamps[batch]
                stamped.append(StampedBatch(stamp, slot, info.first_position + slot, count, 0))
            slot += by_batch[batch]
        assert slot == info.record_count
        return HistoryEntry(info.entry_id, True, False, None, tuple(stamped))

    # --- judgement -------------------------------------------------------------------------------

    def is_repeated(self, append_id: int) -> bool:
        """Every batch of a producer may be."""
        return append_id in self.tries

    def check(self) -> None:
        """As `World`, and each stamped batch that a client knows about lies where it was told."""
        super().check()
        for sender in self.senders:
            self.counts["stamped done"] += len(sender.done)


def _split(body: bytes) -> list[bytes]:
    return re.findall(rb"append (?:(?!append ).)*", body, re.DOTALL)
