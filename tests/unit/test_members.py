"""Gossip among members, in virtual time: who is confirmed, how soon, and who never is.

What is counted in periods of 250 ms. Source: docs/protocol/members.md.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.core.members.gossip import Gossip
from duramen.core.members.messages import (
    AWAY_COUNT_MAX,
    INCARNATION_MAX,
    LATE_US,
    OBSERVED_US,
    PERIOD_US,
    RELAY_TIMEOUT_US,
    RUMOUR_COUNT_MAX,
    MemberQuestion,
    MemberReply,
    MemberState,
    RelayFinding,
    Send,
    Word,
)
from duramen.core.members.observer import Observer
from duramen.core.members.rumours import Rumours, report_count
from duramen.core.members.witness import (
    HEARD_LATELY_US,
    WITNESSED_COUNT_MAX,
    Witness,
    judge_ping,
)
from duramen.units import MINUTE, SECOND
from tests.unit.member_world import LOOK_US, Watching, World

WARM_US = 5 * SECOND
CONFIRMED_PERIODS_MAX = 8
"""A freeze is known to all: two periods until it is pinged, three of probing, and the news."""


@pytest.mark.parametrize("count", [5, 6, 9, 20])
@pytest.mark.parametrize("seed", range(12))
def test_every_freeze_is_known_to_all_within_two_seconds(count: int, seed: int) -> None:
    world = World(count, seed)
    world.run(WARM_US + seed * 37_000)
    world.freeze("0")
    took_us = world.run_until_away("0", count - 1, CONFIRMED_PERIODS_MAX * PERIOD_US)
    assert took_us >= 2 * PERIOD_US, "too soon: nothing was asked twice"


def test_most_freezes_are_known_to_somebody_within_five_periods() -> None:
    took = []
    for seed in range(40):
        world = World(5, seed)
        world.run(WARM_US + seed * 31_000)
        world.freeze("0")
        took.append(world.run_until_away("0", 1, 8 * PERIOD_US))
    took.sort()
    print(f"first confirmation: median {took[20] / 1000:.0f} ms, last {took[-1] / 1000:.0f} ms")
    assert took[20] <= 5 * PERIOD_US
    assert took[-1] <= 7 * PERIOD_US


@pytest.mark.parametrize("seed", range(6))
def test_who_wakes_is_back_within_a_few_periods(seed: int) -> None:
    world = World(6, seed)
    world.run(WARM_US)
    world.freeze("0")
    world.run(10 * SECOND)
    assert len(world.says_away("0")) == 5
    world.wake("0")
    world.run_until(lambda: not world.says_away("0"), 4 * PERIOD_US)
    assert not world.members["0"].list_away(world.clock("0")), "who woke late suspects nobody"
    world.run(2 * SECOND)
    words = {world.members[str(i)].table.word_of("0") for i in range(1, 6)}
    assert words == {Word("0", 1, MemberState.ALIVE)}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_nobody_is_suspected_where_three_cannot_be_asked(count: int) -> None:
    world = World(count, 1)
    world.run(WARM_US)
    world.freeze("0")
    world.run(20 * SECOND)
    assert world.state_counts("suspected") == 0
    assert not world.says_away("0")


# --- Few sequencers: bookies are asked -----------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_bookies_help_where_sequencers_are_few(count: int, seed: int) -> None:
    world = World(count, seed, bookie_count=3)
    world.run(2 * WARM_US)
    world.freeze("0")
    world.run_until_away("0", count - 1, CONFIRMED_PERIODS_MAX * PERIOD_US)
    world.run(30 * SECOND)
    assert len(world.says_away("0")) == count - 1
    world.wake("0")
    world.run_until(lambda: not world.says_away("0"), 4 * PERIOD_US)


def test_two_sequencers_that_do_not_reach_one_another_suspect_nobody() -> None:
    world = World(2, 1, bookie_count=3)
    world.run(2 * WARM_US)
    world.cuts = {("0", "1"), ("1", "0")}
    world.run(60 * SECOND)
    assert world.state_counts("unanswered") > 100
    assert world.state_counts("suspected") == 0


def test_bookies_that_never_reached_a_sequencer_say_nothing_of_it() -> None:
    """As where the network lets no bookie through: then a bad link is no evidence either."""
    world = World(2, 1, bookie_count=3)
    world.cuts = {(f"bookie/{i}", name) for i in range(3) for name in "01"}
    world.run(2 * WARM_US)
    world.cuts |= {("0", "1"), ("1", "0")}
    world.run(60 * SECOND)
    assert world.state_counts("suspected") == 0


def test_two_bookies_are_too_few() -> None:
    world = World(2, 1, bookie_count=2)
    world.run(2 * WARM_US)
    world.freeze("0")
    world.run(20 * SECOND)
    assert world.state_counts("suspected") == 0


def test_a_bookie_asks_nobody_where_sequencers_are_many() -> None:
    witness = Witness()
    witness.learn({str(i): 1 for i in range(WITNESSED_COUNT_MAX)})
    assert len(witness.names) == WITNESSED_COUNT_MAX
    witness.note_heard("0", 0)
    assert witness.was_heard("0", HEARD_LATELY_US - 1)
    assert not witness.was_heard("0", HEARD_LATELY_US)
    witness.learn({"0": 2})
    assert not witness.was_heard("0", 1), "it is another registration"
    witness.note_heard("0", 0)
    witness.learn({str(i): 2 for i in range(WITNESSED_COUNT_MAX + 1)})
    assert not witness.names and not witness.was_heard("0", 1)


@pytest.mark.parametrize(
    ("is_answered", "was_heard", "took_us", "finding"),
    [
        (True, False, 0, RelayFinding.ANSWERED),
        (False, True, RELAY_TIMEOUT_US, RelayFinding.SILENT),
        (False, True, RELAY_TIMEOUT_US + LATE_US + 1, RelayFinding.UNSURE),
        (False, False, RELAY_TIMEOUT_US, RelayFinding.UNSURE),
    ],
)
def test_a_relay_that_slept_or_never_heard_a_member_is_not_sure(
    *, is_answered: bool, was_heard: bool, took_us: int, finding: RelayFinding
) -> None:
    found = judge_ping(is_answered=is_answered, was_heard=was_heard, took_us=took_us)
    assert found is finding


def test_a_suspected_member_has_time_to_contradict() -> None:
    """What it says within 200 ms after the suspicion keeps it from being confirmed."""
    world = World(6, 4)
    world.run(WARM_US)
    world.freeze("0")
    world.run_until(lambda: world.state_counts("suspected") > 0, 8 * PERIOD_US)
    world.run(120_000)
    world.wake("0")
    world.run(3 * SECOND)
    assert world.state_counts("confirmed") == 0
    assert not world.away_at


# --- Cuts, sleeps, storms ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_cut_link_makes_nobody_suspected(seed: int) -> None:
    world = World(6, seed)
    world.cuts = {("1", "0"), ("2", "3"), ("3", "2")}
    world.run(60 * SECOND)
    assert world.state_counts("suspected") == 0


@pytest.mark.parametrize("seed", range(4))
def test_who_hears_nobody_suspects_nobody(seed: int) -> None:
    """Its own questions and answers pass; what others send it does not."""
    world = World(6, seed)
    world.cuts = {(str(i), "0") for i in range(1, 6)}
    world.run(60 * SECOND)
    assert world.members["0"].statistics(world.now_us)["suspected"] == 0


def test_relays_that_do_not_answer_are_no_witnesses() -> None:
    """Two cut links, and three that are frozen: of four relays one alone says that it is silent."""
    world = World(6, 3)
    world.run(WARM_US)
    world.cuts = {("1", "0"), ("2", "0")}
    for name in "345":
        world.freeze(name)
    world.run(20 * SECOND)
    assert world.state_counts("unanswered") > 20
    assert world.state_counts("suspected") == 0


def test_a_sleeper_does_not_believe_what_it_knew() -> None:
    """Who was away when it fell asleep came back meanwhile."""
    world = World(7, 3)
    world.run(WARM_US)
    world.freeze("0")
    world.run_until_away("0", 6, CONFIRMED_PERIODS_MAX * PERIOD_US)
    world.freeze("1")
    world.wake("0")
    world.run(MINUTE)
    world.away_at.clear()
    world.wake("1")
    world.run(5 * SECOND)
    assert ("1", "0") not in world.away_at


def test_who_is_reached_by_one_relay_is_not_suspected() -> None:
    world = World(5, 7)
    world.run(WARM_US)
    # Whoever probes it asks all three others, and one of them reaches it.
    world.cuts = {("2", "0"), ("3", "0"), ("4", "0")}
    world.run(60 * SECOND)
    assert world.state_counts("suspected") == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_lost_pings_confirms_nobody_who_answers(seed: int) -> None:
    """5 % of all messages are lost for ten minutes."""
    world = World(6, seed, loss=0.05)
    world.run(10 * MINUTE)
    pings = world.state_counts("pings")
    print(f"{pings} pings, {world.state_counts('unanswered')} unanswered")
    assert world.state_counts("unanswered") > 100, "it was no storm"
    assert not world.away_at
    world.freeze("0")
    world.run_until_away("0", 4, 16 * PERIOD_US)


@pytest.mark.parametrize("seed", range(3))
def test_a_heavy_storm_is_survived(seed: int) -> None:
    """A third is lost: some are called away, all are back when it is over."""
    world = World(6, seed, loss=0.33)
    world.run(2 * MINUTE)
    world.loss = 0.0
    world.run(3 * SECOND)
    assert not any(world.says_away(name) for name in world.members)
    assert world.state_counts("suspected") > 0
    assert world.state_counts("refuted") > 0


@pytest.mark.parametrize("asleep_us", [400_000, SECOND, 5 * SECOND, MINUTE])
def test_a_sleeper_takes_nobody_for_away(asleep_us: int) -> None:
    world = World(6, 3)
    world.run(WARM_US)
    world.freeze("0")
    world.run(asleep_us)
    world.wake("0")
    for _ in range(100):
        world.run(LOOK_US)
        assert not world.members["0"].list_away(world.clock("0"))
    assert world.members["0"].statistics(world.clock("0"))["suspected"] == 0


def test_all_sleep_together() -> None:
    """As when the machine is suspended: everybody wakes late, and nobody is suspected."""
    world = World(6, 3)
    for _ in range(20):
        world.run(SECOND)
        for name in world.members:
            world.freeze(name)
        world.run(3 * SECOND)
        for name in world.members:
            world.wake(name)
    assert world.state_counts("suspected") == 0


def test_a_clock_that_stands_still_expires_nothing() -> None:
    world = World(6, 3)
    world.run(WARM_US)
    world.stopped_at_us["0"] = world.now_us
    world.run(30 * SECOND)
    assert world.members["0"].statistics(world.clock("0"))["unanswered"] == 0
    assert not any(world.says_away(name) for name in world.members)
    del world.stopped_at_us["0"]
    world.run(5 * SECOND)
    assert world.state_counts("suspected") == 0


def test_a_clock_that_jumps_is_a_sleep() -> None:
    world = World(6, 3)
    world.run(WARM_US)
    for _ in range(50):
        world.clock_off_us["0"] = world.clock_off_us.get("0", 0) + world.rng.randrange(3 * SECOND)
        world.run(200_000)
    assert world.state_counts("suspected") == 0


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_false_confirmation_while_three_answer(data: st.DataObject) -> None:
    """Any cuts between members, as long as three relays reach a member and answer whoever asks.

    Freezes of others come and go; whoever is not frozen is never called away.
    """
    count = data.draw(st.integers(6, 8))
    world = World(count, data.draw(st.integers(0, 999)))
    names = sorted(world.members)
    world.run(SECOND)
    pairs = [(a, b) for a in names for b in names if a != b]
    world.cuts = set(data.draw(st.lists(st.sampled_from(pairs), max_size=2, unique=True)))
    for _ in range(data.draw(st.integers(1, 4))):
        asleep = data.draw(st.sampled_from(names))
        since_us = world.now_us
        world.freeze(asleep)
        world.run(data.draw(st.integers(100_000, 4_000_000)))
        wrong = [pair for pair, at in world.away_at.items() if at >= since_us and pair[1] != asleep]
        assert not wrong, (asleep, wrong, world.cuts)
        world.wake(asleep)
        world.run(4 * SECOND)
        assert not any(world.says_away(name) for name in names), "all are back"


@pytest.mark.parametrize("seed", range(3))
def test_two_halves_confirm_one_another_and_heal(seed: int) -> None:
    world = World(8, seed)
    world.run(WARM_US)
    halves = ("0123", "4567")
    world.cuts = {
        (a, b) for a in "01234567" for b in "01234567" if (a in halves[0]) != (b in halves[0])
    }
    world.run(10 * SECOND)
    for name in "4567":
        assert set(world.says_away(name)) == set(halves[0])
    world.cuts = set()
    world.run(4 * SECOND)
    assert not any(world.says_away(name) for name in world.members)


def test_messages_and_state_are_bounded() -> None:
    world = World(40, 1, loss=0.3)
    world.run(30 * SECOND)
    assert max(world.message_words) <= RUMOUR_COUNT_MAX + 2
    for member in world.members.values():
        assert member.statistics(world.now_us)["rumours"] <= 40


def test_a_rumour_is_told_a_bounded_number_of_times() -> None:
    rumours = Rumours()
    rumours.put(Word("a", 0, MemberState.CONFIRMED))
    told = sum(bool(rumours.take(100)) for _ in range(1_000))
    assert told == report_count(100) == 32
    assert len(rumours) == 0


def test_strangers_and_impossible_incarnations_are_not_believed() -> None:
    gossip = Gossip("a", random.Random(1))
    gossip.learn({"a": 1, "b": 1})
    words = (
        Word("nobody", 0, MemberState.CONFIRMED),
        Word("b", INCARNATION_MAX, MemberState.CONFIRMED),
        Word("a", INCARNATION_MAX, MemberState.CONFIRMED),
    )
    gossip.on_question(MemberQuestion("b", 0, words), 0)
    assert gossip.table.word_of("nobody") is None
    assert gossip.table.word_of("b") == Word("b", 0, MemberState.ALIVE)
    assert gossip.table.incarnation == 0


def test_whoever_is_accused_contradicts_in_the_very_answer() -> None:
    gossip = Gossip("a", random.Random(1))
    gossip.learn({"a": 1, "b": 1})
    question = MemberQuestion("b", 0, (Word("a", 4, MemberState.CONFIRMED),))
    gossip.on_question(question, 0)
    assert gossip.answer(question, 0).incarnation == 5


def test_a_new_registration_begins_anew() -> None:
    gossip = Gossip("a", random.Random(1))
    gossip.learn({"a": 1, "b": 1})
    gossip.on_question(MemberQuestion("c", 0, (Word("b", 3, MemberState.CONFIRMED),)), 0)
    assert gossip.table.word_of("b") == Word("b", 3, MemberState.CONFIRMED)
    gossip.learn({"a": 1, "b": 2})
    assert gossip.table.word_of("b") == Word("b", 0, MemberState.ALIVE)


def test_who_does_not_gossip_is_neither_suspected_nor_asked() -> None:
    gossip = Gossip("0", random.Random(1))
    gossip.learn(dict.fromkeys("012345", 1))
    sends = []
    for now_us in range(0, 5 * SECOND, LOOK_US):
        gossip.look(now_us)
        for send in gossip.take_sends():
            sends.append(send)
            if send.receiver in "123":
                gossip.on_mute(send.receiver, now_us)
    assert not [send for send in sends if send.target], "two relays are too few"
    assert gossip.statistics(5 * SECOND)["suspected"] == 0


def test_an_observer_listens_and_forgets() -> None:
    world = World(5, 2)
    watching = Watching(world)
    world.run(WARM_US)
    world.freeze("0")
    took_us = world.run_until(
        lambda: watching.observer.list_away(world.now_us) == {"0"}, 9 * PERIOD_US
    )
    print(f"an observer knows after {took_us / 1000:.0f} ms")
    world.run(10 * SECOND)
    assert watching.observer.list_away(world.now_us) == {"0"}
    world.wake("0")
    world.run(2 * SECOND)
    assert not watching.observer.list_away(world.now_us)


def test_an_observer_that_is_told_of_all_believes_nothing() -> None:
    observer = Observer(random.Random(1))
    observer.learn(["a", "b"])
    words = tuple(Word(name, 0, MemberState.CONFIRMED) for name in "ab")
    assert not observer.on_reply(MemberReply("c", 0, words), 0)
    assert not observer.list_away(0)
    assert observer.on_reply(MemberReply("a", 0, words[1:]), 0)
    assert observer.list_away(0) == {"b"}
    assert observer.list_away(OBSERVED_US - 1) == {"b"}
    assert not observer.list_away(OBSERVED_US), "somebody has to say it again"


def test_an_observer_is_told_of_63_at_most() -> None:
    gossip = Gossip("me", random.Random(1))
    gossip.learn({f"n{i:03}": 1 for i in range(200)})
    for now_us in range(0, 2 * SECOND, LOOK_US):
        gossip.look(now_us)
        gossip.take_sends()
    for i in range(200):
        gossip.on_question(
            MemberQuestion("x", 0, (Word(f"n{i:03}", 0, MemberState.CONFIRMED),)), now_us
        )
    question = MemberQuestion("proxy", 0, is_observer=True)
    assert len(gossip.answer(question, now_us).words) == AWAY_COUNT_MAX


def test_a_rumour_does_not_count_against_what_one_heard() -> None:
    gossip = Gossip("a", random.Random(1))
    gossip.learn({"a": 1, "b": 1, "c": 1})
    for now_us in range(0, 2 * SECOND, LOOK_US):
        gossip.look(now_us)
        gossip.take_sends()
    gossip.on_reply(Send("b"), MemberReply("b", 0), now_us)
    gossip.on_question(MemberQuestion("c", 0, (Word("b", 0, MemberState.CONFIRMED),)), now_us)
    assert not gossip.list_away(now_us)
    for now_us in range(2 * SECOND, 3 * SECOND, LOOK_US):
        gossip.look(now_us)
    assert gossip.list_away(now_us) == ["b"]
