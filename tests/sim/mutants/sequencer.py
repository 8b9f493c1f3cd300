"""Mutants of a log over its epochs: takeovers, rolls, and readers that go from one to the next.

Part of `tests.sim.mutants`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from duramen.core.reading.reader import Reader
from duramen.core.sequencer.effects import Fail
from duramen.core.sequencer.epoch.open_epoch import OpenEpoch
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.sequencer.log_state import Fenced, LogState, Outcome, TakenOver
from duramen.core.sequencer.takeover.takeover import Takeover
from duramen.ids import EntryId
from tests.sim.mutants.mutant import Mutant

# --- the log's sequencer -------------------------------------------------------------------------

_go_on = Takeover._go_on


def _append_before_older_epochs_are_closed(
    self: Takeover, view: Any, now_us: int
) -> Outcome | None:
    mine = self._changes.find_segment(view)
    if mine is None:
        return _go_on(self, view, now_us)
    self._carried._table = ProducerTable(1)
    return TakenOver(*mine)


def _roll_with_the_window_open(self: OpenEpoch, now_us: int) -> None:
    if self.writer.state is WriterState.OPEN:
        self.writer.hold()
        self.state = LogState.CLOSING
        self._changes.read()


def _recover_own_epoch(self: OpenEpoch, now_us: int) -> Outcome:
    """The roll's drain took too long: recover one's own epoch, call what was sent failed."""
    pipeline = self._pipeline
    for fail in pipeline._transmit.fail_sent("the roll took too long"):
        pipeline._put(Fail(fail.append_id, "log_unavailable", fail.detail))
    return Fenced("the roll took too long")


def _recover_newest_first(self: Takeover, view: Any, now_us: int) -> Outcome | None:
    mine = self._changes.find_segment(view)
    older = [s for s in view.segments if s != mine]
    if len(older) > 1:
        view = replace(view, segments=(*reversed(older), *(() if mine is None else (mine,))))
    return _go_on(self, view, now_us)


# --- reader and placement ------------------------------------------------------------------------


def _bound_beyond_the_end(self: Reader) -> EntryId:
    if self._segment is None or self._start_seq_num is None:
        return EntryId(-1)
    if self._segment.last_entry is not None:
        return EntryId(max(self._segment.last_entry, self._stored))
    return self._lac


def _over_when_sealed(self: Reader) -> bool:
    segment = self._segment
    is_ending = segment is not None and (segment.is_closed or self._is_sealed)
    return is_ending and self._next > self.bound


MUTANTS: Final[dict[str, Mutant]] = {
    "ack-before-older-epochs-are-closed": Mutant(
        "recovery.md", "a new epoch appends before the older ones are sealed",
        ((Takeover, "_go_on", _append_before_older_epochs_are_closed),),
    ),
    "roll-with-window-open": Mutant(
        "R19", "a roll does not wait for its window",
        ((OpenEpoch, "_go_on_draining", _roll_with_the_window_open),),
    ),
    "roll-recovers-own-epoch": Mutant(
        "R19", "a roll that takes too long recovers its own epoch and calls appends failed",
        ((OpenEpoch, "_call_off", _recover_own_epoch),),
    ),
    "close-before-predecessor": Mutant(
        "recovery.md", "a newer epoch is closed before an older one",
        ((Takeover, "_go_on", _recover_newest_first),),
    ),
    "leftovers-served": Mutant(
        "R17", "entries beyond the last one are served",
        ((Reader, "bound", property(_bound_beyond_the_end)),),
    ),
    "next-segment-early": Mutant(
        "R18", "a reader goes on when a segment is sealed",
        ((Reader, "_is_over", _over_when_sealed),),
    ),
}  # fmt: skip
