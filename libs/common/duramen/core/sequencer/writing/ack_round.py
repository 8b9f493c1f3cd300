"""Ack rounds: the proof that an epoch was not sealed when a question came.

A refusal, and what is said of the tail, is true only of an owner. Whoever wants to say one asks for
a round. A round sends the LAC to members, and is done when an ack set of them took it unsealed: an
ack set meets every covering seal. What an ack set is, the writer knows. A round that was under way
when the question came began too early, so the next one counts.

    nothing asked → wanted → under way → done        again after PROBE_INTERVAL_US
Invariants (checked by `validate`):
 1 exactly a round that is under way has a time at which it is tried again.
 2 a round is done at most once, and only the next one can be wanted.
Source: docs/protocol/write.md "Refusals", R6, R29.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from duramen.core.sequencer.effects import SendLac
from duramen.ids import EntryId, LedgerId, Member
from duramen.limits import PROBE_INTERVAL_US


class AckRound:
    """The ack rounds of one open segment, numbered from 1."""

    def __init__(self, put: Callable[[SendLac], None]) -> None:
        self.done = 0
        """The last round that succeeded."""

        self.again_at_us: int | None = None
        """When the round that is under way is void, and the next one begins."""

        self._put = put
        self._number = 0
        self._wanted = 0
        self._holders: list[Member] | None = None

    def ask(self) -> int:
        """A question came now: the number of the round that proves it."""
        self._wanted = self._number + 1
        return self._wanted

    @property
    def is_due(self) -> bool:
        """Whether a round is wanted and none under way."""
        return self._wanted > self._number and self._holders is None

    def begin(
        self, ledger_id: LedgerId, lac: EntryId, members: Iterable[Member], now_us: int
    ) -> None:
        """Begin the round that is wanted, if none is under way. R6: not while changing."""
        if not self.is_due:
            return
        self._number += 1
        self._holders = []
        self.again_at_us = now_us + PROBE_INTERVAL_US
        for member in members:
            self._put(SendLac(member, ledger_id, lac, self._number))

    def note_taken(
        self, member: Member, round_id: int, is_ack_set: Callable[[list[Member]], bool]
    ) -> bool:
        """A member took the LAC of a round, unsealed; whether the round is done by that."""
        holders = self._holders
        if holders is None or round_id != self._number:
            return False
        if member not in holders:
            holders.append(member)
        if not is_ack_set(holders):
            return False
        self.done = self._number
        self._holders = self.again_at_us = None
        return True

    def void(self) -> None:
        """A round that is not over proves nothing: those who wait for it are served by the next."""
        if self._holders is not None:
            self._holders = self.again_at_us = None
            self._wanted = self._number + 1

    def stop(self) -> None:
        """Nobody waits any more."""
        self._holders = self.again_at_us = None
        self._wanted = 0

    def validate(self) -> None:
        """Assert invariants 1 and 2."""
        is_under_way = self._holders is not None
        assert is_under_way == (self.again_at_us is not None), f"1: {self._number}"
        assert self.done <= self._number - is_under_way, f"2: {self.done} of {self._number}"
        assert self._wanted <= self._number + 1, f"2: {self._wanted} after {self._number}"
