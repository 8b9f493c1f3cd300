"""Writer, recovery and sequencer of a small world: production cores with the thinnest driver.

`WriterMachine` runs the `LedgerWriter`, `RecoveryMachine` the `Recovery`, `SequencerMachine` a
whole `LogSequencer`. Each turns events into calls and effects into messages. Time passes only when
a timer fires, by as much as the core asked for.

Not here: bookies and store (`nodes.py`), which step comes next (`model.py`). Called by `model.py`
through `state.Automaton`. Source: services/sequencer (the driver's order), docs/explorer.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from duramen.core.placement import PlacementRule
from duramen.core.segment import Segment, Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import Ports, SequencerContext
from duramen.core.sequencer.effects import CommitOutcome, LogView, StoredEntry
from duramen.core.sequencer.epoch.segment_writer import AcknowledgedEntry, SegmentWriter
from duramen.core.sequencer.ledger_writer import LedgerWriter, WriterState
from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.core.sequencer.recovery import Recovery, RecoveryState
from duramen.core.sequencer.takeover.older_epochs import AnyRecovery
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    LedgerId,
    Member,
    SequencerId,
    epoch_of,
)
from duramen.units import SECOND
from tests.explore.nodes import LIFE, PAYLOADS, AnyShape, Shape, WriteTable
from tests.explore.state import Event, Out, ScriptedRandom, freeze
from tests.unit.core_fakes import LOG_ID

_FAR_US: Final = 10**15
"""A deadline that never comes."""

COMMIT_DELAY_US: Final = 1000

_AFTER_COVER: Final = (
    RecoveryState.SEALED, RecoveryState.DIGEST, RecoveryState.READ, RecoveryState.WRITE_BACK,
    RecoveryState.GUEST, RecoveryState.CLOSE, RecoveryState.DONE,
)  # fmt: skip

NUMBER_UNKNOWN: Final = -1
"""The sequence number of an early append."""


class ProcessFacts(NamedTuple):
    """What the choice of steps and the checks need to know of a process."""

    laps: tuple[tuple[int, int], ...]
    """Epochs that it writes and the last entry pushed; empty if none."""
    has_timer: bool
    is_over: bool
    """No event changes anything any more: what is under way to it need not be delivered."""
    started: int
    note: str
    is_quiet: bool = False
    """Without a timer it does nothing more, whatever comes."""
    eager: frozenset[str] = frozenset()
    """Kinds of answers whose delivery commutes with all that it may meet before, without timers."""
    stale: frozenset[str] = frozenset()
    """Kinds of answers that never change anything any more."""


class _Process:
    """A core of the sequencer with its clock, its scripted choices and its outbox."""

    def __init__(self, name: str, writes: WriteTable) -> None:
        self.name = name
        self.rng = ScriptedRandom()
        self.now_us = SECOND
        self.effects: list[fx.Effect] = []
        self.started = 0
        self.encoded: dict[tuple[int, int], int] = {}
        self._writes = writes
        self._token_count = 0

    def make_ports(self, shape: AnyShape) -> Ports:
        """What a part of a sequencer is given."""
        candidates = shape.candidates
        locations = {candidate.member: candidate for candidate in candidates}
        roster = dict.fromkeys(shape.members, True)
        return Ports(
            put=self.effects.append,
            new_token=self._new_token,
            new_nonce=lambda: f"{self.name}.{self.rng.getrandbits(96)}",
            rng=self.rng,
            locations=lambda: locations,
            candidates=lambda: candidates,
            roster=lambda: roster,
        )

    def _new_token(self) -> int:
        self._token_count += 1
        return self._token_count

    def encode_effects(self, effects: Sequence[fx.Effect]) -> list[Out]:
        """Effects as messages. Owed ranges go nowhere: they are never recorded here."""
        outs: list[Out] = []
        for effect in effects:
            match effect:
                case fx.SendAdd(member, ledger_id, entry, lac, payload, is_recovery):
                    row = (epoch_of(ledger_id), entry, lac, PAYLOADS.crc_of(payload), is_recovery)
                    outs.append(("send", member.bookie, "add", *row))
                case fx.SendWave(member, ledger_id, entry, lac, payload, is_recovery=is_recovery):
                    row = (epoch_of(ledger_id), entry, lac, PAYLOADS.crc_of(payload), is_recovery)
                    outs.append(("send", member.bookie, "wave", *row))
                case fx.SendDigest(member, ledger_id, first, last):
                    outs.append(("send", member.bookie, "digest", epoch_of(ledger_id), first, last))
                case fx.SendSeal(member, _, epoch):
                    outs.append(("send", member.bookie, "seal", epoch))
                case fx.SendRecoveryRead(member, ledger_id, entry, is_flexible):
                    kind = "fetch" if is_flexible else "read"
                    outs.append(("send", member.bookie, kind, *self.encode_read(ledger_id, entry)))
                case fx.SendLac(member, ledger_id, lac):
                    outs.append(("send", member.bookie, "lac", epoch_of(ledger_id), lac))
                case fx.ReadMetadata(token):
                    outs.append(("send", "store", "view", token))
                case fx.Commit(token, writes):
                    outs.append(("send", "store", "commit", token, self._writes.number(writes)))
                case fx.Complete(_, start, seq_num):
                    crc = self.encoded[start.epoch, start.entry]
                    outs.append(("ack", start.epoch, start.entry, crc, seq_num))
                case fx.CompleteEarly(_, start):
                    crc = self.encoded[start.epoch, start.entry]
                    outs.append(("ack", start.epoch, start.entry, crc, NUMBER_UNKNOWN))
        return outs

    def encode_read(self, ledger_id: LedgerId, entry: EntryId) -> tuple[int, int, int]:
        """Epoch, entry and the seal that the read carries (R14)."""
        epoch = epoch_of(ledger_id)
        return epoch, entry, epoch

    def clock_key(self) -> tuple[Hashable, ...]:
        """Counters that name tokens and nonces."""
        return self._token_count, self.rng.drawn_count, self.started


def member_of(bookie: str) -> Member:
    """The member of a bookie's name."""
    return Member(BookieId(bookie), LIFE)


def stored_entry(status: int, crc: int) -> StoredEntry | None:
    """The body that a read gave, if it gave one."""
    return PAYLOADS.entry_of(crc) if status == BookieStatus.OK else None


class WriterMachine(_Process):
    """The owner of epoch 1: a `LedgerWriter` that pushes entries when told."""

    kind: type[LedgerWriter] = LedgerWriter

    def __init__(self, name: str, shape: AnyShape, writes: WriteTable) -> None:
        super().__init__(name, writes)
        self.core = self.make_core(shape)

    def make_core(self, shape: AnyShape) -> SegmentWriter:
        """Of the segment that the shape begins with."""
        segment = shape.first_segment()
        assert isinstance(segment, Segment), segment
        return self.kind(
            segment,
            0,
            rule=PlacementRule(),
            commit_delay_us=COMMIT_DELAY_US,
            ports=self.make_ports(shape),
        )

    def handle(self, event: Event) -> list[Out]:
        """Entries to push, answers of bookies and store, timers."""
        core, now_us = self.core, self.now_us
        done: Sequence[AcknowledgedEntry] = ()
        match event:
            case ("start",):
                self.started += 1
                entry = core.lap + 1
                totals = Totals(entry + 1)
                payload = PAYLOADS.encode(f"e1n{entry} of {self.name}", totals)
                self.encoded[1, entry] = PAYLOADS.crc_of(payload)
                core.add(payload, totals, now_us)
            case (bookie, "add!" | "wave!", _, entry, status):
                done = core.on_add(member_of(bookie), entry, BookieStatus(status), now_us)
            case (bookie, "lac!", _, status, _, _):
                core.on_lac(member_of(bookie), BookieStatus(status), now_us)
            case ("store", "commit!", token, outcome):
                done = core.on_commit(token, CommitOutcome(outcome), now_us)
            case ("store", "view!", token, view):
                done = core.on_metadata(token, None if view is None else view.value, now_us)
            case ("timer",):
                self.now_us = max(now_us, core.wakeup_at_us() or 0)
                core.on_timer(self.now_us)
        core.validate()
        effects = list(self.effects)
        self.effects.clear()
        acks: list[Out] = [
            ("ack", 1, sent.entry, self.encoded[1, sent.entry], sent.entry) for sent in done
        ]
        return [*self.encode_effects(effects), *acks]

    def key(self) -> Hashable:
        """The whole core."""
        if self.core.state is WriterState.FENCED:
            return "fenced", self.started
        return self.clock_key(), freeze(self.core, self.now_us)

    def facts(self) -> ProcessFacts:
        """Of the writer."""
        core = self.core
        is_fenced = core.state is WriterState.FENCED
        has_timer = not is_fenced and core.wakeup_at_us() is not None
        return ProcessFacts(((1, core.lap),), has_timer, is_fenced, self.started, repr(core))


class RecoveryMachine(_Process):
    """One recoverer of epoch 1, which begins with the nodes as they are when it is started."""

    kind: type[Recovery] = Recovery

    def __init__(self, name: str, shape: AnyShape, writes: WriteTable) -> None:
        super().__init__(name, writes)
        self.ports = self.make_ports(shape)
        self.core: AnyRecovery | None = None

    def make_core(self, view: LogView) -> AnyRecovery:
        """Of the segment as it is when the recoverer begins."""
        ((segment, version),) = view.segments
        assert isinstance(segment, Segment), segment
        return self.kind(
            segment,
            version,
            view.log,
            view.log_version,
            rule=PlacementRule(),
            ports=self.ports,
            unix_ms=lambda _: 0,
        )

    def handle(self, event: Event) -> list[Out]:
        """The start, answers of bookies and store, timers."""
        core, now_us = self.core, self.now_us
        was_covered = core is not None and core.state in _AFTER_COVER
        match event:
            case ("start", view):
                self.started += 1
                core = self.core = self.make_core(view.value)
                core.start(now_us)
            case _:
                assert core is not None
                self.answer(core, event)
        core.validate()
        effects = list(self.effects)
        self.effects.clear()
        outs = self.encode_effects(effects)
        is_covered = core.state in _AFTER_COVER and core.state is not RecoveryState.DONE
        return [*outs, ("covered", 1)] if is_covered and not was_covered else outs

    def answer(self, core: AnyRecovery, event: Event) -> None:
        """An answer of a bookie or of the store, or a timer."""
        now_us = self.now_us
        match event:
            case (bookie, "seal!", _, status, lac, highest):
                core.on_seal(member_of(bookie), BookieStatus(status), lac, highest, now_us)
            case (bookie, "read!" | "fetch!", _, entry, status, crc):
                stored = stored_entry(status, crc)
                core.on_read(member_of(bookie), entry, BookieStatus(status), stored, now_us)
            case (bookie, "add!", _, entry, status):
                core.on_add(member_of(bookie), entry, BookieStatus(status), now_us)
            case ("store", "commit!", token, outcome):
                core.on_commit(token, CommitOutcome(outcome), now_us)
            case ("store", "view!", token, view):
                core.on_metadata(token, None if view is None else view.value, now_us)
            case ("timer",):
                self.now_us = max(now_us, core.wakeup_at_us() or 0)
                core.on_timer(self.now_us)

    def key(self) -> Hashable:
        """The whole core."""
        if self.core is not None and self.core.is_done:
            return "done", self.started
        return self.clock_key(), freeze(self.core, self.now_us)

    def facts(self) -> ProcessFacts:
        """Of the recovery."""
        core = self.core
        if core is None:
            return ProcessFacts((), False, False, self.started, "not started")
        has_timer = not core.is_done and core.wakeup_at_us() is not None
        return ProcessFacts((), has_timer, core.is_done, self.started, repr(core))


class _Timeless(SequencerContext):
    """A context in which the time of day stands still."""

    def unix_ms(self, now_us: int) -> int:
        """Always the same."""
        return 0


class SequencerMachine(_Process):
    """A whole `LogSequencer`: started, it takes the log over and has one append queued."""

    kind: type[LogSequencer] = LogSequencer

    def __init__(self, name: str, shape: Shape, writes: WriteTable) -> None:
        super().__init__(name, writes)
        context = _Timeless(SequencerId(name), self.rng, self._encode)
        context.candidates = shape.candidates
        context.locations = {candidate.member: candidate for candidate in shape.candidates}
        self.core = self.kind(LOG_ID, context)
        self._shape = shape
        self._stateless = shape.first_segment().closed(
            last_entry=NOTHING, totals=Totals(), start_seq_num=0, completed_unix_ms=0, nonce=""
        )

    def _encode(  # noqa: PLR0917 - the signature of `EncodeEntry`
        self,
        ledger_id: LedgerId,
        entry: EntryId,
        before: Totals,
        batches: Sequence[bytes],
        record_count: int,
        after: Totals,
        *,
        is_control: bool = False,
        has_state: bool = False,
        is_compressing: bool = False,
    ) -> bytes:
        text = b",".join(batches).decode()
        epoch = epoch_of(ledger_id)
        payload = PAYLOADS.encode(f"e{epoch}n{entry} of {self.name}: {text}", after)
        self.encoded[epoch, entry] = PAYLOADS.crc_of(payload)
        return payload

    def handle(self, event: Event) -> list[Out]:
        """The start, further appends, answers of bookies and store, timers."""
        core = self.core
        before = self._list_covered()
        if event == ("start",):
            self._append()
        else:
            self._answer(event)
        core.pump(self.now_us)
        effects = self._take_effects()
        while reads := [e for e in effects if isinstance(e, fx.ReadSegment)]:
            # Nobody has producers: what a rebuild wants to know is told at once.
            effects = [e for e in effects if not isinstance(e, fx.ReadSegment)]
            for read in reads:
                core.on_segment(read.token, self._stateless, self.now_us)
            core.pump(self.now_us)
            effects += self._take_effects()
        core.validate()
        covered = [("covered", epoch) for epoch in self._list_covered() if epoch not in before]
        # An acknowledgement in the same step comes after the cover that allows it.
        return [*covered, *self.encode_effects(effects)]

    def _take_effects(self) -> list[fx.Effect]:
        """What the core wants, whose own tokens are counted as they are seen."""
        effects = self.core.take_effects()
        for effect in effects:
            if isinstance(effect, fx.ReadMetadata | fx.Commit | fx.ReadSegment):
                self._token_count = max(self._token_count, effect.token)
        return effects

    def _list_covered(self) -> list[int]:
        return [r.epoch for r in self.core.older.recoveries if r.state in _AFTER_COVER]

    def _append(self) -> None:
        self.started += 1
        core = self.core
        if not core.is_owner:
            core.take_over(self.now_us)
        batch = f"{self.name}{self.started}".encode()
        core.append(QueuedAppend(self.started, batch, 1, None, 0, _FAR_US), self.now_us)

    def _answer(self, event: Event) -> None:
        core, now_us = self.core, self.now_us
        match event:
            case (bookie, "add!", epoch, entry, status):
                core.on_add(member_of(bookie), epoch, entry, BookieStatus(status), now_us)
            case (bookie, "lac!", epoch, status, _, _):
                core.on_lac(member_of(bookie), epoch, BookieStatus(status), now_us)
            case (bookie, "seal!", epoch, status, lac, highest):
                core.on_seal(member_of(bookie), epoch, BookieStatus(status), lac, highest, now_us)
            case (bookie, "read!", epoch, entry, status, crc):
                stored = stored_entry(status, crc)
                core.on_read(member_of(bookie), epoch, entry, BookieStatus(status), stored, now_us)
            case ("store", "commit!", token, outcome):
                core.on_commit(token, CommitOutcome(outcome), now_us)
            case ("store", "view!", token, view):
                core.on_metadata(token, None if view is None else view.value, now_us)
            case ("timer",):
                self.now_us = max(now_us, self._wake_us() or 0)
                core.on_timer(self.now_us)

    def _wake_us(self) -> int | None:
        """Without the ticks for deadlines and drains, which change nothing here."""
        core = self.core
        times = [core.changes.retry_at_us, core.older.wakeup_at_us()]
        if core.writer is not None:
            times.append(core.writer.wakeup_at_us())
        return min((time for time in times if time is not None), default=None)

    def key(self) -> Hashable:
        """The whole core with its parts."""
        return self.clock_key(), freeze(self.core, self.now_us), self._laps()

    def _laps(self) -> tuple[tuple[int, int], ...]:
        """Of the epoch that is written; with early appends of all that were, which O2 asks for."""
        writer = self.core.writer
        if self._shape.early_append:
            return tuple(sorted(dict(sorted(self.encoded)).items()))
        return () if writer is None else ((writer.segment.epoch, writer.lap),)

    def facts(self) -> ProcessFacts:
        """Of the sequencer."""
        core, laps = self.core, self._laps()
        return ProcessFacts(laps, self._wake_us() is not None, False, self.started, repr(core))
