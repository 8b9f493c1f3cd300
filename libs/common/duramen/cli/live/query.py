"""One SQL statement over tables of live state, in an SQLite database in memory.

Read-only by construction: the database holds copies, and an authorizer lets SQLite read, compute
and recurse and nothing else (no ATTACH, no PRAGMA, no writing). The statement is compiled once over
empty tables, and its program tells which of them it opens; only those are loaded. Running time,
values and rows are bounded, so that a slip in a statement costs an error.

Called by `live.sql`. Source: docs/cli.md "sql".
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from duramen.cli.live.tables import TABLES, Row, SqlTable
from duramen.units import MIB

TABLE_ROWS_MAX: Final = 1_000_000
"""Some 300 MB of segments; more is asked for by --namespace."""

_VALUE_BYTES_MAX: Final = 1 * MIB
_STEPS: Final = 100_000
"""Instructions of SQLite between two looks at the clock: a few ms."""

_ROOT_PAGE: Final = 3
"""Column p2 of EXPLAIN: of OpenRead the page where the table begins."""

_ALLOWED: Final = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)


class QueryError(Exception):
    """The statement cannot be run; the text says why and what there is."""


class Database:
    """The tables, empty until `load`.

    Args:
        timeout_s: how long a statement may run.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline_s = 0.0
        self._db = sqlite3.connect(":memory:")
        for table in TABLES.values():
            columns = ", ".join(f"{column.name} {column.kind}" for column in table.columns)
            self._db.execute(f"CREATE TABLE {table.name} ({columns})")
        roots = self._db.execute("SELECT rootpage, name FROM sqlite_schema").fetchall()
        self._roots: dict[int, str] = dict(roots)
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES_MAX)
        self._db.set_progress_handler(self._is_late, _STEPS)

    def tables_of(self, statement: str) -> list[SqlTable]:
        """Which tables a statement reads.

        Raises:
            QueryError: it is no SELECT, or names what there is not.
        """
        try:
            program = self._run(f"EXPLAIN {statement}").fetchall()
        except QueryError as error:
            raise QueryError(f"{error}{_explain(str(error), statement)}") from None
        # Not the authorizer: it is not asked for the columns of a USING.
        opened = {self._roots.get(row[_ROOT_PAGE]) for row in program if row[1] == "OpenRead"}
        return [table for name, table in TABLES.items() if name in opened]

    def load(self, rows: Mapping[str, list[Row]]) -> None:
        """Fill tables, by name.

        Raises:
            QueryError: a table has too many rows.
        """
        self._db.set_authorizer(None)
        for name, found in rows.items():
            if len(found) > TABLE_ROWS_MAX:
                raise QueryError(
                    f"{name} has more than {TABLE_ROWS_MAX:,} rows: narrow it with --namespace"
                )
            marks = ", ".join("?" * len(TABLES[name].columns))
            self._db.executemany(f"INSERT INTO {name} VALUES ({marks})", found)

    def select(self, statement: str) -> tuple[list[str], Iterator[Row]]:
        """Names of the columns, and the rows as they are found.

        Raises:
            QueryError: also while rows are taken: it runs for too long, or a value is too large.
        """
        cursor = self._run(statement)
        names = [column[0] for column in cursor.description or ()]
        return names, self._take(cursor)

    def _run(self, statement: str) -> sqlite3.Cursor:
        self._db.set_authorizer(self._authorize)
        self._deadline_s = time.monotonic() + self._timeout_s
        try:
            return self._db.execute(statement)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise QueryError(self._format(error)) from None

    def _take(self, cursor: sqlite3.Cursor) -> Iterator[Row]:
        try:
            yield from cursor
        except sqlite3.Error as error:
            raise QueryError(self._format(error)) from None

    def _format(self, error: Exception) -> str:
        text = str(error)
        if text == "interrupted":
            return f"the statement ran for longer than {self._timeout_s:g} s"
        if text == "not authorized":
            return "only SELECT is allowed, and nothing is changed by it"
        return text

    @staticmethod
    def _authorize(action: int, *_: Any) -> int:
        return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline_s


def _explain(text: str, statement: str) -> str:
    """What there is instead of a name that there is not."""
    if text.startswith("no such table"):
        return f"; there are {', '.join(TABLES)}"
    if text.startswith("no such column"):
        words = set(re.findall(r"\w+", statement.lower()))
        lists = [
            f"{table.name} has {', '.join(column.name for column in table.columns)}"
            for table in TABLES.values()
            if table.name in words
        ]
        return f"; {'; '.join(lists)}" if lists else ""
    return ""
