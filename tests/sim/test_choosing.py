"""Which seeds are chosen for the gate: few that meet all that a long sweep meets.

Not here: what a sweep has to meet, and that the gate's does (`test_sim`).
"""

from __future__ import annotations

from collections import Counter

from tests.sim.choosing import Chosen, choose_seeds
from tests.sim.options import draw_options
from tests.sim.run import Result

REQUIRED = ("common", "rare", "single", "never")


def make_result(seed: int, *names: str, event_count: int = 10) -> Result:
    return Result(seed, draw_options(1), "", 0, event_count, Counter(names))


def test_what_the_first_do_not_meet_is_met_by_few_others() -> None:
    sweep = [
        make_result(1, "common"),
        make_result(2, "common"),
        make_result(3, "common", "never asked for"),
        make_result(4, "rare"),
        make_result(5, "rare", "single", "single"),
        make_result(6, "rare"),
    ]
    assert choose_seeds(sweep, 2, REQUIRED) == [Chosen(5, ("single", "rare"))]


def test_of_equals_the_shortest_is_chosen() -> None:
    sweep = [
        make_result(1, "rare", event_count=30),
        make_result(2, "rare", event_count=10),
        make_result(3, "rare", event_count=20),
        make_result(4, "single", event_count=99),
    ]
    assert choose_seeds(sweep, 0, REQUIRED) == [Chosen(2, ("rare",)), Chosen(4, ("single",))]


def test_nothing_is_chosen_where_the_first_meet_all() -> None:
    sweep = [make_result(1, "common"), make_result(2, "common"), make_result(3, "common")]
    assert choose_seeds(sweep, 2, REQUIRED) == []
