"""The producer table against a naive model, and its bytes in a snapshot.

The model keeps every acknowledged batch of the log; the table must answer as it does for what is
kept, know of everything older that it is older, and be the same after a snapshot and a replay.
Source: docs/protocol/rest.md "Append", docs/protocol/write.md "Exactly once".
"""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.sequencer.exactly_once import producer_table
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.exactly_once.snapshots import Snapshots
from duramen.core.sequencer.exactly_once.stamps import (
    ControlRecord,
    ProducerRow,
    Result,
    SnapshotPart,
    Stamp,
    TokenRecord,
)
from duramen.ids import NOTHING, Dlsn, EntryId, Epoch, Lsn, lsn_of
from duramen.limits import PRODUCER_REST_US
from duramen.wire.control_record import (
    ControlRecordError,
    encode_control,
    read_control,
)
from tests.golden import read_golden

REST_MS = PRODUCER_REST_US // 1000


def result_at(number: int) -> Result:
    return Result(Dlsn(Epoch(3), EntryId(number), 1), 10 * number, 4, 1_000 + number)


moves = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["next", "next", "bump"])))


@given(moves, st.integers(1, 4), st.integers(0, 30))
def test_the_table_answers_as_the_whole_log_would(
    steps: list[tuple[str, str]], results_kept: int, snapshot_after: int
) -> None:
    table = ProducerTable(results_kept)
    log: list[Stamp] = []
    heads: dict[str, Stamp] = {}
    for index, (name, move) in enumerate(steps):
        head = heads.get(name)
        if head is None or move == "bump":
            stamp = Stamp(name, 0 if head is None else head.epoch + 1, 0)
        else:
            stamp = head._replace(sequence=head.sequence + 1)
        heads[name] = stamp
        table.apply(stamp, result_at(len(log)), index)
        log.append(stamp)
        table.validate()
        if index == snapshot_after:
            table = reloaded(table)
    for place, stamp in enumerate(log):
        head = heads[stamp.producer_id]
        is_kept = stamp.epoch == head.epoch and head.sequence - stamp.sequence < results_kept
        assert table.result_of(stamp) == (result_at(place) if is_kept else None)
        assert table.last_of(stamp.producer_id) == (head.epoch, head.sequence)
    assert table.last_of("unheard of") is None


def reloaded(table: ProducerTable) -> ProducerTable:
    parts = Snapshots().cut(table, Epoch(3), EntryId(7))
    read = [read_control(encode_control(part)) for part in parts]
    assert read == parts
    other = ProducerTable(table.results_kept)
    other.load(parts[0].token, [row for part in parts for row in part.rows])
    return other


def test_what_the_log_says_is_true_whatever_the_row_said() -> None:
    table = ProducerTable(4)
    for sequence in (0, 1, 2):
        table.apply(Stamp("p", 0, sequence), result_at(sequence), 0)
    table.apply(Stamp("p", 0, 0), result_at(9), 0)
    assert table.last_of("p") == (0, 0) and table.result_of(Stamp("p", 0, 0)) == result_at(9)
    assert table.result_of(Stamp("p", 0, 1)) is None
    table.validate()


def test_fewer_results_are_kept_from_now_on() -> None:
    table = ProducerTable(4)
    for sequence in range(6):
        table.apply(Stamp("p", 0, sequence), result_at(sequence), 0)
    table.keep(2)
    table.validate()
    assert table.result_of(Stamp("p", 0, 3)) is None
    assert table.result_of(Stamp("p", 0, 4)) == result_at(4)


def test_a_replay_keeps_no_more_producers_than_the_owner_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_table, "PRODUCER_COUNT_MAX", 2)
    table = ProducerTable(4)
    for index, name in enumerate("abac"):
        table.apply(Stamp(name, index, 0), result_at(index), 0)
    assert [row.producer_id for row in table.list_rows()] == ["a", "c"], "least recently used first"
    table.validate()


def test_room_is_made_by_who_has_rested_longest_and_never_by_who_may_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_table, "PRODUCER_COUNT_MAX", 2)
    table = ProducerTable(4)
    table.apply(Stamp("old", 0, 0), result_at(0), 0)
    table.apply(Stamp("new", 0, 0), result_at(1), REST_MS)
    assert not table.make_room(REST_MS - 1, ())
    assert not table.make_room(REST_MS, ("old",))
    assert table.make_room(REST_MS, ())
    assert table.last_of("old") is None and table.last_of("new") == (0, 0)
    assert table.make_room(REST_MS, ())


def test_the_unused_are_forgotten_unless_they_are_in_flight() -> None:
    table = ProducerTable(4)
    for name in ("a", "b", "c"):
        table.apply(Stamp(name, 0, 0), result_at(0), 5 if name == "c" else 4)
    table.forget_unused(5, ("b",))
    assert [row.producer_id for row in table.list_rows()] == ["b", "c"]


# --- Snapshots -----------------------------------------------------------------------------------


def test_a_large_table_is_cut_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.core.sequencer.exactly_once.snapshots.SNAPSHOT_PART_BYTES", 1_000)
    table = ProducerTable(4)
    for index in range(40):
        table.apply(Stamp(f"p{index}", 0, 0), result_at(index), index)
    table.token = "mine"
    parts = Snapshots().cut(table, Epoch(3), EntryId(7))
    assert len(parts) > 3 and [part.number for part in parts] == list(range(len(parts)))
    assert {part.through for part in parts} == {lsn_of(Epoch(3), EntryId(7))}
    assert [row for part in parts for row in part.rows] == table.list_rows()


def test_a_snapshot_counts_when_its_last_part_is_acknowledged() -> None:
    snapshots, table = Snapshots(), ProducerTable(4)
    assert snapshots.at_close(table, Epoch(3)) == lsn_of(Epoch(4), NOTHING)
    table.token = "mine"
    assert snapshots.at_close(table, Epoch(3)) is None
    assert snapshots.is_wanted_at_end(table, EntryId(9))
    through = lsn_of(Epoch(3), EntryId(7))
    snapshots.on_sent(through, EntryId(10))
    assert not snapshots.is_wanted_at_end(table, EntryId(10))
    assert snapshots.is_wanted_at_end(table, EntryId(11))
    snapshots.on_acknowledged(EntryId(9))
    assert snapshots.at_close(table, Epoch(3)) is None
    snapshots.on_acknowledged(EntryId(10))
    assert snapshots.at_close(table, Epoch(3)) == through


# --- Bytes ---------------------------------------------------------------------------------------

PART = SnapshotPart(
    Lsn(3 << 32 | 17),
    1,
    2,
    "tökén",
    (
        ProducerRow("p", 0, 1, 5, (result_at(1), result_at(2))),
        ProducerRow("another one", 1 << 40, 1 << 50, 1_700_000_000_000, (result_at(3),)),
    ),
)
RECORDS: dict[str, ControlRecord] = {"token": TokenRecord("tökén"), "snapshot": PART}


@pytest.mark.parametrize("name", RECORDS)
def test_golden_control_records(name: str) -> None:
    golden = read_golden(f"control-{name}-v1.bin", encode_control(RECORDS[name]))
    assert read_control(golden) == RECORDS[name]


@pytest.mark.parametrize("name", RECORDS)
def test_every_damaged_byte_of_a_control_record_is_noticed(name: str) -> None:
    data = encode_control(RECORDS[name])
    for index in range(len(data)):
        damaged = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        with pytest.raises(ControlRecordError):
            read_control(damaged)
    for size in range(len(data)):
        with pytest.raises(ControlRecordError):
            read_control(data[:size])


def test_a_control_record_of_a_later_kind_is_passed_over() -> None:
    body = bytes([9, 0, 0, 0]) + bytes(12)
    data = b"DCR1" + google_crc32c.value(body).to_bytes(4, "little") + body
    assert read_control(data) is None
