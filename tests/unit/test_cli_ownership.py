"""`duramen owners|story|hand-over|balance` against a server that plays a write proxy's admin port.

What is checked is what a user sees: lines, JSON, exit codes, and what is asked of the server.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from duramen.cli.main import main
from duramen.errors import DuramenError

LOG_PATH = "/v1/cluster/logs/shop/orders"
EVENTS = [
    {"unix_ms": 0, "sequencer": "s1", "event": "claimed", "epoch": 3},
    {"unix_ms": 1500, "sequencer": "s1", "event": "given up", "reason": "it is gone"},
]
OWNED = {"name": "shop/orders", "sequencer": "s1", "epoch": 3, "state": "active"}


class FakeAdmin(http.server.ThreadingHTTPServer):
    """Answers by path; notes what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, dict[str, Any] | DuramenError] = {}
        self.asked: list[tuple[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeAdmin

    def do_GET(self) -> None:
        self._answer(None)

    def do_DELETE(self) -> None:
        self._answer("deleted")

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def do_PUT(self) -> None:
        self.do_POST()

    def do_PATCH(self) -> None:
        self.do_POST()

    def _answer(self, body: Any) -> None:
        self.server.asked.append((self.path, body))
        answer = self.server.answers[self.path]
        is_refused = isinstance(answer, DuramenError)
        data = json.dumps(answer.problem() if isinstance(answer, DuramenError) else answer).encode()
        self.send_response(answer.kind.status if isinstance(answer, DuramenError) else 200)
        self.send_header("content-type", "application/problem+json" if is_refused else "text/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdmin]:
    server = FakeAdmin()
    monkeypatch.setenv("DURAMEN_ADMIN_URL", server.url)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_owners_are_listed_and_a_silent_sequencer_is_told(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["/v1/cluster/owners"] = {"logs": [OWNED], "silent": []}
    assert main(["owners"]) == 0
    shown = capsys.readouterr().out
    assert "shop/orders" in shown and "s1" in shown
    admin.answers["/v1/cluster/owners"] = {"logs": [OWNED], "silent": ["s2"]}
    assert main(["owners", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["logs"] == [OWNED]
    assert "no answer from s2" in captured.err


def test_a_story_is_told_in_lines(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    admin.answers[f"{LOG_PATH}/story"] = {"events": EVENTS, "silent": []}
    assert main(["story", "shop/orders"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("1970-01-01T00:00:00.000+00:00") and first.endswith("claimed e3")
    assert second.endswith("given up: it is gone")
    assert main(["story", "shop/orders", "--json", "--url", admin.url]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == EVENTS


def test_a_hand_over_names_the_target_and_a_refusal_is_one_sentence(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{LOG_PATH}/hand-over"
    admin.answers[path] = {"from": "s1", "to": "s2", "epoch": 3, "closed": True}
    assert main(["hand-over", "shop/orders", "--to", "s2"]) == 0
    assert main(["hand-over", "shop/orders", "--json"]) == 0
    assert admin.asked == [(path, {"to": "s2"}), (path, {})]
    assert "from s1 to s2, epoch 3 closed in peace" in capsys.readouterr().out
    admin.answers[path] = DuramenError("invalid_argument", "x is not there", field="to")
    assert main(["hand-over", "shop/orders", "--to", "x"]) == 1
    assert "x is not there" in capsys.readouterr().err
    assert main(["hand-over", "orders"]) == 2


def test_balancing_shows_its_moves_and_fails_when_one_did(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    move = {"name": "shop/orders", "from": "s1", "to": "s2", "cost": 7.5}
    admin.answers["/v1/cluster/balance"] = {"dry_run": True, "moves": [move]}
    assert main(["balance", "--dry-run", "--moves", "3"]) == 0
    assert admin.asked == [("/v1/cluster/balance", {"dry_run": True, "moves": 3})]
    assert "7.5" in capsys.readouterr().out
    moves = [{**move, "outcome": "log_unavailable: gone"}]
    admin.answers["/v1/cluster/balance"] = {"dry_run": False, "moves": moves}
    assert main(["balance", "--json"]) == 1
    admin.answers["/v1/cluster/balance"] = {"dry_run": False, "moves": []}
    capsys.readouterr()
    assert main(["balance"]) == 0
    assert "nothing to move" in capsys.readouterr().err
