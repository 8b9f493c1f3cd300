"""Alerts: promtool accepts them, each fires and keeps quiet as its case says, each has its runbook.

Without promtool those tests skip with that reason (`promtool` says how to have it). That
a test of an alert can fail is shown by moving its bound out of reach.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from duramen.runtime.identity.certificates import LEAF_LIFE
from tests.kubernetes.chart import promtool
from tests.kubernetes.chart.alerts import CASES, GONE, RULES, Case
from tests.kubernetes.chart.rendering import NAMESPACE, ROOT, of_kind, render

RUNBOOKS = ROOT / "docs" / "runbooks"
SECTIONS = ("## What it means", "## What to look at", "## What to do")


def _rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def _write_tests(folder: Path, case: Case, *, is_deaf: bool = False) -> Path:
    """A case with its rule alone: each minute of a day of all of them is a minute of computing."""
    rule = _rules()[case.alert]
    heard = {**rule, "expr": f"({rule['expr']}) > 1e18"} if is_deaf else rule
    rules = folder / f"{case.alert}-rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [heard]}]}))
    file = folder / f"{case.alert}.yaml"
    document = {
        "rule_files": [str(rules)], "evaluation_interval": "1m", "tests": case.format(rule)
    }  # fmt: skip
    file.write_text(yaml.safe_dump(document, width=1000))
    return file


def test_promtool_accepts_the_rules() -> None:
    done = promtool.run("check", "rules", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(_rules())} rules found" in done.stdout


def test_every_alert_has_a_case() -> None:
    assert sorted(case.alert for case in CASES) == sorted(_rules())


@pytest.mark.parametrize("case", [*CASES, *GONE], ids=lambda case: case.alert)
def test_an_alert_fires_and_keeps_quiet(case: Case, tmp_path: Path) -> None:
    done = promtool.run("test", "rules", _write_tests(tmp_path, case))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", [*CASES, *GONE], ids=lambda case: case.alert)
def test_a_case_sees_an_alert_that_never_fires(case: Case, tmp_path: Path) -> None:
    done = promtool.run("test", "rules", _write_tests(tmp_path, case, is_deaf=True))
    assert done.returncode != 0
    assert case.alert in done.stdout + done.stderr


def test_every_alert_says_how_bad_it_is_and_where_to_read_on() -> None:
    for name, rule in _rules().items():
        assert rule["labels"]["severity"] in {"critical", "warning"}, name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"


def test_texts_name_the_time_that_certificates_last_without_an_operator() -> None:
    """Renewed at two thirds of a life, none of them earlier."""
    assert timedelta(days=2, hours=8) == LEAF_LIFE / 3
    stated = "two days and eight hours"
    for name in ("DuramenOperatorDown", "DuramenRenewalStopped"):
        assert stated in _rules()[name]["annotations"]["description"]
        assert stated in (RUNBOOKS / f"{name}.md").read_text()
    page = (ROOT / "docs" / "kubernetes" / "security.md").read_text()
    assert f"{stated.capitalize()} without an operator harm nobody" in page


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    pages = {page.stem: page.read_text() for page in RUNBOOKS.glob("Duramen*.md")}
    assert set(pages) == set(_rules())
    index = (RUNBOOKS / "README.md").read_text()
    for name, text in pages.items():
        assert text.startswith(f"# {name}\n"), name
        assert f"[{name}]({name}.md)" in index
        found = [line for line in text.splitlines() if line.startswith("## ")]
        assert tuple(found) == SECTIONS, name
        for section in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]:
            assert len(section.strip()) > 40, name


def test_runbooks_name_commands_that_there_are() -> None:
    table = (ROOT / "docs" / "cli.md").read_text()
    known = set(re.findall(r"^\| `([a-z -]+)` \|", table, re.MULTILINE))
    assert len(known) > 40
    for page in RUNBOOKS.glob("*.md"):
        for words in re.findall(
            r"(?:^|`|&& )duramen ([a-z-]+(?: [a-z]+)?)", page.read_text(), re.M
        ):
            assert {words, words.split()[0]} & known, f"{page.name}: duramen {words}"


def test_the_chart_carries_the_rules_with_its_own_links() -> None:
    values = {"monitoring": {"rules": "always", "runbookBase": "https://wiki.test/r"}}
    (carried,) = of_kind(render(values), "PrometheusRule")
    text = RULES.read_text().replace("docs/runbooks", "https://wiki.test/r")
    groups = yaml.safe_load(text.replace("NAMESPACE", NAMESPACE))
    assert carried["spec"] == groups
    assert of_kind(render(), "PrometheusRule") == []
