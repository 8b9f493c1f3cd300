"""The core of a recovery, driven by hand: what it wants done, and what a test tells it.

`Driver` collects effects and feeds results back. Used by the tests of recoveries.
Source: docs/protocol/recovery.md.
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
from duramen.core.sequencer.effects import CommitOutcome, StoredEntry
from duramen.core.sequencer.recovery import Recovery, RecoveryState
from duramen.core.status import BookieStatus
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    Member,
    SequencerId,
)
from duramen.limits import RETRY_DELAY_MAX_US
from tests.unit.core_fakes import LOG_ID, FakeStore
from tests.unit.nodes import make_log

OK = BookieStatus.OK
TIMEOUT = BookieStatus.TIMEOUT
ME = SequencerId("me")
Kind = TypeVar("Kind")


def member(name: str) -> Member:
    return Member(BookieId(name), Incarnation("0" * 32))


def stored(entry: int, *, has_state: bool = True) -> StoredEntry:
    """Ten bytes and one record in each entry."""
    totals = Totals(entry + 1, 10 * (entry + 1))
    return StoredEntry(f"entry {entry}".encode(), totals, has_state)


class Driver:
    """Recovery of epoch 1, OPEN and of one fragment on b0 … unless said otherwise."""

    def __init__(
        self,
        quorum: Quorum | None = None,
        *,
        spare: tuple[str, ...] = (),
        fragments: tuple[Fragment, ...] = (),
        ack_mode: str = "ordered",
    ) -> None:
        quorum = quorum or Quorum(3, 3, 2)
        self.now_us = 0
        self.outbox: list[fx.Effect] = []
        names = [f"b{i}" for i in range(quorum.ensemble_size)]
        fragments = fragments or (Fragment(EntryId(0), tuple(map(member, names))),)
        self.store = FakeStore(make_log())
        opened = Segment(LOG_ID, Epoch(1), quorum, fragments, ack_mode=ack_mode)
        log = self.store.log.with_new_epoch("o")
        assert self.store.commit((fx.SetLog(log, 0), fx.CreateSegment(opened)), ME)
        self.candidates = [Candidate(member(name), "r", name) for name in spare]
        tokens, nonces = itertools.count(1), itertools.count(1)
        self._ports = Ports(
            put=self.outbox.append,
            new_token=lambda: next(tokens),
            new_nonce=lambda: f"r{next(nonces)}",
            rng=random.Random(7),
            locations=dict,
            candidates=lambda: self.candidates,
        )

    def start(self, *, needs_bound: bool = False) -> Recovery:
        view = self.store.view()
        segment, version = view.segments[0]
        assert isinstance(segment, Segment), segment
        self.core = Recovery(
            segment,
            version,
            view.log,
            view.log_version,
            rule=PlacementRule(),
            ports=self._ports,
            unix_ms=lambda now_us: now_us // 1000,
            needs_bound=needs_bound,
        )
        self.core.start(self.now_us)
        self.core.validate()
        return self.core

    def state(self) -> RecoveryState:
        return self.core.state

    def take(self, kind: type[Kind]) -> list[Kind]:
        """Remove and give the effects of a kind."""
        found: list[Kind] = [effect for effect in self.outbox if isinstance(effect, kind)]
        self.outbox[:] = [effect for effect in self.outbox if not isinstance(effect, kind)]
        return found

    def commit(self, outcome: CommitOutcome | None = None, *, applies: bool = True) -> None:
        """Carry out the one change that is proposed; report what happened, or `outcome`."""
        (commit,) = self.take(fx.Commit)
        applied = applies and self.store.commit(commit.writes, ME)
        actual = CommitOutcome.APPLIED if applied else CommitOutcome.CONFLICT
        self.core.on_commit(commit.token, outcome or actual, self.now_us)
        self.core.validate()

    def read_metadata(self) -> None:
        """Let the pause pass and answer the read that follows."""
        self.pass_time()
        (asked,) = self.take(fx.ReadMetadata)
        self.core.on_metadata(asked.token, self.store.view(), self.now_us)
        self.core.validate()

    def pass_time(self) -> None:
        self.now_us += RETRY_DELAY_MAX_US
        self.core.on_timer(self.now_us)
        self.core.validate()

    def seal(self, *names: str, lac: int = -1, highest: int = -1) -> None:
        for name in names:
            self.core.on_seal(member(name), OK, EntryId(lac), EntryId(highest), self.now_us)
            self.core.validate()

    def answer(self, status: BookieStatus, entry: int, *, has_state: bool = True) -> str:
        """Answer the one read that is under way; returns who was asked."""
        (asked,) = self.take(fx.SendRecoveryRead)
        assert asked.entry == entry, (asked, entry)
        found = stored(entry, has_state=has_state) if status is OK else None
        self.core.on_read(asked.member, asked.entry, status, found, self.now_us)
        self.core.validate()
        return asked.member.bookie

    def write_back(self, entry: int, *lost: str, why: BookieStatus = TIMEOUT) -> list[str]:
        """Answer the write-backs under way, `why` from `lost`; returns who was asked."""
        adds = self.take(fx.SendAdd)
        for add in adds:
            assert add.is_recovery and add.entry == entry and add.payload == stored(entry).payload
            status = why if add.member.bookie in lost else OK
            self.core.on_add(add.member, add.entry, status, self.now_us)
            self.core.validate()
        return [add.member.bookie for add in adds]

    @property
    def closed(self) -> Segment:
        segment = self.store.segments[Epoch(1)][0]
        assert isinstance(segment, Segment) and segment.is_closed and self.core.is_done
        return segment
