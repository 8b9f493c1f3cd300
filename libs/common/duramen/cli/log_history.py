"""`duramen log epochs`: the history of a log's epochs, also of those that were given up.

Thin over REST. Called by `cli.main`. Source: docs/cli.md, docs/protocol/metadata-logs.md "History".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duramen.cli.arguments import DataOption, JsonOption, LogText, UrlOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    find_url,
    parse_argument,
    print_json,
    show_rows,
)
from duramen.cli.logs import call_proxy
from duramen.texts import parse_log

_COLUMNS = (
    "epoch", "state", "metadata", "start_seq_num", "records", "bytes", "config_version", "created",
    "completed", "changed",
)  # fmt: skip


def epochs(
    log: LogText, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Tell the history of a log: its epochs, and what each was configured with.

    An epoch that was given up is told until its log's metadata log is rewritten. What was opened
    less than a minute ago may have no configuration yet. With --json also every configuration.

    Exit codes: 0 told; 1 refused or failed; 2 usage.
    """
    name = parse_argument(parse_log, log)
    target = find_url(url, data, "read_url")
    answer = call_proxy(target, lambda client: client.list_epochs(*name))
    if json:
        print_json(answer)
        return ExitCode.OK
    rows: list[dict[str, Any]] = []
    before: Mapping[str, Any] | None = None
    for row in answer["epochs"]:
        config = answer["configs"].get(str(row["config_version"]))
        segment = row["segment"] or {"state": "unreadable"}
        rows.append({**segment, **row, "changed": _format_changes(before, config)})
        before = config or before
    droppable = ("created", "completed")
    show_rows({"epochs": rows}, "epochs", _COLUMNS, is_json=False, droppable=droppable)
    return ExitCode.OK


def _format_changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """The fields of a configuration that are not what they were in the epoch before."""
    if before is None or after is None:
        return ""
    return ", ".join(name for name in sorted(after) if after[name] != before.get(name))
