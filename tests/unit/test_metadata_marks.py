"""What a log node says of its metadata log: numbers that never fall, schema 2, refusal by others.

Source: docs/protocol/metadata-logs.md "Fields of L's log node".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.log_node import LogNode
from duramen.core.metadata_log.marks import MetadataMarks
from duramen.core.segment_base import Totals
from duramen.ids import EntryId, Epoch, LogId, Lsn, lsn_of, metadata_log_of
from duramen.wire.metadata_json import MetadataJsonError, encode_log, read_log, read_node
from tests.golden import read_golden
from tests.unit.nodes import make_log


def at(epoch: int, entry: int) -> Lsn:
    return lsn_of(Epoch(epoch), EntryId(entry))


LOG = replace(
    make_log(),
    log_id=LogId(7),
    next_epoch=Epoch(12),
    last_clean_epoch=10,
    totals=Totals(1_000, 64_000, 77, 1_700_000_000_000),
    snapshot_lsn=at(11, 0) - 1,
    first_hot_epoch=Epoch(9),
    nonce="s1.0123",
)
CLAIMED = LOG.with_metadata(MetadataMarks().claimed(Epoch(2)), "s1.claim")
_AT_FIRST = CLAIMED.metadata.moved(Epoch(6), at(2, 0), at(2, 1))
MOVED = CLAIMED.with_metadata(
    _AT_FIRST.rewritten(at(2, 2), at(2, 4)).moved(Epoch(8), at(2, 5), at(2, 5)), "s1.move"
)
METADATA_LOG = replace(make_log(), log_id=metadata_log_of(LogId(7)), next_epoch=Epoch(3),
                       last_clean_epoch=1, nonce="s1.claim")  # fmt: skip


# --- Transitions ---------------------------------------------------------------------------------


def test_a_claim_a_move_and_a_rewrite_follow_one_another() -> None:
    assert MetadataMarks(2, 6, None, at(2, 1)) == _AT_FIRST, "what was told before stays"
    marks = MOVED.metadata
    assert marks == MetadataMarks(2, 8, at(2, 2), at(2, 5))
    again = marks.claimed(Epoch(4)).rewritten(at(4, 0), at(4, 7))
    assert again == MetadataMarks(4, 8, at(4, 0), at(4, 7))
    further = again.moved(Epoch(9), at(4, 8), at(4, 8))
    assert further == MetadataMarks(4, 9, at(4, 0), at(4, 8)), "the first record stays the first"


def test_history_alone_can_be_rewritten() -> None:
    marks = MetadataMarks().claimed(Epoch(1)).rewritten(at(1, 3), at(1, 9))
    assert marks == MetadataMarks(1, 0, at(1, 3), at(1, 9))
    assert marks.moved(Epoch(1), at(1, 10), at(1, 11)).first_lsn == at(1, 3)


MARKS = MOVED.metadata


@pytest.mark.parametrize(
    "change",
    [
        lambda: MARKS.claimed(Epoch(2)),
        lambda: MARKS.moved(Epoch(8), at(2, 6), at(2, 6)),
        lambda: MARKS.moved(Epoch(9), at(2, 5), at(2, 6)),
        lambda: MARKS.moved(Epoch(9), at(2, 7), at(2, 6)),
        lambda: MARKS.moved(Epoch(9), at(3, 0), at(3, 1)),
        lambda: MARKS.claimed(Epoch(3)).moved(Epoch(9), at(2, 6), at(3, 1)),
        lambda: MARKS.claimed(Epoch(3)).moved(Epoch(9), at(2, 6), at(2, 7)),
        lambda: MARKS.rewritten(at(2, 4), at(2, 9)),
        lambda: MetadataMarks().moved(Epoch(1), at(0, 5), at(0, 6)),
    ],
    ids=[
        "an epoch twice", "through stays", "a record that counts already", "ends before it begins",
        "nobody claimed there", "across epochs", "in an epoch of before", "a rewrite from amidst",
        "without a claim",
    ],
)  # fmt: skip
def test_what_is_not_the_keepers_own_never_counts(change: Callable[[], object]) -> None:
    with pytest.raises(AssertionError):
        change()


@pytest.mark.parametrize(
    "change",
    [
        lambda: MOVED.with_metadata(CLAIMED.metadata, "falls"),
        lambda: CLAIMED.with_metadata(CLAIMED.metadata.moved(Epoch(9), at(2, 0), at(2, 5)), "hot"),
        lambda: replace(MOVED, first_hot_epoch=Epoch(8)).validated(),
        lambda: METADATA_LOG.with_metadata(MetadataMarks().claimed(Epoch(1)), "its own"),
    ],
    ids=["a number falls", "what bookies keep", "released less than moved", "a metadata log's own"],
)
def test_a_log_node_keeps_the_bounds(change: Callable[[], LogNode]) -> None:
    with pytest.raises(AssertionError):
        change()


def test_what_a_log_goes_through_leaves_the_marks_alone() -> None:
    log = MOVED.with_trim(MOVED.closed_end, release=MOVED.closed_end, unix_ms=5, nonce="t")
    log = log.with_first_live_epoch(Epoch(10), unix_ms=6, nonce="g").with_new_epoch("e")
    assert log.metadata == MOVED.metadata and "moved=e8" in repr(log)


def test_an_older_version_of_the_node_is_known_by_its_marks() -> None:
    assert MOVED.is_as_new_as(CLAIMED) and not CLAIMED.is_as_new_as(MOVED)
    rewritten = MOVED.with_metadata(MOVED.metadata.rewritten(at(2, 6), at(2, 9)), "r")
    assert rewritten.is_as_new_as(MOVED) and not MOVED.is_as_new_as(rewritten)


# --- Stored --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("log-node-metadata-claimed-v2", CLAIMED),
        ("log-node-metadata-moved-v2", MOVED),
        ("log-node-of-metadata-log-v2", METADATA_LOG),
    ],
)
def test_golden_nodes_are_refused_by_who_knows_the_first_schema_alone(
    name: str, log: LogNode
) -> None:
    golden = read_golden(f"{name}.json", encode_log(log))
    assert read_log(golden) == log
    with pytest.raises(MetadataJsonError, match="schema 2 is newer"):
        read_node(golden)  # as processes of before read a log node, before they look at its fields


def test_a_log_without_a_metadata_log_is_what_it_was() -> None:
    assert json.loads(encode_log(LOG))["v"] == 1 and b"metadata" not in encode_log(LOG)
    assert read_log(encode_log(LOG)) == LOG


def spell(log: LogNode, **changed: Any) -> bytes:
    document = json.loads(encode_log(log))
    document.update(changed)
    return json.dumps({k: v for k, v in document.items() if v is not None}).encode()


@pytest.mark.parametrize(
    ("log", "changed"),
    [
        (MOVED, {"v": 1}),
        (METADATA_LOG, {"v": 1}),
        (LOG, {"v": 2}),
        (MOVED, {"v": 3}),
        (MOVED, {"metadata_epoch": None}),
        (MOVED, {"metadata_lsn": None}),
        (MOVED, {"metadata_first_lsn": None, "metadata_lsn": None}),
        (MOVED, {"metadata_first_lsn": str(at(2, 6))}),
        (MOVED, {"metadata_lsn": str(at(3, 0))}),
        (MOVED, {"metadata_lsn": at(2, 5)}),
        (MOVED, {"metadata_lsn": "-1"}),
        (MOVED, {"metadata_through": 9}),
        (MOVED, {"metadata_through": "8"}),
        (MOVED, {"metadata_epoch": True}),
        (METADATA_LOG, {"metadata_epoch": 1}),
        (LOG, {"log_id": "0"}),
        (LOG, {"log_id": str(1 << 32)}),
        (METADATA_LOG, {"log_id": str(1 << 31)}),
    ],
)
def test_a_node_that_contradicts_itself_is_refused(log: LogNode, changed: dict[str, Any]) -> None:
    with pytest.raises(MetadataJsonError):
        read_log(spell(log, **changed))


@given(
    st.sampled_from(["metadata_epoch", "metadata_through", "metadata_lsn", "metadata_first_lsn"]),
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers()),
)
def test_nothing_but_the_refusal_is_raised(name: str, value: object) -> None:
    try:
        log = read_log(spell(MOVED, **{name: value}))
    except MetadataJsonError:
        return
    assert log.validated() is log


def test_without_a_first_record_all_of_them_count() -> None:
    log = CLAIMED.with_metadata(_AT_FIRST, "m")
    assert read_log(encode_log(log)) == log and b"first_lsn" not in encode_log(log)
