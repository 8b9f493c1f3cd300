"""Mutants of early appends (`early_append`): seals, visibility, the bound, who may go ahead.

Part of `tests.sim.mutants`. Source: 01-protocol section 5, R18.
"""

from __future__ import annotations

from typing import Any, Final

from duramen.core.reader import Reader
from duramen.core.sequencer.recovery import Recovery
from duramen.core.sequencer.takeover.early_appends import EarlyAppends
from duramen.core.sequencer.takeover.older_epochs import OlderEpochs
from tests.sim.mutants.mutant import Mutant

_take_segment = Reader._take_segment


def _number_before_the_close(self: Reader, segment: Any) -> bool:
    """What is closed so far is taken for everything below."""
    if self._start_seq_num is None and segment is not None and segment.epoch == self._epoch:
        assert self._log is not None
        self._start_seq_num = self._log.totals.record_count
    return _take_segment(self, segment)


MUTANTS: Final[dict[str, Mutant]] = {
    "early-append-visible": Mutant(
        "R18", "an early append is visible before the epoch below is closed",
        ((Reader, "_take_segment", _number_before_the_close),),
    ),
    "early-append-of-a-producer": Mutant(
        "section 5", "a producer's batch is appended before the producers are known",
        (
            (EarlyAppends, "_admit", lambda *_: True),
            (EarlyAppends, "validate", lambda _: None),
        ),
    ),
    "early-append-before-the-seals": Mutant(
        "section 5", "a new epoch acknowledges before every older one is sealed",
        ((OlderEpochs, "are_bounded", property(lambda _: True)),),
    ),
    "early-append-without-a-bound": Mutant(
        "O2", "recovery takes what a zombie stored after a newer epoch had acknowledged",
        ((Recovery, "_is_above_bound", lambda *_: False),),
    ),
}  # fmt: skip
