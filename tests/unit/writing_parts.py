"""What a part of the ledger writer is given in its tests: a segment, entries, ports that record.

Used by the tests of `core/sequencer/writing`, which call one part without the others. The parts
together are tested through their face, in `test_ledger_writer.py`. Source: docs/protocol/write.md.
"""

from __future__ import annotations

import itertools
import random
from typing import TypeVar

from duramen.core.placement import Candidate
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.writing.window import SentEntry
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, Member
from tests.unit.core_fakes import LOG_ID

Kind = TypeVar("Kind")


def member(name: str, life: int = 1) -> Member:
    """A bookie of this name; another life has other disks."""
    return Member(BookieId(name), Incarnation(f"{life:032x}"))


B0, B1, B2, B3 = (member(f"b{i}") for i in range(4))


def make_segment(
    quorum: Quorum | None = None, *, later: tuple[Member, ...] = (), ack_mode: str = "ordered"
) -> Segment:
    """E = Qw = 3, Qa = 2 over b0, b1, b2, unless said otherwise; `later`: from entry 2 on."""
    quorum = quorum or Quorum(3, 3, 2)
    members = tuple(member(f"b{i}") for i in range(quorum.ensemble_size))
    fragments = [Fragment(EntryId(0), members)]
    if later:
        fragments.append(Fragment(EntryId(2), later, Totals(2)))
    return Segment(LOG_ID, Epoch(1), quorum, tuple(fragments), ack_mode=ack_mode, nonce="n")


def make_entry(entry_id: int, *holders: Member) -> SentEntry:
    """Ten bytes, acknowledged, stored by these."""
    totals = Totals(entry_id + 1)
    return SentEntry(EntryId(entry_id), b"ten bytes!", totals, [*holders], True, True)


class Recorder:
    """Ports whose effects are kept."""

    def __init__(self, *spare: str) -> None:
        self.outbox: list[fx.Effect] = []
        self.candidates = [Candidate(member(name), "r", name) for name in spare]
        self.owed_by_all = 0
        self.may_change = True
        tokens, nonces = itertools.count(1), itertools.count(1)
        self.ports = Ports(
            put=self.outbox.append,
            new_token=lambda: next(tokens),
            new_nonce=lambda: f"w{next(nonces)}",
            rng=random.Random(7),
            locations=dict,
            candidates=lambda: self.candidates,
            may_change_ensemble=lambda: self.may_change,
            owed_by_all=lambda: self.owed_by_all,
        )

    def take(self, kind: type[Kind]) -> list[Kind]:
        """Remove and give the effects of a kind."""
        found: list[Kind] = [effect for effect in self.outbox if isinstance(effect, kind)]
        self.outbox[:] = [effect for effect in self.outbox if not isinstance(effect, kind)]
        return found

    def sent(self) -> list[tuple[str, int]]:
        """Adds since the last call: (bookie, entry)."""
        return [(add.member.bookie, add.entry) for add in self.take(fx.SendAdd)]

    def told(self) -> list[tuple[str, int, int]]:
        """Explicit LACs since the last call: (bookie, LAC, round)."""
        return [(lac.member.bookie, lac.lac, lac.round_id) for lac in self.take(fx.SendLac)]
