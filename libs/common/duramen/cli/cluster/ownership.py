"""`duramen owners|hand-over|balance|story`: whose the logs are, and what happened to one and why.

Thin over `/v1/cluster/…` on a write proxy's admin port: what it answers is what `--json` prints;
without it the same values stand in lines and tables. Nothing is decided here.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/ownership.md.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

from cyclopts import Parameter

from duramen.cli.arguments import AdminUrlOption, DataOption, JsonOption, LogText
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    call_admin,
    parse_argument,
    print_json,
    say,
    show_rows,
)
from duramen.texts import parse_log

_HAND_OVER_TIMEOUT_S: Final = 30.0
_BALANCE_TIMEOUT_S: Final = 300.0
_OWNER_COLUMNS: Final = ("name", "sequencer", "epoch", "state", "appends_per_s", "bytes_per_s")
_MOVE_COLUMNS: Final = ("name", "from", "to", "cost", "outcome")


def owners(
    *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False
) -> int:
    """List the logs that somebody owns now, with their sequencers and loads.

    A log without an open segment has no owner, and needs none until the next append.

    Exit codes: 0 listed; 1 refused or failed, or a sequencer did not answer; 2 usage.
    """
    answer = call_admin(url, data, lambda client: client.get_json("/v1/cluster/owners"))
    show_rows(answer, "logs", _OWNER_COLUMNS, is_json=json)
    return _code_of(answer)


def story(
    log: LogText, /, *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Tell what happened to a log and why, as the sequencers that live remember it.

    Exit codes: 0 told; 1 refused or failed, or a sequencer did not answer; 2 usage.
    """
    path = f"{_log_path(log)}/story"
    answer = call_admin(url, data, lambda client: client.get_json(path))
    if json:
        print_json(answer)
    else:
        for event in answer["events"]:
            print(_format_event(event))
    return _code_of(answer)


def hand_over(
    log: LogText,
    /,
    *,
    to: Annotated[str | None, Parameter(help="id of a sequencer; else the next by hash")] = None,
    url: AdminUrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Let a log's owner close its segment in peace and another sequencer go on.

    Exit codes: 0 handed over; 1 refused or failed; 2 usage.
    """
    path = f"{_log_path(log)}/hand-over"
    body = {} if to is None else {"to": to}
    answer = call_admin(
        url, data, lambda client: client.post_json(path, body, timeout_s=_HAND_OVER_TIMEOUT_S)
    )
    if json:
        print_json(answer)
    else:
        how = "closed in peace" if answer["closed"] else "to be recovered"
        print(f"{log}: from {answer['from']} to {answer['to']}, epoch {answer['epoch']} {how}")
    return ExitCode.OK


def balance(
    *,
    dry_run: Annotated[bool, Parameter(negative="", help="show the moves, make none")] = False,
    moves: Annotated[int, Parameter(help="logs to move at most")] = 10,
    url: AdminUrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Move logs from sequencers that carry more than their share to those that carry less.

    One round; loads are those of the last seconds. Each move is a hand-over.

    Exit codes: 0 done, or nothing to do; 1 refused, or a move failed; 2 usage.
    """
    body = {"dry_run": dry_run, "moves": moves}
    answer = call_admin(
        url,
        data,
        lambda client: client.post_json("/v1/cluster/balance", body, timeout_s=_BALANCE_TIMEOUT_S),
    )
    if json or answer["moves"]:
        show_rows(answer, "moves", _MOVE_COLUMNS, is_json=json)
    else:
        say("balanced: nothing to move")
    is_good = all(move.get("outcome", "moved") == "moved" for move in answer["moves"])
    return ExitCode.OK if is_good else ExitCode.FAILED


def weigh(
    sequencer: Annotated[str, Parameter(help="the sequencer's id")],
    /,
    *,
    sequencer_weight: Annotated[
        float,
        Parameter(
            name=["--sequencer-weight", "--weight"],
            help="its share of the logs; 0: none but by hand-over",
        ),
    ],
    url: AdminUrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Give a sequencer another share of the logs, until it restarts.

    Logs that have an owner stay with it: `duramen balance` moves them.

    Exit codes: 0 changed; 1 refused or failed; 2 usage.
    """
    path = f"/v1/cluster/sequencers/{quote(sequencer, safe='')}"
    change = {"sequencer_weight": sequencer_weight}
    answer = call_admin(url, data, lambda client: client.change_json("PATCH", path, change))
    if json:
        print_json(answer)
    else:
        print(f"{answer['id']}: weight {answer['sequencer_weight']}")
    return ExitCode.OK


def _log_path(log: str) -> str:
    namespace, name = parse_argument(parse_log, log)
    return f"/v1/cluster/logs/{quote(namespace)}/{quote(name)}"


def _code_of(answer: dict[str, Any]) -> int:
    silent = answer.get("silent") or ()
    if silent:
        say(f"no answer from {', '.join(silent)}")
    return ExitCode.FAILED if silent else ExitCode.OK


def _format_event(event: dict[str, Any]) -> str:
    time = datetime.fromtimestamp(event["unix_ms"] / 1000, UTC).isoformat(timespec="milliseconds")
    epoch = f" e{event['epoch']}" if "epoch" in event else ""
    reason = f": {event['reason']}" if "reason" in event else ""
    return f"{time}  {event['sequencer']:16} {event['event']}{epoch}{reason}"
