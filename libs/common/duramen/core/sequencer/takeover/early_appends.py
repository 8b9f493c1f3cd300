"""Appends of a log whose older epochs are still being recovered (`early_append`).

Sequence numbers, producers, conditions, token and the greatest txid are known only when the epoch
before is closed. Appends that ask for none of these go ahead. The others wait here in the order of
their arrival, and go to the front of the queue afterwards. So a plain append may overtake a waiting
one, and no client can tell. A waiting append is not acknowledged. A client that wants an order
between two appends waits for the first answer, or has a producer, all of whose batches wait.

Invariant (see `validate`): held bytes are the sum over what is held, and none of it is plain.
Called by `append_pipeline`. Source: docs/protocol/ownership.md "Early appends", R18.
"""

from __future__ import annotations

from collections.abc import Callable

from duramen.core.sequencer.effects import Effect, Fail
from duramen.core.sequencer.transmit import QueuedAppend


class EarlyAppends:
    """Chooses what goes ahead.

    Args:
        put: takes the answers.
    """

    def __init__(self, put: Callable[[Effect], None]) -> None:
        self.held_bytes = 0
        self._put = put
        self._held: list[QueuedAppend] = []

    @property
    def held_count(self) -> int:
        """Appends that wait for the recovery of the older epochs."""
        return len(self._held)

    def admit(self, append: QueuedAppend) -> bool:
        """Whether what leaves the queue may go ahead; otherwise it is kept here."""
        if append.is_plain:
            return True
        self._held.append(append)
        self.held_bytes += len(append.batch)
        return False

    def give_back(self) -> list[QueuedAppend]:
        """What waited, in its order: it may be judged now, or by another owner."""
        appends, self._held = self._held, []
        self.held_bytes = 0
        return appends

    def expire(self, now_us: int, code: str, detail: str) -> None:
        """Answer what waited past its deadline: it was never sent."""
        late = [append for append in self._held if append.deadline_us <= now_us]
        for append in late:
            self._put(Fail(append.append_id, code, detail))
            self.held_bytes -= len(append.batch)
        if late:
            self._held = [append for append in self._held if append.deadline_us > now_us]

    def validate(self) -> None:
        """Assert the invariant."""
        assert self.held_bytes == sum(len(append.batch) for append in self._held), self
        assert not any(append.is_plain for append in self._held), self

    def __repr__(self) -> str:
        return f"<early held={len(self._held)}>"
