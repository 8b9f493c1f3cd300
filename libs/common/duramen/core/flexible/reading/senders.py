"""Whom a pass waits for: its filter, who looked how far under it, and who is to send what is next.

A filter says who is up, and for sticky blocks who is to send them: the nearest of the copyset. A
change gives it another number, and forgets who looked how far: answers of two filters are not put
together. Where an entry's run is known, its sender is asked alone; where runs are short or not
known, all who are up are asked.

`SegmentHints` is what the reads of one segment in a process share. All of it are hints.
Called by `flexible_pass`. Source: docs/protocol/envelopes.md "Read: `POST /b/read`, version 2",
"What nobody sends", V8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.reading.hint_map import (
    HintMap,
    ToldRun,
    is_sticky,
    list_told,
    merge_told,
)
from duramen.core.flexible.reading.standing import NodeStanding
from duramen.core.flexible.sending import ReadFilter, find_sender
from duramen.core.reading.range_read import NodeAnswer
from duramen.core.reading.replica_order import ReplicaOrder
from duramen.ids import EntryId, NodeNumber
from duramen.limits import FILTER_BLOCK_COUNT_MAX
from duramen.units import KIB, MIB

MAP_BYTES_MIN: Final = 8 * MIB
"""A map is asked for where so much is left to read: less costs fewer calls without it."""

_ENTRY_BYTES: Final = 1 * KIB
"""Of an entry, before one came."""

_MAP_SKIP_COUNT: Final = 8_192
"""Entries after which blocks are looked for again, at first."""

_MAP_SKIP_MAX: Final = 1 << 20
"""Entries of a log without blocks after which it is looked for blocks once more."""

_AHEAD_RUN_COUNT_MAX: Final = 256
"""Runs that a call to one sender spans: more are the next call's."""


@dataclass(slots=True)
class SegmentHints:
    """What is known of the senders of one segment."""

    map: HintMap = field(default_factory=HintMap)
    standing: NodeStanding = field(default_factory=NodeStanding)
    last_run: ToldRun | None = None
    """Of the block that was read last."""
    filter_number: int = 0
    entry_bytes: int = _ENTRY_BYTES
    """Of the last entry that came."""
    unmapped_until: EntryId = EntryId(0)
    """Below it runs are short: a map is of no use."""
    map_skip_count: int = _MAP_SKIP_COUNT


class SenderPlan(NamedTuple):
    """Who is asked for the next entry alone."""

    sender: NodeNumber
    last: EntryId
    """How far it is the one to ask."""
    is_mapped: bool
    """Whether a map says so; False: the block before goes on, perhaps."""


class Senders:
    """The filter of one pass.

    Invariant: `looked` has answers of the filter with this number alone (V8).
    """

    def __init__(self, hints: SegmentHints, order: ReplicaOrder) -> None:
        self._hints = hints
        self._order = order
        self._rows: Mapping[NodeNumber, NodesetRow] = {}
        self.filter = ReadFilter(frozenset(), {})
        self.number = 0
        self.looked: dict[NodeNumber, EntryId] = {}
        """The first entry that a node has not looked at, under this filter."""
        self._mapped: tuple[frozenset[NodeNumber], EntryId] | None = None
        """Who was up, and the first entry that not all of them looked at, for a map."""
        self._kept: NodeNumber | None = None

    def __repr__(self) -> str:
        return f"<filter {self.number} up={sorted(self.filter.up)} looked={self.looked}>"

    def refresh(self, rows: Mapping[NodeNumber, NodesetRow], at: EntryId, now_us: int) -> None:
        """A new filter if others are up now, or the map has changed."""
        up = self._hints.standing.list_up(rows.values(), now_us)
        if up != self.filter.up or rows != self._rows or not self.number:
            self._rows = rows
            self.change(at, now_us)

    def change(self, at: EntryId, now_us: int) -> None:
        """A new filter from a position on: who looked past it is asked again."""
        self._hints.filter_number = (self._hints.filter_number + 1) % (1 << 32)
        self.number = self._hints.filter_number
        self.looked = {}
        up = self._hints.standing.list_up(self._rows.values(), now_us)
        self.filter = ReadFilter(up, self._choose_senders(up, at, now_us))

    def note_looked(self, number: NodeNumber, following: EntryId) -> None:
        """An answer under this filter."""
        self.looked[number] = max(following, self.looked.get(number, EntryId(0)))

    def has_looked(self, number: NodeNumber, entry: EntryId) -> bool:
        """Whether a node has looked past an entry under this filter."""
        return self.looked.get(number, EntryId(0)) > entry

    def has_all_looked(self, entry: EntryId) -> bool:
        """Whether everybody who is up has: what did not come is sent by nobody."""
        return all(self.has_looked(number, entry) for number in self.filter.up)

    # --- Maps ------------------------------------------------------------------------------------

    def wants_map(self, entry: EntryId, last: EntryId) -> bool:
        """Whether it pays to ask who has to send what."""
        return (
            (last - entry + 1) * self._hints.entry_bytes >= MAP_BYTES_MIN
            and entry >= self._hints.unmapped_until
            and self._hints.map.find(entry) is None
            and not self.is_known_unsent(entry)
        )

    def is_known_unsent(self, entry: EntryId) -> bool:
        """Whether a map was asked of those who are up, and nobody told the entry."""
        if self._mapped is None or self._hints.map.find(entry) is not None:
            return False
        first_unmapped = self._mapped[1]
        return self._mapped[0] == self.filter.up and entry < first_unmapped

    def on_map(self, first: EntryId, answers: Mapping[NodeNumber, NodeAnswer], now_us: int) -> None:
        """Those who are up told what they have to send."""
        following = min([answer.next for answer in answers.values()], default=first)
        runs: list[ToldRun] = []
        for number, answer in answers.items():
            told = [entry for entry, _ in answer.digests if first <= entry < following]
            runs += list_told(told, answer.runs, number)
        hints = self._hints
        if following > first and is_sticky(runs):
            hints.map.replace(first, EntryId(following - 1), merge_told(runs))
            hints.map_skip_count = _MAP_SKIP_COUNT
            is_whole = answers.keys() >= self.filter.up
            self._mapped = (self.filter.up, following) if is_whole else None
            self.change(first, now_us)
        else:
            hints.unmapped_until = EntryId(max(following, first + hints.map_skip_count))
            hints.map_skip_count = min(2 * hints.map_skip_count, _MAP_SKIP_MAX)

    # --- Who is next -----------------------------------------------------------------------------

    def plan(self, entry: EntryId, last: EntryId, now_us: int) -> SenderPlan | None:
        """Who is asked alone for an entry, and how far; None: all who are up are asked."""
        run = self._hints.map.find(entry)
        is_mapped = run is not None
        if run is None:
            run = self._hints.last_run
            if run is None or run.hint is None or run.hint.block is None or run.last >= entry:
                return None
        self._name(run, entry, now_us)
        sender = self._find_target(run)
        if sender is None:
            return None
        if run.hint is not None and run.hint.block is not None:
            self._hints.standing.on_block(run.hint.block)
        self._kept = sender
        end = min(last, self._find_end(run, sender)) if is_mapped else last
        return SenderPlan(sender, end, is_mapped)

    def note_run(self, answer: NodeAnswer, sender: NodeNumber) -> None:
        """What came last, and how large it was: the block that is being read."""
        if not answer.entries:
            return
        entry = answer.entries[-1][0]
        hints = self._hints
        hints.entry_bytes = max(1, len(answer.entries[-1][1]))
        if hints.last_run is not None and hints.last_run.last > entry:
            return
        runs = list(list_told([entry], answer.runs, sender))
        hints.last_run = runs[0] if runs else None

    def _name(self, run: ToldRun, entry: EntryId, now_us: int) -> None:
        """Have the filter name a sender for the run's block, if somebody up can be one."""
        hint = run.hint
        if hint is None or hint.block is None or hint.block in self.filter.senders:
            return
        if not self.filter.up.isdisjoint(hint.copyset):
            self.change(entry, now_us)

    def _find_target(self, run: ToldRun) -> NodeNumber | None:
        up = self.filter.up
        sender = None if run.hint is None else find_sender(self.filter, run.hint)
        if sender is not None:
            return sender
        return run.teller if run.teller in up else None

    def _find_end(self, run: ToldRun, sender: NodeNumber) -> EntryId:
        """How far the runs go on without a gap that the same node is to send."""
        end = run.last
        for count, following in enumerate(self._hints.map.list_from(EntryId(end + 1))):
            is_same = following.first == end + 1 and self._find_target(following) == sender
            if not is_same or count == _AHEAD_RUN_COUNT_MAX:
                break
            end = following.last
        return end

    def _choose_senders(
        self, up: frozenset[NodeNumber], at: EntryId, now_us: int
    ) -> dict[EntryId, NodeNumber]:
        """For the blocks that follow the position: the nearest who is up, the same one if it can
        be."""
        senders: dict[EntryId, NodeNumber] = {}
        last_run = self._hints.last_run
        ahead: list[ToldRun] = [] if last_run is None else [last_run]
        for count, run in enumerate(self._hints.map.list_from(at)):
            if count == _AHEAD_RUN_COUNT_MAX:
                break
            ahead.append(run)
        kept = self._kept
        for run in ahead:
            hint = run.hint
            if hint is None or hint.block is None or hint.block in senders:
                continue
            kept = self._rank([n for n in hint.copyset if n in up], kept, now_us)
            if kept is not None and len(senders) < FILTER_BLOCK_COUNT_MAX:
                senders[hint.block] = kept
        return senders

    def _rank(
        self, numbers: Sequence[NodeNumber], kept: NodeNumber | None, now_us: int
    ) -> NodeNumber | None:
        members = {self._rows[n].member: n for n in numbers if n in self._rows}
        if not members:
            return None
        kept_row = None if kept is None else self._rows.get(kept)
        ranked = self._order.rank(members, now_us, None if kept_row is None else kept_row.member)
        return members[ranked[0]]
