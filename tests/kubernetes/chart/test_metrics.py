"""Metrics: pages of real services are well formed, and rules and dashboards use what is there.

A whole cluster runs on this machine for its four pages; the operator's page is made of its
registry. A name that nobody exports would make an alert that never fires and a panel that is
always empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import pytest
import yaml

from duramen_operator.serving import metrics as operator_metrics
from tests.kubernetes.chart import promtool
from tests.kubernetes.chart.alerts import RULES
from tests.kubernetes.chart.rendering import CHART
from tests.process.cluster import LocalCluster

ROLES = ("bookie", "sequencer", "writeproxy", "readproxy")
LABELS = {"duramen_cluster"}
"""Labels whose names look like metrics."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """By role: the page of one process of it."""
    cluster = LocalCluster(tmp_path_factory.mktemp("metrics"), "--security", "none")
    cluster.start()
    try:
        found = {"operator": prometheus_client.generate_latest(operator_metrics.registry).decode()}
        for process in cluster.state()["processes"]:
            if process["role"] in ROLES and process["role"] not in found:
                answer = httpx.get(f"{process['admin_url']}/metrics", trust_env=False)
                assert answer.headers["content-type"].startswith("text/plain; version=")
                found[process["role"]] = answer.text
        yield found
    finally:
        cluster.stop()


@pytest.mark.process
@pytest.mark.parametrize("role", [*ROLES, "operator"])
def test_promtool_accepts_the_page(pages: dict[str, str], role: str) -> None:
    done = promtool.run("check", "metrics", stdin=pages[role])
    assert done.returncode == 0, done.stdout + done.stderr
    bad = pages[role] + "# TYPE duramen_x_count gauge\nduramen_x_count 1\n"
    assert promtool.run("check", "metrics", stdin=bad).returncode != 0


@pytest.mark.process
def test_rules_and_dashboards_use_metrics_that_there_are(pages: dict[str, str]) -> None:
    exported = set().union(*(_names(page) for page in pages.values()))
    used = {"rules": RULES.read_text()}
    used |= {path.name: _queries(path) for path in sorted(CHART.glob("dashboards/*.json"))}
    for file, text in used.items():
        names = set(re.findall(r"\bduramen_[a-z_]+\b", text)) - LABELS
        assert names, file
        assert names - exported == set(), file


@pytest.mark.process
def test_every_page_has_something_that_a_dashboard_shows(pages: dict[str, str]) -> None:
    shown = "".join(_queries(path) for path in CHART.glob("dashboards/*.json"))
    for role, page in pages.items():
        assert [name for name in _names(page) if name in shown], role


def _names(page: str) -> set[str]:
    """Of series: a histogram has three, and `…_created` says nothing that anybody asks for."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE):
        if kind == "histogram":
            found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        else:
            found.add(name)
    return {name for name in found if not name.endswith("_created")}


def _queries(path: Path) -> str:
    document = json.loads(path.read_text())
    return "\n".join(
        target["expr"] for panel in document["panels"] for target in panel.get("targets", ())
    )


def test_dashboards_are_whole() -> None:
    found = {path.name: json.loads(path.read_text()) for path in CHART.glob("dashboards/*.json")}
    assert len(found) == 3
    assert len({one["uid"] for one in found.values()}) == 3
    for name, document in found.items():
        panels = [one for one in document["panels"] if one["type"] != "row"]
        assert len({one["id"] for one in document["panels"]}) == len(document["panels"]), name
        assert not list(_overlaps(document["panels"])), name
        for panel in panels:
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            for target in panel["targets"]:
                assert 'namespace="$namespace"' in target["expr"], panel["title"]


def _overlaps(panels: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        grid = panel["gridPos"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                if (x, y) in taken:
                    yield taken[x, y], panel["title"]
                taken[x, y] = panel["title"]


@pytest.mark.parametrize("path", sorted(CHART.glob("dashboards/*.json")), ids=lambda p: p.stem)
def test_prometheus_understands_every_query(path: Path, tmp_path: Path) -> None:
    expressions = re.sub(r"\$__rate_interval", "5m", _queries(path)).splitlines()
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions)
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = promtool.run("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
