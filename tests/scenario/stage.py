"""The stage: named bookies, sequencers and readers, a metadata store, a clock, messages by hand.

The production cores put out effects; the stage turns each into a call in flight and delivers it
only when told to. Time passes only in `advance`. Everything that happens is said as a line of
(actor, text), in order; the interpreter makes the scenario's output of them. Not a simulator:
nothing is random, nothing is checked but the cores' own invariants (`validate`).

Called by the interpreter. Source: ARCHITECTURE.md "Three layers", docs/scenarios.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, assert_never

from duramen.config import LogConfig
from duramen.core.flexible.recovery import Digest
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.reading import effects as rx
from duramen.core.reading import reader as rd
from duramen.core.reading.range_read import AskNode, NodeAnswer
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import CommitOutcome, StoredEntry
from duramen.core.sequencer.exactly_once.stamps import SetToken, TokenRecord
from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, LogId, SequencerId, epoch_of
from duramen.limits import APPEND_TIMEOUT_US, READ_TIMEOUT_US, SEAL_TIMEOUT_US, STORE_TIMEOUT_US
from duramen.units import format_duration
from duramen.wire.bookie_calls import ReadAnswer
from duramen.wire.control_record import encode_control
from duramen.wire.entry import check_entry
from tests.combinations import FIRST, Combination
from tests.scenario.actors import (
    Call,
    Leg,
    StageBookie,
    StageReader,
    StageSequencer,
    answer_of,
)
from tests.scenario.formatting import (
    Fate,
    Inquiry,
    Request,
    format_answer,
    format_asked,
    format_body,
    format_call,
    format_delivery,
    format_fate,
    format_member,
    format_segment,
    format_wait,
    format_write,
    kind_of,
)
from tests.scenario.history import read_disks, read_stamp
from tests.scenario.log_forms import make_config
from tests.scenario.ranges import filter_call, read_nodes
from tests.unit.core_fakes import FakeStore

LOG_ID = LogId(9)
STORE = "zk"
NODES = ""
"""All nodes of a flexible segment, as a reader asks them."""
CLIENT = "client"
"""Asks bookies by hand (`ask`); its answers are only told."""

_STEPS_MAX = 10_000
"""Far above what any scenario needs: a core that never comes to rest is a finding."""


class Line(NamedTuple):
    """One line of output; `is_fate`: what a client gets to know, told even by `quiet`."""

    actor: str
    text: str
    is_fate: bool = False


class Stage:
    """Everything of one scenario."""

    def __init__(self, combination: Combination = FIRST) -> None:
        self.combination = combination
        self._log_options: dict[str, str] = {}
        self.now_us = 0
        self.lines: list[Line] = []
        self.bookies: dict[str, StageBookie] = {}
        self.sequencers: dict[str, StageSequencer] = {}
        self.readers: dict[str, StageReader] = {}
        self.calls: list[Call] = []
        self.late: list[Call] = []
        self.names: dict[int, str] = {}
        self.roster: list[str] = []
        self._store: FakeStore | None = None
        self._call_count = 0

    @property
    def store(self) -> FakeStore:
        """The metadata of the one log."""
        assert self._store is not None, "`log` comes first"
        return self._store

    def say(self, actor: str, text: str, *, is_fate: bool = False) -> None:
        """Add a line of output."""
        self.lines.append(Line(actor, text, is_fate))

    # --- actors ----------------------------------------------------------------------------------

    def make_log(self, options: Mapping[str, str]) -> None:
        """Create the log node."""
        self._log_options = dict(options)
        config = make_config(options, self.combination)
        self._store = FakeStore(LogNode(LOG_ID, "ns", "log", config))

    def sequencer(self, name: str) -> StageSequencer:
        """The sequencer of that name, made when it is first spoken of."""
        if name not in self.sequencers:
            self.sequencers[name] = StageSequencer(name, LOG_ID)
            self._list_bookies(self.sequencers[name])
        return self.sequencers[name]

    def set_roster(self, names: Sequence[str]) -> None:
        """The bookies that take new data, from now on."""
        self.roster = list(names)
        for node in self.sequencers.values():
            if node.is_up and STORE not in node.cut_off:
                self._list_bookies(node)
                self.feed(node, lambda core: core.on_bookies_changed(self.now_us))

    def _list_bookies(self, node: StageSequencer) -> None:
        node.context.candidates = [self.bookies[name].candidate for name in self.roster]
        node.context.locations = {b.member: b.candidate for b in self.bookies.values()}
        node.context.serving = [self.bookies[name].serving for name in self.roster]
        node.context.roster = {b.member: b.name in self.roster for b in self.bookies.values()}

    def add_reader(self, name: str, position: tuple[Epoch, EntryId], *, is_following: bool) -> None:
        """A reader that is near to the first bookie."""
        here = next(iter(self.bookies.values())).place
        reader = StageReader(name, position, here, is_following=is_following)
        reader.order.on_places({b.member.bookie: b.place for b in self.bookies.values()})
        self.readers[name] = reader
        self.feed_reader(reader, lambda core: None)

    def append(
        self, node: StageSequencer, name: str, *, match: int | None, token: str | None
    ) -> None:
        """One append; `name*3` has three records, `name@p/0/7` is batch 7 of producer p."""
        body, _, count = name.partition("*")
        append_id = len(self.names) + 1
        self.names[append_id] = body
        stamp = read_stamp(body)
        text = body if stamp is None else name
        append = QueuedAppend(
            append_id, f"{text} ".encode(), int(count or 1), None, self.now_us // 1000,
            self.now_us + APPEND_TIMEOUT_US, None, stamp, match, token,
        )  # fmt: skip
        self.feed(node, lambda core: core.append(append, self.now_us))

    def fence(self, node: StageSequencer, token: str, expected: str | None) -> None:
        """The command that sets the fencing token."""
        append_id = len(self.names) + 1
        self.names[append_id] = f"token {token or 'none'}"
        record = encode_control(TokenRecord(token))
        append = QueuedAppend(
            append_id, record, 0, None, 0, self.now_us + APPEND_TIMEOUT_US,
            command=SetToken(token, expected),
        )  # fmt: skip
        self.feed(node, lambda core: core.append(append, self.now_us))

    def reconfigure(self, options: Mapping[str, str]) -> LogConfig:
        """An operator's compare-and-set on the log node: the options of `log` that change."""
        log = self.store.log
        self._log_options |= options
        config = make_config(self._log_options, self.combination)
        version = log.config_version + 1
        changed = replace(log, config=config, config_version=version, nonce=f"config {version}")
        assert self.store.commit((fx.SetLog(changed, self.store.log_version),), SequencerId("op"))
        self.say(STORE, f"configuration {version}")
        return config

    # --- sequencers and readers ------------------------------------------------------------------

    def feed(self, node: StageSequencer, event: Callable[[LogSequencer], None]) -> None:
        """One event for a sequencer, as its driver does it: event, pump, effects, timer."""
        if not node.is_up:
            return
        before = node.states()
        event(node.core)
        node.core.pump(self.now_us)
        node.core.validate()
        parts = zip(("log", "writer", "recovery"), before, node.states(), strict=True)
        for part, old, new in parts:
            if old != new:
                self.say(node.name, f"{part} {old} → {new}")
        self._carry_out(node.name, node.core.take_effects())
        wake_us = node.core.wakeup_at_us(self.now_us)
        node.timer_at_us = None if wake_us is None else max(wake_us, self.now_us)

    def feed_reader(self, reader: StageReader, event: Callable[[rd.Reader], None]) -> None:
        """One event for a reader; its consumer takes what is delivered at once."""
        event(reader.core)
        while effects := reader.core.take_effects():
            for effect in effects:
                self._carry_out_reading(reader, effect)

    def _carry_out(self, sender: str, effects: Iterable[fx.Effect]) -> None:
        """Make calls of effects; the same call to several members is one line."""
        text, members = "", ""
        for effect in effects:
            said = ""
            match effect:
                case (
                    fx.SendAdd() | fx.SendWave() | fx.SendSeal() | fx.SendDigest()
                    | fx.SendRecoveryRead() | fx.SendLac()
                ):  # fmt: skip
                    said = format_call(effect)
                    if said == text:
                        members += f" {format_member(effect.member)}"
                    else:
                        self._say_sent(sender, text, members)
                        members = format_member(effect.member)
                    self.open_call(sender, effect.member.bookie, effect)
                case _:
                    self._say_sent(sender, text, members)
                    if isinstance(effect, Fate):
                        name = self.names[effect.append_id]
                        self.say(sender, format_fate(effect, name), is_fate=True)
                    else:
                        # Which replica answers a rebuild is no story: the stage reads the disks.
                        asked = "bookies" if isinstance(effect, fx.ReadHistory) else STORE
                        self.say(sender, f"{format_call(effect)} → {asked}")
                        self.open_call(sender, STORE, effect)
            text = said
        self._say_sent(sender, text, members)

    def _say_sent(self, sender: str, text: str, members: str) -> None:
        if text:
            self.say(sender, f"{text} → {members}")

    def _carry_out_reading(self, reader: StageReader, effect: rx.Effect) -> None:
        match effect:
            case rx.SendRead():
                self.say(reader.name, f"{format_call(effect)} → {format_member(effect.member)}")
                self.open_call(reader.name, effect.member.bookie, effect)
            case rx.CancelRead(read_id):
                for call in [c for c in self.calls if c.sender == reader.name]:
                    if isinstance(call.request, rx.SendRead) and call.request.read_id == read_id:
                        self.say(reader.name, f"cancels {format_call(call.request)}")
                        if call.target != NODES:
                            self.bookies[call.target].abandon(call)
                        self._end(call)
            case rx.WatchMetadata() | rx.ConfirmAbsence():
                self.say(reader.name, f"{format_call(effect)} → {STORE}")
                self.open_call(reader.name, STORE, effect)
            case rx.SetTimer(at_us):
                self.say(reader.name, format_wait(at_us - self.now_us))
                reader.timer_at_us = at_us
            case rx.Deliver(entries=entries):
                self.say(reader.name, format_delivery(effect), is_fate=True)
                reader.core.on_consumed(sum(len(body) for _, body in entries), self.now_us)
            case rx.Skip(epoch, entry):
                self.say(reader.name, f"skips to e{epoch}n{entry}", is_fate=True)
            case rx.Gap(epoch, first, last):
                self.say(reader.name, f"gap e{epoch}n{first} … {last}", is_fate=True)
            case _:
                assert_never(effect)

    # --- calls -----------------------------------------------------------------------------------

    def open_call(self, sender: str, target: str, request: Request | Inquiry) -> Call:
        """A message is on its way."""
        self._call_count += 1
        match request:
            case fx.SendAdd() | fx.SendWave() | fx.SendLac():
                timeout_us: int | None = STORE_TIMEOUT_US
            case fx.SendSeal():
                timeout_us = SEAL_TIMEOUT_US
            case fx.SendDigest() | fx.SendRecoveryRead():
                timeout_us = READ_TIMEOUT_US
            case rx.SendRead():
                timeout_us = request.timeout_us
            case _:
                timeout_us = None
        deadline_us = None if timeout_us is None or sender == CLIENT else self.now_us + timeout_us
        call = Call(self._call_count, sender, target, request, deadline_us)
        self.calls.append(call)
        return call

    def deliver(self, call: Call, *, request_only: bool = False) -> None:
        """A request arrives and, if it can be answered, its answer too; or an answer arrives."""
        if call.target == STORE:
            self.deliver_to_store(call)
            return
        if call.target == NODES:
            self._read_nodes(call)
            return
        if call.leg is Leg.REQUEST:
            bookie = self.bookies[call.target]
            if not bookie.is_up or self._is_cut(call):
                self._end(call)
                self._report(call, answer_of(BookieStatus.UNREACHABLE))
                return
            bookie.serve(call, self.now_us)
            self._report_waiting(bookie)
        if call.leg is Leg.ANSWER and not request_only:
            assert call.answer is not None
            self._end(call)
            self._report(call, call.answer)
        elif call.leg is Leg.SERVED and not request_only:
            self.say(
                call.target, f"{format_asked(self._bookie_call(call))} → {call.sender}: not yet"
            )

    def _report_waiting(self, bookie: StageBookie) -> None:
        """Long polls that something else has answered: their answers travel at once."""
        for call in [c for c in self.calls if c.target == bookie.name and c.leg is Leg.ANSWER]:
            if isinstance(call.request, rx.SendRead) and call.answer is not None:
                self._end(call)
                self._report(call, call.answer)

    def sync(self, bookie: StageBookie) -> None:
        """The disk syncs; answers that waited for it are in flight then."""
        bookie.sync(self.now_us)
        self._report_waiting(bookie)

    def _is_cut(self, call: Call) -> bool:
        node = self.sequencers.get(call.sender)
        return node is not None and call.target in node.cut_off

    def _end(self, call: Call) -> None:
        call.leg = Leg.DONE
        if call in self.calls:
            self.calls.remove(call)

    @staticmethod
    def _bookie_call(call: Call) -> Request:
        request = call.request
        assert not isinstance(request, Inquiry), request
        return request

    def _report(self, call: Call, answer: ReadAnswer) -> None:
        """Report an answer, or what stands for one, to who asked."""
        request = self._bookie_call(call)
        said = f"{format_asked(request)} → {call.sender}: {format_answer(request, answer)}"
        self.say(call.target, said, is_fate=call.sender == CLIENT)
        status, now_us = answer.status, self.now_us
        if isinstance(request, rx.SendRead):
            reader = self.readers.get(call.sender)
            if reader is not None:
                entries = [(entry, bytes(body)) for entry, body in answer.entries]
                self.feed_reader(reader, lambda core: core.on_read_answer(
                    request.read_id, status=status, lac=answer.lac, highest=answer.highest,
                    is_sealed=answer.is_sealed, entries=entries, now_us=now_us,
                ))  # fmt: skip
            return
        node = self.sequencers.get(call.sender)
        if node is not None:
            self.feed(node, lambda core: _report(core, request, answer, call.digest, now_us))

    def _read_nodes(self, call: Call) -> None:
        """A reader's pass over a flexible segment, from its first question to its end."""
        read, reader = call.request, self.readers[call.sender]
        assert isinstance(read, rx.SendRead), read
        self._end(call)
        segment, _ = self.store.segments[epoch_of(read.ledger_id)]
        assert isinstance(segment, FlexibleSegment), segment

        def ask(asked: AskNode) -> NodeAnswer:
            bookie = self.bookies[asked.member.bookie]
            return bookie.look(asked.member, filter_call(read.ledger_id, asked), self.now_us)

        finish = read_nodes(segment, read, reader.order, ask, self.now_us)
        said = " ".join(format_body(body) for _, body in finish.entries)
        self.say("", f"{format_asked(read)} → {reader.name}: {finish.status.name} {said}".rstrip())
        self.feed_reader(reader, lambda core: core.on_read_answer(
            read.read_id, status=finish.status, lac=finish.lac, highest=NOTHING, is_sealed=False,
            entries=finish.entries, now_us=self.now_us, sender=finish.sender, absent=finish.absent,
        ))  # fmt: skip

    # --- metadata --------------------------------------------------------------------------------

    def deliver_to_store(self, call: Call, how: str = "apply") -> None:
        """A question or a change reaches the metadata store and is answered.

        Args:
            how: for a Commit: apply, unknown-applied, unknown-lost, unknown-late (to be applied
                by `late`), unavailable.
        """
        self._end(call)
        request = call.request
        reader = self.readers.get(call.sender)
        if isinstance(request, rx.WatchMetadata) and reader is not None:
            self.show_nodes(reader, request.epoch)
            return
        if isinstance(request, rx.ConfirmAbsence) and reader is not None:
            log, (segment, _) = self.store.log, self.store.segments[request.epoch]
            self.say(STORE, f"{reader.name} reads: {format_segment(segment)}")
            self.feed_reader(reader, lambda core: core.on_confirmed(log, segment, self.now_us))
            return
        node = self.sequencers[call.sender]
        is_cut = STORE in node.cut_off
        if isinstance(request, fx.Commit):
            outcome = self._commit(node, request, "unavailable" if is_cut else how, call)
            self.feed(node, lambda core: core.on_commit(request.token, outcome, self.now_us))
        elif isinstance(request, fx.ReadMetadata):
            view = None if is_cut else self.store.view()
            self.say(
                STORE, f"{node.name} reads: {'nothing' if view is None else _format_view(view)}"
            )
            self.feed(node, lambda core: core.on_metadata(request.token, view, self.now_us))
        elif isinstance(request, fx.ReadSegment):
            segment = None if is_cut else self.store.segments[request.epoch][0]
            said = "nothing" if segment is None else format_segment(segment)
            self.say(STORE, f"{node.name} reads: {said}")
            self.feed(node, lambda core: core.on_segment(request.token, segment, self.now_us))
        elif isinstance(request, fx.ReadHistory):
            entries = read_disks(self.bookies, request)
            self.feed(node, lambda core: core.on_history(request.token, entries, self.now_us))
        elif isinstance(request, fx.PersistOwed):
            self.say(STORE, format_call(request))
            self.feed(node, lambda core: core.on_owed_persisted(request))

    def _commit(
        self, node: StageSequencer, request: fx.Commit, how: str, call: Call
    ) -> CommitOutcome:
        outcome = CommitOutcome.UNAVAILABLE if how == "unavailable" else CommitOutcome.UNKNOWN
        said = how
        if how in ("apply", "unknown-applied"):
            is_applied = self.store.commit(request.writes, SequencerId(node.name))
            said = "applied" if is_applied else "conflict"
            if how == "apply":
                outcome = CommitOutcome.APPLIED if is_applied else CommitOutcome.CONFLICT
            else:
                said = f"{said}, but {node.name} is not told"
        elif how == "unknown-lost":
            said = f"lost, and {node.name} is not told"
        elif how == "unknown-late":
            said = f"delayed, and {node.name} is not told"
            self.late.append(call)
        self.say(STORE, f"{node.name}'s commit: {said}")
        return outcome

    def apply_late(self) -> None:
        """Changes of unknown fate reach the store after all."""
        late, self.late = self.late, []
        for call in late:
            if isinstance(call.request, fx.Commit):
                is_applied = self.store.commit(call.request.writes, SequencerId(call.sender))
                said = "applied late" if is_applied else "late, and in conflict"
                self.say(STORE, f"{call.sender}'s commit: {said}")

    def show_nodes(self, reader: StageReader, epoch: Epoch) -> None:
        """A reader gets the log node and one segment node as they are now."""
        log = self.store.log
        found = self.store.segments.get(epoch)
        segment = None if found is None else found[0]
        said = f"no e{epoch}" if segment is None else format_segment(segment)
        clean = f"log next=e{log.next_epoch} lce=e{log.last_clean_epoch}"
        self.say(STORE, f"{reader.name} reads: {clean}, {said}")
        self.feed_reader(reader, lambda core: core.on_metadata(log, segment, self.now_us))

    # --- time ------------------------------------------------------------------------------------

    def run(self, calls: Callable[[], Iterable[Call]]) -> None:
        """Deliver what `calls` selects, oldest first, until nothing is left."""
        for _ in range(_STEPS_MAX):
            call = next((c for c in calls() if c.leg in (Leg.REQUEST, Leg.ANSWER)), None)
            if call is None:
                return
            self.deliver(call)
        raise AssertionError("the cores never come to rest")

    def advance(self, delay_us: int) -> None:
        """Let time pass: time-outs, timers and the ends of long polls, in their order."""
        end_us = self.now_us + delay_us
        for _ in range(_STEPS_MAX):
            at_us = min(self._times(), default=None)
            if at_us is None or at_us > end_us:
                self.now_us = end_us
                return
            self.now_us = max(self.now_us, at_us)
            said = len(self.lines)
            self._fire()
            if len(self.lines) > said:
                self.lines.insert(said, Line("", f"at {format_duration(self.now_us)}"))
        raise AssertionError("the cores never come to rest")

    def _times(self) -> list[int]:
        nodes = [n for n in self.sequencers.values() if n.is_up]
        times = [n.timer_at_us for n in nodes] + [r.timer_at_us for r in self.readers.values()]
        times += [call.deadline_us for call in self.calls]
        times += [at_us for bookie in self.bookies.values() for at_us in bookie.timers.values()]
        return [time for time in times if time is not None]

    def _fire(self) -> None:
        for call in list(self.calls):
            if call.deadline_us is not None and call.deadline_us <= self.now_us:
                call.deadline_us = None
                if call.leg is Leg.LOST:
                    self._end(call)
                self._report(call, answer_of(BookieStatus.TIMEOUT))
        for bookie in self.bookies.values():
            bookie.on_timer(self.now_us)
            self._report_waiting(bookie)
        for node in self.sequencers.values():
            if node.timer_at_us is not None and node.timer_at_us <= self.now_us:
                self.feed(node, lambda core: core.on_timer(self.now_us))
        for reader in self.readers.values():
            if reader.timer_at_us is not None and reader.timer_at_us <= self.now_us:
                reader.timer_at_us = None
                self.feed_reader(reader, lambda core: core.on_timer(self.now_us))

    def select(self, targets: Sequence[str], kinds: Sequence[str]) -> list[Call]:
        """Calls in flight to (or answered by) the targets, oldest first; none named: all."""
        return [
            call
            for call in self.calls
            if (not targets or call.target in targets)
            and (not kinds or kind_of(call.request) in kinds)
        ]


def _report(
    core: LogSequencer, request: Request, answer: ReadAnswer, digest: Digest | None, now_us: int
) -> None:
    status = answer.status
    match request:
        case fx.SendAdd(member, ledger_id, entry) | fx.SendWave(member, ledger_id, entry):
            core.on_add(member, epoch_of(ledger_id), entry, status, now_us)
        case fx.SendLac(member, ledger_id):
            core.on_lac(member, epoch_of(ledger_id), status, now_us, request.round_id)
        case fx.SendDigest(member, ledger_id):
            core.on_digest(member, epoch_of(ledger_id), status, digest, now_us)
        case fx.SendSeal(member, _, epoch):
            core.on_seal(member, epoch, status, answer.lac, answer.highest, now_us)
        case fx.SendRecoveryRead(member, ledger_id, entry):
            stored = None
            if answer.entries:
                payload = bytes(answer.entries[0][1])
                info = check_entry(payload)
                stored = StoredEntry(
                    payload, info.totals, info.has_state, info.record_count, info.crc
                )
            core.on_read(member, epoch_of(ledger_id), entry, status, stored, now_us)


def _format_view(view: fx.LogView) -> str:
    log = fx.SetLog(view.log, view.log_version)
    segments = [f"{format_segment(segment)} v{version}" for segment, version in view.segments]
    owner = "nobody" if view.owner is None else f"{view.owner.sequencer_id} e{view.owner.epoch}"
    return ", ".join([format_write(log).replace(" if ", " "), *segments, f"owner {owner}"])
