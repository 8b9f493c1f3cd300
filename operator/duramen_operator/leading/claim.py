"""Whether a Lease is free for this process, by what was read of it and how long it stood still.

Times in the record are another machine's, so they are compared with each other and never with ours:
a record that changes belongs to somebody who lives. What a person writes into it may be anything,
so the wait is bounded on both sides, and what a person removes or empties is waited for, too: its
holder may not have noticed. Only the first look finds a Lease free at once: where there is none, or
where it names an earlier process of this pod, which is dead since this one was started.

Called by `keeper`. Pure but for what it saw last. Source: docs/kubernetes/one-hand.md 2, 3 and 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from duramen_operator.leading.hand import LEASE_S

WAIT_MIN_S: Final = float(LEASE_S)
"""What a record says less than this is somebody's hand: holders of our making say LEASE_S."""

WAIT_MAX_S: Final = 60.0
"""What it says more than this would lock everybody out."""


_FORGOTTEN: Final = "forgotten"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease, as it was read."""

    uid: str
    resource_version: str
    holder: str
    """"" where it names nobody."""
    duration_s: int
    renewed: str = ""
    """When, by the holder's clock; compared with itself alone."""
    transition_count: int = 0


@dataclass(frozen=True, slots=True)
class Claimant:
    """A process that wants the Lease.

    Attributes:
        pod: a name under which one process runs at a time; the next one has it, too.
        process: what tells it from the one before.
    """

    pod: str
    process: str

    def __str__(self) -> str:
        return f"{self.pod}_{self.process}"

    def is_pod_of(self, holder: str) -> bool:
        """Whether a holder ran, or runs, under this name."""
        return holder.rpartition("_")[0] == self.pod


class LeaseClaim:
    """What one process makes of the Lease."""

    def __init__(self, claimant: Claimant) -> None:
        self._claimant = claimant
        self._seen: str | None = None
        """What the last look saw; None: nothing was looked at yet."""
        self._since_s = 0.0

    def forget(self) -> None:
        """A term is over: what was seen before it says nothing of the time since.

        Patience begins with the next look. Who has not looked yet still finds what is free at once.
        """
        if self._seen is not None:
            self._seen = _FORGOTTEN

    def find_wait_s(self, found: LeaseRecord | None, now_s: float) -> float:
        """How long this process has to wait at least before it may take the Lease; 0: it may.

        Args:
            found: None: there is no Lease.
            now_s: by a clock of this machine that goes on while it sleeps.
        """
        is_first = self._seen is None
        # Not by its version: somebody's label would keep a dead holder's Lease alive.
        seen = "" if found is None else f"{found.uid}/{found.holder}/{found.renewed}"
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        if is_first and (found is None or self._claimant.is_pod_of(found.holder)):
            return 0.0
        if found is not None and found.holder == str(self._claimant):
            return 0.0
        told_s = WAIT_MIN_S if found is None else float(found.duration_s)
        wait_s = min(max(told_s, WAIT_MIN_S), WAIT_MAX_S)
        return max(0.0, self._since_s + wait_s - now_s)
