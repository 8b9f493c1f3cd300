"""`duramen sql "select … from segments"`: SQL over what the cluster is now.

Without a statement: which tables and columns there are. Only what the statement names is loaded
(`query`), in pages and with a bound on calls (`tables`). Rows go to standard output as a table for
people, as CSV, or as one JSON object a line; how many there were goes to stderr.

Called by `cli.main`. Source: docs/cli.md "sql".
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from duramen.cli.arguments import DataOption, JsonOption, UrlOption
from duramen.cli.command import (
    ADMIN_URL_VARIABLE,
    DATA_DEFAULT,
    ExitCode,
    ProxyKind,
    UsageError,
    find_url,
    format_cell,
    open_client,
    parse_argument,
    print_json,
    print_table,
    run_async,
    say,
)
from duramen.cli.live.query import Database, QueryError
from duramen.cli.live.tables import TABLES, Row, Sources, TooManyLogsError
from duramen.texts import check_namespace, parse_log
from duramen.units import agree

SHOWN_ROWS_MAX: Final = 10_000
"""Of a table for people: all of it is needed to know how wide the columns are."""

_LOGS_MAX_DEFAULT: Final = 2_000

Form = Literal["json", "csv", "table"]


def sql(
    statement: Annotated[
        str | None, Parameter(help="one SELECT of SQLite's; without it tables are listed")
    ] = None,
    /,
    *,
    csv: Annotated[bool, Parameter(negative="", help="comma-separated, with a header")] = False,
    namespace: Annotated[str | None, Parameter(help="load logs of this one only")] = None,
    log: Annotated[str | None, Parameter(help="load this log only, NAMESPACE/LOG")] = None,
    logs_max: Annotated[
        int, Parameter(help="logs to read segments of at most, a call for each")
    ] = _LOGS_MAX_DEFAULT,
    timeout: Annotated[float, Parameter(help="seconds that the statement may run")] = 30.0,
    url: UrlOption = None,
    read_url: Annotated[str | None, Parameter(help="the read proxy's URL (segments)")] = None,
    admin_url: Annotated[
        str | None,
        Parameter(help=f"a write proxy's admin URL (owners, …; else ${ADMIN_URL_VARIABLE})"),
    ] = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Ask in SQL what the cluster is now: logs, segments, owners, bookies, repairs.

    Tables are copies in memory, read when the command starts; nothing can be changed. `duramen sql`
    alone lists them. With --json each row is one line of JSON.

    Exit codes: 0 answered, also with no rows; 1 refused or failed; 2 usage, or no such statement.
    """
    if json and csv:
        raise UsageError("give one of --json and --csv")
    if statement is None:
        _show_tables(is_json=json)
        return ExitCode.OK
    name = None
    if log is not None:
        namespace, name = parse_argument(parse_log, log)
    elif namespace is not None:
        parse_argument(check_namespace, namespace)
    urls: dict[ProxyKind, str | None] = {
        "write_url": url,
        "read_url": read_url,
        "admin_url": admin_url,
    }
    sources = Sources(
        lambda kind: open_client(find_url(urls[kind], data, kind)),
        namespace=namespace,
        log=name,
        logs_max=logs_max,
    )
    return _answer(statement, sources, timeout, form="json" if json else "csv" if csv else "table")


def _answer(statement: str, sources: Sources, timeout_s: float, *, form: Form) -> int:
    """Load what the statement reads, run it, show its rows."""
    database = Database(timeout_s)
    try:
        tables = database.tables_of(statement)
    except QueryError as error:
        raise UsageError(str(error)) from None

    async def load() -> dict[str, list[Row]]:
        try:
            return {table.name: await table.load(sources) for table in tables}
        finally:
            await sources.close()

    try:
        database.load(run_async(load()))
        columns, rows = database.select(statement)
        _show(columns, rows, form=form)
    except (QueryError, TooManyLogsError) as error:
        say(f"duramen sql: {error}")
        return ExitCode.FAILED
    return ExitCode.OK


def _show_tables(*, is_json: bool) -> None:
    if is_json:
        for table in TABLES.values():
            columns = [column._asdict() for column in table.columns]
            print_json({"table": table.name, "what": table.what, "columns": columns})
        return
    for table in TABLES.values():
        print(f"{table.name}: {table.what}")
        for column in table.columns:
            print(f"    {column.name:18} {column.kind:8} {column.what}")


def _show(
    columns: list[str], rows: Iterator[Row], *, form: Literal["json", "csv", "table"]
) -> None:
    count = 0
    if form == "json":
        for row in rows:
            print_json(dict(zip(columns, map(_without_bytes, row), strict=True)))
            count += 1
    elif form == "csv":
        count = _write_csv(columns, rows)
    else:
        shown = [list(map(_format, row)) for row in itertools.islice(rows, SHOWN_ROWS_MAX)]
        count = len(shown)
        print_table(columns, shown)
        if next(rows, None) is not None:
            say(f"only the first {count:,} rows are shown: use --csv or --json for all of them")
    say(agree(f"{count:,} rows"))


def _without_bytes(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _format(value: Any) -> str:
    return format_cell(_without_bytes(value))


def _write_csv(columns: list[str], rows: Iterator[Row]) -> int:
    out = csv.writer(sys.stdout)
    out.writerow(columns)
    count = 0
    for row in rows:
        out.writerow(map(_without_bytes, row))
        count += 1
    sys.stdout.flush()
    return count
