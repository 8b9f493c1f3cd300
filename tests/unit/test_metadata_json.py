"""Nodes as JSON: golden files, round trips, unknown fields kept, and refusal of everything else.

Source: docs/protocol/metadata.md "Nodes".
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.config import parse_log_config
from duramen.core.cold_copy import ColdCopy
from duramen.core.duty import Duty
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member
from duramen.wire.metadata_json import (
    BookieNode,
    MetadataJsonError,
    Paths,
    encode_bookie,
    encode_log,
    encode_node,
    encode_segment,
    read_bookie,
    read_log,
    read_node,
    read_segment,
)
from tests.golden import read_golden


def ensemble(*names: str) -> tuple[Member, ...]:
    return tuple(Member(BookieId(name), Incarnation(name * 16)) for name in names)


LOG = LogNode(
    log_id=LogId(0x12_0034),
    namespace="team-a",
    name="orders",
    config=parse_log_config({"replication": {"ensemble_size": 5}, "roll": {"interval": "1h30m"}}),
    config_version=2,
    next_epoch=Epoch(4),
    last_clean_epoch=2,
    totals=Totals(1_000, 64_000, 77, 1_700_000_000_000),
    trim_lsn=(1 << 32) + 5,
    trim_seq_num=40,
    first_live_epoch=Epoch(2),
    snapshot_lsn=(2 << 32) + 9,
    created_unix_ms=1_700_000_000_000,
    nonce="s1.0123",
    extra={"later": {"kept": [1, 2]}},
)
OPEN = Segment(
    log_id=LogId(7),
    epoch=Epoch(3),
    quorum=Quorum(3, 2, 2),
    fragments=(Fragment(EntryId(0), ensemble("b0", "b1", "b2")),),
    created_unix_ms=1_700_000_000_000,
    nonce="s1.4567",
)
CLOSED = OPEN.with_ensemble(EntryId(10), ensemble("b0", "b1", "b3"), Totals(20, 200), "n").closed(
    last_entry=EntryId(12),
    totals=Totals(30, 300, 5, 1_700_000_001_000),
    start_seq_num=1_000,
    completed_unix_ms=1_700_000_002_000,
    nonce="s2.89ab",
)


def test_golden_log_node() -> None:
    assert read_log(read_golden("log-node-v1-tiering.json", encode_log(LOG))) == LOG
    flow = read_golden("log-node-v1-flow.json", None)
    assert read_log(flow) == LOG, "written before tiering.keep_hot and min_size"
    first = read_golden("log-node-v1.json", None)
    assert read_log(first) == LOG, "written before flush.interval, size and wait_max"


def test_a_region_that_nobody_asked_for_is_not_stored() -> None:
    """Processes that do not know the field refuse a log that has it."""
    assert b"owner_region" not in encode_log(LOG)
    config = LOG.config.model_copy(update={"owner_region": "writers"})
    log = replace(LOG, config=config)
    assert b'"owner_region":"writers"' in encode_log(log) and read_log(encode_log(log)) == log


def test_golden_log_node_that_released_hot_copies() -> None:
    log = replace(LOG, first_hot_epoch=Epoch(2))
    assert read_log(read_golden("log-node-released-v1.json", encode_log(log))) == log
    assert b"first_hot_epoch" not in encode_log(LOG), "as before there was a cold store"


def test_golden_log_node_that_says_which_call_wrote_its_configuration() -> None:
    log = replace(LOG, config_nonce="0123abcd")
    assert read_log(read_golden("log-node-config-nonce-v1.json", encode_log(log))) == log
    assert b"config_nonce" not in encode_log(LOG), "as before calls had one"


def test_golden_log_node_at_the_end_of_its_life() -> None:
    log = replace(
        LOG,
        next_epoch=Epoch(3),
        trim_lsn=(2 << 32) + 7,
        trim_slot=3,
        trim_seq_num=700,
        truncated_below=Epoch(3),
        truncated_unix_ms=1_700_000_003_000,
        is_ended=True,
        is_deleted=True,
        deleted_unix_ms=1_700_000_004_000,
        is_purged=True,
    )
    assert read_log(read_golden("log-node-purged-v1-tiering.json", encode_log(log))) == log
    first = read_golden("log-node-purged-v1.json", None)
    assert read_log(first) == log, "written before tiering.keep_hot and min_size"


PROVED = CLOSED.with_proved(EntryId(0), "s1.aaaa")
LOST = CLOSED.with_lost([(0, 0)], "s1.bbbb")
COLD = CLOSED.with_cold_copy(
    ColdCopy("0a" * 16, "1b" * 32, 4_096, verified_unix_ms=1_700_000_003_000), "s1.cccc"
)
RECHECKED = COLD.with_recheck(1_700_000_004_000, "s1.dddd")
BOOKIE = BookieNode(
    Incarnation("0123456789abcdef" * 2), "eu", "a", 2.5, Duty.DRAINING, {"later": [1]}
)


def test_golden_bookie_nodes() -> None:
    """Of both kinds: a serving bookie's says nothing about its duty, as before there were any."""
    for name, node in (
        ("draining", BOOKIE), ("serving", replace(BOOKIE, duty=Duty.SERVING)),
    ):  # fmt: skip
        golden = read_golden(f"bookie-node-{name}-v1.json", encode_bookie(node))
        assert read_bookie(golden) == node
        assert (b"duty" in golden) == (name == "draining")


@pytest.mark.parametrize(
    "wrong",
    [
        {"duty": "on holiday"}, {"duty": None}, {"incarnation": "x"}, {"weight": -1},
        {"weight": True}, {"weight": "2"}, {"weight": 10**400}, {"rack": None},
    ],
)  # fmt: skip
def test_what_is_no_bookie_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(MetadataJsonError):
        read_bookie(json.dumps({**json.loads(encode_bookie(BOOKIE)), **wrong}).encode())


def test_a_fragment_is_proved_only_by_the_word_true() -> None:
    document = json.loads(encode_segment(PROVED))
    for word in (1, "true", None):
        document["fragments"][0]["proved"] = word
        with pytest.raises(MetadataJsonError):
            read_segment(json.dumps(document).encode())


@pytest.mark.parametrize(
    "wrong",
    [
        {"verified": False}, {"verified": 1}, {"attempt": "0A" * 16}, {"attempt": None},
        {"manifest_sha256": "1b" * 16}, {"size_bytes": -1}, {"size_bytes": True},
        {"verified_unix_ms": "now"}, {"rechecked_unix_ms": -1},
    ],
)  # fmt: skip
def test_what_is_no_cold_copy_is_refused(wrong: dict[str, Any]) -> None:
    document = json.loads(encode_segment(RECHECKED))
    assert read_segment(json.dumps(document).encode()) == RECHECKED
    document["cold_copy"].update(wrong)
    with pytest.raises(MetadataJsonError):
        read_segment(json.dumps(document).encode())


def test_a_segment_that_is_not_closed_has_no_cold_copy() -> None:
    copy = json.loads(encode_segment(COLD))["cold_copy"]
    for segment in (OPEN, OPEN.marked("s2.0")):
        document = {**json.loads(encode_segment(segment)), "cold_copy": copy}
        with pytest.raises(MetadataJsonError):
            read_segment(json.dumps(document).encode())


BOUNDED = OPEN.marked("s2.0").bounded(EntryId(7), "s2.1")


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("open", OPEN),
        ("bounded", BOUNDED),
        ("closed", CLOSED),
        ("proved", PROVED),
        ("lost", LOST),
        ("cold", COLD),
        ("rechecked", RECHECKED),
    ],
)
def test_golden_segment_nodes(name: str, segment: Segment) -> None:
    golden = read_golden(f"segment-node-{name}-v1.json", encode_segment(segment))
    assert read_segment(golden) == segment


def test_unknown_fields_travel_through_a_rewrite() -> None:
    document = json.loads(encode_segment(OPEN))
    document["hot"] = {"kept": True}
    segment = read_segment(json.dumps(document).encode())
    assert segment.extra == {"hot": {"kept": True}}
    again = json.loads(encode_segment(segment.marked("m")))
    assert again["hot"] == {"kept": True} and again["state"] == "IN_RECOVERY"
    log = read_log(encode_log(replace(LOG.with_new_epoch("n"))))
    assert log.extra == LOG.extra


@pytest.mark.parametrize(
    ("name", "value"),
    [("epoch", -1), ("state", "SHUT"), ("fragments", [{}]), ("totals", []), ("holes", [[1]])],
)
def test_what_is_wrong_with_a_segment_is_said_by_its_name(name: str, value: object) -> None:
    document = {**json.loads(encode_segment(CLOSED)), name: value}
    with pytest.raises(MetadataJsonError, match=f"{name}: "):
        read_segment(json.dumps(document).encode())


def test_a_newer_schema_is_refused_and_never_overwritten() -> None:
    document = {**json.loads(encode_segment(OPEN)), "v": 2}
    with pytest.raises(MetadataJsonError, match="newer"):
        read_segment(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b'{"v":"1"}', b"null", b"[" * 50])
def test_what_is_no_node_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataJsonError):
        read_node(data)


numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.sampled_from(sorted(json.loads(encode_segment(CLOSED)))), json_values)
def test_fuzzed_segments_raise_one_error_only(field: str, value: Any) -> None:
    document = {**json.loads(encode_segment(CLOSED)), field: value}
    with contextlib.suppress(MetadataJsonError):
        read_segment(json.dumps(document).encode())


@given(st.sampled_from(sorted(json.loads(encode_log(LOG)))), json_values)
def test_fuzzed_logs_raise_one_error_only(field: str, value: Any) -> None:
    document = {**json.loads(encode_log(LOG)), field: value}
    with contextlib.suppress(MetadataJsonError):
        read_log(json.dumps(document).encode())


@given(json_values, st.sampled_from(["first_entry", "ensemble", "totals_before"]))
def test_fuzzed_fragments_raise_one_error_only(value: Any, field: str) -> None:
    document = json.loads(encode_segment(CLOSED))
    document["fragments"][0][field] = value
    with contextlib.suppress(MetadataJsonError):
        read_segment(json.dumps(document).encode())


@given(json_values, st.sampled_from(["cold_copy", "attempt", "rechecked_unix_ms", "size_bytes"]))
def test_fuzzed_cold_copies_raise_one_error_only(value: Any, field: str) -> None:
    document = json.loads(encode_segment(RECHECKED))
    (document if field == "cold_copy" else document["cold_copy"])[field] = value
    with contextlib.suppress(MetadataJsonError):
        read_segment(json.dumps(document).encode())


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    for read in (read_node, read_segment, read_log):
        with pytest.raises(MetadataJsonError):
            read(data)


def test_nodes_have_sorted_keys_and_a_version() -> None:
    assert encode_node({"b": 1, "a": 2}, {"c": 3, "a": 0}) == b'{"a":2,"b":1,"c":3,"v":1}'


def test_paths_are_those_of_the_interface_page() -> None:
    paths = Paths("blue")
    assert paths.log(LogId(0x12_0034)) == "/duramen/blue/logs/0012/0034"
    assert paths.segment(LogId(1), Epoch(12)) == "/duramen/blue/logs/0000/0001/segments/12"
    assert paths.owner(LogId(1)) == "/duramen/blue/logs/0000/0001/owner"
    assert paths.name("ns", "log") == "/duramen/blue/names/ns/log"
    assert paths.owed(5, Member(BookieId("b"), Incarnation("i"))) == (
        "/duramen/blue/repair/owed/5/b.i"
    )
    assert (paths.auditor, paths.regions) == ("/duramen/blue/auditor", "/duramen/blue/regions")
    assert paths.rebalance == "/duramen/blue/repair/rebalance"
    assert paths.bookie("bookie-1") == "/duramen/blue/bookies/bookie-1"


def test_holes_are_kept_and_missing_in_nodes_that_have_none() -> None:
    fragment = Fragment(EntryId(0), (Member(BookieId("b"), Incarnation("0" * 32)),))
    open_segment = Segment(
        LogId(1), Epoch(1), Quorum(1, 1, 1), (fragment,), ack_mode="out_of_order", nonce="n"
    )
    assert b"holes" not in encode_segment(open_segment)
    closed = open_segment.closed(
        last_entry=EntryId(9),
        totals=Totals(10, 100),
        start_seq_num=0,
        completed_unix_ms=1,
        nonce="m",
        holes=((EntryId(0), EntryId(2)), (EntryId(5), EntryId(5))),
    )
    assert read_segment(encode_segment(closed)) == closed
