"""Which segments a policy is about, and which of them wait for the archive.

The same rules as the archive job's own (docs/archive.md): a log whose tiering is `none` is chosen
only by its whole name, and small, young, open or truncated segments are left alone. A log that
requires cold copies is chosen whatever its tiering, and of it neither small nor truncated segments
are left alone. A segment that the job would not take must not be called waiting, or runs would be
started for nothing; and one that it would take must be, or it is held for ever.

Called by `plan`. Source: docs/archive.md.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from duramen.units import parse_size_bytes
from duramen_operator.plan.observed import EVERY_NAMESPACE, Json
from duramen_operator.plan.seen_logs import (
    SeenLog,
    completed_at,
    is_archived,
)
from duramen_operator.resources.archives import Selector

_WILDCARDS = frozenset("*?[")
_DIGEST_LENGTH = 10


@dataclass(frozen=True, slots=True)
class Waiting:
    """A segment without a cold copy that a run would take now, of the log `namespace/log`."""

    path: str
    log_id: str
    epoch: int
    completed: datetime


@dataclass(frozen=True, slots=True)
class LogSelection:
    """What a policy's selector comes to.

    Attributes:
        closed_count: closed segments of the chosen logs that readers are shown, and truncated ones
            that need a cold copy before they are given up.
        waiting: those that a run would archive now, the longest completed first.
        is_known: whether all of the chosen logs could be read.
        next_at: when the next segment is old enough; None: time alone changes nothing.
    """

    closed_count: int
    waiting: tuple[Waiting, ...]
    is_known: bool
    next_at: datetime | None

    def without(self, paths: frozenset[str]) -> "LogSelection":
        """The same, as if of these logs nothing waited."""
        return replace(self, waiting=tuple(one for one in self.waiting if one.path not in paths))

    @property
    def digest(self) -> str:
        """Names what waits: another set has another name, whoever looks at it."""
        spelt = ",".join(f"{one.log_id}/{one.epoch}" for one in self.waiting)
        return hashlib.sha256(spelt.encode()).hexdigest()[:_DIGEST_LENGTH]


NOTHING_KNOWN = LogSelection(0, (), is_known=False, next_at=None)


def choose(
    logs: Mapping[str, Json] | None,
    unlisted: frozenset[str],
    selector: Selector,
    keep_hot: timedelta,
    now: datetime,
) -> LogSelection:
    """The segments that a policy is about.

    Args:
        logs: of the admin view; None: the cluster was not asked, or did not answer.
        unlisted: of the admin view.
        keep_hot: only segments that were completed so long ago.
    """
    if logs is None:
        return NOTHING_KNOWN
    closed_count, found = 0, []
    is_known = not any(
        space == EVERY_NAMESPACE or fnmatchcase(space, selector.namespace) for space in unlisted
    )
    next_times = []
    for path in sorted(logs):
        log = SeenLog(logs[path])
        if not _is_named(path, selector):
            continue
        if log.is_absent:
            continue
        if log.problem is not None or log.segments is None:
            is_known = False
            continue
        if not _is_taken(selector, log):
            continue
        closed = log.segments_to_archive
        closed_count += len(closed)
        least = 0
        if not log.requires_cold_copies:
            least = parse_size_bytes(str(log.tiering.get("min_size", "0")))
        for segment in closed:
            completed = completed_at(segment)
            is_small = int(segment.get("bytes") or 0) < least
            if is_archived(segment) or is_small or completed is None:
                continue
            if completed + keep_hot > now:
                next_times.append(completed + keep_hot)
                continue
            found.append(Waiting(path, log.log_id, int(segment["epoch"]), completed))
    found.sort(key=lambda one: (one.completed, one.log_id, one.epoch))
    return LogSelection(closed_count, tuple(found), is_known, min(next_times, default=None))


def format_selector(selector: Selector) -> str:
    """As the archive job takes it."""
    return f"{selector.namespace}/{selector.logs}"


def _is_named(path: str, selector: Selector) -> bool:
    space, _, name = path.partition("/")
    return fnmatchcase(space, selector.namespace) and fnmatchcase(name, selector.logs)


def _is_taken(selector: Selector, log: SeenLog) -> bool:
    """By its whole name, by its own tiering, or because it keeps what has no cold copy."""
    is_whole = not _WILDCARDS.intersection(format_selector(selector))
    return is_whole or log.is_tiered
