"""Mutants of flexible segments: acks by copysets, covers, digests, maps, takeovers (R22 to R29).

Hunted in runs whose logs are flexible, three of them with the faults alone that they need. Source:
docs/protocol/waves.md, docs/protocol/recovery.md "Recovery of a flexible segment",
docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.recovery import Digest, FlexibleRecovery
from duramen.core.flexible.repair import attempt as attempt_module
from duramen.core.flexible.repair.comparison import PieceJudgement, judge_piece
from duramen.core.flexible.writing.wave_writer import WaveWriter
from duramen.core.flexible.writing.waves import WaveWindow
from duramen.core.sequencer.takeover.stalled_appends import StalledAppends
from duramen.ids import EntryId, NodeNumber
from duramen.units import SECOND
from tests.sim.focus import Focus
from tests.sim.mutants.mutant import Mutant
from tests.sim.options import BODY_ROTS

_on_segment = StalledAppends.on_segment


def _count_holders(self: WaveWriter, numbers: Collection[NodeNumber]) -> bool:
    return len(set(numbers)) >= self._wanted.node


def _one_less(self: WaveWriter, numbers: Collection[NodeNumber]) -> bool:
    return len(set(numbers)) >= max(self._wanted.node - 1, 1)


def _keep_what_is_gone(self: WaveWindow, node: NodeNumber, now_us: int) -> None:
    """Its answers of before count: it had stored them."""


def _pass_over_incomplete(self: WaveWindow) -> bool:
    """LNG is the newest entry that is complete, whatever lies below it."""
    before = self.lng
    while self.entries and any(entry.is_complete for entry in self.entries):
        entry = self.entries.popleft()
        self.size_bytes -= len(entry.payload)
        if self.incomplete.pop(entry.entry, None) is not None:
            self.incomplete_bytes -= len(entry.payload)
        self.lng, self.lng_totals = entry.entry, entry.totals
    return self.lng > before


def _anybody_covers(
    self: ReplicationProperty, responders: Collection[Any], _own: Collection[Any]
) -> bool:
    return len(list(responders)) >= 1


def _absent_by_any_word(self: FlexibleRecovery, position: Any, now_us: int) -> None:
    """Nobody who was asked reports it: that is enough."""
    if position.entry <= self._lac:
        self._retry_later(now_us)
    else:
        self._conclude(now_us)


def _doubt_is_absence(self: Digest, entry: EntryId) -> bool:
    return entry not in self.entries


def _reports_suffice(self: FlexibleRecovery, position: Any, now_us: int) -> None:
    """One copy that was read is enough: the others come by repair."""
    self._complete(position, now_us)


def _appended_all_the_same(self: StalledAppends, _token: int, _segment: Any) -> None:
    """What was sent is appended again, whatever the closed segment holds."""
    placed, self._placed = self._placed, {}
    self._again = [one.append for entry in sorted(placed) for one in placed[entry]]
    self._count()


def _say_no_unseen(self: StalledAppends, token: int, segment: Any) -> None:
    """What an out_of_order epoch had under way was not appended, whatever recovery found of it."""
    if token == self._token and segment is not None and segment.ack_mode != "ordered":
        placed, self._placed = self._placed, {}
        self._fail(placed.values(), "not_appended", "nobody looked")
    _on_segment(self, token, segment)


def _nothing_is_short(*_: Any) -> PieceJudgement:
    """What is in the map has everything."""
    return PieceJudgement((), ())


def _count_who_goes(needed: Any, found: Any, repair_map: Any) -> PieceJudgement:
    """Copies of rows that are to be taken out count as long as these are there."""
    judged = judge_piece(needed, found, repair_map)
    short = [
        group
        for group in judged.short
        if not repair_map.satisfies([row.number for row in group.holders])
    ]
    return PieceJudgement(short, judged.hopeless)


_STALLING: Final = Focus(
    ("link clogged", "one-way cut", "late adds"), ack_mode="ordered", copysets="flexible",
    stall="1s", fault_us=4 * SECOND,
)  # fmt: skip
"""Owners take their own logs over all the time."""

MUTANTS: Final[dict[str, Mutant]] = {
    "wave-acked-below-its-property": Mutant(
        "R22", "an entry is acknowledged with a copy less than RP asks for",
        ((WaveWriter, "_suffices", _one_less),), copysets="flexible",
    ),
    "wave-holders-are-counted": Mutant(
        "R22", "holders are counted, wherever they lie",
        ((WaveWriter, "_suffices", _count_holders),), copysets="flexible",
    ),
    "wave-copies-of-gone-disks-count": Mutant(
        "R22", "copies on disks that were replaced count as before",
        ((WaveWindow, "take_back", _keep_what_is_gone),), copysets="flexible",
    ),
    "wave-lng-passes-an-incomplete-entry": Mutant(
        "R22", "LNG moves over entries that are not complete",
        ((WaveWindow, "pass_complete", _pass_over_incomplete),), copysets="flexible",
    ),
    "flexible-cover-of-anybody": Mutant(
        "R23", "one sealed node is taken for a cover",
        ((ReplicationProperty, "is_covered_by", _anybody_covers),), copysets="flexible",
    ),
    "flexible-absence-without-a-cover": Mutant(
        "R24", "what nobody reports is absent, however few were asked",
        ((FlexibleRecovery, "_judge_absence", _absent_by_any_word),), copysets="flexible",
    ),
    "flexible-doubt-is-absence": Mutant(
        "R24", "who cannot vouch for an entry counts as having none",
        ((Digest, "lacks", _doubt_is_absence),),
        focus=Focus((BODY_ROTS,), ack_mode="ordered", copysets="flexible"),
    ),
    "flexible-recovery-writes-nothing-back": Mutant(
        "R24", "an entry that one node has is part of the segment",
        ((FlexibleRecovery, "_write_back", _reports_suffice),), copysets="flexible",
    ),
    "flexible-map-is-believed": Mutant(
        "R26", "rows go without a look at what the others hold",
        ((attempt_module, "judge_piece", _nothing_is_short),), copysets="flexible",
    ),
    "flexible-who-goes-counts": Mutant(
        "R26", "copies of a row that goes are evidence for it",
        ((attempt_module, "judge_piece", _count_who_goes),), copysets="flexible",
    ),
    "not-appended-without-a-look": Mutant(
        "R29", "not_appended is answered for what recovery kept",
        ((StalledAppends, "on_segment", _say_no_unseen),),
        focus=_STALLING._replace(ack_mode="out_of_order"),
    ),
    "stalled-appended-all-the-same": Mutant(
        "R28", "what an owner sent before it took its log over is appended again",
        ((StalledAppends, "on_segment", _appended_all_the_same),),
        focus=_STALLING,
    ),
}  # fmt: skip
