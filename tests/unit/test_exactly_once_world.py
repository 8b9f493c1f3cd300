"""Producers through every fault of the small world: once, in order, at one position; and mutants.

A batch that is repeated until it is in the log is there once, every answer names the same place,
and a producer that does nothing wrong is never refused for good (U1). The mutants show that the
sweep would notice. Source: 01-protocol section 5 (idempotent producers), 06-testing (mutants).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from duramen.core.log_node import LogNode
from duramen.core.sequencer.exactly_once import admission, snapshots
from duramen.core.sequencer.exactly_once.log_state import ExactlyOnce
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.exactly_once.rebuild import Rebuild, RebuildState
from duramen.ids import Epoch
from tests.unit.producer_world import ProducerWorld

SEED_COUNT = 16
MUTANT_SEED_COUNT = 40


@pytest.mark.parametrize("snapshot_entry_count", [5, 4_000])
def test_a_producer_s_batches_are_in_the_log_once(
    monkeypatch: pytest.MonkeyPatch, snapshot_entry_count: int
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_ENTRY_COUNT", snapshot_entry_count)
    counts: Counter[str] = Counter()
    for seed in range(SEED_COUNT):
        world = ProducerWorld(seed)
        try:
            world.run().check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counts.update(world.counts)
    expected = (
        "duplicate", "duplicate without positions", "history read", "stamped append_uncertain",
        "reading→rebuilding", "rebuilding→active", "stamped window_full",
    )  # fmt: skip
    assert all(counts[name] for name in expected), counts
    assert counts["stamped done"] > 50 * SEED_COUNT


def _start_with_nothing(rebuild: Rebuild) -> None:
    rebuild.state = RebuildState.DONE


def _forget_under_roll(self: ExactlyOnce, epoch: Epoch) -> None:
    self._table = ProducerTable(64)
    self._complete_through = epoch


def _begin_with_what_is_there(self: ExactlyOnce, log: LogNode, now_us: int) -> None:
    """A table of an older epoch is taken for the present one."""
    self._table = self._table or self.admission.table


def _never_in_flight(self: admission.Admission, stamp: object, placed: object) -> None:
    """Only acknowledged batches are known: a repeated one that is in flight is appended again."""


@pytest.mark.parametrize(
    ("kind", "name", "mutant"),
    [
        (Rebuild, "start", _start_with_nothing),
        (ExactlyOnce, "on_closed", _forget_under_roll),
        (ExactlyOnce, "begin_rebuild", _begin_with_what_is_there),
        (admission.Admission, "_note_ahead", _never_in_flight),
    ],
)
def test_a_state_that_is_lost_is_noticed(
    monkeypatch: pytest.MonkeyPatch, kind: type, name: str, mutant: Callable[..., None]
) -> None:
    monkeypatch.setattr(kind, name, mutant)
    for seed in range(MUTANT_SEED_COUNT):
        try:
            ProducerWorld(seed).run().check()
        except (AssertionError, KeyError):
            return
    pytest.fail("nothing was noticed")
