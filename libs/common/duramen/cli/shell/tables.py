"""Tables that fit, and cut nothing: columns of texts, or a block for each row.

Names, addresses and numbers are for copying, so none is ever shortened or broken over two lines.
Where the columns do not fit side by side, those with sentences wrap at their spaces; then those
that the caller can do without are left out, one after the other; where that does not do either,
each row becomes a block with a line for each column. A pipe has no width: each row is one whole
line there. Nothing is printed here.

Called by `cli.command` and by what shows a cluster. Source: docs/cli.md "Tables".
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

GAP: Final = "  "
WRAPPED_COLUMNS_MIN: Final = 12
"""A sentence in a narrower column cannot be read any more."""

Cells = Sequence[str]


class Table(NamedTuple):
    """What is to be shown, and the columns that were left out of it."""

    lines: list[str]
    left_out: tuple[str, ...] = ()


def lay_out(
    columns: Cells, rows: Sequence[Cells], width: int | None, droppable: Cells = ()
) -> Table:
    """The lines of a table.

    Args:
        columns: the header, one text for each column.
        rows: as many texts each.
        width: characters of a line; None: no bound.
        droppable: columns that may be left out, the first one first.
    """
    for count in range(len(droppable) + 1):
        left_out = tuple(droppable[:count])
        kept = [index for index, name in enumerate(columns) if name not in left_out]
        lines = _fit([[row[index] for index in kept] for row in (columns, *rows)], width)
        if lines is not None:
            return Table(lines, left_out)
    return Table(_format_blocks(columns, rows))


def align(rows: Sequence[Cells]) -> list[str]:
    """Lines in which the cells of a column begin at one place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_join(row, widths) for row in rows]


def _fit(table: Sequence[Cells], width: int | None) -> list[str] | None:
    """The columns side by side; None where they do not fit."""
    whole = [max(map(len, column)) for column in zip(*table, strict=True)]
    if width is None or _sum(whole) <= width:
        return align(table)
    widths = _shrink(table, whole, width)
    return None if widths is None else [line for row in table for line in _wrap(row, widths)]


def _sum(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _join(cells: Iterable[str], widths: Sequence[int]) -> str:
    return GAP.join(map(str.ljust, cells, widths)).rstrip()


def _shrink(table: Sequence[Cells], whole: Sequence[int], width: int) -> list[int] | None:
    """The widths of the columns once those with sentences gave way; None if that is not enough."""
    widths = list(whole)
    for index, column in sorted(
        enumerate(zip(*table, strict=True)), key=lambda pair: whole[pair[0]], reverse=True
    ):
        if not any(" " in cell for cell in column):
            continue
        words = [word for cell in column for word in cell.split()]
        least = max([WRAPPED_COLUMNS_MIN, *map(len, words)])
        excess = _sum(widths) - width
        widths[index] = min(widths[index], max(least, widths[index] - excess))
    return widths if _sum(widths) <= width else None


def _wrap(row: Cells, widths: Sequence[int]) -> list[str]:
    pieces = [
        textwrap.wrap(cell, size, break_long_words=False, break_on_hyphens=False) or [""]
        for cell, size in zip(row, widths, strict=True)
    ]
    return [_join(line, widths) for line in zip_longest(*pieces, fillvalue="")]


def _format_blocks(columns: Cells, rows: Sequence[Cells]) -> list[str]:
    lines = []
    for row in rows:
        lines += [*align(list(zip(columns, row, strict=True))), ""]
    return lines[:-1]
