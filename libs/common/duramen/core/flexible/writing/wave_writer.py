"""Wave writer: replicates the entries of one open flexible segment, a copyset for each wave.

The owner of an epoch has one. Who is slow, full or dead costs an entry one more wave; the segment's
node is not written. It decides when an entry is acknowledged, moves LNG, and tells nodes how far
everything is complete. Making entries and rolling are `log_sequencer`'s, as for a striped segment.

    OPEN → HELD → OPEN     its owner tries to close it: nothing is sent (R19)
    OPEN, HELD → FENCED    somebody recovers this segment: what is outstanding is uncertain
Invariants (checked by `validate`, with those of the parts):
 1 nobody outside N(e) and nobody who is gone stores an entry, or is asked to.
 2 nothing is in the window while HELD.
Source: docs/protocol/waves.md, R22, R27–R30.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from duramen.config import LogConfig
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.flexible.selector import NO_BLOCK, CopysetChoice, CopysetSelector
from duramen.core.flexible.writing.epoch_nodes import EpochNodes, ListedView
from duramen.core.flexible.writing.release import NodeRelease
from duramen.core.flexible.writing.waves import WavedEntry, WaveTally, WaveWindow
from duramen.core.placement.node_states import ListChange
from duramen.core.placement.rule import Refusal
from duramen.core.segment import SegmentState, Totals
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import (
    CommitOutcome,
    LogView,
    PersistOwed,
    SendLac,
    SendWave,
)
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.sequencer.writing.ack_round import AckRound
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Member, NodeNumber
from duramen.limits import ENTRY_TARGET_BYTES, PROBE_INTERVAL_US, STORE_TIMEOUT_US
from duramen.units import KIB, MS, agree

PIPELINE_ENTRY_COUNT: Final = 4
"""Incomplete entries before batches are made to wait for company."""
_PIPELINE_BYTES: Final = 4 * ENTRY_TARGET_BYTES

SPAN_ENTRY_COUNT_MAX: Final = 4_096
"""From LNG to the newest entry: holes and losses fit the segment's node (R28)."""

_LATE_US_PER_16_KIB: Final = 1 * MS
_OVERSLEPT_US: Final = 10 * MS
"""A timer that is later than that says that the process was asleep, not its nodes."""
_AFTER_SLEEP_US: Final = 20 * MS
_JITTER_US: Final = 20 * MS


class WaveWriter:
    """Replication of one open flexible segment.

    Args:
        segment: OPEN and empty, as created by its owner.
        version: of its node.
        selector: of this epoch alone.
    """

    def __init__(
        self,
        segment: FlexibleSegment,
        version: int,
        selector: CopysetSelector,
        *,
        commit_delay_us: int,
        ports: Ports,
    ) -> None:
        assert segment.state is SegmentState.OPEN, segment
        self.segment = segment
        self.version = version
        self.state = WriterState.OPEN
        self.fence_reason = ""
        self.wants_roll = False
        """A node's disks were replaced: the next epoch has another nodeset."""

        self._ledger_id = segment.ledger_id
        self._nodes = EpochNodes(segment.own_nodes)
        self._wanted = segment.replication
        self._selector = selector
        self._ports = ports
        is_ordered = segment.ack_mode == "ordered"
        self._window = WaveWindow(self._suffices, is_ordered=is_ordered)
        self._release = NodeRelease(self._nodes.members, commit_delay_us)
        self._round = AckRound(ports.put)
        self._round_is_wide = False
        self._gone: set[NodeNumber] = set()
        self._tally = WaveTally()
        self._listed = ListedView(self._nodes, ports.states, ports.roster)
        self._refusal: Refusal | None = None
        """Why an entry waits, until one becomes complete."""
        self._retry_us: int | None = None
        self._block = (NO_BLOCK, NOTHING)
        """The present one, with its first entry."""

    def configure(self, config: LogConfig) -> None:
        """What of the log's configuration needs no new segment; in force from now on."""
        self._release.configure(config.commit_delay)
        self._selector.switch_sticky(config.sticky)

    # --- questions -------------------------------------------------------------------------------

    @property
    def lac(self) -> EntryId:
        """LNG: the last entry up to which all are complete."""
        return self._window.lng

    @property
    def lap(self) -> EntryId:
        """The last entry that was added."""
        return self._window.newest

    @property
    def lac_totals(self) -> Totals:
        """Of the segment up to LNG."""
        return self._window.lng_totals

    @property
    def totals(self) -> Totals:
        """Of the segment up to the last entry that was added."""
        return self._window.totals

    @property
    def window(self) -> Sequence[WavedEntry]:
        """Entries above LNG, acknowledged or not."""
        return self._window.entries

    @property
    def window_bytes(self) -> int:
        """What they hold."""
        return self._window.size_bytes

    @property
    def is_drained(self) -> bool:
        """LNG is the last entry that was added."""
        return self.state is WriterState.OPEN and not self._window.entries

    @property
    def owed(self) -> tuple[()]:
        """Nothing: an entry that is complete has all copies that RP asks for."""
        return ()

    @property
    def owed_bytes(self) -> int:
        """None."""
        return 0

    @property
    def awaits_copies(self) -> bool:
        """No copy is owed."""
        return False

    def has_room_for_owed(self) -> bool:
        """Nothing is owed."""
        return True

    def persist_owed(self) -> None:
        """Nothing is owed."""

    def on_owed_persisted(self, owed: PersistOwed) -> None:
        """Nothing is owed, and nothing was asked to be recorded."""
        raise AssertionError(owed)

    @property
    def wants_control(self) -> bool:
        """LNG is told to nodes: no entry has to carry it."""
        return False

    @property
    def change_count(self) -> int:
        """The nodeset of an epoch does not change."""
        return 0

    @property
    def suspended(self) -> list[Member]:
        """Nodes that no copyset should have now."""
        listed = self._listed.find(self._gone)
        return [self._nodes.members[n] for n in (*listed.gray, *sorted(listed.unusable))]

    def owes_up_to(self, last: EntryId) -> bool:
        """Nothing: the copyset of an entry that is acknowledged is whole."""
        return False

    def list_behind(self, last: EntryId) -> list[Member]:
        """None, for the same reason."""
        return []

    def list_proved(self) -> list[EntryId]:
        """No fragments: a segment that its owner closes is proved as a whole."""
        return []

    @property
    def rewaved_count(self) -> int:
        """Entries that wanted another wave."""
        return self._tally.entry_count

    def explain_waves(self) -> str:
        """How many entries wanted another wave, and past whom these went."""
        if not self._tally.entry_count:
            return ""
        told = agree(f"{self._tally.entry_count} entries wanted another wave")
        past = self._tally.list_passed_over()
        names = ", ".join(f"{self._nodes.members[number].bookie} ({n})" for number, n in past)
        return f"{told}, past {names}" if names else told

    def explain_shortage(self) -> str:
        """Why nothing is acknowledged now, as far as bookies are the reason."""
        refusal = self.find_refusal()
        return "too few bookies answer for this log" if refusal is None else refusal.detail

    @property
    def round_done(self) -> int:
        """The last ack round that succeeded."""
        return self._round.done

    @property
    def has_room(self) -> bool:
        """Whether another entry is to be added now."""
        window = self._window
        return (
            self.state is WriterState.OPEN
            and len(window.incomplete) < PIPELINE_ENTRY_COUNT
            and window.incomplete_bytes < _PIPELINE_BYTES
            and len(window.entries) < SPAN_ENTRY_COUNT_MAX
            and not self.lacks_ack_set
        )

    @property
    def lacks_ack_set(self) -> bool:
        """Whether an entry waits for a copyset, or the next one would."""
        return self.find_refusal() is not None

    def find_refusal(self) -> Refusal | None:
        """Why it lacks an ack set."""
        return self._refusal or self._selector.find_refusal(self._listed.find(self._gone))

    @property
    def must_roll_now(self) -> bool:
        """A node is gone, and the others are no copyset."""
        return self.wants_roll and self.lacks_ack_set

    @property
    def keeps_lost_members(self) -> bool:
        """A node that is gone is passed over."""
        return False

    @property
    def may_stall(self) -> bool:
        """Its nodeset stays as it is."""
        return True

    def stalled_since_us(self) -> int | None:
        """Since when the oldest incomplete entry is that."""
        return min((e.incomplete_since_us for e in self._window.incomplete.values()), default=None)

    def wakeup_at_us(self) -> int | None:
        """When `on_timer` wants to be called next."""
        if self.state is not WriterState.OPEN:
            return None
        times = [self._release.due_us(), self._round.again_at_us, self._retry_us]
        times += [entry.late_us for entry in self._list_awaited()]
        return min((at_us for at_us in times if at_us is not None), default=None)

    def _list_awaited(self) -> Iterator[WavedEntry]:
        """Incomplete entries whose wave's time is not over."""
        incomplete = self._window.incomplete.values()
        return (entry for entry in incomplete if entry.wave_count and not entry.is_late)

    # --- events ----------------------------------------------------------------------------------

    def add(self, payload: bytes, totals: Totals, now_us: int) -> EntryId:
        """Replicate the next entry, which was encoded for entry id LAP + 1."""
        assert self.state is WriterState.OPEN, self
        entry = self._window.push(payload, totals, now_us)
        self._send_next(entry, now_us)
        return entry.entry

    def on_add(
        self, member: Member, entry_id: EntryId, status: BookieStatus, now_us: int
    ) -> list[WavedEntry]:
        """A node answered a store, or it ended; gives what is acknowledged by that, in order."""
        number = self._hear(member, status, now_us)
        if number is None:
            return []
        entry = self._window.find(entry_id)
        asked = None if entry is None else entry.pending.pop(number, None)
        if status is not BookieStatus.OK:
            self._release.note_failed(number, now_us)
            if entry is not None and asked is not None:
                self._on_failed(number, entry, status, now_us)
            return []
        if asked is not None:
            self._ports.times.observe(member, now_us - asked.sent_us)
            self._release.note_told(number, asked.lng, now_us)
        return [] if entry is None else self._on_stored(number, entry, now_us)

    def on_lac(self, member: Member, status: BookieStatus, now_us: int, round_id: int = 0) -> None:
        """A node answered an explicit LNG."""
        number = self._hear(member, status, now_us)
        if number is None:
            return
        if status is not BookieStatus.OK:
            self._release.note_failed(number, now_us)
            return
        if not round_id:
            self._release.note_answered(number, now_us)
        is_open = self.state is WriterState.OPEN
        if is_open and self._round.note_taken(member, round_id, self._is_ack_set):
            self._round_is_wide = False
            self._begin_round(now_us)

    def on_timer(self, now_us: int) -> None:
        """Time has passed: waves may be late, LNG due, and what waits is tried again."""
        if self.state is not WriterState.OPEN:
            return
        self._make_up_for_sleep(now_us)
        for entry in list(self._list_awaited()):
            if now_us >= entry.late_us:
                self._on_late(entry, now_us)
        if self._retry_us is not None and now_us >= self._retry_us:
            self._send_waiting(now_us)
        self._tell(self._release.take_due(now_us))
        if self._round.again_at_us is not None and now_us >= self._round.again_at_us:
            self._round.void()
            self._round_is_wide = True
            self._begin_round(now_us)

    def on_commit(self, token: int, outcome: CommitOutcome, now_us: int) -> list[WavedEntry]:
        """No change of an open flexible segment is the writer's."""
        return []

    def on_metadata(self, token: int, view: LogView | None, now_us: int) -> list[WavedEntry]:
        """Nothing that is read concerns the writer."""
        return []

    def heeds(self, change: ListChange) -> bool:
        """Whether a node came to a list, or left one: it may be asked again, or be gone."""
        return not change.members.isdisjoint(self._nodes.numbers)

    def on_lists_changed(self, now_us: int) -> None:
        """The lists have others."""
        self.on_bookies_changed(now_us)

    def on_bookies_changed(self, now_us: int) -> None:
        """Bookies came, went, or have another incarnation; or the lists are others."""
        for number in self._listed.find_replaced() - self._gone:
            self._on_gone(number, now_us)
        if self.state is WriterState.OPEN:
            self._send_waiting(now_us)

    def ask_round(self, now_us: int) -> int:
        """Prove that the segment is not sealed now: `round_done` reaches the number returned."""
        number = self._round.ask()
        self._begin_round(now_us)
        return number

    def hold(self) -> None:
        """Send nothing from now on: the segment is about to be closed (R19).

        Who needs LNG gets it before: the close may take as long as the metadata store is away.
        """
        assert self.is_drained, self
        self._tell(self._release.list_lacking())
        self.state = WriterState.HELD
        self._round.stop()

    def release(self) -> None:
        """Go on: the close was called off, and nothing of it can ever be applied."""
        if self.state is WriterState.HELD:
            self.state = WriterState.OPEN

    # --- answers ---------------------------------------------------------------------------------

    def _hear(self, member: Member, status: BookieStatus, now_us: int) -> NodeNumber | None:
        """The number of a node whose answer counts; None: it was acted upon, or counts nothing."""
        number = self._nodes.numbers.get(member)
        if self.state is WriterState.FENCED or number is None or number in self._gone:
            return None
        if status is BookieStatus.SEALED:
            self.state = WriterState.FENCED
            self.fence_reason = f"{member.bookie} is sealed"
            return None
        if status is BookieStatus.WRONG_INCARNATION:
            self._on_gone(number, now_us)
            if self.state is WriterState.OPEN:
                self._send_waiting(now_us)
            return None
        return number

    def _on_stored(self, number: NodeNumber, entry: WavedEntry, now_us: int) -> list[WavedEntry]:
        was_complete = entry.is_complete
        self._window.note_stored(entry, number)
        if was_complete or not entry.is_complete:
            return []
        self._refusal = None
        if entry.wave_count == 1:
            self._ports.surplus.earn(len(entry.payload) * self._wanted.wave_count)
        acknowledged = self._window.acknowledge(entry)
        if self._window.pass_complete():
            self._release.note_moved(self._window.lng, now_us)
        if len(self._window.incomplete) >= PIPELINE_ENTRY_COUNT:
            self._send_waiting(now_us)  # many were taken back: the next ones' turn has come
        return acknowledged

    def _on_failed(
        self, number: NodeNumber, entry: WavedEntry, status: BookieStatus, now_us: int
    ) -> None:
        entry.failed.add(number)
        if status is BookieStatus.TIMEOUT:
            self._ports.times.observe(self._nodes.members[number], STORE_TIMEOUT_US)
        if not entry.is_complete and self.state is WriterState.OPEN:
            self._send_next(entry, now_us)

    def _on_gone(self, number: NodeNumber, now_us: int) -> None:
        """Its disks were replaced (R22): nothing that it answers counts in this epoch any more."""
        self._gone.add(number)
        self.wants_roll = True
        self._release.note_gone(number)
        self._window.take_back(number, now_us)
        if self.state is WriterState.OPEN:
            self._round.void()
            self._begin_round(now_us)

    def _on_late(self, entry: WavedEntry, now_us: int) -> None:
        entry.is_late = True
        for number, asked in entry.pending.items():
            self._ports.states.on_late(self._nodes.members[number], asked.sent_us, now_us)
        self._send_next(entry, now_us)

    def _make_up_for_sleep(self, now_us: int) -> None:
        """What is late because this process was asleep gets the time that it slept, and a while."""
        awaited = list(self._list_awaited())
        slept_us = now_us - min((entry.late_us for entry in awaited), default=now_us)
        if slept_us > _OVERSLEPT_US:
            for entry in awaited:
                entry.late_us = max(entry.late_us + slept_us, now_us + _AFTER_SLEEP_US)

    # --- sending ---------------------------------------------------------------------------------

    def _send_waiting(self, now_us: int) -> None:
        """Try again for each entry that waits for its next wave, the oldest first."""
        self._retry_us = None
        for entry in list(self._window.incomplete.values())[:PIPELINE_ENTRY_COUNT]:
            self._send_next(entry, now_us)

    def _send_next(self, entry: WavedEntry, now_us: int) -> None:
        """Send the next wave, if the entry wants one and may have it."""
        if not entry.wave_count:
            choice = self._selector.choose(
                self._listed.find(self._gone), entry_bytes=len(entry.payload), now_us=now_us
            )
            if isinstance(choice, Refusal):
                self._wait(choice, now_us + PROBE_INTERVAL_US)
            else:
                entry.block = choice.block
                if choice.block != self._block[0]:
                    self._block = choice.block, entry.entry
                block = None if choice.block == NO_BLOCK else self._block[1]
                self._send(entry, choice.numbers, block, now_us)
        elif not self._suffices(entry.list_hoped_for()):
            self._selector.end_block(entry.block)
            self._send_again(entry, now_us)

    def _send_again(self, entry: WavedEntry, now_us: int) -> None:
        """To as many more nodes as RP asks for, if the surplus allows it."""
        added = self._choose_more(entry, now_us)
        if not added:
            return
        surplus = self._ports.surplus
        if surplus.take(len(added) * len(entry.payload), now_us):
            self._tally.note(entry, {*entry.failed, *(entry.pending if entry.is_late else ())})
            self._send(entry, added, None, now_us)
        else:
            jitter_us = int(self._ports.rng.random() * _JITTER_US)
            self._retry_at(surplus.ready_at_us(now_us) + jitter_us)

    def _choose_more(self, entry: WavedEntry, now_us: int) -> list[NodeNumber]:
        """Nodes that the entry needs beside those that store it, or may yet; none: it waits."""
        found = self._choose_again(entry, now_us)
        if found is None:
            return []
        hoped_for = entry.list_hoped_for()
        added = [number for number in found.numbers if number not in hoped_for]
        for number in list(added):
            rest = [one for one in added if one != number]
            if self._suffices([*hoped_for, *rest]):
                added = rest
        return added

    def _choose_again(self, entry: WavedEntry, now_us: int) -> CopysetChoice | None:
        listed = self._listed.find(self._gone)
        late = frozenset(entry.pending if entry.is_late else ())
        size_bytes = len(entry.payload)
        found = self._selector.choose_again(
            listed, left=late | entry.failed, holders=entry.holders, entry_bytes=size_bytes
        )
        if not isinstance(found, Refusal):
            return found
        may_forgive_us = entry.late_us
        if now_us < may_forgive_us or not entry.failed:
            self._wait(found, max(may_forgive_us, now_us + PROBE_INTERVAL_US))
            return None
        self._refusal = found
        entry.failed.clear()
        again = self._selector.choose_again(
            listed, left=late, holders=entry.holders, entry_bytes=size_bytes
        )
        if isinstance(again, Refusal):
            self._wait(again, now_us + PROBE_INTERVAL_US)
            return None
        return again

    def _send(
        self, entry: WavedEntry, numbers: Sequence[NodeNumber], block: EntryId | None, now_us: int
    ) -> None:
        copyset = tuple(entry.name(numbers))
        lng = EntryId(min(self._window.lng, entry.entry - 1))
        late_us = now_us + self._late_after_us(entry, numbers)
        entry.begin_wave(numbers, lng, now_us, late_us)
        for number in numbers:
            self._release.note_sent(number, lng, entry.entry)
            member = self._nodes.members[number]
            self._ports.put(
                SendWave(member, self._ledger_id, entry.entry, lng, entry.payload, copyset, block)
            )

    def _late_after_us(self, entry: WavedEntry, numbers: Sequence[NodeNumber]) -> int:
        regions = {self._nodes.regions[number] for number in numbers}
        peers_us = [self._ports.times.late_after_us(self._nodes.peers[name]) for name in regions]
        size_us = len(entry.payload) * _LATE_US_PER_16_KIB // (16 * KIB)
        return min((max(peers_us) + size_us) << min(entry.wave_count, 10), STORE_TIMEOUT_US)

    def _wait(self, refusal: Refusal, until_us: int) -> None:
        self._refusal = refusal
        self._retry_at(until_us)

    def _retry_at(self, at_us: int) -> None:
        self._retry_us = at_us if self._retry_us is None else min(self._retry_us, at_us)

    # --- telling ---------------------------------------------------------------------------------

    def _tell(self, numbers: Sequence[NodeNumber]) -> None:
        for number in numbers:
            self._release.note_asked(number)
            member = self._nodes.members[number]
            self._ports.put(SendLac(member, self._ledger_id, self._window.lng))

    def _begin_round(self, now_us: int) -> None:
        if self.state is WriterState.OPEN and self._round.is_due:
            members = self._choose_round()
            self._round.begin(self._ledger_id, self._window.lng, members, now_us)

    def _choose_round(self) -> list[Member]:
        """A copyset; all nodes where none can be drawn, or one did not answer."""
        found = self._selector.choose_again(
            self._listed.find(self._gone), left=frozenset(), holders=(), entry_bytes=0
        )
        if self._round_is_wide or isinstance(found, Refusal):
            numbers = tuple(number for number in self._nodes.members if number not in self._gone)
        else:
            numbers = found.numbers
        return [self._nodes.members[number] for number in numbers]

    def _is_ack_set(self, holders: list[Member]) -> bool:
        return self._suffices({self._nodes.numbers[member] for member in holders} - self._gone)

    def _suffices(self, numbers: Collection[NodeNumber]) -> bool:
        """Whether copies at these nodes satisfy RP."""
        if len(numbers) < self._wanted.node:
            return False
        return self._wanted.is_satisfied_by(self._nodes.list_placed(numbers))

    def validate(self) -> None:
        """Assert invariants 1 and 2, and those of the parts."""
        for part in (self._window, self._release, self._round):
            part.validate()
        counted = self._nodes.members.keys() - self._gone
        for entry in self._window.entries:
            assert {*entry.holders, *entry.pending} <= counted, f"1: {entry}"
        assert self.state is not WriterState.HELD or not self._window.entries, f"2: {self}"

    def __repr__(self) -> str:
        return (
            f"<wave writer {self._ledger_id} {self.state.value} lng={self.lac} lap={self.lap} "
            f"incomplete={list(self._window.incomplete)} gone={sorted(self._gone)}>"
        )
