"""One compaction: plan groups, have files written, put manifests, swap the segments' nodes.

All nodes of a file change in one `multi()` or none does, each only while it names the copy that was
read. So a reader finds a whole copy at any moment, two compactions at once do no harm, and one that
is killed leaves orphans for retention's sweep. Old files stay until retention removes them. A
segment whose metadata have moved to the metadata log keeps its copy for good.

Called by the command `duramen-spark compact`. Source: ADR 0016, docs/archive.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.errors import DuramenError
from duramen.ids import Epoch
from duramen.runtime.cold import AlreadyThere, NotThere
from duramen.runtime.stores.metadata_store import Conflict, MetadataError, Op, OutcomeUnknown, Set
from duramen.units import MIB
from duramen.wire.cold.manifest import Manifest, ManifestError, encode_manifest
from duramen.wire.cold.paths import attempt_manifest_path
from duramen.wire.cold.schema import ROW_GROUP_BYTES_MAX
from duramen.wire.metadata_json import encode_segment, read_any_segment
from duramen_spark.compact.plan import CompactionCandidate, plan_compaction
from duramen_spark.compact.task import CompactResult, CompactTask, compact_segments, load_manifest
from duramen_spark.connection import Connection, list_logs
from duramen_spark.verify.check import is_whole

COUNT_MAX: Final = 100
"""Segments of a file: their nodes, of some kilobytes each, fit one request to ZooKeeper."""

_TRIES: Final = 20
"""Of a `multi()`: it conflicts with repair's swaps, which are few."""

RunTasks = Callable[
    [Callable[[CompactTask], CompactResult], Sequence[CompactTask]], list[CompactResult]
]


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """What the operator may choose; see `plan_compaction`."""

    small_bytes: int = 16 * MIB
    target_bytes: int = 128 * MIB
    row_group_bytes: int = ROW_GROUP_BYTES_MAX


@dataclass(slots=True)
class CompactReport:
    """What a compaction did: a row a group, and sentences about what failed."""

    groups: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether every group that was planned is compacted, or was by somebody else."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "ok": self.is_good,
            "groups": self.groups,
            "files_before": sum(row["files_before"] for row in self.groups),
            "files_after": len(self.groups),
            "failures": self.failures,
        }

    def list_lines(self) -> list[str]:
        """The report as lines of text."""
        lines = [
            f"{row['log']} e{row['epochs'][0]}…e{row['epochs'][-1]}  {row['files_before']} files "
            f"of {row['bytes_before']:,} bytes → 1 of {row['bytes_after']:,}"
            for row in self.groups
        ]
        lines += [f"FAILED {text}" for text in self.failures]
        before = sum(row["files_before"] for row in self.groups)
        return [*lines, f"{before} files became {len(self.groups)}; the old ones go by retention"]


class CompactionRun:
    """One compaction."""

    def __init__(
        self, connection: Connection, run_tasks: RunTasks, options: CompactOptions
    ) -> None:
        self._connection = connection
        self._run_tasks = run_tasks
        self._options = options
        self.report = CompactReport()

    async def run(self, selectors: Sequence[str] = ()) -> CompactReport:
        """Compact the logs that match.

        Raises:
            MetadataError: ZooKeeper gives no answer.
        """
        for log in await list_logs(self._connection.nodes, selectors):
            await self._compact_log(log)
        return self.report

    async def _compact_log(self, log: LogNode) -> None:
        connection, options = self._connection, self._options
        segments: dict[Epoch, AnySegment] = {}
        manifests: dict[Epoch, Manifest] = {}
        candidates = []
        for segment in await connection.nodes.list_stored(log):
            if segment.cold_copy is None:
                continue
            try:
                manifest = await asyncio.to_thread(
                    load_manifest, connection.store, connection.uuid, segment
                )
            except (ManifestError, NotThere, DuramenError) as error:
                self._fail(log, [segment.epoch], f"{type(error).__name__}: {error}")
                continue
            segments[segment.epoch], manifests[segment.epoch] = segment, manifest
            paths = tuple(manifest.path_of(part) for part in manifest.files)
            is_rechecked = segment.cold_copy.is_rechecked
            candidates.append(
                CompactionCandidate(segment.epoch, manifest.size_bytes, paths, is_rechecked)
            )
        groups = plan_compaction(
            candidates,
            small_bytes=options.small_bytes,
            target_bytes=options.target_bytes,
            count_max=COUNT_MAX,
        )
        tasks = [
            CompactTask(
                cold_store=connection.store_url,
                cluster_uuid=connection.uuid,
                segments=tuple(encode_segment(segments[epoch]) for epoch in group),
                attempt=uuid4().hex,
                row_group_bytes=options.row_group_bytes,
                unix_ms=_now_unix_ms(),
            )
            for group in groups
        ]
        results = await asyncio.to_thread(self._run_tasks, compact_segments, tasks)
        for group, result in zip(groups, results, strict=True):
            if await self._finish(log, [segments[epoch] for epoch in group], result):
                self._count(log, [manifests[epoch] for epoch in group], result.manifests)

    async def _finish(
        self, log: LogNode, segments: Sequence[AnySegment], result: CompactResult
    ) -> bool:
        epochs = [segment.epoch for segment in segments]
        if result.failure:
            self._fail(log, epochs, result.failure)
            return False
        try:
            await asyncio.to_thread(self._put_manifests, result.manifests)
            if await self._swap(segments, result.manifests):
                return True
            self._fail(log, epochs, "a copy was replaced meanwhile: the next run looks again")
        except (MetadataError, DuramenError, ManifestError, AlreadyThere, NotThere) as error:
            self._fail(log, epochs, f"{type(error).__name__}: {error}")
        return False

    def _put_manifests(self, manifests: Sequence[Manifest]) -> None:
        """Put each, and read what it names once more: a second look, as the archive job's."""
        store = self._connection.store
        for manifest in manifests:
            path = attempt_manifest_path(
                manifest.cluster, manifest.log_id, manifest.epoch, manifest.attempt
            )
            store.put_new(path, encode_manifest(manifest))
            fault = is_whole(store, manifest)
            if fault:
                raise ManifestError(fault)

    async def _swap(self, segments: Sequence[AnySegment], manifests: Sequence[Manifest]) -> bool:
        """Have all nodes name the new copy; False: one of them names another than was read."""
        connection = self._connection
        now_unix_ms = _now_unix_ms()
        copies = {
            manifest.epoch: ColdCopy(
                attempt=manifest.attempt,
                manifest_sha256=hashlib.sha256(encode_manifest(manifest)).hexdigest(),
                size_bytes=manifest.size_bytes,
                verified_unix_ms=now_unix_ms,
                rechecked_unix_ms=now_unix_ms,
            )
            for manifest in manifests
        }
        for _ in range(_TRIES):
            ops: list[Op] = []
            swapped = 0
            for seen in segments:
                path = connection.paths.segment(seen.log_id, seen.epoch)
                await connection.metadata.sync(path)
                stored = await connection.metadata.get(path)
                found = None if stored is None else read_any_segment(stored.data)
                copy = copies[seen.epoch]
                if stored is None or found is None or found.cold_copy is None:
                    return False
                # Of an unknown outcome: all or none were changed, and nobody else has this attempt.
                swapped += found.cold_copy.attempt == copy.attempt
                if found.cold_copy != seen.cold_copy:
                    continue
                changed = found.with_cold_copy(copy, secrets.token_hex(12))
                ops.append(Set(path, encode_segment(changed), stored.version))
            if swapped == len(segments):
                return True
            if len(ops) < len(segments):
                return False
            try:
                await connection.metadata.commit(ops)
            except (Conflict, OutcomeUnknown):
                continue
            return True
        raise MetadataError(f"segments changed {_TRIES} times meanwhile")

    def _fail(self, log: LogNode, epochs: Sequence[Epoch], text: str) -> None:
        name = f"{log.namespace}/{log.name}"
        self.report.failures.append(f"{name} e{epochs[0]}…e{epochs[-1]}: {text}")

    def _count(self, log: LogNode, olds: Sequence[Manifest], news: Sequence[Manifest]) -> None:
        paths = {old.path_of(part) for old in olds for part in old.files}
        self.report.groups.append(
            {
                "log": f"{log.namespace}/{log.name}",
                "log_id": str(log.log_id),
                "epochs": [old.epoch for old in olds],
                "attempt": news[0].attempt,
                "records": sum(old.totals.record_count for old in olds),
                "files_before": len(paths),
                "bytes_before": sum(old.size_bytes for old in olds),
                "bytes_after": news[0].files[0].size_bytes,
            }
        )


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000
