"""Small clusters, logs and segments for the tests of repair's cores.

A member is spelled by its bookie's name, in the first life of its disks. Used by `test_repair_…`
and by the component tests of the auditor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from duramen.config import parse_log_config
from duramen.core.duty import Duty
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.repair.cluster_view import BookieState, ClusterView
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member

ENTRY_BYTES = 100


def member(name: str, life: int = 1) -> Member:
    return Member(BookieId(name), Incarnation(f"{life:04x}{name.encode().hex():0>28}"))


def members(names: Iterable[str]) -> tuple[Member, ...]:
    return tuple(member(name) for name in names)


def bookie(name: str, **changes: Any) -> BookieState:
    """A serving bookie that is there, in a rack of its own."""
    state = BookieState(
        member(name, changes.pop("life", 1)), "r", f"k-{name}", 1.0, Duty.SERVING, Duty.SERVING,
        is_writable=True, data_url=f"http://{name}",
    )  # fmt: skip
    return replace(state, **changes)


def view(bookies: Sequence[BookieState], **changes: Any) -> ClusterView:
    """A view that has watched for long, with a grace of 10."""
    defaults: dict[str, Any] = {"watched_since_us": 0, "now_us": 100, "grace_us": 10}
    return ClusterView({s.member.bookie: s for s in bookies}, **{**defaults, **changes})


def away(name: str, since_us: int = 95) -> BookieState:
    """A bookie that is not registered now."""
    return bookie(name, published_duty=None, is_writable=False, absent_since_us=since_us)


def make_log(log_id: int = 5, **fields: Any) -> LogNode:
    """A log with E = Qw = 3, Qa = 2 in two racks, unless `replication` says otherwise."""
    config = parse_log_config({"replication": fields.pop("replication", {})})
    return LogNode(LogId(log_id), "ns", f"log{log_id}", config, **fields)


def make_segment(
    ensembles: Sequence[tuple[int, str]],
    last_entry: int | None = None,
    *,
    log_id: int = 5,
    epoch: int = 1,
    quorum: tuple[int, int] = (3, 2),
    proved: bool = False,
) -> Segment:
    """An open segment, or with a last entry a closed one; entries of ENTRY_BYTES each.

    Args:
        ensembles: (first entry, names of bookies, one letter each).
        quorum: Qw and Qa; E is the ensembles' size.
        proved: every fragment that may be.
    """
    fragments = tuple(
        Fragment(EntryId(first), members(names), Totals(first, first * ENTRY_BYTES))
        for first, names in ensembles
    )
    segment = Segment(
        LogId(log_id), Epoch(epoch), Quorum(len(ensembles[0][1]), *quorum), fragments
    )  # fmt: skip
    if last_entry is not None:
        count = last_entry + 1
        segment = segment.closed(
            last_entry=EntryId(last_entry),
            totals=Totals(count, count * ENTRY_BYTES),
            start_seq_num=0,
            completed_unix_ms=1,
            nonce="closed",
        )
    if proved:
        settled = segment.fragments if segment.is_closed else segment.fragments[:-1]
        for fragment in settled:
            segment = segment.with_proved(fragment.first_entry, "proved")
    return segment


def log_of_segments(segments: Sequence[Segment], **fields: Any) -> LogNode:
    """The log node that fits these segments, of epochs 1, 2, …; nobody used producers."""
    log = make_log(segments[0].log_id, **fields)
    closed = [segment for segment in segments if segment.is_closed]
    log = replace(log, next_epoch=Epoch(len(segments) + 1), last_clean_epoch=len(closed))
    return log.validated() if "snapshot_lsn" in fields else log.with_stateless()
