"""Writes a restored segment to bookies, and asks each of them what it holds.

Adds travel as those of a recovery: the segment is nobody's to seal, and what comes twice is the
same entry. Every member that an entry goes to must have its copy: then each is asked for its
inventory, read anew from its disks, and the sums are compared. Memory: one frame a member.

Called by `restore.driver`. Source: R5, R9, R13, R22, docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from duramen.client.bookie_client import BookieClient
from duramen.core.entry_ranges import EntryRanges
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, LedgerId, Member
from duramen.limits import OVERLOADED_PAUSE_US
from duramen.runtime.cold import ColdStore
from duramen.runtime.http_client import OverloadedError, PeerClient, PeerError
from duramen.units import MIB, SECOND
from duramen.wire.bookie_calls import Add, ServiceClass, pack_adds, parse_statuses
from duramen.wire.cold.chain import Chain, chain_identities
from duramen.wire.cold.manifest import Manifest
from duramen.wire.frame import FrameError
from duramen.wire.repair_calls import Inventory, Source
from duramen_spark.cold_parts import open_parts
from duramen_spark.restore.entries import NewEntry, Reencoding
from duramen_spark.restore.placing import Placing

_FRAME_BYTES: Final = 4 * MIB
"""Of entries that are on their way: large enough that a journal's sync is shared by many."""

_CALL_TIMEOUT_US: Final = 10 * SECOND
_PATIENCE_US: Final = 120 * SECOND
"""For a bookie that is overloaded: it has clients to serve, and a restore has time."""


class WriteFailed(Exception):
    """A bookie has not taken its copies, or does not hold them; another one may."""

    def __init__(self, member: Member, detail: str) -> None:
        super().__init__(f"bookie {member.bookie}: {detail}")
        self.member = member


def read_entries(
    store: ColdStore, manifest: Manifest, reencoding: Reencoding
) -> Iterator[list[NewEntry]]:
    """Entries of a segment by row group, encoded anew. Blocking.

    Raises:
        ColdDataError: what is archived is not what it was.
        NotThere, ColdStoreDown: it is not there, or not now.
    """
    for reader in open_parts(store, manifest):
        for index, group in enumerate(reader.part.row_groups):
            length_bytes = group.totals_before.length_bytes
            entries = []
            for entry in reader.read_entries(index):
                entries.append(reencoding.encode(entry, length_bytes))
                length_bytes = entry.totals.length_bytes
            yield entries


class _RestoredCopy(NamedTuple):
    """What goes to one bookie of one entry."""

    entry: NewEntry
    envelope: bytes


class RestoreWriter:
    """Writes one segment.

    Args:
        urls: of the bookies that may get copies.
    """

    def __init__(
        self,
        client: PeerClient,
        urls: Mapping[BookieId, str],
        ledger_id: LedgerId,
        placing: Placing,
    ) -> None:
        self._client = client
        self._urls = urls
        self._ledger_id = ledger_id
        self._placing = placing
        self._written: dict[Member, Chain] = defaultdict(Chain)
        self._written_ranges: dict[Member, EntryRanges] = defaultdict(EntryRanges)
        self._waiting: list[NewEntry] = []
        self._waiting_bytes = 0

    async def add(self, entry: NewEntry) -> None:
        """Write an entry, now or with those that follow.

        Raises:
            WriteFailed: a bookie has not taken it.
        """
        self._waiting.append(entry)
        self._waiting_bytes += len(entry.data)
        if self._waiting_bytes >= _FRAME_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write what waits. Raises: as `add`."""
        by_member: dict[Member, list[_RestoredCopy]] = defaultdict(list)
        now_us = _clock_us()
        for entry in self._waiting:
            copies = self._placing.place(entry, now_us)
            for member in copies.members:
                by_member[member].append(_RestoredCopy(entry, copies.envelope))
        self._waiting, self._waiting_bytes = [], 0
        try:
            async with asyncio.TaskGroup() as group:
                for member, own in by_member.items():
                    group.create_task(self._send(member, own))
        except BaseExceptionGroup as failures:
            # Not `except*`: what is raised in it is a group again before Python 3.11.4.
            failed = failures.subgroup(WriteFailed)
            if failed is None or failures.split(WriteFailed)[1] is not None:
                raise
            raise failed.exceptions[0] from None

    async def _send(self, member: Member, copies: Sequence[_RestoredCopy]) -> None:
        adds = [
            Add(
                self._ledger_id, entry.entry_id, NOTHING, entry.data, True, ServiceClass.REPAIR,
                envelope=envelope,
            )
            for entry, envelope in copies
        ]  # fmt: skip
        deadline_us = _clock_us() + _PATIENCE_US
        left = adds
        while left:
            statuses = await self._ask(member, left, deadline_us)
            refused = []
            for add, status in zip(left, statuses, strict=True):
                if status is BookieStatus.OVERLOADED and _clock_us() < deadline_us:
                    refused.append(add)
                elif status is not BookieStatus.OK:
                    raise WriteFailed(member, f"entry {add.entry_id}: {status.name}")
            left = refused
            if left:
                await asyncio.sleep(OVERLOADED_PAUSE_US / SECOND)
        sums = chain_identities(self._ledger_id, [(one.entry_id, one.crc) for one, _ in copies])
        self._written[member] = self._written[member].plus(sums)
        for one, _ in copies:
            self._written_ranges[member].add(one.entry_id)

    async def _ask(
        self, member: Member, adds: Sequence[Add], deadline_us: int
    ) -> list[BookieStatus]:
        url = self._urls.get(member.bookie)
        if url is None:
            raise WriteFailed(member, "it has gone")
        body = pack_adds(member.incarnation, adds)
        while True:
            try:
                statuses = parse_statuses(
                    await self._client.call(f"{url}/b/add", body, _CALL_TIMEOUT_US)
                )
            except OverloadedError as error:
                if _clock_us() >= deadline_us:
                    raise WriteFailed(member, str(error)) from error
                await asyncio.sleep(error.retry_after_us / SECOND)
                continue
            except (PeerError, FrameError) as error:
                raise WriteFailed(member, str(error)) from error
            if len(statuses) != len(adds):
                raise WriteFailed(member, "its answer has another number of rows")
            return statuses

    async def verify(self, bookies: BookieClient, last: EntryId) -> None:
        """Ask every member what it holds: what was written to it, and, striped, nothing else.

        Raises:
            WriteFailed: a member does not hold it, or does not say.
        """
        for member in self._placing.members:
            found = await self._take_inventory(bookies, member, last)
            if found != self._written[member]:
                expected = self._written[member].count
                raise WriteFailed(member, f"holds {found.count} entries, not the {expected}")

    async def _take_inventory(self, bookies: BookieClient, member: Member, last: EntryId) -> Chain:
        source = Source(member, self._urls[member.bookie])
        chain = Chain()
        at: EntryId | None = EntryId(0)
        while at is not None and at <= last:
            answer = await bookies.take_inventory(source, Inventory(self._ledger_id, at, last))
            if answer.status is not BookieStatus.OK or answer.unknown:
                raise WriteFailed(member, f"says nothing of what it holds: {answer.status.name}")
            entries = answer.entries
            if self._placing.may_hold_more:
                entries = [one for one in entries if one[0] in self._written_ranges[member]]
            chain = chain.plus(chain_identities(self._ledger_id, entries))
            if answer.next is not None and answer.next <= at:
                raise WriteFailed(member, "its inventory does not go on")
            at = answer.next
        return chain


def _clock_us() -> int:
    return time.monotonic_ns() // 1_000
