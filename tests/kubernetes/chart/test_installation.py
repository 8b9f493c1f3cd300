"""What the hooks do when the API server is slow, away, or says no: bounded, and told in words.

The server is a function, time is a number that each pause moves on.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import yaml

from duramen_operator.installation import Installation, InstallationError
from duramen_operator.names import ABANDON_ANNOTATION

CLUSTER: dict[str, Any] = {
    "apiVersion": "duramen.io/v1alpha1", "kind": "LogCluster", "metadata": {"name": "main"},
}  # fmt: skip
LOGS: dict[str, Any] = {
    "apiVersion": "duramen.io/v1alpha1", "kind": "LogNamespace", "metadata": {"name": "shop"},
}  # fmt: skip
PATH = "/apis/duramen.io/v1alpha1/namespaces/here"


class Server:
    """Answers each call with the next of what it is given, the last one for ever."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.calls: list[str] = []
        self.bodies: list[str] = []
        self.labels: dict[str, str] = {}
        self.now_s = 0.0

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(f"{request.method} {request.url.path.removeprefix(PATH)}")
        self.bodies.append(request.content.decode())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        metadata = {"uid": "u-1", "labels": self.labels}
        return httpx.Response(answer, json={"message": f"said {answer}", "metadata": metadata})

    def pause(self) -> None:
        self.now_s += 1

    def open(self) -> Installation:
        client = httpx.Client(
            base_url="https://api.test", transport=httpx.MockTransport(self.answer)
        )
        return Installation(client, "here", now_s=lambda: self.now_s, pause=self.pause)


def test_applies_in_order_and_waits_until_the_definition_is_served() -> None:
    server = Server(404, 404, 404, 404, 404, 201, 404, 200)
    server.open().apply([CLUSTER, LOGS])
    assert server.calls == [
        *("GET /logclusters/main", "GET /lognamespaces/shop"),
        *["GET /logclusters/main", "PATCH /logclusters/main"] * 2,
        *["GET /lognamespaces/shop", "PATCH /lognamespaces/shop"],
    ]


def test_an_object_is_changed_that_is_the_one_that_was_looked_at() -> None:
    server = Server(200)
    server.open().apply([CLUSTER])
    assert yaml.safe_load(server.bodies[-1])["metadata"] == {"name": "main", "uid": "u-1"}


def test_what_is_there_and_not_of_this_release_is_not_taken_over() -> None:
    """A cluster of a person's own: labelled so it would go with an uninstall."""
    labels = {"app.kubernetes.io/instance": "demo"}
    ours = [{**one, "metadata": {**one["metadata"], "labels": labels}} for one in (CLUSTER, LOGS)]
    server = Server(200)
    with pytest.raises(InstallationError, match="LogCluster main, LogNamespace shop: there") as no:
        server.open().apply(ours)
    assert server.calls == ["GET /logclusters/main", "GET /lognamespaces/shop"]
    way_out = "label --overwrite logcluster/main lognamespace/shop app.kubernetes.io/instance=demo"
    assert f"  kubectl -n here {way_out}" in str(no.value).splitlines()
    server.labels = labels
    server.open().apply(ours)
    assert server.calls[-1] == "PATCH /lognamespaces/shop"


def test_what_somebody_makes_while_the_definitions_come_is_not_taken_over() -> None:
    labels = {"app.kubernetes.io/instance": "demo"}
    ours = {**CLUSTER, "metadata": {**CLUSTER["metadata"], "labels": labels}}
    server = Server(404, 404, 404, 200)
    with pytest.raises(InstallationError, match="LogCluster main: there already"):
        server.open().apply([ours])
    assert server.calls[-2:] == ["PATCH /logclusters/main", "GET /logclusters/main"]


@pytest.mark.parametrize("trouble", [500, 503, 429, httpx.ConnectError("refused")])
def test_troubles_of_the_server_are_waited_out(trouble: int | Exception) -> None:
    server = Server(trouble, trouble, 200)
    server.open().apply([CLUSTER])
    assert server.calls == [
        *["GET /logclusters/main"] * 3, "GET /logclusters/main", "PATCH /logclusters/main",
    ]  # fmt: skip


@pytest.mark.parametrize("trouble", [404, 503, httpx.ConnectError("refused")])
def test_it_gives_up_after_two_minutes(trouble: int | Exception) -> None:
    server = Server(trouble)
    with pytest.raises(InstallationError):
        server.open().apply([CLUSTER])
    assert 120 < server.now_s < 130


def test_a_refusal_is_told_at_once() -> None:
    server = Server(422)
    with pytest.raises(InstallationError, match="LogCluster main: said 422"):
        server.open().apply([CLUSTER])
    assert server.now_s == 0


def test_removes_the_last_first_and_waits_until_it_is_gone() -> None:
    server = Server(200, 200, 200, 404, 404)
    server.open().remove([CLUSTER, LOGS])
    assert server.calls == [
        "GET /lognamespaces/shop",
        "DELETE /lognamespaces/shop",
        "GET /lognamespaces/shop",
        "GET /lognamespaces/shop",
        "GET /logclusters/main",
    ]


def test_that_its_copies_are_left_is_said_of_the_very_object_that_goes() -> None:
    server = Server(200, 200, 200, 404)
    server.open().remove([CLUSTER])
    assert server.calls == [
        "GET /logclusters/main",
        "PATCH /logclusters/main",
        "DELETE /logclusters/main",
        "GET /logclusters/main",
    ]
    said, deleted = (json.loads(body) for body in server.bodies[1:3])
    assert said == {"metadata": {"uid": "u-1", "annotations": {ABANDON_ANNOTATION: "u-1"}}}
    assert deleted == {"preconditions": {"uid": "u-1"}}


@pytest.mark.parametrize("answers", [(200, 404, 404), (200, 200, 404)])
def test_who_goes_by_itself_meanwhile_is_no_fault(
    capsys: pytest.CaptureFixture[str], answers: tuple[int, ...]
) -> None:
    server = Server(*answers)
    server.open().remove([CLUSTER])
    assert server.calls[-1] == "DELETE /logclusters/main"
    assert "removed" not in capsys.readouterr().out


def test_what_is_not_of_this_release_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster of a person's own has the name that the release would give to its first one."""
    server = Server(200)
    labels = {"app.kubernetes.io/instance": "demo"}
    ours = {**CLUSTER, "metadata": {**CLUSTER["metadata"], "labels": labels}}
    server.open().remove([ours])
    assert server.calls == ["GET /logclusters/main"]
    assert "LogCluster main is not of this release, and stays" in capsys.readouterr().out
    server.labels = labels
    server.open().remove([ours])
    assert "DELETE /logclusters/main" in server.calls


def test_what_does_not_go_is_left_to_the_release(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(200)
    server.open().remove([LOGS])
    assert 60 <= server.now_s < 65
    assert "LogNamespace shop is still there" in capsys.readouterr().out


def test_the_servers_words_need_not_be_json() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        return httpx.Response(403, text="no way")

    client = httpx.Client(base_url="https://api.test", transport=httpx.MockTransport(refuse))
    with pytest.raises(InstallationError, match="no way"):
        Installation(client, "here").remove([LOGS])
