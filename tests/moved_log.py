"""A log of which segment nodes have left the store for its metadata log, as a keeper moves them.

The keeper is the real core on the real changes; the metadata log has nodes and no bookies: its
entries are kept here and read by `fetch_run`, or also handed to `store_entry`. Whatever is closed,
released and archived moves at once (`move`). Used by tests of whoever reads segments' metadata.
Source: docs/protocol/metadata-logs.md "Changes".
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from duramen.core.cold_copy import ColdCopy
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.keeper import (
    AppendMetadata,
    ClaimEpoch,
    CommitMarks,
    Keeper,
    Look,
    MakeLog,
    ReadAll,
    TrimLog,
)
from duramen.core.metadata_log.listing import PlacedRecord
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.segment_base import SegmentBase
from duramen.errors import DuramenError
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    Lsn,
    Member,
    ledger_of,
    lsn_of,
    metadata_log_of,
)
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import MetadataStore, Stored, Watch
from duramen.wire.entry import encode_entry, read_entry_info
from duramen.wire.metadata_json import (
    Paths,
    encode_log,
    encode_segment,
    read_any_segment,
    read_log,
)
from duramen.wire.nodes.metadata_entries import pack_metadata_batches, read_metadata_entry
from duramen.wire.record_batch import read_info
from duramen_sequencer.life.metadata_logs import MetadataLogNodes

MEMBERS: Final = tuple(Member(BookieId(f"bookie-{n}"), Incarnation(f"{n}" * 32)) for n in range(3))

StoreEntry = Callable[[LedgerId, EntryId, bytes], Awaitable[None]]


COPY: Final = ColdCopy("0a" * 16, "1b" * 32, 100, 5, 6)


def make_cold_segment(log_id: LogId, epoch: Epoch) -> Segment:
    """A closed one of one record, with a cold copy that was rechecked."""
    fragments = (Fragment(EntryId(0), MEMBERS),)
    closed = Segment(log_id, epoch, Quorum(3, 3, 2), fragments).closed(
        last_entry=EntryId(0), totals=Totals(1, 10, None, 1_000 * epoch),
        start_seq_num=epoch - 1, completed_unix_ms=5, nonce="c",
    )  # fmt: skip
    return closed.with_cold_copy(COPY, f"n{epoch}")


async def put_cold_log(
    store: MetadataStore, paths: Paths, log: LogNode, epoch_count: int, *, first_hot: int
) -> LogNode:
    """A log of so many closed epochs of one record; those below `first_hot` are released."""
    grown = replace(
        log, next_epoch=Epoch(epoch_count + 1), last_clean_epoch=epoch_count,
        totals=Totals(epoch_count, 10 * epoch_count, None, 1_000 * epoch_count),
        first_hot_epoch=Epoch(first_hot), snapshot_lsn=lsn_of(Epoch(epoch_count), EntryId(0)),
    ).validated()  # fmt: skip
    await store.create(paths.log(log.log_id), encode_log(grown), make_parents=True)
    await store.create(paths.segments(log.log_id), b"")
    for epoch in map(Epoch, range(1, epoch_count + 1)):
        data = encode_segment(make_cold_segment(log.log_id, epoch))
        await store.create(paths.segment(log.log_id, epoch), data)
    return grown


COPY_RESTED_MS: Final = 1 << 62
"""No cold copy here is fresh."""


async def _is_ours(_: LogNode) -> bool:
    return True


async def fetch_nothing(
    segment: SegmentBase, first: EntryId, _last: EntryId, _bytes_max: int
) -> Sequence[tuple[EntryId, bytes]]:
    """For a log of which nothing has moved: nobody asks."""
    raise DuramenError("data_unavailable", f"e{segment.epoch}n{first}: there is no metadata log")


def make_segment_nodes(store: MetadataStore, paths: Paths) -> SegmentNodes:
    """What a follower is given where no metadata log can be read."""
    return SegmentNodes(store, paths, MetadataRecords(store, paths, fetch_nothing))


class HookedStore(MemoryStore):
    """Something happens just before a node is read."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}
        """By path; each happens once."""

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        """The node, after that."""
        happens = self.before.pop(path, None)
        if happens is not None:
            await happens()
        return await super().get(path, watch)


class MetadataLogTwin:
    """The metadata log of one log, and its keeper.

    Args:
        members: who has its entries, as its segment nodes say.
        store_entry: puts an entry where those are to find it.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        log_id: LogId,
        *,
        members: tuple[Member, ...] = MEMBERS,
        store_entry: StoreEntry | None = None,
    ) -> None:
        self.entries: dict[Lsn, bytes] = {}
        self.is_away = False
        """Nobody gives an entry now."""

        self.fetch_count = 0
        self.fetched_entry_count = 0
        self.on_fetch: Callable[[], Awaitable[None]] | None = None
        self.metadata_log_id = metadata_log_of(log_id)
        self._store = store
        self._paths = paths
        self._log_id = log_id
        self._members = members
        self._store_entry = store_entry
        self._nodes = MetadataLogNodes(store, paths)
        self._nonces = itertools.count()
        self._keeper = Keeper(self._make_nonce)
        self._totals = Totals()

    def make_records(self) -> MetadataRecords:
        """Its records, read from here; another one each time, which knows nothing yet."""
        return MetadataRecords(self._store, self._paths, self.fetch_run)

    def make_segment_nodes(self) -> SegmentNodes:
        """Both places; another one each time, which knows nothing yet."""
        return SegmentNodes(self._store, self._paths, self.make_records())

    async def move(self) -> None:
        """Whatever may leave the store leaves it, and the metadata log is closed."""
        self._keeper.wake()
        while self._keeper.outbox:
            await self._carry_out(self._keeper.outbox.popleft())

    async def fetch_run(
        self, segment: SegmentBase, first: EntryId, last: EntryId, bytes_max: int
    ) -> Sequence[tuple[EntryId, bytes]]:
        """As a reader of entries: so many bytes, one entry at least."""
        self.fetch_count += 1
        if self.on_fetch is not None:
            await self.on_fetch()
        run: list[tuple[EntryId, bytes]] = []
        size_bytes = 0
        for entry in map(EntryId, range(first, last + 1)):
            body = None if self.is_away else self.entries.get(lsn_of(segment.epoch, entry))
            if body is None or (run and size_bytes + len(body) > bytes_max):
                break
            run.append((entry, body))
            size_bytes += len(body)
        if not run:
            raise DuramenError("data_unavailable", f"nobody gives e{segment.epoch}n{first}")
        self.fetched_entry_count += len(run)
        return run

    async def read_log(self) -> LogNode:
        """The log's own node."""
        return await self._read_node(self._log_id)

    async def change_log(self, change: Callable[[LogNode], LogNode]) -> LogNode:
        """Somebody sets the log's own node."""
        return await self._change(self._log_id, change)

    async def change_metadata_log(self, change: Callable[[LogNode], LogNode]) -> LogNode:
        """Somebody sets the metadata log's node."""
        return await self._change(self.metadata_log_id, change)

    # --- The keeper's wants ----------------------------------------------------------------------

    def _make_nonce(self) -> str:
        return f"k{next(self._nonces)}"

    async def _carry_out(self, want: object) -> None:
        keeper = self._keeper
        match want:
            case Look():
                look = self._nodes.look(self._log_id, _is_ours, rested_unix_ms=COPY_RESTED_MS)
                keeper.on_look(await look)
            case MakeLog():
                await self._nodes.make(want, created_unix_ms=5, nonce=self._make_nonce())
                keeper.on_changed(is_worth_a_look=True)
            case ClaimEpoch():
                keeper.on_opened(await self._claim(want))
            case AppendMetadata(epoch=epoch, records=records):
                batches = pack_metadata_batches(records, 1)
                lsns = [await self._append(epoch, batch) for batch in batches]
                await self._close(epoch)
                keeper.on_appended(lsns[0], lsns[-1])
            case CommitMarks():
                await self._nodes.commit(want)
                keeper.on_changed(is_worth_a_look=True)
            case TrimLog():
                await self._nodes.trim(self._log_id, want, unix_ms=77, nonce="t")
                keeper.on_changed(is_worth_a_look=True)
            case ReadAll():
                keeper.on_read(self._list_records())
            case _:
                raise AssertionError(want)

    async def _claim(self, want: ClaimEpoch) -> Epoch:
        epoch = (await self._read_node(self.metadata_log_id)).next_epoch
        await self._store.commit([self._nodes.bind_claim(want, epoch, self._make_nonce())])
        quorum = Quorum(len(self._members), len(self._members), len(self._members))
        fragments = (Fragment(EntryId(0), self._members),)
        segment = Segment(self.metadata_log_id, epoch, quorum, fragments)
        path = self._paths.segment(self.metadata_log_id, epoch)
        await self._store.create(path, encode_segment(segment))
        await self.change_metadata_log(lambda log: log.with_new_epoch("n"))
        self._totals = Totals()
        return epoch

    async def _append(self, epoch: Epoch, batch: bytes) -> Lsn:
        entry_id = EntryId(sum(lsn >> 32 == epoch for lsn in self.entries))
        ledger_id = ledger_of(self.metadata_log_id, epoch)
        count, before = read_info(batch).record_count, self._totals
        self._totals = before.plus(Totals(count, len(batch), None, 1))
        lsn = lsn_of(epoch, entry_id)
        self.entries[lsn] = encode_entry(
            ledger_id=ledger_id, entry_id=entry_id, before=before, batches=[batch],
            record_count=count, after=self._totals,
        )  # fmt: skip
        if self._store_entry is not None:
            await self._store_entry(ledger_id, entry_id, self.entries[lsn])
        return lsn

    async def _close(self, epoch: Epoch) -> None:
        path = self._paths.segment(self.metadata_log_id, epoch)
        found = await self._store.get(path)
        assert found is not None
        segment = read_any_segment(found.data)
        assert isinstance(segment, Segment)
        own = [lsn for lsn in self.entries if lsn >> 32 == epoch]
        totals = read_entry_info(self.entries[own[-1]]).totals if own else Totals()
        log = await self._read_node(self.metadata_log_id)
        closed = segment.closed(
            last_entry=EntryId(len(own) - 1), totals=totals,
            start_seq_num=log.totals.record_count, completed_unix_ms=5, nonce="n",
        )  # fmt: skip
        await self._store.set(path, encode_segment(closed), version=found.version)
        await self.change_metadata_log(lambda log: log.with_clean(closed, "n"))

    def _list_records(self) -> list[PlacedRecord]:
        entries = (self.entries[lsn] for lsn in sorted(self.entries))
        return [one for entry in entries for one in read_metadata_entry(entry, self._log_id)]

    async def _read_node(self, log_id: LogId) -> LogNode:
        found = await self._store.get(self._paths.log(log_id))
        assert found is not None, log_id
        return read_log(found.data)

    async def _change(self, log_id: LogId, change: Callable[[LogNode], LogNode]) -> LogNode:
        path = self._paths.log(log_id)
        found = await self._store.get(path)
        assert found is not None, log_id
        changed = change(read_log(found.data))
        await self._store.set(path, encode_log(changed), version=found.version)
        return changed
