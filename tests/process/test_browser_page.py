"""The page of docs/quickstart-browser.md does what it says, played by Node as a browser would.

No browser is needed: `browser.mjs` holds to what browsers do about origins, preflights and event
streams that break. Its lines are what the page shows. Without Node the test is skipped.
"""

from __future__ import annotations

import contextlib
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.process.browser import Browser, QuietHandler, serving, write_page
from tests.process.cluster import running_cluster
from tests.requirements import Need, leave_out

pytestmark = pytest.mark.process

RECORDS: Final = "/v1/namespaces/board/logs/prices/records"


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

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - named by the library
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b'event: records\ndata: {"records":[{"body":"x"}]}\n\n')

        do_OPTIONS = do_GET  # noqa: N815 - named by the library

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
