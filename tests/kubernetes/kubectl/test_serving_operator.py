"""Who is believed to serve a namespace, by a Lease that is read twice at most.

The Lease is a world of its own here: what it says now, and what it says after the pause. Clocks of
the two machines are apart by whatever a case says.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duramen_operator.leading.hand import LEASE_S, RENEW_EVERY_S
from kubectl_duramen.access import AccessError, Kubectl, Trouble
from kubectl_duramen.serving_operator import find_silence
from tests.kubernetes.kubectl import things

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NONE = object()


class LeaseReads(Kubectl):
    """Answers each read with the next of these; the last one stays."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(namespace="shop")
        self._answers = list(answers)
        self.paused_s = 0.0

    def get(self, path: str, **query: str | int) -> Any:
        assert path.endswith("/namespaces/shop/leases/duramen-operator") and not query
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is NONE:
            raise AccessError(Trouble.NOT_FOUND, "not found")
        if isinstance(answer, AccessError):
            raise answer
        return answer

    def pause(self, wait_s: float) -> None:
        self.paused_s += wait_s

    def find(self) -> str | None:
        return find_silence(self, lambda: NOW, self.pause)


def renewed(age_s: float, holder: str = "a_1") -> Any:
    found = things.lease((NOW - timedelta(seconds=age_s)).isoformat())
    found["spec"]["holderIdentity"] = holder
    return found


@pytest.mark.parametrize("age_s", [0, 3, LEASE_S - 1])
def test_a_young_lease_is_read_once(age_s: float) -> None:
    reads = LeaseReads(renewed(age_s), NONE)
    assert reads.find() is None and reads.paused_s == 0


@pytest.mark.parametrize("apart_s", [-7_200, -1, LEASE_S, 86_400])
def test_clocks_apart_are_no_silence(apart_s: float) -> None:
    reads = LeaseReads(renewed(apart_s), renewed(apart_s - 3))
    assert reads.find() is None
    assert reads.paused_s == RENEW_EVERY_S, "until it changes, and no longer"


@pytest.mark.parametrize("age_s", [-7_200, LEASE_S, 86_400])
def test_what_does_not_move_is_silent(age_s: float) -> None:
    reads = LeaseReads(renewed(age_s))
    told = reads.find()
    assert reads.paused_s >= LEASE_S
    assert told is not None and "a_1 gives no sign of life since 202" in told


def test_a_new_holder_is_a_sign_of_life() -> None:
    assert LeaseReads(renewed(60), renewed(60, holder="b_1")).find() is None


@pytest.mark.parametrize("reads", [(NONE,), (renewed(0, ""),), (renewed(60), NONE)])
def test_without_a_holder_nobody_serves(reads: tuple[Any, ...]) -> None:
    assert LeaseReads(*reads).find() == "no operator serves this namespace"


@pytest.mark.parametrize("told", [None, "yesterday", "2026-01-01T11:59:59", 7])
def test_a_time_that_is_none_is_read_twice(told: object) -> None:
    """A person may write anything into it; without a zone it could be any time of the day."""
    broken = renewed(0)
    broken["spec"]["renewTime"] = told
    assert LeaseReads(broken, renewed(0)).find() is None
    assert LeaseReads(broken).find() is not None


def test_who_may_not_read_it_is_told_so() -> None:
    with pytest.raises(AccessError, match="forbidden"):
        LeaseReads(AccessError(Trouble.OTHER, "forbidden")).find()
