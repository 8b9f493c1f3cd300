"""A night: shares of time, the window of seeds, what is kept and forgotten, the report.

The commands are played; that one is ended at its time is shown with a real one.
Source: tests/night.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kubernetes.__main__ import choose_marks
from tests.kubernetes.conftest import BUILT
from tests.night import stages
from tests.night.__main__ import share_out
from tests.night.commands import Outcome, run_command
from tests.night.memory import FIRST_SEED, Memory, read_memory, write_memory
from tests.night.report import Played, format_report
from tests.night.stages import STAGES, Finding
from tests.pauses import is_readable
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

FOREVER_S = 3_600.0
TESTS = Path(__file__).resolve().parents[1]

Answer = Callable[[Sequence[str]], Outcome]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was called; each call passes unless `answer` says otherwise."""
    made: list[list[str]] = []
    play(monkeypatch, made, lambda _arguments: Outcome(0, False, "all is well", 1.0))
    return made


def play(monkeypatch: pytest.MonkeyPatch, made: list[list[str]], answer: Answer) -> None:
    def run(arguments: Sequence[str], _until_s: float, _environment: object = None) -> Outcome:
        made.append(list(arguments))
        return answer(arguments)

    monkeypatch.setattr(stages, "run_command", run)


def later() -> float:
    return time.monotonic() + FOREVER_S


def cut_after(count: int, output: str = "") -> Answer:
    """Passes so often, then the time is over."""
    left = [count]

    def answer(_arguments: Sequence[str]) -> Outcome:
        left[0] -= 1
        return Outcome(0, False, output, 1.0) if left[0] >= 0 else Outcome(130, True, output, 1.0)

    return answer


def test_the_window_of_seeds_moves_on_and_keeps_what_fails(
    monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]
) -> None:
    memory = Memory()
    play(monkeypatch, calls, cut_after(2, f"seed {FIRST_SEED + 7}: D1: lost\nseed 5: ok\n"))
    finding = stages.play_seeds(memory, later())
    assert memory.next_seed == FIRST_SEED + 200
    assert memory.failing_seeds == [FIRST_SEED + 7]
    assert finding.faults and "200 seeds" in finding.lines[0]
    calls.clear()
    play(monkeypatch, calls, cut_after(0))
    stages.play_seeds(memory, later())
    assert str(FIRST_SEED + 200) in calls[0], "the next night plays others"


def test_what_a_hundred_seeds_did_not_meet_is_told_and_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]
) -> None:
    gap = Outcome(1, False, "never happened: torn tail\n", 1.0)
    left = iter([gap, Outcome(130, True, "", 1.0)])
    play(monkeypatch, calls, lambda _arguments: next(left))
    finding = stages.play_seeds(Memory(), later())
    assert not finding.faults and any("torn tail" in line for line in finding.lines)


def test_a_sweep_that_breaks_without_a_seed_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]
) -> None:
    left = iter([Outcome(1, False, "Traceback", 1.0), Outcome(130, True, "", 1.0)])
    play(monkeypatch, calls, lambda _arguments: next(left))
    assert stages.play_seeds(Memory(), later()).faults


def test_kept_seeds_are_forgotten_when_they_pass(
    monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]
) -> None:
    memory = Memory(failing_seeds=[3, 4])
    play(
        monkeypatch, calls, lambda arguments: Outcome(int("3" in arguments), False, "D1: lost", 1.0)
    )
    finding = stages.play_kept_seeds(memory, later())
    assert memory.failing_seeds == [3] and finding.faults == ["python -m tests.sim --seed 3"]


def test_lists_that_are_too_long_go_on_where_they_stopped(
    monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]
) -> None:
    memory = Memory()
    play(monkeypatch, calls, cut_after(3))
    stages.play_simulator_mutants(memory, later())
    played = [call[2] for call in calls[:3]]
    calls.clear()
    play(monkeypatch, calls, cut_after(1))
    stages.play_simulator_mutants(memory, later())
    assert calls[0][2] not in played


def test_a_group_of_sizes_that_fails_is_blamed_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]
) -> None:
    play(monkeypatch, calls, lambda _arguments: Outcome(1, False, "1 failed in 3 s", 1.0))
    finding = stages.play_sizes(Memory(), later())
    assert len(finding.faults) == len(stages.KNOBS)
    assert "DURAMEN_ROLLS=1000" in " ".join(finding.faults)


def test_a_test_that_failed_before_its_group_was_cut_off_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]
) -> None:
    play(monkeypatch, calls, lambda _arguments: Outcome(2, True, "FAILED tests/a.py::b", 1.0))
    assert len(stages.play_sizes(Memory(), later()).faults) == 1


def test_chaos_fits_into_its_share(calls: list[list[str]]) -> None:
    chaos = stages.play_chaos(("--regions",))
    chaos(Memory(), time.monotonic() + 900)
    minutes = float(calls[0][calls[0].index("--minutes") + 1])
    assert 9 < minutes <= 10 and "--regions" in calls[0]
    chaos(Memory(), time.monotonic() + 9_000)
    assert "20.0" in calls[1]


def test_every_stage_can_be_played(calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(failing_seeds=[1])
    play(monkeypatch, calls, cut_after(20, "x"))
    for stage in STAGES:
        stage.play(memory, later())
    modules = {call[1] for call in calls}
    assert modules >= {
        "tests.sim", "tests.sim.mutants", "tests.mutants_services", "tests.chaos",
        "tests.bench", "tests.kubernetes", "pytest",
    }  # fmt: skip


def test_whatever_has_a_size_or_the_mark_of_the_night_is_played() -> None:
    places = {place for group in stages.KNOBS for place in group.files}
    alone = {group.files[0] for group in stages.KNOBS if len(group.files) == 1}
    found = 0
    for path in sorted(TESTS.rglob("test_*.py")):
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(TESTS.parent))
        if path.name in ("test_night.py", "test_tiers.py"):
            continue
        # The stage on Kubernetes plays these, all of them, in the sizes of the night.
        is_on_kubernetes = re.search(rf"\b({'|'.join(BUILT)}): \w+", text)
        if re.search(r"mark\.night\b", text):
            # A group of many files is cut off, and what is marked is in no other run.
            assert is_on_kubernetes or name in alone, f"{name}: no group of KNOBS of its own"
            found += 1
        if re.search(r"^from tests\.(tiers|combinations) import", text, re.MULTILINE):
            above = {name, *map(str, Path(name).parents)}
            assert is_on_kubernetes or above & places, f"{name}: in no group of KNOBS"
            found += 1
    assert found > 10, "nothing was looked for"


def test_tests_of_the_night_on_kubernetes_are_played_there_and_not_in_the_gate(
    monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]
) -> None:
    tiers: list[str] = []

    def run(arguments: Sequence[str], _until_s: float, environment: Mapping[str, str]) -> Outcome:
        calls.append(list(arguments))
        tiers.append(environment["DURAMEN_TIER"])
        return Outcome(0, False, "9 real nodes: passed, 3 s", 1.0)

    monkeypatch.setattr(stages, "run_command", run)
    stages.play_kubernetes(Memory(), later())
    tests, deaths = calls[:2], calls[2:]
    assert [call[-2:] for call in tests] == [["--only", "api"], ["--only", "kubelet"]]
    moments = [(call[-3], call[-1]) for call in deaths]
    runs = ("new", "1", "2", "3", "4", "5")
    every = [(run, moment) for moment in ("before", "after") for run in runs]
    assert all(call[1] == "tests.kubernetes.deaths" for call in deaths) and moments == every
    monkeypatch.setenv("DURAMEN_TIER", "gate")
    assert choose_marks("kubernetes") == ["-m", "kubernetes and not night"]
    assert choose_marks() == ["-m", "not night"]
    (tier,) = set(tiers)
    monkeypatch.setenv("DURAMEN_TIER", tier)
    assert choose_marks("kubernetes") == ["-m", "kubernetes"]
    assert choose_marks() == []


def test_a_part_on_kubernetes_that_is_too_long_gives_the_other_its_turn(
    monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]
) -> None:
    memory = Memory()
    for part in ("api", "kubelet"):
        play(monkeypatch, calls, cut_after(0))
        finding = stages.play_kubernetes(memory, later())
        assert calls.pop()[-1] == part and not calls
        assert "cut off" in finding.lines[0]
    play(monkeypatch, calls, lambda _arguments: Outcome(1, False, "api: FAILED, 3 s", 3.0))
    faults = stages.play_kubernetes(memory, later()).faults
    assert len(faults) == len(stages.KUBERNETES), "each part is blamed on its own"


def test_shares_add_up_and_what_one_leaves_the_others_get() -> None:
    assert sum(stage.share for stage in STAGES) == pytest.approx(1)
    until_s = time.monotonic() + 100
    ends = [end - time.monotonic() for _stage, end in share_out(STAGES, until_s)]
    assert ends[-1] == pytest.approx(100, abs=1), "nothing was used: the last has all of it"
    late = list(share_out(STAGES, time.monotonic() - 5))
    assert all(end <= time.monotonic() for _stage, end in late), "no time is left"


def test_a_memory_comes_back_and_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "night.json"
    assert read_memory(path) == Memory()
    memory = Memory(next_seed=7, failing_seeds=[1], turns={"sizes": 3})
    write_memory(path, memory)
    assert read_memory(path) == memory
    path.write_text(json.dumps({"mine": 1}))
    with pytest.raises(SystemExit, match=r"night\.json"):
        read_memory(path)
    assert json.loads(path.read_text()) == {"mine": 1}


def test_the_report_says_first_what_failed() -> None:
    bad = Finding(lines=["3 seeds"])
    bad.blame("python -m tests.sim --seed 3", Outcome(1, False, "D1: entry 7 is lost", 2.0))
    played = [Played("Seeds", bad, 60.0), Played("Benchmark", Finding(), 30.0)]
    page = format_report(played, began="2026-01-02 03:04 UTC", took_s=90)
    assert page.startswith("# Night of 2026-01-02 03:04 UTC: one failed\n")
    assert "| Seeds | FAILED | 1.0 |" in page and "| Benchmark | passed | 0.5 |" in page
    assert "D1: entry 7 is lost" in page
    assert "nothing failed" in format_report(played[1:], began="now", took_s=1)


def test_a_command_is_ended_at_its_time_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "pid"
    code = (
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print('began', flush=True)\n"
        f"pathlib.Path({str(marker)!r}).write_text(f'{{child.pid}}.')\n"
        "child.wait()\n"
    )

    def has_begun() -> bool:
        return marker.exists() and marker.read_text().endswith(".")

    class UntilBegun(subprocess.Popen[bytes]):
        """Its time is over once it has begun, however long the machine takes for that."""

        is_over = False

        def wait(self, timeout: float | None = None) -> int:
            if not self.is_over and timeout is not None:
                wait_in_thread(has_begun, HANG_S, "the command to begin")
                self.is_over = True
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", UntilBegun)
    outcome = run_command(["-c", code], later())
    assert outcome.is_cut and not outcome.has_failed and "began" in outcome.output
    with suppress(ProcessLookupError):
        child = os.pidfd_open(int(marker.read_text().removesuffix(".")))
        assert is_readable(child, HANG_S), "it lives on"
        os.close(child)


def test_a_command_that_fails_in_its_time_has_failed() -> None:
    outcome = run_command(["-c", "raise SystemExit(3)"], later())
    assert outcome.has_failed and outcome.status == 3 and not outcome.is_cut


def test_stages_are_told_apart_by_their_names() -> None:
    assert len({stage.name for stage in STAGES}) == len(STAGES)
