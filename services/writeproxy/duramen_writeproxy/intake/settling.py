"""Which batches of a group are settled by what became of them, and which are sent again.

A group is what a session sent together. The order of its batches in the log must stay the order in
which they were sent, so a batch may be sent again only while nothing behind it can be in the log:
what was appended, or may have been, settles everything before it. Batches of one producer are the
exception, because the log itself keeps their order and knows repetitions. Pure.

Called by `appends`. Source: docs/protocol/rest.md "Append sessions".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duramen.errors import DuramenError
from duramen.runtime.http_client import UnreachableError
from duramen.wire.record_batch import BatchProducer
from duramen.wire.sequencer_calls import Redirect, Stored

Refusal = Redirect | DuramenError | UnreachableError
Result = Stored | Refusal
"""What one try gave for one batch."""

Outcome = Stored | DuramenError
"""What became of a batch in the end."""


class Group:
    """Batches that are appended in their order.

    Args:
        producers: who made each batch; None: it must not be sent again once its fate is open.
        may_retry: whether the same batch may be sent again after this refusal, the order apart.
    """

    def __init__(
        self, producers: Sequence[BatchProducer | None], may_retry: Callable[[DuramenError], bool]
    ) -> None:
        self._producers = producers
        self._may_retry = may_retry
        self._results: list[Result | None] = [None] * len(producers)
        self._was_uncertain = [False] * len(producers)
        self.open = list(range(len(producers)))
        """Indexes of the batches that are to be sent, in their order."""

    @property
    def is_any_stored(self) -> bool:
        """Whether one of them is in the log."""
        return any(isinstance(result, Stored) for result in self._results)

    def settle(self, results: Sequence[Result]) -> Refusal | None:
        """Take what a try gave for the `open` ones; the answer to act on before the next try.

        None: every batch is settled.
        """
        for index, result in zip(self.open, results, strict=True):
            self._results[index] = result
            if isinstance(result, DuramenError) and result.uncertain:
                self._was_uncertain[index] = True
        self.open = [] if all(isinstance(r, Stored) for r in results) else self._find_repeated()
        if not self.open:
            return None
        answer = self._results[self.open[0]]
        assert answer is not None and not isinstance(answer, Stored)
        return answer

    def _find_repeated(self) -> list[int]:
        first = next((index for index in self.open if self._is_repeatable(index)), None)
        if first is None:
            return []
        repeated = [
            index
            for index in self.open
            if index >= first
            and not isinstance(self._results[index], Stored)
            and not self._is_overtaken(index)
        ]
        # What stays uncertain may come into the log at any time: nothing may go there before it.
        is_doubtful = any(
            self._was_uncertain[index] and not isinstance(self._results[index], Stored)
            for index in range(len(self._producers))
            if index not in repeated
        )
        return [] if is_doubtful else repeated

    def outcomes(self, reason: DuramenError) -> list[Outcome]:
        """What became of each batch.

        Args:
            reason: why those without an answer of their own were given up; not uncertain.
        """
        return [self._outcome(index, reason) for index in range(len(self._producers))]

    def _outcome(self, index: int, reason: DuramenError) -> Outcome:
        result = self._results[index]
        if isinstance(result, Stored):
            return result
        refusal = result if isinstance(result, DuramenError) else reason
        if self._was_uncertain[index] and not refusal.uncertain:
            return DuramenError(
                "append_uncertain",
                f"its repetition ended in {refusal.code} ({refusal.detail}): it may or may not be "
                "in the log; read to find out",
            )
        return refusal

    def _is_repeatable(self, index: int) -> bool:
        result = self._results[index]
        if isinstance(result, Stored) or self._is_overtaken(index):
            return False
        if not isinstance(result, DuramenError):
            return True
        if result.uncertain:
            return self._producers[index] is not None
        return self._may_retry(result)

    def _is_overtaken(self, index: int) -> bool:
        """Whether something behind it is in the log, or may be, that the log does not order."""
        return any(
            self._may_be_stored(later) and not self._is_ordered(index, later)
            for later in range(index + 1, len(self._producers))
        )

    def _may_be_stored(self, index: int) -> bool:
        return isinstance(self._results[index], Stored) or self._was_uncertain[index]

    def _is_ordered(self, one: int, other: int) -> bool:
        """Whether the log keeps these two in order: the same producer in the same epoch."""
        ours, theirs = self._producers[one], self._producers[other]
        return ours is not None and theirs is not None and ours[:2] == theirs[:2]
