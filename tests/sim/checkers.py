"""The invariants of docs/testing.md, checked beside a simulated run, at the event that breaks them.

`Checkers` is told what happens, one call an event, and raises `Violation` with the invariant's id.
It decides nothing and changes nothing. O(1) for each event and record; what it keeps is a few
numbers for each. Appends and reads are judged in `log_record`, what subscribers get in
`delivery_record`, segments and entries in `segment_record`; here is what ties them together:
members, placement, readers' LACs, memory.

Called by the simulator's world, in the order in which things happen: order of calls is real-time
order. Something that the caller gets wrong (an append answered twice, a client that does not wait)
is an AssertionError, never a violation. Source: docs/testing.md "Invariants",
docs/protocol/rules.md.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence

from duramen.core.flexible.repair.evidence import EntryRange
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.placement import Candidate, PlacementRule, satisfies
from duramen.core.repair.audit import Stretch
from duramen.core.segment import Segment, Totals
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    Dlsn,
    EntryId,
    Epoch,
    LedgerId,
    LogId,
    Member,
    SequencerId,
    epoch_of,
    is_metadata_log,
    ledger_of,
    log_of,
)
from duramen.runtime.reading.positioning.positions import Start
from duramen.texts import Position
from tests.sim.archive.record import ArchiveRecord
from tests.sim.condition_record import ConditionRecord, Demand, Refusal
from tests.sim.delivery_record import Delivery, DeliveryRecord
from tests.sim.life_record import LifeRecord
from tests.sim.log_record import LogRecord, TailQuestion, key_of
from tests.sim.members.hint_record import HintRecord
from tests.sim.repair.copy_record import CopyRecord
from tests.sim.repair.map_record import MapRecord
from tests.sim.segment_record import (
    CODES,
    Holes,
    LedgerHoldings,
    SegmentEnd,
    SegmentRecord,
    Tally,
    Violation,
)

__all__ = ["CODES", "Checkers", "Violation"]


class Checkers:
    """All checkers of one run.

    Args:
        locations: where each incarnation is. Not copied: the caller may add to it.
        rules: placement of each log (not copied either); P1 is checked where it is strict.
        pipelined: clients that may begin an append before the last one was answered.
        clock_skew_us: how far apart clocks may be.
    """

    def __init__(
        self,
        locations: Mapping[Member, Candidate],
        rules: Mapping[LogId, PlacementRule],
        *,
        pipelined: Collection[int] = (),
        clock_skew_us: int = 0,
    ) -> None:
        self._locations = locations
        self._rules = rules
        self._pipelined = frozenset(pipelined)
        self._tally = self.tally = Tally()
        self._records: dict[LogId, LogRecord] = {}
        self._segments: dict[LogId, SegmentRecord] = {}
        self._ledgers: dict[LedgerId, LedgerHoldings] = {}
        """Those of `_segments`, found at once."""
        self._conditions: dict[LogId, ConditionRecord] = {}
        self._life = LifeRecord(self._tally, clock_skew_us)
        self._archive = ArchiveRecord(self._tally, clock_skew_us)
        self._bits: dict[Member, int] = {}
        self._copies = CopyRecord(self._tally, locations, rules, self._bit)
        self._maps = MapRecord(self._tally, self._bit)
        self._hints = HintRecord(self._tally)
        self._lost = 0
        self._reader_lacs: dict[tuple[int, LedgerId], EntryId] = {}
        self._highest_lacs: dict[LedgerId, EntryId] = {}
        self._bookie_lacs: dict[tuple[int, Member, LedgerId], EntryId] = {}
        self._deliveries: dict[LogId, DeliveryRecord] = {}
        self._reader_count = 0
        self._cursors: dict[tuple[int, LogId], tuple[int, bool]] = {}
        """The sequence number that each reader is given next; whether a gap was reported to it."""

    def statistics(self) -> dict[str, int]:
        """Checks made for each code: a sweep in which one is 0 has proved nothing about it."""
        return dict(self._tally.counts)

    # --- clients: D1, D3, U1, O2, O3 -------------------------------------------------------------

    def on_invoke(
        self, now_us: int, client: int, log_id: LogId, append_id: int, bodies: tuple[bytes, ...]
    ) -> None:
        """A client begins an append; its id is new for this client and log.

        Bodies name the append: within a log two appends share all of them, in order, or none.
        """
        self._record(log_id).on_invoke(now_us, client, append_id, bodies)

    def on_acknowledge(  # noqa: PLR0917 - one event of the history
        self, now_us: int, client: int, log_id: LogId, append_id: int, dlsn: Dlsn,
        seq_num: int | None,
    ) -> None:  # fmt: skip
        """A client is told where its append begins; an early one has no number yet."""
        self._segment_record(log_id).check_opened(dlsn.epoch)
        self._record(log_id).on_acknowledge(now_us, client, append_id, dlsn, seq_num)
        if log_id in self._conditions:
            self._conditions[log_id].on_accepted(client, append_id, dlsn, seq_num)

    def on_fail(self, now_us: int, client: int, log_id: LogId, append_id: int) -> None:
        """A client is told that its append is not in the log and never will be."""
        self._record(log_id).on_fail(now_us, client, append_id)

    def on_uncertain(
        self,
        now_us: int,
        client: int,
        log_id: LogId,
        append_id: int,
        *,
        is_under_way: bool = True,
    ) -> None:
        """A client is told, or concludes, that its append may have happened.

        Args:
            is_under_way: a sequencer may still take it, as after a client's time-out. False when a
                sequencer answered so: the append has its place by then, or will never have one,
                and O3 asks that it precedes what the client appends afterwards.
        """
        record = self._record(log_id)
        record.on_uncertain(now_us, client, append_id, is_under_way=is_under_way)

    def on_sent_in_order(self, client: int, log_id: LogId, append_id: int, session: int) -> None:
        """An append that was just invoked is the next one of a session: they lie in this order."""
        self._record(log_id).on_sent_in_order(client, append_id, session)

    # --- demands: Q1, K1, U1, O3 -----------------------------------------------------------------

    def on_demand(
        self, client: int, log_id: LogId, append_id: int, demand: Demand, bodies: tuple[bytes, ...]
    ) -> None:
        """What the append demands that was just invoked."""
        self.conditions(log_id).on_demand(client, append_id, demand, bodies)

    def on_refused(
        self, now_us: int, client: int, log_id: LogId, append_id: int, refusal: Refusal
    ) -> None:
        """A client is told that its append is not in the log, for what it demands."""
        tail = refusal.seq_num, key_of(refusal.dlsn)
        self._record(log_id).on_refused(now_us, client, append_id, *tail)
        self.conditions(log_id).on_refused(client, append_id, refusal)

    def on_repeated(
        self, client: int, log_id: LogId, append_id: int, dlsn: Dlsn, seq_num: int
    ) -> None:
        """A producer sent an acknowledged batch again and is told where it lies."""
        self._record(log_id).on_repeated(client, append_id, dlsn, seq_num)

    def conditions(self, log_id: LogId) -> ConditionRecord:
        """What is demanded of a log: attempts of producers and tokens are told to it directly."""
        conditions = self._conditions.get(log_id)
        if conditions is None:
            conditions = ConditionRecord(log_id, self._tally)
            self._conditions[log_id] = conditions
        return conditions

    # --- entries: D2, F1, P1 ---------------------------------------------------------------------

    def on_durable(self, member: Member, ledger_id: LedgerId, entry_id: EntryId, crc: int) -> None:
        """An entry is in the durable layer of an incarnation, which only ever grows."""
        ledger = self._holdings(ledger_id)
        ledger.hold(entry_id, crc, self._bit(member))

    def on_vouched(self, member: Member, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """A bookie's core was told that the entry is durable: from now on it says so."""
        ledger = self._holdings(ledger_id)
        ledger.vouch(entry_id, self._bit(member))

    def on_add_refused(
        self, member: Member, ledger_id: LedgerId, entry_id: EntryId, crc: int
    ) -> None:
        """A bookie refused an entry since it holds another one: never the same bytes (D2)."""
        ledger = self._holdings(ledger_id)
        is_held = ledger.holders(entry_id, crc) & self._bit(member) != 0
        what = member, "holds entry", entry_id, "of", ledger_id, "and refuses the same bytes"
        self._tally.check("D2", not is_held, *what)

    def on_entry_denied(self, member: Member, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """A bookie vouched that it does not hold an entry: never one that it held (D2, R15)."""
        ledger = self._holdings(ledger_id)
        is_vouched = ledger.is_vouched(entry_id, self._bit(member))
        end = self._segment_record(log_of(ledger_id)).ends.get(epoch_of(ledger_id))
        if end is not None and entry_id > end.last_entry:
            return  # a leftover, which may be purged (R17)
        what = member, "denies entry", entry_id, "of", ledger_id, "that was durable there"
        self._tally.check("D2", not is_vouched, *what)

    def on_lac_answered(
        self, member: Member, ledger_id: LedgerId, status: BookieStatus, sealed: int
    ) -> None:
        """A bookie answered a write of a LAC; F1: not OK if the epoch was sealed when it came."""
        is_accepted = status is BookieStatus.OK and epoch_of(ledger_id) <= sealed
        what = member, "took a LAC of", ledger_id, "under the seal of", sealed
        self._tally.check("F1", not is_accepted, *what)

    def on_lost(self, member: Member) -> None:
        """An incarnation's disk is gone for ever."""
        self._lost |= self._bit(member)

    def on_entry_acknowledged(
        self, now_us: int, segment: AnySegment, entry_id: EntryId, crc: int
    ) -> None:
        """A writer acknowledged an entry under this metadata.

        D2 asks for Qa holders of these bytes in the entry's current write set at this instant, or
        for holders in N(e) that satisfy RP, and F1 for one that held them before seals covered the
        epoch.
        """
        record = self._segment_record(segment.log_id)
        record.check_opened(segment.epoch)
        record.check_sealed_below(segment.epoch)
        ledger = record.ledger(segment.epoch)
        write_set = self._bits_of(
            segment.write_set_of(entry_id) if isinstance(segment, Segment) else segment.members
        )
        place = "entry", entry_id, "acknowledged at", now_us, "µs in", segment
        if record.covered:
            is_fenced = ledger.has_witness(entry_id, crc, write_set)
            self._tally.check("F1", is_fenced, *place, "was stored after the cover")
        holders = ledger.holders(entry_id, crc) & write_set & ~self._lost
        if isinstance(segment, FlexibleSegment):
            nodes = [row.node for row in segment.own_nodes if self._bit(row.member) & holders]
            is_durable = segment.replication.is_satisfied_by(nodes)
        else:
            is_durable = holders.bit_count() >= segment.quorum.ack_quorum
        self._tally.check("D2", is_durable, *place, "is held by", holders.bit_count())
        if isinstance(segment, Segment):
            self._check_placement(segment, ledger, entry_id)
        ledger.highest_acknowledged = max(ledger.highest_acknowledged, entry_id)
        end = record.ends.get(segment.epoch)
        if end is not None:
            self._tally.check("D1", entry_id <= end.last_entry, *place, "is beyond", end)

    def on_sealed_by_cover(
        self, log_id: LogId, epoch: Epoch, responders: Collection[Member] = ()
    ) -> None:
        """A recovery knows that its SEAL covers.

        What bookies answered before they were sealed may still reach the writer. So an
        acknowledgement after this is F1's business only if no member that sealed held the entry
        before. Without `responders`: if no member of its write set did.
        """
        self._segment_record(log_id).on_covered(epoch, self._bits_of(responders))

    def _check_placement(self, segment: Segment, ledger: LedgerHoldings, entry_id: EntryId) -> None:
        """P1: no ack set of any write set of the entry's ensemble is too narrow (R20)."""
        rule = self._rules.get(segment.log_id)
        fragment = segment.fragment_of(entry_id)
        if rule is None or not rule.is_strict or fragment is ledger.placed_fragment:
            return
        spans = satisfies(fragment.ensemble, segment.quorum, rule, self._locations)
        self._tally.check("P1", spans, "entry", entry_id, "breaks", rule, "in", segment)
        ledger.placed_fragment = fragment

    def on_ensemble_changed(self, segment: Segment) -> None:
        """An owner's change of ensemble took effect.

        D2 from the other side: what is acknowledged stays in the fragment whose members hold it,
        so the new fragment begins above it (R6).
        """
        ledger = self._segment_record(segment.log_id).ledger(segment.epoch)
        first, highest = segment.last_fragment.first_entry, ledger.highest_acknowledged
        what = "entry", highest, "is acknowledged, and a new ensemble begins at", first, segment
        self._tally.check("D2", highest < first, *what)

    # --- repair: R21, R26, D2, P1 ----------------------------------------------------------------

    def on_disk_gone(self, member: Member) -> None:
        """An incarnation's disk is lost at this instant; `on_lost` follows when that counts."""
        self._copies.on_disk_gone(member)

    def on_segment_changed(
        self, before: Segment, after: Segment, first: EntryId, *, is_quiet: bool
    ) -> None:
        """A segment node was replaced: as `CopyRecord.on_changed`."""
        record = self._segment_record(after.log_id)
        self._copies.on_changed(before, after, record, first, is_quiet=is_quiet)

    def on_map_changed(
        self, before: FlexibleSegment, after: FlexibleSegment, needed: Sequence[EntryRange]
    ) -> None:
        """The node of a flexible segment was replaced: as `MapRecord.on_changed`."""
        ledger = self._segment_record(after.log_id).ledger(after.epoch)
        self._maps.on_changed(before, after, ledger, needed, self._lost)

    def on_recovered(
        self,
        segment: FlexibleSegment,
        lng: EntryId,
        end: EntryId,
        absent: Collection[EntryId],
        gone: Collection[Member],
    ) -> None:
        """A recovery is about to close a flexible segment: as `MapRecord.on_recovered`."""
        ledger = self._segment_record(segment.log_id).ledger(segment.epoch)
        entries = [n for n in range(lng + 1, end + 1) if n not in absent]
        self._maps.on_recovered(segment, ledger, entries, gone)

    def on_loss_recorded(self, segment: AnySegment, *, is_possible: bool) -> None:
        """Entries were noted as lost for ever; D1: only where more disks were lost than may be."""
        self._tally.check("D1", is_possible, "entries", segment.lost, "are called lost in", segment)

    def on_drained(
        self,
        member: Member,
        live: Iterable[tuple[Segment, Stretch]],
        maps: Iterable[FlexibleSegment] = (),
    ) -> None:
        """The metadata says of a bookie that it may go; `live`, `maps`: what may still be read."""
        self._copies.on_drained(member, live, self._segment_record)
        self._maps.on_drained(member, maps)

    # --- segments: E1, C1, G1 --------------------------------------------------------------------

    def on_segment_opened(
        self, log_id: LogId, epoch: Epoch, sequencer_id: SequencerId, ack_mode: str = "ordered"
    ) -> None:
        """A claim or a roll that makes an epoch took effect in the metadata store."""
        self._segment_record(log_id).on_opened(epoch, sequencer_id)
        self.conditions(log_id).on_opened(epoch, ack_mode)

    def on_segment_closed(  # noqa: PLR0917 - the facts of a close
        self,
        log_id: LogId,
        epoch: Epoch,
        last_entry: EntryId,
        totals: Totals,
        start_seq_num: int,
        recoverer: SequencerId | None,
        *,
        holes: Holes = (),
        is_committed: bool = True,
    ) -> None:
        """A close took effect in the metadata store, or somebody says how an epoch ended.

        Args:
            recoverer: whose commit or conclusion it is; None for the store's own view.
            is_committed: it is, or claims to be, what the metadata says. False for what a
                recoverer found before its CAS was answered: recoverers may differ there about
                entries that were never acknowledged, and exactly one of them is adopted.
        """
        said = SegmentEnd(last_entry, totals, start_seq_num, holes)
        record = self._segment_record(log_id)
        record.on_closed(epoch, said, recoverer, is_committed=is_committed)

    # --- readers: O1, D3, L1, G1 -----------------------------------------------------------------

    def new_reader(self) -> int:
        """The number of another reader: a cursor, a client, or a process that bookies answer."""
        self._reader_count += 1
        return self._reader_count

    def pick_ms(self, log_id: LogId, rng: random.Random, count: int) -> int:
        """The timestamp of one of the last `count` appends that were begun."""
        return self._record(log_id).pick_ms(rng, count)

    def on_start(
        self, question: TailQuestion, position: Position, start: Start, head_seq_num: int = 0
    ) -> Delivery:
        """A subscriber begins at a position; what it gets is told to what this gives (G1).

        Args:
            question: as it was before anybody looked for the position.
            head_seq_num: of the first live record, now that it was found.
        """
        log_id = question.log_id
        record = self._deliveries.get(log_id)
        if record is None:
            record = self._deliveries[log_id] = DeliveryRecord(log_id, self._tally)
        return record.on_start(question, position, start, head_seq_num)

    def on_read(  # noqa: PLR0917 - one event of the history
        self, now_us: int, reader: int, log_id: LogId, dlsn: Dlsn, seq_num: int, body: bytes
    ) -> None:
        """A reader was given a record.

        Beside O1, D1, D3 and U1: nothing between this and the record before was left out, and not
        beyond the end of a closed segment (G1); in an open one not above the LAC that the reader
        last reported, if any, and only if the epoch below is closed (L1, R18).
        """
        self._record(log_id).on_read(reader, dlsn, seq_num, body)
        check = self._tally.check
        what = "log", log_id, dlsn, "for reader", reader, "at", now_us, "µs"
        epoch, entry, _ = dlsn
        expected, is_gap = self._cursors.get((reader, log_id), (seq_num, False))
        is_next = seq_num == expected or (is_gap and seq_num > expected)
        check("G1", is_next, *what, "seq", seq_num, "where", expected, "follows")
        self._cursors[reader, log_id] = (seq_num + 1, False)
        ends = self._segment_record(log_id).ends
        end = ends.get(epoch)
        if end is not None:
            check("G1", entry <= end.last_entry, *what, "is beyond", end)
            return
        check("L1", epoch == 1 or epoch - 1 in ends, *what, "before the epoch below was closed")
        lac = self._reader_lacs.get((reader, ledger_of(log_id, epoch)))
        if lac is not None:
            check("L1", entry <= lac, *what, "is above its LAC", lac)

    def on_control_entry(
        self, log_id: LogId, epoch: Epoch, entry_id: EntryId, token: str | None = None
    ) -> None:
        """A reader was given an entry without records: it shows nobody anything of it.

        Args:
            token: that the entry sets.
        """
        self._segment_record(log_id).controls.setdefault(epoch, set()).add(entry_id)
        if token is not None:
            self.conditions(log_id).on_token_read(Dlsn(epoch, entry_id, 0), token)

    def on_skip(self, reader: int, log_id: LogId, epoch: Epoch, entry_id: EntryId) -> None:
        """A reader was told that what lies before an entry is gone (T1)."""
        self._life.on_skip(log_id, epoch, entry_id)
        self.on_reader_gap(reader, log_id)

    def on_reader_gap(self, reader: int, log_id: LogId) -> None:
        """A reader was told of a hole: sequence numbers may be left out here."""
        cursor = self._cursors.get((reader, log_id))
        if cursor is not None:
            self._cursors[reader, log_id] = (cursor[0], True)

    def on_reader_lac(self, reader: int, ledger_id: LedgerId, lac: EntryId) -> None:
        """A reader knows a LAC: it never falls, and the final read reaches it."""
        known = self._reader_lacs.get((reader, ledger_id))
        if known is not None:
            what = "ledger", ledger_id, "reader", reader, "LAC", lac
            self._tally.check("L1", lac >= known, *what, "falls from", known)
        self._reader_lacs[reader, ledger_id] = lac
        if lac > self._highest_lacs.get(ledger_id, NOTHING):
            self._highest_lacs[ledger_id] = lac

    def on_reader_restarted(self, reader: int) -> None:
        """The process that a reader asks begins anew: it may be told a lower LAC than before."""
        known = self._reader_lacs
        self._reader_lacs = {key: lac for key, lac in known.items() if key[0] != reader}

    def on_tail_asked(self, log_id: LogId) -> TailQuestion:
        """Somebody asks where a log ends; for `on_tail`."""
        return self._record(log_id).on_tail_asked()

    def on_tail(self, now_us: int, question: TailQuestion, dlsn: Dlsn, seq_num: int) -> None:
        """The answer is called sure: nothing lies above it that was acknowledged before (L1)."""
        self._record(question.log_id).on_tail(now_us, question, dlsn, seq_num)

    def on_read_to_tail(self, question: TailQuestion, head: Dlsn, found: Collection[Dlsn]) -> None:
        """A read from `head` to a tail that was told: all that was acknowledged came (D1)."""
        self._record(question.log_id).on_read_to_tail(question, head, found)

    def bookie_lac(self, reader: int, member: Member, ledger_id: LedgerId) -> EntryId:
        """The highest LAC that a sound bookie has told a reader."""
        return self._bookie_lacs.get((reader, member, ledger_id), NOTHING)

    def on_bookie_lac(
        self, reader: int, member: Member, ledger_id: LedgerId, lac: EntryId,
        floor: EntryId | None = None,
    ) -> None:  # fmt: skip
        """A sound bookie told a reader its LAC: it never falls, for the same reader (L1).

        Args:
            floor: what the reader had been told when it asked: answers overtake one another. None:
                it asks nothing before it was answered.
        """
        told = self.bookie_lac(reader, member, ledger_id)
        known = told if floor is None else floor
        what = "reader", reader, "hears from", member, "of", ledger_id, "LAC", lac, "after", known
        self._tally.check("L1", lac >= known, *what)
        self._bookie_lacs[reader, member, ledger_id] = max(lac, told)

    # --- truncation: T1, archive: A1 --------------------------------------------------------------

    def on_log_changed(self, now_us: int, before: LogNode, after: LogNode) -> None:
        """A log node was replaced."""
        self.conditions(after.log_id).on_wish(after.config.ack_mode)
        segments = self._segment_record(after.log_id)
        self._life.on_log_changed(now_us, before, after, segments)
        self._archive.on_log_changed(now_us, before, after, segments)

    def on_completed(self, now_us: int, log_id: LogId, epoch: Epoch, completed_us: int) -> None:
        """The close of a segment that was told of says when it was made."""
        segments = self._segment_record(log_id)
        self._life.on_closed(now_us, log_id, epoch, completed_us, segments)
        self._archive.on_completed(log_id, epoch, completed_us)

    def on_copies_changed(
        self,
        now_us: int,
        before: AnySegment,
        after: AnySegment,
        stored: Collection[int] | None = None,
    ) -> None:
        """As `ArchiveRecord.on_segment_changed`."""
        self._archive.on_segment_changed(now_us, before, after, stored)

    def on_pulled(self, now_us: int, ledger_id: LedgerId) -> None:
        """As `ArchiveRecord.on_pulled`."""
        self._archive.on_pulled(now_us, ledger_id)

    def on_truncation(self, log_id: LogId, *, is_asked: bool) -> None:
        """An operator begins to truncate a log, or is answered."""
        self._life.on_truncation(log_id, is_asked=is_asked)

    def on_dropped(self, log_id: LogId, epoch: Epoch) -> None:
        """A bookie drops every ledger of a log below `epoch`."""
        self._life.on_dropped(log_id, epoch)

    def on_purged(self, ledger_id: LedgerId, last_entry: EntryId) -> None:
        """A bookie purges what lies beyond an entry."""
        segments = self._segment_record(log_of(ledger_id))
        self._life.on_purged(ledger_id, last_entry, segments)

    def on_segment_removed(self, log_id: LogId, epoch: Epoch) -> None:
        """A segment node was deleted."""
        self._life.on_forgotten(log_id, Epoch(epoch + 1))

    # --- owners: H1 ------------------------------------------------------------------------------

    def on_owner(self, log_id: LogId, owner: str, replaced: str | None, *, by_hint: bool) -> None:
        """As `HintRecord.on_owner`."""
        self._hints.on_owner(log_id, owner, replaced, by_hint=by_hint)

    # --- metadata logs: N1 -----------------------------------------------------------------------

    def count_holders(self, ledger_id: LedgerId, entry_id: EntryId, crc: int) -> int:
        """How many bookies ever held these bytes of an entry."""
        return self._holdings(ledger_id).holders(entry_id, crc).bit_count()

    # --- memory: M1 ------------------------------------------------------------------------------

    def on_memory(self, now_us: int, what: str, size: int, bound: int) -> None:
        """A queue, window or budget was measured; size and bound are in one unit."""
        self._tally.check("M1", size <= bound, what, "at", now_us, "µs holds", size, ">", bound)

    # --- the end ---------------------------------------------------------------------------------

    def finish(
        self,
        complete: Mapping[LogId, Sequence[tuple[Dlsn, int, bytes]]],
        tokens: Mapping[LogId, Sequence[tuple[Dlsn, str]]] = {},
        heads: Mapping[LogId, tuple[Epoch, EntryId]] = {},
    ) -> None:
        """Judge the final complete read of every log; one that is missing is taken as empty.

        Args:
            tokens: what the control records that it met set.
            heads: where the read began, if not with the oldest segment: what is truncated is not
                repaired, and may be gone before it is given up.
        """
        judged = {*complete, *self._records, *self._segments}
        # Of metadata logs nobody asks for all: `moved_record` judges what counts.
        for log_id in sorted(log_id for log_id in judged if not is_metadata_log(log_id)):
            first = Epoch(self._life.first_live_epoch(log_id)), EntryId(0)
            first = max(first, heads.get(log_id, first))
            # What was given up while it was read is not asked for.
            records = [r for r in complete.get(log_id, ()) if r[0][:2] >= first]
            head_key = 0 if first == (1, 0) else key_of(Dlsn(*first, 0))
            self._record(log_id).finish(records, head_key)
            self._segment_record(log_id).check_gaps(records, *first)
            self._life.finish(log_id, records)
            if log_id in self._deliveries:
                self._deliveries[log_id].finish(records, self._record(log_id).read_ms)
            if log_id in self._conditions:
                found = [(key_of(dlsn), token) for dlsn, token in tokens.get(log_id, ())]
                found = [(key, token) for key, token in found if key >= head_key]
                self._conditions[log_id].finish(records, found, head_key)
        for ledger_id, lac in self._highest_lacs.items():
            log_id, epoch = log_of(ledger_id), epoch_of(ledger_id)
            segments = self._segment_record(log_id)
            end = segments.ends.get(epoch)
            if end is None:
                # Only a log's last epoch is open: its last entry is that of the last record, or
                # one without records.
                last = next((dlsn for dlsn, _, _ in reversed(complete.get(log_id, ()))), None)
                highest = last.entry if last is not None and last.epoch == epoch else NOTHING
                head = heads.get(log_id)
                if head is not None and head[0] == epoch:
                    highest = max(highest, EntryId(head[1] - 1))
                highest = max([highest, *segments.controls.get(epoch, ())])
            else:
                highest = end.last_entry
            what = "log", log_id, "epoch", epoch, "ends at", highest, "below a LAC of", lac
            self._tally.check("L1", lac <= highest, *what)

    # --- parts -----------------------------------------------------------------------------------

    def _record(self, log_id: LogId) -> LogRecord:
        record = self._records.get(log_id)
        if record is None:
            record = LogRecord(log_id, self._tally, self._pipelined)
            self._records[log_id] = record
        return record

    def _segment_record(self, log_id: LogId) -> SegmentRecord:
        record = self._segments.get(log_id)
        if record is None:
            record = self._segments[log_id] = SegmentRecord(log_id, self._tally)
        return record

    def _holdings(self, ledger_id: LedgerId) -> LedgerHoldings:
        holdings = self._ledgers.get(ledger_id)
        if holdings is None:
            record = self._segment_record(log_of(ledger_id))
            holdings = self._ledgers[ledger_id] = record.ledger(epoch_of(ledger_id))
        return holdings

    def _bit(self, member: Member) -> int:
        bit = self._bits.get(member)
        if bit is None:
            bit = self._bits[member] = 1 << len(self._bits)
        return bit

    def _bits_of(self, members: Iterable[Member]) -> int:
        bits = 0
        for member in members:
            bits |= self._bit(member)
        return bits
