"""The operator and the archive job mean the same segments, whatever a log and its segments are.

Each has its own code: the job judges nodes, the operator what REST shows of them. What one calls
waiting and the other leaves alone is held for ever, or starts runs for nothing. So one world is
shown to both, in the read proxy's spelling. Source: docs/archive.md.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Final

import pytest

from duramen.config import parse_log_config
from duramen.core.cold_copy import ColdCopy
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member, lsn_of
from duramen.runtime.public.answers import describe_log
from duramen_operator.plan.archive.waiting import choose
from duramen_operator.resources.archives import Selector
from duramen_readproxy.segment_answers import describe_segment
from duramen_spark.archive.policy import ArchiveVerdict, Policy

MEMBERS = tuple(Member(BookieId(n), Incarnation(n.encode().hex() * 16)) for n in "abc")
HOUR_MS: Final = 3_600_000
NOW_MS: Final = 100 * HOUR_MS
ROW_COUNTS: Final = (0, 3, 40, 3)
"""Records of each closed segment, a byte each: empty, small, large, and one behind the trim."""


def make_log(config: dict[str, Any]) -> LogNode:
    """Epochs 1 to 3 are truncated, 4 is live, 5 open."""
    count = sum(ROW_COUNTS[:3])
    return LogNode(
        log_id=LogId(9),
        namespace="prod",
        name="orders",
        config=parse_log_config(config),
        next_epoch=Epoch(6),
        last_clean_epoch=4,
        trim_lsn=lsn_of(Epoch(4), EntryId(0)),
        trim_seq_num=count,
    )


def make_segments(*, is_archived: bool) -> list[Segment]:
    segments, seq_num = [], 0
    for index, count in enumerate(ROW_COUNTS):
        segment = Segment(
            LogId(9), Epoch(index + 1), Quorum(3, 3, 2), (Fragment(EntryId(0), MEMBERS),)
        )
        closed = segment.closed(
            last_entry=EntryId(count - 1) if count else NOTHING,
            totals=Totals(count, count, None, 0 if count else None),
            start_seq_num=seq_num,
            completed_unix_ms=NOW_MS - (index + 1) * HOUR_MS,
            nonce="n",
        )
        seq_num += count
        if is_archived:
            closed = replace(closed, cold_copy=ColdCopy("0" * 32, "0" * 64, 1, 1))
        segments.append(closed)
    opened = Segment(LogId(9), Epoch(5), Quorum(3, 3, 2), (Fragment(EntryId(0), MEMBERS),))
    return [*segments, opened]


def list_for_the_job(
    log: LogNode, segments: list[Segment], selector: Selector, keep_hot: timedelta
) -> list[int]:
    policy = Policy(
        (f"{selector.namespace}/{selector.logs}",),
        keep_hot_us=keep_hot // timedelta(microseconds=1),
    )
    if not policy.takes(log):
        return []
    return [
        one.epoch for one in segments if policy.judge(log, one, NOW_MS) is ArchiveVerdict.ARCHIVE
    ]


def list_for_the_operator(
    log: LogNode, segments: list[Segment], selector: Selector, keep_hot: timedelta
) -> list[int]:
    shown = [json.loads(describe_segment(one, log).encode()) for one in segments]
    seen = {"prod/orders": {"log": json.loads(describe_log(log).encode()), "segments": shown}}
    now = datetime.fromtimestamp(NOW_MS / 1_000, UTC)
    return sorted(one.epoch for one in choose(seen, frozenset(), selector, keep_hot, now).waiting)


@pytest.mark.parametrize(
    ("policy", "min_size", "is_required", "is_archived"),
    list(product(("none", "copy", "move"), ("0B", "10B"), (False, True), (False, True))),
)
def test_the_operator_waits_for_what_the_job_takes(
    policy: str, min_size: str, is_required: bool, is_archived: bool
) -> None:
    config = {
        "tiering": {"policy": policy, "min_size": min_size},
        "retention": {"require_cold_copy": is_required},
    }
    log, segments = make_log(config), make_segments(is_archived=is_archived)
    named = Selector(namespace="prod", logs="orders")
    for selector, hours in product((Selector(), named, Selector(logs="other")), (0, 2)):
        keep_hot = timedelta(hours=hours)
        taken = list_for_the_job(log, segments, selector, keep_hot)
        assert list_for_the_operator(log, segments, selector, keep_hot) == taken
        if is_required and not is_archived and selector.logs != "other":
            assert taken == [epoch for epoch in (1, 2, 3, 4) if epoch >= hours]
