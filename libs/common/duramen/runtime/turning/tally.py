"""What a process with `--security migrate` would refuse, counted, and who it would have been.

A row for each port, caller, verb and reason. Whoever calls from ever other addresses pushes others
out of the table, so it tells how many rows it forgot; the counter forgets nothing. No token and no
header is ever put here.

Fed by the doors of all ports, by `security` and by `http_client`.
Source: docs/protocol/turning-on.md "What is judged, and only counted".
"""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from typing import Final, Literal, NamedTuple

from prometheus_client import Counter
from pydantic import BaseModel

ROW_COUNT_MAX: Final = 512
TEXT_CHARACTERS_MAX: Final = 400

_WOULD_REFUSE: Final = Counter(
    "duramen_would_refuse", "Calls that would be refused with --security on", ["verb"]
)

Port = Literal["data", "admin", "public", "peer"]
"""`peer`: of another node, which this process called."""


class WouldBeRefused(NamedTuple):
    """One finding.

    `verb`: at a data port, its path; `connect`: no way by TLS. `who`: a principal, an identity, or,
    of nobody, the address that called. `why`: one of a few words; `detail` says more.
    """

    port: Port
    who: str
    verb: str
    why: str
    detail: str = ""
    target: str = ""


class WouldRefuseRow(BaseModel):
    """Findings of one kind; `detail`, `target` and `last` are of the last one."""

    port: Port
    who: str
    verb: str
    why: str
    count: int
    detail: str
    target: str
    last: dt.datetime


class WouldRefuseAnswer(BaseModel):
    """What a process would have refused since it started, the last one first.

    `rows`: null: it refuses, or asks nobody. `forgotten`: rows for which there was no room.
    """

    security: str
    rows: list[WouldRefuseRow] | None
    forgotten: int


class RefusalTally:
    """The findings of one process."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str, str, str], WouldRefuseRow] = OrderedDict()
        self._count = 0
        self._forgotten_count = 0

    def note(self, found: WouldBeRefused) -> None:
        """Count one."""
        self._count += 1
        _WOULD_REFUSE.labels(found.verb).inc()
        cut = WouldBeRefused(found.port, *(text[:TEXT_CHARACTERS_MAX] for text in found[1:]))
        key = cut[:4]
        before = self._rows.pop(key, None)
        count = 1 if before is None else before.count + 1
        now = dt.datetime.now(dt.UTC)
        self._rows[key] = WouldRefuseRow(**cut._asdict(), count=count, last=now)
        if len(self._rows) > ROW_COUNT_MAX:
            self._rows.popitem(last=False)
            self._forgotten_count += 1

    def describe(self, security: str) -> WouldRefuseAnswer:
        """All rows, the last one first."""
        rows = [*reversed(self._rows.values())]
        return WouldRefuseAnswer(security=security, rows=rows, forgotten=self._forgotten_count)

    def statistics(self) -> dict[str, int]:
        """Findings, and the rows of the table."""
        return {
            "found": self._count,
            "rows": len(self._rows),
            "rows_max": ROW_COUNT_MAX,
            "forgotten": self._forgotten_count,
        }
