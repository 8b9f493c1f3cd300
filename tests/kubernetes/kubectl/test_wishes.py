"""Drains, pauses and `why`: what is written into objects, and what is told of them.

Source: docs/kubernetes/kubectl.md, docs/kubernetes/removal.md.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from duramen.cli.command import ExitCode
from duramen.errors import DuramenError
from kubectl_duramen.main import main
from kubectl_duramen.wishes.why import explain, format_age, parse_target
from tests.kubernetes.kubectl import things
from tests.kubernetes.kubectl.fake_kubectl import plant

OURS = "/apis/duramen.io/v1alpha1/namespaces/shop/"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/shop/leases/duramen-operator"
NOW = datetime(2026, 1, 1, 0, 12, 30, tzinfo=UTC)
WAITS = things.condition("Progressing", "False", "Blocked", "granted is zookeeper/z")


def make_bookie(*conditions: things.Json, **status: Any) -> things.Json:
    spec = {"clusterName": "main", "bookieSet": "main"}
    return things.custom("Bookie", "main-1-0", spec, *conditions, **status)


@pytest.mark.parametrize(
    ("command", "patch"),
    [
        (["drain", "main-1-0"], '{"spec":{"decommission":true}}'),
        (["cancel-drain", "main-1-0"], '{"spec":{"decommission":false}}'),
        (["pause"], '{"metadata":{"annotations":{"duramen.io/paused":"true"}}}'),
        (["resume", "main"], '{"metadata":{"annotations":{"duramen.io/paused":null}}}'),
    ],
)
def test_a_wish_is_written_into_its_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], patch: str
) -> None:
    answers = {
        f"{OURS}logclusters": {"items": [things.cluster()]},
        f"{OURS}bookies/main-1-0": make_bookie(WAITS, removal="Draining", removalBy="name"),
    }
    patched = ["bookies.duramen.io/main-1-0", "logclusters.duramen.io/main"]
    calls = plant(tmp_path, monkeypatch, answers=answers, patched=patched)
    assert main(command) == ExitCode.OK
    (call,) = [one for one in calls.read_text().splitlines() if one.startswith("patch")]
    assert call.endswith(f"--namespace=shop --type=merge --patch={patch}")


def test_who_goes_by_the_number_of_its_set_is_not_kept_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    goes = make_bookie(WAITS, removal="Draining", removalBy="replicas")
    calls = plant(tmp_path, monkeypatch, answers={f"{OURS}bookies/main-1-0": goes})
    assert main(["cancel-drain", "main-1-0"]) == ExitCode.FAILED
    assert "kubectl scale bks/main --replicas=N" in capsys.readouterr().out
    assert "patch" not in calls.read_text()


def test_a_bookie_that_is_not_there_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, monkeypatch)
    assert main(["drain", "main-9-0"]) == ExitCode.FAILED
    assert "NotFound" in capsys.readouterr().err


@pytest.mark.parametrize("is_served", [True, False])
def test_why_says_what_is_waited_for_and_whether_anybody_serves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_served: bool,
) -> None:
    answers = {f"{OURS}bookies/main-1-0": make_bookie(WAITS, removal="Stopping", copies=3)}
    plant(tmp_path, monkeypatch, answers=answers | ({LEASE: things.lease()} if is_served else {}))
    assert main(["why", "bke/main-1-0"]) == ExitCode.FAILED
    told = " ".join(capsys.readouterr().out.split())
    assert "Progressing is False (Blocked), for" in told
    assert "granted is zookeeper/z. 3 copies are left on it." in told
    assert told.startswith("What follows is old") is not is_served


def test_why_of_what_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settled = things.condition("Progressing", "False", "Settled", "nothing is left")
    well = make_bookie(things.condition("Ready", "True"), settled)
    answers = {f"{OURS}bookies/main-1-0": well, LEASE: things.lease()}
    plant(tmp_path, monkeypatch, answers=answers)
    assert main(["why", "bookie/main-1-0"]) == ExitCode.OK
    assert capsys.readouterr().out == "Bookie main-1-0 waits for nothing.\n"


def test_what_was_changed_and_not_looked_at_is_not_explained_by_old_words() -> None:
    item = make_bookie(WAITS)
    item["metadata"]["generation"] = 2
    (said,) = explain(item, NOW)
    assert "has not looked at the last change" in said


def test_a_paused_cluster_and_a_deleted_object_say_so() -> None:
    cluster = things.cluster()
    cluster["metadata"]["annotations"] = {"duramen.io/paused": "true"}
    (said,) = explain(cluster, NOW)
    assert "kubectl duramen resume" in said
    item = things.custom("Log", "orders", {}, things.condition("Ready", "True"))
    item["metadata"] |= {
        "deletionTimestamp": "2026-01-01T00:02:00Z", "finalizers": ["duramen.io/delete"],
    }  # fmt: skip
    (said,) = explain(item, NOW)
    assert said == "Log orders was deleted 10 min ago, and waits for duramen.io/delete."


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("bke/a", ("Bookie", "a")),
        ("bookies/a", ("Bookie", "a")),
        ("dc/main", ("LogCluster", "main")),
        ("Log/orders", ("Log", "orders")),
        ("logs.duramen.io/orders", ("Log", "orders")),
    ],
)
def test_kinds_are_known_by_all_their_names(target: str, found: tuple[str, str]) -> None:
    assert parse_target(target) == found


@pytest.mark.parametrize("target", ["orders", "pod/x", "lg/", ""])
def test_another_kind_is_refused_with_those_that_there_are(target: str) -> None:
    with pytest.raises(DuramenError, match=r"write one of .*lg/NAME \(Log\)"):
        parse_target(target)


@pytest.mark.parametrize(
    ("since", "age"),
    [
        ("2026-01-01T00:12:00Z", "30 s"),
        ("2026-01-01T00:00:30Z", "12 min"),
        ("2025-12-31T20:00:00Z", "4 h"),
        ("2025-12-25T00:00:00Z", "7 d"),
        ("2026-01-01T01:00:00Z", "0 s"),
    ],
)
def test_an_age_is_told_in_the_largest_unit_that_fits(since: str, age: str) -> None:
    assert format_age(since, NOW) == age
