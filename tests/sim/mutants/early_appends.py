"""Mutants of early appends (`early_append`): seals, visibility, the bound, who may go ahead.

Part of `tests.sim.mutants`. Source: docs/protocol/ownership.md "Early appends", R18.
"""

from __future__ import annotations

from typing import Any, Final

from duramen.core.reading.reader import Reader
from duramen.core.sequencer.recovery import Recovery
from duramen.core.sequencer.takeover.early_appends import EarlyAppends
from duramen.core.sequencer.takeover.older_epochs import OlderEpochs
from duramen.ids import EntryId
from duramen.runtime.reading.tail import TailFinder
from tests.sim.mutants.mutant import Mutant

_take_segment = Reader._take_segment


def _number_before_the_close(self: Reader, segment: Any) -> bool:
    """What is closed so far is taken for everything below."""
    if self._start_seq_num is None and segment is not None and segment.epoch == self._epoch:
        assert self._log is not None
        self._start_seq_num = self._log.totals.record_count
    return _take_segment(self, segment)


async def _believe_the_lac(
    _self: TailFinder, _follower: Any, segment: Any, _config: Any, answers: Any
) -> tuple[EntryId, bool]:
    first_entry = segment.last_fragment.first_entry
    return EntryId(max([first_entry - 1, *(marks.lac for marks in answers.values())])), True


async def _nothing_lies_behind(*_: Any) -> bool:
    """The tail is looked for in epoch LCE + 1 alone."""
    return False


MUTANTS: Final[dict[str, Mutant]] = {
    "early-append-visible": Mutant(
        "R18", "an early append is visible before the epoch below is closed",
        ((Reader, "_take_segment", _number_before_the_close),),
    ),
    "early-append-of-a-producer": Mutant(
        "ownership.md", "a producer's batch is appended before the producers are known",
        (
            (EarlyAppends, "admit", lambda *_: True),
            (EarlyAppends, "validate", lambda _: None),
        ),
    ),
    "early-append-before-the-seals": Mutant(
        "ownership.md", "a new epoch acknowledges before every older one is sealed",
        ((OlderEpochs, "are_bounded", property(lambda _: True)),),
    ),
    "tail-below-early-appends": Mutant(
        "L1", "a tail is called sure behind which early appends lie",
        ((TailFinder, "_has_early_appends", _nothing_lies_behind),),
    ),
    "tail-at-the-first-lac": Mutant(
        "L1", "a tail is called sure below entries that bookies hold above the LAC",
        ((TailFinder, "_judge", _believe_the_lac),),
    ),
    "early-append-without-a-bound": Mutant(
        "O2", "recovery takes what a zombie stored after a newer epoch had acknowledged",
        ((Recovery, "_is_above_bound", lambda *_: False),),
    ),
}  # fmt: skip
