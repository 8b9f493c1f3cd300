"""What people type: names, positions, durations, sizes, configurations; and the ids' text forms.

Everything that is refused is refused with one error and a field. Source: docs/protocol/rest.md
"Texts", docs/protocol/configuration.md.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.config import (
    FlexibleReplication,
    LogConfig,
    needs_new_segment,
    parse_log_config,
    parse_namespace_config,
)
from duramen.errors import DuramenError
from duramen.ids import (
    LAST_ENTRY_ID,
    LAST_LOG_ID,
    NOTHING,
    Dlsn,
    EntryId,
    Epoch,
    LogId,
    epoch_of,
    format_dlsn_hex,
    format_lsn,
    format_lsn_hex,
    ledger_of,
    log_of,
    lsn_of,
    parse_dlsn,
    parse_lsn,
)
from duramen.texts import (
    Position,
    PositionKind,
    check_log_name,
    check_namespace,
    parse_log,
    parse_log_id,
    parse_position,
)
from duramen.units import (
    DURATION_PATTERN,
    format_duration,
    format_size,
    parse_duration_us,
    parse_size_bytes,
)

epochs = st.integers(1, 2**32 - 1).map(Epoch)
entries = st.integers(0, LAST_ENTRY_ID).map(EntryId)


@given(st.integers(1, 2**31 - 1).map(LogId), epochs)
def test_a_ledger_is_a_log_and_an_epoch(log_id: LogId, epoch: Epoch) -> None:
    ledger_id = ledger_of(log_id, epoch)
    assert (log_of(ledger_id), epoch_of(ledger_id)) == (log_id, epoch)


@given(epochs, entries, st.integers(0, 2**32 - 1))
def test_positions_have_texts_that_read_back(epoch: Epoch, entry: EntryId, slot: int) -> None:
    lsn = lsn_of(epoch, entry)
    assert parse_lsn(format_lsn(lsn)) == lsn
    dlsn = Dlsn(epoch, entry, slot)
    assert parse_dlsn(str(dlsn)) == dlsn
    assert len(format_lsn_hex(lsn)) == 16 and len(format_dlsn_hex(dlsn)) == 24


@given(st.lists(st.tuples(epochs, entries, st.integers(0, 9)), min_size=2, max_size=2))
def test_hex_forms_sort_as_positions_do(places: list[tuple[Epoch, EntryId, int]]) -> None:
    one, two = (Dlsn(*place) for place in places)
    assert (one < two) == (format_dlsn_hex(one) < format_dlsn_hex(two))


def test_nothing_yet_lies_below_every_entry_of_its_epoch() -> None:
    assert lsn_of(Epoch(3), NOTHING) == (3 << 32) - 1 < lsn_of(Epoch(3), EntryId(0))


@pytest.mark.parametrize(
    "text", ["", "e1", "e1n", "1n2", "e1n2s3", "e4294967296n0", "e1n4294967295", "e-1n2", " e1n2"]
)
def test_what_is_no_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no LSN"):
        parse_lsn(text)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("head", Position(PositionKind.HEAD)),
        ("tail", Position(PositionKind.TAIL)),
        ("tail-10", Position(PositionKind.TAIL, 10)),
        ("17", Position(PositionKind.SEQ, 17)),
        ("seq:0", Position(PositionKind.SEQ, 0)),
        ("dlsn:e1n2s3", Position(PositionKind.DLSN, dlsn=Dlsn(Epoch(1), EntryId(2), 3))),
        ("lsn:e1n2", Position(PositionKind.LSN, (1 << 32) + 2)),
        ("txid:9", Position(PositionKind.TXID, 9)),
        ("time:1700000000000", Position(PositionKind.TIME, 1_700_000_000_000)),
        ("time:2023-11-14T22:13:20Z", Position(PositionKind.TIME, 1_700_000_000_000)),
        ("time:2023-11-15T00:13:20+02:00", Position(PositionKind.TIME, 1_700_000_000_000)),
        ("ago:1h30m", Position(PositionKind.AGO, 5_400_000_000)),
    ],
)
def test_the_position_grammar(text: str, position: Position) -> None:
    assert parse_position(text) == position


@pytest.mark.parametrize(
    "text",
    [
        "", "Head", "tail-", "tail--1", "-1", "+1", "1.5", "seq:", "seq:9007199254740992", "²",
        "dlsn:e1n2", "lsn:e1n2s3", "txid:-1", "time:", "time:yesterday",
        "time:2023-11-14T22:13:20", "ago:", "ago:1", "ago:-1h", "pos:1", "seq:1 ",
    ],
)  # fmt: skip
def test_positions_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(DuramenError) as caught:
        parse_position(text)
    assert (caught.value.code, caught.value.field) == ("invalid_position", "from")


@given(st.sampled_from(["", "seq:", "dlsn:", "lsn:", "txid:", "time:", "ago:", "tail-"]), st.text())
def test_any_text_is_a_position_or_refused_in_one_way(kind: str, text: str) -> None:
    # Any other exception fails the test.
    with contextlib.suppress(DuramenError):
        parse_position(kind + text)


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a" * 63, "1-2"])
def test_namespaces(name: str) -> None:
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "a" * 64, "a/b", "ä", "a\n"])
def test_names_that_are_no_namespaces(name: str) -> None:
    with pytest.raises(DuramenError) as caught:
        check_namespace(name)
    assert (caught.value.code, caught.value.field) == ("invalid_name", "namespace")


@pytest.mark.parametrize("name", ["", ".a", "_a", "-a", "a" * 256, "a/b", "a b", "ä", "a\n"])
def test_names_that_are_no_logs(name: str) -> None:
    with pytest.raises(DuramenError) as caught:
        check_log_name(name)
    assert (caught.value.code, caught.value.field) == ("invalid_name", "log")


def test_an_id_of_a_log_is_what_answers_show() -> None:
    assert (parse_log_id("7"), parse_log_id("2147483647")) == (7, LAST_LOG_ID)


@pytest.mark.parametrize(
    "text", ["", "0", "07", "-7", "+7", "7 ", "7\n", "7.0", "\u0667", "2147483648", "9" * 5_000]
)
def test_what_is_no_id_of_a_log_is_refused(text: str) -> None:
    with pytest.raises(DuramenError) as caught:
        parse_log_id(text)
    assert (caught.value.code, caught.value.field) == ("invalid_argument", "log_id")


def test_a_log_is_namespace_and_name() -> None:
    assert parse_log("team-a/Orders.v2_x") == ("team-a", "Orders.v2_x")
    for text in ("orders", "a/b/c", "/x", "x/", ""):
        with pytest.raises(DuramenError):
            parse_log(text)


@given(st.integers(0, 10**15))
def test_durations_and_sizes_read_back(number: int) -> None:
    assert parse_duration_us(format_duration(number)) == number
    assert parse_size_bytes(format_size(number)) == number


def test_a_duration_of_many_large_parts_is_spelled_as_the_pattern_says() -> None:
    """Found by made-up API calls: what was accepted came back as what the document forbids."""
    duration_us = parse_duration_us("999999999999999d" * 3 + "999999999999999h")
    text = format_duration(duration_us)
    assert re.fullmatch(DURATION_PATTERN, text) and parse_duration_us(text) == duration_us


@pytest.mark.parametrize(
    ("text", "duration_us"), [("250ms", 250_000), ("1h30m", 5_400_000_000), ("0s", 0), ("5us", 5)]
)
def test_durations(text: str, duration_us: int) -> None:
    assert parse_duration_us(text) == duration_us


@pytest.mark.parametrize("text", ["", "5", "ms", "1.5s", "-1s", "1 s", "1h 30m", "1w", "s1"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        parse_duration_us(text)


@pytest.mark.parametrize(("text", "size"), [("64MiB", 64 << 20), ("100", 100), ("1 KiB", 1024)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1MB", "1.5KiB", "-1B", "1kib"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_size_bytes(text)


def test_the_defaults_are_those_of_the_interface_page() -> None:
    config = parse_log_config({})
    assert config == LogConfig()
    replication = config.striped
    assert (replication.ensemble_size, replication.write_quorum, replication.ack_quorum) == (
        3,
        3,
        2,
    )
    assert (replication.min_racks, replication.min_regions, replication.placement) == (
        2,
        1,
        "strict",
    )
    document = config.to_json()
    assert document["roll"] == {"interval": "2h", "size": "256MiB", "idle_close": "10m"}
    assert document["retention"]["age"] == "3d" and document["commit_delay"] == "5ms"
    assert document["window"] == {"entries": 2_000, "bytes": "64MiB"}
    assert parse_log_config(document) == config, "what is stored reads back"


FLEXIBLE: Final = {"copysets": "flexible", "replication": {"node": 2, "rack": 2, "extras": 1}}


def test_a_flexible_log_is_read_as_it_is_stored() -> None:
    more = {"nodeset": {"size": "none"}, "sticky": "off", "window": {"stall": "2s"}}
    config = parse_log_config({**FLEXIBLE, **more})
    assert isinstance(config.replication, FlexibleReplication) and config.is_flexible
    document = config.to_json()
    assert document["replication"]["extras"] == 1 and document["sticky"] == "off"
    assert document["nodeset"] == {"size": None, "tolerate": 1}
    assert document["window"]["stall"] == "2s"
    assert parse_log_config(document) == config


def test_a_striped_log_is_stored_as_by_older_versions() -> None:
    document = LogConfig().to_json()
    assert not {"nodeset", "sticky"} & set(document) and "stall" not in document["window"]
    assert list(document)[:3] == ["replication", "ack_mode", "copysets"]


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        ({"replication": {"node": 2}}, "replication", "flexible logs have node, rack"),
        ({**FLEXIBLE, "replication": {"ack_quorum": 2}}, "replication", "striped logs have"),
        ({**FLEXIBLE, "replication": {"node": 2, "rack": 3}}, "replication", "must hold"),
        ({**FLEXIBLE, "replication": {"extras": 3}}, "replication.extras", "less than or equal"),
        ({"nodeset": {"size": 4}}, "nodeset", "flexible alone"),
        ({"sticky": "off"}, "sticky", "flexible alone"),
        ({"window": {"stall": "2s"}}, "window", "flexible alone"),
        ({**FLEXIBLE, "window": {"stall": "2m"}}, "window.stall", "60s"),
        ({**FLEXIBLE, "sticky": "maybe"}, "sticky", "boolean"),
        ({**FLEXIBLE, "nodeset": {"tolerate": 2}}, "nodeset", "tolerate 2 is not 0 to 1"),
        ({**FLEXIBLE, "nodeset": {"size": 3}}, "nodeset", "together are 4 bookies"),
        ({"copysets": "flexible", "replication": {"node": 1, "rack": 1}}, "nodeset", "tolerate 1"),
        (
            {"copysets": "flexible", "replication": {"region": 2, "regions_that_must_suffice": 1}},
            "nodeset",
            "are never replication.region 2",
        ),
    ],
)
def test_the_forms_of_replication_are_not_mixed(
    document: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(DuramenError, match=words) as caught:
        parse_log_config(document)
    assert caught.value.field == field


@pytest.mark.parametrize("value", [True, "on"])
def test_a_switch_is_also_what_yaml_makes_of_it(value: object) -> None:
    assert parse_log_config({**FLEXIBLE, "sticky": value}).sticky is True


def test_what_older_processes_do_not_know_is_left_out_where_it_says_nothing() -> None:
    config = parse_log_config({})
    later = {"compression": "none", "owner_region": "none"}
    assert config.to_json() == config.to_stored() | later
    assert parse_log_config(config.to_stored()) == config
    small = parse_log_config({"compression": "zstd"})
    near = parse_log_config({"owner_region": "writers"})
    assert small.to_stored() == config.to_stored() | {"compression": "zstd"}
    assert near.to_stored() == config.to_stored() | {"owner_region": "writers"}
    assert not needs_new_segment(config, small) and not needs_new_segment(config, near)


def test_no_limit_is_null_or_none() -> None:
    """Tools that drop what is null have the word; it is stored and answered as null."""
    for spelling in (None, "none"):
        retention = parse_log_config({"retention": {"age": spelling, "bytes": spelling}}).retention
        assert retention.age is None and retention.bytes is None
        assert retention.model_dump(mode="json")["age"] is None
    with pytest.raises(DuramenError, match="is no duration"):
        parse_log_config({"roll": {"interval": "none"}})


@pytest.mark.parametrize(
    ("document", "code", "field"),
    [
        ({"ack": 2}, "unknown_field", "ack"),
        ({"roll": {"siez": "1MiB"}}, "unknown_field", "roll.siez"),
        ({"roll": {"size": 5}}, "invalid_argument", "roll.size"),
        ({"roll": {"interval": "2 hours"}}, "invalid_argument", "roll.interval"),
        ({"replication": {"ack_quorum": 4}}, "invalid_argument", "replication"),
        ({"replication": {"ack_quorum": 1}}, "invalid_argument", "replication"),
        ({"replication": {"write_quorum": 2.0}}, "invalid_argument", "replication.write_quorum"),
        ({"replication": {"min_regions": 3}}, "invalid_argument", "replication"),
        ({"early_append": 1}, "invalid_argument", "early_append"),
        ({"roll": {"interval": "99ms"}}, "invalid_argument", "roll.interval"),
        ({"roll": {"idle_close": "0s"}}, "invalid_argument", "roll.idle_close"),
        ({"flush": {"policy": "never"}}, "invalid_argument", "flush.policy"),
        ({"flush": {"interval": "2s"}}, "invalid_argument", "flush.interval"),
        ({"flush": {"wait_max": "1m"}}, "invalid_argument", "flush.wait_max"),
        ({"commit": "perhaps"}, "invalid_argument", "commit"),
        ({"compression": "lz4"}, "invalid_argument", "compression"),
    ],
)
def test_faults_are_refused_with_their_field(
    document: dict[str, Any], code: str, field: str
) -> None:
    with pytest.raises(DuramenError) as caught:
        parse_log_config(document)
    assert (caught.value.code, caught.value.field) == (code, field)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(DuramenError, match="not a known field") as caught:
        parse_log_config({"ack": 1, "roll": {"size": 5}, "commit_delay": "x"})
    assert all(name in caught.value.detail for name in ("ack", "roll.size", "commit_delay"))
    with pytest.raises(DuramenError):
        parse_namespace_config({"auto_create": "yes"})
