"""Mutants of repair, drain and placement: swaps, proofs, listings, what counts as a copy.

Part of `tests.sim.mutants`. Two rules of the cluster's life have their mutants elsewhere: a bookie
that answers for any incarnation, or says NO_ENTRY for what it lost, is amnesiac
(`replaced-disk-same-identity`, `no-entry-on-damage`), and owners that check racks and regions on
the ensemble are `regions-on-the-ensemble`. Source: docs/protocol/placement.md "The rule (R20)",
docs/protocol/repair.md, R4, R20, R21.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final, cast

from duramen.core.duty import Duty
from duramen.core.placement import PlacementRule
from duramen.core.placement import choose_replacements as choose_by_rule
from duramen.core.placement import satisfies as satisfies_for_each
from duramen.core.quorum import Quorum
from duramen.core.repair import swap as swap_module
from duramen.core.repair.audit import live_epochs
from duramen.core.repair.cluster_view import CopyFate
from duramen.core.repair.drain import DutyStep
from duramen.core.repair.swap import SwapChoice
from duramen.core.segment import Segment
from duramen.core.sequencer.ledger_writer import LedgerWriter
from duramen.core.sequencer.proposals import rule_of
from duramen.core.sequencer.writing import ensemble_change as change_module
from duramen.ids import Epoch, Member, ledger_of
from duramen.runtime.stores.metadata_store import Conflict, OutcomeUnknown
from duramen.units import SECOND
from duramen.wire.metadata_json import encode_segment
from duramen_sequencer.repair import commits as commits_module
from duramen_sequencer.repair import duties as duties_module
from duramen_sequencer.repair.commits import Commits
from duramen_sequencer.repair.copying import Copier
from duramen_sequencer.repair.readings import NO_NOTES, Readings
from duramen_sequencer.repair.worker import Done, Postponed, RepairWorker
from tests.sim.mutants.mutant import Mutant

_read_segment = Readings.read_segment
_on_member_failed = LedgerWriter._on_member_failed
_seen: dict[tuple[Any, Any], Segment] = {}
"""Segments as an auditor read them last."""


async def _swap_instead_of_roll(self: RepairWorker, subject: Any) -> Any:
    view, fragment = self._view(), subject.stretch.fragment
    going = [m for m in fragment.ensemble if view.fate(m) in (CopyFate.LOST, CopyFate.LEAVING)]
    rule = rule_of(subject.log)
    choice = SwapChoice(subject.segment.quorum, rule, view, view.candidates(), self._rng)
    swap = choice.choose(fragment, going[0]) if going else None
    if swap is None:
        return Postponed(SECOND)
    segment = subject.segment
    await self._commits.swap(segment.log_id, segment.epoch, fragment, swap)
    return Done()


def _any_fragment(segment: Segment, first_entry: Any) -> Any:
    return next((f for f in segment.fragments if f.first_entry == first_entry), None)


async def _verify_nothing(*_: Any) -> list[Any]:
    return []


def _drained_when_it_obeys(state: Any, seen: Any) -> DutyStep | None:
    is_told = state.duty is Duty.DRAINING and state.published_duty is Duty.DRAINING
    return DutyStep(Duty.DRAINED, "it takes no new ledger") if is_told else None


def _satisfies_as_a_whole(
    ensemble: Any, quorum: Quorum, rule: PlacementRule, locations: Any, **more: Any
) -> bool:
    """As if every entry lay on the whole ensemble, and all of it acknowledged."""
    size = quorum.ensemble_size
    whole = Quorum(size, size, size)
    return satisfies_for_each(ensemble, whole, rule, locations, **more)


def _choose_whatever_the_rule(*inputs: Any) -> Any:
    *before, rule, locations, rng = inputs
    choose: Any = choose_by_rule
    return choose(*before, replace(rule, is_strict=False), locations, rng)


def _choose_anybody(*inputs: Any) -> Any:
    """Whoever is not in the ensemble, in the place of those that failed."""
    ensemble, failed, candidates, _, _, _, rng = inputs
    taken = {member.bookie for member in ensemble}
    free = [c.member for c in candidates if c.member.bookie not in taken]
    rng.shuffle(free)
    if len(free) < len(failed):
        return None
    return tuple(free.pop() if member in failed else member for member in ensemble)


async def _list_by_names(self: Readings, log: Any, noted: Any) -> AsyncIterator[Any]:
    names = await self._store.children(self._paths.segments(log.log_id)) or ()
    for number in live_epochs(log):
        found = await self.read_segment(log.log_id, Epoch(number))
        if str(number) in names and found is not None:
            ledger_id = ledger_of(log.log_id, Epoch(number))
            notes = await self.read_notes(ledger_id) if ledger_id in noted else NO_NOTES
            yield found[0], self.debts_of(ledger_id, notes)


async def _remember_segment(self: Readings, log_id: Any, epoch: Any) -> Any:
    found = await _read_segment(self, log_id, epoch)
    if found is not None:
        _seen[log_id, epoch] = cast(Segment, found[0])
    return found


async def _change_what_was_seen(
    self: Commits, log_id: Any, epoch: Any, change: Any, counted: str
) -> Segment | None:
    """The version is that of now, what is written rests on what was read before the copy."""
    segment = _seen.get((log_id, epoch))
    changed = None if segment is None else change(segment, f"repair.{counted}")
    if changed is None:
        return segment
    path = self._paths.segment(log_id, epoch)
    while True:
        await self._store.sync(path)
        stored = await self._store.get(path)
        if stored is None:
            return None
        try:
            await self._store.set(path, encode_segment(changed), version=stored.version)
        except (Conflict, OutcomeUnknown):
            continue
        return cast(Segment, changed)


def _suspended_holds_everything(self: LedgerWriter, member: Member, now_us: int) -> None:
    _on_member_failed(self, member, now_us)
    if member in self.suspended:
        for entry in self.window:
            if member in self.segment.write_set_of(entry.entry) and member not in entry.holders:
                entry.holders.append(member)


MUTANTS: Final[dict[str, Mutant]] = {
    "repair-changes-the-last-fragment": Mutant(
        "R21", "repair swaps members of a fragment that its owner is writing",
        (
            (RepairWorker, "_roll", _swap_instead_of_roll),
            (commits_module, "settled_fragment", _any_fragment),
            (Segment, "_settled_fragment", _any_fragment),
        ),
    ),
    "swap-before-verification": Mutant(
        "R21", "a member is named before its copy was made and verified",
        ((Copier, "copy", _verify_nothing),),
    ),
    "drained-too-early": Mutant(
        "repair.md", "a bookie is drained as soon as it takes nothing new",
        ((duties_module, "advance", _drained_when_it_obeys),),
    ),
    "repair-regions-on-the-ensemble": Mutant(
        "R20", "repair checks racks and regions on the ensemble",
        (
            (swap_module, "satisfies", _satisfies_as_a_whole),
            (swap_module, "choose_replacements", _choose_anybody),
        ),
    ),
    "replacement-degrades-silently": Mutant(
        "R20", "an owner replaces a member of a strict segment wherever there is room",
        ((change_module, "choose_replacements", _choose_whatever_the_rule),),
    ),
    "auditor-trusts-a-listing": Mutant(
        "R4", "an audit finds segments by listing them",
        ((Readings, "_list_segments", _list_by_names),),
    ),
    "repair-overwrites-its-owner": Mutant(
        "R3", "repair writes what it read before it copied, whatever stands there now",
        (
            (Readings, "read_segment", _remember_segment),
            (Commits, "_change_segment", _change_what_was_seen),
        ),
    ),
    "suspended-member-counts": Mutant(
        "R5", "a suspended member counts as if it held what it misses",
        ((LedgerWriter, "_on_member_failed", _suspended_holds_everything),),
    ),
}  # fmt: skip
