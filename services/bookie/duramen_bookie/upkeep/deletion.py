"""What may be forgotten: ledgers that metadata proves dead, entries beyond a closed end.

`DeletionPlan` decides from nodes that were read by their own paths: an epoch that the log node
says was given up, or has released its hot copies, or a tombstone of the log, proves a ledger dead;
the proof is read a second time after a delay, then the ledgers are dropped. Entries beyond the last
one of a CLOSED segment are leftovers (R17). A missing node, a listing, an error and a node of
another cluster prove nothing. `Deletion` walks all logs with ledgers here, so many nodes a round.

Not here: forgetting itself (`core.bookie`: journal first, then GONE), space (`compaction`).
Called by `rounds`. Source: R4, R17, docs/bookie.md "Upkeep".
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.ids import LAST_EPOCH, EntryId, Epoch, LedgerId, LogId, ledger_of
from duramen.limits import (
    DELETION_CONCURRENCY,
    DELETION_DELAY_US,
    DELETION_INTERVAL_US,
    DELETION_READ_COUNT_MAX,
)
from duramen.runtime.stores.metadata_store import (
    MetadataError,
    MetadataStore,
    Rejected,
    SessionState,
)
from duramen.wire.metadata_json import (
    MetadataJsonError,
    Paths,
    read_any_segment,
    read_log,
    read_node,
)
from duramen_bookie.upkeep.pacing import Periodic, monotonic_us

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class LedgerSight(NamedTuple):
    """A ledger that is here, as far as deletion looks at it."""

    epoch: Epoch
    lac: EntryId
    highest: EntryId
    """Highest entry that is or was here, unreadable ones included."""


class LedgerHoldings(Protocol):
    """What the bookie holds, and how it is told to let go. Nothing here blocks."""

    def list_logs(self) -> Sequence[LogId]:
        """Logs of which ledgers are here, ascending."""

    def list_sights_of(self, log_id: LogId) -> Sequence[LedgerSight]:
        """The ledgers of a log that are here, ascending; none if the log is not known."""

    def drop(self, log_id: LogId, epoch: Epoch, *, is_all_below: bool) -> None:
        """Forget the ledger, or every one below it, once that is durable. Repeating it is harmless.

        Seals survive."""

    def purge_beyond(self, ledger_id: LedgerId, last_entry: EntryId) -> None:
        """Forget what lies beyond the last entry of a CLOSED ledger; `highest` falls to it."""


# --- Decisions -----------------------------------------------------------------------------------


class DeletionVerdict(NamedTuple):
    """What a log node that was just read says about a log's ledgers."""

    drop_below: Epoch | None
    """Drop every ledger below."""
    leftovers: Sequence[tuple[Epoch, EntryId]]
    """Ledgers and their last entries: purge what lies beyond."""
    unproved: Sequence[LedgerSight]
    """Closed ledgers that may hold leftovers: read their segment nodes."""


class _LogMemo:
    """What is remembered of a log between two rounds."""

    __slots__ = ("below", "ends", "since_us")

    def __init__(self) -> None:
        self.below: Epoch | None = None
        """Proved once: every epoch below is dead. Dropped when it is proved again, later."""
        self.since_us = 0
        self.ends: dict[Epoch, EntryId] = {}
        """Last entries of CLOSED segments, which never change."""


class DeletionPlan:
    """Which logs to look at next, and what their nodes prove.

    Args:
        delay_us: ≥ 0; between a proof and the drop.
    """

    def __init__(self, *, delay_us: int) -> None:
        self._delay_us = delay_us
        self._memos: dict[LogId, _LogMemo] = {}
        self._cursor = LogId(0)

    def begin_round(self, logs: Sequence[LogId]) -> Iterator[LogId]:
        """The logs in the order of this round: once around, beginning where the last one ended.

        Args:
            logs: everything that is here, ascending; what is remembered of others is forgotten.
        """
        here = frozenset(logs)
        self._memos = {log_id: memo for log_id, memo in self._memos.items() if log_id in here}
        return self._walk(logs)

    def judge_log(
        self, node: LogNode, ledgers: Sequence[LedgerSight], now_us: int
    ) -> DeletionVerdict:
        """What a log node proves; `node` was read after everything that was judged before.

        Args:
            ledgers: of this log, ascending, as they are now.
        """
        dead_below = _dead_below(node, ledgers)
        live = [ledger for ledger in ledgers if ledger.epoch >= dead_below]
        drop_below = None
        if len(live) < len(ledgers):
            memo = self._memos.setdefault(node.log_id, _LogMemo())
            drop_below = self._ripen(memo, ledgers[0].epoch, dead_below, now_us)
        elif node.log_id in self._memos:
            self._memos[node.log_id].below = None
        known_ends = self._prune_ends(node.log_id, live)
        leftovers = []
        unproved = []
        for ledger in live:
            # Below LCE segments are CLOSED, and a LAC never passes the end of one (R13): only what
            # lies above the LAC can be a leftover.
            if ledger.epoch > node.last_clean_epoch or ledger.highest <= ledger.lac:
                continue
            end = known_ends.get(ledger.epoch)
            if end is None:
                unproved.append(ledger)
            elif ledger.highest > end:
                leftovers.append((ledger.epoch, end))
        return DeletionVerdict(drop_below, leftovers, unproved)

    def judge_segment(self, segment: AnySegment, ledger: LedgerSight) -> EntryId | None:
        """The last entry beyond which the ledger is to be purged; None: nothing is to be done."""
        if not segment.is_closed:
            return None
        assert segment.last_entry is not None
        memo = self._memos.setdefault(segment.log_id, _LogMemo())
        memo.ends[segment.epoch] = segment.last_entry
        return segment.last_entry if ledger.highest > segment.last_entry else None

    def statistics(self) -> dict[str, int]:
        """What waits for its second proof, and what is remembered."""
        return {
            "ripening_logs": sum(memo.below is not None for memo in self._memos.values()),
            "known_ends": sum(len(memo.ends) for memo in self._memos.values()),
        }

    def _walk(self, logs: Sequence[LogId]) -> Iterator[LogId]:
        start = bisect_right(logs, self._cursor)
        for log_id in [*logs[start:], *logs[:start]]:
            self._cursor = log_id
            yield log_id

    def _ripen(self, memo: _LogMemo, lowest: Epoch, dead_below: Epoch, now_us: int) -> Epoch | None:
        """The bound that was proved long enough ago; begins to wait for a new one."""
        if memo.below is None or memo.below <= lowest or memo.below > dead_below:
            # None yet, used up, or contradicted: marks never fall, so one of the two was wrong.
            memo.below, memo.since_us = dead_below, now_us
        if now_us - memo.since_us < self._delay_us:
            return None
        ripe, memo.below = memo.below, None
        return ripe

    def _prune_ends(self, log_id: LogId, live: Sequence[LedgerSight]) -> dict[Epoch, EntryId]:
        memo = self._memos.get(log_id)
        if memo is None:
            return {}
        here = {ledger.epoch for ledger in live}
        memo.ends = {epoch: end for epoch, end in memo.ends.items() if epoch in here}
        return memo.ends


def _dead_below(node: LogNode, ledgers: Sequence[LedgerSight]) -> Epoch:
    """Every epoch below is dead: by the tombstone all there are, else what is kept no more."""
    if node.is_purged is not True:  # what else JSON may hold there, a text say, is no tombstone
        return node.first_kept_epoch
    last = ledgers[-1].epoch if ledgers else 0
    return Epoch(min(max(node.next_epoch, last + 1), LAST_EPOCH))


# --- Reading -------------------------------------------------------------------------------------


class Deletion:
    """Looks for what may be forgotten, for as long as the bookie runs.

    Args:
        cluster_uuid: of the bookie's cookie; nodes of another cluster prove nothing about its logs.
        holdings: what is here.
        read_count_max: nodes read in one round; what does not fit comes in the next.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        cluster_uuid: str,
        holdings: LedgerHoldings,
        *,
        interval_us: int = DELETION_INTERVAL_US,
        delay_us: int = DELETION_DELAY_US,
        read_count_max: int = DELETION_READ_COUNT_MAX,
        concurrency: int = DELETION_CONCURRENCY,
        now_us: Callable[[], int] = monotonic_us,
    ) -> None:
        self._store = store
        self._paths = paths
        self._cluster_uuid = cluster_uuid
        self._holdings = holdings
        self._read_count_max = read_count_max
        self._concurrency = concurrency
        self._now_us = now_us
        self._plan = DeletionPlan(delay_us=delay_us)
        self._rounds = Periodic("deletion", self.run_round, rest_us=interval_us)
        self._reads_left = 0
        self._counts = dict.fromkeys(
            ("logs_visited", "nodes_missing", "nodes_unusable", "rounds_cut", "drops", "purges"), 0
        )

    def start(self) -> None:
        """Begin with a round at once."""
        self._rounds.start()

    async def stop(self) -> None:
        """Stop looking; what was told to be dropped is the core's."""
        await self._rounds.stop()

    async def run_round(self) -> None:
        """Look at the next logs; what the metadata store leaves open waits for a later round."""
        self._reads_left = self._read_count_max
        if self._store.session is not SessionState.CONNECTED or not await self._is_ours():
            self._counts["rounds_cut"] += 1
            return
        logs = self._plan.begin_round(self._holdings.list_logs())
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._visit_logs(logs))

    def statistics(self) -> dict[str, Any]:
        """What was found since the start, and what waits."""
        return {**self._counts, **self._plan.statistics(), "rounds": self._rounds.statistics()}

    async def _visit_logs(self, logs: Iterator[LogId]) -> None:
        while self._reads_left > 0:
            log_id = next(logs, None)
            if log_id is None:
                return
            try:
                await self._visit(log_id)
            except MetadataError as error:
                _LOG.info("this round of deletion ends early: %s", error)
                if self._reads_left > 0:
                    self._counts["rounds_cut"] += 1
                self._reads_left = 0

    async def _visit(self, log_id: LogId) -> None:
        self._counts["logs_visited"] += 1
        node = await self._read_log(log_id)
        if node is None:
            return
        ledgers = self._holdings.list_sights_of(log_id)
        verdict = self._plan.judge_log(node, ledgers, self._now_us())
        if verdict.drop_below is not None:
            _LOG.info("log %d: everything below e%d is dropped", log_id, verdict.drop_below)
            self._counts["drops"] += 1
            self._holdings.drop(log_id, verdict.drop_below, is_all_below=True)
        for epoch, end in verdict.leftovers:
            self._purge(log_id, epoch, end)
        for ledger in verdict.unproved:
            if self._reads_left <= 0:
                return
            await self._visit_segment(log_id, ledger)

    async def _visit_segment(self, log_id: LogId, ledger: LedgerSight) -> None:
        segment = await self._read_segment(log_id, ledger.epoch)
        end = None if segment is None else self._plan.judge_segment(segment, ledger)
        if end is not None:
            self._purge(log_id, ledger.epoch, end)

    def _purge(self, log_id: LogId, epoch: Epoch, end: EntryId) -> None:
        _LOG.info("log %d e%d: entries beyond the end %d are purged", log_id, epoch, end)
        self._counts["purges"] += 1
        self._holdings.purge_beyond(ledger_of(log_id, epoch), end)

    async def _read_log(self, log_id: LogId) -> LogNode | None:
        def parse(data: bytes) -> LogNode:
            node = read_log(data)
            if node.log_id != log_id:
                raise MetadataJsonError(f"it holds {node}")
            return node

        return await self._read(self._paths.log(log_id), parse)

    async def _read_segment(self, log_id: LogId, epoch: Epoch) -> AnySegment | None:
        def parse(data: bytes) -> AnySegment:
            segment = read_any_segment(data)
            if (segment.log_id, segment.epoch) != (log_id, epoch):
                raise MetadataJsonError(f"it holds {segment}")
            return segment

        return await self._read(self._paths.segment(log_id, epoch), parse)

    async def _read(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        """A point read: of one node by its own path, as it is now (R4); None proves nothing.

        Raises:
            MetadataError: nothing was learnt, and the next read will hardly do better.
        """
        self._reads_left -= 1
        try:
            await self._store.sync(path)
            found = await self._store.get(path)
            if found is not None:
                return parse(found.data)
            self._counts["nodes_missing"] += 1
        except (Rejected, MetadataJsonError) as error:
            self._counts["nodes_unusable"] += 1
            _LOG.warning("%s is passed over: %s", path, error)
        return None

    async def _is_ours(self) -> bool:
        """Whether the store still holds this bookie's cluster: a new one numbers its logs anew."""
        try:
            node = await self._read(self._paths.cluster, read_node)
        except MetadataError as error:
            _LOG.info("no round of deletion: %s", error)
            return False
        if node is None:
            return False
        uuid = node.get("uuid")
        if uuid != self._cluster_uuid:
            _LOG.error("the metadata store holds cluster %s, not ours: nothing is deleted", uuid)
        return uuid == self._cluster_uuid
