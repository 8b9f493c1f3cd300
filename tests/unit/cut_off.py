"""A takeover by a sequencer that reaches no bookie.

Used by `test_cut_off_takeover` and `test_relief`. Source: docs/protocol/ownership.md.
"""

from __future__ import annotations

from duramen.core.segment import Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import CommitOutcome, StoredEntry
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.recovery import RecoveryState
from duramen.ids import NOTHING, EntryId, Epoch
from tests.unit.sequencer_driver import OK, OTHER, Driver

FOUND = StoredEntry(b"entry 0", Totals(1, 7), True)


def take_over_until(state: RecoveryState) -> Driver:
    """A taker whose recovery of epoch 1 has come to a state; an append waits for it."""
    owner = Driver(name=OTHER)
    owner.activate()
    taker = Driver(owner.store)
    taker.core.take_over(0)
    taker.read()
    taker.commit()
    taker.append(1)
    (mark,) = taker.take(fx.Commit)
    assert taker.store.commit(mark.writes, taker.name)
    taker.core.on_commit(mark.token, CommitOutcome.APPLIED, taker.now_us)
    seals = taker.take(fx.SendSeal)
    if state is not RecoveryState.SEAL:
        for seal in seals:
            taker.core.on_seal(seal.member, seal.epoch, OK, NOTHING, EntryId(0), taker.now_us)
    if state is RecoveryState.WRITE_BACK:
        (read,) = taker.take(fx.SendRecoveryRead)
        taker.core.on_read(read.member, Epoch(1), read.entry, OK, FOUND, taker.now_us)
    assert taker.core.recovery is not None
    assert (taker.state(), taker.core.recovery.state) == (LogState.RECOVERING, state)
    return taker
