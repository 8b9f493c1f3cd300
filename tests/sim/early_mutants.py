"""Mutants about early appends (`early_append`), for the table in `mutants`.

Source: 06-testing "Mutants", 01-protocol section 5, R18.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duramen.core.reader import Reader
from duramen.core.sequencer.recovery import Recovery
from duramen.core.sequencer.takeover.early_appends import EarlyAppends
from duramen.core.sequencer.takeover.older_epochs import OlderEpochs

_take_segment = Reader._take_segment


def _number_before_the_close(self: Reader, segment: Any) -> bool:
    """What is closed so far is taken for everything below."""
    if self._start_seq_num is None and segment is not None and segment.epoch == self._epoch:
        assert self._log is not None
        self._start_seq_num = self._log.totals.record_count
    return _take_segment(self, segment)


EARLY_MUTANTS: Final[Mapping[str, tuple[str, str, tuple[tuple[Any, str, Any], ...]]]] = {
    "early-append-visible": (
        "R18", "an early append is visible before the epoch below is closed",
        ((Reader, "_take_segment", _number_before_the_close),),
    ),
    "early-append-of-a-producer": (
        "section 5", "a producer's batch is appended before the producers are known",
        (
            (EarlyAppends, "_admit", lambda *_: True),
            (EarlyAppends, "validate", lambda _: None),
        ),
    ),
    "early-append-before-the-seals": (
        "section 5", "a new epoch acknowledges before every older one is sealed",
        ((OlderEpochs, "are_bounded", property(lambda _: True)),),
    ),
    "early-append-without-a-bound": (
        "O2", "recovery takes what a zombie stored after a newer epoch had acknowledged",
        ((Recovery, "_is_above_bound", lambda *_: False),),
    ),
}  # fmt: skip
