"""Producers through every fault of the small world: once, in order, at one position; and mutants.

A batch that is repeated until it is in the log is there once, every answer names the same place,
and a producer that does nothing wrong is never refused for good (U1). The mutants show that the
sweep would notice. Source: docs/protocol/write.md "Exactly once", docs/protocol/rules.md.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from duramen.core.life import retention
from duramen.core.log_node import LogNode
from duramen.core.sequencer.exactly_once import admission, snapshots
from duramen.core.sequencer.exactly_once.carried_state import CarriedState
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.exactly_once.rebuild import Rebuild, RebuildState
from duramen.ids import Epoch
from tests.tiers import sized
from tests.unit.producer_world import ProducerWorld

SEED_COUNT = sized(fast=8, gate=16, night=400)
MUTANT_SEED_COUNT = 40


@pytest.mark.timeout(max(300, SEED_COUNT))
@pytest.mark.parametrize(
    ("snapshot_entry_count", "copysets"), [(5, "striped"), (4_000, "striped"), (5, "mixed")]
)
def test_a_producer_s_batches_are_in_the_log_once(
    monkeypatch: pytest.MonkeyPatch, snapshot_entry_count: int, copysets: str
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_ENTRY_COUNT", snapshot_entry_count)
    counts: Counter[str] = Counter()
    for seed in range(SEED_COUNT):
        world = ProducerWorld(seed, copysets=copysets)
        try:
            world.run().check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counts.update(world.counts)
    expected = (
        "duplicate", "duplicate without positions", "history read", "stamped append_uncertain",
        "reading→rebuilding", "rebuilding→active",
        "segments given up", "segments kept for a rebuild",
        *(["stamped window_full"] if copysets == "striped" else []),
    )  # fmt: skip
    assert all(counts[name] for name in expected), counts
    assert counts["stamped done"] > 50 * SEED_COUNT


def _start_with_nothing(rebuild: Rebuild) -> None:
    rebuild.state = RebuildState.DONE


def _forget_under_roll(self: CarriedState, epoch: Epoch) -> None:
    self._table = ProducerTable(64)
    self._complete_through = epoch


def _forget_nothing(_: CarriedState) -> None:
    """What was known when the epoch was lost is kept."""


def _begin_with_what_is_there(self: CarriedState, log: LogNode, now_us: int) -> None:
    """A table of an older epoch is taken for the present one."""
    self._table = self._table or ProducerTable(64)


def _never_in_flight(self: admission.Admission, stamp: object, placed: object) -> None:
    """Only acknowledged batches are known: a repeated one that is in flight is appended again."""


def _give_up_all_that_is_truncated(
    log: LogNode, _segments: object, _now_unix_ms: int
) -> tuple[Epoch, bool, int | None]:
    return log.truncated_below, False, None


def _give_up_what_no_snapshot_is_known_for(
    log: LogNode, _segments: object, _now_unix_ms: int
) -> tuple[Epoch, bool, int | None]:
    snapshot = log.truncated_below if log.snapshot_lsn is None else (log.snapshot_lsn + 1) >> 32
    epoch = max(log.first_live_epoch, min(log.truncated_below, snapshot))
    return Epoch(epoch), False, None


@pytest.mark.parametrize(
    "patches",
    [
        ((retention, "_judge_truncated", _give_up_all_that_is_truncated),),
        ((retention, "_judge_truncated", _give_up_what_no_snapshot_is_known_for),),
        ((LogNode, "is_stateless", True),),
        ((Rebuild, "start", _start_with_nothing),),
        ((CarriedState, "on_closed", _forget_under_roll),),
        (
            (CarriedState, "forget", _forget_nothing),
            (CarriedState, "begin_rebuild", _begin_with_what_is_there),
        ),
        ((admission.Admission, "_note_ahead", _never_in_flight),),
    ],
)
def test_a_state_that_is_lost_is_noticed(
    monkeypatch: pytest.MonkeyPatch, patches: tuple[tuple[Any, str, object], ...]
) -> None:
    for kind, name, mutant in patches:
        monkeypatch.setattr(kind, name, mutant)
    for seed in range(MUTANT_SEED_COUNT):
        try:
            ProducerWorld(seed).run().check()
        except (AssertionError, KeyError):
            return
    pytest.fail("nothing was noticed")
