"""Who takes a log by a hint, judged at the commit: H1.

Part of `checkers`. A log that its owner took by a hint is taken by a hint from nobody, as long as
that owner's nodes follow one another: its session has to end, or its peace comes, or the minute is
over in which its epochs say by what it came. What is a hint is the simulator's own knowledge
(`hints`), not what the owner node says.

Source: docs/protocol/members.md "What a confirmed suspicion does".
"""

from __future__ import annotations

from duramen.ids import LogId
from tests.sim.segment_record import Tally


class HintRecord:
    """The owners of all logs, one after the other."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._is_hinted: dict[LogId, bool] = {}
        """Whether the owner of a log has it by a hint."""

    def on_owner(self, log_id: LogId, owner: str, replaced: str | None, *, by_hint: bool) -> None:
        """An owner node was put.

        Args:
            replaced: whose node went in the same commit; None: there was none.
            by_hint: this owner follows a hint, or did a minute ago at most.
        """
        was_hinted = self._is_hinted.get(log_id, False)
        if replaced == owner:
            self._is_hinted[log_id] = was_hinted and by_hint
            return
        is_taken_by_hint = replaced is not None and by_hint
        if is_taken_by_hint:
            what = "log", log_id, "is taken by a hint by", owner, "from", replaced
            self._tally.check("H1", not was_hinted, *what, "who had it by a hint")
        self._is_hinted[log_id] = is_taken_by_hint
