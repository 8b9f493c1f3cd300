"""Histories of owners: logs that are taken by hints, and whether they may be; for H1.

Used by `test_checkers`.
"""

from __future__ import annotations

from tests.sim.histories.history import LOG, OTHER, History, Play


def own(h: History, owner: str, replaced: str | None, *, by_hint: bool = False) -> None:
    h.checkers.on_owner(LOG, owner, replaced, by_hint=by_hint)


# --- bad -----------------------------------------------------------------------------------------


def taken_back_by_a_hint(h: History) -> None:
    own(h, "s0", None)
    own(h, "s1", "s0", by_hint=True)
    own(h, "s0", "s1", by_hint=True)


def taken_by_a_third_after_a_roll(h: History) -> None:
    own(h, "s0", None)
    own(h, "s1", "s0", by_hint=True)
    own(h, "s1", "s1", by_hint=True)
    own(h, "s2", "s1", by_hint=True)


# --- good ----------------------------------------------------------------------------------------


def taken_once(h: History) -> None:
    own(h, "s0", None)
    own(h, "s1", "s0", by_hint=True)
    h.checkers.on_owner(OTHER, "s0", "s1", by_hint=True)


def taken_after_its_session_ended(h: History) -> None:
    own(h, "s1", "s0", by_hint=True)
    own(h, "s0", None)
    own(h, "s1", "s0", by_hint=True)


def taken_after_a_better_reason(h: History) -> None:
    own(h, "s1", "s0", by_hint=True)
    own(h, "s0", "s1")
    own(h, "s1", "s0", by_hint=True)


def taken_when_the_minute_is_over(h: History) -> None:
    own(h, "s1", "s0", by_hint=True)
    own(h, "s1", "s1")
    own(h, "s0", "s1", by_hint=True)


BAD: dict[str, tuple[Play, ...]] = {
    "H1": (taken_back_by_a_hint, taken_by_a_third_after_a_roll),
}

GOOD: tuple[Play, ...] = (
    taken_once, taken_after_its_session_ended, taken_after_a_better_reason,
    taken_when_the_minute_is_over,
)  # fmt: skip
