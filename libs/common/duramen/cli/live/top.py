"""`duramen top`: what the cluster does, once a second, until Ctrl-C.

Everything comes from `/v1/cluster/…` on a write proxy's admin port, asked at the same time. On a
terminal the view takes the screen and gives it back; in a pipe each moment is some lines with an
empty one after them, with `--json` one line. What a moment holds is `view`'s matter.

Called by `cli.main`. Source: docs/cli.md "top".
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from cyclopts import Parameter

from duramen.cli.arguments import AdminUrlOption, DataOption, JsonOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    FoundUrl,
    find_url,
    open_client,
    print_json,
    run_async,
)
from duramen.cli.live.view import render, summarize
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError

REFRESH_S: Final = 1.0
_SILENCE_S: Final = 5.0
"""A source that takes longer is shown as not known: one that hangs must not stop the others."""

_PATHS: Final = {
    "owners": "/v1/cluster/owners",
    "bookies": "/v1/cluster/bookies",
    "journals": "/v1/cluster/journals",
    "repair": "/v1/cluster/repair",
}

# What terminals have understood since the VT100: another screen and no cursor; back; from the top
# left, what is left of a line, what is left of the screen.
_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_TO_LINE_END: Final = "\x1b[K"
_TO_SCREEN_END: Final = "\x1b[J"


def top(
    *,
    once: Annotated[bool, Parameter(negative="", help="show one moment and end")] = False,
    url: AdminUrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Show what the cluster does, once a second: loads, logs, bookies, repair.

    Rates are those of the last 5 to 10 s. Of the logs the 20 with the highest load are shown. With
    --json each moment is one line.

    Exit codes: 0 shown; 1 refused, failed, or with --once something is not known; 2 usage;
    130 interrupted (the usual end without --once).
    """
    target = find_url(url, data, "admin_url")
    is_screen = sys.stdout.isatty() and not json and not once
    with _screen(is_taken=is_screen):
        return run_async(_run(target, is_once=once, is_json=json, is_screen=is_screen))


async def _run(server: FoundUrl, *, is_once: bool, is_json: bool, is_screen: bool) -> int:
    client = open_client(server, is_quiet=True)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # either way the terminal is given back
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    is_first = True
    try:
        while not ended.is_set():
            began_s = time.monotonic()
            answers = await _sample(client)
            errors = [answer for answer in answers.values() if isinstance(answer, Exception)]
            if is_first and len(errors) == len(answers):
                raise errors[0]
            is_first = False
            summary = summarize(
                {
                    name: str(answer) if isinstance(answer, Exception) else answer
                    for name, answer in answers.items()
                }
            )
            _show(summary, server.url, is_json=is_json, is_screen=is_screen)
            if is_once:
                return ExitCode.FAILED if errors else ExitCode.OK
            left_s = max(REFRESH_S - (time.monotonic() - began_s), 0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), left_s)
        return ExitCode.INTERRUPTED
    finally:
        await client.close()


async def _sample(client: RestClient) -> dict[str, dict[str, Any] | Exception]:
    """Source → its answer, or why there is none."""

    async def ask(path: str) -> dict[str, Any] | Exception:
        try:
            async with asyncio.timeout(_SILENCE_S):
                return await client.get_json(path)
        except (DuramenError, PeerError) as error:
            return error
        except TimeoutError:
            return PeerError(f"no answer within {_SILENCE_S:g} s")

    answers = await asyncio.gather(*map(ask, _PATHS.values()))
    return dict(zip(_PATHS, answers, strict=True))


def _show(summary: dict[str, Any], url: str, *, is_json: bool, is_screen: bool) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if is_json:
        print_json({"time": now, **summary})
        return
    head = f"duramen top {url} {now}"
    if not is_screen:
        print("\n".join([head, *render(summary, columns=None, lines=None)]), end="\n\n", flush=True)
        return
    size = shutil.get_terminal_size()
    taken = math.ceil(len(head) / size.columns)  # the URL is not cut either
    left = size.lines - 1 - taken
    lines = [head, *render(summary, columns=size.columns, lines=left)]
    body = "".join(f"{line}{_TO_LINE_END}\n" for line in lines)
    sys.stdout.write(f"{_HOME}{body}{_TO_SCREEN_END}")
    sys.stdout.flush()


@contextmanager
def _screen(*, is_taken: bool) -> Iterator[None]:
    """The terminal's other screen, given back whatever happens."""
    if not is_taken:
        yield
        return
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
