"""Grants of disruption: what they name, when one is over, how they are spelled.

What holders, auditors and their clocks make of it is in `test_granting_races`.
Source: docs/protocol/disruption.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from duramen.core.repair.disruption_grants import (
    LIFE_MIN_MS,
    MARGIN_US,
    DisruptionGrant,
    DisruptionTarget,
    DisruptionToken,
    GrantSightings,
    TargetKind,
    split_over,
)
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import MetadataJsonError
from duramen.wire.nodes.disruptions import DisruptionsNode, encode_disruptions, read_disruptions
from duramen.wire.nodes.fields import encode_node


def grant(token: str, target: str = "bookie/a", **fields: Any) -> DisruptionGrant:
    given = DisruptionGrant(
        DisruptionToken(token), target, "restart", "somebody", LIFE_MIN_MS, 0, 1_000
    )
    return replace(given, **fields)


# --- Targets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "bookie", "bookie/", "/a", "disk/a", "bookie/" + "a" * 513])
def test_a_target_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is none of bookie/…, rack/…"):
        DisruptionTarget.parse(text)


def test_a_target_is_its_text() -> None:
    assert DisruptionTarget.parse("bookie/a/b") == DisruptionTarget(TargetKind.BOOKIE, "a/b")
    assert str(DisruptionTarget.parse("zookeeper/main-0")) == "zookeeper/main-0"


# --- Time ----------------------------------------------------------------------------------------


def test_a_grant_is_over_when_one_process_has_seen_it_unchanged_for_its_life_and_a_margin() -> None:
    sightings = GrantSightings()
    given = grant("t")
    life_us = LIFE_MIN_MS * MS + MARGIN_US
    for now_us in (0, life_us - 1):
        sightings.observe([given], now_us)
        assert split_over([given], sightings, now_us) == ([given], [])
    sightings.observe([given], life_us)
    assert split_over([given], sightings, life_us) == ([], [given])


def test_a_renewal_begins_anew_and_so_does_a_grant_that_was_gone_meanwhile() -> None:
    sightings = GrantSightings()
    given = grant("t")
    sightings.observe([given], 0)
    sightings.observe([renewed := replace(given, renewals=1)], 9 * SECOND)
    assert sightings.left_us(renewed, 9 * SECOND) == LIFE_MIN_MS * MS + MARGIN_US
    sightings.forget()
    assert sightings.left_us(renewed, 9 * SECOND) == LIFE_MIN_MS * MS + MARGIN_US
    sightings.observe([], 10 * SECOND)
    sightings.observe([renewed], 60 * SECOND)
    assert split_over([renewed], sightings, 60 * SECOND) == ([renewed], [])


# --- The node ------------------------------------------------------------------------------------


def test_a_node_is_read_as_it_was_written_and_keeps_what_it_does_not_know() -> None:
    node = DisruptionsNode(
        (grant("t"), grant("u", "cellar/door", kind="paint", accepts=("quorum",))),
        {DisruptionToken("t"): {}, DisruptionToken("u"): {"later": [1]}},
        {"colour": "blue"},
    )
    assert read_disruptions(encode_disruptions(node)) == node


ROW = {
    "token": "t", "target": "bookie/a", "kind": "restart", "holder": "h", "life_ms": 10_000,
    "renewals": 0, "granted_unix_ms": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "rows",
    [None, {}, [[]], [{**ROW, "life_ms": -1}], [{**ROW, "token": 5}], [{**ROW, "renewals": True}],
     [{**ROW, "accepts": "all"}], [{k: v for k, v in ROW.items() if k != "holder"}], [ROW, ROW]],
)  # fmt: skip
def test_a_node_of_another_form_is_refused(rows: object) -> None:
    with pytest.raises(MetadataJsonError):
        read_disruptions(encode_node({"grants": rows}))


def test_a_row_without_what_came_later_is_a_grant() -> None:
    (found,) = read_disruptions(encode_node({"grants": [ROW]})).grants
    assert found.accepts == ()
