"""`duramen-spark verify`: are cold copies what they were, and what bookies hold?

Called by `main`. Source: docs/archive.md.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from duramen.cli.command import UsageError
from duramen_spark.archive.report import write_metrics
from duramen_spark.commands.framing import JsonOption, Selectors, run_connected, show
from duramen_spark.connection import Connection
from duramen_spark.parallel import THREADS_DEFAULT, RunnerOption, run_all
from duramen_spark.places import PlaceOptions, find_place
from duramen_spark.verify.driver import Verification, VerifyReport


def verify(
    *selectors: Selectors,
    place: PlaceOptions | None = None,
    sample: Annotated[int | None, Parameter(help="so many segments, by chance; else all")] = None,
    seed: Annotated[int, Parameter(help="of the sample: another one, other segments")] = 0,
    against_bookies: Annotated[
        bool, Parameter(negative="", help="also compare with what bookies hold of hot segments")
    ] = False,
    keep_marks: Annotated[
        bool, Parameter(negative="", help="only tell: take no mark off a broken copy")
    ] = False,
    runner: RunnerOption = "threads",
    threads: Annotated[int, Parameter(help="of --runner threads")] = THREADS_DEFAULT,
    metrics_file: Annotated[
        Path | None, Parameter(help="write Prometheus metrics there, for a textfile collector")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Read cold copies, whole, and compare them with their manifests.

    A copy that is not whole loses its mark where the hot copies are there, so that the next
    `archive` makes another; where they are gone it is told and nothing is changed.

    Exit codes: 0 every copy that was looked at is whole; 1 one is not, or cannot be read; 2 usage.
    """
    if sample is not None and sample < 1:
        raise UsageError("--sample is 1 or more")

    async def use(connection: Connection) -> VerifyReport:
        run_tasks = partial(run_all, runner=runner, thread_count=threads)
        return await Verification(connection, run_tasks).run(
            selectors,
            sample=sample,
            seed=seed,
            against_bookies=against_bookies,
            withdraws=not keep_marks,
        )

    report = run_connected(find_place(place), use)
    if metrics_file is not None:
        write_metrics(metrics_file, report.list_metrics())
    return show(report, as_json=json)
