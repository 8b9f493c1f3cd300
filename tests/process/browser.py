"""The page of docs/quickstart-browser.md, served, and a browser played by Node.

`browser.mjs` holds to what browsers do about origins, preflights and streams that break.
Used by `test_browser_page`, `test_quiet_tails` and `test_strange_pages`.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.process.pages import DOCS, read_page
from tests.process.times import HANG_S

PAGE: Final = "quickstart-browser.md"
BROWSER: Final = Path(__file__).with_name("browser.mjs")


class Browser:
    """A page that is open; what it says comes as it happens."""

    def __init__(self, node: str, url: str) -> None:
        self._process = subprocess.Popen(
            [node, str(BROWSER), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self.shown: list[str] = []
        self.connections: list[int] = []
        """What each of the page's reads was answered."""
        self.urls: list[str] = []
        """What it read from."""
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
                self.urls.append(said["url"])
            if what in said and value in (None, said[what]):
                return said

    def paste_token(self, token: str) -> None:
        """Say who calls; the page begins to read."""
        self._submit("caller", "token", token)

    def type(self, body: str) -> None:
        """Type a record into its form and send it."""
        self._submit("change", "body", body)

    def _submit(self, form: str, field: str, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"form": form, "field": field, "text": text}) + "\n")
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
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_args: Any) -> None:
        """Tests say nothing."""
