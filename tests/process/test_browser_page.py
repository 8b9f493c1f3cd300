"""The page of docs/quickstart-browser.md does what it says, on a cluster that asks who calls.

Played by Node as a browser would, and opened by a real one where there is one. `browser.mjs` holds
to what browsers do about origins, preflights and streams that break; its lines are what the page
shows. Without Node, or Chromium, tests are left out.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import pytest

from tests.process.browser import Browser, QuietHandler, serving, write_page
from tests.process.chromium import find_chromium, running_chromium
from tests.process.cluster import LocalCluster, running_cluster
from tests.process.times import HANG_S
from tests.requirements import Need, leave_out

pytestmark = [pytest.mark.process, pytest.mark.timeout(3 * HANG_S)]

LOG: Final = "/v1/namespaces/board/logs/prices"
RECORDS: Final = f"{LOG}/records"


class Site(NamedTuple):
    """A cluster, the page that it was told of, and a token for the page's log alone."""

    cluster: LocalCluster
    origin: str
    token: str

    def open_client(self) -> httpx.Client:
        """Whoever runs the cluster, at the write proxy."""
        state = self.cluster.state()
        return httpx.Client(
            base_url=state["write_url"], headers=self.cluster.read_headers(), timeout=HANG_S
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    data = tmp_path_factory.mktemp("cluster") / "data"
    with serving(folder) as origin, running_cluster(data, "--cors-origin", origin) as cluster:
        state = cluster.state()
        write_page(folder, write_url=state["write_url"], read_url=state["read_url"])
        made = Site(cluster, origin, "")
        with made.open_client() as client:
            client.put("/v1/namespaces/board").raise_for_status()
            client.put(LOG).raise_for_status()
        line = ["token", "create", "--scope", "read,append:board/prices", "--expires", "1d"]
        command = [sys.executable, "-m", "duramen.cli.main", *line, "--data", str(data)]
        token = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
        yield made._replace(token=token.stdout.strip())


@pytest.fixture
def node() -> str:
    found = shutil.which("node")
    if found is None:
        leave_out(Need.NODE, "nothing here can play a page")
    return found


def test_the_page_shows_all_changes_once_and_in_order_through_a_killed_proxy(
    node: str, site: Site
) -> None:
    with site.open_client() as client:

        def append(*numbers: int) -> None:
            records = [{"body": f"change {number}"} for number in numbers]
            client.post(RECORDS, json={"records": records}).raise_for_status()

        append(0, 1)
        browser = Browser(node, f"{site.origin}/live.html")
        try:
            browser.paste_token(site.token)
            assert browser.wait("connected")["connected"] == 200
            browser.wait("state", "live")
            append(2)
            browser.wait("records", "2: change 2")
            browser.type("typed in")
            assert browser.wait("preflight", "POST")
            browser.wait("records", "3: typed in")
            site.cluster.kill("readproxy-0")
            browser.wait("state", "reconnecting …")
            append(4, 5)
            browser.wait("records", "5: change 5")
            append(6)
            browser.wait("records", "6: change 6")
        finally:
            browser.close()
    assert browser.shown == [
        "0: change 0", "1: change 1", "2: change 2", "3: typed in",
        "4: change 4", "5: change 5", "6: change 6",
    ]  # fmt: skip
    assert len(browser.urls) > 1 and not any(site.token in url for url in browser.urls)


def test_a_page_without_a_token_that_counts_shows_nothing_and_says_so(
    node: str, site: Site
) -> None:
    browser = Browser(node, f"{site.origin}/live.html")
    try:
        for token in ("", f"{site.token[:-1]}{'a' if site.token[-1] != 'a' else 'b'}"):
            browser.paste_token(token)
            assert browser.wait("connected")["connected"] == 401
            assert "who are you?" in browser.wait("state")["state"]
    finally:
        browser.close()
    assert not browser.shown


def test_a_real_browser_plays_the_page_and_a_strangers_page_has_nothing(
    site: Site, tmp_path: Path
) -> None:
    find_chromium()
    stranger = site.origin.replace("localhost", "stranger.example")
    with running_chromium(tmp_path / "profile", {"stranger.example": "127.0.0.1"}) as browser:
        browser.open(f"{site.origin}/live.html")
        shown = browser.run(
            f"""
            document.querySelector("#caller [name=token]").value = {json.dumps(site.token)};
            document.querySelector("#caller button").click();
            document.querySelector("#change [name=body]").value = "by hand";
            document.querySelector("#change button").click();
            const list = document.querySelector("#records");
            const look = () => new Promise((resolve) => setTimeout(resolve, 50));
            while (!list.innerText.includes("by hand")) await look();
            const field = document.querySelector("#caller [name=token]").value;
            return [field, document.cookie, location.href, localStorage.length];
            """
        )
        assert shown == ["", "", f"{site.origin}/live.html", 0], "the token is in memory alone"
        browser.open(f"{stranger}/live.html")
        url = site.cluster.state()["read_url"] + RECORDS
        headers = {"authorization": f"Bearer {site.token}"}
        for asked in ({}, {"headers": headers}):
            call = f"fetch({json.dumps(url)}, {json.dumps(asked)})"
            script = f"try {{ return await (await {call}).text(); }} catch (error) {{ return 0; }}"
            assert browser.run(script) == 0


def test_a_page_of_another_origin_is_shown_nothing(node: str, tmp_path: Path) -> None:
    """The player blocks what a browser would: the other test proves something."""
    folder = tmp_path / "site"
    folder.mkdir()
    with serving(folder) as origin, _answering() as port:
        answering = f"http://127.0.0.1:{port}"
        write_page(folder, write_url=answering, read_url=answering)
        browser = Browser(node, f"{origin}/live.html")
        try:
            browser.paste_token("mine")
            assert RECORDS in browser.wait("blocked")["blocked"]
            browser.type("typed in")
            assert RECORDS in browser.wait("blocked")["blocked"]
        finally:
            browser.close()
    assert not browser.shown


@contextlib.contextmanager
def _answering() -> Iterator[int]:
    """A server of records that names no origin."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - named by the library
            self.send_response(200)
            self.send_header("content-type", "application/x-ndjson")
            self.end_headers()
            self.wfile.write(b'{"seq_num":0,"body":"x"}\n')

        do_OPTIONS = do_GET  # noqa: N815 - named by the library

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
