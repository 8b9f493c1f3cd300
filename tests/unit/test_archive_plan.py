"""What a run of the archive job chooses, how it cuts that, and how it tells: pure functions.

Source: docs/archive.md "What a run does".
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.config import parse_log_config
from duramen.core.cold_copy import ColdCopy
from duramen.core.life.retention import judge as judge_retention
from duramen.core.life.trim import end_of
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    lsn_of,
)
from duramen.units import HOUR
from duramen_spark.archive.plan import balance, batch, cut_segment
from duramen_spark.archive.policy import ArchiveVerdict, Policy, find_lag_ms
from duramen_spark.archive.report import RunReport, write_metrics, write_summary

MEMBERS = tuple(Member(BookieId(n), Incarnation(n.encode().hex() * 16)) for n in "abc")
HOUR_MS = 3_600_000


def make_log(policy: str = "copy", **tiering: Any) -> LogNode:
    return LogNode(
        log_id=LogId(9),
        namespace="prod",
        name="orders",
        config=parse_log_config({"tiering": {"policy": policy, **tiering}}),
        next_epoch=Epoch(9),
        last_clean_epoch=8,
    )


def require(log: LogNode) -> LogNode:
    """The log with retention that gives nothing up without a cold copy."""
    fields = log.config.to_json()
    fields["retention"]["require_cold_copy"] = True
    return replace(log, config=parse_log_config(fields))


def make_segment(sizes: list[int], **fields: Any) -> Segment:
    """A CLOSED segment with an entry of each size."""
    last = EntryId(len(sizes) - 1) if sizes else NOTHING
    segment = Segment(LogId(9), Epoch(3), Quorum(3, 3, 2), (Fragment(EntryId(0), MEMBERS),))
    totals = Totals(len(sizes), sum(sizes), None, 0 if sizes else None)
    closed = segment.closed(
        last_entry=last, totals=totals, start_seq_num=0, completed_unix_ms=HOUR_MS, nonce="n"
    )
    return replace(closed, **fields).validated()


def make_closed(epoch: int, sizes: list[int]) -> Segment:
    """As `make_segment`, of another epoch; sequence numbers begin at ten times that."""
    segment = make_segment(sizes, epoch=Epoch(epoch), start_seq_num=10 * epoch)
    return replace(segment, completed_unix_ms=HOUR_MS)


@pytest.mark.parametrize(
    ("selectors", "policy", "is_taken"),
    [
        (("*/*",), "copy", True),
        (("*/*",), "move", True),
        (("*/*",), "none", False),
        (("prod/*",), "none", False),
        (("prod/orders",), "none", True),
        (("test/*", "prod/or*"), "copy", True),
        (("test/*", "orders"), "copy", False),
        (("PROD/*",), "copy", False),
    ],
)
def test_logs_are_chosen_by_selector_and_tiering(
    selectors: tuple[str, ...], policy: str, is_taken: bool
) -> None:
    assert Policy(selectors).takes(make_log(policy)) is is_taken


def test_a_log_that_requires_cold_copies_is_chosen_whatever_its_tiering() -> None:
    log = require(make_log("none"))
    assert Policy(("*/*",)).takes(log) and Policy(("prod/*",)).takes(log)
    assert not Policy(("test/*",)).takes(log)
    assert not Policy(("*/*",)).takes(replace(log, is_deleted=True, deleted_unix_ms=1))


def test_a_deleted_log_is_left_alone() -> None:
    log = replace(make_log(), is_deleted=True, deleted_unix_ms=1)
    assert not Policy(("prod/orders",)).takes(log)


def test_every_segment_has_a_verdict() -> None:
    log, now_ms = make_log(), 2 * HOUR_MS
    segment = make_segment([10, 20])
    opened = Segment(LogId(9), Epoch(9), Quorum(3, 3, 2), (Fragment(EntryId(0), MEMBERS),))
    copy = ColdCopy("0" * 32, "0" * 64, 1, 1)

    def judge(policy: Policy, segment: Segment = segment, log: LogNode = log) -> ArchiveVerdict:
        return policy.judge(log, segment, now_ms)

    assert judge(Policy()) is ArchiveVerdict.ARCHIVE
    assert judge(Policy(), opened) is ArchiveVerdict.NOT_CLOSED
    assert judge(Policy(), replace(segment, cold_copy=copy)) is ArchiveVerdict.ARCHIVED
    assert judge(Policy(keep_hot_us=HOUR)) is ArchiveVerdict.ARCHIVE
    assert judge(Policy(keep_hot_us=HOUR + 1_000)) is ArchiveVerdict.TOO_YOUNG
    assert judge(Policy(min_bytes=30)) is ArchiveVerdict.ARCHIVE
    assert judge(Policy(min_bytes=31)) is ArchiveVerdict.TOO_SMALL
    assert judge(Policy(), log=make_log(min_size="31B")) is ArchiveVerdict.TOO_SMALL
    trimmed = replace(log, trim_lsn=lsn_of(Epoch(4), EntryId(0)), trim_seq_num=2)
    assert judge(Policy(), log=trimmed) is ArchiveVerdict.TRUNCATED
    assert judge(Policy(includes_truncated=True), log=trimmed) is ArchiveVerdict.ARCHIVE
    assert judge(Policy(), log=require(trimmed)) is ArchiveVerdict.ARCHIVE
    assert judge(Policy(keep_hot_us=HOUR + 1_000), log=require(trimmed)) is ArchiveVerdict.TOO_YOUNG
    assert judge(Policy(), log=require(make_log(min_size="31B"))) is ArchiveVerdict.ARCHIVE
    assert judge(Policy(min_bytes=31), log=require(log)) is ArchiveVerdict.TOO_SMALL
    partly = replace(log, trim_lsn=lsn_of(Epoch(3), EntryId(1)), trim_seq_num=1)
    assert judge(Policy(), log=partly) is ArchiveVerdict.ARCHIVE


@pytest.mark.parametrize("policy", ["none", "copy", "move"])
@pytest.mark.parametrize("min_size", ["0B", "1MiB"])
@pytest.mark.parametrize("trim_epoch", [1, 2, 3, 4, 5])
def test_no_segment_is_held_for_ever_by_a_cold_copy_that_no_run_makes(
    policy: str, min_size: str, trim_epoch: int
) -> None:
    """Whatever was truncated before the first run: what one run marks lets retention go on."""
    log = replace(require(make_log(policy, min_size=min_size)), last_clean_epoch=4)
    log = replace(log, next_epoch=Epoch(6), snapshot_lsn=lsn_of(Epoch(5), EntryId(0)))
    segments = [
        make_closed(epoch, sizes) for epoch, sizes in enumerate(([10], [], [20, 5], [1]), 1)
    ]
    passed = segments[: trim_epoch - 1]
    log = log.with_trim(
        end_of(passed[-1]) if passed else log.trim,
        release=log.trim if not passed else end_of(segments[-1]),
        unix_ms=HOUR_MS,
        nonce="t",
    )
    late_ms = 1_000 * HOUR_MS
    held = judge_retention(log, segments, [], late_ms)
    assert held.held_epoch is not None and held.first_live_epoch is None

    assert Policy().takes(log)
    copy = ColdCopy("0" * 32, "0" * 64, 1, 1)
    marked = [
        replace(one, cold_copy=copy)
        if Policy().judge(log, one, late_ms) is ArchiveVerdict.ARCHIVE
        else one
        for one in segments
    ]
    freed = judge_retention(log, marked, [], late_ms)
    assert freed.held_epoch is None
    assert freed.trim == (None if trim_epoch == 5 else end_of(segments[-1]))
    assert freed.first_live_epoch == (Epoch(trim_epoch) if trim_epoch > 1 else None)


def test_lag_is_that_of_the_oldest() -> None:
    one = make_segment([1])
    assert find_lag_ms([], 5) == 0
    assert find_lag_ms([one, replace(one, completed_unix_ms=7)], HOUR_MS + 3) == HOUR_MS - 4


@given(
    st.lists(st.integers(1, 1_000), min_size=1, max_size=60),
    st.integers(1, 4_000),
    st.sets(st.integers(0, 59), max_size=5),
)
def test_parts_are_the_segment_in_about_equal_pieces(
    sizes: list[int], part_bytes: int, gone: set[int]
) -> None:
    lost = tuple((EntryId(at), EntryId(at)) for at in sorted(gone) if at < len(sizes))
    segment = make_segment(sizes, lost=lost)

    async def read_length_before(entry: EntryId) -> int:
        assert segment.absence_at(entry) is None, "nobody has that entry"
        return sum(sizes[:entry])

    cuts = asyncio.run(cut_segment(segment, part_bytes, read_length_before))
    present = segment.list_present(EntryId(0), EntryId(len(sizes) - 1))
    if not present:
        assert cuts == []
        return
    assert (cuts[0].first, cuts[-1].last) == (present[0][0], present[-1][1])
    assert all(one.last + 1 == two.first for one, two in pairwise(cuts))
    assert all(cut.first <= cut.last and segment.list_present(cut.first, cut.last) for cut in cuts)
    if not lost:
        # An entry is never cut, so a part may pass its size by about two of them.
        even = sum(sizes) / max(1, round(sum(sizes) / part_bytes))
        assert all(sum(sizes[a : b + 1]) <= even + 2 * max(sizes) for a, b, _ in cuts)


def test_an_empty_segment_has_no_part() -> None:
    async def read_length_before(entry: EntryId) -> int:
        raise AssertionError(entry)

    assert asyncio.run(cut_segment(make_segment([]), 10, read_length_before)) == []


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 6))
def test_slots_get_about_equal_work(sizes: list[int], slot_count: int) -> None:
    slots = balance(sizes, slot_count, lambda size: size)
    assert sorted(size for slot in slots for size in slot) == sorted(sizes)
    assert len(slots) == min(slot_count, len(sizes)) and all(slots)
    sums = [sum(slot) for slot in slots]
    assert not sums or max(sums) - min(sums) <= max(sizes) + len(sizes)


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 300))
def test_batches_are_bounded(sizes: list[int], batch_bytes: int) -> None:
    batches = batch(sizes, batch_bytes, lambda size: size)
    assert [size for one in batches for size in one] == sizes
    assert all(sum(one) <= batch_bytes or len(one) == 1 for one in batches)


def test_a_report_tells_people_and_collectors(tmp_path: Path) -> None:
    report = RunReport(record_count=3, entry_bytes=2_000_000, elapsed_us=500_000, lag_us=1_500_000)
    report.outcomes["archived"] = 2
    report.mismatches.append("prod/orders e3: it is broken")
    assert not report.is_good and report.to_json()["bytes_per_s"] == 4_000_000
    lines = report.list_lines()
    assert lines[0] == "MISMATCH prod/orders e3: it is broken"
    assert lines[1] == "segments: 2 archived (left alone: none)"
    path = tmp_path / "archive.prom"
    write_metrics(path, report.list_metrics(7.0))
    told = path.read_text().splitlines()
    assert "duramen_archive_lag_seconds 1.5" in told
    assert "duramen_archive_run_mismatches 1" in told
    assert list(tmp_path.iterdir()) == [path]


def test_the_summary_fits_where_kubernetes_keeps_it(tmp_path: Path) -> None:
    report = RunReport(file_bytes=4096, mismatches=["x" * 9_000], failures=["y"] * 50)
    report.segments = [{"log": f"shop/log-{n}", "epoch": n} for n in range(1_000)]
    place = tmp_path / "words"
    place.touch()
    inode = place.stat().st_ino
    write_summary(place, report)
    assert place.stat().st_ino == inode, "a bind mount cannot be replaced"
    text = place.read_text()
    assert len(text) < 2_000
    found = json.loads(text)
    assert (found["mismatches"], found["failures"], found["file_bytes"]) == (1, 50, 4096)
    assert found["failure"] == "x" * 500
