"""A segment in an answer has what its kind has, and nothing of the other one.

Source: docs/protocol/rest.md "Segments", docs/protocol/flexible.md "Interfaces".
"""

import json
from dataclasses import replace
from typing import Any

from duramen.core.flexible.segment import AnySegment
from duramen.core.metadata_log.history import ToldEpoch
from duramen.core.metadata_log.listing import Whereabouts
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member
from duramen_readproxy.segment_answers import describe_epochs, describe_segment
from tests.unit.flexible_segments import IN_RECOVERY, close, node
from tests.unit.nodes import make_log

OF_STRIPED = {"ensemble_size", "write_quorum", "ack_quorum", "fragments"}
OF_FLEXIBLE = {"property", "nodes"}


def show(segment: AnySegment) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(describe_segment(segment, make_log()).encode())
    return shown


def test_a_flexible_segment_shows_its_property_and_who_may_have_entries() -> None:
    segment = close(IN_RECOVERY).with_added(node("late", "k9"), "n")
    shown = show(segment)
    assert shown["property"] == {"node": 3, "rack": 2, "region": 1}, "extras are no part of it"
    assert [row["role"] for row in shown["nodes"]] == ["own"] * 5 + ["guest"] * 2 + ["added"]
    assert shown["nodes"][1] == {
        "number": 1, "bookie": "b1", "incarnation": f"{1:032x}", "region": "eu", "rack": "k1",
        "weight": 1.5, "role": "own",
    }  # fmt: skip
    assert not OF_STRIPED & set(shown)
    left = segment.without_node(segment.nodes[5].number, "n2")
    assert [row["number"] for row in show(left)["nodes"]] == [0, 1, 2, 3, 4, 6, 7]


def test_a_striped_segment_shows_its_quorums_and_fragments() -> None:
    member = Member(BookieId("b0"), Incarnation("0" * 32))
    fragments = (Fragment(EntryId(0), (member,)),)
    shown = show(Segment(LogId(7), Epoch(3), Quorum(1, 1, 1), fragments))
    assert set(shown) >= OF_STRIPED and not OF_FLEXIBLE & set(shown)
    others = set(show(replace(close(IN_RECOVERY)))) - OF_FLEXIBLE
    assert others == set(shown) - OF_STRIPED, "all the rest is told of either"


def test_holes_and_what_is_missing_are_shown_where_there_are_some() -> None:
    shown = show(close(IN_RECOVERY, holes=((1, 2), (5, 5)), missing=7))
    assert (shown["holes"], shown["missing_records"]) == ([[1, 2], [5, 5]], 7)
    assert not {"holes", "missing_records"} & set(show(close(IN_RECOVERY)))


def test_the_history_of_epochs_is_told_with_each_configuration_once() -> None:
    member = Member(BookieId("b"), Incarnation("i"))
    fragments = (Fragment(EntryId(0), (member,)),)
    segment = Segment(make_log().log_id, Epoch(2), Quorum(1, 1, 1), fragments)
    told = [
        ToldEpoch(Epoch(1), Whereabouts.MOVED, None, 3, {"sticky": True}),
        ToldEpoch(Epoch(2), Whereabouts.STORED, segment, 3, {"sticky": True}),
        ToldEpoch(Epoch(3), Whereabouts.GIVEN_UP, None, None, None),
    ]
    shown: dict[str, Any] = json.loads(describe_epochs(make_log(), told).encode())
    assert shown["configs"] == {"3": {"sticky": True}}
    rows = [(row["epoch"], row["metadata"], row["config_version"]) for row in shown["epochs"]]
    assert rows == [(1, "metadata_log", 3), (2, "zookeeper", 3), (3, "history", None)]
    segments = [row["segment"] for row in shown["epochs"]]
    assert segments[0] is segments[2] is None, "what cannot be read is not left out"
    assert segments[1]["epoch"] == 2
