"""`duramen log create|show|list|roll|reconfigure` and `duramen segments`: thin over REST.

What the server answers is what `--json` prints; without it the same values stand in lines and
tables. Nothing is decided here.

Called by `cli.main`. Source: docs/cli.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

import orjson
from cyclopts import App, Parameter

from duramen.cli.arguments import (
    AdminUrlOption,
    ConfigOption,
    CopysetsOption,
    DataOption,
    JsonOption,
    LogText,
    UrlOption,
    complete_namespace,
)
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    FoundUrl,
    UsageError,
    find_url,
    name_copysets,
    open_client,
    parse_argument,
    parse_config,
    print_json,
    run_async,
    show_rows,
)
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.texts import check_namespace, parse_log
from duramen.units import agree

log_app = App(name="log", help="Create, show and list logs; truncate, end and delete them.")

_PAGE_COUNT = 1_000
"""Rows of a page: as many as a proxy gives at once."""

_SEGMENT_COLUMNS = (
    "epoch", "state", "start_seq_num", "records", "bytes", "holes", "lost", "copies", "created",
    "completed",
    "txids", "first_timestamp", "last_timestamp",
)  # fmt: skip


@log_app.command
def create(
    log: LogText,
    /,
    *,
    config: ConfigOption = "{}",
    copysets: CopysetsOption = None,
    url: UrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Create a log, or find that it is there with the same configuration.

    Exit codes: 0 created or there; 1 refused or failed; 2 usage.
    """
    name = parse_argument(parse_log, log)
    document = name_copysets(parse_config(config), copysets)
    target = find_url(url, data, "write_url")
    is_new = call_proxy(target, lambda client: client.ensure_log(name[0], name[1], document))
    if json:
        print_json({"log": log, "created": is_new})
    else:
        print(f"{log}: {'created' if is_new else 'is there already'}")
    return ExitCode.OK


@log_app.command
def reconfigure(
    log: LogText,
    /,
    *,
    config: Annotated[str | None, Parameter(help="the fields to change, as JSON")] = None,
    copysets: CopysetsOption = None,
    version: Annotated[int | None, Parameter(help="refuse unless this one is stored")] = None,
    url: UrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Change fields of a log's configuration; the others stay as they are.

    Replication takes effect with the next segment, which begins at once; the rest at once. Other
    copysets replace replication as a whole.

    Exit codes: 0 changed or the same already; 1 refused or failed; 2 usage.
    """
    name = parse_argument(parse_log, log)
    if config is None and copysets is None:
        raise UsageError("give --config or --copysets")
    patch = name_copysets(parse_config(config or "{}"), copysets)
    target = find_url(url, data, "write_url")
    answer = call_proxy(
        target, lambda client: client.reconfigure_log(name[0], name[1], patch, version=version)
    )
    if json:
        print_json(answer)
    else:
        done = "changed" if answer.get("changed") else "the same already"
        print(f"{log}: {done}, version {answer.get('config_version')}")
    return ExitCode.OK


@log_app.command
def roll(
    log: LogText, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Close the open segment of a log and begin the next one.

    Exit codes: 0 begun, or no segment is open; 1 refused or failed; 2 usage.
    """
    name = parse_argument(parse_log, log)
    target = find_url(url, data, "write_url")
    epoch = call_proxy(target, lambda client: client.roll_log(*name))
    if json:
        print_json({"log": log, "epoch": epoch})
    else:
        print(f"{log}: {'no segment is open' if epoch is None else f'e{epoch} is being closed'}")
    return ExitCode.OK


@log_app.command
def show(
    log: LogText, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Show a log and its configuration.

    Exit codes: 0 shown; 1 refused or failed; 2 usage.
    """
    name = parse_argument(parse_log, log)
    target = find_url(url, data, "write_url")
    print_object(call_proxy(target, lambda client: client.show_log(*name)), is_json=json)
    return ExitCode.OK


@log_app.command
def tail(
    log: LogText, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Show where a log ends: what is released to readers, and what is acknowledged.

    The two differ for a while in logs that acknowledge out of order.

    Exit codes: 0 shown; 1 refused or failed; 2 usage.
    """
    name = parse_argument(parse_log, log)
    target = find_url(url, data, "read_url")

    async def show_both(client: RestClient) -> dict[str, dict[str, Any]]:
        marks = ("released", "acknowledged")
        return {mark: await client.show_tail(name[0], name[1], mark) for mark in marks}

    print_object(call_proxy(target, show_both), is_json=json)
    return ExitCode.OK


@log_app.command(name="list")
def list_logs(
    namespace: Annotated[
        str | None,
        Parameter(help="the namespace; else all of them", completer=complete_namespace),
    ] = None,
    /,
    *,
    url: UrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """List the logs of a namespace, or all logs.

    Exit codes: 0 listed; 1 refused or failed; 2 usage.
    """
    if namespace is not None:
        parse_argument(check_namespace, namespace)
    target = find_url(url, data, "write_url")
    logs = call_proxy(target, lambda client: _list_logs(client, namespace))
    if json:
        print_json({"namespace": namespace, "logs": logs})
    else:
        for entry in logs:
            print(f"{entry['namespace']}/{entry['name']}")
    return ExitCode.OK


async def _list_logs(client: RestClient, namespace: str | None) -> list[dict[str, Any]]:
    """Those of one namespace, or of all; a namespace that goes meanwhile has none."""
    if namespace is not None:
        return await list_all(client, f"/v1/namespaces/{quote(namespace)}/logs", "logs")
    found: list[dict[str, Any]] = []
    for row in await list_all(client, "/v1/namespaces", "namespaces"):
        try:
            found += await _list_logs(client, str(row["namespace"]))
        except DuramenError as error:
            if error.code != "namespace_not_found":
                raise
    return found


def segments(
    log: LogText, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """List the segments of a log; with --json also their quorums and bookies.

    Exit codes: 0 listed; 1 refused or failed; 2 usage.
    """
    name = parse_argument(parse_log, log)
    target = find_url(url, data, "read_url")
    answer = call_proxy(target, lambda client: client.list_segments(*name))
    if json:
        print_json(answer)
    else:
        rows = [
            {
                **row,
                "holes": _format_ranges(row.get("holes") or ()),
                "lost": _format_ranges(row.get("lost") or ()),
                "copies": _format_copies(row),
                "txids": _format_txids(row),
            }
            for row in answer.get("segments", [])
            if isinstance(row, dict)
        ]
        has_holes = any(row["holes"] for row in rows)
        columns = [name for name in _SEGMENT_COLUMNS if name != "holes" or has_holes]
        show_rows(
            {"segments": rows}, "segments", columns, is_json=False,
            droppable=("created", "completed"),
        )  # fmt: skip
    return ExitCode.OK


def maintenance(
    state: Literal["on", "off"], /, *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Suspend rolling and ensemble changes everywhere (on) for work on ZooKeeper, or resume (off).

    Meanwhile appends need nothing of ZooKeeper.

    Exit codes: 0 every sequencer obeys; 1 refused or failed, or not all of them; 2 usage.
    """
    target = find_url(url, data, "admin_url")
    answer = call_proxy(target, lambda client: client.suspend_rolling(is_suspended=state == "on"))
    if json:
        print_json(answer)
    else:
        print(f"rolling is {'suspended' if answer.get('rolling_suspended') else 'resumed'}")
        for name, count in sorted(answer.get("under_way", {}).items()):
            said = (
                "does not answer"
                if count is None
                else agree(f"in the middle of a change: {count} logs")
            )
            print(f"  {name}: {said}")
    return ExitCode.OK if answer.get("is_settled") else ExitCode.FAILED


def call_proxy(server: FoundUrl, use: Callable[[RestClient], Awaitable[Any]]) -> Any:
    """What `use` makes of a client of that proxy."""

    async def run() -> Any:
        client = open_client(server)
        try:
            return await use(client)
        finally:
            await client.close()

    return run_async(run())


async def list_all(
    client: RestClient, path: str, field: Literal["logs", "namespaces"], *, most: int | None = None
) -> list[dict[str, Any]]:
    """Every row of a listing, page by page; with `most` at least one row more than that, if any.

    Raises:
        DuramenError, PeerError: as `RestClient.get_json`.
    """
    key = "name" if field == "logs" else "namespace"
    found: list[dict[str, Any]] = []
    has_more = True
    while has_more and (most is None or len(found) <= most):
        query = {"limit": str(_PAGE_COUNT)}
        if found:
            query["start_after"] = str(found[-1][key])
        page = await client.get_json(path, query)
        found += page[field]
        has_more = bool(page["has_more"] and page[field])
    return found


def print_object(value: dict[str, Any], *, is_json: bool) -> None:
    """A JSON object, on one line for a program, indented for a person."""
    if is_json:
        print_json(value)
    else:
        print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _format_ranges(ranges: Sequence[Sequence[int]]) -> str | None:
    """Entries that are not there, in a hole or lost."""
    return ", ".join(f"{first}-{last}" for first, last in ranges) or None


def _format_txids(segment: Mapping[str, Any]) -> str | None:
    """From the first to the greatest; what is not known, or not there, is left out."""
    first, last = segment.get("first_txid"), segment.get("last_txid")
    if first is None and last is None:
        return None
    return f"{'?' if first is None else first}-{'?' if last is None else last}"


def _format_copies(segment: Mapping[str, Any]) -> str:
    """Where its records lie; a cold copy that was not rechecked yet does not count alone."""
    if segment.get("hot_copies") == "released":
        return "cold"
    return "hot" if segment.get("cold_copy") is None else "hot, cold"
