"""Bookies among which placement chooses.

Used by the tests of placement. Source: docs/protocol/placement.md.
"""

from __future__ import annotations

from typing import Any

from duramen.core.placement import (
    Candidate,
)
from duramen.ids import BookieId, Incarnation, Member


def candidate(name: str, region: str = "r", rack: str = "k", life: int = 1) -> Candidate:
    return Candidate(Member(BookieId(name), Incarnation(f"{life:032x}")), region, rack)


def living(name: str = "b1", **fields: Any) -> dict[str, dict[str, Any]]:
    node = {
        "incarnation": "aa", "state": "rw", "draining": False, "region": "x", "rack": "a",
        "free_bytes": 100, "data_url": "http://b",
    }  # fmt: skip
    return {name: {**node, **fields}}


def own(name: str = "b1", **fields: Any) -> dict[str, dict[str, Any]]:
    return {name: {"incarnation": "aa", "region": "x", "rack": "a", "weight": 1.0, **fields}}
