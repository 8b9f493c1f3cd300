"""What `kubectl duramen status` says of a cluster in each state.

Pure: documents as Kubernetes and the administration give them go in, no cluster and no kubectl.
That the names in these documents are the models' own is a test here too.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from duramen_operator.resources import (
    ArchivePolicyStatus,
    BookieResourceStatus,
    BookieSetStatus,
    LogGrantStatus,
    LogStatus,
)
from kubectl_duramen.sources import Snapshot
from kubectl_duramen.summary import explain_pod, summarize
from kubectl_duramen.tree import render
from tests.kubernetes.kubectl import things

OK = things.condition("Ready", "True")


def snapshot(*pods: things.Json, **more: Any) -> Snapshot:
    services = [
        things.pod(f"main-{role}-0", role)
        for role in ("sequencer", "writeproxy", "readproxy", "zookeeper")
    ]
    fields: dict[str, Any] = {
        "cluster": things.cluster(),
        "objects": {"pods": [*services, *pods], "logs": [], "bookies": [], "bookiesets": []},
        "admin": {"registered": {"bookies": []}, "repair": things.repair(), "owners": {"logs": []}},
    }
    return Snapshot(**{**fields, **more})


def lines_of(found: Snapshot) -> str:
    return "\n".join(render(summarize(found)))


def test_a_healthy_cluster_has_nothing_to_look_at() -> None:
    found = snapshot(
        *(things.pod(f"main-{zone}-0", "bookie", zone=zone) for zone in "ab"),
        admin={
            "registered": {"bookies": [things.registered(f"main-{z}-0", z) for z in "ab"]},
            "repair": things.repair(), "owners": {"logs": [{}]},
        },
    )  # fmt: skip
    summary = summarize(found)
    assert summary["ready"] and not summary["trouble"] and not summary["unknown"]
    text = lines_of(found)
    assert "!!" not in text and "??" not in text
    assert "zone a" in text and "ok main-a-0  rw, 5.0GiB free, on node-a" in text
    assert "ok repair: nothing waits" in text


def test_bookies_are_told_by_place_with_what_is_wrong() -> None:
    drain = {"bookie": "main-b-0", "duty": "draining", "fragments": 12, "bytes": 3_000_000,
             "waits_for": "copies of 12 fragments"}  # fmt: skip
    found = snapshot(
        things.pod("main-a-0", "bookie", zone="a"),
        things.pod("main-b-0", "bookie", zone="b"),
        things.crashing("main-b-1", "b"),
        admin={
            "registered": {"bookies": [
                things.registered("main-a-0", "a", state="ro", takes_new_data=False),
                things.registered("main-b-0", "b", duty="draining"),
                things.registered("main-c-0", "c", state="absent"),
            ]},
            "repair": things.repair(drains=[drain]), "owners": {"logs": []},
        },
    )  # fmt: skip
    rows = {row["bookie"]: row for row in summarize(found)["bookies"]}
    assert rows["main-a-0"]["why"] == ["takes no new data: read-only"]
    assert rows["main-b-0"]["drain"]["fragments"] == 12 and not rows["main-b-0"]["why"]
    assert rows["main-b-1"]["why"] == [
        "CrashLoopBackOff, ended with 3: back-off 40s", "is not registered",
    ]  # fmt: skip
    assert rows["main-c-0"]["why"] == ["has no pod", "is registered and not there"]
    text = lines_of(found)
    assert "draining, 12 fragments left, 3.0 MB, waits for copies of 12 fragments" in text
    assert "!! main-b-1" in text and "7 restarts" in text
    assert text.index("zone a") < text.index("zone b") < text.index("zone c")


def test_a_log_is_told_with_the_reason_of_its_condition() -> None:
    sick = things.log("paid", things.condition("PlacementSatisfied", "False", "OneRack", "needs 2"))
    logs = [things.log("fine", OK), sick, things.log("gone", OK, log_id="9")]
    lost = {"log_id": "9", "epoch": 3, "first_entry": 0, "reason": "no copy is left"}
    found = snapshot(
        objects={"logs": logs, "pods": []},
        admin={
            "repair": things.repair(unrepairable=[lost]),
            "owners": {"logs": [], "silent": ["main-sequencer-1"]},
        },
    )
    told = {row["log"]: row["why"] for row in summarize(found)["logs"]["unhealthy"]}
    assert told["orders/paid"] == ["PlacementSatisfied False (OneRack): needs 2"]
    assert "cannot be repaired" in told["orders/gone"][0]
    assert "no answer" in told["all of main-sequencer-1"][0] and len(told) == 3
    assert "1 fragment cannot be repaired" in summarize(found)["trouble"][0]


def test_a_condition_that_is_calm_when_false_is_no_alarm() -> None:
    conditions = [things.condition(kind, "False") for kind in ("Secure", "Progressing")]
    found = snapshot(cluster=things.cluster(OK, *conditions))
    assert not summarize(found)["trouble"]
    assert "-- Secure False" in lines_of(found)


def test_what_could_not_be_learnt_is_told_and_the_rest_is_shown() -> None:
    found = Snapshot(
        things.cluster(things.condition("Ready", "Unknown", "NotLooked")),
        objects={"bookies": [things.custom("Bookie", "main-a-0", {"clusterName": "main"},
                                           region="eu", zone="a", identity="serve")]},
        unknown={"pods": "pods is forbidden", "repair": "no endpoints available"},
    )  # fmt: skip
    summary = summarize(found)
    assert not summary["ready"]
    assert [(row["zone"], row["state"], row["why"]) for row in summary["bookies"]] == [
        ("a", "serve", [])
    ]
    text = lines_of(found)
    assert "NOT READY" in text and "?? Ready Unknown" in text
    assert "pods: pods is forbidden" in text and "repair: not known" in text
    assert "has no pod" not in text


def test_an_archive_that_lags_or_fails_is_told() -> None:
    policy = things.custom(
        "ArchivePolicy", "hourly", {"clusterName": "main"}, OK, failedRuns=2, mismatches=1,
        lagSegments=4, lastRun={"name": "hourly-1", "result": "Failed", "finished": "noon"},
    )  # fmt: skip
    text = lines_of(snapshot(objects={"archivepolicies": [policy], "pods": []}))
    assert "!! hourly: last run Failed noon, 4 segments behind" in text
    assert "not as at the bookies: 1 copy" in text and "2 runs failed" in text


def test_grants_that_are_not_there_are_told_with_the_reason() -> None:
    waiting = things.condition("Ready", "False", "Refused", "bob is nobody")
    not_judged = things.condition("Ready", "False", "NotJudged", "security is none")
    found = [things.grant("ann", OK), things.grant("bob", waiting), things.grant("cid", not_judged)]
    told = snapshot(objects={"loggrants": found, "pods": []})
    text = lines_of(told)
    assert "!! grants: 3 LogGrant objects, 1 not there" in text
    assert "!! bob: reader on orders to user:corp/bob" in text
    assert "Ready False (Refused): bob is nobody" in text and "ann" not in text
    assert "cid" not in text, "nothing is to be done: it is given once security is on"
    assert "1 grant is not there" in summarize(told)["trouble"]
    well = lines_of(snapshot(objects={"loggrants": found[:1], "pods": []}))
    assert "ok grants: 1 LogGrant objects, 0 not there" in well
    assert "grants" not in lines_of(snapshot(objects={"loggrants": [], "pods": []}))


def test_an_empty_status_is_shown_too() -> None:
    bare = {"metadata": {"name": "main"}}
    summary = summarize(Snapshot(bare, objects={"pods": [], "logs": [{"metadata": {"name": "x"}}]}))
    assert not summary["ready"] and render(summary)


def test_fields_of_the_status_are_those_of_the_models() -> None:
    used: dict[type[BaseModel], tuple[str, ...]] = {
        BookieResourceStatus: ("region", "zone", "identity", "freeBytes", "writable", "node"),
        BookieSetStatus: ("replicas", "readyReplicas"),
        LogStatus: ("logId",),
        LogGrantStatus: ("who",),
        ArchivePolicyStatus: ("lastRun", "lastSuccess", "lagSegments", "lagSeconds", "mismatches",
                              "failedRuns"),
    }  # fmt: skip
    for model, names in used.items():
        known = {field.alias for field in model.model_fields.values()}
        assert known.issuperset(names), (model, set(names) - known)


def test_a_bookie_that_catches_up_is_no_trouble() -> None:
    pod = things.pod("main-a-0", "bookie", zone="a")
    gate = {"type": "duramen.io/caught-up", "status": "False", "reason": "CopiesMissing"}
    ready = {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"}
    pod["status"]["conditions"] = [ready, gate]
    admin = {
        "registered": {"bookies": [things.registered("main-a-0", "a")]}, "repair": things.repair(),
        "owners": {"logs": []},
    }  # fmt: skip
    found = snapshot(pod, admin=admin)
    assert summarize(found)["trouble"] == []
    assert "ok main-a-0  rw, 5.0GiB free, catches up, on node-a" in lines_of(found)
    gate["status"] = ready["status"] = "True"
    assert "catches up" not in lines_of(found)


def test_a_pod_without_a_node_is_told_until_it_has_one() -> None:
    pod = things.pod("main-a-0", "bookie", zone="a")
    said = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}
    pod["status"]["conditions"] = [*pod["status"]["conditions"], said]
    assert explain_pod(pod) is None, "what failed was for an earlier pod of its name"
    pod["spec"].pop("nodeName")
    assert explain_pod(pod) == "SchedulerError"
