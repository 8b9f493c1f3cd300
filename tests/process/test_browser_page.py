"""The page of docs/quickstart-browser.md does what it says, played by Node as a browser would.

No browser is needed: `browser.mjs` holds to what browsers do about origins, preflights and event
streams that break. Its lines are what the page shows. Without Node the test is skipped.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.process.cluster import running_cluster
from tests.process.pages import read_page
from tests.process.test_quickstart import DOCS
from tests.process.times import HANG_S
from tests.requirements import Need, leave_out

pytestmark = pytest.mark.process

PAGE: Final = "quickstart-browser.md"
BROWSER: Final = Path(__file__).with_name("browser.mjs")
RECORDS: Final = "/v1/namespaces/board/logs/prices/records"


class Browser:
    """A page that is open; what it says comes as it happens."""

    def __init__(self, node: str, url: str) -> None:
        self._process = subprocess.Popen(
            [node, str(BROWSER), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self.shown: list[str] = []
        self.connections: list[int] = []
        """What each try of the page's event source was answered."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(json.loads(line))

    def wait(self, what: str, value: Any = None) -> Any:
        """The next thing said of this kind, with this value if one is given."""
        while True:
            said = self._said.get(timeout=HANG_S)
            if "records" in said:
                self.shown.append(said["records"])
            if "connected" in said:
                self.connections.append(said["connected"])
            if what in said and value in (None, said[what]):
                return said

    def type(self, body: str) -> None:
        """Type into the form and send it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{body}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Close the page."""
        self._process.kill()
        self._process.wait(10)


def write_page(site: Path, *, write_url: str, read_url: str) -> None:
    """The files of the page, with other urls in the place of those that it names."""
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    for written, real in (
        ("http://localhost:7301", write_url),
        ("http://localhost:7401", read_url),
    ):
        assert written in text
        text = text.replace(written, real)
    for name, body in read_page(text).files.items():
        (site / name).write_text(body, encoding="utf-8")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The origin of what `python -m http.server` would serve."""
    handler = functools.partial(_QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_args: Any) -> None:
        """Tests say nothing."""


@pytest.fixture
def node() -> str:
    found = shutil.which("node")
    if found is None:
        leave_out(Need.NODE, "nothing here can play a page")
    return found


def test_the_page_shows_all_changes_once_and_in_order_through_a_killed_proxy(
    node: str, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    with serving(site) as origin:
        flags = ("--read-proxies", "1", "--cors-origin", origin)
        with running_cluster(tmp_path / "data", *flags) as cluster:
            state = cluster.state()
            write_page(site, write_url=state["write_url"], read_url=state["read_url"])
            with httpx.Client(base_url=state["write_url"], timeout=20) as client:
                for path in ("/v1/namespaces/board", "/v1/namespaces/board/logs/prices"):
                    client.put(path).raise_for_status()

                def append(*numbers: int) -> None:
                    records = [{"body": f"change {number}"} for number in numbers]
                    client.post(RECORDS, json={"records": records}).raise_for_status()

                append(0, 1)
                browser = Browser(node, f"{origin}/live.html")
                try:
                    assert browser.wait("connected") == {"connected": 200, "lastEventId": ""}
                    browser.wait("state", "live")
                    append(2)
                    browser.wait("records", "2: change 2")
                    browser.type("typed in")
                    assert browser.wait("preflight") == {"preflight": "POST"}
                    browser.wait("records", "3: typed in")
                    cluster.kill("readproxy-0")
                    browser.wait("state", "reconnecting …")
                    append(4, 5)
                    # It comes back with the id of the last event, however often it has to.
                    was_refused = False
                    while (back := browser.wait("connected"))["connected"] != 200:
                        was_refused = True  # then a new source, from where the old one was
                    assert back["lastEventId"] == ("" if was_refused else "seq:4")
                    browser.wait("records", "5: change 5")
                    append(6)
                    browser.wait("records", "6: change 6")
                finally:
                    browser.close()
    assert browser.shown == [
        "0: change 0", "1: change 1", "2: change 2", "3: typed in",
        "4: change 4", "5: change 5", "6: change 6",
    ]  # fmt: skip


def test_a_page_of_another_origin_is_shown_nothing(node: str, tmp_path: Path) -> None:
    """The player blocks what a browser would: the other test proves something."""
    site = tmp_path / "site"
    site.mkdir()
    with serving(site) as origin, _answering() as port:
        answering = f"http://127.0.0.1:{port}"
        write_page(site, write_url=answering, read_url=answering)
        browser = Browser(node, f"{origin}/live.html")
        try:
            assert RECORDS in browser.wait("blocked")["blocked"]
            browser.type("typed in")
            assert RECORDS in browser.wait("blocked")["blocked"]
        finally:
            browser.close()
    assert not browser.shown


@contextlib.contextmanager
def _answering() -> Iterator[int]:
    """A server of events that names no origin."""

    class Handler(_QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b'event: records\ndata: {"records":[{"body":"x"}]}\n\n')

        do_OPTIONS = do_GET  # noqa: N815 - named by the library

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
