"""Retention of the logs that are this sequencer's: its own, and of nobody's those the hash names.

In rounds with jitter it point-reads every log's node, judges (`core.life.retention`), and changes
the node by one compare-and-set; whoever else changed it meanwhile wins, and the log is looked at
again in the next round. Metadata that have moved are read from the metadata log, by the very
version that is judged: while one of them cannot be read, nothing is given up. A release of hot
copies also checks the versions of the segments' nodes: each still has the cold copy that was
judged. What is not due yet is remembered by the log node's version, so that a quiet log costs one
read a round. Segment nodes that `first_live_epoch` passed, and all of a purged log, are removed:
bookies need the log node alone, which stays until all of them have confirmed (`tombstones`, R4).

A lost session ends a round at once (docs/protocol/ownership.md "Without a session"). Called by
`service`.
Source: docs/protocol/retention.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from duramen.core.flexible.segment import AnySegment
from duramen.core.life.retention import (
    carry_out,
    is_to_be_purged,
    judge,
    purge_time_ms,
)
from duramen.core.log_node import LogNode
from duramen.errors import DuramenError
from duramen.ids import Epoch, LogId
from duramen.limits import (
    RETENTION_CONCURRENCY,
    RETENTION_INTERVAL_US,
    RETENTION_SEGMENT_COUNT_MAX,
    UNDELETE_WINDOW_US,
)
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.metadata_store import (
    Check,
    Conflict,
    DeleteNode,
    MetadataError,
    Op,
    OutcomeUnknown,
    SessionState,
    Set,
)
from duramen.units import SECOND
from duramen.wire.metadata_json import (
    MetadataJsonError,
    encode_log,
    read_any_segment,
    read_log,
    read_node,
)
from duramen_sequencer.life.tombstones import Tombstones
from duramen_sequencer.life.workers import for_each

_LOG = logging.getLogger(__name__)

_JITTER = 0.2


class _FoundSegment(NamedTuple):
    segment: AnySegment
    version: int | None
    """Of its node; None: it has moved, and never changes."""


class _Closed(NamedTuple):
    """CLOSED segments of a log."""

    segments: Mapping[Epoch, _FoundSegment]
    unreadable: Epoch | None = None
    """The oldest one of which the metadata have moved and cannot be read now."""


class LogKeeper(Protocol):
    """Who works in the background at the logs that this process looks after."""

    def want(self, log: LogNode) -> int | None:
        """Told of each that is not quiet; when it is to be named again, in wall-clock ms, if its
        node does not change."""

    def forget_others(self, seen: Collection[LogId]) -> None:
        """Told of all logs that there are, after a round."""


class RetentionRounds:
    """Rounds of retention of one sequencer.

    Args:
        is_ours: whether this process looks after a log with that owner node (its sequencer's id).
        keeper: of metadata logs; None: there is none.
        now_unix_ms: wall-clock time; a wrong clock makes retention early or late by as much.
    """

    def __init__(
        self,
        link: MetadataLink,
        segments: SegmentNodes,
        is_ours: Callable[[LogNode, str | None], bool],
        rng: random.Random,
        *,
        keeper: LogKeeper | None = None,
        interval_us: int = RETENTION_INTERVAL_US,
        undelete_window_us: int = UNDELETE_WINDOW_US,
        now_unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._link = link
        self._segments = segments
        self._is_ours = is_ours
        self._rng = rng
        self._keeper = keeper
        self._interval_us = interval_us
        self._window_us = undelete_window_us
        self._now_unix_ms = now_unix_ms
        self._tombstones = Tombstones(link.store, link.paths)
        self._wanted = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._round: asyncio.Task[None] | None = None
        self._quiet: dict[LogId, tuple[int, int | None]] = {}
        """Version of the log node and when it is due, of logs at which there is nothing to do."""
        self._held: dict[LogId, Epoch] = {}
        self._unarchived: dict[LogId, Epoch] = {}
        self._counts = dict.fromkeys(
            ("rounds", "rounds_cut", "logs_visited", "trims", "segments_given_up",
             "segments_released", "purges", "nodes_removed", "conflicts"), 0
        )  # fmt: skip

    def start(self) -> None:
        """Begin with a round after a rest."""
        self._runner = asyncio.create_task(self._run_for_ever())

    async def stop(self) -> None:
        """End the round that runs."""
        tasks = [task for task in (self._runner, self._round) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def want_round(self) -> None:
        """A round at once, or directly after the one that runs; what waits is looked at anew."""
        for log_id in (*self._held, *self._unarchived):
            self._quiet.pop(log_id, None)  # the archive does not change the log node
        self._wanted.set()

    def on_session(self, state: SessionState) -> None:
        """Without a session there is no background work: a round that runs ends here."""
        if state is not SessionState.CONNECTED and self._round is not None:
            self._round.cancel()

    def statistics(self) -> dict[str, Any]:
        """What was done since the start, and what waits."""
        return {
            **self._counts,
            "is_running": self._round is not None,
            "quiet_logs": len(self._quiet),
            "tombstones": self._tombstones.statistics(),
            "held_for_cold_copy": {str(log_id): epoch for log_id, epoch in self._held.items()},
            "waiting_for_archive": {
                str(log_id): epoch for log_id, epoch in self._unarchived.items()
            },
        }

    # --- rounds ----------------------------------------------------------------------------------

    async def _run_for_ever(self) -> None:
        while True:
            rest_us = self._interval_us * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_us / SECOND):
                    await self._wanted.wait()
            self._wanted.clear()
            self._round = asyncio.create_task(self.run_round())
            # A round that was cancelled, or failed, is no reason to end the rounds.
            (end,) = await asyncio.gather(self._round, return_exceptions=True)
            self._round = None
            if isinstance(end, asyncio.CancelledError):
                self._counts["rounds_cut"] += 1
            elif end is not None:
                _LOG.error("a round of retention failed", exc_info=end)

    async def run_round(self) -> None:
        """Look at every log once; what the metadata store leaves open waits for the next round."""
        if self._link.store.session is not SessionState.CONNECTED:
            self._counts["rounds_cut"] += 1
            return
        seen: set[LogId] = set()
        try:
            async for log_ids in self._list_logs():
                seen.update(log_ids)
                await for_each(log_ids, self._visit, RETENTION_CONCURRENCY)
            await self._tombstones.sweep(lambda log: self._is_ours(log, None))
        except MetadataError as error:
            self._counts["rounds_cut"] += 1
            _LOG.info("this round of retention ends early: %s", error)
            return
        # A listing proves nothing, and forgetting is harmless: what is there is judged anew.
        self._quiet = {log_id: quiet for log_id, quiet in self._quiet.items() if log_id in seen}
        self._held = {log_id: epoch for log_id, epoch in self._held.items() if log_id in seen}
        self._unarchived = {log_id: e for log_id, e in self._unarchived.items() if log_id in seen}
        if self._keeper is not None:
            self._keeper.forget_others(seen)
        self._counts["rounds"] += 1

    async def _list_logs(self) -> AsyncIterator[list[LogId]]:
        store, paths = self._link.store, self._link.paths
        for upper in await store.children(paths.logs) or ():
            lowers = await store.children(f"{paths.logs}/{upper}") or ()
            yield [LogId(int(upper + lower, 16)) for lower in lowers]

    # --- one log ---------------------------------------------------------------------------------

    async def _visit(self, log_id: LogId) -> None:
        self._counts["logs_visited"] += 1
        stored = await self._link.store.get(self._link.paths.log(log_id))
        if stored is None:
            return
        now_ms = self._now_unix_ms()
        known = self._quiet.get(log_id)
        if (
            known is not None
            and known[0] == stored.version
            and (known[1] is None or now_ms < known[1])
        ):
            return
        try:
            log = read_log(stored.data)
            if not self._is_ours(log, await self._link.read_keeper(log_id)):
                return
            kept_ms = None if self._keeper is None else self._keeper.want(log)
            due_ms = await self._look_after(log, stored.version, now_ms)
        except MetadataJsonError as error:
            _LOG.warning("log %d is passed over: %s", log_id, error)
            return
        except (Conflict, OutcomeUnknown):
            # What is true now is read in the next round (R3): every step is judged anew.
            self._counts["conflicts"] += 1
            return
        dues_ms = [one_ms for one_ms in (due_ms, kept_ms) if one_ms is not None]
        self._quiet[log_id] = (stored.version, min(dues_ms, default=None))

    async def _look_after(self, log: LogNode, version: int, now_ms: int) -> int | None:
        """Do what is due; gives when the next thing is, if time alone decides it."""
        self._held.pop(log.log_id, None)
        self._unarchived.pop(log.log_id, None)
        if log.is_purged:
            await self._remove_segments(log, Epoch(log.next_epoch))
            return None
        if log.is_deleted:
            if is_to_be_purged(log, now_ms, self._window_us):
                await self._purge(log, version)
            return purge_time_ms(log, self._window_us)
        await self._remove_segments(log, log.first_live_epoch)
        closed = await self._read_closed(log)
        if closed is None:
            return now_ms
        verdict = judge(
            log,
            _segments_from(closed.segments, log.first_live_epoch),
            _segments_from(closed.segments, log.first_kept_epoch),
            now_ms,
        )
        if closed.unreadable is not None:
            _LOG.warning("log %d: e%d cannot be read", log.log_id, closed.unreadable)
            verdict = verdict.without_giving_up(now_ms)
        if verdict.held_epoch is not None:
            self._held[log.log_id] = verdict.held_epoch
        if verdict.unarchived_epoch is not None:
            self._unarchived[log.log_id] = verdict.unarchived_epoch
        # Of the change, not of the look: what was read in between took its time.
        changed_ms = self._now_unix_ms()
        after = carry_out(log, verdict, now_unix_ms=changed_ms, nonce=secrets.token_hex(12))
        if after is None:
            return verdict.due_unix_ms
        released = [Epoch(e) for e in range(log.first_kept_epoch, verdict.first_hot_epoch or 0)]
        change = Set(self._link.paths.log(log.log_id), encode_log(after), version)
        checks = self._list_checks(log.log_id, released, closed.segments)
        await self._link.store.commit([change, *checks])
        _LOG.info("retention: %r", after)
        self._counts["trims"] += after.trim > log.trim
        self._counts["segments_given_up"] += after.first_live_epoch - log.first_live_epoch
        self._counts["segments_released"] += len(released)
        return now_ms

    async def _read_closed(self, log: LogNode) -> _Closed | None:
        """The CLOSED segments from `first_live_epoch` and from `first_kept_epoch` on, as many as
        one round reads of each; None if the node of one cannot be read now."""
        moved = await self._read_moved(log)
        segments: dict[Epoch, _FoundSegment] = {}
        unreadable: list[Epoch] = []
        for first in (log.first_live_epoch, log.first_kept_epoch):
            last = min(log.last_clean_epoch, first + RETENTION_SEGMENT_COUNT_MAX - 1)
            for epoch in map(Epoch, range(first, last + 1)):
                if epoch in segments:
                    continue
                stored = await self._link.store.get(self._link.paths.segment(log.log_id, epoch))
                if stored is not None:
                    segments[epoch] = _FoundSegment(read_any_segment(stored.data), stored.version)
                    if not segments[epoch].segment.is_closed:
                        return None
                elif epoch > log.metadata.through:
                    return None
                elif epoch in moved:
                    segments[epoch] = _FoundSegment(moved[epoch], None)
                else:
                    unreadable.append(epoch)
        return _Closed(segments, min(unreadable, default=None))

    async def _read_moved(self, log: LogNode) -> Mapping[Epoch, AnySegment]:
        """What has moved by this version of the log node, as far as it can be read."""
        if not log.moved_count:
            return {}
        try:
            return await self._segments.read_moved(log) or {}
        except DuramenError as error:
            _LOG.info("log %d: %s", log.log_id, error)
            return {}

    def _list_checks(
        self, log_id: LogId, released: Sequence[Epoch], found: Mapping[Epoch, _FoundSegment]
    ) -> list[Op]:
        """What was judged of segments is still so: the archive may have found a copy broken."""
        checks: list[Op] = []
        for epoch in released:
            version = found[epoch].version
            assert version is not None, f"e{epoch} of log {log_id} has moved, and was released once"
            checks.append(Check(self._link.paths.segment(log_id, epoch), version))
        return checks

    async def _purge(self, log: LogNode, version: int) -> None:
        """The tombstone; the name goes with it unless a new log has it."""
        name_path = self._link.paths.name(log.namespace, log.name)
        name = await self._link.store.get(name_path)
        ops: list[Op] = [
            Set(
                self._link.paths.log(log.log_id),
                encode_log(log.purged(secrets.token_hex(12))),
                version,
            )
        ]
        if name is not None and read_node(name.data)["log_id"] == str(log.log_id):
            ops.append(DeleteNode(name_path, name.version))
        async with self._tombstones.turn:
            await self._link.store.commit([*ops, *await self._tombstones.plan(log.log_id)])
        _LOG.info("log %d (%s/%s) is purged", log.log_id, log.namespace, log.name)
        self._counts["purges"] += 1

    async def _remove_segments(self, log: LogNode, below: Epoch) -> None:
        """Remove the nodes of segments that are given up; they never change any more."""
        if below == 1:
            return
        parent = self._link.paths.segments(log.log_id)
        for name in await self._link.store.children(parent) or ():
            if not (name.isdecimal() and int(name) < below):
                continue
            path = self._link.paths.segment(log.log_id, Epoch(int(name)))
            stored = await self._link.store.get(path)
            if stored is None:
                continue
            await self._link.store.delete(path, version=stored.version)
            self._counts["nodes_removed"] += 1


def _segments_from(found: Mapping[Epoch, _FoundSegment], first: Epoch) -> list[AnySegment]:
    """Those from `first` on up to the first one that was not read, oldest first."""
    last = first
    while last in found:
        last = Epoch(last + 1)
    return [found[Epoch(epoch)].segment for epoch in range(first, last)]
