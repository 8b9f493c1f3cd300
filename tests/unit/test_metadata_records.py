"""Records of metadata logs: golden files, round trips of whole lives, and refusal of the rest.

Source: docs/protocol/metadata-logs.md "The record".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.cold_copy import ColdCopy
from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member, metadata_log_of
from duramen.wire.metadata_json import MetadataJsonError, encode_segment
from duramen.wire.nodes.metadata_records import encode_metadata_record, read_metadata_record
from tests.golden import read_golden
from tests.unit.flexible_segments import lives

LOG_ID = LogId(7)
MEMBERS = tuple(Member(BookieId(b), Incarnation(b * 16)) for b in ("b0", "b1", "b2"))
OPEN = Segment(
    log_id=LOG_ID,
    epoch=Epoch(3),
    quorum=Quorum(3, 3, 2),
    fragments=(Fragment(EntryId(0), MEMBERS),),
    created_unix_ms=1_700_000_000_000,
    nonce="s1.4567",
    extra={"later": [1]},
)
COLD = (
    OPEN.closed(
        last_entry=EntryId(12),
        totals=Totals(30, 300, 5, 1_700_000_001_000),
        start_seq_num=1_000,
        completed_unix_ms=1_700_000_002_000,
        nonce="s2.89ab",
    )
    .with_cold_copy(
        ColdCopy("0a" * 16, "1b" * 32, size_bytes=4_096, verified_unix_ms=1_700_000_003_000), "c1"
    )
    .with_recheck(1_700_000_004_000, "c2")
)
CONFIG = {"copysets": "striped", "not known yet": {"kept": True}}
TOLD = MetadataRecord(MetadataKind.TOLD, OPEN, 0, 8_589_934_601, 2, CONFIG)
MOVED = MetadataRecord(MetadataKind.MOVED, COLD, 4, 8_589_934_601, extra={"newer": "field"})

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def spell(**changed: Any) -> bytes:
    """A moved record with other fields; None takes one out."""
    document = json.loads(encode_metadata_record(MOVED))
    document.update(changed)
    return json.dumps({k: v for k, v in document.items() if v is not None}).encode()


@pytest.mark.parametrize(
    ("name", "record"), [("metadata-record-told-v1", TOLD), ("metadata-record-moved-v1", MOVED)]
)
def test_golden_records(name: str, record: MetadataRecord) -> None:
    golden = read_golden(f"{name}.json", encode_metadata_record(record))
    assert read_metadata_record(golden, LOG_ID) == record


@given(lives(), st.integers(0, 2**31), st.integers(0, 2**63))
def test_every_version_of_a_flexible_segment_reads_back(
    versions: list[Any], node_version: int, made: int
) -> None:
    for segment in versions:
        kind = MetadataKind.MOVED if segment.is_closed else MetadataKind.TOLD
        record = MetadataRecord(kind, segment, node_version, made).validated()
        assert read_metadata_record(encode_metadata_record(record), segment.log_id) == record


@pytest.mark.parametrize("segment", [OPEN, COLD])
def test_the_node_comes_back_byte_for_byte(segment: Segment) -> None:
    record = MetadataRecord(MetadataKind.TOLD, segment, 0, 0)
    read = read_metadata_record(encode_metadata_record(record), LOG_ID)
    assert read is not None and encode_segment(read.segment) == encode_segment(segment)


def test_what_a_newer_writer_says_besides_is_kept() -> None:
    read = read_metadata_record(encode_metadata_record(MOVED), LOG_ID)
    assert read is not None and read.extra == {"newer": "field"}
    assert read.segment.extra == {"later": [1]}


def test_a_kind_that_is_not_known_is_passed_over() -> None:
    assert read_metadata_record(spell(kind="another"), LOG_ID) is None
    assert read_metadata_record(b'{"v":1,"kind":"another"}', LOG_ID) is None


def test_a_newer_version_is_refused_and_not_passed_over() -> None:
    with pytest.raises(MetadataJsonError, match="newer"):
        read_metadata_record(spell(v=2), LOG_ID)
    newer_node = {**json.loads(encode_segment(COLD)), "v": 3}
    with pytest.raises(MetadataJsonError, match="newer"):
        read_metadata_record(spell(node=newer_node), LOG_ID)


@pytest.mark.parametrize(
    "fields",
    [
        {"log_id": "8"},
        {"log_id": 7},
        {"log_id": None},
        {"epoch": 4},
        {"epoch": "3"},
        {"kind": 1},
        {"kind": ["moved"]},
        {"node": None},
        {"node": []},
        {"node": {}},
        {"node": "text"},
        {"node": {"v": 1}},
        {"node": json.loads(encode_segment(replace(COLD, log_id=LogId(8))))},
        {"node": json.loads(encode_segment(replace(COLD, epoch=Epoch(4))))},
        {"node": json.loads(encode_segment(OPEN))},
        {"node_version": -1},
        {"node_version": True},
        {"node_version": 1.0},
        {"made": 5},
        {"made": "-5"},
        {"made": "9" * 21},
        {"config": {}},
        {"config_version": 2},
        {"config_version": 2, "config": []},
    ],
)
def test_a_record_that_says_what_cannot_be_is_damage(fields: dict[str, Any]) -> None:
    with pytest.raises(MetadataJsonError):
        read_metadata_record(spell(**fields), LOG_ID)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"v":1}'])
def test_what_is_no_record_is_damage(data: bytes) -> None:
    with pytest.raises(MetadataJsonError):
        read_metadata_record(data, LOG_ID)


@given(st.sampled_from(sorted(json.loads(encode_metadata_record(MOVED)))), values)
def test_whatever_stands_in_a_field_nothing_but_the_refusal_is_raised(
    name: str, value: object
) -> None:
    _read_or_refuse(spell(**{name: value}))


@given(st.sampled_from(sorted(json.loads(encode_segment(COLD)))), values)
def test_nor_whatever_stands_in_the_node(name: str, value: object) -> None:
    node = {**json.loads(encode_segment(COLD)), name: value}
    _read_or_refuse(spell(node=node))


def _read_or_refuse(data: bytes) -> None:
    try:
        read = read_metadata_record(data, LOG_ID)
    except MetadataJsonError:
        return
    if read is not None:
        assert read.log_id == LOG_ID and read.validated() is read


@pytest.mark.parametrize(
    "make",
    [
        lambda: replace(MOVED, segment=OPEN),
        lambda: replace(MOVED, node_version=-1),
        lambda: replace(TOLD, config=None),
        lambda: replace(TOLD, segment=replace(OPEN, log_id=metadata_log_of(LOG_ID))),
    ],
)
def test_nobody_writes_a_record_that_breaks_a_rule(make: Callable[[], MetadataRecord]) -> None:
    with pytest.raises(AssertionError):
        make().validated()


def test_a_copy_has_the_configuration_that_any_record_of_its_epoch_had() -> None:
    assert MOVED.with_config_of(TOLD).config == CONFIG
    assert MOVED.with_config_of(TOLD).config_version == 2
    assert TOLD.with_config_of(MOVED) is TOLD
    other = replace(TOLD, config={"copysets": "flexible"}, config_version=3)
    assert other.with_config_of(TOLD) is other
