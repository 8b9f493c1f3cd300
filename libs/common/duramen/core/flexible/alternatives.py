"""Which values go together on the bookies that there are, for who was refused others.

As few fields as can be change, each as little as can be: first one alone, then two, then three.

Pure. Called by `nodeset`. Source: docs/protocol/flexible.md "Choosing the nodeset".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from duramen.config import NODESET_SIZE_MAX
from duramen.core.flexible.soundness import NodesetRule

_TRIES_MAX: Final = 100
"""What so many do not show to work is not offered."""
_FIELDS_MAX: Final = 3
_WAYS_MAX: Final = 3

_NAMES: Final = {
    "node": "replication.node",
    "rack": "replication.rack",
    "region": "replication.region",
    "extras": "replication.extras",
    "tolerate": "nodeset.tolerate",
    "size": "nodeset.size",
    "regions_that_must_suffice": "replication.regions_that_must_suffice",
}
_OF_PROPERTY: Final = ("node", "rack", "region", "extras")


def list_alternatives(
    rule: NodesetRule,
    bookie_count: int,
    region_count: int,
    works: Callable[[NodesetRule], bool],
) -> list[str]:
    """Up to three ways, such as `replication.node 2 and replication.rack 1`; none: not found.

    Args:
        works: whether a sound nodeset can be chosen by it.
    """
    values = _list_values(rule, bookie_count, region_count)
    tries_left = _TRIES_MAX
    for field_count in range(1, _FIELDS_MAX + 1):
        ways: list[str] = []
        for fields in itertools.combinations(values, field_count):
            for chosen in itertools.product(*(values[field] for field in fields)):
                changed = _change(rule, dict(zip(fields, chosen, strict=True)))
                if changed is None:
                    continue
                if not tries_left or len(ways) == _WAYS_MAX:
                    return ways
                tries_left -= 1
                if works(changed):
                    ways.append(_format(zip(fields, chosen, strict=True)))
                    break
        if ways:
            return ways
    return []


def _list_values(rule: NodesetRule, bookie_count: int, region_count: int) -> dict[str, range]:
    """For each field what asks for less, the nearest first."""
    wanted, suffices = rule.wanted, rule.regions_that_must_suffice
    values = {
        "node": range(wanted.node - 1, 0, -1),
        "rack": range(wanted.rack - 1, 0, -1),
        "region": range(wanted.region - 1, 0, -1),
        "extras": range(wanted.extras - 1, -1, -1),
        "tolerate": range(rule.tolerate - 1, -1, -1),
        "size": range(rule.size_of(bookie_count) + 1, min(bookie_count, NODESET_SIZE_MAX) + 1),
    }
    if suffices is not None:
        values["regions_that_must_suffice"] = range(suffices + 1, region_count + 1)
    return values


def _change(rule: NodesetRule, changes: Mapping[str, int]) -> NodesetRule | None:
    """None: such values contradict each other."""
    of_property = {name: value for name, value in changes.items() if name in _OF_PROPERTY}
    try:
        return replace(
            rule,
            wanted=replace(rule.wanted, **of_property),
            tolerate=changes.get("tolerate", rule.tolerate),
            size=changes.get("size", rule.size),
            regions_that_must_suffice=changes.get(
                "regions_that_must_suffice", rule.regions_that_must_suffice
            ),
        )
    except ValueError:
        return None


def _format(changes: Iterable[tuple[str, int]]) -> str:
    return " and ".join(f"{_NAMES[field]} {value}" for field, value in changes)
