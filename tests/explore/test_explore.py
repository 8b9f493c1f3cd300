"""The explorer's net, small bound: nothing in clean worlds, every mutant caught, numbers in bounds.

Each search is complete or ends with a counterexample; none is random, so a failure here is a fault
of a core (or of the explorer) and prints the steps that lead to it. The large bound is
`python -m tests.explore --bound large`. Source: docs/explorer.md.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from duramen.core.flexible.property import ReplicationProperty
from duramen.core.quorum import write_sets
from tests.explore.flexible import FlexibleScenario, Nodeset
from tests.explore.model import Budget, Scenario
from tests.explore.mutants import MUTANTS, MajorityRecoveryMachine
from tests.explore.nodes import Shape
from tests.explore.search import search
from tests.explore.state import Automaton, Event, Out, ScriptedRandom
from tests.explore.worlds import BOUNDS, Bounded

RP = ReplicationProperty
STATE_COUNT_MAX = 500_000

EXPECTED = {
    "r14-read-without-seal": "D1: closed at -1",
    "r10-seal-before-sync": "F1:",
    "r10-to-loss": "D1: closed at -1",
    "r12-majority": "F1:",
    "r12-to-loss": "D1: closed at -1",
    "r12-majority-striped": "F1:",
    "r7-stale-acks": "D2:",
    "r8-replaced-member": "D2:",
    "r6-ack-before-change": "D2:",
    "r13-recovery-moves-lac": "L1:",
    "r15-one-absence": "D1: closed at -1",
    "r16-no-write-back": "D2:",
    "early-append": "E1:",
    "early-append-unsealed": "E1:",
    "r22-holders-are-counted": "D2:",
    "r22-lng-over-a-gap": "L1:",
    "v3-here-under-a-seal": "F1:",
    "v3-to-loss": "D1: closed at -1",
    "r23-counted-cover": "F1:",
    "r23-to-loss": "D1: closed at -1",
    "r24-silence-is-absence": "D1: closed at -1",
    "r24-end-at-a-hole": "D1: closed at -1",
    "r24-no-write-back": "D2:",
    "literal-f1": "F1:",
}


@pytest.mark.parametrize("world", BOUNDS["small"], ids=lambda world: world.scenario.name)
def test_a_clean_world_has_no_fault(world: Bounded) -> None:
    result = search(world.scenario, state_count_max=STATE_COUNT_MAX)
    assert not result.fault, f"\n{result}"
    assert result.is_complete, f"not seen whole: {result}"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    result = search(MUTANTS[name], state_count_max=STATE_COUNT_MAX)
    assert result.fault.startswith(EXPECTED[name]), f"\n{result}"
    assert len(result.trace) >= result.depth, "the trace has every step"


@pytest.mark.parametrize("name", MUTANTS)
def test_the_same_world_without_the_mutation_is_clean(name: str) -> None:
    """What is caught is the missing rule, not the world: production cores pass in the same one."""
    clean = _without_mutation(MUTANTS[name])
    result = search(clean, state_count_max=5_000)
    assert not result.fault, f"\n{result}"


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2), (3, 1, 1)])
def test_a_majority_is_wrong_exactly_where_arithmetic_says(shape: tuple[int, int, int]) -> None:
    """The smallest ensemble in which R12 is more than a majority has three bookies."""
    ensemble_size, write_quorum, ack_quorum = shape
    world = Shape(ensemble_size, write_quorum, ack_quorum, ensemble_size)
    majority = ensemble_size // 2 + 1
    sets = write_sets(world.members, world.quorum)
    misses = [sum(member not in world.members[:majority] for member in one) for one in sets]
    is_wrong = any(missed >= ack_quorum for missed in misses)
    result = search(
        Scenario("majority", world, recovery=MajorityRecoveryMachine), state_count_max=100_000
    )
    assert bool(result.fault) == is_wrong, f"\n{result}"


WATCHED = (
    "change, 1/1/1 of 2",
    "crash, 2/2/1",
    pytest.param("chain with faults, 1/1/1", marks=pytest.mark.night),  # a minute of a processor
    "crash, 1 + 1 of 2",
)


@pytest.mark.parametrize("name", WATCHED)
def test_states_that_are_held_equal_behave_equally(name: str) -> None:
    """What `freeze` leaves out decides nothing.

    A local state is played by the way on which it was found first. Here every other way into it is
    played too, and must answer every event that was ever asked with the same outcomes.
    """
    scenario = next(w.scenario for w in BOUNDS["small"] if w.scenario.name == name)
    world = search(scenario, state_count_max=STATE_COUNT_MAX).world
    automata = (world.bookie, world.store, *world.processes.values())
    compared_count = sum(_compare_ways(automaton) for automaton in automata)
    assert compared_count > 500


@pytest.mark.parametrize(
    "scenario",
    [
        FlexibleScenario("one recoverer", Nodeset((1, 1, 1), RP(2))),
        FlexibleScenario("two recoverers", Nodeset((1, 1), RP(2, 2)), Budget(), recoverers=2),
        FlexibleScenario("holes", Nodeset((1, 1), RP(2, 2), 2, "out_of_order"), Budget()),
    ],
    ids=lambda scenario: scenario.name,
)
def test_a_reduced_world_shows_all_that_the_whole_one_shows(scenario: FlexibleScenario) -> None:
    """And nothing else: which orders are left out, and that bookies sync at once, hides nothing."""
    reduced, whole = (
        search(dataclasses.replace(scenario, is_reduced=is_reduced), state_count_max=200_000)
        for is_reduced in (True, False)
    )
    assert reduced.is_complete and whole.is_complete, f"\n{reduced}\n{whole}"
    shown = [{found.world.show(state) for state in found.states} for found in (reduced, whole)]
    assert shown[0] == shown[1]
    assert 4 * reduced.state_count < whole.state_count


def test_a_search_is_the_same_every_time() -> None:
    scenario = MUTANTS["r12-majority"]
    one, other = (search(scenario, state_count_max=STATE_COUNT_MAX) for _ in range(2))
    assert (one.trace, one.state_count) == (other.trace, other.state_count)


def test_depth_first_and_breadth_first_see_the_same_states() -> None:
    scenario = BOUNDS["small"][0].scenario
    wide = search(scenario, state_count_max=STATE_COUNT_MAX)
    deep = search(scenario, state_count_max=STATE_COUNT_MAX, is_deep=True)
    assert wide.is_complete and deep.is_complete
    assert wide.state_count == deep.state_count


def test_choices_are_explored() -> None:
    """Which replica recovery asks is a draw: each alternative is an outcome of its own."""
    rng = ScriptedRandom()
    rng.begin((2,))
    assert [rng.randrange(3), rng.randrange(2), rng.randrange(1)] == [2, 0, 0]
    assert rng.asked == [3, 2]


def _compare_ways(automaton: Automaton) -> int:
    """Play events after other ways into their states; returns how many could be compared.

    Ways and events that draw are left out: which draw led where is not kept.
    """
    steps = automaton.list_steps()
    answers: dict[int, list[tuple[Event, int, tuple[Out, ...]]]] = {}
    for number, event, found in steps:
        if len(found) == 1:
            answers.setdefault(number, []).append((event, *found[0]))
    count = 0
    for number, event, found in steps:
        for follow, after, outs in answers.get(found[0][0], ()) if len(found) == 1 else ():
            machine = automaton.revive(number)
            machine.rng.begin(())
            machine.handle(event)
            machine.rng.begin(())
            # The network keeps no order, so that of the sends in one step says nothing.
            got = sorted(machine.handle(follow), key=repr)
            assert got == sorted(outs, key=repr), (number, event, follow)
            assert automaton.numbers[machine.key()] == after, (number, event, follow)
            count += 1
    return count


def _without_mutation(scenario: Scenario) -> Scenario:
    names = {"bookie", "writer", "recovery", "sequencer", "fence"}
    clean: dict[str, Any] = {
        f.name: f.default for f in dataclasses.fields(scenario) if f.name in names
    }
    assert clean.keys() == names
    return dataclasses.replace(scenario, **clean)
