"""Mutants of the archive: the release of hot copies, what repair makes of it, the only copy.

Part of `tests.sim.mutants`.
"""

from __future__ import annotations

from typing import Any, Final

from duramen.core.life import release
from duramen.core.log_node import LogNode
from duramen.core.segment import Segment
from duramen.ids import NOTHING, Epoch, Lsn
from duramen_sequencer.life.retention import RetentionRounds
from tests.sim.archive.archiver import Archiver
from tests.sim.focus import Focus
from tests.sim.mutants.mutant import Mutant


def _verified_is_enough(segment: Segment) -> bool:
    return segment.last_entry == NOTHING or segment.cold_copy is not None


def _after_the_last_clean_epoch(self: LogNode) -> Epoch:
    return Epoch(self.last_clean_epoch + 1)


def _check_nothing(self: RetentionRounds, *_: Any) -> list[Any]:
    return []


def _needed_by_any_reader(self: LogNode) -> Lsn:
    return min(self.trim.lsn, self.rebuild_lsn)


def _ignore_the_log_node(self: Archiver, log: LogNode, segment: Segment) -> bool:
    return False


MUTANTS: Final[dict[str, Mutant]] = {
    "hot-copies-go-without-a-second-look": Mutant(
        "A1", "hot copies are released when the cold one was verified once",
        ((release, "can_do_without_hot_copies", _verified_is_enough),),
    ),
    "release-passes-the-snapshot": Mutant(
        "A1", "hot copies go that a rebuild of producers and token reads",
        ((LogNode, "first_stateful_epoch", property(_after_the_last_clean_epoch)),),
    ),
    "release-checks-no-segment": Mutant(
        "A1", "a release does not check that the cold copies are still those that were judged",
        ((RetentionRounds, "_list_checks", _check_nothing),),
    ),
    "repair-of-what-is-released": Mutant(
        "A1", "repair makes copies of segments that have left the bookies",
        ((LogNode, "needed_lsn", property(_needed_by_any_reader)),),
        focus=Focus(
            (
                "bookie long away", "bookie drained", "bookie removed", "bookie removed",
                "lost again",
            ),
            does_release=True,
        ),
    ),
    "only-copy-forgotten": Mutant(
        "A1", "a cold copy is taken back although the hot ones are gone",
        ((Archiver, "_is_only_copy", _ignore_the_log_node),),
    ),
}  # fmt: skip
