"""The core of one log's sequencer, driven by hand: what it wants done, and what a test tells it.

`Driver` collects effects and feeds results back; `codes` says how appends were answered.
Used by the tests of the sequencer. Source: docs/protocol/write.md, docs/protocol/recovery.md.
"""

from __future__ import annotations

import random
from typing import TypeVar

from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import CommitOutcome, LogView
from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, SequencerId
from duramen.units import SECOND
from tests.unit.core_fakes import LOG_ID, FakeBookie, FakeStore
from tests.unit.core_formatting import encode_plain_entry
from tests.unit.nodes import make_log

ME = SequencerId("me")
OTHER = SequencerId("other")
OK = BookieStatus.OK
Kind = TypeVar("Kind")


class Driver:
    """One sequencer, a store, and bookies b0, b1, b2 whose answers are given by hand."""

    def __init__(self, store: FakeStore | None = None, name: SequencerId = ME) -> None:
        self.now_us = 0
        self.name = name
        self.store = store or FakeStore(make_log())
        bookies = [FakeBookie(f"b{i}") for i in range(3)]
        self.context = SequencerContext(name, random.Random(7), encode_plain_entry)
        self.context.candidates = [bookie.candidate for bookie in bookies]
        self.context.locations = {bookie.member: bookie.candidate for bookie in bookies}
        self.core = LogSequencer(LOG_ID, self.context)
        self.outbox: list[fx.Effect] = []

    def state(self) -> LogState:
        return self.core.state

    def take(self, kind: type[Kind]) -> list[Kind]:
        """Pump, then remove and give the effects of a kind."""
        self.core.pump(self.now_us)
        self.core.validate()
        self.outbox += self.core.take_effects()
        found: list[Kind] = [effect for effect in self.outbox if isinstance(effect, kind)]
        self.outbox = [effect for effect in self.outbox if not isinstance(effect, kind)]
        return found

    def read(self, view: LogView | None = None, *, fails: bool = False) -> None:
        """Answer the one read of the metadata that is under way."""
        (asked,) = self.take(fx.ReadMetadata)
        answer = None if fails else view or self.store.view()
        self.core.on_metadata(asked.token, answer, self.now_us)
        self.core.validate()

    def commit(self, outcome: CommitOutcome | None = None, *, applies: bool = True) -> fx.Commit:
        """Carry out the one change that is proposed; report what happened, or `outcome`."""
        (commit,) = self.take(fx.Commit)
        applied = applies and self.store.commit(commit.writes, self.name)
        actual = CommitOutcome.APPLIED if applied else CommitOutcome.CONFLICT
        self.core.on_commit(commit.token, outcome or actual, self.now_us)
        self.core.validate()
        return commit

    def pass_time(self, delay_us: int) -> None:
        self.now_us += delay_us
        self.core.on_timer(self.now_us)
        self.core.validate()

    def activate(self) -> None:
        self.core.take_over(self.now_us)
        self.read()
        self.commit()
        assert self.core.state is LogState.ACTIVE

    def append(self, append_id: int, record_count: int = 2) -> None:
        deadline_us = self.now_us + 10 * SECOND
        batch = f"append {append_id}".encode()
        self.core.append(
            QueuedAppend(append_id, batch, record_count, None, 5, deadline_us), self.now_us
        )

    def store_all(self, status: BookieStatus = OK, *, only: tuple[str, ...] = ()) -> list[EntryId]:
        """Answer the adds under way (of some members only); returns the entries."""
        entries = []
        for add in self.take(fx.SendAdd):
            if not only or add.member.bookie in only:
                entries.append(add.entry)
                epoch = Epoch(add.ledger_id & 0xFFFF_FFFF)
                self.core.on_add(add.member, epoch, add.entry, status, self.now_us)
                self.core.validate()
        return sorted(dict.fromkeys(entries))

    def close_recovered(self, epoch: int) -> None:
        """Answer a whole recovery of an empty segment; all that are to be recovered are sealed."""
        for mark in self.take(fx.Commit):
            assert self.store.commit(mark.writes, self.name)
            self.core.on_commit(mark.token, CommitOutcome.APPLIED, self.now_us)
        for seal in self.take(fx.SendSeal):
            self.core.on_seal(seal.member, seal.epoch, OK, NOTHING, NOTHING, self.now_us)
        while reads := self.take(fx.SendRecoveryRead):
            for read in reads:
                self.core.on_read(
                    read.member, Epoch(epoch), read.entry, BookieStatus.NO_ENTRY, None, self.now_us
                )
        self.commit()


def codes(driver: Driver) -> list[tuple[int, str]]:
    return [(fail.append_id, fail.code) for fail in driver.take(fx.Fail)]
