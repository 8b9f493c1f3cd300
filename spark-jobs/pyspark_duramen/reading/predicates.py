"""Filters that Spark pushes down: what they say about where to read, and which rows they keep.

A filter that is taken is applied to every row here, so Spark need not do it again; besides, those
on the log's name, `seq_num` and `txid` and lower bounds on time narrow what is read at all. Txids
never fall within a log, so both bounds on them do; times may, so an upper bound does not: a record
behind the first later one can still be earlier.

Pure. Called by `reading.reader`. Source: docs/spark.md.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from duramen.texts import LAST_TIME_MS
from pyspark_duramen.table import ARROW_TYPES

_INTS: Final = ("seq_num", "txid", "timestamp_ms", "epoch", "entry", "slot")
_TAKEN: Final = (*_INTS, "namespace", "log", "timestamp")
"""Columns whose filters are applied here: those that cost nothing to compare."""

_COMPARE: Final[dict[type[Filter], tuple[Callable[..., Any], Callable[[Any, Any], bool]]]] = {
    EqualTo: (pc.equal, operator.eq),
    EqualNullSafe: (pc.equal, operator.eq),
    GreaterThan: (pc.greater, operator.gt),
    GreaterThanOrEqual: (pc.greater_equal, operator.ge),
    LessThan: (pc.less, operator.lt),
    LessThanOrEqual: (pc.less_equal, operator.le),
}
LAST_NUMBER: Final = (1 << 63) - 1
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class PushedFilter(NamedTuple):
    """A filter that was taken; `values` is empty where only null is asked about."""

    kind: type[Filter]
    column: str
    values: tuple[Any, ...]

    def holds(self, name: str) -> bool:
        """Whether it holds for a text that is not null."""
        if not self.values:
            return self.kind is IsNotNull
        if self.kind is In:
            return name in self.values
        return _COMPARE[self.kind][1](name, self.values[0])

    def mask(self, column: pa.Array) -> pa.Array:
        """Where it holds; null counts as no."""
        if not self.values:
            return pc.is_null(column) if self.kind is IsNull else pc.is_valid(column)
        # Integers are compared as int64: what does not fit in a column is no mistake of who asks.
        kind = pa.int64() if self.column in _INTS else ARROW_TYPES[self.column]
        if self.kind is In:
            return pc.is_in(column.cast(kind), value_set=pa.array(list(self.values), kind))
        return _COMPARE[self.kind][0](column, pa.scalar(self.values[0], kind))

    def bounds(self) -> tuple[int, int]:
        """The least value, and one past the greatest, for which it holds; not too narrow."""
        if not self.values:
            return 0, LAST_NUMBER
        # Times of microseconds are rounded down to milliseconds, hence one more above.
        numbers = [_number_of(value) for value in self.values]
        low, high = min(numbers), max(numbers) + 1
        if self.kind in (GreaterThan, GreaterThanOrEqual):
            return low, LAST_NUMBER
        if self.kind in (LessThan, LessThanOrEqual):
            return 0, high
        return low, high


class Predicates:
    """The filters that were taken: a row is kept if all of them hold."""

    def __init__(self, conditions: Sequence[PushedFilter] = ()) -> None:
        self._conditions = tuple(conditions)

    def __repr__(self) -> str:
        return f"<Predicates {list(self._conditions)}>"

    def has_log(self, log: tuple[str, str]) -> bool:
        """Whether rows of a log can be kept."""
        names = {"namespace": log[0], "log": log[1]}
        return all(
            each.holds(names[each.column]) for each in self._conditions if each.column in names
        )

    def find_bounds(self, *columns: str) -> tuple[int, int]:
        """The least value, and one past the greatest, that kept rows have in integer columns."""
        low, high = 0, LAST_NUMBER
        for each in self._conditions:
            if each.column in columns:
                found = each.bounds()
                low, high = max(low, found[0]), min(high, found[1])
        return low, high

    def list_starts(self) -> list[str]:
        """Positions before which no row is kept."""
        starts = []
        txid = self.find_bounds("txid")[0]
        if txid > 0:
            starts.append(f"txid:{txid}")
        time_ms = self.find_bounds("timestamp", "timestamp_ms")[0]
        if time_ms > 0:
            starts.append(f"time:{min(time_ms, LAST_TIME_MS)}")
        return starts

    def find_end(self) -> str | None:
        """The position from which on no row is kept; None: there is none."""
        txid = self.find_bounds("txid")[1]
        return None if txid == LAST_NUMBER else f"txid:{max(txid, 0)}"

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows for which every filter holds."""
        mask = None
        for each in self._conditions:
            found = each.mask(rows.column(each.column))
            mask = found if mask is None else pc.and_kleene(mask, found)
        return rows if mask is None else rows.filter(mask)


def split_filters(
    filters: Iterable[Filter], columns: Iterable[str]
) -> tuple[Predicates, list[Filter]]:
    """The filters that are taken, and those that Spark has to apply.

    Args:
        columns: those of the query.
    """
    known = set(columns)
    taken: list[PushedFilter] = []
    left: list[Filter] = []
    for each in filters:
        condition = _read(each)
        if condition is not None and condition.column in known:
            taken.append(condition)
        else:
            left.append(each)
    return Predicates(taken), left


def _read(each: Filter) -> PushedFilter | None:
    """The condition that a filter is; None: Spark has to apply it."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    if len(path) != 1 or path[0] not in _TAKEN:
        return None
    kind = type(each)
    if isinstance(each, IsNull | IsNotNull):
        return PushedFilter(kind, path[0], ())
    if kind not in _COMPARE and kind is not In:
        return None
    value: Any = getattr(each, "value", None)
    values = tuple(map(_with_zone, value if kind is In else (value,)))
    if not values or not all(_is_comparable(path[0], item) for item in values):
        return None
    return PushedFilter(kind, path[0], values)


def _is_comparable(column: str, value: object) -> bool:
    if column in _INTS:
        return type(value) is int and abs(value) < LAST_NUMBER
    if column == "timestamp":
        return isinstance(value, datetime.datetime)
    return isinstance(value, str)


def _with_zone(value: Any) -> Any:
    """Spark gives a timestamp without a zone as UTC."""
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)
    return value


def _number_of(value: Any) -> int:
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // datetime.timedelta(milliseconds=1)
    return int(value)
