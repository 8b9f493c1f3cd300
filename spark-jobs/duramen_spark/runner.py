"""Where tasks run: on Spark's executors, or in threads of this process.

A runner gives each list of tasks to one slot and hands the results back; it decides nothing. What a
task needs is in the task, so both run the same function. Called by `archive.driver` from several
threads at once.

Source: docs/archive.md "In a cluster".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any, Protocol

from duramen_spark.archive.part_task import PartResult, PartTask, run_tasks


class RunnerFailed(Exception):
    """Tasks ended without a result: an executor died, or could not be started."""


class Runner(Protocol):
    """Runs tasks somewhere."""

    @property
    def slot_count(self) -> int:
        """How many lists of tasks run at once."""
        ...

    def run(self, slots: Sequence[Sequence[PartTask]]) -> list[PartResult]:
        """Results of all tasks, in any order; blocks. From any thread.

        Raises:
            RunnerFailed: some tasks have none.
        """
        ...

    def close(self) -> None:
        """Free what it holds."""


class ThreadRunner:
    """Tasks in threads of this process: for one machine without a Java runtime."""

    def __init__(self, slot_count: int) -> None:
        self._pool = ThreadPoolExecutor(slot_count, thread_name_prefix="archive")
        self._slot_count = slot_count

    @property
    def slot_count(self) -> int:
        """See the port."""
        return self._slot_count

    def run(self, slots: Sequence[Sequence[PartTask]]) -> list[PartResult]:
        """See the port."""
        futures = [self._pool.submit(run_tasks, tasks) for tasks in slots]
        return [result for future in futures for result in future.result()]

    def close(self) -> None:
        """See the port."""
        self._pool.shutdown()


class SparkRunner:
    """Tasks on Spark's executors, one partition a list."""

    def __init__(self, session: Any) -> None:
        """Use a `SparkSession`, which stays the caller's.

        Python workers start and import while the driver still reads metadata.
        """
        self._context = session.sparkContext
        self._starting = Thread(target=self._start_workers, daemon=True)
        self._starting.start()

    @property
    def slot_count(self) -> int:
        """See the port."""
        return int(self._context.defaultParallelism)

    def run(self, slots: Sequence[Sequence[PartTask]]) -> list[PartResult]:
        """See the port."""
        lists = [list(tasks) for tasks in slots]
        partitions = self._context.parallelize(lists, len(lists))
        try:
            results: list[PartResult] = partitions.mapPartitions(_run_partition).collect()
        except Exception as error:
            # Py4J's and Spark's own classes: whatever it was, there are no results.
            raise RunnerFailed(_first_line(error)) from error
        return results

    def close(self) -> None:
        """See the port."""
        self._starting.join()

    def _start_workers(self) -> None:
        count = self.slot_count
        # What keeps them from starting keeps tasks from it too, and is told there.
        with contextlib.suppress(Exception):
            self._context.parallelize(range(count), count).foreachPartition(_start_worker)


def _start_worker(_items: Iterable[int]) -> None:
    """Nothing: to find this function a worker has imported what tasks need."""


def _run_partition(lists: Iterable[Sequence[PartTask]]) -> Iterator[PartResult]:
    from pyspark import TaskContext  # noqa: PLC0415 - in executors alone

    context = TaskContext.get()
    assert context is not None
    for tasks in lists:
        yield from run_tasks(tasks, context.attemptNumber())


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Exception" in line or "Error" in line or "crash" in line]
    return (told or lines or [type(error).__name__])[0][:300]
