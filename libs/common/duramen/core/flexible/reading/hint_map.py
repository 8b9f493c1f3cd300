"""Where entries of a flexible segment were told to lie: runs of one envelope and one teller.

Made of answers with envelopes. A run says that its teller has each of its entries, as it said, and
whom their copysets name. All of it is a hint: who asks by a map that is old or wrong misses an
entry, and asks all nodes for it.

Pure, bounded. Called by `senders`. Source: docs/protocol/envelopes.md "Read: `POST /b/read`,
version 2".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from duramen.core.flexible.sending import CopysetHint
from duramen.core.reading.range_read import HintRun
from duramen.ids import NOTHING, EntryId, NodeNumber

RUN_COUNT_MAX: Final = 8_192
"""Of one segment: a map of 65,536 entries in blocks has a few, and one without blocks is useless
long before."""

STICKY_ENTRY_COUNT: Final = 32
"""Entries of a run, on average, from which on asking one node for a run costs fewer calls."""


class ToldRun(NamedTuple):
    """Entries without a gap that one node told, with one envelope."""

    first: EntryId
    last: EntryId
    hint: CopysetHint | None
    teller: NodeNumber


class HintMap:
    """Runs of one segment, ascending and apart."""

    def __init__(self) -> None:
        self._runs: list[ToldRun] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<hints {self._runs[:4]}{' …' * (len(self._runs) > 4)}>"

    def find(self, entry: EntryId) -> ToldRun | None:
        """The run that an entry lies in."""
        at = self._index_of(entry)
        return self._runs[at] if at >= 0 and entry <= self._runs[at].last else None

    def list_from(self, entry: EntryId) -> Iterator[ToldRun]:
        """The runs from the one that an entry lies in, or behind it, on."""
        at = max(0, self._index_of(entry))
        for run in self._runs[at:]:
            if run.last >= entry:
                yield run

    def replace(self, first: EntryId, last: EntryId, runs: Iterable[ToldRun]) -> None:
        """What is known of a range is this now: ascending runs, none beyond it."""
        kept_before = [_cut(r, r.first, EntryId(first - 1)) for r in self._runs if r.first < first]
        kept_behind = [_cut(r, EntryId(last + 1), r.last) for r in self._runs if r.last > last]
        joined: list[ToldRun] = []
        for run in (*kept_before, *runs, *kept_behind):
            before = joined[-1] if joined else None
            if before is not None and _is_one(before, run):
                joined[-1] = before._replace(last=run.last)
            else:
                joined.append(run)
        self._runs = joined[-RUN_COUNT_MAX:]

    def _index_of(self, entry: EntryId) -> int:
        """Of the last run that begins at or below an entry; -1: none does."""
        return bisect_right(self._runs, entry, key=lambda run: run.first) - 1


def list_told(
    told: Sequence[EntryId], runs: Sequence[HintRun], teller: NodeNumber
) -> Iterator[ToldRun]:
    """What one answer tells, as runs without gaps.

    Args:
        told: its entries, ascending.
        runs: of the answer; between the entries of one there may be others' entries.
    """
    first = last = NOTHING
    hint: CopysetHint | None = None
    at = 0
    for entry in told:
        while at < len(runs) and runs[at].last < entry:
            at += 1
        is_hinted = at < len(runs) and runs[at].first <= entry
        found = runs[at].envelope if is_hinted else None
        if first == NOTHING or entry != last + 1 or found != hint:
            if first != NOTHING:
                yield ToldRun(first, last, hint, teller)
            first, hint = entry, found
        last = entry
    if first != NOTHING:
        yield ToldRun(first, last, hint, teller)


def is_sticky(runs: Collection[ToldRun]) -> bool:
    """Whether runs are long, so that asking one node for each pays; True where there are none."""
    entry_count = sum(run.last - run.first + 1 for run in runs)
    return entry_count >= len(runs) * STICKY_ENTRY_COUNT


def merge_told(runs: Iterable[ToldRun]) -> Iterator[ToldRun]:
    """Runs of several answers, apart: of an entry that was told twice one is kept."""
    end = NOTHING
    for run in sorted(runs, key=lambda run: run.first):
        if run.last > end:
            yield run._replace(first=EntryId(max(run.first, end + 1)))
            end = run.last


def _cut(run: ToldRun, first: EntryId, last: EntryId) -> ToldRun:
    return run._replace(first=max(run.first, first), last=min(run.last, last))


def _is_one(before: ToldRun, run: ToldRun) -> bool:
    return before.last + 1 == run.first and before.hint == run.hint and before.teller == run.teller
