"""`duramen-spark archive`: closed segments become Parquet in the cold store.

Finds the cluster and the cold store by its flags, or by the cluster.json of a `duramen run`; prints
the report to stdout, progress to stderr. Decides nothing itself.

Called by `main`. Source: docs/archive.md "What a run does".
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from duramen.cli.command import ExitCode, UsageError, print_json, say
from duramen.cli.shell.waiting import report_waiting
from duramen.errors import DuramenError
from duramen.runtime.cold import open_cold_store
from duramen.runtime.stores.metadata_store import MetadataError, Rejected
from duramen.units import agree, parse_duration_us, parse_size_bytes
from duramen.wire.cold.schema import ROW_GROUP_BYTES_MAX
from duramen.wire.metadata_json import MetadataJsonError, Paths
from duramen_spark.archive.bookie_source import BookieSource
from duramen_spark.archive.cluster_nodes import ClusterNodes
from duramen_spark.archive.driver import ArchiveRun, OnProgress, Options
from duramen_spark.archive.policy import Policy
from duramen_spark.archive.report import RunReport, write_failure, write_metrics, write_summary
from duramen_spark.cluster_address import open_store
from duramen_spark.places import ClusterPlace, PlaceOptions, find_place
from duramen_spark.runner import Runner, SparkRunner, ThreadRunner
from duramen_spark.session import open_session

RunnerName = Literal["spark", "threads"]


def archive(
    *selectors: Annotated[
        str, Parameter(help="NAMESPACE/LOG, or globs such as 'prod/*'; else every log with tiering")
    ],
    place: PlaceOptions | None = None,
    keep_hot: Annotated[str, Parameter(help="only segments completed so long ago")] = "0s",
    min_size: Annotated[str, Parameter(help="only segments with so many bytes")] = "0",
    include_truncated: Annotated[
        bool, Parameter(negative="", help="also segments that readers are not shown any more")
    ] = False,
    part_size: Annotated[str, Parameter(help="bytes of a segment that go into a file")] = "128MiB",
    row_group: Annotated[str, Parameter(help="memory of a row group, at most 16MiB")] = "16MiB",
    read_size: Annotated[str, Parameter(help="bytes that are asked of a bookie at once")] = "4MiB",
    bandwidth: Annotated[
        str | None, Parameter(help="bytes read from bookies a second, all tasks together")
    ] = None,
    recheck_after: Annotated[
        str, Parameter(help="look again at copies verified so long ago")
    ] = "10m",
    recheck_files: Annotated[
        bool, Parameter(negative="", help="that look reads every file, not only sizes")
    ] = False,
    orphan_age: Annotated[
        str, Parameter(help="remove files that no manifest names when they are so old")
    ] = "24h",
    runner: Annotated[
        RunnerName, Parameter(help="Spark's executors, or threads of this process without Java")
    ] = "spark",
    threads: Annotated[int, Parameter(help="of --runner threads")] = os.cpu_count() or 1,
    metrics_file: Annotated[
        Path | None, Parameter(help="write Prometheus metrics there, for a textfile collector")
    ] = None,
    summary_file: Annotated[
        Path | None, Parameter(help="write a short report there as JSON, for Kubernetes")
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="the report as JSON")] = False,
) -> int:
    """Archive closed segments, look again at earlier copies, sweep what killed runs left.

    Logs whose `tiering.policy` is `none` are taken only if a selector names them without a
    wildcard. Safe to run twice, beside another run, and to kill at any moment.

    Exit codes: 0 all that was due is archived and whole; 1 something is not; 2 usage.
    """
    with _leave_last_words(summary_file):
        options = Options(
            policy=Policy(
                selectors=selectors or ("*/*",),
                keep_hot_us=_parse_duration(keep_hot),
                min_bytes=_parse_size(min_size),
                includes_truncated=include_truncated,
            ),
            part_bytes=max(1, _parse_size(part_size)),
            row_group_bytes=min(ROW_GROUP_BYTES_MAX, max(1, _parse_size(row_group))),
            read_bytes=max(1, _parse_size(read_size)),
            bytes_per_s=None if bandwidth is None else _parse_size(bandwidth),
            recheck_after_us=_parse_duration(recheck_after),
            rechecks_files=recheck_files,
            orphan_age_us=_parse_duration(orphan_age),
        )
        found = find_place(place)
        is_shown = not json and sys.stderr.isatty()
        with _open_runner(runner, threads) as tasks, _progress(is_shown=is_shown) as on_progress:
            report = asyncio.run(_run(found, tasks, options, on_progress))
        if metrics_file is not None:
            write_metrics(metrics_file, report.list_metrics(time.time()))
        if summary_file is not None:
            write_summary(summary_file, report)
    _print(report, is_json=json)
    return ExitCode.OK if report.is_good else ExitCode.FAILED


def _print(report: RunReport, *, is_json: bool) -> None:
    if is_json:
        print_json(report.to_json())
    else:
        print("\n".join(map(agree, report.list_lines())))


async def _run(
    place: ClusterPlace, runner: Runner, options: Options, on_progress: OnProgress
) -> RunReport:
    address = place.address
    store = open_cold_store(place.cold_store)
    metadata = open_store(address)
    try:
        async with report_waiting(f"ZooKeeper at {place.zookeeper}", say):
            await metadata.start()
        async with BookieSource(address, metadata) as source:
            run = ArchiveRun(
                address=address,
                nodes=ClusterNodes(metadata, Paths(place.cluster), source.read_run),
                source=source,
                store=store,
                store_url=place.cold_store,
                runner=runner,
                options=options,
                on_progress=on_progress,
            )
            return await run.run()
    except Rejected as error:
        raise UsageError(str(error)) from None
    except MetadataError as error:
        detail = f"ZooKeeper at {place.zookeeper}: {error}"
        raise DuramenError("metadata_unavailable", detail) from error
    except MetadataJsonError as error:
        raise DuramenError("internal", f"a node cannot be read: {error}") from error
    finally:
        await metadata.close()


@contextmanager
def _leave_last_words(summary_file: Path | None) -> Iterator[None]:
    """A run that fails before it has a report says why where its summary is looked for."""
    try:
        yield
    except Exception as error:
        if summary_file is not None:
            with suppress(OSError):  # or it would hide why the run failed
                write_failure(summary_file, error)
        raise


@contextmanager
def _open_runner(name: RunnerName, thread_count: int) -> Iterator[Runner]:
    if name == "threads":
        if thread_count < 1:
            raise UsageError("--threads is 1 or more")
        runner = ThreadRunner(thread_count)
        try:
            yield runner
        finally:
            runner.close()
        return
    session: Any = open_session("duramen archive")
    try:
        yield SparkRunner(session)
    finally:
        session.stop()


@contextmanager
def _progress(*, is_shown: bool) -> Iterator[OnProgress]:
    """A bar on stderr, for people only."""
    if not is_shown:
        yield lambda *_: None
        return
    from rich.console import Console  # noqa: PLC0415 - for terminals alone
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("archive", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _parse_duration(text: str) -> int:
    try:
        return parse_duration_us(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _parse_size(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
