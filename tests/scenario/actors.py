"""The actors of a scenario: production cores, each with the little around it that it needs.

A bookie has a disk (a list of journal records; `hold` stops its syncs), a sequencer has its
context and a timer, a reader a consumer that takes everything at once. Actors answer and put
out effects only when the stage feeds them; nothing happens by itself. Randomness is replaced: what
a core shuffles stays as it is and what it picks is the first, so that a scenario can be read.

Called by the stage. Source: docs/scenarios.md.
"""

from __future__ import annotations

import enum
import random
from collections.abc import MutableSequence
from dataclasses import dataclass
from typing import Any, assert_never

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import (
    AddRecord,
    AddRow,
    CheckSegment,
    Effect,
    LacRecord,
    Persist,
    RangePlan,
    ReadEntries,
    ReadPlan,
    ReadRanges,
    Record,
    ReplyMarks,
    ReplyStatuses,
    RequestId,
    SealRecord,
    StartTimer,
)
from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.recovery import Digest
from duramen.core.placement import Candidate
from duramen.core.reading import effects as rx
from duramen.core.reading import reader as rd
from duramen.core.reading.range_read import NodeAnswer
from duramen.core.reading.replica_order import Place, ReplicaOrder
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    Member,
    SequencerId,
    epoch_of,
    ledger_of,
)
from duramen.limits import ENTRY_BYTES_MAX
from duramen.wire.bookie_calls import LacUpdate, ReadAnswer, ReadRange, Seal, ServiceClass
from duramen.wire.control_record import encode_control
from duramen.wire.entry import check_entry
from duramen.wire.flexible.envelope import Envelope
from duramen.wire.flexible.filtered_reads import FilteredRange
from tests.scenario.formatting import Inquiry, Request
from tests.scenario.ranges import Kept, answer_range, filter_poll
from tests.unit.core_formatting import encode_plain_entry


class StageRandom(random.Random):
    """No surprises: shuffling changes nothing, picking takes the first, nonces count up."""

    def __init__(self) -> None:
        super().__init__(0)
        self._count = 0

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Leave the order."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """The first."""
        return 0 if stop is None else start

    def random(self) -> float:
        """No jitter to speak of; zero itself is between two nodes of a copyset's choice."""
        return 1e-6

    def uniform(self, a: float, b: float) -> float:
        """The middle."""
        return (a + b) / 2

    def getrandbits(self, k: int, /) -> int:
        """The next number."""
        self._count += 1
        return self._count


class Leg(enum.Enum):
    """Where a call is on its way."""

    REQUEST = "on its way"
    SERVED = "served"
    ANSWER = "answered"
    LOST = "lost"
    DONE = "done"


@dataclass(eq=False, slots=True)
class Call:
    """One request and its answer. Late ones stay deliverable after their time-out was told."""

    number: int
    sender: str
    target: str
    request: Request | Inquiry
    deadline_us: int | None
    leg: Leg = Leg.REQUEST
    answer: ReadAnswer | None = None
    digest: Digest | None = None
    """What a node of a flexible segment told of a range, beside the answer's status."""


def answer_of(
    status: BookieStatus, lac: EntryId = NOTHING, highest: EntryId = NOTHING
) -> ReadAnswer:
    """An answer without entries."""
    return ReadAnswer(status, lac, highest, False, ())


class StageBookie:
    """One bookie: its core, its disk, and the calls that it has not answered yet."""

    def __init__(self, name: str, region: str, rack: str) -> None:
        self.name = name
        self.place = Place(region, rack)
        self.life = 1
        self.is_up = True
        self.is_held = False
        self.core = BookieCore(self.member.incarnation)
        self.timers: dict[RequestId, int] = {}
        self.questions: list[LedgerId] = []
        self._calls: dict[RequestId, Call] = {}
        self._ranges: dict[RequestId, FilteredRange] = {}
        self._told: dict[RequestId, NodeAnswer] = {}
        """Answers to what a pass asked."""
        self._pass_count = 0
        self._disk: list[tuple[Record, Kept]] = []
        self._unsynced: list[tuple[int, list[tuple[Record, Kept]]]] = []

    @property
    def member(self) -> Member:
        """Name and present incarnation."""
        return Member(BookieId(self.name), Incarnation(f"{self.life:04x}" * 8))

    @property
    def candidate(self) -> Candidate:
        """As placement sees it."""
        return Candidate(self.member, self.place.region, self.place.rack)

    @property
    def serving(self) -> ServingBookie:
        """As a nodeset has it."""
        name, life = self.member
        return ServingBookie(name, self.place.region, self.place.rack, life)

    @property
    def stored(self) -> dict[tuple[LedgerId, EntryId], bytes]:
        """Entries on the disk."""
        return {
            (record.ledger_id, record.entry_id): kept.payload
            for record, kept in self._disk
            if isinstance(record, AddRecord)
        }

    @property
    def unsynced_count(self) -> int:
        """Journal units that the disk holds back."""
        return len(self._unsynced)

    # --- life ------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Stop; what was not synced is gone, and so is every answer that was not given."""
        self.is_up = False
        self._unsynced.clear()
        self.timers.clear()
        for call in self._calls.values():
            call.leg = Leg.LOST
        self._calls.clear()
        self._ranges.clear()

    def restart(self) -> None:
        """Come back with what the disk holds."""
        self.is_up, self.is_held = True, False
        self.core = BookieCore(self.member.incarnation)
        for record, kept in self._disk:
            match record:
                case AddRecord(_, ledger_id, entry, lac, _, is_recovery):
                    crc = check_entry(kept.payload).crc
                    self.core.on_recovered_add(ledger_id, entry, lac, crc, is_recovery=is_recovery)
                case SealRecord(log_id, epoch):
                    self.core.on_recovered_seal(log_id, epoch)
                case LacRecord(ledger_id, lac):
                    self.core.on_recovered_lac(ledger_id, lac)

    def wipe(self) -> None:
        """Come back with other, empty disks: another incarnation (R1)."""
        self.crash()
        self._disk.clear()
        self.life += 1
        self.restart()

    def forget(self, ledger_id: LedgerId, entry: EntryId) -> None:
        """The disk lied: the entry is gone without a trace."""
        self._disk = [
            (record, kept)
            for record, kept in self._disk
            if not (isinstance(record, AddRecord) and record[1:3] == (ledger_id, entry))
        ]
        self.restart()

    # --- calls -----------------------------------------------------------------------------------

    def serve(self, call: Call, now_us: int) -> None:
        """A request arrives; its answer appears in the call, now or later."""
        request, number = call.request, RequestId(call.number)
        call.leg = Leg.SERVED
        self._calls[number] = call
        match request:
            case fx.SendAdd(member, ledger_id, entry, lac, payload, is_recovery):
                crc = check_entry(payload).crc
                row = AddRow(ledger_id, entry, lac, crc, is_recovery, True)
                self.core.on_adds(number, member.incarnation, [row])
            case fx.SendWave(member, ledger_id, entry, lac, payload):
                crc = check_entry(payload).crc
                row = AddRow(ledger_id, entry, lac, crc, request.is_recovery, True, True)
                self.core.on_adds(number, member.incarnation, [row])
            case fx.SendDigest(member, ledger_id, first, last):
                whole = ReadRange(
                    ledger_id, first, last, ENTRY_BYTES_MAX, epoch_of(ledger_id),
                    service=ServiceClass.RECOVERY,
                )  # fmt: skip
                self._look(number, member.incarnation, FilteredRange(whole, is_digest=True))
            case fx.SendSeal(member, log_id, epoch):
                seal = Seal(log_id, epoch, ledger_of(log_id, epoch))
                self.core.on_seals(number, member.incarnation, [seal])
            case fx.SendLac(member, ledger_id, lac, round_id):
                update = LacUpdate(ledger_id, lac, is_write=lac > NOTHING or round_id > 0)
                self.core.on_lacs(number, member.incarnation, [update])
            case fx.SendRecoveryRead(member, ledger_id, entry):
                seal_epoch = epoch_of(ledger_id)
                wanted = ReadRange(ledger_id, entry, entry, ENTRY_BYTES_MAX, seal_epoch)
                self.core.on_reads(number, member.incarnation, [wanted])
            case rx.SendRead() if request.bound is not None:
                self._look(number, request.member.incarnation, filter_poll(request))
            case rx.SendRead():
                wanted = ReadRange(
                    request.ledger_id, request.first, request.last, request.bytes_max,
                    wait_ms=request.wait_us // 1000, wait_for=request.wait_for,
                )  # fmt: skip
                self.core.on_reads(number, request.member.incarnation, [wanted])
            case _:
                raise AssertionError(f"no bookie can serve {request}")
        self.drain(now_us)

    def look(self, member: Member, asked: FilteredRange, now_us: int) -> NodeAnswer:
        """What a pass is told of a range, at once."""
        if not self.is_up:
            return NodeAnswer(BookieStatus.UNREACHABLE)
        self._pass_count += 1
        number = RequestId(-1 - self._pass_count)  # calls have the others
        self._look(number, member.incarnation, asked)
        self.drain(now_us)
        return self._told.pop(number)

    def _look(self, number: RequestId, life: Incarnation, asked: FilteredRange) -> None:
        self._ranges[number] = asked
        self.core.on_filtered_reads(number, life, [asked])

    def sync(self, now_us: int) -> None:
        """The disk syncs what waits."""
        waiting, self._unsynced = self._unsynced, []
        for token, records in waiting:
            self._disk += records
            self.core.on_persisted(token)
        self.drain(now_us)

    def drain(self, now_us: int) -> None:
        """Carry out what the core put out; without `hold` the disk syncs at once."""
        while self.core.outbox:
            effects, self.core.outbox = self.core.outbox, []
            for effect in effects:
                self._carry_out(effect, now_us)
            if self._unsynced and not self.is_held:
                self.sync(now_us)
        self.core.validate()

    def on_timer(self, now_us: int) -> None:
        """The long polls whose time is over."""
        for number in [n for n, at_us in self.timers.items() if at_us <= now_us]:
            del self.timers[number]
            self.core.on_wait_over(number)
        self.drain(now_us)

    def abandon(self, call: Call) -> None:
        """Nobody waits for this call any more."""
        self._calls.pop(RequestId(call.number), None)
        self.timers.pop(RequestId(call.number), None)
        self.core.on_abandoned(RequestId(call.number))

    def _carry_out(self, effect: Effect, now_us: int) -> None:
        match effect:
            case Persist(token, request, records):
                kept = _keep(self._calls[request].request)
                self._unsynced.append((token, [(record, kept) for record in records]))
            case ReplyStatuses(request, statuses):
                self._answer(request, answer_of(statuses[0]))
            case ReplyMarks(request, marks):
                self._answer(request, answer_of(*marks[0]))
            case ReadEntries(request, plans):
                self._answer(request, self._read(plans[0]))
            case StartTimer(request, wait_ms):
                self.timers[request] = now_us + 1000 * wait_ms
            case CheckSegment(ledger_id):
                self.questions.append(ledger_id)
            case ReadRanges(request, plans):
                self._answer_range(request, plans[0])
            case _:
                assert_never(effect)

    def _answer(self, request: RequestId, answer: ReadAnswer) -> None:
        self.timers.pop(request, None)
        call = self._calls.pop(request, None)
        if call is not None:
            call.answer, call.leg = answer, Leg.ANSWER

    def _answer_range(self, request: RequestId, plan: RangePlan) -> None:
        told = answer_range(self._ranges.pop(request), plan, self._list_kept(plan.ledger_id))
        call = self._calls.get(request)
        if call is None:
            self._told[request] = told
            return
        if isinstance(call.request, fx.SendDigest):
            unvouched = {EntryId(e) for a, b in told.unvouched for e in range(a, b + 1)}
            call.digest = Digest(dict(told.digests), frozenset(unvouched))
        # What nobody may show is no news to who polls.
        is_empty = plan.status is BookieStatus.NOT_RELEASED
        status = BookieStatus.NO_ENTRY if is_empty else plan.status
        answer = ReadAnswer(status, plan.lac, NOTHING, plan.is_sealed, told.entries)
        self._answer(request, answer)

    def _list_kept(self, ledger_id: LedgerId) -> dict[EntryId, Kept]:
        return {
            record.entry_id: kept
            for record, kept in self._disk
            if isinstance(record, AddRecord) and record.ledger_id == ledger_id
        }

    def _read(self, plan: ReadPlan) -> ReadAnswer:
        kept = self._list_kept(plan.ledger_id)
        last = plan.first + plan.entry_count
        entries = [(EntryId(i), kept[EntryId(i)].payload) for i in range(plan.first, last)]
        return ReadAnswer(plan.status, plan.lac, plan.highest, plan.is_sealed, entries)


def _keep(request: Request | Inquiry) -> Kept:
    match request:
        case fx.SendAdd():
            return Kept(request.payload, None)
        case fx.SendWave():
            return Kept(request.payload, Envelope(request.copyset, request.block))
        case _:
            return Kept(b"", None)


class StageSequencer:
    """One log in one sequencer process, and what it is cut off from."""

    def __init__(self, name: str, log_id: LogId) -> None:
        self.name = name
        self.context = SequencerContext(SequencerId(name), StageRandom(), encode_plain_entry)
        self.context.encode_control = encode_control
        self.core = LogSequencer(log_id, self.context)
        self.is_up = True
        self.cut_off: list[str] = []
        self.timer_at_us: int | None = None

    def states(self) -> tuple[str, str, str]:
        """State of the log, its writer and its recovery; changes of them are told."""
        core = self.core
        writer = "-" if core.writer is None else core.writer.state.value
        epoch = "" if core.recovery is None else f"e{core.recovery.epoch} "
        recovery = "-" if core.recovery is None else epoch + core.recovery.state.value
        return core.state.value, writer, recovery


class StageReader:
    """One reader; its consumer takes everything at once."""

    def __init__(
        self, name: str, position: tuple[Epoch, EntryId], here: Place, *, is_following: bool
    ) -> None:
        self.name = name
        self.order = ReplicaOrder(here, StageRandom())
        self.core = rd.Reader(position, self.order, is_following=is_following)
        self.timer_at_us: int | None = None
