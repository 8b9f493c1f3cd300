"""A real browser: Chromium without a window, told what to do through its own debugging pipe.

It opens a page, runs a script in it as if the page had it, and says what came out. Names of hosts
resolve as the test says. Nothing of it stays: its profile is a folder of the test's. Without
Chromium tests are left out. Used by `test_strange_pages`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.process.times import HANG_S
from tests.requirements import Need, leave_out

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-proxy-server", "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str:
    """The program; leaves the test out where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        leave_out(Need.CHROMIUM, "nothing here can open a page")
    return found


class Chromium:
    """One browser with one page.

    Args:
        asked, told: ends of the pipes, to it and from it.
    """

    def __init__(self, asked: int, told: int) -> None:
        self._asked, self._told = asked, told
        self._buffer = b""
        self._count = 0
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attach = {"targetId": target, "flatten": True}
        self._session = self._call("Target.attachToTarget", attach)["sessionId"]
        self._call("Page.enable")

    def open(self, url: str) -> None:
        """Go to a page, as a person who types its address; returns when it is loaded."""
        self._call("Page.navigate", {"url": url})
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        """Run the body of an async function in the page; gives what it returns.

        Raises:
            AssertionError: it threw.
        """
        fields = {
            "expression": f"(async () => {{ {script} }})()",
            "awaitPromise": True,
            "returnByValue": True,
            "userGesture": True,
        }
        answer = self._call("Runtime.evaluate", fields)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _call(self, method: str, fields: Mapping[str, Any] | None = None) -> Any:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": fields or {}}
        if not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._asked, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._count:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._told], [], [], HANG_S)
            assert ready, "the browser says nothing"
            piece = os.read(self._told, 1 << 16)
            assert piece, "the browser has ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextlib.contextmanager
def running_chromium(folder: Path, hosts: Mapping[str, str], *flags: str) -> Iterator[Chromium]:
    """A browser for which these names have these addresses; `folder` is its profile."""
    rules = ", ".join(f"MAP {name} {address}" for name, address in hosts.items())
    command = [
        find_chromium(), *_FLAGS, f"--user-data-dir={folder}", f"--host-resolver-rules={rules}",
        *flags,
    ]  # fmt: skip
    its_in, asked = os.pipe()
    told, its_out = os.pipe()
    # It reads from 3 and writes to 4; a shell puts them there.
    script = f'exec "$@" 3<&{its_in} 4>&{its_out}'
    process = subprocess.Popen(
        ["/bin/bash", "-c", script, "chromium", *command],
        pass_fds=(its_in, its_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(its_in)
    os.close(its_out)
    try:
        yield Chromium(asked, told)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(HANG_S)
        os.close(asked)
        os.close(told)
