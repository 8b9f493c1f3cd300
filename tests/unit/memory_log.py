"""A log in memory behind the port that searches for positions use, and what it holds, record by
record: the brute force that they are compared with.

Segments are made of real encoded entries: batches with or without txids, control entries, holes,
entries above the LAC. Used by `test_positions`. Source: docs/protocol/reading.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.segment_base import SegmentBase
from duramen.ids import (
    NOTHING,
    BookieId,
    Dlsn,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    ledger_of,
)
from duramen.runtime.reading.positioning.positions import Start
from duramen.runtime.reading.tail import Tail
from duramen.wire.entry import CONTROL, EntryInfo, encode_entry, read_entry_info
from duramen.wire.read_answers import place_batches
from duramen.wire.record_batch import encode_batch
from duramen_readproxy.answers import Bounds, RecordPick

LOG = LogId(5)
MEMBERS = tuple(Member(BookieId(n), Incarnation(n * 32)) for n in "abc")
OTHERS = tuple(Member(BookieId(n), Incarnation(n * 32)) for n in "abd")


class Made(NamedTuple):
    """A record as it was made, and where it came to stand."""

    seq_num: int
    dlsn: Dlsn
    txid: int | None
    timestamp_ms: int


@dataclass
class BatchPlan:
    """One batch: a time for each record, and a txid for each or none."""

    times: list[int]
    txids: list[int] | None = None


@dataclass
class EntryPlan:
    """One entry: batches, or a control entry (`times` raise the running maximum), or a hole."""

    batches: list[BatchPlan] = field(default_factory=list)
    is_control: bool = False
    is_hole: bool = False
    begins_fragment: bool = False


@dataclass
class SegmentPlan:
    """One segment; `unconfirmed` of its last entries lie above the LAC of an open one."""

    entries: list[EntryPlan] = field(default_factory=list)
    unconfirmed_count: int = 0


class MemoryLog:
    """A `LogView`: every segment but the last is CLOSED, and that one if `is_closed`."""

    def __init__(
        self, plans: Sequence[SegmentPlan], *, is_closed: bool, log_id: LogId = LOG
    ) -> None:
        self.log = LogNode(log_id, "ns", "log", parse_log_config({}))
        self.segments: dict[Epoch, Segment] = {}
        self.entries: dict[tuple[Epoch, EntryId], bytes] = {}
        self.records: list[Made] = []
        self.hidden: list[tuple[int | None, int]] = []
        """Txids and times that raise running maxima and are of no record."""
        self.lac = NOTHING
        self.trim = Dlsn(Epoch(1), EntryId(0), 0)
        self._open_totals = Totals()
        self.group_entry_count = 0
        """Entries of a row group, where CLOSED segments lie in a cold store; 0: on bookies."""
        self.header_count = 0
        self.run_count = 0
        for number, plan in enumerate(plans):
            self._add_segment(plan, is_closed=is_closed or number < len(plans) - 1)

    def truncate(self, live_count: int, first_live: int) -> None:
        """Leave `live_count` records, and the nodes from `first_live` on, as far as that may be."""
        live = self.records[len(self.records) - live_count :]
        seq_num, dlsn, *_ = live[0] if live else (self.tail.seq_num, self.tail_dlsn)
        known, self.trim = self.log, dlsn
        self.log = replace(
            known,
            trim_lsn=dlsn.epoch << 32 | dlsn.entry,
            trim_seq_num=seq_num,
            first_live_epoch=Epoch(max(min(first_live, dlsn.epoch), known.first_live_epoch)),
        ).validated()
        for old in list(self.segments):
            if old < self.log.first_live_epoch:
                del self.segments[old]

    # --- The port --------------------------------------------------------------------------------

    async def read_log(self) -> LogNode:
        return self.log

    async def read_segment(self, epoch: Epoch) -> Segment | None:
        return self.segments.get(epoch)

    async def read_segments(self, epochs: range) -> list[Segment | None]:
        return [await self.read_segment(Epoch(epoch)) for epoch in epochs[:2]]

    async def find_tail(self) -> Tail:
        return self.tail

    async def find_reach(self) -> Tail:
        return await self.find_tail()

    async def list_points(self, segment: SegmentBase) -> list[tuple[EntryId, Totals]]:
        assert isinstance(segment, Segment)
        if self.group_entry_count and segment.last_entry is not None:
            return self._list_groups(segment, segment.last_entry)
        return [(fragment.first_entry, fragment.totals_before) for fragment in segment.fragments]

    def _list_groups(self, segment: SegmentBase, last: EntryId) -> list[tuple[EntryId, Totals]]:
        """As a manifest has them: a group begins anew behind a hole, where the totals before it
        are the greatest that its own header allows."""
        points: list[tuple[EntryId, Totals]] = []
        before: Totals | None = Totals()
        count = 0
        for entry in map(EntryId, range(last + 1)):
            if segment.hole_at(entry) is not None:
                before = None
                continue
            info = read_entry_info(self._get(segment, entry))
            if before is None or count == self.group_entry_count:
                count = 0
            if count == 0:
                known = info.totals._replace(record_count=info.first_position)
                points.append((entry, before or known))
            count, before = count + 1, info.totals
        return points

    async def fetch_header(self, segment: SegmentBase, entry: EntryId) -> EntryInfo:
        self.header_count += 1
        return read_entry_info(self._get(segment, entry))

    async def fetch_run(
        self, segment: SegmentBase, first: EntryId, last: EntryId, bytes_max: int
    ) -> Sequence[tuple[EntryId, bytes]]:
        """Two entries at a time, so that searches have to ask again."""
        assert first <= last
        self.run_count += 1
        run = range(first, min(first + 1, last) + 1)
        return [(EntryId(entry), self._get(segment, EntryId(entry))) for entry in run]

    @property
    def tail_dlsn(self) -> Dlsn:
        """The tail as a DLSN."""
        return Dlsn(self.tail.epoch, self.tail.entry, 0)

    @property
    def tail(self) -> Tail:
        """Where the log ends now."""
        log = self.log
        epoch = Epoch(log.last_clean_epoch + 1)
        seq_num = log.totals.record_count + self._open_totals.record_count
        return Tail(epoch, EntryId(self.lac + 1), self.lac, seq_num, 0)

    def _get(self, segment: SegmentBase, entry: EntryId) -> bytes:
        last = self.lac if segment.last_entry is None else segment.last_entry
        assert entry <= last, "what is beyond the end, or above the LAC, must not be asked for"
        assert segment.hole_at(entry) is None, "there is nothing in a hole"
        return self.entries[segment.epoch, entry]

    # --- Reading ---------------------------------------------------------------------------------

    def read(self, start: Start, until: int | None = None) -> list[int]:
        """Sequence numbers of what a read from there gives: through the real pick."""
        pick = RecordPick(start, Bounds(None, None, until), is_base64=False)
        tail = self.tail
        for epoch in range(start.epoch, tail.epoch + 1):
            segment = self.segments.get(Epoch(epoch))
            if segment is None:
                continue
            last = tail.lac if segment.last_entry is None else segment.last_entry
            first = start.entry if epoch == start.epoch else 0
            seq_num = segment.start_seq_num
            seq_num = self.log.totals.record_count if seq_num is None else seq_num
            for entry in range(first, last + 1):
                if segment.hole_at(EntryId(entry)) is None:
                    body = self.entries[Epoch(epoch), EntryId(entry)]
                    for placed in place_batches(body, Epoch(epoch), seq_num):
                        if not pick.is_full:
                            pick.offer(placed)
        return [document["seq_num"] for document in pick.drain()]

    # --- Making ----------------------------------------------------------------------------------

    def _add_segment(self, plan: SegmentPlan, *, is_closed: bool) -> None:
        epoch = self.log.next_epoch
        start_seq_num = self.log.totals.record_count
        self.log = self.log.with_new_epoch("n")
        entries = plan.entries
        while entries and entries[-1].is_hole:
            entries = entries[:-1]
        if not is_closed:
            entries = [e for e in entries if not e.is_hole]  # only recovery knows holes
            begins = [i for i, e in enumerate(entries) if e.begins_fragment]
            proved = max([NOTHING, *(begin - 1 for begin in begins)])  # a fragment proves a LAC
            self.lac = EntryId(max(proved, len(entries) - 1 - plan.unconfirmed_count))
        holes = [(EntryId(i), EntryId(i)) for i, e in enumerate(entries) if e.is_hole]
        totals = Totals()
        fragments = [Fragment(EntryId(0), MEMBERS)]
        for number, entry_plan in enumerate(entries):
            entry = EntryId(number)
            if entry_plan.begins_fragment and number and not holes:
                members = OTHERS if fragments[-1].ensemble == MEMBERS else MEMBERS
                fragments.append(Fragment(entry, members, totals))
            before, totals = totals, self._add_entry(epoch, entry, entry_plan, totals)
            is_shown = not entry_plan.is_hole and (is_closed or entry <= self.lac)
            if is_shown:
                self._note_records(Dlsn(epoch, entry, 0), start_seq_num, before, entry_plan)
            if not is_closed and entry <= self.lac:
                self._open_totals = totals
        ack_mode = "out_of_order" if holes else "ordered"
        segment = Segment(
            self.log.log_id, epoch, Quorum(3, 3, 2), tuple(fragments), ack_mode=ack_mode
        )
        if is_closed:
            segment = segment.closed(
                last_entry=EntryId(len(entries) - 1), totals=totals, start_seq_num=start_seq_num,
                completed_unix_ms=0, nonce="n", holes=_join(holes),
            )  # fmt: skip
            self.log = self.log.with_clean(segment, "n")
        self.segments[epoch] = segment

    def _add_entry(self, epoch: Epoch, entry: EntryId, plan: EntryPlan, before: Totals) -> Totals:
        """Keep the encoded entry, unless it is to be a hole; the totals after it."""
        batches = [
            encode_batch([b""] * len(b.times), 0, timestamps_ms=b.times, txids=b.txids)
            for b in plan.batches
        ]
        count = 0 if plan.is_control else sum(len(b.times) for b in plan.batches)
        txids = [txid for b in plan.batches for txid in b.txids or ()]
        times = [time for b in plan.batches for time in b.times]
        own = Totals(
            count, sum(map(len, batches)), max(txids, default=None), max(times, default=None)
        )
        after = before.plus(own)
        if times and (plan.is_hole or plan.is_control):
            self.hidden += [(max(txids, default=None), max(times))]
        if not plan.is_hole:
            self.entries[epoch, entry] = encode_entry(
                ledger_id=ledger_of(self.log.log_id, epoch), entry_id=entry, before=before,
                batches=batches, record_count=count, after=after, flags=CONTROL * plan.is_control,
            )  # fmt: skip
        return after

    def _note_records(
        self, first: Dlsn, start_seq_num: int, before: Totals, plan: EntryPlan
    ) -> None:
        slot = 0
        for batch in [] if plan.is_control else plan.batches:
            for index, time in enumerate(batch.times):
                txid = None if batch.txids is None else batch.txids[index]
                seq_num = start_seq_num + before.record_count + slot
                self.records.append(Made(seq_num, first._replace(slot=slot), txid, time))
                slot += 1


def _join(holes: list[tuple[EntryId, EntryId]]) -> tuple[tuple[EntryId, EntryId], ...]:
    joined: list[tuple[EntryId, EntryId]] = []
    for first, last in holes:
        if joined and joined[-1][1] == first - 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)
