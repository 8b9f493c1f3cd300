"""Metadata as repair reads it: bookies, logs, segments, and the notes about missing copies.

Every log that was ever made is read by its number, up to the last id that was given away, so that
a listing that comes back empty hides nobody (R4), and after it its metadata log, if its node says
that it has one. A log is read by itself, its segments one after the other, and none of them is
kept. What cannot be read is an `UnreadError`, never an absence. Metadata that have moved to a
metadata log are not read: they are of released segments, which nobody has to hold anything of.

Called by `auditor`, `worker`, `operations`. Source: docs/protocol/metadata.md "The changes",
docs/protocol/metadata-logs.md "Attacks", docs/protocol/repair.md, R4.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.repair.audit import Debts, live_epochs
from duramen.core.repair.cluster_view import Absences, BookieState, ClusterView, build_view
from duramen.core.repair.doubts import Doubts
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    Member,
    ledger_of,
    metadata_log_of,
)
from duramen.limits import AUDIT_CONCURRENCY
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.metadata_store import Rejected, Stored, Watch
from duramen.wire.metadata_json import (
    MetadataJsonError,
    read_any_segment,
    read_bookie,
    read_log,
    read_node,
)
from duramen_sequencer.life.workers import for_each

_LOG: Final = logging.getLogger(__name__)


class UnreadError(Exception):
    """Something that must be there could not be read, or is not understood."""


class OwedNote(NamedTuple):
    """A node under `repair/owed` as it was read."""

    path: str
    version: int
    ranges: list[tuple[int, int]]
    fields: dict[str, Any]
    """All that stands in it: what is not known here stays when the ranges change."""


class QueueNote(NamedTuple):
    """A node under `repair/queue` as it was read."""

    path: str
    version: int
    fields: dict[str, Any]

    def members(self) -> list[Member]:
        """Those who reported damage of their own."""
        return [read_member(name) for name in self.fields.get("reports", {})]


class Notes(NamedTuple):
    """Everything that is noted about one ledger."""

    owed: dict[Member, OwedNote]
    queued: QueueNote | None


NO_NOTES = Notes({}, None)


class LogAudit(NamedTuple):
    """One log and its live segments, each with what is noted about it."""

    log: LogNode
    segments: AsyncIterator[tuple[AnySegment, Debts]]


class Readings:
    """Reads for one auditor.

    Args:
        grace_us: how long a bookie may be away before it counts as lost.
    """

    def __init__(self, link: MetadataLink, *, grace_us: int) -> None:
        self._link = link
        self._store, self._paths = link.store, link.paths
        self._grace_us = grace_us
        self._cleared: dict[LedgerId, tuple[int, frozenset[tuple[Member, EntryId]]]] = {}
        self.absences = Absences()
        self.doubts = Doubts()

    # --- Bookies ---------------------------------------------------------------------------------

    async def read_view(self) -> ClusterView:
        """The bookies as they are registered now, each read by itself after a sync.

        Raises:
            MetadataError: nothing was learnt.
            UnreadError: a node is not understood.
        """
        await self._store.sync(self._paths.bookies)
        names = set(await self._store.children(self._paths.bookies) or ())
        registered, available = [], {}
        for name in sorted(names):
            stored = await self._get(self._paths.bookie(name))
            if stored is None:
                continue
            try:
                registered.append(_read_state(name, stored.data))
                present = await self._find_registration(name)
                if present is not None:
                    available[name] = read_node(present.data)
            except MetadataJsonError as error:
                raise UnreadError(f"bookie {name}: {error}") from error
        lost = await self._read_children(self._paths.repair_lost)
        regions = await self._store.get(self._paths.regions)
        try:
            closed = [] if regions is None else read_node(regions.data).get("closed", [])
            view = build_view(
                registered, available, lost, closed, self.absences,
                now_us=now_us(), grace_us=self._grace_us,
            )  # fmt: skip
        except (MetadataJsonError, ValueError) as error:
            raise UnreadError(str(error)) from error
        self.doubts.observe(view.bookies.values())
        return view

    async def _get(self, path: str) -> Stored | None:
        """A node; one that may not be read is no reason to try again at once.

        Raises:
            MetadataError, UnreadError: it is not known.
        """
        try:
            return await self._store.get(path)
        except Rejected as error:
            raise UnreadError(
                f"{path} may not be read ({error}): `duramen access apply` mends its rights"
            ) from error

    async def _find_registration(self, name: str) -> Stored | None:
        """None also where somebody else is in its place: a bookie's own node can be read."""
        try:
            return await self._store.get(f"{self._paths.available}/{name}")
        except Rejected as error:
            _LOG.warning("the registration of bookie %s is passed over: %s", name, error)
            return None

    async def _read_children(self, parent: str) -> dict[str, dict[str, Any]]:
        nodes = {}
        for name in await self._store.children(parent) or ():
            stored = await self._get(f"{parent}/{name}")
            if stored is not None:
                try:
                    nodes[name] = read_node(stored.data)
                except MetadataJsonError as error:
                    raise UnreadError(f"{parent}/{name}: {error}") from error
        return nodes

    # --- Logs and segments -----------------------------------------------------------------------

    async def walk(
        self,
        visit: Callable[[LogAudit], Awaitable[None]],
        on_unread: Callable[[str], None],
        noted: frozenset[LedgerId],
    ) -> bool:
        """Visit every log, metadata logs too; whether all, with all live segments, could be read.

        Args:
            noted: ledgers about which there are notes.

        Raises:
            MetadataError: the store cannot be reached.
            UnreadError: it is not known which logs there are.
        """
        unread: list[str] = []

        async def visit_one(log: LogNode | None) -> None:
            try:
                if log is not None:
                    await visit(LogAudit(log, self._list_segments(log, noted)))
            except UnreadError as error:
                note(error)

        async def visit_both(number: int) -> None:
            try:
                log = await self.read_log(LogId(number))
                await visit_one(log)
                await visit_one(None if log is None else await self._read_metadata_log(log))
            except UnreadError as error:
                note(error)

        def note(error: UnreadError) -> None:
            unread.append(str(error))
            on_unread(str(error))

        last = await self._read_last_log_id()
        await for_each(range(1, last + 1), visit_both, AUDIT_CONCURRENCY)
        return not unread

    async def read_log(self, log_id: LogId) -> LogNode | None:
        """A log node; None: there is none with that number, or none any more.

        Raises:
            MetadataError, UnreadError: it is not known.
        """
        stored = await self._store.get(self._paths.log(log_id))
        try:
            return None if stored is None else read_log(stored.data)
        except MetadataJsonError as error:
            raise UnreadError(f"log {log_id}: {error}") from error

    async def _read_metadata_log(self, log: LogNode) -> LogNode | None:
        """The metadata log of a log; None: there is none in which anything was written.

        Raises:
            MetadataError, UnreadError: it is not known.
        """
        if not log.metadata.epoch:
            return None
        log_id = metadata_log_of(log.log_id)
        found = await self.read_log(log_id)
        if found is None and await self.read_log(log.log_id) is not None:
            raise UnreadError(f"log {log_id}, the metadata log of log {log.log_id}, is not there")
        return found

    async def read_segment(self, log_id: LogId, epoch: Epoch) -> tuple[AnySegment, int] | None:
        """A segment and its version, or None if it is not there.

        Raises:
            MetadataError, UnreadError: it is not known.
        """
        stored = await self._store.get(self._paths.segment(log_id, epoch))
        try:
            return None if stored is None else (read_any_segment(stored.data), stored.version)
        except MetadataJsonError as error:
            raise UnreadError(f"segment {epoch} of log {log_id}: {error}") from error

    async def _list_segments(
        self, log: LogNode, noted: frozenset[LedgerId]
    ) -> AsyncIterator[tuple[AnySegment, Debts]]:
        for number in live_epochs(log):
            epoch = Epoch(number)
            found = await self.read_segment(log.log_id, epoch)
            if found is None:
                now = await self.read_log(log.log_id)
                if now is not None and number in live_epochs(now):
                    raise UnreadError(f"segment {epoch} of log {log.log_id} is not there")
                continue  # it was given up between the two reads
            ledger_id = ledger_of(log.log_id, epoch)
            notes = await self.read_notes(ledger_id) if ledger_id in noted else NO_NOTES
            yield found[0], self.debts_of(ledger_id, notes)

    async def _read_last_log_id(self) -> int:
        await self._store.sync(self._paths.cluster)
        stored = await self._store.get(self._paths.cluster)
        try:
            if stored is None:
                raise UnreadError("the cluster's node is not there")
            last = read_node(stored.data).get("last_log_id", 0)
        except MetadataJsonError as error:
            raise UnreadError(f"the cluster's node: {error}") from error
        if type(last) is not int or last < 0:
            raise UnreadError(f"the cluster's node: last_log_id is {last!r}")
        return last

    # --- Notes -----------------------------------------------------------------------------------

    async def list_noted(self, watch_owed: Watch | None, watch_queue: Watch | None) -> list[int]:
        """Ledgers with a note; a note that is missed is found by the next round.

        Raises:
            MetadataError: nothing was learnt.
        """
        owed = await self._store.children(self._paths.repair_owed, watch_owed) or ()
        queued = await self._store.children(self._paths.repair_queue, watch_queue) or ()
        return sorted({int(name) for name in (*owed, *queued) if name.isdecimal()})

    async def read_notes(self, ledger_id: LedgerId) -> Notes:
        """What is noted about a ledger.

        Raises:
            MetadataError, UnreadError: it is not known.
        """
        parent = f"{self._paths.repair_owed}/{ledger_id}"
        owed = {}
        try:
            for name in await self._store.children(parent) or ():
                stored = await self._store.get(f"{parent}/{name}")
                if stored is not None:
                    fields = read_node(stored.data)
                    ranges = [(int(a), int(b)) for a, b in fields["ranges"]]
                    note = OwedNote(f"{parent}/{name}", stored.version, ranges, fields)
                    owed[read_member(name)] = note
            path = self._paths.queued(ledger_id)
            stored = await self._get(path)
            queued = None
            if stored is not None:
                queued = QueueNote(path, stored.version, read_node(stored.data))
        except (MetadataJsonError, KeyError, TypeError, ValueError) as error:
            raise UnreadError(f"notes about ledger {ledger_id}: {error!r}") from error
        return Notes(owed, queued)

    def debts_of(self, ledger_id: LedgerId, notes: Notes) -> Debts:
        """The notes and doubts as an audit takes them, without what was found whole since."""
        doubts = self.doubts.about(ledger_id)
        if notes is NO_NOTES:
            self._cleared.pop(ledger_id, None)
            return Debts(doubtful=doubts.doubtful, compared=doubts.compared)
        version = -1 if notes.queued is None else notes.queued.version
        known = self._cleared.get(ledger_id)
        cleared = known[1] if known is not None and known[0] == version else frozenset()
        damaged = frozenset(() if notes.queued is None else notes.queued.members())
        owed = {member: note.ranges for member, note in notes.owed.items()}
        return Debts(owed, damaged, cleared, *doubts)

    def clear(
        self, ledger_id: LedgerId, note: QueueNote | None, member: Member, first: EntryId
    ) -> None:
        """A member's copy of a fragment was found whole, after this report if there is one."""
        self.doubts.clear(member, ledger_id, first)
        if note is None:
            return
        version, cleared = self._cleared.get(ledger_id, (note.version, frozenset()))
        kept = cleared if version == note.version else frozenset()
        self._cleared[ledger_id] = (note.version, kept | {(member, first)})


def read_member(name: str) -> Member:
    """A bookie's incarnation as notes name it.

    Raises:
        ValueError: it is no such name.
    """
    bookie, dot, incarnation = name.rpartition(".")
    if not (bookie and dot and incarnation):
        raise ValueError(f"{name!r} is no bookie's incarnation")
    return Member(BookieId(bookie), Incarnation(incarnation))


def _read_state(name: str, data: bytes) -> BookieState:
    node = read_bookie(data)
    member = Member(BookieId(name), node.incarnation)
    return BookieState(member, node.region, node.rack, node.weight, node.duty)
