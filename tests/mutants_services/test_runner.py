"""The runner tells what was noticed from what was not, on a tree of two small modules.

Its tests run as they do for the whole list: in a copy, in a process that forks. What the made-up
tests say decides every verdict; how long anything takes decides none, but for the one that hangs.
"""

import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.machine import MachineLock
from tests.mutants_services import tree
from tests.mutants_services.__main__ import choose, describe, format_text, is_enough, summarize
from tests.mutants_services.fault import Fault
from tests.mutants_services.playing import Fate, Player, Verdict
from tests.mutants_services.touching import list_changed_spans, put_probes
from tests.mutants_services.tree import Tree

pytestmark = pytest.mark.gate

HERE = Path(__file__).parent
TALLY = """\
def add(one: int, other: int) -> int:
    if one < 0:
        raise ValueError("below zero")
    return one + other


def wait(is_over: bool) -> bool:
    while not is_over:
        pass
    return is_over
"""
TESTS = {
    "tests/test_add.py": """\
from tally import add, wait


def test_sum():
    assert add(2, 3) == 5


def test_wait():
    assert wait(True)
""",
    "tests/test_kept.py": """\
from functools import cache

from tally import add

kept = cache(add)


def test_first():
    assert kept(2, 3) > 4


def test_second():
    assert kept(2, 3) == 5
""",
    "tests/test_broken.py": "def test_nothing():\n    assert False\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one module, its tests, and what of ours runs tests in a copy."""
    root = tmp_path / "checkout"
    files = {
        "pyproject.toml": '[tool.hatch.build]\ndev-mode-dirs = ["lib"]\n',
        ".gitignore": "ignored\n",
        "ignored": "",
        "lib/tally.py": TALLY,
        "tests/__init__.py": "",
        **TESTS,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "tests/mutants_services").mkdir()
    for name in ("__init__.py", "warm.py", "touching.py"):
        shutil.copy(HERE / name, root / "tests/mutants_services" / name)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    return root


def make(name: str, old: str, new: str, test: str = "tests/test_add.py") -> Fault:
    return Fault(name, "tally", "lib/tally.py", old, new, "The sum is wrong.", (test,))


NOTICED = make("noticed", "one + other", "one - other")
NOT_NOTICED = make("not-noticed", "one < 0", "one < -1")
UNSAID = make("unsaid", "one + other", "one - other", "tests/test_broken.py")
ENDLESS = make("endless", "while not is_over:", "while is_over:")


def test_waiting_for_the_machine_counts_as_no_hang(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    class Contended(MachineLock):
        def share(self) -> None:
            super().share()
            now_s[0] += 1_000.0

    def carry_out(_tree: Tree, _order: object, until_s: float) -> int:
        return 0 if now_s[0] < until_s else 1

    monkeypatch.setattr(tree, "MachineLock", Contended)
    monkeypatch.setattr(tree, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(Tree, "_carry_out", carry_out)
    run = Tree(checkout, tmp_path / "copy").run(["tests/test_add.py"], limit_s=60.0)
    assert run.has_passed and run.elapsed_s == 0.0 and now_s == [1_000.0]


def test_verdicts_follow_the_tests(checkout: Path) -> None:
    told: list[Verdict] = []
    player = Player(checkout, tell=told.append)
    verdicts = player.play([NOTICED, NOT_NOTICED])
    assert [verdict.fate for verdict in verdicts] == [Fate.CAUGHT, Fate.SURVIVED]
    assert verdicts[0].by == "tests/test_add.py::test_sum"
    assert told == verdicts
    assert (checkout / "lib/tally.py").read_text(encoding="utf-8") == TALLY


def test_a_fault_that_those_who_came_to_its_line_miss_is_shown_to_all(checkout: Path) -> None:
    # What is kept is made by the first test that asks; another one looks at it more closely.
    fault = make("kept", "one + other", "one * other", "tests/test_kept.py")
    (verdict,) = Player(checkout).play([fault])
    assert (verdict.fate, verdict.by) == (Fate.CAUGHT, "tests/test_kept.py::test_second")


def test_a_test_that_fails_by_itself_judges_nothing(checkout: Path) -> None:
    verdicts = Player(checkout).play([UNSAID, NOTICED])
    assert [verdict.fate for verdict in verdicts] == [Fate.NOT_JUDGED, Fate.CAUGHT]
    assert verdicts[0].by == "tests/test_broken.py does not pass without it"
    assert not is_enough(verdicts)


def test_a_hang_is_noticed_and_ended(checkout: Path) -> None:
    (verdict,) = Player(checkout, hang_min_s=0.5).play([ENDLESS])
    assert (verdict.fate, verdict.by) == (Fate.CAUGHT, "a hang")


def test_nothing_is_begun_after_the_hour(checkout: Path) -> None:
    verdicts = Player(checkout, until_s=time.monotonic()).play([NOTICED])
    assert [verdict.fate for verdict in verdicts] == [Fate.NOT_PLAYED]
    assert "Not played for want of time: noticed." in format_text(verdicts)


def test_enough_is_ninety_five_of_a_hundred_and_all_judged() -> None:
    caught, survived = Verdict(NOTICED, Fate.CAUGHT, "a"), Verdict(NOT_NOTICED, Fate.SURVIVED, "")
    assert is_enough([caught] * 19 + [survived])
    assert not is_enough([caught] * 18 + [survived])
    assert not is_enough([Verdict(NOTICED, Fate.NOT_PLAYED, "")])
    assert "19 of 20 caught (95.0%), 1 survived" in summarize([caught] * 19 + [survived])
    assert describe([caught, survived])["counts"]["survived"] == 1
    assert "- SURVIVED: `not-noticed` in `lib/tally.py`: The sum is wrong." in format_text(
        [survived]
    )


def test_nights_begin_at_different_places_and_play_what_was_asked_for() -> None:
    faults = [make(f"fault-{number}", "a", "b") for number in range(200)]
    firsts = {choose(faults, [], [], seed)[0].name for seed in range(5)}
    assert len(firsts) == 5
    assert sorted(choose(faults, [], [], 3)) == sorted(faults)
    assert [fault.name for fault in choose(faults, ["fault-7"], ["tally"], 3)] == ["fault-7"]
    assert choose(faults, ["fault-7", "no-such"], [], 0) == []
    assert choose(faults, [], ["no-such"], 0) == []


@pytest.mark.parametrize(
    ("old", "new", "spans"),
    [
        ("one + other", "one", [(4, 4)]),
        ("one < 0", "one < 1", [(2, 2)]),
        ('        raise ValueError("below zero")\n', "        pass\n", [(3, 3)]),
        ("    return one + other\n\n\ndef wait", "\n\n\ndef wait", [(4, 4)]),
    ],
)
def test_probes_stand_before_what_a_fault_changes(
    old: str, new: str, spans: list[tuple[int, int]]
) -> None:
    assert list_changed_spans(TALLY, old, new) == spans
    probed = put_probes(TALLY, "lib/tally.py", spans)
    assert probed.count(f"lib/tally.py:{spans[0][0]}") == 1
