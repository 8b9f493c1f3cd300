"""Where the copies of an entry go: the copyset of each of its waves, in one open epoch of one log.

A copyset is drawn by weight under RP (`shares`), from the nodes that are neither listed nor to be
left by this entry. Where these are too few for the extras it has fewer of them. Where they do not
satisfy RP, gray ones are forgiven, in the order of their list, and only those that help; who takes
nothing new never is. Then nothing is left but to wait, and the refusal says why.

A *sticky block* is one copyset for the first waves of many entries: who reads them asks its nodes
alone. It ends by its size or age, with a wave that is late or hopeless, and when one of its nodes
is listed. One that makes do with less than was wanted ends with the next change of the lists, too.
Later waves belong to no block.

Pure: time and randomness are given. Called by the appender. Not here: who is listed
(`placement.node_states`), what is complete. Source: R22, R27.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.shares import CopysetPlan, make_plan
from duramen.core.placement.room import Rack
from duramen.core.placement.rule import Refusal
from duramen.ids import NodeNumber
from duramen.units import MIB, MINUTE, agree

BLOCK_BYTES_MAX: Final = 32 * MIB
"""Bytes of entries that one block has, each wave counted."""
BLOCK_US_MAX: Final = 10 * MINUTE
NO_BLOCK: Final = 0
"""Of an entry that belongs to no block; blocks count from 1."""
PLANS_MAX: Final = 4
"""Plans that are kept: one for the lists as they are, the others for waves after the first."""


@dataclass(frozen=True, slots=True)
class ListedNodes:
    """Nodes that no copyset should have.

    Args:
        gray: forgiven where it has to be, in this order: slow ones, silent ones, then those that
            are not registered.
        unusable: who refuses new data, or is another incarnation by now.
    """

    gray: tuple[NodeNumber, ...] = ()
    unusable: frozenset[NodeNumber] = frozenset()


class CopysetChoice(NamedTuple):
    """Where one wave goes."""

    numbers: tuple[NodeNumber, ...]
    """Its nodes in the order in which readers ask them."""
    block: int
    forgiven: tuple[NodeNumber, ...] = ()
    """Gray nodes among them."""


class _UsablePlan(NamedTuple):
    plan: CopysetPlan
    forgiven: tuple[NodeNumber, ...]
    is_whole: bool
    """It has all extras, and nobody was forgiven."""


@dataclass(slots=True)
class _StickyBlock:
    choice: CopysetChoice
    listed: ListedNodes
    is_whole: bool
    began_us: int
    entry_bytes: int = 0


class CopysetSelector:
    """Chooses the copysets of one epoch.

    Invariants:
        1. No copyset has a node that is unusable or to be left by the entry.
        2. Any `node` nodes of a copyset satisfy RP.
        3. Blocks are numbered in the order in which they begin.

    Args:
        rows: the epoch's nodeset, each bookie once.
        owner: where the log's owner is, if that is known: `statistics` counts what leaves its rack.
        is_near: place as much as RP allows in the owner's rack, then in its region.
        is_sticky: give one copyset to a block of entries.
    """

    def __init__(
        self,
        rows: Sequence[NodesetRow],
        wanted: ReplicationProperty,
        rng: random.Random,
        *,
        owner: Rack | None = None,
        is_near: bool = False,
        is_sticky: bool = True,
    ) -> None:
        assert len({row.number for row in rows}) == len(rows), rows
        assert len({row.node.bookie for row in rows}) == len(rows), rows
        assert all(row.weight > 0 for row in rows), rows
        self._rows = tuple(rows)
        self._wanted = wanted
        self._rng = rng
        self._near = owner if is_near else None
        self._is_sticky = is_sticky
        self._outside_rack = frozenset(row.number for row in rows if row.rack != owner)
        self._outside_region = frozenset(
            row.number for row in rows if row.rack is None or not owner
            or row.rack.region != owner.region
        )  # fmt: skip
        self._found: dict[tuple[ListedNodes, frozenset[NodeNumber]], _UsablePlan | Refusal] = {}
        self._block: _StickyBlock | None = None
        self._last_block = NO_BLOCK
        self._counts: Counter[str] = Counter()

    # --- choosing --------------------------------------------------------------------------------

    def choose(
        self,
        listed: ListedNodes,
        *,
        entry_bytes: int,
        now_us: int,
    ) -> CopysetChoice | Refusal:
        """Where the first wave of an entry goes, or why it has to wait."""
        block = self._block
        if block is None or not self._is_fit(block, listed, entry_bytes, now_us):
            found = self._find(listed, frozenset())
            if isinstance(found, Refusal):
                self._counts["refusals"] += 1
                return found
            block = self._begin_block(found, listed, now_us)
        block.entry_bytes += entry_bytes
        self._count(block.choice, entry_bytes)
        return block.choice

    def choose_again(
        self,
        listed: ListedNodes,
        *,
        left: frozenset[NodeNumber],
        holders: Collection[NodeNumber],
        entry_bytes: int,
    ) -> CopysetChoice | Refusal:
        """Where a later wave of an entry goes, or why it has to wait.

        Args:
            left: who is in no copyset of this entry now.
            holders: who stores the entry already: they come first in the order of readers.
        """
        found = self._find(listed, left)
        if isinstance(found, Refusal):
            self._counts["refusals"] += 1
            return found
        self._counts["copysets"] += 1
        numbers = sorted(found.plan.draw(self._rng), key=lambda number: number not in holders)
        choice = CopysetChoice(tuple(numbers), NO_BLOCK, found.forgiven)
        self._count(choice, entry_bytes)
        return choice

    def find_refusal(self, listed: ListedNodes) -> Refusal | None:
        """Why a first wave would have to wait now; None: it would not."""
        found = self._find(listed, frozenset())
        return found if isinstance(found, Refusal) else None

    def _is_fit(
        self, block: _StickyBlock, listed: ListedNodes, entry_bytes: int, now_us: int
    ) -> bool:
        """Whether the block has room for an entry; a first entry may be of any size."""
        if now_us - block.began_us >= BLOCK_US_MAX:
            return False
        if block.entry_bytes + entry_bytes > BLOCK_BYTES_MAX:
            return False
        numbers = block.choice.numbers
        if not block.is_whole:
            return listed == block.listed
        return listed.unusable.isdisjoint(numbers) and not any(n in numbers for n in listed.gray)

    def _begin_block(self, found: _UsablePlan, listed: ListedNodes, now_us: int) -> _StickyBlock:
        numbers = found.plan.draw(self._rng)
        self._block = None
        self._counts["copysets"] += 1
        if self._is_sticky:
            self._last_block += 1
        number = self._last_block if self._is_sticky else NO_BLOCK
        choice = CopysetChoice(numbers, number, found.forgiven)
        block = _StickyBlock(choice, listed, found.is_whole, now_us)
        if self._is_sticky:
            self._block = block
        return block

    def _find(self, listed: ListedNodes, left: frozenset[NodeNumber]) -> _UsablePlan | Refusal:
        key = (listed, left)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._look(listed, left)
            while len(self._found) > PLANS_MAX:
                del self._found[next(iter(self._found))]
        return found

    def _look(self, listed: ListedNodes, left: frozenset[NodeNumber]) -> _UsablePlan | Refusal:
        never = listed.unusable | left
        by_number = {row.number: row for row in self._rows if row.number not in never}
        gray = [by_number.pop(number) for number in listed.gray if number in by_number]
        rows = list(by_number.values())
        forgiven = self._forgive(rows, gray)
        if forgiven is None:
            return self._explain([*rows, *gray], listed, left)
        rows += forgiven
        numbers = tuple(row.number for row in forgiven)
        wanted = self._wanted
        for count in range(wanted.wave_count, wanted.node - 1, -1):
            plan = make_plan(rows, wanted, count, self._near)
            if plan is not None:
                is_whole = not forgiven and count == wanted.wave_count
                return _UsablePlan(plan, numbers, is_whole)
        raise AssertionError("what satisfies RP has a copyset without extras")

    def _forgive(
        self, rows: Sequence[NodesetRow], gray: Sequence[NodesetRow]
    ) -> list[NodesetRow] | None:
        """The gray ones that are needed, or None if all of them are not enough."""
        count = 0
        while not self._suffices([*rows, *gray[:count]]):
            count += 1
            if count > len(gray):
                return None
        needed = list(gray[:count])
        for row in reversed(gray[:count]):
            rest = [one for one in needed if one is not row]
            if self._suffices([*rows, *rest]):
                needed = rest
        return needed

    def _suffices(self, rows: Sequence[NodesetRow]) -> bool:
        """Whether they have a copyset without extras: `node` of them satisfy RP if all do."""
        return self._wanted.is_satisfied_by(row.node for row in rows)

    def _explain(
        self, rows: Sequence[NodesetRow], listed: ListedNodes, left: frozenset[NodeNumber]
    ) -> Refusal:
        wanted = self._wanted
        racks = {row.rack for row in rows if row.rack is not None}
        regions = {row.node.region for row in rows if row.rack is not None}
        unusable_count = sum(row.number in listed.unusable for row in self._rows)
        left_count = sum(
            row.number in left and row.number not in listed.unusable for row in self._rows
        )
        numbers = {
            "node": wanted.node, "rack": wanted.rack, "region": wanted.region,
            "bookies": len(rows), "racks": len(racks), "regions": len(regions),
            "nodeset": len(self._rows), "unusable": unusable_count, "left": left_count,
        }  # fmt: skip
        if len(rows) < wanted.node:
            kind, least = "bookies", wanted.node
        elif wanted.region > 1 and len(regions) < wanted.region:
            kind, least = "regions", wanted.region
        else:
            kind, least = "racks", wanted.rack
        detail = (
            f"the copies of an entry need {least} {kind}, and of {len(self._rows)} bookies of the "
            f"nodeset {len(rows)} in {len(racks)} racks of {len(regions)} regions can be asked: "
            f"{unusable_count} take nothing new or are away, {left_count} have not answered it"
        )
        return Refusal(f"too_few_{kind}", numbers, agree(detail))

    # --- blocks ----------------------------------------------------------------------------------

    def end_block(self, block: int) -> None:
        """A wave of that block is late or hopeless. Of one that has ended it says nothing."""
        if self._block is not None and self._block.choice.block == block:
            self._block = None

    def switch_sticky(self, is_sticky: bool) -> None:
        """From the next entry on."""
        self._is_sticky = is_sticky
        if not is_sticky:
            self._block = None

    def forget_plans(self) -> None:
        """Give back the memory that choosing takes; an idle log needs none."""
        self._found.clear()

    # --- what was chosen -------------------------------------------------------------------------

    def statistics(self) -> dict[str, int]:
        """Copysets, blocks and refusals so far; bytes of copies, and those that leave the owner's
        rack and region. Sizes of what is kept."""
        names = ("copysets", "refusals", "forgiven_waves", "copied_bytes")
        return {
            **{name: self._counts[name] for name in names},
            "cross_rack_bytes": self._counts["cross_rack_bytes"],
            "cross_region_bytes": self._counts["cross_region_bytes"],
            "blocks": self._last_block,
            "plans": len(self._found),
        }

    def _count(self, choice: CopysetChoice, entry_bytes: int) -> None:
        counts, numbers = self._counts, choice.numbers
        outside_rack = sum([n in self._outside_rack for n in numbers])
        outside_region = sum([n in self._outside_region for n in numbers])
        counts["copied_bytes"] += len(numbers) * entry_bytes
        counts["cross_rack_bytes"] += outside_rack * entry_bytes
        counts["cross_region_bytes"] += outside_region * entry_bytes
        counts["forgiven_waves"] += bool(choice.forgiven)
