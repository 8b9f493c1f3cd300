"""A world around one wave writer: bookies that store, delay, refuse, sleep or lose their disks.

Time is virtual. The world keeps what really lies on disks, and checks at each acknowledgement that
copies at nodes of N(e) with their incarnations satisfy RP: the writer's own count is not asked.
Used by the unit tests of `core.flexible.writing.wave_writer`.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import cast

from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.flexible.selector import CopysetSelector
from duramen.core.flexible.writing.surplus import SurplusBudget
from duramen.core.flexible.writing.wave_writer import WaveWriter
from duramen.core.flexible.writing.waves import WavedEntry
from duramen.core.placement.node_states import NodeStates
from duramen.core.placement.store_times import StoreTimes
from duramen.core.segment import Totals
from duramen.core.sequencer.context import SequencerContext, make_ports
from duramen.core.sequencer.effects import SendLac, SendWave
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member, SequencerId
from duramen.limits import STORE_TIMEOUT_US
from duramen.units import MS
from tests.unit.core_formatting import encode_plain_entry

Request = SendWave | SendLac
LOG, EPOCH = LogId(7), Epoch(3)
COMMIT_DELAY_US = 5 * MS
OTHER_LIFE = Incarnation("f" * 32)


@dataclass
class FakeBookie:
    """One node's disks and moods."""

    member: Member
    place: ServingBookie
    delay_us: int = 1 * MS
    is_silent: bool = False
    refusal: BookieStatus | None = None
    is_replaced: bool = False
    is_sealed: bool = False
    is_known_gone: bool = False
    """The writer has heard that its disks were replaced."""
    stored: set[EntryId] = field(default_factory=set)
    lost: set[EntryId] = field(default_factory=set)
    """What lay on disks that were replaced."""
    told: EntryId = NOTHING

    def answer(self, effect: SendWave | SendLac) -> BookieStatus:
        """What it does with a request that arrived."""
        if self.is_replaced:
            return BookieStatus.WRONG_INCARNATION
        if self.is_sealed:
            return BookieStatus.SEALED
        if self.refusal is not None:
            return self.refusal
        if isinstance(effect, SendWave):
            self.stored.add(effect.entry)
        self.told = max(self.told, effect.lac)
        return BookieStatus.OK


class WaveWorld:
    """A writer and its bookies, numbered from 0 in racks as they are given.

    Args:
        racks: bookies per rack.
    """

    def __init__(
        self,
        racks: Iterable[int] = (2, 2, 2),
        wanted: ReplicationProperty | None = None,
        *,
        is_ordered: bool = True,
        is_sticky: bool = False,
        seed: int = 1,
    ) -> None:
        self.now_us = 0
        self.rng = random.Random(seed)
        self.wanted = wanted or ReplicationProperty(3, 2)
        self.is_ordered = is_ordered
        self.bookies = _make_bookies(racks)
        segment = FlexibleSegment.opened(
            LOG, EPOCH, self.wanted, [bookie.place for bookie in self.bookies],
            ack_mode="ordered" if is_ordered else "out_of_order", placement="strict",
            created_unix_ms=0, nonce="n",
        )  # fmt: skip
        self.roster = {bookie.member: True for bookie in self.bookies}
        self.states = NodeStates()
        self.times = StoreTimes()
        self.surplus = SurplusBudget()
        self.sent: list[SendWave | SendLac] = []
        self.sent_at_us: list[int] = []
        self.acknowledged: list[EntryId] = []
        self.counts: Counter[str] = Counter()
        self._queue: list[tuple[int, int, SendWave | SendLac, BookieStatus | None, int]] = []
        self._number = 0
        ports = replace(
            make_ports(_make_context(self.rng), lambda effect: self._put(cast(Request, effect))),
            states=self.states, times=self.times, surplus=self.surplus,
            roster=lambda: self.roster,
        )  # fmt: skip
        selector = CopysetSelector(segment.nodes, self.wanted, self.rng, is_sticky=is_sticky)
        self.writer = WaveWriter(segment, 0, selector, commit_delay_us=COMMIT_DELAY_US, ports=ports)

    # --- what happens ----------------------------------------------------------------------------

    def add(self, size_bytes: int = 100) -> EntryId:
        """The owner makes an entry."""
        before = self.writer.totals
        totals = Totals(before.record_count + 1, before.length_bytes + size_bytes)
        entry = self.writer.add(bytes(size_bytes), totals, self.now_us)
        self._check()
        return entry

    def run(self, until_us: int) -> None:
        """Let answers and timers come until then."""
        for _ in range(200_000):
            answer_us = self._queue[0][0] if self._queue else None
            times = (self.writer.wakeup_at_us(), answer_us, self.states.next_expiry_us)
            next_us = min((at for at in times if at is not None), default=until_us)
            if next_us >= until_us:
                self.now_us = until_us
                return
            self.now_us = max(next_us, self.now_us)
            if answer_us is not None and answer_us <= self.now_us:
                self._deliver()
            else:
                self._pass_time()
            self._check()
        raise AssertionError(f"the writer does not rest: {self.writer}")

    def run_for(self, duration_us: int) -> None:
        """Let so much time pass."""
        self.run(self.now_us + duration_us)

    def stand_still(self, duration_us: int) -> None:
        """The process stands still: what comes waits, and then the timer is first."""
        self.now_us += duration_us
        if self.writer.wakeup_at_us() is not None:
            self.writer.on_timer(self.now_us)
        self._check()

    def replace_disks(self, number: int) -> None:
        """A bookie starts anew on empty disks."""
        bookie = self.bookies[number]
        bookie.is_replaced = True
        bookie.lost |= bookie.stored
        bookie.stored = set()

    def list_waves(self, entry: EntryId) -> list[tuple[int, ...]]:
        """Whom an entry was sent to, by wave."""
        numbers = {bookie.member: n for n, bookie in enumerate(self.bookies)}
        waves: dict[int, list[int]] = {}
        for sent_us, effect in zip(self.sent_at_us, self.sent, strict=True):
            if isinstance(effect, SendWave) and effect.entry == entry:
                waves.setdefault(sent_us, []).append(numbers[effect.member])
        return [tuple(wave) for wave in waves.values()]

    def count_lacs(self) -> int:
        """Explicit LNGs so far."""
        return sum(isinstance(effect, SendLac) for effect in self.sent)

    # --- what is true ----------------------------------------------------------------------------

    def is_safe(self, entry: EntryId) -> bool:
        """Whether copies satisfy RP that lie on disks of N(e), as far as the writer can know."""
        return self.wanted.is_satisfied_by(
            b.place
            for b in self.bookies
            if entry in b.stored or (entry in b.lost and not b.is_known_gone)
        )

    # --- inside ----------------------------------------------------------------------------------

    def _pass_time(self) -> None:
        before = self.states.change_count
        self.states.expire(self.now_us)
        if self.states.change_count > before:
            self.writer.on_bookies_changed(self.now_us)
        self.writer.on_timer(self.now_us)

    def _put(self, effect: Request) -> None:
        self.sent.append(effect)
        self.sent_at_us.append(self.now_us)
        bookie = next(b for b in self.bookies if b.member == effect.member)
        if bookie.is_silent:
            self._answer_at(STORE_TIMEOUT_US, effect, BookieStatus.TIMEOUT)
            return
        delay_us = int(bookie.delay_us * (0.5 + self.rng.random()))
        if delay_us > STORE_TIMEOUT_US:
            bookie.answer(effect)
            self._answer_at(STORE_TIMEOUT_US, effect, BookieStatus.TIMEOUT)
        else:
            self._answer_at(delay_us, effect, None)

    def _answer_at(
        self, delay_us: int, effect: SendWave | SendLac, status: BookieStatus | None
    ) -> None:
        self._number += 1
        row = (self.now_us + delay_us, self._number, effect, status, self.now_us)
        heapq.heappush(self._queue, row)

    def _deliver(self) -> None:
        _, _, effect, status, sent_us = heapq.heappop(self._queue)
        bookie = next(b for b in self.bookies if b.member == effect.member)
        if status is None:
            status = bookie.answer(effect)
        bookie.is_known_gone |= status is BookieStatus.WRONG_INCARNATION
        if status is BookieStatus.TIMEOUT:
            self.states.on_silent(bookie.member, sent_us, self.now_us)
        else:
            self.states.on_answered(bookie.member, [status], sent_us, self.now_us)
        if isinstance(effect, SendLac):
            self.writer.on_lac(effect.member, status, self.now_us, round_id=effect.round_id)
            return
        found = self.writer.on_add(effect.member, effect.entry, status, self.now_us)
        self._acknowledge(found)

    def _acknowledge(self, found: list[WavedEntry]) -> None:
        for entry in found:
            assert entry.entry not in self.acknowledged, f"twice: {entry.entry}"
            assert self.is_safe(entry.entry), f"not stored: {entry.entry}"
            if self.is_ordered:
                assert entry.entry == len(self.acknowledged), f"out of order: {entry.entry}"
            self.acknowledged.append(entry.entry)

    def _check(self) -> None:
        self.writer.validate()
        self.surplus.validate()
        self.states.validate()
        assert all(b.told <= self.writer.lac for b in self.bookies), "told more than LNG"


def _make_bookies(racks: Iterable[int]) -> list[FakeBookie]:
    places = [rack for rack, count in enumerate(racks) for _ in range(count)]
    return [
        FakeBookie(
            Member(BookieId(f"b{n}"), Incarnation(f"{n + 1:032x}")),
            ServingBookie(BookieId(f"b{n}"), "r", f"k{rack}", Incarnation(f"{n + 1:032x}")),
        )
        for n, rack in enumerate(places)
    ]


def _make_context(rng: random.Random) -> SequencerContext:
    """Of a process that makes no entries here."""
    return SequencerContext(SequencerId("s0"), rng, encode_plain_entry)
