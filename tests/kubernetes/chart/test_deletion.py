"""What the API server refuses to delete, by the chart's policy, and that the told way out works.

The statuses are written here, as the operator writes them; that it does is `plan.test_holding`'s
and, with a real server, `test_operated`'s. Source: docs/kubernetes/deletion.md.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from duramen_operator.names import ABANDON_ANNOTATION
from tests.kubernetes.chart.rendering import CHART, OPEN, RELEASE, of_kind, render
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.waiting import wait_in_thread

KNOWN_S = 60
"""An API server comes to know a policy by watching, as it does rights."""

HELD = {"holdsCopies": True}
OF_BEFORE = {"statefulSets": ["main"]}
"""What an operator says that knows no such field, of a set and of a cluster."""


@contextmanager
def installed(api: ClusterHandle) -> Iterator[str]:
    """A namespace with a release and its policy, which is known already."""
    with api.namespace() as namespace:
        values = yaml.safe_dump(OPEN)
        flags = ("--namespace", namespace, "--no-hooks", "--take-ownership", "--values", "-")
        api.helm("upgrade", "--install", RELEASE, CHART, *flags, stdin=values)
        api.kubectl("wait", "--for=condition=Established", "crd/bookiesets.duramen.io")
        make(api, namespace, "bookieset", "probe", HELD)
        probe = (api, namespace, "bookieset", "probe", "--dry-run=server")
        wait_in_thread(lambda: bool(try_delete(*probe)), KNOWN_S, "the policy to be known")
        try:
            yield namespace
        finally:
            api.helm("uninstall", RELEASE, "--namespace", namespace, "--no-hooks")


@pytest.fixture(scope="module")
def protected(api_server: ClusterHandle) -> Iterator[str]:
    """The release that most tests share; an object's name is that of its test."""
    with installed(api_server) as namespace:
        yield namespace


def make(
    api: ClusterHandle, namespace: str, kind: str, name: str, status: dict[str, Any], **extra: Any
) -> str:
    """An object of ours that says that of itself; gives its uid."""
    spec = OPEN if kind == "logcluster" else {"clusterName": "main", "replicas": 0}
    title = {"logcluster": "LogCluster", "bookieset": "BookieSet"}[kind]
    metadata = {"name": name, "namespace": namespace, **extra}
    body = {"apiVersion": "duramen.io/v1alpha1", "kind": title, "metadata": metadata, "spec": spec}
    api.apply(body, namespace=namespace)
    patch = json.dumps({"status": status})
    where = ("--namespace", namespace, "--subresource=status", "--type=merge", "--patch", patch)
    api.kubectl("patch", kind, name, *where)
    return str(api.get(kind, name, "--namespace", namespace)["metadata"]["uid"])


def try_delete(api: ClusterHandle, namespace: str, kind: str, *which: str) -> str:
    """Why it is refused; "" where it is not."""
    flags = ("--namespace", namespace, "--wait=false")
    done = api.kubectl("delete", kind, *which, *flags, check=False)
    assert done.returncode == 0 or "denied request" in done.stderr, done.stderr
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("kind", ["bookieset", "logcluster"])
def test_what_holds_copies_goes_once_somebody_says_so_of_this_very_object(
    api_server: ClusterHandle, protected: str, kind: str
) -> None:
    def refuse() -> str:
        return try_delete(api_server, protected, kind, "main")

    def annotate(word: str) -> None:
        api_server.kubectl("annotate", "--overwrite", kind, "main", word, "-n", protected)

    uid = make(api_server, protected, kind, "main", HELD)
    said = refuse()
    assert "main holds copies of entries" in said
    assert ("replicas: 0" in said) == (kind == "bookieset"), said
    annotate(f"{ABANDON_ANNOTATION}=another-uid")
    assert refuse(), "a word about another one"
    (command,) = re.findall(r"kubectl (-n .*)$", said.strip())
    assert command.endswith(f"={uid}")
    api_server.kubectl(*shlex.split(command))
    annotate(f"{ABANDON_ANNOTATION}-")
    assert refuse(), "it was taken back"
    api_server.kubectl(*shlex.split(command))
    assert not refuse()


@pytest.mark.parametrize(
    ("kind", "status", "is_refused"),
    [
        ("bookieset", {}, False),
        ("bookieset", {"holdsCopies": False, **OF_BEFORE}, False),
        ("bookieset", OF_BEFORE, True),
        ("bookieset", {"statefulSets": []}, False),
        ("logcluster", {"holdsCopies": False, "bookies": {"wanted": 3}}, False),
        ("logcluster", {"bookies": {"wanted": 3, "ready": 0}}, True),
        ("logcluster", {"bookies": {"wanted": 0, "ready": 0}}, False),
        ("logcluster", {"phase": "Pending"}, False),
    ],
)
def test_what_holds_none_goes_and_the_words_of_an_older_operator_count(
    api_server: ClusterHandle, protected: str, kind: str, status: dict[str, Any], is_refused: bool
) -> None:
    name = f"other-{secrets.token_hex(4)}"
    make(api_server, protected, kind, name, status)
    assert bool(try_delete(api_server, protected, kind, name)) is is_refused


def test_of_a_collection_none_goes_that_holds_copies(
    api_server: ClusterHandle, protected: str
) -> None:
    """By one request, as a controller deletes them, and one by one, as kubectl does."""
    mark = {"labels": {"of": "collection"}}
    make(api_server, protected, "bookieset", "full", HELD, **mark)
    make(api_server, protected, "bookieset", "empty", {"holdsCopies": False}, **mark)
    path = f"/apis/duramen.io/v1alpha1/namespaces/{protected}/bookiesets"
    at_once = f"{path}?labelSelector=of%3Dcollection"
    done = api_server.kubectl("delete", "--raw", at_once, check=False)
    assert "holds copies of entries" in done.stderr
    assert try_delete(api_server, protected, "bookieset", "--selector=of=collection")
    left = api_server.list("bookiesets", protected, "of=collection")
    assert "full" in [one["metadata"]["name"] for one in left]


def test_who_is_going_already_is_held_up_by_nobody(
    api_server: ClusterHandle, protected: str
) -> None:
    where = ("--namespace", protected, "--type=merge", "--patch")
    make(api_server, protected, "bookieset", "going", {}, finalizers=["test/held"])
    assert not try_delete(api_server, protected, "bookieset", "going")
    said = json.dumps({"status": HELD})
    api_server.kubectl("patch", "bookieset", "going", "--subresource=status", *where, said)
    assert not try_delete(api_server, protected, "bookieset", "going"), "a second time"
    let_go = '{"metadata":{"finalizers":null}}'
    api_server.kubectl("patch", "bookieset", "going", *where, let_go)


def test_a_namespace_that_goes_is_held_up_by_nobody(api_server: ClusterHandle) -> None:
    with installed(api_server) as namespace:
        make(api_server, namespace, "logcluster", "main", HELD)
        api_server.delete("namespace", namespace)
        gone = (api_server, namespace, "logcluster", "main", "--ignore-not-found")
        wait_in_thread(lambda: not try_delete(*gone), KNOWN_S, f"{namespace} to go")


def test_it_holds_in_the_releases_own_namespace_and_where_it_is_wanted() -> None:
    (binding,) = of_kind(render(), "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "shop"
    }
    assert binding["metadata"]["name"] == "shop.demo-duramen.copies", "no other release's"
    kinds = {one["kind"] for one in render({"protectCopies": False})}
    assert not {kind for kind in kinds if kind.startswith("ValidatingAdmission")}
    reused = render({"protectCopies": None})
    assert of_kind(reused, "ValidatingAdmissionPolicy"), "values of a release of before"


def test_another_namespace_is_not_touched(api_server: ClusterHandle, protected: str) -> None:
    with api_server.namespace() as other:
        assert other != protected
        make(api_server, other, "bookieset", "main", HELD)
        assert not try_delete(api_server, other, "bookieset", "main")
