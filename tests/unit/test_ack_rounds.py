"""Ack rounds of the ledger writer: what proves that an epoch was not sealed when it began.

Each test names what would let a zombie refuse if it were broken. Source: docs/protocol/write.md
"Refusals".
"""

from __future__ import annotations

import pytest

from duramen.core.quorum import Quorum
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import CommitOutcome
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.core.status import BookieStatus
from duramen.limits import PROBE_INTERVAL_US
from tests.unit.writer_driver import OK, Driver, member


def rounds(driver: Driver) -> list[tuple[str, int]]:
    return [(lac.member.bookie, lac.round_id) for lac in driver.take(fx.SendLac)]


def answer(driver: Driver, name: str, round_id: int, status: BookieStatus = OK) -> int:
    driver.writer.on_lac(member(name), status, driver.now_us, round_id)
    driver.writer.validate()
    return driver.writer.round_done


def test_a_round_is_done_when_an_ack_set_took_the_lac() -> None:
    driver = Driver()
    assert driver.writer.ask_round(0) == 1
    assert rounds(driver) == [("b0", 1), ("b1", 1), ("b2", 1)]
    assert answer(driver, "b0", 1) == 0
    assert answer(driver, "b0", 1) == 0, "one member twice is one member"
    assert answer(driver, "b2", 1) == 1


def test_qa_members_that_share_no_write_set_prove_nothing() -> None:
    driver = Driver(quorum=Quorum(4, 2, 2))
    driver.writer.ask_round(0)
    assert answer(driver, "b0", 1) == answer(driver, "b2", 1) == 0
    assert answer(driver, "b3", 1) == 1


def test_an_answer_to_an_older_round_does_not_count() -> None:
    driver = Driver()
    driver.writer.ask_round(0)
    assert driver.writer.ask_round(0) == 2, "the one that is under way began too early"
    answer(driver, "b0", 1)
    rounds(driver)
    assert answer(driver, "b1", 1) == 1
    assert rounds(driver) == [("b0", 2), ("b1", 2), ("b2", 2)]
    assert answer(driver, "b1", 1) == answer(driver, "b2", 1) == answer(driver, "b0", 0) == 1
    answer(driver, "b2", 2)
    assert answer(driver, "b1", 2) == 2


def test_r6_a_round_begins_anew_after_a_change_of_the_ensemble() -> None:
    driver = Driver("b3")
    driver.writer.ask_round(0)
    answer(driver, "b0", 1)
    answer(driver, "b1", 1, BookieStatus.TIMEOUT)
    assert driver.writer.state is WriterState.CHANGING
    assert answer(driver, "b2", 1) == 0
    token, _ = driver.proposed()
    rounds(driver)
    driver.outcome(token, CommitOutcome.APPLIED)
    assert rounds(driver) == [("b0", 2), ("b3", 2), ("b2", 2)]
    assert answer(driver, "b2", 1) == answer(driver, "b0", 2) == 0
    assert answer(driver, "b3", 2) == 2


def test_a_sealed_member_fences_the_writer() -> None:
    driver = Driver()
    driver.writer.ask_round(0)
    assert answer(driver, "b0", 1, BookieStatus.SEALED) == 0
    assert driver.writer.state is WriterState.FENCED


def test_a_round_that_has_no_quorum_is_tried_again() -> None:
    driver = Driver()
    driver.writer.ask_round(0)
    rounds(driver)
    for name in ("b0", "b1"):
        answer(driver, name, 1, BookieStatus.TIMEOUT)
    driver.pass_time(PROBE_INTERVAL_US)
    assert [name for name, round_id in rounds(driver) if round_id == 2] == ["b2"]
    for name in ("b0", "b1"):
        answer(driver, name, 0)
    assert not driver.writer.suspended
    driver.pass_time(PROBE_INTERVAL_US)
    assert [r for r in rounds(driver) if r[1]] == [("b0", 3), ("b1", 3), ("b2", 3)]


@pytest.mark.parametrize("hold_first", [True, False])
def test_r19_no_round_is_under_way_while_the_segment_is_held(hold_first: bool) -> None:
    driver = Driver()
    if not hold_first:
        driver.writer.ask_round(0)
    driver.writer.hold()
    if hold_first:
        driver.writer.ask_round(0)
    rounds(driver)
    answer(driver, "b0", 1)
    assert answer(driver, "b1", 1) == 0 and rounds(driver) == []
