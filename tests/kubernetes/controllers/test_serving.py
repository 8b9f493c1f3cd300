"""What keeps the operator honest while it runs: silent watches, stuck workers, metrics that go.

Nothing of Kubernetes runs here. What a real API server does with steps is tested beside this
module.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from prometheus_client import generate_latest

from duramen_operator.kinds import KINDS
from duramen_operator.log_lines import JsonLines
from duramen_operator.names import NAME_MAX, name_bookies, shorten
from duramen_operator.plan.observed import KubeObject
from duramen_operator.rights import RIGHTS
from duramen_operator.serving import metrics
from duramen_operator.serving.health import HealthServer
from duramen_operator.serving.watches import GRACE_S, Watches
from duramen_operator.settings import Settings


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_item(version: int, uid: str = "one") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watches(clock: Clock) -> Watches:
    return Watches(["Pod", "Log"], clock)


def test_a_watch_that_tells_everything_is_never_late(watches: Watches, clock: Clock) -> None:
    for version in range(1, 50):
        watches.on_list("Pod", [make_item(version)])
        watches.on_event("Pod", make_item(version), is_deleted=False)
        watches.on_list("Pod", [make_item(version)])
        clock.now_s += GRACE_S
    assert watches.find_late() == ()


def test_a_silent_watch_is_late_after_the_grace(watches: Watches, clock: Clock) -> None:
    watches.on_event("Pod", make_item(1), is_deleted=False)
    watches.on_list("Pod", [make_item(2)])
    clock.now_s += GRACE_S
    watches.on_list("Pod", [make_item(3)])
    assert watches.find_late() == ()
    clock.now_s += 1
    assert watches.find_late() == ("Pod",)
    watches.on_event("Pod", make_item(3), is_deleted=False)
    assert watches.find_late() == ()


def test_an_object_that_no_event_ever_told_of_is_late(watches: Watches, clock: Clock) -> None:
    watches.on_list("Log", [make_item(1)])
    clock.now_s += GRACE_S + 1
    assert watches.find_late() == ("Log",)


def test_what_was_deleted_or_is_not_watched_is_not_late(watches: Watches, clock: Clock) -> None:
    watches.on_list("Pod", [make_item(1)])
    watches.on_event("Pod", make_item(2), is_deleted=True)
    watches.on_list("Service", [make_item(1)])
    clock.now_s += GRACE_S + 1
    assert watches.find_late() == ()
    assert watches.statistics() == {"seen": 0, "late": 0}


def test_an_object_that_went_unheard_is_forgotten_by_the_next_list(
    watches: Watches, clock: Clock
) -> None:
    watches.on_list("Pod", [make_item(1, "gone")])
    watches.on_list("Pod", [])
    clock.now_s += GRACE_S + 1
    assert watches.find_late() == ()


def test_health_pages_say_what_is_wrong() -> None:
    import httpx

    faults = {"sick": "", "unready": "waiting for the API server"}

    async def ask() -> list[tuple[int, str]]:
        server = HealthServer(lambda: faults["sick"], lambda: faults["unready"])
        await server.start("127.0.0.1", 0, 0)
        try:
            health, pages = server.ports
            async with httpx.AsyncClient(trust_env=False) as client:
                answers = [await client.get(f"http://127.0.0.1:{health}/healthz")]
                answers.append(await client.get(f"http://127.0.0.1:{health}/readyz"))
                faults["sick"] = "no event came for too long about changes of Pod"
                answers.append(await client.get(f"http://127.0.0.1:{health}/healthz"))
                answers.append(await client.get(f"http://127.0.0.1:{pages}/metrics"))
        finally:
            await server.stop()
        return [(answer.status_code, answer.text) for answer in answers]

    alive, unready, sick, page = asyncio.run(ask())
    assert alive == (200, "ok\n")
    assert unready == (503, "waiting for the API server\n")
    assert sick[0] == 503
    assert "Pod" in sick[1]
    assert page[0] == 200
    assert "duramen_operator_late_watches" in page[1]


def test_the_series_of_a_cluster_go_with_it() -> None:
    def read() -> str:
        return generate_latest(metrics.registry).decode()

    condition = {"type": "Ready", "status": "False"}
    body = {
        "apiVersion": "duramen.io/v1alpha1",
        "kind": "LogCluster",
        "metadata": {"name": "passing"},
        "status": {"conditions": [condition]},
    }
    series = metrics.ClusterSeries("passing")
    metrics.LAST_PASS.labels("passing").set(1)
    series.report_conditions([KubeObject(body)])
    line = 'duramen_operator_condition{kind="LogCluster",name="passing",status="%s",type="Ready"}'
    assert f"{line % 'False'} 1.0" in read()
    assert f"{line % 'True'} 0.0" in read()
    series.forget()
    assert "passing" not in read()
    series.forget()


def test_an_archive_that_is_behind_is_told_by_policy() -> None:
    def format(name: str, **status: object) -> KubeObject:
        return KubeObject(
            {
                "apiVersion": "duramen.io/v1alpha1",
                "kind": "ArchivePolicy",
                "metadata": {"name": name},
                "status": status,
            }
        )

    def read(policy: str) -> dict[str, float | None]:
        labels = {"cluster": "archived", "policy": policy}
        names = ("lag_seconds", "mismatches")
        prefix = "duramen_operator_archive_"
        return {n: metrics.registry.get_sample_value(prefix + n, labels) for n in names}

    series = metrics.ClusterSeries("archived")
    series.report_archive([format("new"), format("all", lagSeconds=120, mismatches=2)])
    assert read("new") == {"lag_seconds": None, "mismatches": None}
    assert read("all") == {"lag_seconds": 120.0, "mismatches": 2.0}
    # Not known any more, then gone.
    series.report_archive([format("new", lagSeconds=60), format("all", mismatches=0)])
    assert read("new") == {"lag_seconds": 60.0, "mismatches": None}
    assert read("all") == {"lag_seconds": None, "mismatches": 0.0}
    series.forget()
    assert read("new") == read("all") == {"lag_seconds": None, "mismatches": None}


def test_log_lines_are_json_with_the_traceback_inside() -> None:
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        import sys

        record = logging.LogRecord("a.b", logging.ERROR, "", 1, "%s!", ("no",), sys.exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["level"], fields["logger"], fields["message"]) == ("error", "a.b", "no!")
    assert "ValueError: bad" in fields["traceback"]


def test_names_are_labels_of_dns_and_stay_apart() -> None:
    texts = ["main-zookeeper", "Main", "main", "a_b", "a-b", "a.b", "x" * 200, "x" * 201, "Ä", "1a"]
    names = [shorten(text) for text in texts]
    assert len(set(names)) == len(texts)
    for name in names:
        assert len(name) <= NAME_MAX
        assert name.strip("-") == name
        assert name[0].isalpha()
        assert all(c.isascii() and (c.isalnum() or c == "-") for c in name)
    assert name_bookies("main", "", "") == "main"
    assert name_bookies("main", "eu", "eu-1a") == "main-eu-eu-1a"


def test_every_kind_that_is_read_may_be_read() -> None:
    may = {(r.group, plural): set(r.verbs) for r in RIGHTS for plural in r.resources}
    for kind in KINDS:
        assert may[kind.group, kind.plural] >= {"get", "list", "watch"}, kind.name
    assert "create" in may["events.k8s.io", "events"]
    assert not any("*" in verb for verbs in may.values() for verb in verbs)


def test_urls_of_a_cluster_are_its_service_or_what_was_said() -> None:
    settings = Settings("here")
    assert settings.find_write_url("main") == "http://main-writeproxy.here.svc:7301"
    assert settings.find_admin_url("main") == "http://main-writeproxy.here.svc:7302"
    told = Settings("here", admin_url="http://127.0.0.1:1/{cluster}")
    assert told.find_admin_url("main") == "http://127.0.0.1:1/main"
