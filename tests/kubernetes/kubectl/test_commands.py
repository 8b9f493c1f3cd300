"""The commands beside a kubectl that answers from a file: what they print, and how they fail.

Secrets are planted in every place that a report reads, and the finished file is looked through.
"""

from __future__ import annotations

import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from duramen.cli.command import ExitCode
from kubectl_duramen.main import main
from tests.kubernetes.kubectl import things
from tests.kubernetes.kubectl.fake_kubectl import plant

OURS = "/apis/duramen.io/v1alpha1/namespaces/shop/"
CORE = "/api/v1/namespaces/shop/"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/shop/leases/duramen-operator"
ADMIN = f"{CORE}services/http:main-writeproxy:7302/proxy/v1/cluster/"
PLANTED = "hunter2hunter2"
TROUBLES = {
    "error: current-context must exist in order to minify": "--kubeconfig",
    'error: context "x" does not exist': "--kubeconfig",
    "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout": "kubectl version",
    "error: You must be logged in to the server (Unauthorized)": "auth whoami",
    'Error from server (Forbidden): logclusters.duramen.io is forbidden: User "x"': "can-i",
}


def items(*objects: things.Json) -> things.Json:
    return {"items": list(objects)}


def world(**more: Any) -> dict[str, Any]:
    """Answers for a cluster with one bookie, and what is `more`."""
    answers: dict[str, Any] = {
        f"{OURS}logclusters": items(things.cluster()),
        **{f"{OURS}{plural}": items() for plural in ("bookiesets", "bookies", "logs")},
        **{
            f"{OURS}{plural}": items()
            for plural in ("lognamespaces", "loggrants", "archivepolicies")
        },
        f"{CORE}pods": items(things.pod("main-a-0", "bookie", zone="a")),
        f"{ADMIN}bookies": {"bookies": [things.registered("main-a-0", "a")]},
        f"{ADMIN}repair": things.repair(),
        f"{ADMIN}owners": {"logs": []},
        LEASE: things.lease(),
    }
    return {"answers": {**answers, **more}}


def test_the_state_of_a_cluster_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, monkeypatch, **world())
    assert main(["status"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "LogCluster shop/main: ready" in shown and "ok main-a-0" in shown
    assert main(["status", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["bookies"][0]["zone"] == "a"


def test_flags_reach_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = plant(tmp_path, monkeypatch, **world())
    main(["status", "-n", "shop", "--context", "prod", "--kubeconfig", "/x"])
    assert all("--kubeconfig=/x --context=prod" in call for call in calls.read_text().splitlines())
    assert "config view" not in calls.read_text()


def test_a_cluster_that_is_not_ready_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = things.cluster(things.condition("Ready", "False", "Waiting", "1 of 3 bookies"))
    plant(tmp_path, monkeypatch, **world(**{f"{OURS}logclusters": items(waiting)}))
    assert main(["status"]) == ExitCode.FAILED
    assert "!! Ready False  Waiting: 1 of 3 bookies" in capsys.readouterr().out


def test_nobody_says_ready_for_an_operator_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = world()
    gone["answers"].pop(LEASE)
    plant(tmp_path, monkeypatch, **gone)
    assert main(["status", "--json"]) == ExitCode.FAILED
    told = json.loads(capsys.readouterr().out)
    assert not told["ready"] and told["operator"]["serves"] is False
    assert main(["status"]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "LogCluster shop/main: NOT KNOWN" in shown
    assert "!! no operator serves this namespace" in shown


def test_who_may_not_read_the_lease_sees_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = world()
    hidden["answers"].pop(LEASE)
    said = 'Error from server (Forbidden): leases is forbidden: User "x"'
    plant(tmp_path, monkeypatch, **hidden, errors={LEASE: said})
    assert main(["status"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "?? operator: not known" in shown and "leases is forbidden" in shown


@pytest.mark.parametrize("said", TROUBLES)
def test_what_kubectl_refuses_is_told_with_what_to_do(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, monkeypatch, error=said)
    for command in (["status"], ["report"], ["append", "a/b"], ["read", "a/b"]):
        assert main(command) == ExitCode.FAILED
        told = capsys.readouterr().err.splitlines()
        assert len(told) == 2, told
        assert said in told[0] and told[1].startswith("next: ") and TROUBLES[said] in told[1]


def test_without_kubectl_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["status"]) == ExitCode.FAILED
    assert "there is no kubectl on the PATH" in capsys.readouterr().err


def test_without_the_kinds_it_says_that_nothing_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, monkeypatch)
    assert main(["status"]) == ExitCode.FAILED
    told = capsys.readouterr().err
    assert "no logclusters.duramen.io" in told and "install or upgrade it" in told


def test_which_cluster_is_meant_must_be_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = things.cluster()
    other["metadata"]["name"] = "spare"
    found = items(things.cluster(), other)
    plant(tmp_path, monkeypatch, **world(**{f"{OURS}logclusters": found}))
    assert main(["status"]) == ExitCode.FAILED
    assert "main, spare" in capsys.readouterr().err
    assert main(["status", "--cluster", "none"]) == ExitCode.FAILED
    assert "no LogCluster none" in capsys.readouterr().err
    assert main(["status", "--cluster", "main"]) == ExitCode.OK
    assert main(["status", "main"]) == ExitCode.OK


def test_what_one_source_refuses_leaves_the_others_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = world()
    del found["answers"][f"{ADMIN}repair"]
    errors = {f"{ADMIN}repair": "Error from server (ServiceUnavailable): no endpoints available"}
    plant(tmp_path, monkeypatch, **found, errors=errors)
    assert main(["status"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "?? repair: not known" in shown and "no endpoints available" in shown
    assert "main-a-0" in shown


def test_a_report_holds_everything_but_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick = things.pod("main-a-0", "bookie", zone="a", restartCount=1)
    sick["metadata"]["annotations"] = {"note": f"token={PLANTED}"}
    sick["spec"]["containers"][0]["env"].append({"name": "PLACE", "value": PLANTED})
    event = {
        "metadata": {"name": "e"}, "lastTimestamp": "2026-01-01T00:00:00Z",
        "message": f"Failed: secret store said password={PLANTED}",
    }  # fmt: skip
    line = f'{{"level": "info", "msg": "store {PLANTED} opened", "body": "planted record body"}}'
    pods = f"{CORE}pods/"
    found = world(
        **{
            f"{CORE}pods": items(sick),
            f"{CORE}events": items(event),
            "/apis/apps/v1/namespaces/shop/statefulsets": items(),
            f"{pods}main-a-0/log": line,
            f"{pods}http:main-a-0:7102/proxy/v1/statistics": {"journal": {"queue_bytes": 3}},
            f"{pods}http:main-a-0:7102/proxy/v1/config": {"cold": {"secret_key": PLANTED}},
            f"{CORE}secrets": items({"data": {"password": PLANTED}}),
        }
    )
    calls = plant(tmp_path, monkeypatch, **found)
    path = tmp_path / "report.tar.gz"
    assert main(["report", "--output", str(path)]) == ExitCode.OK
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as tar:
        files = {
            member.name.partition("/")[2]: (tar.extractfile(member) or io.BytesIO()).read().decode()
            for member in tar.getmembers()
        }
    everything = "\n".join(files.values())
    assert PLANTED not in everything and "planted record body" not in everything
    assert "planted-env-value-1" not in everything
    assert "secrets" not in calls.read_text() and "configmaps" not in calls.read_text()
    assert "opened" in files["logs/main-a-0/server.log"]
    assert "logs/main-a-0/server.previous.log" in files
    assert '"queue_bytes": 3' in files["admin/main-a-0.statistics.json"]
    assert "NAME" not in files["README.txt"] and "deployments: " in files["README.txt"]
    assert json.loads(files["objects/logclusters/main.json"])["spec"]["security"] == "none"
    assert {"summary.json", "status.txt", "events.json", "admin/repair.json"} <= files.keys()


def test_a_port_that_cannot_be_had_says_how_far_the_cluster_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = things.cluster(things.condition("Ready", "False", "Waiting", "1 of 3 bookies"))
    plant(tmp_path, monkeypatch, **world(**{f"{OURS}logclusters": items(waiting)}))
    assert main(["read", "a/b"]) == ExitCode.FAILED
    told = capsys.readouterr().err
    assert "not ready" in told and "1 of 3 bookies" in told and "kubectl duramen status" in told


def test_a_name_that_is_none_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = plant(tmp_path, monkeypatch, **world())
    assert main(["append", "no-slash"]) == ExitCode.USAGE
    assert main(["read", "a/b", "--count", "-1"]) == ExitCode.USAGE
    assert main(["status", "--nonsense"]) == ExitCode.USAGE
    assert not calls.exists()
    assert "kubectl duramen: " in capsys.readouterr().err
