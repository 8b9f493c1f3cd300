"""Runs every scenario of this folder: the output must be, letter by letter, what the file says.

With DURAMEN_REWRITE=1 the files are rewritten instead; read the diff before you commit it, since
what a core says after a change is not thereby right. How to read and write one: docs/scenarios.md.

The same commands are played with logs of other kinds (`tests.combinations`), where the story does
not say `# Only striped: why`, or ordered: clients must get to know the same in each step.

Source: docs/scenarios.md, docs/protocol/rules.md.
"""

import difflib
import os
from pathlib import Path

import pytest

from tests.combinations import FIRST, OTHERS, choose_combinations
from tests.scenario.interpreter import ScenarioError
from tests.scenario.scenario_file import list_combinations, report_fates, run_scenario

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    expected = path.read_text(encoding="utf-8")
    actual = run_scenario(expected)
    if os.environ.get("DURAMEN_REWRITE") == "1":
        path.write_text(actual, encoding="utf-8")
        return
    if actual != expected:
        diff = difflib.unified_diff(
            expected.splitlines(), actual.splitlines(), f"{path.name} says", "the cores say",
            lineterm="", n=6,
        )  # fmt: skip
        pytest.fail("\n".join(diff), pytrace=False)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_clients_get_to_know_the_same_of_another_kind_of_log(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    possible = list_combinations(text)
    first = report_fates(text, FIRST) if possible else []
    for combination in choose_combinations(path.stem, possible):
        assert report_fates(text, combination) == first, combination


def test_most_scenarios_run_with_every_kind_of_log() -> None:
    possible = [list_combinations(path.read_text(encoding="utf-8")) for path in SCENARIOS]
    assert sum(len(one) == len(OTHERS) for one in possible) > len(SCENARIOS) / 2


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_tells_its_story_first(path: Path) -> None:
    story = path.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    assert len(story) >= 2 and all(line.startswith("#") for line in story)
    assert "Source: " in story[-1], "the last line of the story names rules or pages"


def test_a_wrong_expectation_is_seen() -> None:
    text = "covers Qw=3 Qa=2 responders=b1\n----\ncovers yes\n"
    assert run_scenario(text) != text


@pytest.mark.parametrize("text", ["dance\n----\n", "covers Qw=3\n", "deliver all\n----\n"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        run_scenario(text)
