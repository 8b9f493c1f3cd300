"""`duramen log truncate|end|delete|undelete`: how records, streams and logs come to their end.

Thin over the REST interface: what the server answers is what `--json` prints. A truncation takes
positions that the log's owner can resolve; those by txid and time are resolved here, by a read of
the one record that they name.

Registered by `cli.main`. Source: docs/cli.md, docs/protocol/rest.md "Texts".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from duramen.cli.arguments import DataOption, JsonOption, LogText, UrlOption
from duramen.cli.command import DATA_DEFAULT, ExitCode, find_url, parse_argument, print_json
from duramen.cli.logs import call_proxy
from duramen.client.rest_client import RestClient
from duramen.texts import PositionKind, parse_log, parse_position

Answer = dict[str, Any]

_READ_FIRST = (PositionKind.TXID, PositionKind.TIME, PositionKind.AGO)


def truncate(
    log: LogText,
    /,
    *,
    to: Annotated[str, Parameter(help="the first record to keep: seq:N, tail-N, ago:1h, …")],
    url: UrlOption = None,
    read_url: Annotated[
        str | None, Parameter(help="the read proxy's URL, where --to names a txid or a time")
    ] = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Truncate a log: the records before --to are gone for good, for every reader.

    Exit codes: 0 truncated, or it was before; 1 refused or failed (safe to repeat); 2 usage.
    """
    namespace, name = parse_argument(parse_log, log)
    if parse_argument(parse_position, to).kind in _READ_FIRST:
        source = find_url(read_url, data, "read_url")
        to = f"seq:{call_proxy(source, lambda client: client.locate(namespace, name, to))}"

    def report(answer: Answer) -> str:
        said = "begins now" if answer.get("changed") else "began before"
        head = answer.get("head", {})
        return f"{said} at seq:{head.get('seq_num')} ({head.get('dlsn')})"

    def ask(client: RestClient, namespace: str, name: str) -> Awaitable[Answer]:
        return client.truncate_log(namespace, name, to)

    return _carry_out(log, url, data, ask, report, is_json=json)


def end(
    log: LogText, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """End a log's stream: appends are refused from now on, records stay readable.

    Exit codes: 0 ended, or it was before; 1 refused or failed (safe to repeat); 2 usage.
    """

    def report(answer: Answer) -> str:
        return f"ended at seq:{answer.get('tail', {}).get('seq_num')}"

    return _carry_out(log, url, data, RestClient.end_log, report, is_json=json)


def delete(
    log: LogText, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Delete a log. For an hour `undelete` brings it back, unless its name is created anew.

    Exit codes: 0 deleted, or it was before; 1 refused or failed (safe to repeat); 2 usage.
    """

    def report(answer: Answer) -> str:
        return f"deleted; it can be had back until {answer.get('undelete_until')}"

    return _carry_out(log, url, data, RestClient.delete_log, report, is_json=json)


def undelete(
    log: LogText, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Have a deleted log back, as it was.

    Exit codes: 0 there again, or never deleted; 1 refused or failed (safe to repeat); 2 usage.
    """

    def report(answer: Answer) -> str:
        return f"is there (log id {answer.get('log_id')})"

    return _carry_out(log, url, data, RestClient.undelete_log, report, is_json=json)


def _carry_out(
    log: str,
    url: str | None,
    data: Path,
    ask: Callable[[RestClient, str, str], Awaitable[Answer]],
    report: Callable[[Answer], str],
    *,
    is_json: bool,
) -> int:
    """Ask the write proxy about one log, print what it answered, for a program or a person."""
    namespace, name = parse_argument(parse_log, log)
    target = find_url(url, data, "write_url")
    answer = call_proxy(target, lambda client: ask(client, namespace, name))
    if is_json:
        print_json(answer)
    else:
        print(f"{log}: {report(answer)}")
    return ExitCode.OK
