"""Each checker catches what it is for, and lets through everything that the protocol allows.

The histories are hand-made (`histories`): each bad one must be rejected with exactly its code, each
good one must pass. Not here: runs of the simulator, whose mutants show that the checkers catch what
real faults do.
"""

from __future__ import annotations

import pytest

from tests.sim.checkers import CODES, Checkers, Violation
from tests.sim.histories import (
    archives,
    bad_records,
    bad_segments,
    conditions,
    deliveries,
    good,
    hints,
    maps,
    moves,
    repairs,
    trims,
)
from tests.sim.histories.history import History, Play, place

PARTS = (
    bad_records.BAD, bad_segments.BAD, trims.BAD, conditions.BAD, repairs.BAD, maps.BAD,
    archives.BAD, deliveries.BAD, hints.BAD, moves.BAD,
)  # fmt: skip
BAD = {
    code: tuple(play for part in PARTS for play in part.get(code, ()))
    for code in dict.fromkeys(code for part in PARTS for code in part)
}
GOOD = (
    *good.GOOD, *trims.GOOD, *conditions.GOOD, *repairs.GOOD, *maps.GOOD, *archives.GOOD,
    *deliveries.GOOD, *hints.GOOD, *moves.GOOD,
)  # fmt: skip


@pytest.mark.parametrize(
    ("code", "play"),
    [pytest.param(code, play, id=f"{code}-{play.__name__}") for code in BAD for play in BAD[code]],
)
def test_a_bad_history_is_rejected(code: str, play: Play) -> None:
    with pytest.raises(Violation) as caught:
        play(History())
    assert caught.value.code == code, caught.value
    assert caught.value.text


def test_each_invariant_has_bad_histories() -> None:
    assert {*BAD} == {*CODES}
    assert all(len(plays) >= 2 for plays in BAD.values())


@pytest.mark.parametrize("play", GOOD, ids=[play.__name__ for play in GOOD])
def test_a_good_history_passes(play: Play) -> None:
    play(History())


def test_good_histories_exercise_every_checker() -> None:
    made = dict.fromkeys(CODES, 0)
    for play in GOOD:
        history = History()
        play(history)
        for code, count in history.checkers.statistics().items():
            made[code] += count
    assert all(made.values()), made


def test_nothing_told_is_nothing_checked() -> None:
    checkers = Checkers({}, {})
    checkers.finish({})
    assert checkers.statistics() == dict.fromkeys(CODES, 0)


# --- What the caller gets wrong ------------------------------------------------------------------


def answer_twice(h: History) -> None:
    h.append(1, "x", place(1, 0), 0)
    h.fail(1)


def doubt_twice(h: History) -> None:
    h.doubt(1, "x")
    h.uncertain(1)


def invoke_without_waiting(h: History) -> None:
    h.invoke(1, "x")
    h.invoke(2, "y")


def share_a_body(h: History) -> None:
    h.doubt(1, "x y")
    h.doubt(2, "z y")


@pytest.mark.parametrize("play", [answer_twice, doubt_twice, invoke_without_waiting, share_a_body])
def test_a_wrong_call_is_no_violation(play: Play) -> None:
    with pytest.raises(AssertionError):
        play(History())
