"""Flexible segments' nodes: golden files, round trips, sizes, and refusals that name the field.

Source: docs/protocol/flexible.md "The segment node".
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.flexible.segment import ROWS_MAX, FlexibleSegment
from duramen.core.placement.room import Rack
from duramen.ids import LAST_ENTRY_ID, EntryId
from duramen.units import KIB
from duramen.wire.metadata_json import (
    MetadataJsonError,
    encode_segment,
    read_any_segment,
    read_bookie,
    read_node,
    read_segment,
    read_tombstone,
)
from tests.golden import read_golden
from tests.unit.flexible_segments import (
    CLOSED,
    COPY,
    IN_RECOVERY,
    OPEN,
    RP,
    close,
    close_as_owner,
    lives,
    node,
    number,
)

SPAN_ENTRY_COUNT = 4_096
"""Of an `out_of_order` epoch, from the oldest incomplete entry to the newest."""

REPAIRED = (
    CLOSED.with_added(node("b9", "k2"), "s3.0")
    .without_node(number(1), "s3.1")
    .with_locations({number(2): Rack("us", "x"), number(3): Rack("", "")}, "s3.2")
    .with_property(replace(RP, node=2), "s3.3")
    .with_lost([(15, 16)], 21, "s3.4")
    .with_proved("s3.5")
    .with_cold_copy(COPY, "s3.6")
)
VERSIONS = {
    "open": OPEN,
    "in-recovery": IN_RECOVERY.bounded(EntryId(50), "s2.9"),
    "closed": CLOSED,
    "closed-by-owner": close_as_owner(OPEN),
    "repaired": REPAIRED,
}


def document_of(segment: FlexibleSegment) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(encode_segment(segment))
    return document


def read(document: dict[str, Any]) -> object:
    return read_any_segment(json.dumps(document).encode())


@pytest.mark.parametrize(("name", "segment"), VERSIONS.items(), ids=VERSIONS)
def test_golden_segment_nodes(name: str, segment: FlexibleSegment) -> None:
    golden = read_golden(f"segment-node-flexible-{name}-v2.json", encode_segment(segment))
    assert read_any_segment(golden) == segment


def test_nothing_of_a_striped_segment_stands_in_the_node() -> None:
    document = document_of(CLOSED)
    assert document["v"] == 2
    assert not {"fragments", "ensemble_size", "write_quorum", "ack_quorum"} & set(document)
    assert document["property"] == {"node": 3, "rack": 2, "region": 1} and document["extras"] == 1
    assert document["nodes"][6] == [6, "b1", f"{2:032x}", "eu", "k4", 1.0]


@given(lives())
def test_what_is_written_is_read_again(versions: list[FlexibleSegment]) -> None:
    for segment in versions:
        data = encode_segment(segment)
        assert read_any_segment(data) == segment
        assert encode_segment(segment) == data


def test_unknown_fields_travel_through_a_rewrite() -> None:
    document = {**document_of(OPEN), "later": {"kept": True}}
    segment = read_any_segment(json.dumps(document).encode())
    assert segment.extra == {"later": {"kept": True}}
    assert document_of(replace(OPEN.marked("m"), extra=segment.extra))["later"] == {"kept": True}


# --- Versions ------------------------------------------------------------------------------------


def test_who_knows_striped_segments_alone_meets_a_newer_version() -> None:
    with pytest.raises(MetadataJsonError, match=r"^the node's schema 2 is newer than 1$"):
        read_segment(encode_segment(OPEN))
    with pytest.raises(MetadataJsonError, match=r"^the node's schema 3 is newer than 2$"):
        read({**document_of(OPEN), "v": 3})


@pytest.mark.parametrize("read_it", [read_node, read_bookie, read_tombstone])
def test_bookies_and_tombstones_have_no_second_version(
    read_it: Callable[[bytes], object],
) -> None:
    with pytest.raises(MetadataJsonError, match="newer than 1"):
        read_it(b'{"v":2}')


def test_both_kinds_are_read_where_both_are_known() -> None:
    striped = read_golden("segment-node-closed-v1.json", None)
    assert read_any_segment(striped) == read_segment(striped)


def test_nodes_in_version_1_and_fragments_in_version_2_are_refused() -> None:
    striped = json.loads(read_golden("segment-node-closed-v1.json", None))
    data = json.dumps({**striped, "nodes": []}).encode()
    for read_it in (read_segment, read_any_segment):
        with pytest.raises(MetadataJsonError, match="nodes: no striped segment has them"):
            read_it(data)
    for wrong in ({**document_of(CLOSED), "fragments": []}, {**striped, "v": 2}):
        with pytest.raises(MetadataJsonError, match="fragments: no flexible segment has them"):
            read(wrong)
    with pytest.raises(MetadataJsonError):
        read({**document_of(CLOSED), "v": 1})


# --- Refusals ------------------------------------------------------------------------------------

REQUIRED = sorted({*document_of(OPEN)} - {"v"})
WHOLE = ("epoch", "extras", "own_count", "guest_count", "next_number", "nodeset_version",
         "missing_records", "created_unix_ms")  # fmt: skip
ROW = document_of(CLOSED)["nodes"][0]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_field_is_named(name: str) -> None:
    document = document_of(OPEN)
    del document[name]
    with pytest.raises(MetadataJsonError, match=f"'{name}'"):
        read(document)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, []])
def test_what_is_no_whole_number_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(MetadataJsonError, match=f"{name}: "):
        read({**document_of(CLOSED), name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_id", 7), ("state", "SHUT"), ("state", []), ("ack_mode", 1), ("placement", None),
        ("nonce", 5), ("last_entry", -2), ("bound", "x"), ("totals", {}), ("totals", []),
        ("start_seq_num", -1), ("completed_unix_ms", "now"), ("holes", [[1]]), ("holes", 5),
        ("lost", [[1, 2, 3]]), ("lost", [[-1, 2]]), ("cold_copy", {}), ("proved", 1),
        ("proved", "true"), ("proved", None), ("extras", 3), ("property", None), ("property", {}),
        ("property", {"node": 3, "rack": 2}), ("property", [3, 2, 1]),
        ("property", {"node": 3, "rack": 2, "region": 1, "zone": 1}),
        ("property", {"node": 3, "rack": 2, "region": 0}),
        ("property", {"node": 2, "rack": 3, "region": 1}),
        ("property", {"node": 3, "rack": True, "region": 1}),
        ("nodes", None), ("nodes", {}), ("nodes", ""), ("nodes", [5]), ("nodes", [ROW[:5]]),
        ("nodes", [[*ROW, 1]]), ("nodes", [{}]),
    ],
)  # fmt: skip
def test_what_is_no_such_field_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(MetadataJsonError, match=rf"\b{name}(: | 3: )"):
        read({**document_of(CLOSED), name: value})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, -1), (0, True), (0, "0"), (0, 1.0), (1, 5), (1, None), (2, "x"), (2, "0" * 31),
        (2, "G" * 32), (3, None), (4, 7), (5, "1"), (5, True), (5, -0.5), (5, None),
        (5, float("inf")), (5, float("nan")), (5, 10**400),
    ],
)  # fmt: skip
def test_what_is_no_row_is_refused(place: int, value: object) -> None:
    document = document_of(CLOSED)
    document["nodes"][0][place] = value
    with pytest.raises(MetadataJsonError, match="nodes: "):
        read(document)


@pytest.mark.parametrize(
    ("invariant", "fields"),
    [
        ("10", {"next_number": 6}), ("10", {"next_number": 65_536}),
        ("10", {"nodes": [ROW, ROW]}), ("11", {"nodes": [ROW, [1, *ROW[1:]]]}),
        ("12", {"own_count": 0}), ("12", {"guest_count": 3}),
        ("13", {"state": "OPEN", "holes": [], "lost": [], "last_entry": None, "totals": None}),
        ("15", {"missing_records": 101}), ("16", {"ack_mode": "late"}),
        ("16", {"placement": "anywhere"}),
    ],
)  # fmt: skip
def test_what_no_segment_can_be_is_refused(invariant: str, fields: dict[str, Any]) -> None:
    with pytest.raises(MetadataJsonError, match=f"{invariant}: <segment"):
        read({**document_of(CLOSED), **fields})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(document_of(REPAIRED))), values)
def test_fuzzed_nodes_raise_one_error_only(name: str, value: object) -> None:
    with contextlib.suppress(MetadataJsonError):
        read({**document_of(REPAIRED), name: value})


@given(st.integers(0, 5), values)
def test_fuzzed_rows_raise_one_error_only(place: int, value: object) -> None:
    document = document_of(REPAIRED)
    document["nodes"][0][place] = value
    with contextlib.suppress(MetadataJsonError):
        read(document)


# --- Sizes ---------------------------------------------------------------------------------------


def test_256_rows_are_26_kib() -> None:
    segment = CLOSED
    while segment.has_room:
        name = f"duramen-bookie-{segment.next_number:03}"
        segment = segment.with_added(
            replace(node(name, "eu-central-1a"), region="eu-central-1"), ""
        )
    few = replace(segment, nodes=(), next_number=segment.next_number)
    assert len(segment.nodes) == ROWS_MAX
    assert len(encode_segment(segment)) - len(encode_segment(few)) <= 26 * KIB


def test_the_absences_of_one_span_are_48_kib_and_with_losses_between_96() -> None:
    last = LAST_ENTRY_ID
    first = last - SPAN_ENTRY_COUNT + 1
    holes = tuple((entry, entry) for entry in range(first, last, 2))
    lost = tuple((entry, entry) for entry in range(first + 1, last + 1, 2))
    plain = len(encode_segment(close(IN_RECOVERY, last)))
    holed, both = (
        close(IN_RECOVERY, last, holes=holes),
        close(IN_RECOVERY, last, holes=holes, lost=lost),
    )
    assert 47 * KIB < len(encode_segment(holed)) - plain <= 48 * KIB + len('"holes":[],')
    assert 95 * KIB < len(encode_segment(both)) - plain <= 96 * KIB + len('"holes":[],"lost":[],')
    assert read_any_segment(encode_segment(both)) == both
