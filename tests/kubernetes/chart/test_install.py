"""The chart against a real API server: installed in one go, upgraded, taken away again.

Without controllers (tier api) no pod runs, so the hooks' jobs would wait for ever: helm leaves them
out, and their program is called from here with the arguments that the job has. That it works as a
pod is shown by the tests on real nodes. The API server validates strictly, enforces the restricted
profile, and knows the rights of the hooks' account.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from duramen_operator import installation
from tests.kubernetes.chart.rendering import (
    CHART,
    EVERYTHING,
    OPEN,
    RELEASE,
    defaults,
    operate,
    pod_specs,
    render,
)
from tests.kubernetes.cluster.handle import ClusterHandle

RESTRICTED = {"pod-security.kubernetes.io__enforce": "restricted"}
KINDS = "logclusters,bookiesets,lognamespaces"
FOREIGN = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, whose definitions this server does not have."""
EVERYTHING_HERE = {key: value for key, value in EVERYTHING.items() if key != "monitoring"}


@contextmanager
def installed(api: ClusterHandle, values: dict[str, Any] | None = None) -> Iterator[str]:
    """A release in a namespace of its own."""
    with api.namespace(**RESTRICTED) as namespace:
        _install(api, namespace, values)
        try:
            yield namespace
        finally:
            _helm(api, "uninstall", namespace)


def test_one_install_brings_everything_and_the_hook_the_first_cluster(
    api_server: ClusterHandle, tmp_path: Path
) -> None:
    with installed(api_server) as namespace:
        status = json.loads(_helm(api_server, "status", namespace, "--output", "json"))
        assert status["info"]["status"] == "deployed"
        assert api_server.get(KINDS, "--namespace", namespace)["items"] == []
        _run_hook(api_server, namespace, tmp_path, "apply")
        found = _list(api_server, namespace)
        assert found == [
            ("LogCluster", RELEASE),
            ("BookieSet", RELEASE),
            ("LogNamespace", "default"),
        ]
        cluster = api_server.get("logcluster", RELEASE, "--namespace", namespace)
        assert cluster["spec"]["security"] == "none"
        _run_hook(api_server, namespace, tmp_path, "apply")
        again = api_server.get("logcluster", RELEASE, "--namespace", namespace)
        assert again["metadata"]["generation"] == cluster["metadata"]["generation"]
        _run_hook(api_server, namespace, tmp_path, "remove")
        assert _list(api_server, namespace) == []
        _run_hook(api_server, namespace, tmp_path, "remove")


def test_an_upgrade_changes_what_values_name_and_nothing_else(
    api_server: ClusterHandle, tmp_path: Path
) -> None:
    with installed(api_server) as namespace:
        _run_hook(api_server, namespace, tmp_path, "apply")
        where = ("--namespace", namespace)
        api_server.kubectl("annotate", "logcluster", RELEASE, "duramen.io/paused=true", *where)
        api_server.kubectl(
            "patch", "logcluster", RELEASE, *where, "--type=merge",
            "--patch", '{"spec": {"lostBookieGrace": "9m"}}',
        )  # fmt: skip
        _install(api_server, namespace, {"bookies": {"replicas": 5}})
        _run_hook(api_server, namespace, tmp_path, "apply")
        assert api_server.get("bookieset", RELEASE, *where)["spec"]["replicas"] == 5
        cluster = api_server.get("logcluster", RELEASE, *where)
        assert cluster["spec"]["lostBookieGrace"] == "9m"
        assert cluster["metadata"]["annotations"]["duramen.io/paused"] == "true"
        _run_hook(api_server, namespace, tmp_path, "remove")


def test_a_cluster_of_a_persons_own_is_left_alone_until_it_is_handed_over(
    api_server: ClusterHandle, tmp_path: Path
) -> None:
    with installed(api_server) as namespace:
        where = ("--namespace", namespace)
        own = _read_defaults(api_server, namespace)[0]
        own["metadata"] = {"name": RELEASE, "namespace": namespace}
        own["spec"]["lostBookieGrace"] = "9m"
        api_server.apply(own)
        before = api_server.get("logcluster", RELEASE, *where)
        with pytest.raises(installation.InstallationError, match="there already") as refused:
            _run_hook(api_server, namespace, tmp_path, "apply")
        assert api_server.get("logcluster", RELEASE, *where) == before
        assert _list(api_server, namespace) == [("LogCluster", RELEASE)]
        _run_hook(api_server, namespace, tmp_path, "remove")
        assert api_server.get("logcluster", RELEASE, *where)["metadata"] == before["metadata"]
        # The way out that it names.
        (command,) = re.findall(r"^  kubectl (.*)$", str(refused.value), re.MULTILINE)
        api_server.kubectl(*command.split())
        _run_hook(api_server, namespace, tmp_path, "apply")
        assert ("BookieSet", RELEASE) in _list(api_server, namespace)
        assert api_server.get("logcluster", RELEASE, *where)["spec"]["lostBookieGrace"] == "9m"
        _run_hook(api_server, namespace, tmp_path, "remove")
        assert _list(api_server, namespace) == []


def test_nothing_of_the_release_stays_but_the_definitions(
    api_server: ClusterHandle, tmp_path: Path
) -> None:
    with installed(api_server, EVERYTHING_HERE) as namespace:
        _run_hook(api_server, namespace, tmp_path, "apply")
        _run_hook(api_server, namespace, tmp_path, "remove")
    everything = (
        "deployments,services,configmaps,serviceaccounts,roles,rolebindings,jobs,pods,"
        "networkpolicies,poddisruptionbudgets,secrets," + KINDS
    )
    left = api_server.get(everything, "--namespace", namespace)
    names = {(one["kind"], one["metadata"]["name"]) for one in left["items"]}
    assert names <= {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
    assert api_server.get("crd", "logclusters.duramen.io")["metadata"]["name"]


def test_a_second_release_shares_the_definitions(api_server: ClusterHandle, tmp_path: Path) -> None:
    with installed(api_server), api_server.namespace(**RESTRICTED) as other:
        values = {"crds": {"install": False}, "cluster": {"name": "second"}}
        _install(api_server, other, values)
        _run_hook(api_server, other, tmp_path, "apply")
        assert ("LogCluster", "second") in _list(api_server, other)
        _run_hook(api_server, other, tmp_path, "remove")
        _helm(api_server, "uninstall", other)


def test_helm_runs_the_hooks_in_one_go(kwok_cluster: ClusterHandle) -> None:
    """On fake nodes a job's pod ends well without having run; helm's part of it is real."""
    with kwok_cluster.namespace(**RESTRICTED) as namespace:
        where = ("--namespace", namespace)
        flags = (
            "--wait",
            "--timeout=240s",
            "--take-ownership",
            "--set=security=none,acceptAnybody=true",
        )
        said = kwok_cluster.helm("install", RELEASE, CHART, *where, *flags, timeout_s=300).stdout
        assert "STATUS: deployed" in said
        assert "SECURITY: none" in said
        assert f"wait logcluster/{RELEASE} --for=condition=Ready" in said
        assert kwok_cluster.get("jobs", *where)["items"] == []
        verbose = "--set=operator.verbose=true"
        kwok_cluster.helm("upgrade", RELEASE, CHART, *where, *flags, verbose, timeout_s=300)
        kwok_cluster.helm("uninstall", RELEASE, *where, "--wait", "--timeout=240s", timeout_s=300)
        left = kwok_cluster.get("deployments,jobs,configmaps,roles", *where)["items"]
        assert [one["metadata"]["name"] for one in left] == ["kube-root-ca.crt"]


def test_what_the_server_refuses_is_told_in_its_words(
    api_server: ClusterHandle, tmp_path: Path
) -> None:
    with installed(api_server) as namespace:
        bad = {
            "apiVersion": "duramen.io/v1alpha1",
            "kind": "BookieSet",
            "metadata": {"name": "bad"},
            "spec": {"clusterName": "x", "replicas": -1},
        }
        with pytest.raises(installation.InstallationError, match=r"BookieSet bad: .*replicas"):
            _run_program(api_server, namespace, tmp_path, "apply", [bad])


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_server_accepts_every_object_in_a_dry_run(
    api_server: ClusterHandle, values: dict[str, Any]
) -> None:
    with installed(api_server) as namespace:
        objects = [one for one in render(values) if one["kind"] not in FOREIGN]
        objects = [one for one in objects if one["kind"] != "CustomResourceDefinition"]
        objects += defaults(objects)
        for one in objects:
            one["metadata"]["namespace"] = namespace
            for subject in one.get("subjects", []):
                subject["namespace"] = namespace
        answer = _dry_run(api_server, objects)
        assert len(answer.splitlines()) == len(objects)


def test_every_pod_passes_the_restricted_profile(api_server: ClusterHandle) -> None:
    objects = render({**EVERYTHING, "cluster": {**EVERYTHING["cluster"], "name": "main"}})
    specs = pod_specs(objects)
    assert set(specs) == {
        f"Deployment {RELEASE}-duramen-operator",
        f"Job {RELEASE}-duramen-apply",
        f"Job {RELEASE}-duramen-release",
        f"Pod {RELEASE}-duramen-test",
    }
    of_operator = pod_specs(operate(objects))
    components = {owner.split("-")[1] for owner in of_operator if owner.startswith("Deploy")}
    assert components == {"writeproxy", "readproxy"}
    assert {"StatefulSet main-zookeeper", "StatefulSet main-sequencer"} < set(of_operator)
    with installed(api_server) as namespace:
        for owner, spec in {**specs, **of_operator}.items():
            assert "pod/probe" in _dry_run(api_server, [_pod(namespace, spec)]), owner
            with pytest.raises(AssertionError, match="violates PodSecurity"):
                _dry_run(api_server, [_pod(namespace, {**spec, "securityContext": {}})])


def test_the_hooks_account_may_do_what_the_hooks_do_and_no_more(
    api_server: ClusterHandle,
) -> None:
    with installed(api_server) as namespace:
        account = f"system:serviceaccount:{namespace}:{RELEASE}-duramen-hooks"
        api_server.wait_right(account, namespace, "get", "logclusters.duramen.io")
        for verb in ("get", "create", "patch", "delete"):
            for kind in ("logclusters", "bookiesets", "lognamespaces"):
                assert api_server.may(account, namespace, verb, f"{kind}.duramen.io")
        for verb, kind in (("delete", "logs.duramen.io"), ("get", "secrets"), ("create", "pods")):
            assert not api_server.may(account, namespace, verb, kind)
        assert not api_server.may(account, "default", "get", "logclusters.duramen.io")


def test_monitors_are_made_where_their_kinds_are_known(api_server: ClusterHandle) -> None:
    def kinds() -> set[str]:
        dry = (
            "--dry-run=server",
            "--no-hooks",
            "--set=crds.install=false,security=none,acceptAnybody=true",
        )
        text = api_server.helm("install", "dry", CHART, *dry, "--namespace", "default").stdout
        manifest = text.split("MANIFEST:\n", 1)[1].split("\nNOTES:")[0]
        return {one["kind"] for one in yaml.safe_load_all(manifest) if one}

    assert not kinds() & FOREIGN
    definitions = [_define(kind) for kind in sorted(FOREIGN)]
    api_server.apply(*definitions)
    try:
        for one in definitions:
            api_server.kubectl(
                "wait", "--for=condition=Established", f"crd/{one['metadata']['name']}"
            )
        assert kinds() & FOREIGN == FOREIGN
    finally:
        for one in definitions:
            api_server.kubectl("delete", "crd", one["metadata"]["name"])


def _install(api: ClusterHandle, namespace: str, values: dict[str, Any] | None = None) -> None:
    api.helm(
        "upgrade", "--install", RELEASE, CHART, "--namespace", namespace, "--no-hooks",
        "--take-ownership",  # of definitions that another test left
        "--values", "-", stdin=yaml.safe_dump({**OPEN, **(values or {})}),
    )  # fmt: skip
    # The hooks' program waits for that, and kubectl does not.
    served = ("--for=condition=Established", "--timeout=120s")
    api.kubectl("wait", *served, *(f"crd/{kind}.duramen.io" for kind in KINDS.split(",")))


def _helm(api: ClusterHandle, command: str, namespace: str, *flags: str) -> str:
    extra = ("--no-hooks",) if command == "uninstall" else ()
    return api.helm(command, RELEASE, "--namespace", namespace, *extra, *flags).stdout


def _run_hook(api: ClusterHandle, namespace: str, folder: Path, command: str) -> None:
    """What the job runs, on the file that it mounts."""
    _run_program(api, namespace, folder, command, _read_defaults(api, namespace))


def _read_defaults(api: ClusterHandle, namespace: str) -> list[dict[str, Any]]:
    where = ("--namespace", namespace)
    text = api.get("configmap", f"{RELEASE}-duramen-defaults", *where)["data"]["defaults.yaml"]
    return [one for one in yaml.safe_load_all(text) if one]


def _run_program(
    api: ClusterHandle, namespace: str, folder: Path, command: str, documents: list[dict[str, Any]]
) -> None:
    file, token = folder / "defaults.yaml", folder / "token"
    file.write_text(yaml.safe_dump_all(documents))
    token.write_text(api.token)
    run = {"apply": installation.apply, "remove": installation.remove}[command]
    run(
        namespace=namespace,
        file=file,
        server=api.url,
        token_file=token,
        authority_file=api.certificate,
    )


def _list(api: ClusterHandle, namespace: str) -> list[tuple[str, str]]:
    items = api.get(KINDS, "--namespace", namespace)["items"]
    return [(one["kind"], one["metadata"]["name"]) for one in items]


def _pod(namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "probe", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _dry_run(api: ClusterHandle, objects: list[dict[str, Any]]) -> str:
    flags = ("--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts")
    text = yaml.safe_dump_all(objects)
    return api.kubectl("apply", *flags, "--filename=-", stdin=text).stdout


def _define(kind: str) -> dict[str, Any]:
    """A definition that takes everything, under the real name."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
