"""An owner, its bookies and those who recover its flexible segment, with a metadata store between.

Time is virtual; delays, losses, damage and replaced disks come from a seed. What lies on disks is
kept here, and judged when the segment is closed: nothing that was acknowledged is missing, nothing
is in it that was never written, and what is in it has the copies that RP asks for.
Used by the unit tests of `core.flexible.recovery`.
"""

from __future__ import annotations

import heapq
import itertools
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.recovery import Digest, FlexibleRecovery
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.flexible.segment_changes import find_frozen_faults
from duramen.core.flexible.selector import CopysetSelector
from duramen.core.flexible.writing.wave_writer import WaveWriter
from duramen.core.log_node import LogNode
from duramen.core.placement import Candidate
from duramen.core.segment_base import Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import CommitOutcome, LogView, StoredEntry
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, Member, NodeNumber
from duramen.limits import STORE_TIMEOUT_US
from duramen.units import MS
from tests.unit.nodes import make_log

EPOCH = Epoch(1)
Action = Callable[[], None]
OwnersRequest = fx.SendWave | fx.SendLac


@dataclass
class Disk:
    """What one bookie keeps of the epoch."""

    member: Member
    place: ServingBookie
    entries: dict[EntryId, bytes] = field(default_factory=dict)
    copysets: dict[EntryId, tuple[NodeNumber, ...]] = field(default_factory=dict)
    """What each copy was stored with."""
    rotten: set[EntryId] = field(default_factory=set)
    """Entries that were there and are unreadable by now."""
    noticed: set[EntryId] = field(default_factory=set)
    """Those of them of which it knows that."""
    lac: EntryId = NOTHING
    highest: EntryId = NOTHING
    is_sealed: bool = False
    is_silent: bool = False
    is_replaced: bool = False

    def store(self, effect: fx.SendWave) -> BookieStatus:
        """An entry arrives."""
        if self.is_replaced:
            return BookieStatus.WRONG_INCARNATION
        if self.is_sealed and not effect.is_recovery:
            return BookieStatus.SEALED
        if effect.entry in self.noticed:  # what it takes for whole it does not store again
            self.rotten.discard(effect.entry)
            self.noticed.discard(effect.entry)
        assert self.entries.setdefault(effect.entry, effect.payload) == effect.payload
        self.copysets.setdefault(effect.entry, effect.copyset)
        self.highest = max(self.highest, effect.entry)
        if not effect.is_recovery:
            self.lac = max(self.lac, effect.lac)
        return BookieStatus.OK

    def tell(self, effect: fx.SendLac) -> BookieStatus:
        """An LNG arrives."""
        if self.is_replaced:
            return BookieStatus.WRONG_INCARNATION
        if self.is_sealed:
            return BookieStatus.SEALED
        self.lac = max(self.lac, effect.lac)
        return BookieStatus.OK

    def seal(self) -> tuple[BookieStatus, EntryId, EntryId]:
        """A seal arrives."""
        if self.is_replaced:
            return BookieStatus.WRONG_INCARNATION, NOTHING, NOTHING
        self.is_sealed = True
        return BookieStatus.OK, self.lac, self.highest

    def digest(self, first: EntryId, last: EntryId) -> Digest | BookieStatus:
        """What it vouches for of a range; it is sealed by that."""
        if self.is_replaced:
            return BookieStatus.WRONG_INCARNATION
        self.is_sealed = True
        sound = {e: zlib.crc32(b) for e, b in self.entries.items() if first <= e <= last}
        known = frozenset(e for e in self.rotten & self.noticed if first <= e <= last)
        return Digest({e: i for e, i in sound.items() if e not in known}, known)

    def read(self, entry: EntryId) -> tuple[BookieStatus, StoredEntry | None]:
        """A read under seal arrives."""
        if self.is_replaced:
            return BookieStatus.WRONG_INCARNATION, None
        if entry in self.rotten:
            self.noticed.add(entry)
            return BookieStatus.UNKNOWN, None
        body = self.entries.get(entry)
        if body is None:
            return BookieStatus.NO_ENTRY, None
        return BookieStatus.OK, _open(body, self.copysets[entry])


class RecoveryWorld:
    """A log with one open flexible segment, its owner, and recoverers that come later.

    Args:
        racks: bookies per rack; `spare_racks` are no nodes of the segment.
    """

    def __init__(
        self,
        racks: Sequence[int],
        wanted: ReplicationProperty,
        *,
        spare_racks: Sequence[int] = (),
        is_ordered: bool = True,
        seed: int = 1,
    ) -> None:
        self.now_us = 0
        self.lost_answers_ratio = 0.03
        self.rng = random.Random(seed)
        self.wanted = wanted
        self.disks = _make_disks([*racks, *spare_racks])
        self.own_count = sum(racks)
        self._events: list[tuple[int, int, Action]] = []
        self._number = itertools.count(1)
        self._tokens = itertools.count(1)
        self.acknowledged: set[EntryId] = set()
        self.written: dict[EntryId, bytes] = {}
        segment = FlexibleSegment.opened(
            make_log().log_id, EPOCH, wanted, [d.place for d in self.disks[: self.own_count]],
            ack_mode="ordered" if is_ordered else "out_of_order", placement="strict",
            created_unix_ms=0, nonce="o",
        )  # fmt: skip
        self.log: LogNode = make_log().with_new_epoch("o")
        self.log_version, self.version = 1, 0
        self.segment = segment
        self.recoveries: list[FlexibleRecovery] = []
        self.read_copysets: dict[tuple[int, EntryId], tuple[NodeNumber, ...]] = {}
        """Recoverer, entry → the copyset of the copy that it found."""
        self._roster = {disk.member: True for disk in self.disks}
        selector = CopysetSelector(segment.nodes, wanted, self.rng, is_sticky=seed % 2 == 0)
        self.owner = WaveWriter(
            segment, 0, selector, commit_delay_us=5 * MS,
            ports=Ports(
                put=lambda effect: self._put(cast(OwnersRequest, effect)),
                new_token=lambda: next(self._tokens), new_nonce=lambda: "o", rng=self.rng,
                locations=dict, candidates=list, roster=lambda: self._roster,
            ),
        )  # fmt: skip
        self._owner_due_us: int | None = None

    # --- what happens ----------------------------------------------------------------------------

    def append(self) -> None:
        """The owner makes an entry of one record or two."""
        if not self.owner.has_room:
            return
        before, count = self.owner.totals, self.rng.randrange(1, 3)
        entry = EntryId(self.owner.lap + 1)
        after = Totals(before.record_count + count)
        body = f"{entry}:{count}:{after.record_count}".encode()
        self.written[entry] = body
        self.owner.add(body, after, self.now_us)

    def begin_recovery(self, *, needs_bound: bool = False) -> None:
        """Another sequencer recovers the segment."""
        if self.segment.is_closed:
            return
        number = len(self.recoveries)
        ports = Ports(
            put=lambda effect: self._carry_out(number, effect),
            new_token=lambda: next(self._tokens),
            new_nonce=lambda: f"r{next(self._number)}",
            rng=self.rng,
            locations=dict,
            candidates=lambda: [
                Candidate(d.member, d.place.region, d.place.rack)
                for d in self.disks
                if not d.is_replaced and not d.is_silent
            ],
        )
        recovery = FlexibleRecovery(
            self.segment, self.version, self.log, self.log_version, ports=ports,
            unix_ms=lambda now_us: now_us // 1_000, needs_bound=needs_bound,
        )  # fmt: skip
        self.recoveries.append(recovery)
        recovery.start(self.now_us)
        self._check()

    def run_for(self, duration_us: int) -> None:
        """Let so much time pass."""
        until_us = self.now_us + duration_us
        for _ in range(100_000):
            times = [self._events[0][0]] if self._events else []
            cores: list[WaveWriter | FlexibleRecovery] = [self.owner, *self.recoveries]
            times += [at for core in cores if (at := core.wakeup_at_us()) is not None]
            next_us = min(times, default=until_us)
            if next_us >= until_us:
                self.now_us = until_us
                return
            self.now_us = max(self.now_us, next_us)
            if self._events and self._events[0][0] <= self.now_us:
                heapq.heappop(self._events)[2]()
            else:
                for core in cores:
                    if (core.wakeup_at_us() or self.now_us + 1) <= self.now_us:
                        core.on_timer(self.now_us)
            self._check()
        raise AssertionError(f"they do not rest: {self.owner} {self.recoveries}")

    # --- what is true ----------------------------------------------------------------------------

    def judge(self) -> None:
        """The closed segment has all that was acknowledged, and its copies."""
        segment = self.segment
        assert segment.last_entry is not None and segment.totals is not None
        present = {
            EntryId(entry)
            for first, last in segment.list_present(EntryId(0), segment.last_entry)
            for entry in range(first, last + 1)
        }
        assert self.acknowledged <= present, sorted(self.acknowledged - present)
        assert present <= self.written.keys()
        rows = {row.member: row for row in segment.nodes}
        closer = self._closer()
        for entry in present:
            # At or below LNG nothing is written back: what is short there waits for repair.
            known_gone = closer._gone if entry > closer._lac else set()
            copies = [
                rows[d.member].node
                for d in self.disks
                if d.member in rows and entry in d.entries and d.member not in known_gone
            ]
            assert self.wanted.is_satisfied_by(copies), f"too few copies of {entry}"
        counts = [int(body.split(b":")[1]) for body in self.written.values()]
        kept = sum(counts[entry] for entry in present)
        assert segment.totals.record_count - segment.missing_record_count == kept

    def _closer(self) -> FlexibleRecovery:
        """Whose CLOSE it is."""
        closings = ((core, core._closing) for core in self.recoveries)
        return next(
            core
            for core, closing in closings
            if closing is not None and closing[0].segment.nonce == self.segment.nonce
        )

    def has_cover(self) -> bool:
        """Whether those that answer are enough to recover and to write back."""
        alive = [
            d.place for d in self.disks if not d.is_silent and not d.is_replaced and not d.rotten
        ]
        own = [d.place for d in self.disks[: self.own_count]]
        own_alive = [place for place in alive if place in own]
        return self.wanted.is_covered_by(own_alive, own) and self.wanted.is_satisfied_by(alive)

    # --- between them ----------------------------------------------------------------------------

    def _at(self, delay_us: int, action: Action) -> None:
        heapq.heappush(self._events, (self.now_us + delay_us, next(self._number), action))

    def _delay_us(self) -> int:
        return int(MS * (0.2 + 3 * self.rng.random() ** 3))

    def _disk_of(self, member: Member) -> Disk:
        return next(disk for disk in self.disks if disk.member == member)

    def _exchange(
        self, member: Member, act: Callable[[Disk], Any], answer: Callable[[Any], None]
    ) -> None:
        """Ask a bookie; None is what comes of silence."""
        disk = self._disk_of(member)

        def arrive() -> None:
            if disk.is_silent:
                return
            result = act(disk)
            if self.rng.random() >= self.lost_answers_ratio:
                self._at(self._delay_us(), lambda: finish(result))

        is_over: list[bool] = []

        def finish(result: Any) -> None:
            if not is_over:
                is_over.append(True)
                answer(result)

        self._at(self._delay_us(), arrive)
        self._at(STORE_TIMEOUT_US, lambda: finish(None))

    def _put(self, effect: OwnersRequest) -> None:
        """The owner's."""
        if isinstance(effect, fx.SendLac):
            self._exchange(
                effect.member, lambda disk: disk.tell(effect),
                lambda status: self.owner.on_lac(
                    effect.member, _or_timeout(status), self.now_us, effect.round_id
                ),
            )  # fmt: skip
            return

        def answered(status: BookieStatus | None) -> None:
            found = self.owner.on_add(effect.member, effect.entry, _or_timeout(status), self.now_us)
            self.acknowledged.update(entry.entry for entry in found)

        self._exchange(effect.member, lambda disk: disk.store(effect), answered)

    def _send(self, number: int, effect: fx.SendWave | fx.SendDigest) -> None:
        """A recoverer's stores and digests."""
        if isinstance(effect, fx.SendWave):
            rows = {row.member for row in self.segment.nodes}
            assert effect.member in rows, "R24: written back to a bookie that is no node"
            self._check_order(number, effect)
            self._exchange(
                effect.member, lambda disk: disk.store(effect),
                lambda status: self._core(number).on_add(
                    effect.member, effect.entry, _or_timeout(status), self.now_us
                ),
            )  # fmt: skip
            return
        self._exchange(
            effect.member, lambda disk: disk.digest(effect.first, effect.last),
            lambda answer: self._core(number).on_digest(
                effect.member, *_read_digest(answer), self.now_us
            ),
        )  # fmt: skip

    def _check_order(self, number: int, wave: fx.SendWave) -> None:
        """Who is named by the copy that was read comes first, in its order."""
        read = self.read_copysets[number, wave.entry]
        named = [one for one in read if one in wave.copyset]
        assert list(wave.copyset[: len(named)]) == named, (read, wave.copyset)
        assert len(set(wave.copyset)) == len(wave.copyset), wave.copyset

    def _core(self, number: int) -> FlexibleRecovery:
        """It is being made when it sends first."""
        return self.recoveries[number]

    def _carry_out(self, number: int, effect: fx.Effect) -> None:
        match effect:
            case fx.SendWave() | fx.SendDigest():
                self._send(number, effect)
            case fx.SendSeal(member):
                self._exchange(
                    member, lambda disk: disk.seal(),
                    lambda told: self._answer_seal(self._core(number), member, told),
                )  # fmt: skip
            case fx.SendRecoveryRead(member, _, entry):
                self._exchange(
                    member, lambda disk: disk.read(entry),
                    lambda got: self._answer_read(number, member, entry, got),
                )  # fmt: skip
            case fx.Commit(token, writes):
                self._at(self._delay_us(), lambda: self._commit(self._core(number), token, writes))
            case fx.ReadMetadata(token):
                self._at(self._delay_us(), lambda: self._read_nodes(self._core(number), token))
            case _:
                raise AssertionError(effect)

    def _answer_seal(
        self, core: FlexibleRecovery, member: Member,
        told: tuple[BookieStatus, EntryId, EntryId] | None,
    ) -> None:  # fmt: skip
        status, lac, highest = told or (BookieStatus.TIMEOUT, NOTHING, NOTHING)
        core.on_seal(member, status, lac, highest, self.now_us)

    def _answer_read(
        self, number: int, member: Member, entry: EntryId,
        got: tuple[BookieStatus, StoredEntry | None] | None,
    ) -> None:  # fmt: skip
        status, stored = got or (BookieStatus.TIMEOUT, None)
        if stored is not None:
            self.read_copysets[number, entry] = stored.copyset
        self._core(number).on_read(member, entry, status, stored, self.now_us)

    def _commit(self, core: FlexibleRecovery, token: int, writes: tuple[fx.Write, ...]) -> None:
        fate = self.rng.random()
        if fate < 0.05:
            outcome = CommitOutcome.UNKNOWN
        elif self._apply(writes):
            outcome = CommitOutcome.UNKNOWN if fate < 0.1 else CommitOutcome.APPLIED
        else:
            outcome = CommitOutcome.CONFLICT
        self._at(self._delay_us(), lambda: core.on_commit(token, outcome, self.now_us))

    def _apply(self, writes: tuple[fx.Write, ...]) -> bool:
        for write in writes:
            if isinstance(write, fx.SetSegment) and write.version != self.version:
                return False
            if isinstance(write, fx.SetLog) and write.version != self.log_version:
                return False
        for write in writes:
            match write:
                case fx.SetSegment(FlexibleSegment() as segment, version):
                    faults = find_frozen_faults(self.segment, segment)
                    assert not faults, faults
                    self.segment, self.version = segment.validated(), version + 1
                case fx.SetLog(log, version):
                    self.log, self.log_version = log, version + 1
                case _:
                    raise AssertionError(write)
        return True

    def _read_nodes(self, core: FlexibleRecovery, token: int) -> None:
        view = LogView(self.log, self.log_version, ((self.segment, self.version),), None)
        if self.log.last_clean_epoch >= EPOCH:
            view = LogView(self.log, self.log_version, (), None)
        self._at(self._delay_us(), lambda: core.on_metadata(token, view, self.now_us))

    def _check(self) -> None:
        self.owner.validate()
        for recovery in self.recoveries:
            recovery.validate()


def _make_disks(racks: Sequence[int]) -> list[Disk]:
    places = [rack for rack, count in enumerate(racks) for _ in range(count)]
    disks = []
    for n, rack in enumerate(places):
        life = Incarnation(f"{n + 1:032x}")
        name = BookieId(f"b{n}")
        disks.append(Disk(Member(name, life), ServingBookie(name, "r", f"k{rack}", life)))
    return disks


def _or_timeout(status: BookieStatus | None) -> BookieStatus:
    return BookieStatus.TIMEOUT if status is None else status


def _read_digest(answer: Digest | BookieStatus | None) -> tuple[BookieStatus, Digest | None]:
    """What came of asking for one; None: silence."""
    if isinstance(answer, Digest):
        return BookieStatus.OK, answer
    return _or_timeout(answer), None


def _open(body: bytes, copyset: tuple[NodeNumber, ...]) -> StoredEntry:
    """An entry: its number, its records, and those of the segment up to it."""
    _, own_count, count = map(int, body.split(b":"))
    return StoredEntry(
        body, Totals(count), True, record_count=own_count, identity=zlib.crc32(body),
        copyset=copyset,
    )  # fmt: skip
