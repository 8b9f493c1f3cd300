"""`duramen log create|show|list|roll|reconfigure` and `duramen segments`: thin over REST.

What the server answers is what `--json` prints; without it the same values stand in lines and
tables. Nothing is decided here.

Called by `cli.main`. Source: 03-api "CLI".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

import orjson
from cyclopts import App, Parameter

from duramen.cli.command import (
    DATA_DEFAULT,
    DataOption,
    ExitCode,
    JsonOption,
    LogText,
    UrlOption,
    UsageError,
    find_url,
    parse_argument,
    print_json,
    run_async,
)
from duramen.client.rest_client import RestClient
from duramen.texts import check_namespace, parse_log

log_app = App(name="log", help="Create, show and list logs; truncate, end and delete them.")

_PAGES_MAX = 10_000
_SEGMENT_COLUMNS = (
    "epoch", "state", "start_seq_num", "records", "bytes", "lost", "created", "completed",
)  # fmt: skip


@log_app.command
def create(
    log: LogText,
    /,
    *,
    config: Annotated[str, Parameter(help="configuration as JSON; {} for the defaults")] = "{}",
    url: UrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Create a log, or find that it is there with the same configuration.

    Exit codes: 0 created or there; 1 refused or failed; 2 usage.
    """
    name = parse_argument(parse_log, log)
    document = _parse_config(config)
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
    config: Annotated[str, Parameter(help="the fields to change, as JSON")],
    version: Annotated[int | None, Parameter(help="refuse unless this one is stored")] = None,
    url: UrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Change fields of a log's configuration; the others stay as they are.

    Replication takes effect with the next segment, which begins at once; the rest at once.

    Exit codes: 0 changed or the same already; 1 refused or failed; 2 usage.
    """
    name = parse_argument(parse_log, log)
    patch = _parse_config(config)
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
    _print_object(call_proxy(target, lambda client: client.show_log(*name)), is_json=json)
    return ExitCode.OK


@log_app.command(name="list")
def list_logs(
    namespace: str = "default", /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """List the logs of a namespace.

    Exit codes: 0 listed; 1 refused or failed; 2 usage.
    """
    parse_argument(check_namespace, namespace)
    target = find_url(url, data, "write_url")

    async def collect(client: RestClient) -> list[Any]:
        found: list[Any] = []
        for _ in range(_PAGES_MAX):
            last = _name_of(found[-1]) if found else ""
            page = await client.list_logs(namespace, start_after=last)
            found += page.get("logs", [])
            if not page.get("has_more") or not page.get("logs"):
                break
        return found

    logs = call_proxy(target, collect)
    if json:
        print_json({"namespace": namespace, "logs": logs})
    else:
        for entry in logs:
            print(f"{namespace}/{_name_of(entry)}")
    return ExitCode.OK


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
            {**row, "lost": _spell_lost(row.get("lost") or ())}
            for row in answer.get("segments", [])
            if isinstance(row, dict)
        ]
        _print_table(_SEGMENT_COLUMNS, rows)
    return ExitCode.OK


def maintenance(
    state: Literal["on", "off"], /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Suspend rolling and ensemble changes everywhere (on) for work on ZooKeeper, or resume (off).

    Meanwhile appends need nothing of ZooKeeper. --url is a write proxy's admin port.

    Exit codes: 0 every sequencer obeys; 1 refused or failed, or not all of them; 2 usage.
    """
    target = find_url(url, data, "admin_url")
    answer = call_proxy(target, lambda client: client.suspend_rolling(is_suspended=state == "on"))
    if json:
        print_json(answer)
    else:
        print(f"rolling is {'suspended' if answer.get('rolling_suspended') else 'resumed'}")
        for name, count in sorted(answer.get("under_way", {}).items()):
            said = "does not answer" if count is None else f"{count} logs are being changed"
            print(f"  {name}: {said}")
    return ExitCode.OK if answer.get("is_settled") else ExitCode.FAILED


def _parse_config(text: str) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"--config is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError("--config is no JSON object")
    return document


def call_proxy(url: str, use: Callable[[RestClient], Awaitable[Any]]) -> Any:
    """What `use` makes of a client of that proxy."""

    async def run() -> Any:
        client = RestClient(url)
        try:
            return await use(client)
        finally:
            await client.close()

    return run_async(run())


def _name_of(entry: Any) -> str:
    """A list holds names, or objects that carry theirs."""
    if isinstance(entry, dict):
        return str(entry.get("name", ""))
    return str(entry)


def _print_object(value: dict[str, Any], *, is_json: bool) -> None:
    if is_json:
        print_json(value)
    else:
        print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _spell_lost(ranges: Sequence[Sequence[int]]) -> str | None:
    """Entries whose loss a person has accepted."""
    return ", ".join(f"{first}-{last}" for first, last in ranges) or None


def _print_table(columns: Sequence[str], rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(_spell_cell(row.get(column)) for column in columns))
    Console().print(table)


def _spell_cell(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else orjson.dumps(value).decode()
