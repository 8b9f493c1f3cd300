"""The clean worlds of each bound: production cores with every rule on, where nothing may be found.

`small` belongs to the test run: every world is seen whole. `large` is for nights and for changes of
a core: worlds with two recoverers, three sequencers and more faults; those that are too large to be
seen whole are searched depth first up to a number of states, so that histories reach their ends.
Of a nodeset "2 + 2 of 2" is two racks of two bookies, and two copies that span as many racks.

Called by `__main__.py` and `test_explore.py`. Source: docs/explorer.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from duramen.core.flexible.property import ReplicationProperty
from tests.explore.flexible import FlexibleScenario, Nodeset
from tests.explore.model import Budget, Scenario
from tests.explore.nodes import Shape

RP = ReplicationProperty


class Bounded(NamedTuple):
    """A world and how far it is explored."""

    scenario: Scenario
    state_count_max: int = 10_000_000
    is_deep: bool = False


_SMALL: Final = (
    Bounded(Scenario("fence and read, 2/2/2", Shape(2, 2, 2, 2))),
    Bounded(Scenario("two entries, 2/2/1", Shape(2, 2, 1, 2, 2))),
    Bounded(Scenario("crash, 2/2/1", Shape(2, 2, 1, 2), Budget(crashes=1, timers=1))),
    Bounded(Scenario("change, 1/1/1 of 2", Shape(1, 1, 1, 2), Budget(timeouts=1, timers=1))),
    Bounded(Scenario("out of order, 2/2/2", Shape(2, 2, 2, 2, 2, "out_of_order"))),
    Bounded(Scenario("chain, 2/2/1", Shape(2, 2, 1, 2), sequencers=2)),
    Bounded(
        Scenario("early append, 1/1/1", Shape(1, 1, 1, 1, 2, early_append=True), sequencers=2)
    ),
    Bounded(
        Scenario("chain with faults, 1/1/1", Shape(1, 1, 1, 1), Budget(1, 1, 1, 0, 1, 1),
                 sequencers=2)
    ),
    Bounded(FlexibleScenario("one more wave, 2 + 2 of 2", Nodeset((2, 2), RP(2, 2)))),
    Bounded(
        FlexibleScenario("one more wave, two recoverers, 3 of 2", Nodeset((1, 1, 1), RP(2)),
                         recoverers=2)
    ),
    Bounded(
        FlexibleScenario("out of order, one more wave, 1 + 1 of 2",
                         Nodeset((1, 1), RP(2, 2), 2, "out_of_order"))
    ),
    Bounded(
        FlexibleScenario("crash, 1 + 1 of 2", Nodeset((1, 1), RP(2, 2)),
                         Budget(crashes=1, waves=1), is_reduced=False)
    ),
    Bounded(
        FlexibleScenario("guest, 1 + 1 of 2", Nodeset((1, 1), RP(2, 2), spare_racks=(1,)),
                         Budget(timeouts=1, timers=1), is_reduced=False)
    ),
)  # fmt: skip

_LARGE: Final = (
    *_SMALL,
    Bounded(Scenario("striped, out of order, 3/2/1", Shape(3, 2, 1, 3, 2, "out_of_order"))),
    Bounded(Scenario("fence and read, 3/3/2", Shape(3, 3, 2, 3))),
    Bounded(
        Scenario("change, two entries, 1/1/1 of 2", Shape(1, 1, 1, 2, 2),
                 Budget(timeouts=1, timers=1))
    ),
    Bounded(Scenario("crash, two entries, 2/2/2", Shape(2, 2, 2, 2, 2), Budget(crashes=1))),
    Bounded(
        Scenario("crash, out of order, 2/2/2", Shape(2, 2, 2, 2, 2, "out_of_order"),
                 Budget(crashes=1))
    ),
    Bounded(Scenario("crash, 3/3/2", Shape(3, 3, 2, 3), Budget(crashes=1)), 1_000_000),
    Bounded(
        Scenario("change, 2/2/2 of 3", Shape(2, 2, 2, 3, 2), Budget(timeouts=1)),
        1_000_000, is_deep=True,
    ),
    Bounded(
        Scenario("change, unknown, 1/1/1 of 2", Shape(1, 1, 1, 2, 2),
                 Budget(timeouts=1, unknowns=1, timers=2)),
        1_000_000, is_deep=True,
    ),
    Bounded(
        Scenario("write-back elsewhere, 2/2/1 of 3", Shape(2, 2, 1, 3),
                 Budget(timeouts=2, timers=1)),
        1_000_000, is_deep=True,
    ),
    Bounded(
        Scenario("two recoverers, 2/2/1", Shape(2, 2, 1, 2), Budget(timers=1), recoverers=2),
        1_000_000, is_deep=True,
    ),
    Bounded(
        Scenario("two recoverers, crash, 2/2/2", Shape(2, 2, 2, 2), Budget(crashes=1),
                 recoverers=2),
        1_000_000, is_deep=True,
    ),
    Bounded(
        Scenario("told LAC, doubled, 2/2/1", Shape(2, 2, 1, 2, 2),
                 Budget(timers=1, duplicates=1)),
        1_000_000, is_deep=True,
    ),
    Bounded(
        Scenario("chain, time-out, 2/2/1", Shape(2, 2, 1, 2), Budget(timeouts=1, timers=1),
                 sequencers=2),
    ),
    Bounded(
        Scenario("chain, unknown, torn, 2/2/2", Shape(2, 2, 2, 2),
                 Budget(unknowns=1, timers=2, torn_views=1), sequencers=2),
        1_000_000, is_deep=True,
    ),
    Bounded(
        FlexibleScenario("one more wave, two recoverers, 2 + 2 of 2", Nodeset((2, 2), RP(2, 2)),
                         recoverers=2)
    ),
    Bounded(
        FlexibleScenario("out of order, one more wave, two recoverers, 1 + 1 of 2",
                         Nodeset((1, 1), RP(2, 2), 2, "out_of_order"), recoverers=2)
    ),
    # Breadth first: two takeovers may outbid each other for ever, so this world has no end.
    Bounded(
        Scenario("chain of three, 1/1/1", Shape(1, 1, 1, 1), Budget(timers=1), sequencers=3),
        1_000_000,
    ),
)  # fmt: skip

BOUNDS: Final[Mapping[str, tuple[Bounded, ...]]] = {"small": _SMALL, "large": _LARGE}
