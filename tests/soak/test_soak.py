"""The parts of a soak that need no cluster: what is sampled, the report, how a run is told.

The run itself is `make soak`; what its slopes prove is shown by `test_slopes`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duramen.errors import DuramenError
from tests.chaos.judge import Violation
from tests.process.times import HANG_S
from tests.soak import __main__ as command
from tests.soak.lane import WRITERS, pause_more_ms
from tests.soak.quick import quick
from tests.soak.report import format_report
from tests.soak.run import Outcome, Soak, flatten
from tests.soak.samples import MIB, TOLERANCES, count_kept, count_used, look_at
from tests.soak.slopes import Sample, Verdict, judge_all


def segment(size_bytes: int | None, *, hot: bool = True, cold: bool = False) -> dict[str, Any]:
    return {
        "bytes": size_bytes, "write_quorum": 3, "hot_copies": "kept" if hot else "released",
        "cold_copy": {"rechecked": True} if cold else None,
    }  # fmt: skip


def test_what_is_kept_is_counted_once_for_each_copy() -> None:
    rows = [segment(100), segment(10, cold=True), segment(1, hot=False, cold=True), segment(None)]
    assert count_kept(rows) == {"segments": 4, "hot": 330, "cold": 11}


def test_what_is_used_is_counted_in_blocks(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "full").write_bytes(b"x" * MIB)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(100 * MIB)
    assert MIB <= count_used(tmp_path) < 2 * MIB
    assert count_used(tmp_path / "gone") == 0


def test_a_process_is_looked_at_from_outside() -> None:
    before = look_at(os.getpid())
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    after = look_at(os.getpid())
    for descriptor in kept:
        os.close(descriptor)
    assert after["fd"] - before["fd"] == 20
    assert before["rss"] > 10 and before["threads"] >= 1
    assert look_at(2**22 + 1) == {}, "no process has such a number"


def test_every_quantity_has_a_tolerance() -> None:
    samples = [Sample(n * 3.0, 5.0) for n in range(40)]
    names = ["rss bookie-0", "rss zookeeper-0", "fd sequencer-0", "threads readproxy-1", "zk logs",
             "zk (all)", "disk of bookies beyond what is kept"]  # fmt: skip
    verdicts = judge_all(dict.fromkeys(names, samples), TOLERANCES)
    assert {verdict.name for verdict in verdicts} == set(names)
    assert not any(verdict.fault for verdict in verdicts)


@pytest.mark.parametrize("append_ms", [2, 40, 400])
def test_the_pause_comes_to_the_wanted_rate_whatever_an_append_takes(append_ms: int) -> None:
    wanted_per_s, pause_ms = 10.0, 1000 * WRITERS / 10.0
    for _ in range(2):
        rate = 1000 * WRITERS / (pause_ms + append_ms)
        pause_ms += pause_more_ms(rate, wanted_per_s)
    assert 1000 * WRITERS / (pause_ms + append_ms) == pytest.approx(wanted_per_s)
    assert pause_more_ms(0.0, wanted_per_s) < 0, "nothing came through: pause less"


def test_only_who_takes_long_to_be_steady_is_quick() -> None:
    tethered = [sys.executable, "-IS", "tether.py", "1", sys.executable]
    for role in ("bookie", "sequencer", "readproxy"):
        made = quick([*tethered, "-m", f"duramen_{role}.main", "--id", "x"])
        assert made[:5] == tethered and made[5].endswith("quick.py")
        assert made[6:] == [role, "--id", "x"]
    for kept in ([*tethered, "-m", "duramen_writeproxy.main"], ["java", "-jar", "z"]):
        assert quick(kept) == kept


GOOD = Verdict("fd bookie-0", "", 30, 60.0, 0.5, 12.0, 1.0, 24.0, None)
LEAK = GOOD._replace(name="rss bookie-0", fault="grew by 40 MiB in 1800 s, 16 at most")


def outcome(**more: Any) -> Outcome:
    made = Outcome(3600.0, 7, verdicts=[GOOD], capacity_per_s=300.0, paced_per_s=99.0)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_a_good_run_is_told_as_one() -> None:
    report = format_report(outcome())
    assert report.startswith("# Soak of 1.00 hours: good\n")
    assert "99 a second, 33% of it" in report and "## Nothing failed" in report
    assert "| fd bookie-0 |  | 30 | 60.0 | +0.50 | 12.0 | +1.0 | 24.0 | good |" in report


def violated() -> Outcome:
    made = outcome()
    made.tally.violations.append(Violation("D1", "log", "gone"))
    return made


@pytest.mark.parametrize(
    ("make", "word", "told"),
    [
        (lambda: outcome(verdicts=[GOOD, LEAK]), "FAILED", "rss bookie-0: grew by 40 MiB"),
        (violated, "FAILED", "VIOLATION D1 log: gone"),
        (lambda: outcome(faults=["a process ended: bookie-0"]), "FAILED", "bookie-0"),
        (lambda: outcome(verdicts=[]), "FAILED", "nothing was sampled"),
        (lambda: outcome(is_interrupted=True), "interrupted", "nothing is proved"),
    ],
    ids=["leak", "violation", "fault", "no samples", "interrupted"],
)
def test_what_failed_is_told(make: Callable[[], Outcome], word: str, told: str) -> None:
    made = make()
    report = format_report(made)
    assert not made.is_good and told in report.partition("## Slopes")[0]
    assert report.startswith(f"# Soak of 1.00 hours: {word}\n")


def test_failures_of_lanes_are_told_one_by_one() -> None:
    inner = ExceptionGroup("lane", [DuramenError("log_not_found", "x")])
    group = ExceptionGroup("run", [AssertionError("no end"), inner])
    assert [type(error) for error in flatten(group)] == [AssertionError, DuramenError]


def cancel() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("work", "status"),
    [
        (lambda soak: None, 0),
        (lambda soak: soak.outcome.faults.append("x"), 1),
        (lambda soak: soak.outcome.verdicts.append(LEAK), 1),
        (lambda soak: cancel(), 1),
    ],
    ids=["good", "fault", "leak", "cancelled by nobody"],
)
def test_the_command_reports_what_became_of_it(
    work: Callable[[Any], None],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = []

    class Played(Soak):
        async def carry_out(self) -> None:
            try:
                self.outcome.verdicts = [GOOD]
                work(self)
            finally:
                ended.append("in order")

    monkeypatch.setattr(command, "Soak", Played)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "report.md"
    monkeypatch.setattr(sys, "argv", ["soak", "--hours", "1", "--seed", "7", "--report", str(path)])
    assert command.main() == status
    report = path.read_text(encoding="utf-8")
    assert report == capsys.readouterr().out and ended == ["in order"]
    word = {0: "good", 1: "FAILED"}[status]
    assert report.startswith(f"# Soak of 1.00 hours: {word}\n")
    assert bool(list(tmp_path.glob("duramen-soak-*"))) is bool(status), "a failed run's is kept"


ENDLESS = """
import sys
from tests.pauses import stay
from tests.soak import __main__ as command
from tests.soak.run import Soak

class Endless(Soak):
    async def carry_out(self):
        print("there", file=sys.stderr, flush=True)
        try:
            await stay()
        finally:
            print("in order", file=sys.stderr, flush=True)

command.Soak = Endless
sys.exit(command.main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_with_a_report(number: signal.Signals, tmp_path: Path) -> None:
    """In a process of its own, as a shell starts it in the background: SIGINT is ignored there."""
    path = tmp_path / "report.md"
    words = ["--hours", "1", "--seed", "7", "--report", str(path)]
    search = os.pathsep.join(name for name in sys.path if name)
    with subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", ENDLESS, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": search, "TMPDIR": str(tmp_path)},
    ) as child:  # fmt: skip
        try:
            assert child.stderr is not None
            said = iter(child.stderr.readline, "")
            assert "there\n" in said
            child.send_signal(number)
            report, more = child.communicate(timeout=HANG_S)
        finally:
            child.kill()
    assert child.returncode == 130 and "in order\n" in more
    assert report == path.read_text(encoding="utf-8")
    assert report.startswith("# Soak of 1.00 hours: interrupted\n")
    assert list(tmp_path.glob("duramen-soak-*")), "an interrupted run's is kept"
