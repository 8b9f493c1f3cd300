"""Reads of the cold store for readers: one load for all who want a row group, a cache, read-ahead.

The cold store has threads and a cache of its own, both bounded, so that hot ranges never wait for
it and never lose their cache to it. A reader that goes through a segment has row groups loaded
ahead of it, more of them the longer it goes on; a look-up loads one. A store that is down is left
alone for a second by everybody, who get its error at once.

Not here: what may be read (`core.reading.reader`), whether bytes are right (`cold_archive`).
Called by `bookies.RangeFetcher` and by the sequencer's truncations.
Source: docs/protocol/reading.md "Cold copies", docs/protocol/archive.md "Reading".
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from duramen.core.segment_base import SegmentBase, Totals
from duramen.errors import DuramenError
from duramen.ids import EntryId, LedgerId
from duramen.runtime.cluster_node import find_cluster
from duramen.runtime.cold import ColdStore, ColdStoreDown, open_cold_store
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.units import MIB
from duramen.wire.entry import EntryInfo, read_entry_info
from duramen.wire.metadata_json import MetadataJsonError, Paths

if TYPE_CHECKING:
    from duramen.runtime.reading.cold_archive import Archive, ColdLayout, Entries

T = TypeVar("T")

COLD_CACHE_BYTES_DEFAULT: Final = 128 * MIB
"""Eight row groups: two readers that catch up, each with what is read ahead of it."""

THREAD_COUNT: Final = 4
"""Loads at once; each takes up to three times a row group of 16 MiB while it is decoded."""

AHEAD_COUNT_MAX: Final = 2
"""Of these, loads ahead of readers: one who waits always finds a thread soon."""

DEPTH_MAX: Final = 3
"""Row groups ahead of one reader: 48 MiB cover a second of an object store."""

FLIGHT_COUNT_MAX: Final = 64
"""Row groups that are waited for; more are refused (`overloaded`)."""

LAYOUT_COUNT_MAX: Final = 1_000
"""Segments whose manifests are kept, some 500 bytes a row group."""

WAIT_S: Final = 15.0
"""How long a load is waited for: less than a reader that gets nothing at all waits (20 s)."""

SPARE_S: Final = 1.0
"""How long a store that is down is left alone."""

_USE_COUNT_MAX: Final = 4_096


class _CachedGroup(NamedTuple):
    """A row group in memory."""

    ids: list[EntryId]
    entries: Entries
    size_bytes: int


class _Use:
    """How one row group was used: what read-ahead goes by."""

    __slots__ = ("count", "depth")

    def __init__(self, depth: int) -> None:
        self.count = 0
        self.depth = depth


_Key = tuple["LedgerId", str, int]
"""(ledger, attempt, row group)."""


class ColdReads:
    """The cold store as readers see it; one instance per process, on its event loop.

    Args:
        find_cluster_uuid: asked once, before the first read.
    """

    def __init__(
        self,
        store: ColdStore,
        find_cluster_uuid: Callable[[], Awaitable[str]],
        *,
        cache_bytes: int = COLD_CACHE_BYTES_DEFAULT,
    ) -> None:
        self.url = store.url
        self._store = store
        self._find_cluster_uuid = find_cluster_uuid
        self._cache_bytes_max = cache_bytes
        self._archive: Archive | None = None
        self._pool = ThreadPoolExecutor(THREAD_COUNT, "cold-read")
        self._layouts: OrderedDict[LedgerId, ColdLayout] = OrderedDict()
        self._groups: OrderedDict[_Key, _CachedGroup] = OrderedDict()
        self._cached_bytes = 0
        self._uses: OrderedDict[tuple[LedgerId, int], _Use] = OrderedDict()
        self._layout_flights: dict[tuple[LedgerId, str], asyncio.Task[ColdLayout]] = {}
        self._flights: dict[_Key, asyncio.Task[_CachedGroup]] = {}
        self._ahead: set[_Key] = set()
        self._down: ColdStoreDown | None = None
        self._down_until_s = 0.0
        self._counts: Counter[str] = Counter()

    @property
    def hit_ratio(self) -> float:
        """Entries given from the cache per entry given since the start; 0 before the first."""
        given = self._counts["hits"] + self._counts["misses"]
        return self._counts["hits"] / given if given else 0.0

    def find_run(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId, bytes_max: int
    ) -> Entries:
        """The entries from `first` on that the cache has of one row group; none: it has not."""
        layout = self._layouts.get(ledger_id)
        index = None if layout is None else layout.find(first)
        if layout is None or index is None:
            return []
        key = _key(layout, index)
        group = self._groups.get(key)
        if group is None:
            return []
        self._groups.move_to_end(key)
        run = self._give((layout, index), group, first, last, bytes_max)
        self._counts["hits"] += len(run)
        return run

    async def read(
        self, segment: SegmentBase, first: EntryId, last: EntryId, bytes_max: int
    ) -> Entries:
        """Entries from `first` on, as far as its row group goes: one at least, of any size.

        Raises:
            DuramenError: `cold_store_unavailable`, `data_unavailable` (damaged, or `first` is not
                in the archive), `overloaded`, `metadata_unavailable`: all worth a retry.
        """
        run = self.find_run(segment.ledger_id, first, last, bytes_max)
        if run:
            return run
        layout = await self._open(segment)
        index = layout.find(first)
        if index is None:
            raise DuramenError(
                "data_unavailable", f"the cold copy of e{segment.epoch} has no entry {first}"
            )
        group = await self._demand(layout, index)
        run = self._give((layout, index), group, first, last, bytes_max)
        if not run:
            raise DuramenError(
                "data_unavailable", f"the cold copy of e{segment.epoch} has no entry {first}"
            )
        self._counts["misses"] += len(run)
        return run

    async def fetch_header(self, segment: SegmentBase, entry: EntryId) -> EntryInfo:
        """The header of one entry. Raises: as `read`."""
        ((_, body),) = await self.read(segment, entry, entry, 1)
        return read_entry_info(body)

    async def list_points(self, segment: SegmentBase) -> Sequence[tuple[EntryId, Totals]]:
        """Entries of a segment and the totals before them, as its manifest tells.

        Raises: as `read`.
        """
        return (await self._open(segment)).list_points()

    async def open_ahead(self, segment: SegmentBase) -> None:
        """A reader comes to the segment soon, from the one before it: have its beginning here.

        Raises: as `read`.
        """
        layout = await self._open(segment)
        self._note(layout.ledger_id, -1, 1)
        self._load_ahead(layout, -1, 1)

    async def stop(self) -> None:
        """Give up what is waited for; a request that is out ends by its own bound."""
        tasks = [*self._flights.values(), *self._layout_flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def statistics(self) -> dict[str, Any]:
        """Cache, loads and failures since the start."""
        return {
            "store": self.url,
            "is_down": self._is_down,
            "layouts": len(self._layouts),
            "groups": len(self._groups),
            "bytes": self._cached_bytes,
            "bytes_max": self._cache_bytes_max,
            "hit_ratio": round(self.hit_ratio, 4),
            "loading": len(self._flights),
            "loading_ahead": len(self._ahead),
            **{name: self._counts[name] for name in _COUNTED},
        }

    # --- Loading ---------------------------------------------------------------------------------

    async def _open(self, segment: SegmentBase) -> ColdLayout:
        """The layout of a segment; one load for all who ask."""
        copy = segment.cold_copy
        if copy is None:
            raise DuramenError("data_unavailable", f"e{segment.epoch} has no cold copy now")
        known = self._layouts.get(segment.ledger_id)
        if known is not None and known.manifest.attempt == copy.attempt:
            self._layouts.move_to_end(segment.ledger_id)
            return known
        key = (segment.ledger_id, copy.manifest_sha256)
        task = self._layout_flights.get(key)
        if task is None:
            task = asyncio.create_task(self._load_layout(segment))
            self._layout_flights[key] = task
            task.add_done_callback(lambda done: self._end(self._layout_flights, key, done))
        return await asyncio.shield(task)

    async def _load_layout(self, segment: SegmentBase) -> ColdLayout:
        archive = await self._find_archive()
        layout = await self._run(lambda: archive.load_layout(segment))
        self._layouts[segment.ledger_id] = layout
        while len(self._layouts) > LAYOUT_COUNT_MAX:
            self._layouts.popitem(last=False)
        return layout

    async def _demand(self, layout: ColdLayout, index: int) -> _CachedGroup:
        """A row group that is wanted now."""
        key = _key(layout, index)
        group = self._groups.get(key)
        if group is not None:
            return group
        task = self._flights.get(key)
        if task is None:
            if len(self._flights) >= FLIGHT_COUNT_MAX:
                raise DuramenError("overloaded", "too much is read from the cold store now")
            task = self._start(layout, index)
        return await asyncio.shield(task)

    def _start(self, layout: ColdLayout, index: int) -> asyncio.Task[_CachedGroup]:
        """Begin to load a row group; `_end` sees to its end, whoever waits for it."""
        key = _key(layout, index)
        task = asyncio.create_task(self._load(layout, index))
        self._flights[key] = task
        task.add_done_callback(lambda done: self._end(self._flights, key, done))
        return task

    async def _load(self, layout: ColdLayout, index: int) -> _CachedGroup:
        archive = await self._find_archive()
        try:
            entries = await self._run(lambda: archive.read_group(layout, index))
        except DuramenError as error:
            if error.code == "data_unavailable" and self._layouts.get(layout.ledger_id) is layout:
                del self._layouts[layout.ledger_id]  # compaction may have put another in its place
            raise
        size_bytes = sum(len(body) for _, body in entries)
        group = _CachedGroup([entry_id for entry_id, _ in entries], entries, size_bytes)
        key = _key(layout, index)
        self._groups[key] = group
        self._cached_bytes += size_bytes
        while self._cached_bytes > self._cache_bytes_max and len(self._groups) > 1:
            _, oldest = self._groups.popitem(last=False)
            self._cached_bytes -= oldest.size_bytes
        self._counts["loads"] += 1
        self._counts["loaded_bytes"] += layout.group(index).size_bytes
        return group

    async def _find_archive(self) -> Archive:
        if self._archive is None:
            cluster = await self._find_cluster_uuid()
            loop = asyncio.get_running_loop()
            # pyarrow takes half a second to load: never while the loop waits for it.
            made = await loop.run_in_executor(self._pool, _make_archive, self._store, cluster)
            self._archive = self._archive or made
        return self._archive

    async def _run(self, work: Callable[[], T]) -> T:
        """Blocking work, in a thread; a store that failed just now is not asked again."""
        if self._is_down:
            assert self._down is not None
            self._counts["spared"] += 1
            raise ColdStoreDown(self._down.detail)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WAIT_S):
                return await loop.run_in_executor(self._pool, work)
        except TimeoutError:
            down = ColdStoreDown(f"{self.url} gives no answer within {WAIT_S:g} s")
            self._note_down(down)
            raise down from None
        except ColdStoreDown as error:
            self._note_down(error)
            raise
        except DuramenError:
            self._counts["damaged"] += 1
            raise

    @property
    def _is_down(self) -> bool:
        return asyncio.get_running_loop().time() < self._down_until_s

    def _note_down(self, error: ColdStoreDown) -> None:
        self._counts["failures"] += 1
        self._down = error
        self._down_until_s = asyncio.get_running_loop().time() + SPARE_S

    @staticmethod
    def _end(flights: dict[Any, asyncio.Task[Any]], key: Any, task: asyncio.Task[Any]) -> None:
        if flights.get(key) is task:
            del flights[key]
        if not task.cancelled():
            task.exception()  # who waited was told; nobody waits for what is loaded ahead

    # --- Giving, and reading ahead ---------------------------------------------------------------

    def _give(
        self,
        place: tuple[ColdLayout, int],
        group: _CachedGroup,
        first: EntryId,
        last: EntryId,
        bytes_max: int,
    ) -> Entries:
        """Entries of one row group from `first` on without a gap, `bytes_max` but for one."""
        at = bisect_left(group.ids, first)
        run: Entries = []
        size_bytes = 0
        for entry_id, body in group.entries[at : at + last - first + 1]:
            if entry_id != first + len(run) or (run and size_bytes + len(body) > bytes_max):
                break
            run.append((entry_id, body))
            size_bytes += len(body)
        self._read_ahead(*place, is_far=at + len(run) > len(group.ids) // 2)
        return run

    def _read_ahead(self, layout: ColdLayout, index: int, *, is_far: bool) -> None:
        """Load what comes next, if this was no look-up.

        Args:
            is_far: whether what was given ends in the second half of the row group.
        """
        use = self._uses.get((layout.ledger_id, index))
        if use is None:
            before = self._uses.get((layout.ledger_id, index - 1))
            use = self._note(layout.ledger_id, index, 0 if before is None else before.depth * 2)
        use.count += 1
        if use.depth == 0 and use.count > 1 and is_far:
            use.depth = 1
        if use.depth:
            self._load_ahead(layout, index, use.depth)

    def _note(self, ledger_id: LedgerId, index: int, depth: int) -> _Use:
        use = _Use(min(depth, DEPTH_MAX))
        self._uses[ledger_id, index] = use
        while len(self._uses) > _USE_COUNT_MAX:
            self._uses.popitem(last=False)
        return use

    def _load_ahead(self, layout: ColdLayout, index: int, depth: int) -> None:
        self._ahead &= self._flights.keys()
        for ahead in range(index + 1, min(index + 1 + depth, len(layout))):
            key = _key(layout, ahead)
            if key in self._groups or key in self._flights:
                continue
            if len(self._ahead) >= AHEAD_COUNT_MAX or self._is_down:
                return
            self._ahead.add(key)
            _ = self._start(layout, ahead)
            self._counts["ahead"] += 1


_COUNTED: Final = (
    "hits", "misses", "loads", "loaded_bytes", "ahead", "failures", "spared", "damaged",
)  # fmt: skip


def _key(layout: ColdLayout, index: int) -> _Key:
    return layout.ledger_id, layout.manifest.attempt, index


def _make_archive(store: ColdStore, cluster: str) -> Archive:
    try:
        from duramen.runtime.reading.cold_archive import Archive  # noqa: PLC0415 - an extra
    except ImportError as error:
        detail = f"archived records cannot be read here: {error}: install duramen[cold]"
        raise DuramenError("cold_store_unavailable", detail) from error
    return Archive(store, cluster)


def open_cold_reads(
    url: str | None,
    store: MetadataStore,
    paths: Paths,
    *,
    cache_bytes: int = COLD_CACHE_BYTES_DEFAULT,
) -> ColdReads | None:
    """Reads of the cold store of a URL, for one cluster; None without a URL.

    Raises:
        DuramenError: `invalid_argument`: no such URL.
    """
    if url is None:
        return None
    return make_cold_reads(open_cold_store(url), store, paths, cache_bytes=cache_bytes)


def make_cold_reads(
    cold_store: ColdStore,
    store: MetadataStore,
    paths: Paths,
    *,
    cache_bytes: int = COLD_CACHE_BYTES_DEFAULT,
) -> ColdReads:
    """Reads of a cold store, for the cluster at a place in the metadata store."""

    async def find_uuid() -> str:
        try:
            uuid = await find_cluster(store, paths)
        except (MetadataError, MetadataJsonError) as error:
            raise DuramenError("metadata_unavailable", f"the cluster's node: {error}") from error
        if uuid is None:
            raise DuramenError("metadata_unavailable", f"there is no cluster at {paths.root}")
        return uuid

    return ColdReads(cold_store, find_uuid, cache_bytes=cache_bytes)
