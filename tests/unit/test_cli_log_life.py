"""`duramen log truncate|end|delete|undelete` against a server that plays both proxies.

What is checked is what a user sees without `--json`: one line each, the exit code, and what is
asked of the server. Against real processes they run in `tests/process/test_log_life`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from duramen.cli.main import main
from duramen.errors import DuramenError
from tests.unit.fake_proxy import FakeProxy, running_proxy

LOG = "/v1/namespaces/shop/logs/orders"
HEAD = {"seq_num": 10, "dlsn": "e1n3s2"}


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProxy]:
    with running_proxy() as server:
        monkeypatch.setenv("DURAMEN_URL", server.url)
        yield server


@pytest.mark.parametrize(
    ("words", "path", "answer", "line"),
    [
        (
            ("truncate", "--to", "seq:10"), f"{LOG}:truncate", {"head": HEAD, "changed": True},
            "shop/orders: begins now at seq:10 (e1n3s2)",
        ),
        (
            ("truncate", "--to", "seq:4"), f"{LOG}:truncate", {"head": HEAD, "changed": False},
            "shop/orders: began before at seq:10 (e1n3s2)",
        ),
        (("end",), f"{LOG}:end", {"tail": {"seq_num": 40}}, "shop/orders: ended at seq:40"),
        (
            ("delete",), LOG, {"undelete_until": "2026-01-01T01:00:00.000Z"},
            "shop/orders: deleted; it can be had back until 2026-01-01T01:00:00.000Z",
        ),
        (
            ("undelete",), f"{LOG}:undelete", {"log_id": "7"},
            "shop/orders: is there (log id 7)",
        ),
    ],
)  # fmt: skip
def test_what_was_done_is_told_in_one_line(  # noqa: PLR0917 - as many parameters as columns
    proxy: FakeProxy,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    path: str,
    answer: dict[str, Any],
    line: str,
) -> None:
    proxy.answers[path] = answer
    command, *flags = words
    assert main(["log", command, "shop/orders", *flags]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (line + "\n", "")
    assert [asked for asked, _ in proxy.asked] == [path]
    assert main(["log", command, "shop/orders", *flags, "--json", "--url", proxy.url]) == 0
    assert json.loads(capsys.readouterr().out) == answer


def test_copysets_are_one_more_field_of_the_configuration(proxy: FakeProxy) -> None:
    proxy.answers[LOG] = {"changed": True, "config_version": 2}
    more = ["--config", '{"replication": {"node": 2}}', "--copysets", "flexible"]
    whole = {"replication": {"node": 2}, "copysets": "flexible"}
    assert main(["log", "create", "shop/orders", *more]) == 0
    assert main(["log", "reconfigure", "shop/orders", *more]) == 0
    assert main(["log", "reconfigure", "shop/orders", "--copysets", "striped"]) == 0
    assert [body for _, body in proxy.asked] == [whole, whole, {"copysets": "striped"}]


def test_a_time_is_looked_up_first_and_the_record_that_it_names_is_kept(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    look = f"{LOG}/records?from=ago%3A1h&count=1"
    proxy.answers[look] = {"records": [{"seq_num": 12}], "next": "seq:13"}
    proxy.answers[f"{LOG}:truncate"] = {"head": HEAD, "changed": True}
    words = ["log", "truncate", "shop/orders", "--to", "ago:1h", "--read-url", proxy.url]
    assert main(words) == 0
    assert proxy.asked == [(look, None), (f"{LOG}:truncate", {"to": "seq:12"})]
    proxy.answers[look] = {"records": [], "next": "seq:13"}
    assert main(words) == 0
    assert proxy.asked[-1] == (f"{LOG}:truncate", {"to": "seq:13"}), "nothing is that young"
    assert "seq:10" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("truncate", "--to", "seq:99"), ("end",), ("undelete",)])
def test_a_refusal_is_one_sentence_and_a_failure(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    command, *flags = words
    refusal = DuramenError("log_deleted", "it was deleted; undelete brings it back")
    proxy.answers[f"{LOG}:{command}"] = refusal
    assert main(["log", command, "shop/orders", *flags]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "log_deleted" in captured.err and "undelete brings it back" in captured.err


@pytest.mark.parametrize(
    "words", [("truncate", "shop/orders", "--to", "ten"), ("end", "orders"), ("delete", "s/o/x")]
)
def test_what_makes_no_sense_is_not_asked(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(["log", *words]) == 2
    assert not proxy.asked
    assert capsys.readouterr().err


def test_logs_of_one_namespace_or_of_all_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def page(namespace: str, *names: str) -> dict[str, Any]:
        logs = [{"namespace": namespace, "name": name, "log_id": "1"} for name in names]
        return {"logs": logs, "has_more": False}

    with running_proxy() as server:
        monkeypatch.setenv("DURAMEN_URL", server.url)
        spaces = [{"namespace": name} for name in ("default", "gone", "shop")]
        server.answers |= {
            "/v1/namespaces?limit=1000": {"namespaces": spaces, "has_more": False},
            "/v1/namespaces/default/logs?limit=1000": page("default", "a"),
            "/v1/namespaces/gone/logs?limit=1000": DuramenError("namespace_not_found", "gone"),
            "/v1/namespaces/shop/logs?limit=1000": page("shop", "b", "c"),
        }
        assert main(["log", "list", "shop"]) == 0
        assert capsys.readouterr().out.split() == ["shop/b", "shop/c"]
        assert main(["log", "list"]) == 0
        assert capsys.readouterr().out.split() == ["default/a", "shop/b", "shop/c"]
        assert main(["log", "list", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["namespace"] is None and len(document["logs"]) == 3
        assert main(["log", "list", "gone"]) == 1
