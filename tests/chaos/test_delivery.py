"""The verdict on readers who wait: every planted fault is found, and no good history is blamed.

Histories, faults and stalls are made up, times in seconds. Each bad one differs from a good one in
the fact that its name tells.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.delivery import (
    FROZEN_BOOKIE,
    JUDGED_COUNT_MIN,
    Delivered,
    Stalls,
    follow_log,
    judge_deliveries,
)
from tests.chaos.history import Line
from tests.chaos.lines import LOG, append, hashes, read
from tests.chaos.schedule import AWAY_KIND

WAITER = "waiter-lines"
OTHER = "waiter-events"


def got(at: float, start: int, n: int = 1, *, by: str = WAITER, asked: float = 0) -> Line:
    """Records that a waiter was given on a request of long ago."""
    batches = [(f"e1n{seq}s0", seq, hashes("w", seq)) for seq in range(start, start + n)]
    return read(by, asked, at, *batches, **{"from": start, "tail": False})


def waits(by: str = WAITER) -> Line:
    return line("waits", 0, 0, by)


def told(asked: float, at: float, code: str = "data_unavailable", by: str = WAITER) -> Line:
    return line("told", asked, at, by) | {"status": 503, "code": code, "outcome": "fail"}


def line(op: str, t0: float, t1: float, by: str) -> Line:
    times = {"t0_ns": int(t0 * 1e9), "t1_ns": int(t1 * 1e9)}
    return {**times, "op": op, "proc": by, "log": LOG, "outcome": "ok"}


def fault(t0: float, t1: float, kind: str, target: str = "bookie-0", **evidence: Any) -> Line:
    times = {"t0_ns": int(t0 * 1e9), "t1_ns": int(t1 * 1e9)}
    return {**times, "kind": kind, "targets": [target], "evidence": evidence}


def away(t0: float, t1: float, *, restart_s: float = 5, died: bool = True) -> Line:
    """ZooKeeper is gone from `t0` to `t1`, and serves again later."""
    down_ns = [int(t0 * 1e9), int(t1 * 1e9)]
    return fault(t0 - 0.1, t1 + restart_s, AWAY_KIND, "zookeeper-0", died=died, down_ns=down_ns)


def settle(
    lines: list[Line], *faults: Line, stalls: tuple[tuple[float, float], ...] = ()
) -> Delivered:
    in_ns = [(int(begin * 1e9), int(end * 1e9)) for begin, end in stalls]
    forward, backward = (
        judge_deliveries([follow_log(LOG, order)], list(faults), Stalls(in_ns))
        for order in (lines, lines[::-1])
    )
    assert forward.violations == backward.violations, "the order of the lines must not matter"
    return forward


def codes(found: Delivered) -> set[str]:
    return {violation.code for violation in found.violations}


def paced(late_count: int, *, took_s: float, count: int = JUDGED_COUNT_MIN) -> list[Line]:
    """Appends a tenth of a second apart, from 100 s on; the last so many come late, in order."""
    lines = [waits()]
    for number in range(count):
        at = 100 + number / 10
        span = took_s if number >= count - late_count else 0.02
        lines += [append("w", number, at - 0.01, at, number), got(at + span, number)]
    return lines


FROZEN = fault(99, 120, FROZEN_BOOKIE, stopped=True)
A0, A1 = append("w", 0, 20, 20.1, 0), append("w", 1, 30, 30.1, 1)
GOOD = [waits(), A0, A1, got(20.2, 0), got(30.2, 1)]


# --- Every record, to everybody -----------------------------------------------------------------


def test_a_good_history_is_good() -> None:
    found = settle(GOOD)
    assert found.violations == [] and not found.told and found.windows == []
    assert found.spans_s == {"no fault": pytest.approx([0.1, 0.1])}


def test_who_gets_a_record_before_its_writer_waited_for_nothing() -> None:
    assert settle([waits(), A0, got(20.05, 0)]).spans_s == {"no fault": [0.0]}


def test_what_was_not_acknowledged_is_owed_to_nobody() -> None:
    unsure = append("w", 1, 30, 31, None, outcome="info", code="no_answer")
    assert settle([waits(), A0, got(20.2, 0), unsure]).violations == []


BAD: dict[str, tuple[str, list[Line]]] = {
    "a record is passed over": ("passed over by waiter-lines", [waits(), A0, A1, got(30.2, 1)]),
    "the last record never comes": ("never got by waiter-lines", [waits(), A0, A1, got(20.2, 0)]),
    "one of two waiters gets nothing": ("never got by waiter-events", [*GOOD, waits(OTHER)]),
    "half of an append never comes": (
        "never got by waiter-lines", [waits(), append("w", 0, 20, 20.1, 0, 2), got(20.2, 0)],
    ),
    "one form passes over what another gives": (
        "passed over by waiter-events", [*GOOD, waits(OTHER), got(30.2, 1, by=OTHER)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_record_that_a_waiter_does_not_get_is_found(name: str) -> None:
    text, lines = BAD[name]
    found = settle(lines)
    assert codes(found) == {"waiter"}
    assert any(text in violation.text for violation in found.violations), found.violations


# --- What it was told ----------------------------------------------------------------------------

REFUSED = [*GOOD, told(39, 41)]
HARMLESS = {
    "nothing is wrong": [],
    "a bookie is frozen": [fault(35, 45, "pause bookie")],
    "a bookie is cut off": [fault(35, 45, "cut bookie")],
    "one bookie is struck twice": [fault(33, 34, "kill bookie"), fault(35, 45, "pause bookie")],
    "ZooKeeper is frozen": [fault(35, 45, "pause zookeeper", "zookeeper-0")],
    "ZooKeeper is away": [away(35, 95)],
    "what was wrong is long over": [fault(1, 2, "kill everything")],
}
HARMFUL = {
    "the owner is frozen": [fault(35, 45, "pause sequencer", "sequencer-0")],
    "all were killed a while ago": [fault(31, 36, "kill everything", "everybody")],
    "a long fault has just ended": [fault(2, 36, "cut race", "sequencer-0")],
    "two bookies are gone at once": [
        fault(35, 45, "kill bookie"), fault(36, 45, "pause bookie", "bookie-1"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_healthy_log_is_never_called_unavailable(name: str) -> None:
    found = settle(REFUSED, *HARMLESS[name])
    assert codes(found) == {"told"} and found.told == {"data_unavailable": 1}
    assert "told 503 data_unavailable of a healthy log" in found.violations[0].text


@pytest.mark.parametrize("name", HARMFUL)
def test_a_log_that_suffers_may_be_called_unavailable(name: str) -> None:
    assert settle(REFUSED, *HARMFUL[name]).violations == []


def test_time_in_which_the_machine_stood_still_heals_nothing() -> None:
    ended = fault(20, 30.5, "kill sequencer", "sequencer-0")
    assert codes(settle(REFUSED, ended)) == {"told"}
    assert settle(REFUSED, ended, stalls=((32, 35),)).violations == []


def test_other_codes_and_broken_streams_are_counted_only() -> None:
    broken = line("broken", 31, 35, WAITER) | {"code": "ReadTimeout", "outcome": "fail"}
    found = settle([*GOOD, told(39, 41, "metadata_unavailable"), broken])
    assert found.violations == []
    assert found.told == {"metadata_unavailable": 1, "ReadTimeout": 1}
    assert "ReadTimeout 1, metadata_unavailable 1" in found.format()


# --- A frozen bookie -----------------------------------------------------------------------------


def test_one_delivery_in_a_hundred_may_be_slow_while_a_bookie_is_frozen() -> None:
    found = settle(paced(1, took_s=3), FROZEN)
    assert found.violations == []
    assert len(found.spans_s[FROZEN_BOOKIE]) == JUDGED_COUNT_MIN
    assert found.to_json()["spans_s"][FROZEN_BOOKIE] == {
        "count": 100, "p50": 0.02, "p99": 0.02, "max": 3.0,
    }  # fmt: skip


def test_two_in_a_hundred_may_not() -> None:
    found = settle(paced(2, took_s=3), FROZEN)
    assert codes(found) == {"delivery"}
    assert "2 of 100 deliveries" in found.violations[0].text


def test_the_stalls_of_the_machine_are_not_the_products() -> None:
    assert settle(paced(2, took_s=3), FROZEN, stalls=((110, 112.5),)).violations == []
    assert codes(settle(paced(2, took_s=3), FROZEN, stalls=((110, 111),))) == {"delivery"}


def test_a_few_deliveries_have_no_99th_percentile() -> None:
    found = settle(paced(2, took_s=3, count=JUDGED_COUNT_MIN - 1), FROZEN)
    assert found.violations == [] and "too few deliveries" in found.format()


KINDS = {
    "no fault": [],
    "just after a fault": [fault(90, 99, "kill sequencer")],
    "several faults": [fault(90, 99, "kill sequencer"), FROZEN],
    "pause of two bookies": [FROZEN, fault(99, 120, FROZEN_BOOKIE, "bookie-1")],
    FROZEN_BOOKIE: [fault(90, 98.5, FROZEN_BOOKIE, "bookie-1"), FROZEN],
    "kill bookie": [fault(99, 120, "kill bookie")],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_delivery_is_put_down_to_what_was_wrong_meanwhile(kind: str) -> None:
    assert set(settle(paced(0, took_s=0, count=10), *KINDS[kind]).spans_s) == {kind}


# --- ZooKeeper away ------------------------------------------------------------------------------

B0 = append("w", 0, 90, 90.1, 0)
B1 = append("w", 1, 130, 130.1, 1)
IN_TIME = [waits(), B0, B1, got(90.2, 0), got(130.2, 1)]
LATE = [waits(), B0, B1, got(90.2, 0), got(162, 1)]


def test_what_is_acknowledged_without_zookeeper_is_delivered_without_it() -> None:
    found = settle(IN_TIME, away(100, 160))
    assert found.violations == []
    [window] = found.windows
    assert window[:3] == (60, 1, 0) and window.longest_s == pytest.approx(0.1)
    assert "deliveries due 1, late 0" in found.format()


@pytest.mark.parametrize("lines", [LATE, LATE[:-1]], ids=["when it was back", "never"])
def test_what_waits_for_zookeeper_is_found(lines: list[Line]) -> None:
    found = settle(lines, away(100, 160))
    assert "away" in codes(found) and found.windows[0].late_count == 1
    assert "29.9 s later" in next(v.text for v in found.violations if v.code == "away")


def test_a_segment_that_nobody_knew_before_is_owed_to_nobody() -> None:
    new = append("w", 1, 130, 130.1, 1, dlsn="e2n0s0")
    found = settle([waits(), B0, new, got(90.2, 0), got(162, 1)], away(100, 160))
    assert found.violations == [] and found.windows[0].due_count == 0


def test_the_last_moments_are_not_judged_nor_a_server_that_did_not_die() -> None:
    last = append("w", 1, 158, 158.5, 1)
    lines = [waits(), B0, last, got(90.2, 0), got(162, 1)]
    assert settle(lines, away(100, 160)).violations == []
    assert settle(LATE, away(100, 160, died=False)).windows == []


def test_stalls_are_merged_where_they_overlap() -> None:
    stalls = Stalls([(10, 20), (15, 30), (40, 50)])
    assert stalls.product_ns(0, 60) == 30
    assert stalls.product_ns(12, 18) == 0 and stalls.product_ns(25, 45) == 10
    assert stalls.product_ns(30, 40) == 10 and Stalls().product_ns(3, 5) == 2
