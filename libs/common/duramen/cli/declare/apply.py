"""`duramen apply -f FILE`: make namespaces and logs be as files say, or with `--dry-run` show how.

First all files are read, then what is there, then the plan is made; only when every document of it
can become true is anything written, in the order of the plan. Doing it again does nothing. A log
that somebody else changes meanwhile is refused (`config_conflict`), not overwritten. What stands in
no file is left alone.

Called by `cli.main`. Source: docs/cli.md "apply".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from duramen.cli.arguments import DataOption, JsonOption, UrlOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    check_standard_input,
    find_url,
    print_json,
    say,
)
from duramen.cli.declare.documents import FILE_BYTES_MAX, DocumentsError, read_documents
from duramen.cli.declare.plan import format_value
from duramen.cli.declare.steps import carry_out, plan_steps
from duramen.cli.logs import call_proxy
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError


def apply(
    *,
    file: Annotated[
        list[str],
        Parameter(name=["--file", "-f"], allow_leading_hyphen=True, help="YAML or JSON, - for "
                  "standard input; may be repeated"),
    ],
    dry_run: Annotated[bool, Parameter(negative="", help="show the plan, change nothing")] = False,
    url: UrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Make namespaces and logs be as files say. What they do not name is left as it is.

    A document is `kind: Namespace` or `kind: Log`, a `name` and a `config`. Everything is checked
    before anything is written.

    Exit codes: 0 done, or with --dry-run shown; 1 refused or failed (safe to repeat); 2 usage, or
    a document cannot become true (nothing was written).
    """
    check_standard_input(*file)
    try:
        wanted = read_documents({name: _read_file(name) for name in file})
        target = find_url(url, data, "write_url")
        steps = call_proxy(target, lambda client: plan_steps(client, wanted))
    except DocumentsError as error:
        for fault in error.faults:
            say(f"duramen apply: {fault}")
        say("duramen apply: nothing was written")
        return ExitCode.USAGE
    failure = None
    done = [step for step in steps if step.action == "same"]
    try:
        if not dry_run:
            call_proxy(target, lambda client: carry_out(client, steps, done))
    except (DuramenError, PeerError) as error:
        failure = error
    if json:
        rows = [step.to_json() | {"done": step in done} for step in steps]
        print_json({"dry_run": dry_run, "steps": rows})
    else:
        for step in steps:
            undone = "" if dry_run or step in done else "  (not done)"
            print(f"{step.action:7} {step.wanted}{undone}")
            for change in step.changes:
                old = f"{format_value(change.old)} → " if step.action == "change" else ""
                print(f"          {change.field}: {old}{format_value(change.new)}")
    if failure is not None:
        raise failure
    return ExitCode.OK


def _read_file(name: str) -> bytes:
    """A file, or standard input; a byte more than it may have, so that too much is seen."""
    if name == "-":
        return sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
    with Path(name).open("rb") as opened:
        return opened.read(FILE_BYTES_MAX + 1)
