"""What goes wrong between an operator and the API server, by dice; a `DeadlyProxy` does it.

What is read was so a while ago; watches lose events, tell them late, or twice; writes are refused
(409, 429), fail before they are done, or are done and nobody hears of it; and now and then the
Leases are out of reach for longer than one lasts.

Used by test_faults and test_removal. Source: docs/kubernetes/one-hand.md, ADR 0020.
"""

from __future__ import annotations

import enum
import json
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from duramen_operator.leading.hand import LEASE_S

KEPT_COUNT: Final = 4
"""Answers of each question that are kept, to be given again."""
QUESTION_COUNT_MAX: Final = 256
LATE_S_MAX: Final = 1.5
LEASES_AWAY_S: Final = LEASE_S + 5.0


class Fault(enum.Enum):
    """What becomes of one request, or of one event of a watch."""

    OLDER = "older"
    CONFLICT = "conflict"
    BUSY = "busy"
    UNDONE = "undone"
    UNHEARD = "unheard"
    DROPPED = "dropped"
    LATE = "late"
    DOUBLED = "doubled"


REFUSALS: Final = {
    Fault.CONFLICT: (409, "Conflict"),
    Fault.BUSY: (429, "TooManyRequests"),
    Fault.UNDONE: (503, "ServiceUnavailable"),
    Fault.UNHEARD: (504, "Timeout"),
}
"""What is answered instead, and the reason of its Status."""


class Kept(NamedTuple):
    """An answer to a question."""

    headers: dict[str, str]
    body: bytes


READS: Final = ((Fault.OLDER, 6), (Fault.BUSY, 1), (Fault.UNDONE, 1))
WRITES: Final = ((Fault.CONFLICT, 3), (Fault.BUSY, 2), (Fault.UNDONE, 3), (Fault.UNHEARD, 3))
"""How many of a hundred requests each fault hits."""
EVENTS_SHARE: Final = 20
"""Of a hundred events, those that one of three faults hits."""
LEASES_SHARE: Final = 1
"""Of a hundred requests about Leases, those from which on they are away."""


class ApiFaults:
    """The faults of one proxy; the same seed gives the same dice, though not the same requests."""

    def __init__(self, seed: int, clock_s: Callable[[], float]) -> None:
        self._dice = random.Random(seed)
        self._clock_s = clock_s
        self._answers: OrderedDict[str, deque[Kept]] = OrderedDict()
        self._leases_back_s = 0.0
        self.counts: Counter[str] = Counter()
        """How often each one came, and how often the Leases went away."""

    def choose(self, method: str, path: str) -> Fault | None:
        """What becomes of a request that is no watch."""
        if "/leases" in path and self._are_leases_away():
            return self._note(Fault.UNDONE)
        roll = self._dice.uniform(0, 100)
        for fault, share in READS if method == "GET" else WRITES:
            if roll < share:
                return self._note(fault)
            roll -= share
        return None

    def keep(self, question: str, answer: Kept) -> None:
        """This was answered just now."""
        kept = self._answers.setdefault(question, deque(maxlen=KEPT_COUNT))
        kept.append(answer)
        self._answers.move_to_end(question)
        if len(self._answers) > QUESTION_COUNT_MAX:
            self._answers.popitem(last=False)

    def find_older(self, question: str) -> Kept | None:
        """What was answered a while ago; None: nobody asked."""
        kept = self._answers.get(question)
        return self._dice.choice(kept) if kept else None

    def disturb(self) -> tuple[float, int]:
        """Of an event: after how many seconds it is told, and how often."""
        if self._dice.uniform(0, 100) >= EVENTS_SHARE:
            return 0.0, 1
        fault = self._note(self._dice.choice((Fault.DROPPED, Fault.LATE, Fault.DOUBLED)))
        if fault is Fault.LATE:
            return self._dice.uniform(0, LATE_S_MAX), 1
        return 0.0, 0 if fault is Fault.DROPPED else 2

    def _are_leases_away(self) -> bool:
        now_s = self._clock_s()
        if now_s >= self._leases_back_s and self._dice.uniform(0, 100) < LEASES_SHARE:
            self.counts["leases away"] += 1
            self._leases_back_s = now_s + LEASES_AWAY_S
        return now_s < self._leases_back_s

    def _note(self, fault: Fault) -> Fault:
        self.counts[fault.value] += 1
        return fault


def make_status(fault: Fault) -> tuple[int, bytes]:
    """The answer of a request that this fault refuses."""
    code, reason = REFUSALS[fault]
    document = {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": f"a fault of the test: {fault.value}",
    }  # fmt: skip
    return code, json.dumps(document).encode()
