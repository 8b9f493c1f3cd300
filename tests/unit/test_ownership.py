"""Whose a log becomes, how long a lost one is left alone, and which is taken over next.

Directed cases for each rule, and random ones for what must hold whatever was tried.
Source: docs/protocol/ownership.md "Whose is a log", docs/protocol/recovery.md "Takeover".
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.ownership import loss_pauses
from duramen.core.ownership.choice import (
    OwnerChoice,
    OwnerVerdict,
    choose_next_owner,
    choose_owner,
)
from duramen.core.ownership.loss_pauses import LossPauses
from duramen.core.ownership.takeover_queue import TakeoverQueue
from duramen.ids import LogId
from duramen.units import MS, SECOND

RANKED = ("s1", "s2", "s3")
LIVE = {"s1", "s2", "s3", "light"}
LOG = LogId(7)


def choose(
    self_id: str, owner: str | None, *tried: str, pending_owner: str | None = None
) -> OwnerChoice:
    return choose_owner(
        self_id, owner=owner, pending_owner=pending_owner, ranked=RANKED, live=LIVE, tried=tried
    )


# --- Choice --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("self_id", "owner", "tried", "expected"),
    [
        ("s2", "s2", (), OwnerChoice(OwnerVerdict.OURS, "s2")),
        ("s2", "s2", ("s1",), OwnerChoice(OwnerVerdict.OURS, "s2")),
        ("s2", "s3", (), OwnerChoice(OwnerVerdict.REDIRECT, "s3")),
        ("s2", "light", (), OwnerChoice(OwnerVerdict.REDIRECT, "light")),
        ("s2", "s3", ("s3",), OwnerChoice(OwnerVerdict.PROBE, "s3")),
        ("s2", "gone", (), OwnerChoice(OwnerVerdict.PROBE, "gone")),
        ("s2", None, (), OwnerChoice(OwnerVerdict.REDIRECT, "s1")),
        ("s1", None, (), OwnerChoice(OwnerVerdict.OURS, "s1")),
        ("s2", None, ("s1",), OwnerChoice(OwnerVerdict.OURS, "s2")),
        ("s3", None, ("s1",), OwnerChoice(OwnerVerdict.REDIRECT, "s2")),
        ("s3", None, ("s1", "s2", "s3"), OwnerChoice(OwnerVerdict.OURS, "s3")),
        ("light", None, ("s1", "s2", "s3"), OwnerChoice(OwnerVerdict.OURS, "light")),
    ],
)
def test_an_append_goes_to_the_owner_or_to_the_first_by_hash_that_was_not_tried(
    self_id: str, owner: str | None, tried: tuple[str, ...], expected: OwnerChoice
) -> None:
    assert choose(self_id, owner, *tried) == expected


@pytest.mark.parametrize("tried", [(), ("embedded",), ("s1", "s2", "s3")])
def test_a_log_of_an_embedded_writer_is_nobodys_to_take(tried: tuple[str, ...]) -> None:
    choice = choose_owner(
        "s2",
        owner="embedded",
        is_embedded=True,
        pending_owner="s2",
        ranked=RANKED,
        live=LIVE,
        tried=tried,
    )
    assert choice == OwnerChoice(OwnerVerdict.HELD, "embedded")


def test_a_log_that_was_handed_over_goes_to_its_pending_owner_until_the_owner_node_says_so() -> (
    None
):
    assert choose("s1", None, pending_owner="s3") == OwnerChoice(OwnerVerdict.REDIRECT, "s3")
    assert choose("s1", "s2", pending_owner="s3") == OwnerChoice(OwnerVerdict.REDIRECT, "s2")
    assert choose("s1", None, "s3", pending_owner="s3") == OwnerChoice(OwnerVerdict.OURS, "s1")
    assert choose("s1", None, pending_owner="gone") == OwnerChoice(OwnerVerdict.OURS, "s1")


names = st.sampled_from([*RANKED, "light", "gone"])


@given(names, st.none() | names, st.sets(names), st.none() | names)
def test_nobody_who_was_tried_is_named_again(
    self_id: str, owner: str | None, tried: set[str], pending_owner: str | None
) -> None:
    choice = choose_owner(
        self_id, owner=owner, pending_owner=pending_owner, ranked=RANKED, live=LIVE, tried=tried
    )
    if choice.verdict is OwnerVerdict.REDIRECT:
        assert choice.sequencer_id not in tried
        assert choice.sequencer_id != self_id and choice.sequencer_id in LIVE


@given(st.dictionaries(st.sampled_from(RANKED), st.sampled_from([None, *RANKED]), min_size=3))
def test_an_append_reaches_a_claimant_in_as_many_steps_as_there_are_sequencers(
    belief: dict[str, str | None],
) -> None:
    """Each sequencer may believe in another owner: the append goes nowhere twice."""
    at = "s1"
    tried: list[str] = []
    for _ in range(len(RANKED)):
        choice = choose(at, belief[at], *tried)
        if choice.verdict is not OwnerVerdict.REDIRECT:
            return
        tried.append(at)
        at = choice.sequencer_id
    raise AssertionError(f"still on its way at {at} after {tried}")


def test_a_dead_owners_log_goes_to_the_next_by_hash() -> None:
    assert (
        choose_next_owner("s2", pending_owner=None, ranked=RANKED, tried={"s1"}).verdict
        is OwnerVerdict.OURS
    )
    assert choose_next_owner("s3", pending_owner=None, ranked=RANKED, tried={"s1"}) == OwnerChoice(
        OwnerVerdict.REDIRECT, "s2"
    )


# --- Pauses after a loss -------------------------------------------------------------------------


def test_a_lost_log_is_left_alone_for_longer_every_time() -> None:
    pauses = LossPauses(random.Random(1))
    now_us, left = 0, []
    for _ in range(8):
        pauses.note_loss(LOG, now_us)
        left.append(pauses.left_us(LOG, now_us))
        now_us += left[-1] + 1
        assert pauses.left_us(LOG, now_us) == 0
    assert 100 * MS <= left[0] <= 300 * MS
    assert left[4] > 4 * left[0]
    assert max(left) <= 1.5 * loss_pauses.LAST_US
    pauses.note_loss(LOG, now_us + 31 * SECOND)
    assert pauses.left_us(LOG, now_us + 31 * SECOND) <= 300 * MS, "old losses are forgotten"
    assert pauses.left_us(LogId(8), now_us) == 0


def test_two_rivals_do_not_keep_step() -> None:
    pauses = [LossPauses(random.Random(seed)) for seed in range(20)]
    for each in pauses:
        each.note_loss(LOG, 0)
    assert len({each.left_us(LOG, 0) for each in pauses}) == 20


def test_losses_of_many_logs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_pauses, "LOG_COUNT_MAX", 3)
    pauses = LossPauses(random.Random(1))
    for number in range(1, 10):
        pauses.note_loss(LogId(number), 0)
    assert len(pauses) == 3
    assert pauses.left_us(LogId(1), 0) == 0 < pauses.left_us(LogId(9), 0)


# --- The queue of takeovers ----------------------------------------------------------------------


def test_wanted_logs_come_first_then_the_hottest_then_the_largest() -> None:
    queue = TakeoverQueue(1)
    queue.want(LogId(1), size=10)
    queue.want(LogId(2), size=99)
    queue.want(LogId(3), rate=5.0)
    queue.want(LogId(4), demand=1)
    queue.want(LogId(5), demand=3)
    order = []
    while begun := queue.start():
        order += begun
        queue.validate()
        queue.end(begun[0][0])
    assert order == [(5, True), (4, True), (3, False), (2, False), (1, False)]


def test_an_append_moves_its_log_forward_and_makes_a_closing_a_takeover() -> None:
    queue = TakeoverQueue(1)
    for number in range(1, 50):
        queue.want(LogId(number))
    assert queue.start() == [(1, False)]
    queue.want(LogId(40), demand=1)
    assert queue.is_wanted(LogId(40)) and not queue.is_wanted(LogId(41))
    queue.end(LogId(1))
    assert queue.start() == [(40, True)]
    queue.want(LogId(40), demand=5)
    assert queue.waiting_count == 48, "wanted again while it runs"


def test_without_a_session_only_what_appends_wait_for_is_kept() -> None:
    queue = TakeoverQueue(1)
    queue.want(LogId(1))
    queue.want(LogId(2), demand=1)
    queue.drop_unwanted()
    queue.validate()
    assert queue.start() == [(2, True)]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), max_size=60))
def test_any_order_of_wishes_and_ends_keeps_the_bounds(steps: list[tuple[int, int]]) -> None:
    queue = TakeoverQueue(2)
    running: list[LogId] = []
    for number, demand in steps:
        if demand == 3 and running:
            queue.end(running.pop(0))
        else:
            queue.want(LogId(number), demand=demand)
        running += [log_id for log_id, _ in queue.start()]
        queue.validate()
        assert queue.running_count == len(running) <= 2
        # Beside a free place waits only what is wanted again while it runs.
        assert len(running) == 2 or queue.waiting_count <= len(running)
