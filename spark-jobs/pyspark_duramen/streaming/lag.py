"""How far a streaming query is behind, out of the progress that Spark reports.

PySpark's Python sources cannot add metrics of their own to a query's progress; what they can is to
report the latest offset beside the one that was reached. This subtracts the two.
Public: `pyspark_duramen.find_lag`, for listeners and notebooks. Source: docs/spark.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark_duramen.streaming.offsets import Offsets, read_offsets


def find_lag(progress: Any) -> dict[str, int]:
    """Records of each log that were there and not read yet, as of a query's progress.

    Args:
        progress: `query.lastProgress` or `event.progress` of a listener; None gives nothing.
    """
    lags: dict[str, int] = {}
    for source in _list_sources(progress):
        reached, latest = _read(_get(source, "endOffset")), _read(_get(source, "latestOffset"))
        for log, offset in latest.items():
            before = reached.get(log)
            is_same = before is not None and before.log_id == offset.log_id
            begin = before.seq if before is not None and is_same else offset.first
            lags["/".join(log)] = max(0, offset.seq - begin)
    return lags


def _list_sources(progress: Any) -> list[Any]:
    return list(_get(progress, "sources") or ()) if progress is not None else []


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _read(offset: Any) -> Offsets:
    """Offsets of another kind of source are none."""
    try:
        document = json.loads(offset) if isinstance(offset, str) else offset
        return read_offsets(document) if isinstance(document, Mapping) else {}
    except ValueError:
        return {}
