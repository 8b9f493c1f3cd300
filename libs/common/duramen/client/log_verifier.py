"""Checks a log's copies at the bookies themselves: every entry, every replica, every count.

The nodes in ZooKeeper say which entries there are and who should hold them; each bookie is asked
for an inventory, for which it reads everything anew from its disks. A piece at a time, all members
of its ensemble or map at once, so memory is bounded by the piece. In a segment that is not closed
entries up to the greatest LAC are looked at, and what is missing there is asked for again: a copy
may be on its way. What neither a reader nor a takeover may ask for any more is not looked at. Of
released segments whose metadata have moved, it looks whether the metadata can be read.

Not here: what is compared with what (`replica_check`, `flexible_check`), the command
(`cli.cluster.verify`). Source: docs/protocol/metadata.md "Reading", docs/protocol/write.md "Write
sets", docs/protocol/flexible.md "Verifying copies", docs/protocol/metadata-logs.md "Reading", R4,
R15, T1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from duramen.client.bookie_client import BookieClient
from duramen.client.flexible_check import NodesPiece, compare_nodes, list_unsure, split_nodes
from duramen.client.replica_check import (
    SAID_TO_HAVE_NONE,
    CopyFault,
    CopySight,
    FaultKey,
    FragmentPiece,
    ReplicaReport,
    check_chain,
    check_totals,
    compare,
    list_missing,
    split_segment,
)
from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.lookup import LOOK_COUNT_MAX
from duramen.core.repair.audit import first_needed, live_epochs
from duramen.core.segment import Segment, Totals
from duramen.core.segment_base import SegmentBase
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import NOTHING, EntryId, Epoch, LogId, Member
from duramen.runtime.identity.names import Role
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.runtime.turning.addresses import TLS_DATA_URL, find_tls_url
from duramen.wire.bookie_calls import ReadRange, ServiceClass
from duramen.wire.entry import read_entry_info
from duramen.wire.metadata_json import Paths, read_any_segment, read_log, read_node
from duramen.wire.repair_calls import Inventory, Source

_PIECE_ENTRY_COUNT: Final = 8_192
"""With five members some 8 MB in memory."""

_OPEN_LOOK_COUNT: Final = 5
_OPEN_LOOK_PAUSE_S: Final = 0.5
"""An owner catches a slow member up within seconds; what is missing still then is a finding."""

Piece = FragmentPiece | NodesPiece

OnProgress = Callable[[int, int], None]
"""Told of the entries that were compared and of all that are known by then."""


class LogVerifier:
    """Verifies logs of one cluster.

    Args:
        store: started.
        security: as of the client, which has to know whom it calls.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        client: BookieClient,
        security: ProcessSecurity | None = None,
    ) -> None:
        self._security = security
        self._store = store
        self._paths = paths
        self._client = client
        self._sources: dict[Member, Source | None] = {}
        records = MetadataRecords(store, paths, self._fetch_run)
        self._segments = SegmentNodes(store, paths, records)

    async def find_log(self, namespace: str, name: str) -> LogId:
        """The id of a log.

        Raises:
            DuramenError: `log_not_found`.
            MetadataError: the metadata store gives no answer.
        """
        found = await self._store.get(self._paths.name(namespace, name))
        if found is None:
            raise DuramenError("log_not_found", f"there is no log {namespace}/{name}")
        return LogId(int(read_node(found.data)["log_id"]))

    async def verify(
        self, log_id: LogId, on_progress: OnProgress = lambda *_: None
    ) -> ReplicaReport:
        """Compare every copy of every live segment with the metadata and with one another.

        Raises:
            DuramenError: `log_not_found`: it was deleted for good; `metadata_unavailable`: retry.
            MetadataError: the metadata store gives no answer.
            MetadataJsonError: a node cannot be read.
        """
        report = ReplicaReport()
        log, segments = await self._read_log(log_id, report)
        pieces: list[Piece] = []
        for segment in segments:
            end, begin = await self._find_end(segment), first_needed(log, segment)
            pieces += _split(segment, end, begin)
            report.segments.append(_describe(segment, max(0, end + 1 - begin)))
        total = sum(piece.last - piece.first + 1 for piece in pieces)
        done = 0
        on_progress(done, total)
        for piece in pieces:
            sights = await self._look(piece)
            if isinstance(piece, NodesPiece):
                compare_nodes(piece, sights, report)
                _note_silent(piece, sights, report)
            else:
                compare(piece, sights, report)
            done += piece.last - piece.first + 1
            on_progress(done, total)
        await self._check_counts(log, segments, report)
        if not report.is_good:
            await self._forget_what_went(log_id, report)
        await self._check_moved(log_id, report)
        report.released_count = max(0, log.first_hot_epoch - log.first_live_epoch)
        return report

    # --- Metadata --------------------------------------------------------------------------------

    async def _read_log(
        self, log_id: LogId, report: ReplicaReport
    ) -> tuple[LogNode, list[AnySegment]]:
        """The log and its live segments, by point reads after a sync (R4)."""
        log = await self._read_node(log_id)
        if log is None or log.is_purged:
            raise DuramenError("log_not_found", f"log {log_id} was deleted for good")
        segments: list[AnySegment] = []
        for epoch in live_epochs(log):
            node = await self._store.get(self._paths.segment(log_id, Epoch(epoch)))
            if node is not None:
                segments.append(read_any_segment(node.data))
                continue
            again = await self._store.get(self._paths.log(log_id))
            if again is not None and epoch not in live_epochs(read_log(again.data)):
                continue  # it was given up meanwhile
            report.add(FaultKey(Epoch(epoch), CopyFault.METADATA, None, "there is no segment node"))
        return log, segments

    async def _forget_what_went(self, log_id: LogId, report: ReplicaReport) -> None:
        """What was given up or released since this began may be dropped by now."""
        log = await self._read_node(log_id)
        if log is not None:
            report.forget_below(Epoch(live_epochs(log).start))

    async def _check_moved(self, log_id: LogId, report: ReplicaReport) -> None:
        """Whether the metadata of every segment that has moved can be read."""
        for _ in range(LOOK_COUNT_MAX):
            log = await self._read_node(log_id)
            if log is None or log.is_purged or not log.moved_count:
                return
            try:
                moved = await self._segments.read_moved(log)
            except DuramenError as error:
                _note_unread(log.first_live_epoch, error.detail, report)
                return
            if moved is not None:
                await self._check_records(log, moved, report)
                return
            # The metadata log was trimmed meanwhile, and the log node is newer.
        raise DuramenError("metadata_unavailable", f"log {log_id} changed all the time: try again")

    async def _check_records(
        self, log: LogNode, moved: Mapping[Epoch, AnySegment], report: ReplicaReport
    ) -> None:
        for epoch in map(Epoch, range(log.first_live_epoch, log.metadata.through + 1)):
            path = self._paths.segment(log.log_id, epoch)
            if epoch not in moved and await self._store.get(path) is None:
                detail = "its metadata have moved, and no record of them can be found"
                _note_unread(epoch, detail, report)

    async def _read_node(self, log_id: LogId) -> LogNode | None:
        path = self._paths.log(log_id)
        await self._store.sync(path)
        found = await self._store.get(path)
        return None if found is None else read_log(found.data)

    async def _fetch_run(
        self, segment: SegmentBase, first: EntryId, last: EntryId, bytes_max: int
    ) -> list[tuple[EntryId, bytes]]:
        """Entries of a metadata log, from the first bookie that gives them.

        Raises:
            DuramenError: `data_unavailable`: none does.
        """
        end = segment.end_of_place(first, last)
        wanted = ReadRange(segment.ledger_id, first, end, bytes_max, service=ServiceClass.REPAIR)
        for member in segment.list_holders(first):
            source = await self._find_source(member)
            if source is None:
                continue
            (answer,) = await self._client.read(source, [wanted])
            if answer.entries and answer.entries[0][0] == first:
                return [(entry, bytes(data)) for entry, data in answer.entries]
        raise DuramenError("data_unavailable", f"no bookie gives e{segment.epoch}n{first} now")

    async def _find_end(self, segment: AnySegment) -> EntryId:
        """The last entry, or the greatest LAC that a member tells, of the last fragment if any."""
        if segment.last_entry is not None:
            return segment.last_entry
        first = EntryId(0)
        if isinstance(segment, Segment):
            first = segment.last_fragment.first_entry
        inventory = Inventory(segment.ledger_id, first, first)
        sources = [await self._find_source(member) for member in segment.members]
        answers = await asyncio.gather(
            *[self._client.take_inventory(source, inventory) for source in sources if source]
        )
        # Entries before the last fragment are confirmed, whatever its members were told.
        return EntryId(max([first - 1, *[answer.lac for answer in answers]]))

    async def _find_source(self, member: Member) -> Source | None:
        """Where a member serves; None: nowhere. Whose incarnation it is, the bookie says itself."""
        if member not in self._sources:
            found = await self._store.get(f"{self._paths.available}/{member.bookie}")
            fields = {} if found is None else read_node(found.data)
            url, tls_url = fields.get("data_url"), find_tls_url(fields, TLS_DATA_URL)
            self._sources[member] = Source(member, url) if isinstance(url, str) else None
            if self._security is not None and isinstance(url, str):
                self._security.peers.hear(Role.BOOKIE, member.bookie, url, tls_url)
        return self._sources[member]

    # --- Bookies ---------------------------------------------------------------------------------

    async def _look(self, piece: Piece) -> dict[Member, CopySight]:
        """What every member tells of a piece."""
        members = list(piece.members if isinstance(piece, NodesPiece) else piece.ensemble)
        sights = dict(zip(members, await self._look_at(piece, members), strict=True))
        for _ in range(0 if piece.segment.is_closed else _OPEN_LOOK_COUNT):
            lacking = _list_lacking(piece, sights)
            if not lacking:
                break
            await asyncio.sleep(_OPEN_LOOK_PAUSE_S)
            sights |= dict(zip(lacking, await self._look_at(piece, lacking), strict=True))
        return sights

    async def _look_at(self, piece: Piece, members: Sequence[Member]) -> list[CopySight]:
        return await asyncio.gather(*[self._look_at_one(piece, member) for member in members])

    async def _look_at_one(self, piece: Piece, member: Member) -> CopySight:
        identities: dict[EntryId, int] = {}
        unknown = EntryRanges()
        source = await self._find_source(member)
        if source is None:
            return CopySight(BookieStatus.UNREACHABLE, identities, unknown)
        first: EntryId | None = piece.first
        while first is not None and first <= piece.last:
            answer = await self._client.take_inventory(
                source, Inventory(piece.segment.ledger_id, first, piece.last)
            )
            if answer.status is not BookieStatus.OK:
                return CopySight(answer.status, {}, EntryRanges())
            identities.update(answer.entries)
            for pair in answer.unknown:
                unknown.add(*pair)
            if answer.next is not None and answer.next <= first:
                return CopySight(BookieStatus.UNKNOWN, {}, EntryRanges())  # it would never end
            first = answer.next
        return CopySight(BookieStatus.OK, identities, unknown)

    # --- Counts ----------------------------------------------------------------------------------

    async def _check_counts(
        self, log: LogNode, segments: Sequence[AnySegment], report: ReplicaReport
    ) -> None:
        for segment in segments:
            for at, said in _list_totals(segment):
                found = await self._read_totals(segment, at)
                text = "" if found is None else check_totals(segment, at, said, found)
                if text:
                    report.add(FaultKey(segment.epoch, CopyFault.METADATA, None, text))
        closed = [segment for segment in segments if segment.is_closed]
        is_whole = len(closed) == log.last_clean_epoch - live_epochs(log).start + 1
        if is_whole:
            for epoch, text in check_chain(closed, log.totals.record_count):
                report.add(FaultKey(epoch, CopyFault.METADATA, None, text))

    async def _read_totals(self, segment: AnySegment, at: EntryId) -> Totals | None:
        """What the header of an entry says that the segment holds up to it; None: nobody tells."""
        wanted = ReadRange(
            segment.ledger_id, at, at, 1, service=ServiceClass.REPAIR, headers_only=True
        )
        for member in segment.list_holders(at):
            source = await self._find_source(member)
            if source is None:
                continue
            (answer,) = await self._client.read(source, [wanted])
            if answer.entries:
                return read_entry_info(answer.entries[0][1]).totals
        return None


def _note_unread(epoch: Epoch, detail: str, report: ReplicaReport) -> None:
    report.add(FaultKey(epoch, CopyFault.METADATA, None, detail))


def _split(segment: AnySegment, end: EntryId, begin: EntryId) -> Sequence[Piece]:
    if isinstance(segment, FlexibleSegment):
        return split_nodes(segment, end, _PIECE_ENTRY_COUNT, begin=begin)
    return split_segment(segment, end, _PIECE_ENTRY_COUNT, begin=begin)


def _describe(segment: AnySegment, entry_count: int) -> dict[str, Any]:
    """What the report says of a segment itself."""
    row: dict[str, Any] = {
        "epoch": segment.epoch, "state": segment.state.value, "entries": entry_count,
    }  # fmt: skip
    if isinstance(segment, FlexibleSegment):
        wanted = segment.replication
        row["property"] = {"node": wanted.node, "rack": wanted.rack, "region": wanted.region}
        row["nodes"] = [list(member) for member in segment.list_holders(EntryId(0))]
        row["silent"] = []
    return row


def _note_silent(
    piece: NodesPiece, sights: Mapping[Member, CopySight], report: ReplicaReport
) -> None:
    """Who told nothing, which is no fault where the others' copies are enough."""
    row = next(row for row in report.segments if row["epoch"] == piece.segment.epoch)
    for member, sight in sights.items():
        has_told = sight.status is BookieStatus.OK or sight.status in SAID_TO_HAVE_NONE
        if not has_told and list(member) not in row["silent"]:
            row["silent"].append(list(member))


def _list_lacking(piece: Piece, sights: Mapping[Member, CopySight]) -> list[Member]:
    if isinstance(piece, NodesPiece):
        return list_unsure(piece, sights)
    return list_missing(piece, sights)


def _list_totals(segment: AnySegment) -> list[tuple[EntryId, Totals | None]]:
    """Where the metadata says what the segment holds, and what it says."""
    fragments = segment.fragments if isinstance(segment, Segment) else ()
    places: list[tuple[EntryId, Any]] = [
        (EntryId(fragment.first_entry - 1), fragment.totals_before)
        for fragment in fragments
        if fragment.first_entry > 0
    ]
    if segment.last_entry is not None and segment.last_entry != NOTHING:
        places.append((segment.last_entry, segment.totals))
    return places
