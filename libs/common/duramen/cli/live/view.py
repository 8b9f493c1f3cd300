"""What `duramen top` shows, from one sample of the admin port's answers. Pure.

A sample holds the answer of each source, or why there is none: one source that fails leaves the
others shown, and says so in its place. `summarize` gives the numbers (those of `--json`), `render`
the lines, within the terminal's size.

Called by `live.top`. Source: docs/cli.md "top".
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from duramen.cli.command import format_cell
from duramen.cli.shell.tables import lay_out
from duramen.units import GIB, agree, format_size

Answers = Mapping[str, Mapping[str, Any] | str]
"""Source → its answer, or a sentence why there is none."""

LOGS_SHOWN_MAX: Final = 20
_SOURCES: Final = ("owners", "bookies", "journals", "repair")

_LOG_COLUMNS: Final = (
    "log", "sequencer", "epoch", "state", "appends_per_s", "mb_per_s", "waiting",
)  # fmt: skip
_BOOKIE_COLUMNS: Final = (
    "bookie", "region", "rack", "state", "duty", "free", "queue", "sync_ms", "new_data",
)  # fmt: skip
_DROPPED_FIRST: Final = (
    "epoch", "waiting", "rack", "weight", "new_data", "region", "duty", "mb_per_s", "sync_ms",
    "queue", "state", "appends_per_s", "free",
)  # fmt: skip
"""What a narrow terminal can do without, of all tables; names of things are not among it."""

_SEQUENCER_COLUMNS: Final = ("sequencer", "weight", "logs", "appends_per_s", "mb_per_s")


def summarize(answers: Answers) -> dict[str, Any]:
    """The numbers of one moment, as `--json` prints them; what is not known is null."""
    owners, bookies = _known(answers, "owners"), _known(answers, "bookies")
    logs = sorted(owners.get("logs", ()), key=_load_of, reverse=True)
    repair = _known(answers, "repair")
    return {
        "appends_per_s": round(sum(log["appends_per_s"] for log in logs), 1) if owners else None,
        "bytes_per_s": sum(log["bytes_per_s"] for log in logs) if owners else None,
        "logs_owned": len(logs) if owners else None,
        "logs": [_encode_log(log) for log in logs[:LOGS_SHOWN_MAX]],
        "hot_logs": [_encode_hot(log) for log in logs if log.get("hot") is not None],
        "sequencers": _sum_by_sequencer(owners),
        "bookies": _join_bookies(bookies, _known(answers, "journals")),
        "repair": _encode_repair(repair) if repair else None,
        "unknown": {name: why for name in _SOURCES if isinstance(why := answers.get(name), str)},
    }


def render(summary: Mapping[str, Any], *, columns: int | None, lines: int | None) -> list[str]:
    """The lines for people, within that size; None: no bound.

    In a narrow terminal sentences wrap and tables lose columns, the least important first; no name
    is cut. What does not fit below each other is left out at the end.
    """
    shown = [*_wrap(_format_head(summary), columns), ""]
    for names, rows in (
        (_SEQUENCER_COLUMNS, summary["sequencers"]),
        (_BOOKIE_COLUMNS, summary["bookies"]),
        (_LOG_COLUMNS, summary["logs"]),
    ):
        if rows:
            cells = [[format_cell(row[name]) for name in names] for row in rows]
            titles = [name.upper() for name in names]
            droppable = [title for title in map(str.upper, _DROPPED_FIRST) if title in titles]
            shown += [*lay_out(titles, cells, columns, droppable).lines, ""]
    shown += _wrap(
        [f"{name} not known: {why}" for name, why in summary["unknown"].items()], columns
    )
    while not shown[-1]:
        shown.pop()
    return shown if columns is None or lines is None else _fill_screen(shown, columns, lines)


def _wrap(sentences: Sequence[str], columns: int | None) -> list[str]:
    if columns is None:
        return list(sentences)
    pieces = [
        textwrap.wrap(one, columns, break_long_words=False, break_on_hyphens=False)
        for one in sentences
    ]
    return [line for lines in pieces for line in lines]


def _fill_screen(shown: Sequence[str], columns: int, lines: int) -> list[str]:
    """As many as the screen has room for: what is longer than a line takes several there."""
    taken = itertools.accumulate(max(1, math.ceil(len(line) / columns)) for line in shown)
    return [line for line, count in zip(shown, taken, strict=True) if count <= lines]


def _known(answers: Answers, name: str) -> Mapping[str, Any]:
    answer = answers.get(name, {})
    return {} if isinstance(answer, str) else answer


def _load_of(log: Mapping[str, Any]) -> tuple[float, float]:
    return float(log["bytes_per_s"]), float(log["appends_per_s"])


def _encode_log(log: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "log": log.get("name") or f"id {log['log_id']}",
        "sequencer": log["sequencer"],
        "epoch": log.get("epoch"),
        "state": log.get("state"),
        "appends_per_s": round(log["appends_per_s"], 1),
        "mb_per_s": round(log["bytes_per_s"] / 1e6, 3),
        "waiting": log.get("unanswered_count"),
    }


def _encode_hot(log: Mapping[str, Any]) -> dict[str, Any]:
    name = log.get("name") or f"id {log['log_id']}"
    return {"log": name, "sequencer": log["sequencer"], "reason": log["hot"]}


def _sum_by_sequencer(owners: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    silent = set(owners.get("silent", ()))
    for sequencer in owners.get("sequencers", ()):
        logs = [log for log in owners["logs"] if log["sequencer"] == sequencer["id"]]
        is_silent = sequencer["id"] in silent
        rows.append(
            {
                "sequencer": sequencer["id"],
                "weight": sequencer["weight"],
                "logs": None if is_silent else len(logs),
                "appends_per_s": round(sum(log["appends_per_s"] for log in logs), 1),
                "mb_per_s": round(sum(log["bytes_per_s"] for log in logs) / 1e6, 3),
            }
        )
    return rows


def _join_bookies(bookies: Mapping[str, Any], journals: Mapping[str, Any]) -> list[dict[str, Any]]:
    by_id = {journal["bookie"]: journal for journal in journals.get("journals", ())}
    rows = []
    for row in bookies.get("bookies", ()):
        free, journal = row["free_bytes"], by_id.get(row["id"], {})
        waiting, sync_us = journal.get("waiting_bytes"), journal.get("sync_us_last")
        rows.append(
            {
                "bookie": row["id"],
                "region": row["region"],
                "rack": row["rack"],
                "state": row["state"],
                "duty": row["duty"],
                "free_bytes": free,
                "free": None if free is None else f"{free / GIB:,.1f}GiB",
                "queue_bytes": waiting,
                "queue": None if waiting is None else format_size(waiting),
                "sync_ms": None if sync_us is None else round(sync_us / 1000, 1),
                "new_data": "yes" if row["takes_new_data"] else "no",
            }
        )
    return rows


def _encode_repair(answer: Mapping[str, Any]) -> dict[str, Any]:
    backlog = answer["backlog"]
    return {
        "auditor": answer["auditor"],
        "fragments": backlog["tasks"],
        "left_bytes": backlog["left_bytes"],
        "running": backlog["running"],
        "bytes_per_s": answer["bytes_per_s"],
        "estimate_s": answer["estimate_s"],
        "unrepairable": len(answer["unrepairable"]),
        "drains": [f"{drain['bookie']} {drain['duty']}" for drain in answer["drains"]],
    }


def _format_head(summary: Mapping[str, Any]) -> Sequence[str]:
    bookies, repair = summary["bookies"], summary["repair"]
    up = sum(row["new_data"] == "yes" for row in bookies)
    lines = [f"{len(bookies)} bookies, {up} take new data; {len(summary['sequencers'])} sequencers"]
    if summary["logs_owned"] is not None:
        lines.append(
            f"{summary['logs_owned']:,} logs open: {summary['appends_per_s']:,.1f} appends/s, "
            f"{summary['bytes_per_s'] / 1e6:,.3f} MB/s"
        )
    lines += [
        f"too hot for its owner: {hot['log']} at {hot['sequencer']} ({hot['reason']})"
        for hot in summary["hot_logs"]
    ]
    if repair is not None:
        estimate = repair["estimate_s"]
        lines.append(
            f"repair: {repair['fragments']:,} fragments to do, "
            f"{repair['left_bytes'] / 1e6:,.1f} MB at {repair['bytes_per_s'] / 1e6:,.1f} MB/s"
            + (f", {estimate:,} s left" if estimate else "")
            + (f"; {repair['unrepairable']} cannot be repaired" if repair["unrepairable"] else "")
        )
        lines += [f"drain: {drain}" for drain in repair["drains"]]
    return list(map(agree, lines))
