"""How the tests of one run are spread over worker processes: files in parallel, quiet tests last.

pytest-xdist hands out whole files (`--dist loadfile`), so that what a module's fixtures start is
started once. Here is the order: files that are marked `long` first, then those that wait for real
processes, then the light ones, which start nothing; and when nothing else runs any more, one worker
alone carries out the tests that are marked `quiet`, because they measure what a busy machine would
distort. Files that share a worker's cluster go to a worker that has one. All of it is one run of
pytest, whose closing line counts everything.

There is a worker for each processor and one more, as far as memory goes: then two processors are
busy while there are processes to wait for. With two more the run takes as long and each test
longer, until Spark gives up a Python worker that needs ten seconds to begin (a bound of Spark's
own, which cannot be set). Light tests wait for a disk, a timer or a socket for two thirds of their
time, so *helpers* join once only they are left; until then they have nothing to do.
Loaded by `tests/conftest.py`. Source: CONTRIBUTING.md "Three tiers of tests".
"""

from __future__ import annotations

import ast
import os
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

ROOT: Final = Path(__file__).resolve().parents[1]
WAITING_WORKERS: Final = 1
"""Workers more than processors."""

WORKER_BYTES: Final = 3 << 29
"""1.5 GiB: what a worker has imported, a local cluster of 0.5 GB, Spark in one of four."""

HELPER_COUNT: Final = 2
"""Workers for light files alone."""

HELPER_BYTES: Final = 1 << 29
"""What a worker has imported."""

SHARED_FIXTURE: Final = "shared_cluster"

QUIET_SUFFIX: Final = "::quiet"
"""Behind the name of a file: the tests of it that are marked so."""

_RANKED_MARKS: Final = ("long", "process", "zookeeper")
_LIGHT: Final = len(_RANKED_MARKS)

_HELPERS: Final = pytest.StashKey[int]()


@pytest.hookimpl
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` means here: one more than processors, and helpers, as far as memory goes."""
    free_bytes = _free_bytes()
    wanted = len(os.sched_getaffinity(0)) + WAITING_WORKERS
    count = max(1, min(wanted, free_bytes // WORKER_BYTES))
    left_bytes = max(0, free_bytes - count * WORKER_BYTES)
    config.stash[_HELPERS] = helpers = min(HELPER_COUNT, left_bytes // HELPER_BYTES)
    return count + helpers


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """The order above for `--dist loadfile`; xdist's own for whatever else was asked for."""
    return QuietLast(config, log) if config.getvalue("dist") == "loadfile" else None


class QuietLast(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Spreads files over workers; keeps quiet tests until a single worker is left for them.

    The last workers are the helpers; of a number that somebody asked for none is.

    A worker begins a test only when it knows the next one, or that there is none. So the workers
    that are not kept are told to end when only quiet tests are left, and the kept one, which may
    hold back its last loud test, gets the first quiet ones once the others have nothing to do.
    """

    def _split_scope(self, nodeid: str) -> str:
        """What a worker is given at once: a file, without its quiet tests or those alone."""
        path = nodeid.partition("::")[0]
        return f"{path}{QUIET_SUFFIX}" if is_quiet_test(nodeid) else path

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Note it, and see whether the kept worker may go on now."""
        super().mark_test_complete(node, item_index, duration)
        if self._has_only_quiet() or self._awaits_helpers():
            for other in self.nodes:
                self._reschedule(other)

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker that has ended; the kept one may have waited for that.

        Of one that died only what it has not finished goes back into the queue: a file without
        tests to run would be given to a worker that then waits for ever.
        """
        work = self.assigned_work[node]
        for scope in [scope for scope, tests in work.items() if all(tests.values())]:
            del work[scope]
        crashed: str | None = super().remove_node(node)
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._has_only_quiet() and not self._may_be_quiet(node):
            return
        if self._is_helper(node) and self._has_heavy():
            return
        # The first who comes gets a cluster to share, and then all who use it, until others idle.
        is_wanted = self._is_sharer(node) or not any(map(self._is_sharer, self.nodes))
        chosen = min(self.workqueue, key=lambda scope: self._rank(scope, is_wanted=is_wanted))
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down or not self._has_only_quiet():
            super()._reschedule(node)
        elif node is not self._kept_node():
            node.shutdown()
        elif self._may_be_quiet(node):
            super()._reschedule(node)

    def _has_only_quiet(self) -> bool:
        return bool(self.workqueue) and all(map(is_quiet, self.workqueue))

    def _awaits_helpers(self) -> bool:
        """Whether only light files are left, and a helper has not heard of it."""
        idle = (node for node in self._list_helpers() if not self.assigned_work[node])
        return any(idle) and not self._has_heavy()

    def _has_heavy(self) -> bool:
        """Whether a file is left that a helper must not take."""
        return any(rank(scope) < _LIGHT for scope in self.workqueue)

    def _is_helper(self, node: WorkerController) -> bool:
        return node in self._list_helpers()

    def _list_helpers(self) -> list[WorkerController]:
        count = self.config.stash.get(_HELPERS, 0)
        numbers = range(self.numnodes - count, self.numnodes)
        return [node for node in self.nodes if _number_of(node) in numbers]

    def _kept_node(self) -> WorkerController | None:
        return next((node for node in self.nodes if not node.shutting_down), None)

    def _may_be_quiet(self, node: WorkerController) -> bool:
        """Whether this worker is the kept one and all others are idle."""
        busy = (other for other in self.nodes if self._pending_of(self.assigned_work[other]))
        return node is self._kept_node() and all(other is node for other in busy)

    def _is_sharer(self, node: WorkerController) -> bool:
        return any(map(is_sharing, self.assigned_work[node]))

    def _rank(self, scope: str, *, is_wanted: bool) -> tuple[int, bool, int]:
        return rank(scope), is_sharing(scope) != is_wanted, -len(self.workqueue[scope])


def _number_of(node: WorkerController) -> int:
    """Workers are gw0, gw1, …; one in place of one that died has the next number."""
    return int(node.gateway.id.removeprefix("gw"))


def is_quiet(scope: str) -> bool:
    """Whether these are the quiet tests of a file."""
    return scope.endswith(QUIET_SUFFIX)


def is_quiet_test(nodeid: str) -> bool:
    """Whether a test is marked `quiet`, or its file is."""
    path, _, name = nodeid.partition("::")
    quiet = _read_quiet(path)
    return quiet is None or name.partition("[")[0] in quiet


def is_sharing(scope: str) -> bool:
    """Whether a file uses the cluster that all tests of a worker share."""
    return SHARED_FIXTURE in _read_marks(scope.removesuffix(QUIET_SUFFIX))


def rank(scope: str) -> int:
    """Where a file stands: long ones, processes, servers, the light ones, and the quiet ones."""
    if is_quiet(scope):
        return _LIGHT + 1
    marks = _read_marks(scope)
    found = (place for place, mark in enumerate(_RANKED_MARKS) if mark in marks)
    return next(found, _LIGHT)


@cache
def _read_marks(scope: str) -> frozenset[str]:
    """The marks that a file names, and the shared fixture: a scheduler knows tests by name."""
    path = ROOT / scope
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.findall(rf"pytest\.mark\.(\w+)|\b({SHARED_FIXTURE})\b", text)
    return frozenset(mark or fixture for mark, fixture in found)


@cache
def _read_quiet(path: str) -> frozenset[str] | None:
    """The tests of a file that are marked quiet; None: the whole file is."""
    file = ROOT / path
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if "mark.quiet" not in text:
        return frozenset()
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and "pytestmark" in map(ast.unparse, node.targets):
            if "mark.quiet" in ast.unparse(node.value):
                return None
        elif isinstance(node, ast.FunctionDef) and any(
            ast.unparse(mark) == "pytest.mark.quiet" for mark in node.decorator_list
        ):
            names.add(node.name)
    return frozenset(names)


def _free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(available.split()[1]) << 10
