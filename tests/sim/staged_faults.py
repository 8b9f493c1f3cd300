"""Faults of several steps, each of which must follow the one before: part of `nemesis`.

Faults that strike anywhere meet these orders of events in none of a thousand seeds.

    last commit rots    every sequencer sleeps until the journals rest; then what a disk took last
                        is damaged. It stands below a durable mark: nobody may call it torn. A
                        recovery asks, and does not reach the others that hold the entry.
    last body rots      the same, and the bookie knows which entry it lost.
    seal rots           the owner sleeps while another takes over; a member that was sealed loses
                        the seal. The owner wakes, and reaches it and those that were never sealed.

Damage is charged to the budget. Called by `nemesis`. Documented in docs/testing.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.segment import Segment
from duramen.core.sequencer.epoch.segment_writer import SegmentWriter
from duramen.ids import Epoch, LogId, Member, epoch_of, log_of
from duramen.units import MS, SECOND
from duramen.wire.disk.journal_format import (
    HEADER_BYTES,
    RECORD_MAGIC,
    RecordHeader,
    RecordKind,
    parse_header,
    seed_of,
)
from tests.sim.disk import SimFile
from tests.sim.network import STORE, Network
from tests.sim.options import BODY_ROTS
from tests.sim.processes import BookieNode
from tests.sim.sequencers import SequencerNode
from tests.sim.storage import LAYOUT
from tests.sim.world import Node, World

_REST_US: Final = 250 * MS
"""Longer than a journal waits before it writes a mark, and than calls and syncs take."""

_SILENCE_US: Final = 80 * MS
"""So long the owner reaches an ack set alone: long enough for some entries."""

_LOOK_US: Final = 20 * MS
_LOOK_COUNT: Final = 150
_CUT_US: Final = 3 * SECOND
"""No session ends meanwhile."""

_JOURNAL_FILE: Final = re.compile(r"[0-9]+\.dj")
_HEADER_RATIO: Final = 0.8
"""A damaged header tells nothing of what was lost; a damaged body loses one entry that is known."""


class Record(NamedTuple):
    """Where a record stands in a journal file."""

    file: SimFile
    header: RecordHeader


class Takeover(NamedTuple):
    """Who takes over from whom, and what is to happen then."""

    log_id: LogId
    epoch: Epoch
    owner: SequencerNode
    taker: str
    victim: BookieNode
    sealed: tuple[str, ...]
    """Members that refuse the owner: it is cut off from them."""


class StagedFaults:
    """Carries out the faults of the module's head.

    Args:
        find_owner: the sequencer that appends to the newest epoch of a log.
        pause: puts a process to sleep for so long.
        may_hurt: whether the budget allows to damage an incarnation; it is charged if so.
    """

    def __init__(
        self,
        world: World,
        *,
        network: Network,
        bookies: Mapping[str, BookieNode],
        sequencers: Mapping[str, SequencerNode],
        find_owner: Callable[[LogId], SequencerNode | None],
        pause: Callable[[Node, int], None],
        may_hurt: Callable[[Member], bool],
    ) -> None:
        self._world = world
        self._network = network
        self._bookies = bookies
        self._sequencers = sequencers
        self._find_owner = find_owner
        self._pause = pause
        self._may_hurt = may_hurt
        self._takeover: Takeover | None = None
        self._is_over = False
        self._header_ratio = _HEADER_RATIO

    def stop(self) -> None:
        """The faults are over."""
        self._is_over = True
        self._takeover = None

    def carry_out(self, fault: str, log_id: LogId) -> bool:
        """Carry out one fault; False: there was nothing to do."""
        if self._takeover is not None:
            return False
        self._header_ratio = 0.0 if fault == BODY_ROTS else _HEADER_RATIO
        if fault in ("last commit rots", BODY_ROTS):
            return self._begin_silence(log_id)
        return self._begin_takeover(log_id)

    def on_cover(self, author: str, log_id: LogId) -> None:
        """The seals of this sequencer cover: perhaps one of them is to be lost."""
        takeover = self._takeover
        if takeover is not None and (author, log_id) == (takeover.taker, takeover.log_id):
            self._takeover = None
            self._world.at(_LOOK_US, self._lose_seal, takeover, _LOOK_COUNT)

    # --- The last commit -------------------------------------------------------------------------

    def _begin_silence(self, log_id: LogId) -> bool:
        """What the owner sends reaches an ack set at once, and nobody else for a while."""
        world, owner, parties = self._world, self._find_owner(log_id), self._find_parties(log_id)
        if owner is None or owner.is_paused or parties is None:
            return False
        segment = parties[1].segment
        names = [member.bookie for member in segment.members]
        world.rng.shuffle(names)
        for name in names[ack_quorum_of(segment) :]:
            self._network.clog(owner.name, name, world.now_us + _CUT_US)
        victim = self._bookies[names[0]]
        world.at(_SILENCE_US, self._begin_rest, victim, log_id)
        return True

    def _begin_rest(self, victim: BookieNode, log_id: LogId) -> None:
        """Every sequencer sleeps: what bookies took last is what was sent last."""
        if self._is_over or not victim.is_listening or victim.is_paused:
            return
        for sequencer in self._sequencers.values():
            if sequencer.is_up and not sequencer.is_paused:
                self._pause(sequencer, 4 * _REST_US)
        self._world.at(_REST_US, self._damage_last, victim, victim.life, log_id)

    def _damage_last(self, victim: BookieNode, life: int, log_id: LogId) -> None:
        world = self._world
        if self._is_over or victim.life != life or victim.is_paused or not victim.is_resting:
            return
        is_any = world.chance(0.5)

        def is_wanted(header: RecordHeader) -> bool:
            return header.kind.holds_entry and (is_any or log_of(header.ledger_id) == log_id)

        record = _find_last(victim, is_wanted)
        parties = None if record is None else self._find_parties(log_of(record.header.ledger_id))
        if record is None or parties is None or not self._hurt(victim, record):
            return
        world.counts["last commit damaged"] += 1
        taker, writer = parties
        # Those who hold the entry, too, are not there when the taker asks.
        others = [name for name in self._bookies if name != victim.name]
        holders = [name for name in others if self._holds(name, record.header)]
        world.rng.shuffle(holders)
        for name in holders[: ack_quorum_of(writer.segment) - 1]:
            self._cut_both(taker.name, name, world.now_us + _CUT_US)
        lost_id = log_of(record.header.ledger_id)
        self._when_listening(victim, lambda: self._take_over(taker, lost_id), _LOOK_COUNT)

    def _holds(self, name: str, wanted: RecordHeader) -> bool:
        place = wanted.kind, wanted.ledger_id, wanted.entry_id

        def is_same(header: RecordHeader) -> bool:
            return (header.kind, header.ledger_id, header.entry_id) == place

        return _find_last(self._bookies[name], is_same) is not None

    def _find_parties(self, log_id: LogId) -> tuple[SequencerNode, SegmentWriter] | None:
        """Who is to take a log over, and what its owner writes with."""
        owner = self._find_owner(log_id)
        others = [each for each in self._sequencers.values() if each is not owner and each.is_up]
        if owner is None or not others:
            return None
        writer = owner.drivers[log_id].core.writer
        assert writer is not None
        return self._world.rng.choice(others), writer

    # --- A seal ----------------------------------------------------------------------------------

    def _begin_takeover(self, log_id: LogId) -> bool:
        """The owner sleeps; as many as a cover may lack are not there when the taker seals."""
        world, owner, parties = self._world, self._find_owner(log_id), self._find_parties(log_id)
        if owner is None or owner.is_paused or parties is None or parties[0].is_paused:
            return False
        taker, segment = parties[0], parties[1].segment
        names = [member.bookie for member in segment.members]
        if not all(self._bookies[name].is_listening for name in names):
            return False
        world.rng.shuffle(names)
        spare = ack_quorum_of(segment) - 1
        unsealed, victim, sealed = names[:spare], names[spare], names[spare + 1 :]
        for name in unsealed:
            self._cut_both(taker.name, name, world.now_us + _CUT_US)
        self._pause(owner, _CUT_US)
        self._takeover = takeover = Takeover(
            log_id, segment.epoch, owner, taker.name, self._bookies[victim], tuple(sealed)
        )
        world.at(_CUT_US, self._forget, takeover)
        self._take_over(taker, log_id)
        return True

    def _forget(self, takeover: Takeover) -> None:
        """It takes too long: a session that ends is another fault."""
        if self._takeover is takeover:
            self._takeover = None

    def _lose_seal(self, takeover: Takeover, left_count: int) -> None:
        """Once the seal is proved durable: what is not may be lost by a torn write."""
        victim = takeover.victim
        if self._is_over or left_count == 0 or not victim.is_listening or victim.is_paused:
            return

        def is_seal(header: RecordHeader) -> bool:
            place = log_of(header.ledger_id), epoch_of(header.ledger_id)
            return header.kind is RecordKind.SEAL and place == (takeover.log_id, takeover.epoch)

        record = _find_last(victim, is_seal)
        if record is None:
            return
        if record.header.offset >= record.file.proved_below and not victim.is_resting:
            self._world.at(_LOOK_US, self._lose_seal, takeover, left_count - 1)
            return
        if self._hurt(victim, record):
            self._world.counts["seal damaged"] += 1
            names = takeover.sealed
            self._when_listening(victim, lambda: self._wake(takeover.owner, names), _LOOK_COUNT)

    def _wake(self, owner: SequencerNode, sealed: Sequence[str]) -> None:
        """It reaches whoever does not know of a seal, and nobody else tells it."""
        for name in (*sealed, *self._sequencers, STORE):
            self._cut_both(owner.name, name, self._world.now_us + SECOND)
        if owner.is_paused:
            owner.resume()

    # --- How -------------------------------------------------------------------------------------

    def _hurt(self, victim: BookieNode, record: Record) -> bool:
        """The process ends, a bit of the record flips, and the process starts again."""
        if victim.is_removed or not self._may_hurt(victim.member):
            return False
        rng = self._world.rng
        victim.crash(is_power_cut=False)
        victim.disk.is_rotten = True
        reach = HEADER_BYTES if rng.random() < self._header_ratio else HEADER_BYTES + 8
        least = 0 if reach == HEADER_BYTES else HEADER_BYTES
        header = record.header
        record.file.flip_bit(header.offset + rng.randrange(least, reach), rng.randrange(8))
        self._world.note("nemesis", "damages", victim.name, header.ledger_id, header.offset)
        self._world.at(_LOOK_US, victim.start)
        return True

    def _when_listening(
        self, bookie: BookieNode, call: Callable[[], None], left_count: int
    ) -> None:
        if self._is_over or left_count == 0:
            return
        if bookie.is_listening:
            call()
        else:
            self._world.at(_LOOK_US, self._when_listening, bookie, call, left_count - 1)

    def _take_over(self, taker: SequencerNode, log_id: LogId) -> None:
        if taker.is_paused:
            taker.resume()
        taker.run(taker.life, taker.disturb, log_id, "take over")

    def _cut_both(self, one: str, other: str, until_us: int) -> None:
        self._network.cut(one, other, until_us)
        self._network.cut(other, one, until_us)


def _find_last(bookie: BookieNode, is_wanted: Callable[[RecordHeader], bool]) -> Record | None:
    """The newest durable record of a kind in its journal, by what stands in the files."""
    disk, seed = bookie.disk, seed_of(bookie.member.incarnation)
    names = [name for name in disk.list_names(LAYOUT.journal) if _JOURNAL_FILE.fullmatch(name)]
    for name in reversed(names):
        file = disk.files[f"{LAYOUT.journal}/{name}"]
        data, file_id = bytes(file.durable), int(name[:-3])
        offset = data.rfind(RECORD_MAGIC)
        while offset >= 0:
            # Behind what was written a file may hold records of its life before.
            header = parse_header(data, offset, file_id=file_id, offset=offset, seed=seed)
            if header is not None and is_wanted(header):
                return Record(file, header)
            offset = data.rfind(RECORD_MAGIC, 0, offset)
    return None


def ack_quorum_of(segment: AnySegment) -> int:
    """How many members have an entry at least when it is acknowledged."""
    if isinstance(segment, Segment):
        return segment.quorum.ack_quorum
    return segment.replication.node
