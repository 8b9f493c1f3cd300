"""One round of the archive's retention: list, read nodes, judge, and remove if told to.

Nothing is removed unless `removes` is set. A listing is taken before the nodes are read, so that
what is named since is not in it. A missing log node proves something only together with the
cluster's own node: the same cluster's uuid, and an id that it has given away. Of a log whose
segments' metadata cannot be read nothing goes.

Called by the command `duramen-spark retention`. Source: R4, docs/archive.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

from duramen.errors import DuramenError
from duramen.ids import LAST_LOG_ID, LogId
from duramen.runtime.cold import ColdFile
from duramen.wire.cold.paths import cluster_folder
from duramen.wire.metadata_json import read_node
from duramen_spark.connection import Connection
from duramen_spark.retention.plan import Removal, RetentionPolicy, RetentionState, plan_removals


@dataclass(slots=True)
class RetentionReport:
    """What may go, or went."""

    is_dry: bool
    removals: list[Removal] = field(default_factory=list)
    removed_count: int = 0
    kept_count: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether everything that was to go went."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        reasons = Counter(one.reason.value for one in self.removals)
        return {
            "ok": self.is_good,
            "dry_run": self.is_dry,
            "files": len(self.removals),
            "bytes": sum(one.file.size_bytes for one in self.removals),
            "removed": self.removed_count,
            "kept": self.kept_count,
            "reasons": dict(sorted(reasons.items())),
            "failures": self.failures,
            "rows": [
                {"path": one.file.path, "bytes": one.file.size_bytes, "reason": one.reason.value}
                for one in self.removals
            ],
        }

    def list_lines(self) -> list[str]:
        """The report as lines of text."""
        verb = "would go" if self.is_dry else "went"
        lines = [f"{one.file.path}  {one.reason.value}" for one in self.removals]
        lines += [f"FAILED {text}" for text in self.failures]
        size_bytes = sum(one.file.size_bytes for one in self.removals)
        count = len(self.removals) if self.is_dry else self.removed_count
        lines.append(f"{count} files of {size_bytes:,} bytes {verb}, {self.kept_count} stay")
        return lines


class RetentionRun:
    """One round."""

    def __init__(self, connection: Connection, policy: RetentionPolicy) -> None:
        self._connection = connection
        self._policy = policy

    async def run(self, selectors: tuple[str, ...] = (), *, removes: bool) -> RetentionReport:
        """Judge every log of the cluster that is in the archive.

        Args:
            selectors: globs over `namespace/log`; logs that are gone have no name and match `*/*`
                alone. None: everything.

        Raises:
            MetadataError: ZooKeeper gives no answer.
            ColdStoreDown: nothing was removed.
        """
        report = RetentionReport(is_dry=not removes)
        store, uuid = self._connection.store, self._connection.uuid
        files = await asyncio.to_thread(lambda: sorted(store.list(cluster_folder(uuid))))
        now_unix_ms = time.time_ns() // 1_000_000
        for log_id, group in _group_by_log(files):
            try:
                state = await self._read_state(log_id)
            except DuramenError as error:
                report.failures.append(f"log {log_id}: nothing of it goes: {error}")
                report.kept_count += len(group)
                continue
            if state is None or not _is_selected(state, selectors):
                continue
            removals = plan_removals(group, state, self._policy, now_unix_ms)
            report.removals += removals
            report.kept_count += len(group) - len(removals)
        if removes:
            await asyncio.to_thread(self._remove, report)
        return report

    async def _read_state(self, log_id: LogId) -> RetentionState | None:
        """What is known of a log; None: nothing.

        Raises:
            DuramenError: the metadata of its segments cannot be read.
        """
        connection = self._connection
        await connection.metadata.sync(connection.paths.log(log_id))
        log = await connection.nodes.read_log(log_id)
        if log is None:
            return RetentionState(None, {}) if await self._was_given(log_id) else None
        if log.is_purged:
            return RetentionState(log, {})
        listing = await connection.nodes.list_segments(log_id)
        segments = {segment.epoch: segment for segment in listing.segments}
        return RetentionState(listing.log, segments, is_whole=not listing.unreadable)

    async def _was_given(self, log_id: LogId) -> bool:
        """Whether this cluster, and no other, has given the id to a log once."""
        connection = self._connection
        stored = await connection.metadata.get(connection.paths.cluster)
        if stored is None:
            return False
        node = read_node(stored.data)
        last = node.get("last_log_id")
        return node.get("uuid") == connection.uuid and isinstance(last, int) and log_id <= last

    def _remove(self, report: RetentionReport) -> None:
        for one in report.removals:
            try:
                self._connection.store.delete(one.file.path)
            except DuramenError as error:
                # What follows may be the files of this manifest: another round takes them.
                report.failures.append(f"{one.file.path}: {error}")
                return
            report.removed_count += 1


def _group_by_log(files: list[ColdFile]) -> Iterator[tuple[LogId, list[ColdFile]]]:
    """Files of each log that has a folder."""
    for name, group in groupby(files, key=lambda file: file.path.split("/")[2]):
        try:
            log_id = LogId(int(name, 16))
        except ValueError:
            continue
        if len(name) == 8 and 0 < log_id <= LAST_LOG_ID:
            yield log_id, list(group)


def _is_selected(state: RetentionState, selectors: tuple[str, ...]) -> bool:
    if not selectors or "*/*" in selectors:
        return True
    log = state.log
    return log is not None and any(fnmatchcase(f"{log.namespace}/{log.name}", s) for s in selectors)
