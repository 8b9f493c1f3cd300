"""The backlog: what comes first, what waits, what is said once, what runs at one time.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duramen.core.repair.audit import Action, Finding, RepairProblem, WorkKey
from duramen.core.repair.copies import EntryFault, Flaw
from duramen.core.repair.tasks import Backlog, StuckKind, Task, describe
from duramen.ids import EntryId, Epoch, LogId, ledger_of
from duramen.units import MINUTE, SECOND
from tests.unit.repair_world import member

A, B = member("a"), member("b")


def finding(
    log_id: int = 1,
    problem: RepairProblem = RepairProblem.LOST,
    good_count: int = 2,
    *,
    facts: object = 0,
    size_bytes: int = 100,
    action: Action = Action.SWAP,
) -> Finding:
    key = WorkKey(ledger_of(LogId(log_id), Epoch(1)), EntryId(0), action)
    return Finding(key, problem, good_count, size_bytes, A, facts)


def take(backlog: Backlog, now_us: int = 0) -> Task:
    task = backlog.take(now_us)
    assert task is not None
    return task


def test_the_fewest_good_copies_come_first_then_owed_then_lost_then_drains() -> None:
    backlog = Backlog(running_max=10)
    backlog.put(finding(1, RepairProblem.LEAVING))
    backlog.put(finding(2, RepairProblem.LOST))
    backlog.put(finding(3, RepairProblem.OWED, action=Action.FILL))
    backlog.put(finding(4, RepairProblem.UNBALANCED))
    backlog.put(finding(5, RepairProblem.LEAVING, good_count=1))
    order = [take(backlog).finding.problem for _ in range(5)]
    assert [problem.name for problem in order] == [
        "LEAVING", "OWED", "LOST", "LEAVING", "UNBALANCED"
    ]  # fmt: skip
    assert backlog.take(0) is None


def test_so_many_run_at_once_and_a_fragment_once() -> None:
    backlog = Backlog(running_max=2)
    backlog.put(finding(1))
    backlog.put(finding(1, RepairProblem.OWED, action=Action.FILL))
    backlog.put(finding(2))
    backlog.put(finding(3))
    first, second = take(backlog), take(backlog)
    assert first.finding.key.fragment != second.finding.key.fragment
    assert backlog.take(0) is None
    backlog.on_done(first)
    third = take(backlog)
    assert third.finding.key.fragment == first.finding.key.fragment


def test_a_target_takes_so_many_tasks() -> None:
    backlog = Backlog(per_target_max=2)
    assert backlog.claim(A) and backlog.claim(A) and not backlog.claim(A)
    assert backlog.has_room(B) and backlog.claim(B)
    backlog.release(A)
    assert backlog.claim(A)


def test_stuck_is_what_cannot_be_repaired_or_failed_three_times_in_a_row() -> None:
    backlog = Backlog()
    for log_id in range(1, 6):
        backlog.put(finding(log_id, RepairProblem.LEAVING))
    lost, failing, busy, rolling, elsewhere = tasks = [take(backlog) for _ in range(5)]
    for task in tasks[:4]:
        task.holders = frozenset({A.bookie})
    backlog.on_unrepairable(lost, "nobody can take it", [], 0, StuckKind.PLACE)
    backlog.on_unrepairable(elsewhere, "it keeps no copy anywhere", [], 0)
    for attempt in range(3):
        assert backlog.list_stuck(MINUTE) == [lost]
        backlog.on_failed(failing, "silent", attempt)
        backlog.on_failed(rolling, "silent", attempt)
        backlog.on_postponed(busy, 1, attempt)
        backlog.on_postponed(rolling, 1, attempt, was_asked=True)
    assert backlog.list_stuck(MINUTE) == [lost, failing]
    assert [task.stuck for task in (lost, failing)] == [
        (StuckKind.PLACE, "nobody can take it", 0, False), (StuckKind.FAILING, "silent", 2, False),
    ]  # fmt: skip
    assert backlog.list_stuck(1) == [lost], "for a moment it is not worth a word"


def test_what_is_stuck_is_told_on_while_it_is_tried_anew_and_until_it_copies() -> None:
    backlog = Backlog()
    backlog.put(finding(facts=0))
    task = take(backlog)
    task.holders = frozenset({A.bookie})
    backlog.on_unrepairable(task, "2 take new data", [], 0, StuckKind.PLACE)
    for moment in range(1, 3):
        backlog.put(finding(facts=moment))
        assert take(backlog) is task and backlog.list_stuck(0) == [task]
        backlog.on_unrepairable(task, "1 takes new data", [], moment, StuckKind.PLACE)
    assert task.stuck == (StuckKind.PLACE, "1 takes new data", 0, False)
    backlog.put(finding(facts=9))
    backlog.on_progress(take(backlog), 1, 3)
    assert backlog.list_stuck(MINUTE) == []


def test_of_many_that_are_judged_anew_nothing_is_told_before() -> None:
    """They may move by now, and would be told on for as long as the last one waits."""
    backlog = Backlog(running_max=200)
    for log_id in range(1, 121):
        backlog.put(finding(log_id))
        task = take(backlog)
        task.holders = frozenset({A.bookie})
        backlog.on_unrepairable(task, "nobody can take it", [], 0, StuckKind.PLACE)
    assert len(backlog.list_stuck(0)) == 120
    for log_id in range(1, 101):
        backlog.put(finding(log_id, facts=1))
    assert len(backlog.list_stuck(0)) == 120
    backlog.put(finding(101, facts=1))
    assert len(backlog.list_stuck(0)) == 19


def test_what_fails_waits_twice_as_long_each_time() -> None:
    backlog = Backlog()
    backlog.put(finding())
    now_us, pauses = 0, []
    for _ in range(10):
        task = take(backlog, now_us)
        backlog.on_failed(task, "busy", now_us)
        pauses.append(task.not_before_us - now_us)
        assert backlog.take(task.not_before_us - 1) is None
        assert backlog.next_us() == task.not_before_us
        now_us = task.not_before_us
    assert pauses[:3] == [SECOND, 2 * SECOND, 4 * SECOND]
    assert pauses[-1] == MINUTE


def test_what_cannot_be_repaired_is_said_once_and_tried_again_when_the_facts_change() -> None:
    backlog = Backlog()
    backlog.put(finding(facts="c is away"))
    task = take(backlog)
    flaw = Flaw(A, EntryId(3), EntryId(4), EntryFault.ABSENT)
    assert backlog.on_unrepairable(task, "gone", [flaw], 5)
    for now_us in (10, 100 * MINUTE):
        backlog.put(finding(facts="c is away"))
        assert backlog.take(now_us) is None
    assert [t.reason for t in backlog.list_unrepairable()] == ["gone"]
    assert describe(task)["ranges"] == [{"bookie": "a", "first": 3, "last": 4, "why": "absent"}]
    backlog.put(finding(facts="c is back"))
    assert take(backlog, 10) is task and task.flaws == ()
    assert backlog.statistics()["unrepairable_reported"] == 1


def test_what_was_judged_by_other_facts_than_a_round_found_is_tried_again() -> None:
    # All bookies were away for a moment when it was judged, and here again in every round's eyes.
    backlog = Backlog()
    backlog.put(finding(facts="all are here"))
    task = take(backlog)
    task.judged_facts = "all are away"
    assert not backlog.on_unrepairable(task, "nowhere to go", [], 5)
    assert backlog.list_unrepairable() == []
    backlog.put(finding(facts="all are here"))
    assert take(backlog, MINUTE) is task
    backlog.put(finding(facts="b is away"))  # a round that ends while it runs
    assert not backlog.on_unrepairable(task, "nowhere to go", [], MINUTE)
    assert take(backlog, 2 * MINUTE) is task
    assert backlog.on_unrepairable(task, "nowhere to go", [], 2 * MINUTE)


def test_a_whole_round_ends_what_it_did_not_find_but_not_what_runs() -> None:
    backlog = Backlog(running_max=1)
    for log_id in (1, 2, 3):
        backlog.put(finding(log_id))
    running = take(backlog)
    backlog.keep_only([finding(3).key])
    assert sorted(backlog.tasks) == sorted([running.finding.key, finding(3).key])


def test_known_work_keeps_its_pause_while_rounds_find_it_again() -> None:
    backlog = Backlog()
    backlog.put(finding())
    backlog.on_failed(take(backlog), "busy", 0)
    backlog.put(finding())
    assert backlog.take(0) is None


def test_the_list_is_bounded_and_keeps_the_most_urgent() -> None:
    backlog = Backlog(count_max=2)
    backlog.put(finding(1, good_count=2))
    backlog.put(finding(2, good_count=1))
    backlog.put(finding(3, good_count=3))
    backlog.put(finding(4, good_count=0))
    assert [t.finding.good_count for t in backlog.tasks.values()] == [1, 0]
    assert backlog.statistics()["beyond"] == 2


def test_the_estimate_follows_from_what_was_copied_lately() -> None:
    backlog = Backlog()
    backlog.put(finding(size_bytes=1_000))
    assert backlog.estimate_us(0) is None
    task = take(backlog, MINUTE)
    backlog.on_progress(task, 100, MINUTE)
    backlog.on_progress(task, 500, MINUTE + 10 * SECOND)
    assert backlog.bytes_per_s(MINUTE + 10 * SECOND) == 60
    assert backlog.estimate_us(MINUTE + 10 * SECOND) == 400 * SECOND // 60
    backlog.on_done(task)
    assert backlog.estimate_us(MINUTE + 10 * SECOND) == 0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), max_size=60))
def test_the_invariants_hold_whatever_happens(steps: list[tuple[int, int]]) -> None:
    backlog = Backlog(running_max=2, per_target_max=1, count_max=3)
    running: list[Task] = []
    for now_us, (kind, number) in enumerate(steps):
        if kind <= 1:
            backlog.put(finding(number, RepairProblem(1 + number), facts=kind))
        elif kind == 2 and (task := backlog.take(now_us)) is not None:
            running.append(task)
        elif kind == 3 and running:
            backlog.on_done(running.pop())
        elif kind == 4 and running:
            backlog.on_failed(running.pop(), "x", now_us)
        elif kind == 5 and running:
            backlog.on_unrepairable(running.pop(), "x", (), now_us)
        elif kind == 6:
            backlog.keep_only([finding(number).key])
        backlog.validate()
        assert sum(task.is_running for task in backlog.tasks.values()) == len(running)
