"""A run that saw a violation is the last one, void or not; void ones are repeated and counted.

No cluster is started: runs are played by summaries that are made up. How summaries come about is
shown by `test_report`, what ends a run early by `test_watch`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.chaos import __main__ as command
from tests.chaos import trials
from tests.chaos.judge import Verdict, Violation
from tests.chaos.report import Summary, summarize
from tests.chaos.run import ChaosOptions, RunError
from tests.chaos.trials import run_until_valid

SECONDS = 60.0
LOST = Violation("D1", "log", "a record is gone")
KINDS = ("kill bookie", "pause bookie", "cut bookie", "kill bookie")
EVIDENCE = {"died": True, "stopped": True, "withheld": 1}


def summary(
    folder: Path,
    *,
    appends_per_s: int = 10,
    reads: int = 600,
    fault_count: int = len(KINDS),
    violations: Sequence[Violation] = (),
) -> Summary:
    """Of a run of a minute with so much load and so many faults."""
    times = array("q", [n * 10**9 // appends_per_s for n in range(60 * appends_per_s)])
    counts = dict.fromkeys(("fail", "info", "info_found", "tail", "truncate"), 0)
    counts |= {"ok": len(times), "read": reads}
    verdict = Verdict("log", list(violations), counts, {}, times, 3)
    faults = [
        {"t0_ns": n * 10**10, "t1_ns": n * 10**10 + 10**9, "kind": kind, "evidence": EVIDENCE}
        for n, kind in enumerate(KINDS[:fault_count], start=1)
    ]
    path = folder / "faults.jsonl"
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in faults))
    return summarize([verdict], path, SECONDS)


class Runs:
    """Gives the summaries of a list, one a run; a run more than there are fails."""

    def __init__(self, planned: Sequence[Summary | Exception]) -> None:
        self.left = list(planned)
        self.seconds: list[float] = []

    async def __call__(
        self, options: ChaosOptions, folder: Path, say: Callable[[str], None]
    ) -> Summary:
        assert folder.is_dir()
        self.seconds.append(options.seconds)
        found = self.left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def play(
    monkeypatch: pytest.MonkeyPatch, *planned: Summary | Exception
) -> tuple[Summary, Runs, list[str]]:
    runs, said = Runs(planned), list[str]()
    monkeypatch.setattr(trials, "run_chaos", runs)
    options = ChaosOptions(seed=1, seconds=SECONDS)
    return asyncio.run(run_until_valid(options, say=said.append)), runs, said


@pytest.mark.parametrize(
    "shape",
    [
        {"appends_per_s": 1}, {"reads": 3}, {"fault_count": 0},
        {"appends_per_s": 1, "reads": 3, "fault_count": 0},
    ],
    ids=["few appends", "few reads", "no faults", "nothing"],
)  # fmt: skip
def test_a_void_run_with_a_violation_fails_and_is_not_repeated(
    shape: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    violated = summary(tmp_path, violations=[LOST], **shape)
    assert violated.void, "the run is void as well"
    found, runs, said = play(monkeypatch, violated, summary(tmp_path))
    assert (found.violations, found.is_good, len(runs.left)) == ([LOST], False, 1)
    assert any(text.startswith("histories and logs: ") for text in said)


def test_a_void_run_without_a_violation_is_repeated_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    void = summary(tmp_path, fault_count=0)
    found, runs, said = play(monkeypatch, void, void, summary(tmp_path))
    assert found.is_good and not runs.left
    assert runs.seconds == [60, 90, 135], "each half as long again"
    assert found.voids_before == (tuple(void.void), tuple(void.void))
    assert "2 void before this one:\n  0 effective faults in 60 s" in found.format()
    assert found.to_json()["voids_before"] == [void.void, void.void]
    assert len([text for text in said if text.startswith("void, run ")]) == 2


def test_a_run_after_a_void_one_is_judged_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = (summary(tmp_path, reads=3), summary(tmp_path, violations=[LOST]), summary(tmp_path))
    found, runs, _ = play(monkeypatch, *planned)
    assert found.violations == [LOST] and len(runs.left) == len(found.voids_before) == 1


@pytest.mark.parametrize("second", [{"reads": 3}, {"appends_per_s": 2}])
def test_two_in_a_row_that_are_starved_are_a_liveness_failure(
    second: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = (summary(tmp_path, appends_per_s=1), summary(tmp_path, **second), summary(tmp_path))
    found, runs, _ = play(monkeypatch, *planned)
    assert len(runs.left) == 1 and not found.is_good
    assert [violation.code for violation in found.violations] == ["liveness"]
    assert "two runs in a row were void for want of" in found.format()
    assert "60 appends acknowledged in 60 s" in found.format(), "what the first one met is told"


def test_starved_runs_with_another_void_between_them_are_not_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starved, idle = summary(tmp_path, reads=3), summary(tmp_path, fault_count=0)
    found, runs, _ = play(monkeypatch, starved, idle, starved, summary(tmp_path))
    assert (found.violations, found.void) == ([], starved.void)
    assert len(runs.left) == 1, "three runs at most"
    assert len(found.voids_before) == 2 and not found.is_good


def test_a_run_that_could_not_be_carried_out_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match="not ready"):
        play(monkeypatch, RunError("not ready"), summary(tmp_path))
    assert len(list(tmp_path.glob("duramen-chaos-*"))) == 1, "its folder is kept"


@pytest.mark.parametrize(
    ("shapes", "status"),
    [
        ([{}], 0),
        ([{"fault_count": 0}, {}], 0),
        ([{"violations": [LOST]}], 1),
        ([{"violations": [LOST], "reads": 0, "fault_count": 0}, {}], 1),
        ([{"fault_count": 0}, {"violations": [LOST], "fault_count": 0}, {}], 1),
        ([{"reads": 3}, {"reads": 3}, {}], 1),
        ([{"fault_count": 0}] * 3, 4),
        ([None], 1),
    ],
    ids=[
        "good", "void, then good", "violated", "void and violated", "void, then both",
        "starved twice", "void thrice", "not carried out",
    ],
)  # fmt: skip
def test_the_command_ends_with_the_status_of_its_outcome(
    shapes: list[dict[str, Any] | None],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    planned = [
        RunError("not ready") if shape is None else summary(tmp_path, **shape) for shape in shapes
    ]
    monkeypatch.setattr(trials, "run_chaos", Runs(planned))
    path = tmp_path / "out.json"
    monkeypatch.setattr(
        sys, "argv", ["chaos", "--seed", "1", "--minutes", "1", "--json", str(path)]
    )
    assert command.main() == status
    said = capsys.readouterr()
    if shapes == [None]:
        assert "FAILED, seed 1: not ready" in said.err
        return
    assert json.loads(path.read_text())["is_good"] is (status == 0)
    assert ("VIOLATION" in said.out) is (status == 1)
