"""Files in parallel, quiet ones last and alone: the scheduler, driven by workers that are played.

A played worker does as xdist's do: it begins a test once it knows the next one, or was told that
there is none. Whose turn it is, is drawn. Source: tests/scheduling.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests import scheduling
from tests.scheduling import QuietLast

MARKS = {
    "tests/a/test_plain.py": "",
    "tests/a/test_other.py": "",
    "tests/a/test_long.py": "process",
    "tests/a/test_server.py": "zookeeper",
    "tests/a/test_shares.py": "process shared_cluster",
    "tests/a/test_shares_too.py": "process shared_cluster",
    "tests/a/test_slow.py": "long process",
    "tests/b/test_figures.py": "quiet",
    "tests/b/test_times.py": "quiet process",
}
PARTLY_QUIET = {"tests/a/test_plain.py": {"test_1"}, "tests/a/test_slow.py": {"test_0", "test_2"}}
READ_MARKS = scheduling._read_marks
READ_QUIET = scheduling._read_quiet


class PlayedWorker:
    """Holds the tests that it was given; ends when it was told to and has none."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.waiting: list[int] = []
        self.shutting_down = False
        self.has_ended = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down, "work for a worker that ends"
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def can_run(self) -> bool:
        return len(self.waiting) > int(not self.shutting_down)


class Run:
    """A scheduler with its workers, played to the end."""

    def __init__(self, tests: list[str], *, workers: int, seed: int, helpers: int = 0) -> None:
        option = SimpleNamespace(loadscopereorder=True)
        stash = {scheduling._HELPERS: helpers}
        config: Any = SimpleNamespace(
            option=option, stash=stash, getvalue=lambda _name: ["popen"] * workers
        )
        self.tests = tests
        self.done: list[str] = []
        self.ran: list[tuple[str, str]] = []
        self.crashed: list[str] = []
        self._rng = random.Random(seed)
        self._scheduler = QuietLast(config)
        self._workers = [PlayedWorker(f"gw{n}") for n in range(workers)]
        for worker in self._workers:
            self._join(worker)
        self._scheduler.schedule()

    def scope_of(self, test: str) -> str:
        """What is handed out with a test."""
        return self._scheduler._split_scope(test)

    def play(self, *, crashes: int = 0, kills: Callable[[str], bool] | None = None) -> None:
        """To the end; as often as said a test that `kills`, or else is quiet, kills its worker."""
        kills = kills or is_quiet
        for _ in range(1_000):
            for worker in self._workers:
                if worker.shutting_down and not worker.waiting and not worker.has_ended:
                    worker.has_ended = True
                    if worker in self._scheduler.nodes:
                        self._scheduler.remove_node(worker)
            if self._scheduler.tests_finished:
                for worker in self._workers:
                    worker.shutdown()
            ready = [worker for worker in self._workers if worker.can_run()]
            if not ready:
                break
            worker = self._rng.choice(ready)
            is_crash = crashes > len(self.crashed) and kills(self.tests[worker.waiting[0]])
            (self._crash if is_crash else self._step)(worker)
        assert all(worker.has_ended for worker in self._workers), "a worker waits for ever"
        assert not self._scheduler.has_pending

    def _join(self, worker: PlayedWorker) -> None:
        self._scheduler.add_node(worker)
        self._scheduler.add_node_collection(worker, self.tests)

    def _step(self, worker: PlayedWorker) -> None:
        index = worker.waiting.pop(0)
        if self._is_quiet(index):
            others = [other for other in self._workers if other is not worker]
            assert not any(other.waiting for other in others), "it was not quiet"
        self.done.append(self.tests[index])
        self.ran.append((worker.gateway.id, self.tests[index]))
        self._scheduler.mark_test_complete(worker, index)

    def _crash(self, worker: PlayedWorker) -> None:
        """The worker dies in a test; xdist counts that test as failed and starts another worker."""
        crashed = self._scheduler.remove_node(worker)
        assert crashed is not None
        self.crashed.append(crashed)
        worker.waiting, worker.has_ended = [], True
        substitute = PlayedWorker(f"gw{len(self._workers)}")
        self._workers.append(substitute)
        self._join(substitute)
        self._scheduler.schedule()

    def _is_quiet(self, index: int) -> bool:
        return is_quiet(self.tests[index])


@pytest.fixture(autouse=True)
def marks(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_quiet(path: str) -> frozenset[str] | None:
        return None if "quiet" in MARKS[path] else frozenset(PARTLY_QUIET.get(path, ()))

    monkeypatch.setattr(scheduling, "_read_marks", lambda scope: frozenset(MARKS[scope].split()))
    monkeypatch.setattr(scheduling, "_read_quiet", read_quiet)


def is_quiet(test: str) -> bool:
    path, _, name = test.partition("::")
    return "quiet" in MARKS[path] or name in PARTLY_QUIET.get(path, ())


def name_tests(*files: str, count: int = 3) -> list[str]:
    return [f"{file}::test_{n}" for file in files for n in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 3, 6, 9])
@pytest.mark.parametrize("seed", range(20))
def test_every_test_runs_once_and_the_quiet_ones_alone(workers: int, seed: int) -> None:
    run = Run(name_tests(*MARKS), workers=workers, seed=seed)
    run.play()
    assert sorted(run.done) == sorted(run.tests)
    quiet = [name for name in run.tests if is_quiet(name)]
    assert set(run.done[-len(quiet) :]) == set(quiet)
    assert len(quiet) == 9


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_quiet_ones_run_alone_where_nothing_else_was_chosen(workers: int, count: int) -> None:
    quiet = name_tests(*(file for file in MARKS if "quiet" in MARKS[file]), count=count)
    run = Run(quiet, workers=workers, seed=1)
    run.play()
    assert sorted(run.done) == sorted(quiet)


def test_what_takes_long_begins_first() -> None:
    run = Run(name_tests(*MARKS), workers=1, seed=0)
    run.play()
    order = list(dict.fromkeys(map(run.scope_of, run.done)))
    ranks = [scheduling.rank(scope) for scope in order]
    assert ranks == sorted(ranks) and order[0] == "tests/a/test_slow.py"


@pytest.mark.parametrize("seed", range(10))
def test_a_worker_with_a_shared_cluster_gets_the_files_that_use_it(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    marks = {f"tests/c/test_{n}.py": "process shared_cluster" for n in range(3)}
    marks |= {f"tests/d/test_{n}.py": "process" for n in range(12)}
    monkeypatch.setattr(scheduling, "_read_marks", lambda scope: frozenset(marks[scope].split()))
    monkeypatch.setattr("tests.unit.test_scheduling.MARKS", marks)
    run = Run(name_tests(*marks), workers=3, seed=seed)
    run.play()
    assert len({worker for worker, name in run.ran if "tests/c/" in name}) == 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("workers", "helpers"), [(2, 1), (5, 2), (9, 4)])
def test_helpers_get_light_files_once_no_other_is_left(
    workers: int, helpers: int, seed: int
) -> None:
    run = Run(name_tests(*MARKS, count=8), workers=workers, helpers=helpers, seed=seed)
    run.play()
    assert sorted(run.done) == sorted(run.tests)
    quiet = [name for name in run.tests if is_quiet(name)]
    assert set(run.done[-len(quiet) :]) == set(quiet)
    by_helpers = {
        run.scope_of(name) for worker, name in run.ran if int(worker[2:]) >= workers - helpers
    }
    assert by_helpers <= {"tests/a/test_plain.py", "tests/a/test_other.py"}


def test_helpers_help_as_soon_as_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {"tests/a/test_long.py": "process"} | {f"tests/c/test_{n}.py": "" for n in range(9)}
    monkeypatch.setattr(scheduling, "_read_marks", lambda scope: frozenset(marks[scope].split()))
    monkeypatch.setattr("tests.unit.test_scheduling.MARKS", marks)
    run = Run(name_tests(*marks), workers=4, helpers=2, seed=1)
    run.play()
    assert {worker for worker, _ in run.ran} == {"gw0", "gw1", "gw2", "gw3"}


@pytest.mark.parametrize("helpers", [0, 1, 2])
def test_a_worker_that_dies_in_the_quiet_part_is_replaced(helpers: int) -> None:
    run = Run(name_tests(*MARKS), workers=3, helpers=helpers, seed=2)
    run.play(crashes=1)
    assert len(run.crashed) == 1
    assert sorted({*run.done, *run.crashed}) == sorted(run.tests)


def test_who_takes_a_dead_workers_place_takes_its_files() -> None:
    run = Run(name_tests(*MARKS), workers=2, helpers=1, seed=3)
    run.play(crashes=3, kills=lambda name: "test_long" in name or "test_server" in name)
    assert len(run.crashed) == 3
    assert sorted({*run.done, *run.crashed}) == sorted(run.tests)


def test_marks_are_read_from_the_file_itself() -> None:
    paths = ("tests/unit/test_scheduling.py", "tests/process/test_positions.py", "tests/none.py")
    here, there, none = map(READ_MARKS, paths)
    assert here >= {"parametrize"} and not none
    assert there >= {"process", "zookeeper", "shared_cluster"} and "long" not in there


def test_quiet_tests_are_those_that_are_marked_or_whose_file_is() -> None:
    paths = ("tests/process/test_balance.py", "tests/process/test_ownership.py", "tests/none.py")
    whole, partly, none = map(READ_QUIET, paths)
    assert whole is None and none == frozenset()
    assert partly is not None
    assert "test_every_log_of_a_killed_sequencer_takes_appends_again" in partly
    assert "test_one_log_is_handed_over_and_back_under_load" not in partly
