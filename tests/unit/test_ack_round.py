"""Ack rounds by themselves: which answers prove what, and which question a round serves.

What an ensemble change, a hold and a seal do to a round is in `test_ack_rounds.py`, through the
writer. Source: docs/protocol/write.md "Refusals", R6.
"""

from __future__ import annotations

import pytest

from duramen.core.quorum import Quorum, has_ack_set
from duramen.core.sequencer.writing.ack_round import AckRound
from duramen.ids import EntryId, Member
from duramen.limits import PROBE_INTERVAL_US
from tests.unit.writing_parts import B0, B1, B2, B3, Recorder, make_segment

LAC = EntryId(4)


class World:
    """Rounds of b0, b1, b2, unless said otherwise."""

    def __init__(self, quorum: Quorum | None = None) -> None:
        self.recorder = Recorder()
        self.segment = make_segment(quorum)
        self.round = AckRound(self.recorder.ports.put)

    def begin(self, *absent: Member, now_us: int = 0) -> list[tuple[str, int, int]]:
        taking = [m for m in self.segment.last_fragment.ensemble if m not in absent]
        self.round.begin(self.segment.ledger_id, LAC, taking, now_us)
        self.round.validate()
        return self.recorder.told()

    def taken(self, member: Member, round_id: int) -> bool:
        ensemble, quorum = self.segment.last_fragment.ensemble, self.segment.quorum
        is_done = self.round.note_taken(
            member, round_id, lambda holders: has_ack_set(holders, ensemble, quorum)
        )
        self.round.validate()
        return is_done


def test_nothing_is_sent_while_nobody_asks() -> None:
    assert World().begin() == []


def test_a_round_sends_the_lac_to_who_takes_entries_once() -> None:
    world = World()
    assert world.round.ask() == 1
    assert world.begin(B1, now_us=5) == [("b0", 4, 1), ("b2", 4, 1)]
    assert world.round.again_at_us == 5 + PROBE_INTERVAL_US
    assert world.begin() == [], "it is under way"


def test_an_ack_set_proves_the_round() -> None:
    world = World(Quorum(4, 2, 2))
    world.round.ask()
    world.begin()
    assert not any(world.taken(member, 1) for member in (B0, B2, B0))
    assert world.taken(B3, 1), "b2 and b3 are one write set's"
    assert (world.round.done, world.round.again_at_us) == (1, None)
    assert not world.taken(B1, 1), "it is over"


def test_an_answer_to_another_round_proves_nothing() -> None:
    world = World()
    world.round.ask()
    world.begin()
    assert not any(world.taken(member, round_id) for member in (B0, B1) for round_id in (0, 2))


def test_a_question_that_came_during_a_round_is_served_by_the_next() -> None:
    world = World()
    world.round.ask()
    world.begin()
    assert world.round.ask() == world.round.ask() == 2
    world.taken(B0, 1)
    assert world.taken(B1, 1)
    assert [round_id for _, _, round_id in world.begin()] == [2, 2, 2]


def test_r6_a_void_round_serves_nobody_and_the_next_one_does() -> None:
    world = World()
    world.round.ask()
    world.begin()
    world.taken(B0, 1)
    world.round.void()
    world.round.validate()
    assert not world.taken(B1, 1) and world.round.again_at_us is None
    assert [round_id for _, _, round_id in world.begin()] == [2, 2, 2]


def test_to_void_what_is_not_under_way_asks_for_nothing() -> None:
    world = World()
    world.round.void()
    assert world.begin() == []


def test_what_was_stopped_is_not_taken_up_again() -> None:
    world = World()
    world.round.ask()
    world.begin()
    world.round.stop()
    assert world.begin() == [] and not world.taken(B0, 1) and not world.taken(B1, 1)
    assert world.round.ask() == 2


@pytest.mark.parametrize("fault", ["no end", "done twice", "wanted too far"])
def test_a_round_that_breaks_an_invariant_is_found(fault: str) -> None:
    world = World()
    world.round.ask()
    world.begin()
    match fault:
        case "no end":
            world.round.again_at_us = None
        case "done twice":
            world.round.done = 1
        case _:
            world.round._wanted = 3
    with pytest.raises(AssertionError):
        world.round.validate()
