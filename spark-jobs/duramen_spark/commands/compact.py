"""`duramen-spark compact`: small files of a log become few that its segments share.

Called by `main`. Source: ADR 0016, docs/archive.md.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from cyclopts import Parameter

from duramen_spark.commands.framing import JsonOption, Selectors, parse_size, run_connected, show
from duramen_spark.compact.driver import CompactionRun, CompactOptions, CompactReport
from duramen_spark.connection import Connection
from duramen_spark.parallel import THREADS_DEFAULT, RunnerOption, run_all
from duramen_spark.places import PlaceOptions, find_place


def compact(
    *selectors: Selectors,
    place: PlaceOptions | None = None,
    small: Annotated[str, Parameter(help="files of less than this are joined")] = "16MiB",
    target: Annotated[str, Parameter(help="files of about this come out, at most")] = "128MiB",
    runner: RunnerOption = "threads",
    threads: Annotated[int, Parameter(help="of --runner threads")] = THREADS_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Join small files of consecutive archived segments, after their second look.

    Readers find a whole copy at any moment. The old files stay until `retention` removes them.

    Exit codes: 0 what was small is joined; 1 something could not be; 2 usage.
    """
    options = CompactOptions(parse_size(small), max(1, parse_size(target)))

    async def use(connection: Connection) -> CompactReport:
        run_tasks = partial(run_all, runner=runner, thread_count=threads)
        return await CompactionRun(connection, run_tasks, options).run(selectors)

    return show(run_connected(find_place(place), use), as_json=json)
