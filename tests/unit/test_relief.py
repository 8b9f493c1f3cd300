"""Whom a process reaches, which logs it gives up, and to whom: never without need, never in turns.

Cores alone. The logs are real ones, brought to a state by hand. What follows from it among several
sequencers: `tests/component/test_cut_off_logs.py` and `tests/sim/standing.py`.
Source: docs/protocol/ownership.md "Cut off from bookies", ADR 0023.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from duramen.config import parse_log_config
from duramen.core.ownership.reach import PROBE_US, SILENT_US, Reach
from duramen.core.ownership.relief import (
    FORGOTTEN_AFTER_US,
    GRACE_MAX_US,
    Reliefs,
    can_append,
    can_serve,
)
from duramen.core.placement import Candidate
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.recovery import RecoveryState
from duramen.core.status import BookieStatus
from duramen.ids import BookieId
from duramen.limits import GIVE_UP_AFTER_US
from duramen.units import SECOND
from tests.unit.core_fakes import LOG_ID, FakeBookie
from tests.unit.cut_off import take_over_until
from tests.unit.sequencer_driver import Driver

ALL = ("b0", "b1", "b2")
TWO = ("b1", "b2")
BOOKIES = [BookieId(name) for name in ALL]


def candidates(count: int) -> list[Candidate]:
    return [FakeBookie(f"b{i}").candidate for i in range(count)]


# --- Whom a process reaches ----------------------------------------------------------------------


class Prober:
    """A process and its questions, one round every `PROBE_US`."""

    def __init__(self) -> None:
        self.now_us = 0
        self.reach = Reach()
        self.reach.learn(BOOKIES, 0)

    def ask(self, *heard: str) -> tuple[str, ...]:
        self.now_us += PROBE_US
        for bookie in BOOKIES:
            self.reach.on_answer(bookie, is_heard=bookie in heard, now_us=self.now_us)
        return self.reach.unreached


def test_a_process_that_begins_reaches_whoever_answered() -> None:
    prober = Prober()
    assert prober.reach.unreached == ALL
    assert prober.ask("b0", "b2") == ("b1",)


def test_one_lost_question_cuts_nobody_off_and_two_do() -> None:
    prober = Prober()
    prober.ask(*ALL)
    assert prober.ask("b0") == ()
    assert prober.ask(*ALL) == ()
    assert prober.ask("b0") == ()
    assert prober.ask("b0") == TWO


def test_who_comes_back_is_reached_when_it_has_stayed() -> None:
    prober = Prober()
    prober.ask(*ALL)
    prober.ask("b0")
    assert prober.ask("b0") == TWO
    assert prober.ask(*ALL) == TWO
    assert prober.ask("b0", "b1") == ("b2",), "one that flaps counts as cut"
    assert prober.ask(*ALL) == ("b2",)
    assert prober.ask(*ALL) == ()
    assert SILENT_US == 2 * PROBE_US


def test_a_bookie_that_joins_has_the_benefit_of_the_doubt_and_one_that_left_is_forgotten() -> None:
    prober = Prober()
    prober.ask(*ALL)
    prober.reach.learn([*BOOKIES[:2], BookieId("b9")], prober.now_us)
    assert prober.reach.unreached == ()
    prober.reach.on_answer(BookieId("b2"), is_heard=False, now_us=prober.now_us + SILENT_US)
    assert prober.reach.unreached == ()


# --- Who could serve a log -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "placement", "here", "unreached", "can"),
    [
        ((3, 3, 2), "strict", 3, 1, True),
        ((3, 3, 2), "strict", 3, 2, False),
        ((3, 3, 2), "strict", 5, 3, True),
        ((3, 3, 2), "strict", 5, 4, False),
        ((5, 3, 2), "strict", 5, 1, True),
        ((5, 3, 2), "strict", 5, 2, False),
        ((3, 3, 3), "strict", 3, 1, False),
        ((3, 3, 2), "prefer", 2, 0, True),
        ((3, 3, 2), "prefer", 2, 1, False),
    ],
)
def test_an_ack_set_of_every_write_set_must_be_reached(
    sizes: tuple[int, int, int], placement: str, here: int, unreached: int, can: bool
) -> None:
    ensemble, write, ack = sizes
    wanted = parse_log_config({"replication": {
        "ensemble_size": ensemble, "write_quorum": write, "ack_quorum": ack,
        "min_racks": 1, "placement": placement,
    }})  # fmt: skip
    names = [f"b{i}" for i in range(unreached)]
    assert can_append(wanted, candidates(here), names) is can


@pytest.mark.parametrize(("unreached", "can"), [(1, True), (2, False)])
def test_a_flexible_logs_copies_lie_among_those_that_are_reached(unreached: int, can: bool) -> None:
    """Of four bookies in four racks two entries' copies want two."""
    wanted = parse_log_config({"copysets": "flexible", "replication": {"node": 3, "rack": 3}})
    names = [f"b{i}" for i in range(unreached)]
    here = [replace(c, rack=f"r{at}", region="x") for at, c in enumerate(candidates(4))]
    assert can_append(wanted, here, names) is can


def test_an_unclosed_segment_must_be_sealed_by_a_cover_of_its_own_bookies() -> None:
    taker = take_over_until(RecoveryState.SEAL)  # its segments lie on b0, b1, b2
    assert can_serve(taker.core, candidates(3), ["b0"])
    assert not can_serve(taker.core, candidates(9), ["b0", "b1"]), "many others are no cover"
    assert not can_serve(taker.core, candidates(9)[2:], []), "who is gone is reached by nobody"


# --- When a log is given up ----------------------------------------------------------------------


class Look:
    """One process that looks at one log every second."""

    def __init__(self, driver: Driver, grace_us: int = GIVE_UP_AFTER_US) -> None:
        self.driver = driver
        self.reliefs = Reliefs(grace_us)
        self.own: tuple[str, ...] = TWO
        self.others: dict[str, tuple[str, ...]] = {"s1": (), "s2": ALL}
        self.now_us = 0

    def wait(self, time_us: int) -> list[str]:
        """Look for so long; returns who is chosen, if anybody is."""
        for _ in range(time_us // SECOND):
            self.now_us += SECOND
            found = self.reliefs.choose(
                [self.driver.core], candidates(3), self.own, self.others, self.now_us
            )
            if found:
                ((log_id, able),) = found
                assert log_id == LOG_ID
                return able
        return []


def open_log() -> Driver:
    """A log with an append that two of three bookies do not answer."""
    driver = Driver()
    driver.activate()
    driver.append(1)
    driver.store_all(only=("b0",))
    return driver


def lose_two(driver: Driver) -> None:
    writer = driver.core.writer
    assert writer is not None
    for name in TWO:
        member, epoch = FakeBookie(name).member, writer.segment.epoch
        driver.core.on_add(member, epoch, writer.lap, BookieStatus.TIMEOUT, driver.now_us)


def test_a_log_without_an_ack_set_goes_to_who_reaches_one_after_the_grace() -> None:
    driver = open_log()
    lose_two(driver)
    look = Look(driver)
    assert look.wait(GIVE_UP_AFTER_US) == []
    assert look.wait(SECOND) == ["s1"]


@pytest.mark.parametrize("state", [RecoveryState.SEAL, RecoveryState.READ])
def test_a_recovery_that_comes_no_further_is_given_up_alike(state: RecoveryState) -> None:
    look = Look(take_over_until(state))
    assert look.wait(GIVE_UP_AFTER_US) == []
    assert look.wait(SECOND) == ["s1"]


def test_nobody_gets_a_log_who_says_nothing_or_could_not_serve_it_either() -> None:
    driver = open_log()
    lose_two(driver)
    look = Look(driver)
    look.others = {"s1": TWO, "s2": ALL}
    assert look.wait(10 * GIVE_UP_AFTER_US) == []
    look.others = {}
    assert look.wait(10 * GIVE_UP_AFTER_US) == []
    look.others = {"s1": ()}
    assert look.wait(SECOND) == ["s1"], "it has stood still for long"


def test_bookies_that_are_reached_and_do_not_acknowledge_are_no_reason() -> None:
    driver = open_log()
    lose_two(driver)
    look = Look(driver)
    look.own = ("b2",)
    assert look.wait(10 * GIVE_UP_AFTER_US) == []


def test_a_log_that_goes_on_is_kept_whatever_questions_say() -> None:
    driver = Driver()
    driver.activate()
    look = Look(driver)
    for append_id in range(1, 40):
        driver.append(append_id)
        driver.store_all()
        assert look.wait(SECOND) == []


def test_an_idle_log_is_given_up_too_for_its_next_append_would_wait() -> None:
    driver = Driver()
    driver.activate()
    look = Look(driver)
    assert look.wait(GIVE_UP_AFTER_US) == []
    assert look.wait(SECOND) == ["s1"]


def test_each_gift_doubles_the_grace_of_the_next_until_it_is_forgotten() -> None:
    driver = open_log()
    lose_two(driver)
    look = Look(driver)
    graces = []
    for _ in range(9):
        begun_us = look.now_us
        assert look.wait(2 * GRACE_MAX_US) == ["s1"]
        graces.append((look.now_us - begun_us - SECOND) // SECOND)
        look.reliefs.note_gift(LOG_ID, look.now_us)
    assert graces == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert look.reliefs.grace_us(LOG_ID, look.now_us + FORGOTTEN_AFTER_US) == GIVE_UP_AFTER_US


def test_no_grace_means_never() -> None:
    driver = open_log()
    lose_two(driver)
    assert Look(driver, grace_us=0).wait(10 * GIVE_UP_AFTER_US) == []


def test_what_was_sent_is_uncertain_and_what_waits_goes_on() -> None:
    driver = open_log()
    lose_two(driver)
    driver.append(2)
    assert driver.take(fx.SendAdd) == [], "behind a known shortage nothing is sent"
    driver.core.release("s1 reaches the log's bookies, we do not", loss=1)
    assert driver.state() is LogState.IDLE
    assert [(fail.append_id, fail.code) for fail in driver.take(fx.Fail)] == [
        (1, "append_uncertain")
    ]
    assert [effect.append_id for effect in driver.take(fx.Yield)] == [2]


def test_a_writer_that_changes_its_bookies_all_the_time_stands_still_all_the_same() -> None:
    driver = open_log()
    look, chosen = Look(driver), list[str]()
    for second in range(GIVE_UP_AFTER_US // SECOND + 1):
        assert look.reliefs.statistics()["logs_given_up"] == 0
        # Adds time out, other bookies are placed, and for a moment all seems to be well.
        driver.context.candidates = candidates(3 + second % 2)
        lose_two(driver)
        if driver.take(fx.Commit):
            driver.core.on_bookies_changed(driver.now_us)
        chosen = look.wait(SECOND)
    assert chosen == ["s1"]
