"""Repair of flexible segments: histories of repairers and faults, each rule broken on purpose.

`flexible_repair_world` looks after each change of the map at what lies on the disks. A mutant here
breaks one sentence of the page that is marked †; some history has to show it. Source: R26,
docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duramen.core.flexible.repair import comparison
from duramen.core.flexible.repair.attempt import RepairAttempt
from duramen.core.flexible.repair.evidence import DamageMark, Evidence
from duramen.core.flexible.repair.repair_map import RepairMap
from duramen.core.repair.copies import Holdings
from duramen.ids import EntryId
from tests.tiers import sized
from tests.unit.flexible_repair_world import Disk, RepairWorld, UndoneError, WorldFault, play

HISTORY_COUNT = sized(fast=30, gate=75, night=3_000)
HUNT_COUNT = 600
"""Histories within which each mutant is to show; the slowest needed 250 when this was written."""

Patch = pytest.MonkeyPatch


def test_no_change_leaves_an_entry_with_too_few_copies_and_all_work_ends() -> None:
    change_count = 0
    for seed in range(HISTORY_COUNT):
        holes = ((2, 2),) if seed % 3 == 0 else ()
        change_count += play(seed, repairer_count=1 + seed % 3, holes=holes).change_count
    assert change_count > HISTORY_COUNT, "nothing much happened"


# --- Mutants -------------------------------------------------------------------------------------


def _forget_the_version(patch: Patch) -> None:
    """The change binds neither `nodeset_version` nor what it stands for."""
    patch.setattr(Evidence, "holds", lambda *_: True)
    patch.setattr(Evidence, "_is_judged_by", lambda *_: True)


def _ask_for_no_marks_again(patch: Patch) -> None:
    conclude = RepairAttempt._conclude
    patch.setattr(
        RepairAttempt, "_conclude", lambda self, _, asked_us: conclude(self, self._marks, asked_us)
    )


def _count_who_goes(patch: Patch) -> None:
    """Several go in one attempt, and each is evidence for the others."""
    init = RepairMap.__post_init__

    def post_init(self: RepairMap) -> None:
        init(self)
        object.__setattr__(self, "witnesses", self.there)

    def take_out(self, segment, needed, number, nonce):  # type: ignore[no-untyped-def]
        is_allowed = segment.find_row(number) is not None and self.holds(segment, needed)
        return segment.without_node(number, nonce) if is_allowed else None

    patch.setattr(RepairMap, "__post_init__", post_init)
    patch.setattr(Evidence, "take_out", take_out)


def _count_what_was_sent(patch: Patch) -> None:
    """The targets are not asked again."""

    def on_copied(self: RepairAttempt) -> None:
        for order in self._orders:
            for first, last in order.ranges:
                known: dict[EntryId, int] = {}
                for source in order.sources:
                    known |= self._found[source.number].identities
                held = self._found[order.target.number].identities
                held |= {EntryId(e): known[EntryId(e)] for e in range(first, last + 1)}
        self._orders = []
        self._judge()

    patch.setattr(RepairAttempt, "on_copied", on_copied)


def _count_who_is_named(patch: Patch) -> None:
    """Whoever is in the map holds every entry, as a copyset would have it."""
    judge = comparison.judge_piece

    def judge_piece(needed, found, repair_map):  # type: ignore[no-untyped-def]
        known: dict[EntryId, int] = {}
        for held in found.values():
            known |= held.identities
        named = {number: Holdings(dict(known)) for number in found}
        return judge([e for e in needed if e in known], named, repair_map)

    patch.setattr("duramen.core.flexible.repair.attempt.judge_piece", judge_piece)


def _believe_old_marks(patch: Patch) -> None:
    patch.setattr(Evidence, "is_fresh", lambda *_: True)


def _judge_by_the_map_alone(patch: Patch) -> None:
    def suffices(self, rows, added):  # type: ignore[no-untyped-def]
        nodes = [*(row.node for row in rows), *added]
        return self.segment.replication.is_satisfied_by(nodes)

    patch.setattr(RepairMap, "suffices_with", suffices)


def _take_rows_out_before_places_are_told(patch: Patch) -> None:
    """The map's places say another thing than what the rows were judged by."""

    def take_out(self, segment, needed, number, nonce):  # type: ignore[no-untyped-def]
        is_named = number not in self.witnesses and segment.find_row(number) is not None
        return (
            segment.without_node(number, nonce)
            if is_named and self.holds(segment, needed)
            else None
        )

    patch.setattr(Evidence, "take_out", take_out)
    patch.setattr(Evidence, "relocate", lambda *_: None)


def _mark_without_the_start(patch: Patch) -> None:
    mark = property(lambda self: DamageMark(self.damage_count))
    patch.setattr(Disk, "mark", mark)


def _mark_without_the_count(patch: Patch) -> None:
    patch.setattr(Disk, "mark", property(lambda self: DamageMark(self.start << 32)))


def _take_marks_with_the_answers(patch: Patch) -> None:
    """The mark is that of after the reading."""
    worlds: list[RepairWorld] = []
    init, on_holdings = RepairWorld.__init__, RepairAttempt.on_holdings

    def remember(self, *args, **options):  # type: ignore[no-untyped-def]
        worlds.append(self)
        init(self, *args, **options)

    def late(self, found):  # type: ignore[no-untyped-def]
        on_holdings(self, found)
        for row in self._map.there:
            mark = worlds[-1].find_mark(row.member)
            if mark is not None and row.number in self._marks:
                self._marks[row.number] = mark

    patch.setattr(RepairWorld, "__init__", remember)
    patch.setattr(RepairAttempt, "on_holdings", late)


def _need_what_lies_in_holes(patch: Patch) -> None:
    def list_needed(self):  # type: ignore[no-untyped-def]
        return [(EntryId(self.first_needed), self.segment.last_entry)]

    play_one = RepairWorld.needed_entries
    patch.setattr(RepairWorld, "list_needed", list_needed)
    patch.setattr(
        RepairWorld,
        "needed_entries",
        lambda self: [e for e in play_one(self) if self.segment.hole_at(e) is None],
    )


@pytest.mark.parametrize(
    ("mutate", "options"),
    [
        (_forget_the_version, {"has_only_drains": True}),
        (_ask_for_no_marks_again, {}),
        (_count_who_goes, {}),
        (_count_what_was_sent, {}),
        (_count_who_is_named, {}),
        (_believe_old_marks, {}),
        (_judge_by_the_map_alone, {}),
        (_take_rows_out_before_places_are_told, {}),
        (_mark_without_the_start, {}),
        (_mark_without_the_count, {}),
        (_take_marks_with_the_answers, {}),
        (_need_what_lies_in_holes, {"holes": ((2, 2),)}),
        (lambda _: None, {"is_bound_to_session": False}),
    ],
    ids=lambda value: getattr(value, "__name__", "").strip("_<>") if callable(value) else None,
)
def test_each_rule_that_is_broken_shows(
    mutate: Callable[[Patch], None], options: dict[str, bool], monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    for seed in range(HUNT_COUNT):
        try:
            play(seed, **options)
        except WorldFault as fault:
            print(f"seen by history {seed}: {fault}")
            return
        except UndoneError:
            continue  # it is slow or stuck as well: that is not what it has to show
    pytest.fail(f"{HUNT_COUNT} histories did not show it")
