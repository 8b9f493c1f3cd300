"""The core of a segment's writer, driven by hand: what it wants done, and what a test tells it.

`Driver` collects effects and feeds results back. Used by the tests of the writer.
Source: docs/protocol/write.md.
"""

from __future__ import annotations

import itertools
import random
from typing import TypeVar

from duramen.core.placement import Candidate, PlacementRule
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import CommitOutcome, LogView
from duramen.core.sequencer.ledger_writer import LedgerWriter
from duramen.core.status import BookieStatus
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, Member
from tests.unit.core_fakes import LOG_ID
from tests.unit.nodes import make_log

OK = BookieStatus.OK
COMMIT_DELAY_US = 5_000
ANYWHERE = PlacementRule()
Kind = TypeVar("Kind")


def member(name: str, life: int = 1) -> Member:
    return Member(BookieId(name), Incarnation(f"{life:032x}"))


class Driver:
    """A writer of E = Qw = 3, Qa = 2 over b0, b1, b2, unless said otherwise."""

    def __init__(
        self,
        *spare: str,
        quorum: Quorum | None = None,
        owed_bytes_max: int = 1 << 20,
        ack_mode: str = "ordered",
        rule: PlacementRule = ANYWHERE,
    ) -> None:
        quorum = quorum or Quorum(3, 3, 2)
        self.now_us = 0
        self.outbox: list[fx.Effect] = []
        self.candidates = [Candidate(member(name), "r", name) for name in spare]
        self.locations: dict[Member, Candidate] = {}
        self.shunned: frozenset[Member] = frozenset()
        self.owed_by_all = 0
        names = [f"b{i}" for i in range(quorum.ensemble_size)]
        self.segment = Segment(
            LOG_ID,
            Epoch(1),
            quorum,
            (Fragment(EntryId(0), tuple(map(member, names))),),
            ack_mode=ack_mode,
            nonce="n",
        )
        tokens, nonces = itertools.count(1), itertools.count(1)
        ports = Ports(
            put=self.outbox.append,
            new_token=lambda: next(tokens),
            new_nonce=lambda: f"w{next(nonces)}",
            rng=random.Random(7),
            locations=lambda: self.locations,
            candidates=lambda: self.candidates,
            shunned=lambda: self.shunned,
            owed_by_all=lambda: self.owed_by_all,
        )
        self.writer = LedgerWriter(
            self.segment,
            4,
            rule=rule,
            commit_delay_us=COMMIT_DELAY_US,
            owed_bytes_max=owed_bytes_max,
            ports=ports,
        )

    def shun(self, *names: str) -> None:
        """Other logs found these silent."""
        self.shunned = frozenset(map(member, names))
        self.writer.on_lists_changed(self.now_us)
        self.writer.validate()

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            lap = self.writer.lap + 1
            self.writer.add(f"entry {lap}".encode(), Totals(lap + 1, 10 * (lap + 1)), self.now_us)
            self.writer.validate()

    def ok(self, entry: int, *names: str) -> list[int]:
        """Bookies store an entry; returns what is acknowledged by that."""
        done: list[int] = []
        for name in names:
            done += self.answer(entry, name, OK)
        return done

    def answer(self, entry: int, name: str, status: BookieStatus) -> list[int]:
        acked = self.writer.on_add(member(name), EntryId(entry), status, self.now_us)
        self.writer.validate()
        return [sent.entry for sent in acked]

    def take(self, kind: type[Kind]) -> list[Kind]:
        """Remove and give the effects of a kind."""
        found: list[Kind] = [effect for effect in self.outbox if isinstance(effect, kind)]
        self.outbox[:] = [effect for effect in self.outbox if not isinstance(effect, kind)]
        return found

    def sent(self) -> list[tuple[str, int]]:
        """Adds that were sent since the last call: (bookie, entry)."""
        return [(add.member.bookie, add.entry) for add in self.take(fx.SendAdd)]

    def proposed(self) -> tuple[int, Segment]:
        """Token and value of the one ensemble change that is proposed."""
        (commit,) = self.take(fx.Commit)
        (write,) = commit.writes
        assert isinstance(write, fx.SetSegment) and isinstance(write.segment, Segment)
        assert write.version == self.writer.version
        return commit.token, write.segment

    def outcome(self, token: int, outcome: CommitOutcome) -> list[int]:
        acked = self.writer.on_commit(token, outcome, self.now_us)
        self.writer.validate()
        return [sent.entry for sent in acked]

    def read(self, segment: Segment | None, version: int = 4) -> list[int]:
        """Answer the one read of the metadata that is under way; None: it failed."""
        (asked,) = self.take(fx.ReadMetadata)
        view = None
        if segment is not None:
            view = LogView(make_log().with_new_epoch("x"), 1, ((segment, version),), None)
        acked = self.writer.on_metadata(asked.token, view, self.now_us)
        self.writer.validate()
        return [sent.entry for sent in acked]

    def pass_time(self, delay_us: int) -> None:
        self.now_us += delay_us
        self.writer.on_timer(self.now_us)
        self.writer.validate()
