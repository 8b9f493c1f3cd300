"""Retention and the trim point: no live record is removed, nothing ever comes back (T1).

The property plays a whole life of a log: appends, rolls, truncations, retention rounds at any time,
and looks after every step at what was removed. Source: docs/protocol/retention.md, R4.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.core.life.retention import (
    HELD_AGAIN_MS,
    has_cold_copy,
    is_to_be_purged,
    judge,
    purge_time_ms,
)
from duramen.core.life.trim import SegmentStatus, end_of, min_active_dlsn, status_of
from duramen.core.log_node import Ending, TrimPoint
from duramen.core.segment import Segment, Totals
from duramen.ids import Dlsn, EntryId, Epoch, lsn_of
from duramen.units import HOUR, MS
from tests.unit.life_bench import COPY, HOUR_MS, Life

# --- Age, size, what waits -----------------------------------------------------------------------


def test_a_segment_expires_its_age_after_its_completion() -> None:
    life = Life(age="72h")
    life.add(5, 3)
    assert life.due_ms() == 72 * HOUR_MS
    assert life.retain(hours=71.9).trim_seq_num == 0
    life.add(4)
    log = life.retain(hours=0.1)
    assert (log.trim_seq_num, log.trim.dlsn) == (8, Dlsn(Epoch(3), EntryId(0), 0))
    assert life.status() == ["TRUNCATED", "TRUNCATED", "LIVE"]


def test_no_age_keeps_records_for_ever() -> None:
    life = Life(age=None)
    life.add(5)
    assert life.retain(hours=1e6) == life.log and life.log.trim_seq_num == 0
    assert life.due_ms() is None


def test_the_oldest_segments_go_while_the_others_alone_hold_the_size() -> None:
    life = Life(age=None, bytes="75B")
    life.add(5, 3, 4)
    assert life.retain().trim_seq_num == 0, "the last two would hold 70 bytes"
    life.add(1)
    assert life.retain().trim_seq_num == 5
    life.append(1_000)
    assert life.retain().trim_seq_num == 5, "the open segment is nobody's to judge"


def test_a_young_segment_keeps_the_expired_ones_behind_it() -> None:
    """A clock that went back: only a prefix is ever truncated."""
    life = Life(age="1h")
    life.now_ms = 50 * HOUR_MS
    life.add(1)
    life.now_ms = 0
    life.add(1)
    assert life.retain(hours=2).trim_seq_num == 0


def test_truncated_segments_wait_before_they_are_given_up() -> None:
    life = Life(age="10h", truncated="1h")
    life.add(5, 3)
    assert life.retain(hours=10).first_live_epoch == 1
    assert life.due_ms() == 11 * HOUR_MS
    assert life.retain(hours=0.9).first_live_epoch == 1
    assert life.retain(hours=0.1).first_live_epoch == 3


def test_what_is_truncated_while_others_wait_waits_after_them() -> None:
    """Neither does it go with them, nor does it keep them for ever."""
    life = Life(age=None, truncated="1h")
    life.add(1, 1, 1, 1)
    life.truncate(1)
    life.now_ms += HOUR_MS // 2
    life.truncate(2)
    assert life.retain(hours=0.5).first_live_epoch == 2
    life.truncate(3)
    assert life.retain(hours=0.9).first_live_epoch == 2
    assert life.retain(hours=0.1).first_live_epoch == 3
    assert life.retain(hours=1).first_live_epoch == 4


def test_a_segment_that_closes_at_the_trim_point_is_truncated_as_a_whole() -> None:
    life = Life(age=None, truncated="1h")
    life.append(4)
    life.truncate(4)
    assert life.log.trim.dlsn == Dlsn(Epoch(1), EntryId(4), 0)
    life.close()
    assert life.retain().trim == TrimPoint(lsn_of(Epoch(2), EntryId(0)), 0, 4)
    assert life.retain(hours=1).first_live_epoch == 2


def test_an_empty_segment_goes_with_its_age() -> None:
    life = Life(age="1h", truncated="0s")
    life.add(2, 0, 1)
    life.retain(hours=1)
    assert life.retain().first_live_epoch == 4 and life.log.trim_seq_num == 3


# --- What is held --------------------------------------------------------------------------------


def test_without_a_verified_cold_copy_nothing_goes_where_one_is_required() -> None:
    life = Life(age="1h", truncated="0s", require_cold_copy=True)
    life.append(2)
    life.close(cold_copy=COPY)
    life.append(2)
    life.close()
    life.add(2)
    verdict = judge(life.log, life.closed(), life.kept(), 2 * HOUR_MS)
    assert verdict.held_epoch == 2 and verdict.due_unix_ms == 2 * HOUR_MS + HELD_AGAIN_MS
    assert life.retain(hours=2).trim_seq_num == 2
    assert life.retain().first_live_epoch == 2
    life.truncate(6)
    assert life.retain(hours=9).first_live_epoch == 2, "a truncation hides, the copy stays"
    life.segments[2] = life.segments[2].with_cold_copy(COPY, "cold")
    assert has_cold_copy(life.segments[2]) and not has_cold_copy(life.segments[3])
    assert life.retain().first_live_epoch == 3


def test_what_was_not_read_in_this_round_stays() -> None:
    """A round reads so many segments: whether the next one has a cold copy is not known."""
    life = Life(age="1h", truncated="0s", require_cold_copy=True)
    for copy in (COPY, COPY, None, None):
        life.append(2)
        life.close(cold_copy=copy)
    life.truncate(8)
    verdict = judge(life.log, life.closed()[:2], life.kept(), 2 * HOUR_MS)
    assert (verdict.first_live_epoch, verdict.held_epoch) == (3, None)


def test_what_a_takeover_reads_from_the_last_snapshot_on_is_kept() -> None:
    life = Life(age="1h", truncated="0s")
    life.add(2, 2, 2)
    life.log = replace(life.log, snapshot_lsn=lsn_of(Epoch(2), EntryId(1)))
    life.retain(hours=2)
    assert life.retain().first_live_epoch == 2 and life.log.trim_seq_num == 6


def test_everything_is_kept_until_a_close_says_from_where_a_takeover_reads() -> None:
    """Every segment was closed by recovery, and one of them carries producers."""
    life = Life(age="1h", truncated="0s")
    life.add(2, 2, 2)
    life.log = replace(life.log, snapshot_lsn=None)
    life.retain(hours=2)
    assert life.retain().first_live_epoch == 1 and life.log.trim_seq_num == 6
    assert life.due_ms() is None, "time alone changes nothing"
    life.append(0)
    life.close()
    assert life.retain().first_live_epoch == 4


# --- Status --------------------------------------------------------------------------------------


def test_statuses_follow_from_the_trim_point() -> None:
    life = Life(age=None)
    life.add(2, 3, 2)
    life.log = life.log.with_trim(
        TrimPoint(lsn_of(Epoch(2), EntryId(1)), 2, 3),
        release=life.log.closed_end, unix_ms=0, nonce="n",
    )  # fmt: skip
    assert life.status() == ["TRUNCATED", "PARTIALLY_TRUNCATED", "LIVE"]
    first, second, third = life.closed()
    assert min_active_dlsn(first, life.log) is None
    assert min_active_dlsn(second, life.log) == Dlsn(Epoch(2), EntryId(1), 2)
    assert min_active_dlsn(third, life.log) == Dlsn(Epoch(3), EntryId(0), 0)


def test_a_slot_inside_the_first_entry_truncates_a_part() -> None:
    life = Life(age=None)
    life.add(1)
    assert life.status() == ["LIVE"]
    life.log = replace(life.log, trim_lsn=lsn_of(Epoch(1), EntryId(0)), trim_slot=1)
    assert status_of(life.segments[1], life.log) is SegmentStatus.PARTIALLY_TRUNCATED


# --- The log node's own predicates ---------------------------------------------------------------


def test_a_trim_never_falls_and_never_passes_the_release_pointer() -> None:
    life = Life(age=None)
    life.add(5)
    life.truncate(3)
    for seq_num in (2, 6):
        point = TrimPoint(lsn_of(Epoch(1), EntryId(seq_num)), 0, seq_num)
        with pytest.raises(AssertionError):
            life.log.with_trim(point, release=life.log.closed_end, unix_ms=0, nonce="n")
    lower_number = TrimPoint(lsn_of(Epoch(1), EntryId(4)), 0, 2)
    higher_entry = TrimPoint(lsn_of(Epoch(2), EntryId(1)), 0, 5)
    for crooked in (lower_number, higher_entry):
        with pytest.raises(AssertionError):
            life.log.with_trim(crooked, release=life.log.closed_end, unix_ms=0, nonce="n")


def test_only_what_was_truncated_is_given_up() -> None:
    life = Life(age=None)
    life.add(5, 5)
    with pytest.raises(AssertionError):
        life.log.with_first_live_epoch(Epoch(2), unix_ms=0, nonce="n")


@pytest.mark.parametrize("ending", list(Ending))
def test_a_log_ends_only_when_every_epoch_is_closed_and_opens_none_after(ending: Ending) -> None:
    life = Life()
    life.append()
    with pytest.raises(AssertionError):
        life.log.with_ending(ending, unix_ms=1, nonce="n")
    life.close()
    over = life.log.with_ending(ending, unix_ms=1, nonce="n")
    with pytest.raises(AssertionError):
        over.with_new_epoch("n")


def test_a_deleted_log_comes_back_until_it_is_purged() -> None:
    life = Life()
    life.add(1)
    deleted = life.log.with_ending(Ending.DELETE, unix_ms=7, nonce="n")
    assert purge_time_ms(deleted, HOUR) == HOUR_MS + 7
    assert not is_to_be_purged(deleted, HOUR_MS + 6, HOUR)
    assert is_to_be_purged(deleted, HOUR_MS + 7, HOUR)
    assert deleted.undeleted("close") == life.log
    purged = deleted.purged("n")
    assert not is_to_be_purged(purged, 9 * HOUR_MS, HOUR)
    with pytest.raises(AssertionError):
        purged.undeleted("n")
    with pytest.raises(AssertionError):
        life.log.purged("n")


# --- T1 ------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    age=st.sampled_from([None, "1h", "3h"]),
    size=st.sampled_from([None, "50B", "200B"]),
    truncated=st.sampled_from(["0s", "1h"]),
)
def test_t1_retention_removes_no_live_record_and_never_goes_back(
    seed: int, age: str | None, size: str | None, truncated: str
) -> None:
    rng = random.Random(seed)
    life = Life(age=age, bytes=size, truncated=truncated)
    asked = 0
    for _ in range(40):
        before = life.log
        match rng.randrange(6):
            case 0 | 1:
                life.append(rng.randrange(6))
            case 2:
                life.close()
            case 3:
                seq_num = rng.randint(0, life.release().seq_num)
                life.truncate(seq_num)
                asked = max(asked, seq_num)
            case _:
                life.retain(hours=rng.choice((0, 0.3, 1, 5)))
        log = life.log
        assert before.trim <= log.trim <= life.release()
        assert before.first_live_epoch <= log.first_live_epoch <= log.trim.dlsn.epoch
        assert log.trim_seq_num <= life.release().seq_num
        for segment in life.segments.values():
            is_asked = end_of(segment).seq_num <= asked
            is_removed = end_of(segment).seq_num <= log.trim_seq_num and segment.totals != Totals()
            assert not is_removed or is_asked or _may_go(life, segment), (segment, log)


def _may_go(life: Life, segment: Segment) -> bool:
    """Old enough, or the closed ones behind it hold the size: judged anew, segment by segment."""
    config = life.log.config.retention
    completed_ms = segment.completed_unix_ms or 0
    is_old = config.age is not None and life.now_ms - completed_ms >= config.age // MS
    later = [s for s in life.segments.values() if s.epoch > segment.epoch]
    later_bytes = sum(s.totals.length_bytes for s in later if s.totals is not None)
    return is_old or (config.bytes is not None and later_bytes >= config.bytes)
