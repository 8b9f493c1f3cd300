"""Runs a plain function over tasks: in threads of this process, or on Spark's executors.

The results are in the order of the tasks. A task that fails says so in its result; what is raised
here is the loss of a whole run.

Called by the commands verify and compact. Source: docs/archive.md "In a cluster".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal, TypeVar

from cyclopts import Parameter

from duramen.cli.command import UsageError
from duramen_spark.session import open_session

Task = TypeVar("Task")
Result = TypeVar("Result")
RunnerName = Literal["spark", "threads"]
RunnerOption = Annotated[
    RunnerName, Parameter(help="Spark's executors, or threads of this process without Java")
]
THREADS_DEFAULT = os.cpu_count() or 1


def run_all(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    runner: RunnerName,
    thread_count: int,
) -> list[Result]:
    """Results of all tasks; blocks.

    Args:
        function: of a module, so that executors find it.

    Raises:
        UsageError: no threads.
        Exception: of Spark, when it cannot finish.
    """
    if thread_count < 1:
        raise UsageError("--threads is 1 or more")
    if not tasks:
        return []
    if runner == "threads":
        with ThreadPoolExecutor(thread_count, thread_name_prefix="tasks") as pool:
            return list(pool.map(function, tasks))
    session = open_session("duramen")
    try:
        context = session.sparkContext
        results: list[Result] = context.parallelize(list(tasks), len(tasks)).map(function).collect()
    finally:
        session.stop()
    return results
