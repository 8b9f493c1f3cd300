"""A server that plays a write proxy for the command line: answers by path, notes what was asked.

It knows nothing of what it answers; each test says what is at which path, a `DuramenError` being
answered as its problem. A DELETE is noted with the body "deleted".

Used by the `test_cli_…` modules.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from duramen.errors import DuramenError


class FakeProxy(http.server.ThreadingHTTPServer):
    """Answers by path; notes what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, dict[str, Any] | DuramenError] = {}
        self.asked: list[tuple[str, Any]] = []
        self.shown: list[str | None] = []
        """What stood in the header of authorization, call by call."""
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeProxy

    def do_GET(self) -> None:
        self._answer(None)

    def do_DELETE(self) -> None:
        self._answer("deleted")

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        self._answer(json.loads(self.rfile.read(size)) if size else None)

    def do_PUT(self) -> None:
        self.do_POST()

    def do_PATCH(self) -> None:
        self.do_POST()

    def _answer(self, body: Any) -> None:
        self.server.asked.append((self.path, body))
        self.server.shown.append(self.headers.get("authorization"))
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


@contextmanager
def running_proxy() -> Iterator[FakeProxy]:
    """A proxy that serves until the block ends."""
    server = FakeProxy()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProxy]:
    """A proxy whose administration port the commands find."""
    with running_proxy() as server:
        monkeypatch.setenv("DURAMEN_ADMIN_URL", server.url)
        yield server
