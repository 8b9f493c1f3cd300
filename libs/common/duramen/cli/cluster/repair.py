"""`duramen repair|drain|rebalance|accept-loss`: what the auditor does and is asked.

Thin over `/v1/cluster/…` on a write proxy's admin port: what it answers is what `--json` prints. A
drain or a rebalance that is waited for shows a bar on a terminal and plain lines in a pipe. Nothing
is decided here.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

from cyclopts import App, Parameter

from duramen.cli.arguments import AdminUrlOption, BookieText, DataOption, JsonOption
from duramen.cli.command import DATA_DEFAULT, ExitCode, UsageError, call_admin, print_json, say
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.units import agree

_POLL_S: Final = 1.0
_ASK_TIMEOUT_S: Final = 60.0
_SILENCE_MAX_COUNT: Final = 60
"""Polls in a row that tell nothing until waiting is given up: a new auditor takes seconds."""

WaitOption = Annotated[bool, Parameter(negative="", help="wait until it is over")]

repair_app = App(name="repair", help="The auditor: what it repairs.", result_action="return_value")


class _Progress:
    """How far something is: what to show, and whether it is over.

    Args:
        left: bytes or moves; None: not known.
    """

    def __init__(self, text: str, left: int | None, *, is_over: bool) -> None:
        self.text = text
        self.left = left
        self.is_over = is_over


@repair_app.command
def status(
    *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False
) -> int:
    """Show what is repaired, what waits, and what cannot be repaired.

    Exit codes: 0 shown, and nothing is unrepairable; 1 refused, failed, or something is; 2 usage.
    """
    answer = call_admin(url, data, lambda client: client.get_json("/v1/cluster/repair"))
    if json:
        print_json(answer)
    else:
        for line in _format_status(answer):
            print(line)
    return ExitCode.FAILED if answer["unrepairable"] else ExitCode.OK


def drain(
    bookie: BookieText,
    /,
    *,
    cancel: Annotated[bool, Parameter(negative="", help="let it serve again")] = False,
    wait: WaitOption = False,
    url: AdminUrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Empty a bookie, so that it may be taken away: when it is `drained`, and not before.

    Exit codes: 0 begun, cancelled, or with --wait drained; 1 refused or failed; 2 usage.
    """
    if cancel and wait:
        raise UsageError("--cancel has nothing to wait for")
    path = f"/v1/cluster/bookies/{quote(bookie)}/{'cancel-drain' if cancel else 'drain'}"
    answer = call_admin(
        url, data, lambda client: client.post_json(path, {}, timeout_s=_ASK_TIMEOUT_S)
    )
    if wait and answer["duty"] != "drained":
        answer = _wait(url, data, f"drain of {bookie}", _DrainWatch(bookie).look)
    if json:
        print_json(answer)
    else:
        print(f"{bookie}: {answer['duty']}")
    return ExitCode.OK if not wait or answer["duty"] == "drained" else ExitCode.FAILED


def rebalance(
    *,
    dry_run: Annotated[bool, Parameter(negative="", help="show the moves, make none")] = False,
    stop: Annotated[bool, Parameter(negative="", help="end the rebalance that runs")] = False,
    status: Annotated[bool, Parameter(negative="", help="only show whether one runs")] = False,
    wait: WaitOption = False,
    tolerance: Annotated[float, Parameter(help="part of a share that is near enough")] = 0.1,
    url: AdminUrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Move copies of closed segments until every bookie holds its share, in the background.

    Exit codes: 0 begun, ended, shown, or with --wait over; 1 refused or failed; 2 usage.
    """
    if dry_run + stop + status > 1:
        raise UsageError("give one of --dry-run, --stop and --status")
    path = "/v1/cluster/rebalance"
    if status:
        answer = call_admin(url, data, lambda client: client.get_json(path))
    elif stop:
        answer = call_admin(url, data, lambda client: client.delete_json(path))
    else:
        body = {"dry_run": dry_run, "tolerance": tolerance}
        answer = call_admin(
            url, data, lambda client: client.post_json(path, body, timeout_s=_ASK_TIMEOUT_S)
        )
    if wait and answer.get("running"):
        answer = _wait(url, data, "rebalance", _look_at_rebalance)
    if json:
        print_json(answer)
    else:
        for line in _format_rebalance(answer):
            print(line)
    return ExitCode.OK


def accept_loss(
    bookie: BookieText,
    /,
    *,
    incarnation: Annotated[str, Parameter(help="the life of its disks that is gone for ever")],
    url: AdminUrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Accept that a lost bookie's disks are gone for ever, with every entry that only they had.

    Such entries are recorded as lost, and readers are told. There is no way back: the disks cannot
    join again. `duramen repair status` shows what waits for this.

    Exit codes: 0 accepted; 1 refused or failed; 2 usage.
    """
    path, body = f"/v1/cluster/bookies/{quote(bookie)}/accept-loss", {"incarnation": incarnation}
    answer = call_admin(
        url, data, lambda client: client.post_json(path, body, timeout_s=_ASK_TIMEOUT_S)
    )
    if json:
        print_json(answer)
    else:
        print(f"{bookie}: incarnation {answer['incarnation']} is gone for ever")
    return ExitCode.OK


# --- Waiting ------------------------------------------------------------------------------------


def _wait(
    url: str | None,
    data: Path,
    what: str,
    look: Callable[[RestClient], Awaitable[tuple[_Progress, dict[str, Any]]]],
) -> dict[str, Any]:
    """Look again and again until it is over; shows how far it is."""

    async def follow(client: RestClient) -> dict[str, Any]:
        silent_count = 0
        with _Display(what) as display:
            while True:
                try:
                    progress, answer = await look(client)
                    silent_count = 0
                    display.show(progress)
                    if progress.is_over:
                        return answer
                except (PeerError, DuramenError):
                    silent_count += 1
                    if silent_count > _SILENCE_MAX_COUNT:
                        raise
                await asyncio.sleep(_POLL_S)

    return call_admin(url, data, follow)


class _DrainWatch:
    """Follows one drain, which the next round of the auditor shows first."""

    def __init__(self, bookie: str) -> None:
        self._bookie = bookie
        self._was_shown = False
        self._unseen_count = 0

    async def look(self, client: RestClient) -> tuple[_Progress, dict[str, Any]]:
        """How far it is; over as well when somebody cancelled it."""
        answer = await client.get_json("/v1/cluster/repair")
        for one in answer["drains"]:
            if one["bookie"] == self._bookie:
                self._was_shown = True
                text = f"{one['duty']}: {one['waits_for']}" if one["waits_for"] else one["duty"]
                return _Progress(text, one["bytes"], is_over=one["duty"] == "drained"), one
        self._unseen_count += 1
        is_over = self._was_shown or self._unseen_count > _SILENCE_MAX_COUNT
        text = "it serves: the drain was cancelled" if is_over else "the next round"
        return _Progress(text, None, is_over=is_over), {"bookie": self._bookie, "duty": "serving"}


async def _look_at_rebalance(client: RestClient) -> tuple[_Progress, dict[str, Any]]:
    answer = await client.get_json("/v1/cluster/rebalance")
    left = answer["moves_waiting"]
    return _Progress(agree(f"waiting: {left} moves"), left, is_over=not answer["running"]), answer


# --- What is shown -------------------------------------------------------------------------------


class _Display:
    """A bar on a terminal, a line for each change elsewhere; both on stderr."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = ""
        self._most = 0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> _Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=None, text="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: _Progress) -> None:
        """Show how far it is."""
        self._most = max(self._most, progress.left or 0)
        if self._bar is None:
            if progress.text != self._last:
                say(f"{self._what}: {progress.text}")
        else:
            done = None if progress.left is None else self._most - progress.left
            self._bar.update(
                self._task, total=self._most or None, completed=done or 0, text=progress.text
            )
        self._last = progress.text


def _format_status(answer: dict[str, Any]) -> list[str]:
    backlog, last = answer["backlog"], answer["last_round"]
    estimate = "not known" if answer["estimate_s"] is None else f"{answer['estimate_s']} s"
    lines = [
        f"auditor {answer['auditor']}",
        f"backlog {backlog['tasks']} fragments, {backlog['left_bytes']} bytes, estimate {estimate}",
        f"running {backlog['running']} of {backlog['running_max']}, "
        f"{answer['bytes_per_s']} bytes/s",
    ]
    if last is not None:
        whole = "whole" if last["whole"] else f"in part, {last['unread_count']} unread"
        lines.append(
            f"last round {whole}: {last['logs']} logs, {last['segments']} segments, "
            f"{last['unproved_fragments']} unproved, {last['fragments_in_doubt']} in doubt, "
            f"{last['placement_violations']} misplaced"
        )
    for one in answer["drains"]:
        lines.append(f"drain {one['bookie']}: {one['duty']} {one['waits_for']}".rstrip())
    for one in answer["unrepairable"]:
        where = f"log {one['log_id']} epoch {one['epoch']} from entry {one['first_entry']}"
        lines.append(f"unrepairable {where}: {one['reason']}")
        lines += [
            f"  {part['first']}-{part['last']} at {part['bookie']}: {part['why']}"
            for part in one["ranges"]
        ]
    return list(map(agree, lines))


def _format_rebalance(answer: dict[str, Any]) -> list[str]:
    shares = [f"  {name}: {share:.2f} of its share" for name, share in answer["shares"].items()]
    if answer.get("dry_run"):
        moves = [
            f"log {move['log_id']} epoch {move['epoch']} from entry {move['first_entry']}: "
            f"{move['from']} to {move['to']}, {move['bytes']} bytes"
            for move in answer["moves"]
        ]
        total = agree(f"{len(moves)} moves to begin with, {answer['bytes']} bytes")
        return [*map(agree, moves), total, *shares]
    return ["a rebalance is running" if answer["running"] else "no rebalance is running", *shares]
