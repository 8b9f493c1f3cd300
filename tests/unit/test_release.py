"""Release of hot copies: only what the archive holds and rechecked, nothing that a takeover reads.

The property plays logs that are appended to, archived, rechecked, found broken, truncated and
retained at any time (A1). Source: docs/protocol/archive.md "Release".
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.config import parse_log_config
from duramen.core.life import release
from duramen.core.life.release import can_do_without_hot_copies, judge_release
from duramen.core.life.retention import HELD_AGAIN_MS, judge
from duramen.core.repair.audit import first_needed, list_stretches, live_epochs
from duramen.core.segment import Segment
from duramen.ids import NOTHING, EntryId, Epoch, lsn_of
from duramen.units import MS
from tests.unit.life_bench import COPY, HOUR_MS, Life

MOVE = {"policy": "move", "keep_hot": "1h"}


def archive(life: Life, *epochs: int, is_rechecked: bool = True) -> None:
    for epoch in epochs:
        segment = life.segments[epoch].with_cold_copy(COPY, "cold")
        life.segments[epoch] = segment.with_recheck(9, "again") if is_rechecked else segment


def make_life(*counts: int, **fields: Any) -> Life:
    """Segments of so many records that are all archived, and kept for an hour."""
    life = Life(MOVE, age=None, **fields)
    life.add(*counts)
    archive(life, *life.segments)
    return life


def test_what_is_archived_is_released_when_it_was_kept_long_enough() -> None:
    life = make_life(2, 3)
    assert life.due_ms() == HOUR_MS
    assert life.retain(hours=0.9).first_hot_epoch == 1
    life.add(1)
    archive(life, 3)
    log = life.retain(hours=0.1)
    assert (log.first_hot_epoch, log.first_live_epoch, log.trim_seq_num) == (3, 1, 0)
    assert life.due_ms() == int(1.9 * HOUR_MS), "what was closed later goes later"
    assert life.retain(hours=1).first_hot_epoch == 4


@pytest.mark.parametrize("policy", ["none", "copy"])
def test_only_the_policy_move_releases(policy: str) -> None:
    life = make_life(2, 3)
    config = parse_log_config({"tiering": {"policy": policy}, "retention": {"age": None}})
    life.log = replace(life.log, config=config)
    assert life.retain(hours=99).first_hot_epoch == 1 and life.due_ms() is None


def test_nothing_is_released_that_was_not_rechecked_and_nothing_behind_it() -> None:
    life = make_life(2, 3, 4)
    life.segments[2] = life.segments[2].without_cold_copy("broken")
    archive(life, 2, is_rechecked=False)
    assert life.retain(hours=2).first_hot_epoch == 2
    verdict = judge(life.log, life.closed(), life.kept(), life.now_ms)
    assert verdict.first_hot_epoch is None and verdict.unarchived_epoch == 2
    assert verdict.due_unix_ms == life.now_ms + HELD_AGAIN_MS, "no change of the log node tells"
    archive(life, 2)
    assert life.retain().first_hot_epoch == 4


def test_an_empty_segment_needs_no_cold_copy() -> None:
    life = make_life(2, 0, 2)
    life.segments[2] = life.segments[2].without_cold_copy("none")
    assert life.segments[2].last_entry == NOTHING
    assert life.retain(hours=1).first_hot_epoch == 4


def test_what_takeovers_read_stays() -> None:
    life = make_life(2, 2, 2)
    life.log = replace(life.log, snapshot_lsn=lsn_of(Epoch(2), EntryId(1)))
    assert life.retain(hours=2).first_hot_epoch == 2 and life.due_ms() is None
    life = make_life(2, 2)
    life.log = replace(life.log, snapshot_lsn=None)
    assert life.retain(hours=2).first_hot_epoch == 1, "nobody has said yet what they read"


def test_what_is_given_up_meanwhile_does_not_hold_up_what_follows() -> None:
    life = make_life(2, 2, 2, truncated="0s")
    life.segments[1] = life.segments[1].without_cold_copy("none")
    life.truncate(2)
    life.retain(hours=2)
    assert (life.log.first_live_epoch, life.log.first_hot_epoch) == (2, 1)
    assert life.retain().first_hot_epoch == 4 == life.log.first_kept_epoch


def test_one_change_releases_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "RELEASE_SEGMENT_COUNT_MAX", 2)
    life = make_life(1, 1, 1)
    life.now_ms = HOUR_MS
    assert judge_release(life.log, life.kept(), HOUR_MS) == (3, None, HOUR_MS)
    assert life.retain().first_hot_epoch == 3
    assert life.retain().first_hot_epoch == 4


def test_repair_passes_over_what_is_released() -> None:
    life = make_life(2, 3, 4)
    life.append(1)
    life.log = life.log.with_first_hot_epoch(Epoch(3), "hot")
    assert list(live_epochs(life.log)) == [3, 4]
    assert list_stretches(life.log, life.segments[1]) == []
    assert list_stretches(life.log, life.segments[2]) == []
    assert first_needed(life.log, life.segments[3]) == 0
    assert life.log.rebuild_lsn >= life.log.needed_lsn == lsn_of(Epoch(3), EntryId(0))


# --- A1 ------------------------------------------------------------------------------------------


class Archive:
    """Does with the segments what an archive does, each change as its `multi()` allows it."""

    def __init__(self, life: Life, rng: random.Random) -> None:
        self.life, self.rng = life, rng

    def step(self) -> None:
        segments = self.life.segments
        epoch = self.rng.choice([*segments] or [0])
        if not epoch:
            return
        segment = segments[epoch]
        if segment.cold_copy is None:
            segments[epoch] = segment.with_cold_copy(COPY, "cold")
        elif self.rng.random() < 0.7:
            segments[epoch] = segment.with_recheck(self.life.now_ms, "again")
        elif self.life.log.first_hot_epoch <= epoch:
            segments[epoch] = segment.without_cold_copy("broken")


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(["none", "copy", "move", "move", "move"]),
    keep_hot=st.sampled_from(["0s", "1h", "4h"]),
    age=st.sampled_from([None, "3h"]),
)
def test_a1_hot_copies_go_only_after_a_cold_one_was_rechecked(
    seed: int, policy: str, keep_hot: str, age: str | None
) -> None:
    rng = random.Random(seed)
    life = Life({"policy": policy, "keep_hot": keep_hot}, age=age, truncated="1h")
    archive_job = Archive(life, rng)
    keep_hot_ms = life.log.config.tiering.keep_hot // MS
    for _ in range(60):
        before = life.log
        match rng.randrange(9):
            case 0 | 1:
                life.append(rng.randrange(4))
            case 2 | 3:
                life.close()
                if rng.random() < 0.3:  # its owner has snapshotted something in it
                    epoch = Epoch(life.log.last_clean_epoch)
                    lsn = max(before.snapshot_lsn or 0, lsn_of(epoch, EntryId(0)))
                    life.log = replace(life.log, snapshot_lsn=lsn)
            case 4:
                life.truncate(rng.randint(0, life.release().seq_num))
            case 5 | 6:
                archive_job.step()
            case _:
                life.retain(hours=rng.choice((0, 0.3, 1, 5)))
        log = life.log
        assert before.first_hot_epoch <= log.first_hot_epoch <= log.last_clean_epoch + 1
        assert log.first_hot_epoch <= log.first_stateful_epoch
        for number in range(before.first_kept_epoch, log.first_hot_epoch):
            segment = life.segments[number]
            assert policy == "move" and can_do_without_hot_copies(segment), segment
            assert _kept_ms(life, segment) >= keep_hot_ms, segment
        for number in range(log.first_live_epoch, log.first_hot_epoch):
            assert can_do_without_hot_copies(life.segments[number]), (number, log)


def _kept_ms(life: Life, segment: Segment) -> int:
    return life.now_ms - (segment.completed_unix_ms or 0)
