"""What the hooks do when the API server is slow, away, or says no: bounded, and told in words.

The server is a function, time is a number that each pause moves on.
"""

from __future__ import annotations

import httpx
import pytest

from duramen_operator.installation import Installation, InstallationError

CLUSTER = {"apiVersion": "duramen.io/v1alpha1", "kind": "LogCluster", "metadata": {"name": "main"}}
LOGS = {"apiVersion": "duramen.io/v1alpha1", "kind": "LogNamespace", "metadata": {"name": "shop"}}
PATH = "/apis/duramen.io/v1alpha1/namespaces/here"


class Server:
    """Answers each call with the next of what it is given, the last one for ever."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.calls: list[str] = []
        self.now_s = 0.0

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(f"{request.method} {request.url.path.removeprefix(PATH)}")
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer, json={"message": f"said {answer}"})

    def pause(self) -> None:
        self.now_s += 1

    def open(self) -> Installation:
        client = httpx.Client(
            base_url="https://api.test", transport=httpx.MockTransport(self.answer)
        )
        return Installation(client, "here", now_s=lambda: self.now_s, pause=self.pause)


def test_applies_in_order_and_waits_until_the_definition_is_served() -> None:
    server = Server(404, 404, 201, 200)
    server.open().apply([CLUSTER, LOGS])
    assert server.calls == ["PATCH /logclusters/main"] * 3 + ["PATCH /lognamespaces/shop"]


@pytest.mark.parametrize("trouble", [500, 503, 429, httpx.ConnectError("refused")])
def test_troubles_of_the_server_are_waited_out(trouble: int | Exception) -> None:
    server = Server(trouble, trouble, 200)
    server.open().apply([CLUSTER])
    assert len(server.calls) == 3


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
    server = Server(200, 200, 404, 404)
    server.open().remove([CLUSTER, LOGS])
    assert server.calls == [
        "DELETE /lognamespaces/shop",
        "GET /lognamespaces/shop",
        "GET /lognamespaces/shop",
        "DELETE /logclusters/main",
    ]


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
