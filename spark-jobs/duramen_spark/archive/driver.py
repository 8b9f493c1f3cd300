"""One run of the archive job: look again, choose, hand out tasks, commit, sweep, report.

Nothing is kept between runs: what is to be done follows from the nodes and the manifests that are
there, so a run may be killed at any point, run beside another one, or run again. Every segment is
committed as soon as its tasks are done. What fails is told in the report and left to the next run.

Not here: where tasks run (`duramen_spark.runner`), how a segment is committed (`commit`). Called by
the command `duramen-spark archive`. Source: docs/archive.md "What a run does".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import uuid4

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LogId
from duramen.runtime.cold import ColdStore
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import HOUR, MIB, MINUTE, MS
from duramen.wire.cold.manifest import FilePart, Manifest, ManifestError
from duramen.wire.cold.paths import attempt_folder, manifest_path
from duramen.wire.cold.schema import ROW_GROUP_BYTES_MAX
from duramen.wire.metadata_json import MetadataJsonError, encode_segment
from duramen_spark.archive.bookie_source import EntrySource
from duramen_spark.archive.cluster_nodes import ClusterNodes
from duramen_spark.archive.commit import (
    SegmentOutcome,
    check_fits,
    make_manifest,
    mark_segment,
    name_manifest,
    put_manifest,
    read_stored_manifest,
    remove_attempt,
)
from duramen_spark.archive.digests import SourceError
from duramen_spark.archive.part_task import PartResult, PartTask
from duramen_spark.archive.plan import balance, batch, cut_segment
from duramen_spark.archive.policy import ArchiveVerdict, Policy, find_lag_ms
from duramen_spark.archive.recheck import is_due, recheck
from duramen_spark.archive.report import RunReport
from duramen_spark.archive.sweep import sweep
from duramen_spark.cluster_address import ClusterAddress
from duramen_spark.runner import Runner, RunnerFailed

_steps = logging.getLogger("duramen.archive.steps")

_BATCHES_AT_ONCE: Final = 2
"""While the last tasks of one batch end, the next one's begin."""

_PARTS_PER_SLOT: Final = 2
"""A batch has work for every slot and some to even it out, and is lost with a killed driver."""

_FAULTS: Final = (DuramenError, MetadataError, MetadataJsonError, SourceError, RunnerFailed)
"""What keeps one segment from being archived by this run, and no other."""

OnProgress = Callable[[int, int], None]
"""Told of bytes that are done and of all bytes that are to be archived."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator may choose.

    Attributes:
        part_bytes: about so many bytes of batches go into a file.
        row_group_bytes: of a row group before it is encoded: with it and `read_bytes` the memory
            of a task is bounded, whatever the segment's size (docs/archive.md has the sum).
        bytes_per_s: how fast all tasks together read; None: no limit.
        recheck_after_us: how long after a copy was verified it is looked at again.
        rechecks_files: that look reads every file, not only sizes.
        orphan_age_us: files that no manifest names are removed when they are so old.
    """

    policy: Policy = Policy()
    part_bytes: int = 128 * MIB
    row_group_bytes: int = ROW_GROUP_BYTES_MAX
    read_bytes: int = 4 * MIB
    bytes_per_s: int | None = None
    recheck_after_us: int = 10 * MINUTE
    rechecks_files: bool = False
    orphan_age_us: int = 24 * HOUR


@dataclass(slots=True)
class _Work:
    """A segment that is to be archived."""

    log: LogNode
    segment: AnySegment
    attempt: str
    tasks: list[PartTask] = field(default_factory=list)
    stored: Manifest | None = None
    """Another attempt's, found there: its files are checked, and nothing is written."""

    is_replacement: bool = False
    """What has the manifest's well-known name is not whole."""

    @property
    def size_bytes(self) -> int:
        assert self.segment.totals is not None
        return self.segment.totals.length_bytes

    def __str__(self) -> str:
        return f"{self.log.namespace}/{self.log.name} e{self.segment.epoch}"


class ArchiveRun:
    """One run.

    Args:
        nodes, source: of the cluster at `address`; started.
        store: the cold store at `store_url`, which tasks open by themselves.
    """

    def __init__(
        self,
        *,
        address: ClusterAddress,
        nodes: ClusterNodes,
        source: EntrySource,
        store: ColdStore,
        store_url: str,
        runner: Runner,
        options: Options,
        on_progress: OnProgress = lambda *_: None,
    ) -> None:
        self._address = address
        self._nodes = nodes
        self._source = source
        self._store = store
        self._store_url = store_url
        self._runner = runner
        self._options = options
        self._on_progress = on_progress
        self._cluster = ""
        self._refuted: set[tuple[LogId, Epoch]] = set()
        """Segments whose copy this run found broken."""
        self._done_bytes = 0
        self._total_bytes = 0
        self._began_us = time.monotonic_ns() // 1_000
        self.report = RunReport()

    async def run(self) -> RunReport:
        """Do everything once; what fails after the archiving is in the report.

        Raises:
            DuramenError: `metadata_unavailable`: there is no such cluster.
            MetadataError: ZooKeeper gives no answer, and nothing was archived yet.
        """
        cluster = await self._nodes.read_uuid()
        if cluster is None:
            raise DuramenError("metadata_unavailable", f"no cluster {self._address.cluster!r}")
        self._cluster = cluster
        await self._recheck_all()
        works = await self._choose()
        _steps.debug("chosen: %d segments", len(works))
        await self._archive_all(works)
        if self._options.recheck_after_us == 0:
            await self._attempt("looking again", self._recheck_all())
        await self._attempt("sweep", self._sweep())
        await self._attempt("lag", self._measure_lag())
        self.report.elapsed_us = time.monotonic_ns() // 1_000 - self._began_us
        return self.report

    # --- Choosing --------------------------------------------------------------------------------

    async def _choose(self) -> list[_Work]:
        works = []
        policy, now_unix_ms = self._options.policy, _now_unix_ms()
        for log in await self._nodes.list_logs():
            if not policy.takes(log):
                continue
            if log.moved_count:
                self.report.skipped[ArchiveVerdict.ARCHIVED.value] += log.moved_count
            for segment in await self._nodes.list_stored(log):
                verdict = policy.judge(log, segment, now_unix_ms)
                if verdict is ArchiveVerdict.ARCHIVE:
                    is_refuted = (log.log_id, segment.epoch) in self._refuted
                    works.append(_Work(log, segment, uuid4().hex, is_replacement=is_refuted))
                else:
                    self.report.skipped[verdict.value] += 1
        return works

    async def _measure_lag(self) -> None:
        policy, now_unix_ms = self._options.policy, _now_unix_ms()
        waiting = []
        for log in await self._nodes.list_logs():
            if policy.takes(log):
                segments = await self._nodes.list_stored(log)
                waiting += [
                    one
                    for one in segments
                    if policy.judge(log, one, now_unix_ms) is ArchiveVerdict.ARCHIVE
                ]
        self.report.lag_us = find_lag_ms(waiting, now_unix_ms) * MS

    # --- Archiving -------------------------------------------------------------------------------

    async def _archive_all(self, works: Sequence[_Work]) -> None:
        self._total_bytes += sum(work.size_bytes for work in works)
        self._on_progress(self._done_bytes, self._total_bytes)
        batch_bytes = self._runner.slot_count * _PARTS_PER_SLOT * self._options.part_bytes
        batches = batch(works, batch_bytes, lambda work: work.size_bytes)
        room = asyncio.Semaphore(_BATCHES_AT_ONCE)

        async def archive(one: list[_Work]) -> None:
            async with room:
                await self._archive_batch(one)

        async with asyncio.TaskGroup() as group:
            for one in batches:
                group.create_task(archive(one))

    async def _archive_batch(self, works: list[_Work]) -> None:
        planned = []
        for work in works:
            try:
                await self._plan(work)
            except _FAULTS as error:
                self._fail(work, str(error))
            else:
                planned.append(work)
        tasks = [task for work in planned for task in work.tasks]
        results: list[PartResult] = []
        failure = ""
        if tasks:
            slots = balance(tasks, self._runner.slot_count, lambda task: task.size_bytes)
            _steps.debug("tasks handed out: %d", len(tasks))
            try:
                results = await asyncio.to_thread(self._runner.run, slots)
            except RunnerFailed as error:
                failure = str(error)
            _steps.debug("tasks done: %d", len(results))
        for work in planned:
            own = [result for result in results if result.task.attempt == work.attempt]
            if failure and work.tasks:
                self._fail(work, failure)
            else:
                await self._finish(work, own)
            self._done_bytes += work.size_bytes
            self._on_progress(self._done_bytes, self._total_bytes)

    async def _plan(self, work: _Work) -> None:
        """Find out whether another attempt's manifest is there, and cut the segment into tasks."""
        segment = work.segment
        path = manifest_path(self._cluster, segment.log_id, segment.epoch)
        found = None
        try:
            if not work.is_replacement:
                found = await asyncio.to_thread(read_stored_manifest, self._store, path)
            if found is not None:
                check_fits(found[0], segment)
        except ManifestError as error:
            self.report.mismatches.append(f"{work}: {error}")
            found, work.is_replacement = None, True
        if found is not None:
            work.stored, work.attempt = found[0], found[0].attempt
            work.tasks = [
                self._make_task(work, index, stored=part)
                for index, part in enumerate(found[0].files)
            ]
            return
        work.stored = None
        cuts = await cut_segment(
            segment,
            self._options.part_bytes,
            partial(self._source.read_length_before, segment),
        )
        work.tasks = [
            self._make_task(work, index, first=cut.first, last=cut.last, size_bytes=cut.size_bytes)
            for index, cut in enumerate(cuts)
        ]

    def _make_task(
        self,
        work: _Work,
        index: int,
        *,
        first: int = 0,
        last: int = 0,
        size_bytes: int = 0,
        stored: FilePart | None = None,
    ) -> PartTask:
        options, slot_count = self._options, self._runner.slot_count
        rate = options.bytes_per_s
        if stored is not None:
            first, last, size_bytes = stored.first_entry, stored.last_entry, stored.size_bytes
        return PartTask(
            address=self._address,
            cold_store=self._store_url,
            cluster_uuid=self._cluster,
            segment=encode_segment(work.segment),
            attempt=work.attempt,
            index=index,
            first=EntryId(first),
            last=EntryId(last),
            size_bytes=size_bytes,
            row_group_bytes=options.row_group_bytes,
            read_bytes=options.read_bytes,
            bytes_per_s=None if rate is None else max(1, rate // slot_count),
            stored=stored,
        )

    async def _finish(self, work: _Work, results: Sequence[PartResult]) -> None:
        """Commit a segment whose tasks have ended."""
        try:
            broken = [result for result in results if result.failure]
            if not broken:
                await self._commit(work, results)
                return
            for result in broken:
                text = f"{work} part {result.task.index}: {result.failure}"
                (self.report.mismatches if result.is_mismatch else self.report.failures).append(
                    text
                )
            if work.stored is not None and any(result.is_mismatch for result in broken):
                await self._rearchive(work)
                return
            self.report.outcomes["failed"] += 1
            if work.stored is None:
                await self._remove_own(work, [])
        except (*_FAULTS, ManifestError) as error:
            self._fail(work, str(error))

    async def _rearchive(self, work: _Work) -> None:
        """Another attempt's files are not whole: archive anew, with a manifest beside its."""
        work.attempt, work.is_replacement = uuid4().hex, True
        await self._archive_batch([work])

    async def _commit(self, work: _Work, results: Sequence[PartResult]) -> None:
        outcome = SegmentOutcome.ADOPTED
        manifest = work.stored
        if manifest is None:
            parts = [result.part for result in results if result.part is not None]
            manifest = make_manifest(self._cluster, work.log, work.segment, work.attempt, parts)
            # The sweep takes old files of an attempt for those of a dead one.
            if time.monotonic_ns() // 1_000 - self._began_us > self._options.orphan_age_us // 2:
                raise RunnerFailed(f"{work}: this run lasts longer than half of the orphans' age")
            _steps.debug("manifest made: %s", work)
            path = name_manifest(manifest, is_replacement=work.is_replacement)
            if not await put_manifest(self._store, path, manifest):
                _steps.debug("race lost: %s", work)
                await self._remove_own(work, [])
                self.report.outcomes[SegmentOutcome.LOST_RACE.value] += 1
                return
            _steps.debug("manifest put: %s", work)
            outcome = SegmentOutcome.ARCHIVED
            await self._remove_own(work, manifest.files)
        path = name_manifest(manifest, is_replacement=work.is_replacement)
        found = await asyncio.to_thread(read_stored_manifest, self._store, path)
        if found is None or found[0] != manifest:
            raise ManifestError(f"{path} is not what was put there")
        marked = await mark_segment(self._nodes, manifest, found[1])
        _steps.debug("segment marked: %s", work)
        self._count(
            work, manifest, results, outcome if marked is SegmentOutcome.ARCHIVED else marked
        )

    async def _remove_own(self, work: _Work, kept: Sequence[FilePart]) -> None:
        """Files of one's own attempt that no manifest names, or ever will."""
        segment = work.segment
        folder = attempt_folder(self._cluster, segment.log_id, segment.epoch, work.attempt)
        self.report.removed_file_count += await remove_attempt(self._store, folder, kept)

    def _count(
        self,
        work: _Work,
        manifest: Manifest,
        results: Sequence[PartResult],
        outcome: SegmentOutcome,
    ) -> None:
        report = self.report
        entry_bytes = sum(result.entry_bytes for result in results)
        report.outcomes[outcome.value] += 1
        report.record_count += manifest.totals.record_count
        report.entry_count += manifest.entry_count
        report.entry_bytes += entry_bytes
        report.file_count += len(manifest.files)
        report.file_bytes += manifest.size_bytes
        report.segments.append(
            {
                "log": f"{work.log.namespace}/{work.log.name}",
                "log_id": str(manifest.log_id),
                "epoch": manifest.epoch,
                "outcome": outcome.value,
                "attempt": manifest.attempt,
                "records": manifest.totals.record_count,
                "entries": manifest.entry_count,
                "entry_bytes": entry_bytes,
                "files": len(manifest.files),
                "file_bytes": manifest.size_bytes,
                "first_lsn": f"e{manifest.epoch}n{manifest.files[0].first_entry}"
                if manifest.files
                else None,
                "last_lsn": f"e{manifest.epoch}n{manifest.files[-1].last_entry}"
                if manifest.files
                else None,
            }
        )

    def _fail(self, work: _Work, text: str) -> None:
        self.report.outcomes["failed"] += 1
        self.report.failures.append(f"{work}: {text}")

    # --- Looking again, sweeping -----------------------------------------------------------------

    async def _recheck_all(self) -> None:
        """Look again at copies whose time has come; those that are broken are chosen anew."""
        now_unix_ms = _now_unix_ms()
        for log in await self._nodes.list_logs():
            if not self._options.policy.takes(log):
                continue
            for segment in await self._nodes.list_stored(log):
                if is_due(segment, self._options.recheck_after_us, now_unix_ms):
                    await self._recheck(_Work(log, segment, ""))

    async def _recheck(self, work: _Work) -> None:
        try:
            found = await recheck(
                self._nodes,
                self._store,
                self._cluster,
                work.segment,
                reads_files=self._options.rechecks_files,
            )
            self.report.rechecked_count += 1
            if found.fault:
                released = " (its hot copies are gone)" if found.is_released else ""
                self.report.mismatches.append(f"{work}: {found.fault}{released}")
                if not found.is_released:
                    self._refuted.add((work.segment.log_id, work.segment.epoch))
        except _FAULTS as error:
            self.report.failures.append(f"{work}: {error}")

    async def _sweep(self) -> None:
        self.report.removed_file_count += await sweep(
            self._nodes,
            self._store,
            self._cluster,
            age_us=self._options.orphan_age_us,
            now_unix_ms=_now_unix_ms(),
        )

    async def _attempt(self, what: str, work: Awaitable[None]) -> None:
        """Something whose failure leaves everything that was archived as it is."""
        try:
            await work
        except _FAULTS as error:
            self.report.failures.append(f"{what}: {error}")


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000
