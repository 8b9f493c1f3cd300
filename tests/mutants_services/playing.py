"""Plays faults: puts each in a copy of the tree, runs its test files, says who noticed.

Before the first fault of an area the test files that its faults name run without a fault. One that
does not pass then says nothing about any fault: what relies on it is not judged. That run also
tells which tests come to a fault's line, and how long all take: a fault is shown to the former
first, and one with which they take many times as long as all has been noticed, too. One that they
miss is shown to its whole files: what a line made may be kept for a test that looks more closely.
Called by `__main__` and by the test of the runner.
"""

from __future__ import annotations

import enum
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants_services.fault import Fault
from tests.mutants_services.touching import Span, format_span, list_changed_spans
from tests.mutants_services.tree import Run, Tree

HANG_RATIO: Final = 5
HANG_MIN_S: Final = 60.0
"""A run with a fault hangs after this, and five times what its test files took without it."""
CLEAN_LIMIT_S: Final = 1_800.0
_TAIL: Final = 400


class Fate(enum.Enum):
    """What became of a fault."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    NOT_JUDGED = "NOT JUDGED"
    NOT_PLAYED = "not played"


class Verdict(NamedTuple):
    """What became of one fault, and by what."""

    fault: Fault
    fate: Fate
    by: str
    elapsed_s: float = 0.0

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"{self.fault.area:16} {self.fault.name:48} {self.fate.value}{by}"


class Player:
    """Plays faults on copies of one checkout, as many at a time as there are copies."""

    def __init__(
        self,
        checkout: Path,
        *,
        jobs: int = 1,
        until_s: float | None = None,
        tell: Callable[[Verdict], None] = lambda _: None,
        hang_min_s: float = HANG_MIN_S,
    ) -> None:
        """
        Args:
            until_s: nothing is begun after it, by the monotonic clock; None: no limit.
            tell: called with each verdict as it falls, by one thread at a time per copy.
        """
        self._checkout = checkout
        self._jobs = jobs
        self._until_s = until_s
        self._tell = tell
        self._hang_min_s = hang_min_s
        self._trees: list[Tree] = []

    def play(self, faults: Sequence[Fault]) -> list[Verdict]:
        """The verdicts, in the order of the faults."""
        verdicts: list[Verdict] = []
        with tempfile.TemporaryDirectory(prefix="duramen-mutants-") as name:
            folders = [Path(name) / str(number) for number in range(self._jobs)]
            self._trees = [Tree(self._checkout, folder) for folder in folders]
            free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
            for tree in self._trees:
                free.put(tree)
            try:
                for _, area in groupby(faults, key=lambda fault: fault.area):
                    verdicts += self._play_area(list(area), free)
            finally:
                for tree in self._trees:
                    tree.close()
        return verdicts

    def _play_area(
        self, faults: Sequence[Fault], free: queue.SimpleQueue[Tree]
    ) -> Iterator[Verdict]:
        clean: _Clean | None = None
        if not self._is_over():
            tree = free.get()
            clean = _Clean(tree, faults)
            free.put(tree)

        def judge(fault: Fault) -> Verdict:
            tree = free.get()
            try:
                verdict = self._judge(tree, fault, clean)
            finally:
                free.put(tree)
            self._tell(verdict)
            return verdict

        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                yield from pool.map(judge, faults)
            except BaseException:
                for tree in self._trees:
                    tree.close()  # or the threads would wait for what runs
                raise

    def _judge(self, tree: Tree, fault: Fault, clean: _Clean | None) -> Verdict:
        if clean is None or self._is_over():
            return Verdict(fault, Fate.NOT_PLAYED, "")
        broken = [test for test in fault.tests if test not in clean.times_s]
        if broken:
            reason = f"{', '.join(broken)} does not pass without it"
            return Verdict(fault, Fate.NOT_JUDGED, reason)
        clean_s = sum(clean.times_s[test] for test in fault.tests)
        limit_s = max(self._hang_min_s, HANG_RATIO * clean_s)
        chosen = clean.choose(fault)
        with tree.broken(fault):
            run = tree.run(chosen, limit_s=limit_s)
            if run.has_passed and chosen != list(fault.tests):
                run = tree.run(fault.tests, limit_s=limit_s)
        if run.has_passed:
            return Verdict(fault, Fate.SURVIVED, "", run.elapsed_s)
        if not run.has_noticed:
            reason = f"pytest ended with {run.code}: {run.output[-_TAIL:]}"
            return Verdict(fault, Fate.NOT_JUDGED, reason, run.elapsed_s)
        return Verdict(fault, Fate.CAUGHT, _name_witness(run), run.elapsed_s)

    def _is_over(self) -> bool:
        return self._until_s is not None and time.monotonic() >= self._until_s


class _Clean:
    """The test files of some faults, run without any."""

    def __init__(self, tree: Tree, faults: Sequence[Fault]) -> None:
        self.times_s: dict[str, float] = {}
        """Of each test file that passes."""
        self._spans = {fault.name: _find_spans(tree, fault) for fault in faults}
        wanted: dict[str, list[Span]] = {}
        for fault in faults:
            wanted.setdefault(fault.path, []).extend(self._spans[fault.name])
        tests = list(dict.fromkeys(test for fault in faults for test in fault.tests))
        with tree.probed(wanted):
            tree.run(tests, limit_s=CLEAN_LIMIT_S, until_first=False)
        self._touches = tree.read_touches()
        times_s = tree.read_times()
        self.times_s = {test: times_s[test] for test in tests if test in times_s}
        for test in tests:
            if test not in self.times_s:  # once more, alone
                run = tree.run([test], limit_s=CLEAN_LIMIT_S)
                if run.has_passed:
                    self.times_s[test] = run.elapsed_s

    def choose(self, fault: Fault) -> list[str]:
        """The tests that come to a fault's line; its whole files where nobody was seen there."""
        names = [format_span(fault.path, s) for s in self._spans[fault.name]]
        seen = set().union(*(self._touches.get(name, ()) for name in names))
        if "" in seen:
            return list(fault.tests)
        chosen = [
            node for file in fault.tests for node in sorted(seen) if node.startswith(f"{file}::")
        ]
        return chosen or list(fault.tests)


def _find_spans(tree: Tree, fault: Fault) -> list[Span]:
    source = (tree.root / fault.path).read_text(encoding="utf-8")
    return list_changed_spans(source, fault.old, fault.new)


def _name_witness(run: Run) -> str:
    if run.code is None:
        return "a hang"
    return run.noticed or "a test file that cannot be imported"
