"""The reference documents agree with the code: error table, configuration table, hex examples.

Sections between `<!-- begin NAME -->` and `<!-- end NAME -->` are made here from the code and
compared; with DURAMEN_REWRITE=1 in the environment (`make docs`) they are rewritten instead. The
configuration table is written by hand, so only its fields and defaults are compared.

Run with the unit tests. Documents: docs/protocol/errors.md, configuration.md, wire.md.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from duramen.config import LogConfig, NamespaceConfig
from duramen.core.segment import Totals
from duramen.core.status import BookieStatus
from duramen.errors import ERRORS
from duramen.ids import NOTHING, Dlsn, EntryId, Epoch, Incarnation, LogId, SequencerId, ledger_of
from duramen.limits import BATCH_RECORD_COUNT_MAX, ENTRY_BYTES_MAX
from duramen.texts import LAST_TIME_MS
from duramen.units import MIB
from duramen.wire import bookie_calls as bookie
from duramen.wire import sequencer_calls as sequencer
from duramen.wire.entry import HEADER_BYTES, encode_entry
from duramen.wire.frame import FRAME_BYTES_HARD_MAX, ROW_COUNT_MAX
from duramen.wire.record_batch import BATCH_ENCODED_MAX, encode_batch
from duramen_writeproxy.bodies import JSON_BYTES_MAX
from tests.unit.document_sections import DOCS, check_section

LOG, EPOCH = LogId(5), Epoch(3)
FIRST = EntryId(0)
LEDGER = ledger_of(LOG, EPOCH)
INCARNATION = Incarnation("00112233445566778899aabbccddeeff")
TIME_MS = 1767323045678


# --- Errors --------------------------------------------------------------------------------------


def format_error_table() -> str:
    """The table of errors.md, in the order of the numbers."""
    lines = ["| code | number | HTTP | retry | uncertain | title |", "|---|---|---|---|---|---|"]
    for row in sorted(ERRORS.values(), key=lambda row: row.wire):
        certainty = "**yes**" if row.uncertain else "no"
        lines.append(
            f"| `{row.code}` | {row.wire} | {row.status} | {row.retry.value} | {certainty} "
            f"| {row.title} |"
        )
    return "\n".join(lines) + "\n"


def test_the_error_table_is_that_of_the_code() -> None:
    check_section("errors.md", "errors", format_error_table())


# --- Configuration -------------------------------------------------------------------------------


def list_fields(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every field path with its default as JSON."""
    for name, value in document.items():
        if isinstance(value, dict):
            yield from list_fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value)


@pytest.mark.parametrize(
    ("heading", "forms"),
    [
        ("## Log", (LogConfig(copysets="flexible").to_json(), LogConfig().to_json())),
        ("## Namespace", (NamespaceConfig().to_json(),)),
    ],
)
def test_every_configuration_field_is_described(
    heading: str, forms: tuple[dict[str, Any], ...]
) -> None:
    """What is of one form alone, too; the last form is that of a log that says nothing."""
    defaults = {field: default for form in forms for field, default in list_fields(form)}
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    section = text.partition(f"{heading}\n")[2].partition("\n## ")[0]
    described = re.findall(r"^\| `([a-z_.]+)` \| `([^`]+)` \| .+ \|$", section, re.MULTILINE)
    assert sorted(described) == sorted(defaults.items())


# --- Limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "limits"),
    [
        (
            "wire.md",
            (
                ENTRY_BYTES_MAX,
                BATCH_ENCODED_MAX,
                BATCH_RECORD_COUNT_MAX,
                FRAME_BYTES_HARD_MAX,
                ROW_COUNT_MAX,
            ),
        ),
        ("rest.md", (JSON_BYTES_MAX, BATCH_ENCODED_MAX, BATCH_RECORD_COUNT_MAX, LAST_TIME_MS)),
    ],
)
def test_odd_limits_in_the_text_are_those_of_the_code(
    document: str, limits: tuple[int, ...]
) -> None:
    text = (DOCS / document).read_text(encoding="utf-8")
    assert [limit for limit in limits if f"{limit:,}" not in text] == []


# --- Hex examples --------------------------------------------------------------------------------


def dump(data: bytes) -> str:
    """Sixteen bytes a line, offset before, characters after."""
    lines = ["```"]
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:04x}  {row.hex(' '):<47}  {text}")
    return "\n".join([*lines, "```"]) + "\n"


def make_examples() -> dict[str, bytes]:
    """What wire.md shows, by the section's name."""
    batch = encode_batch([b"one", b"two"], TIME_MS, headers=[[], [(b"k", b"v")]])
    entry = encode_entry(
        ledger_id=LEDGER,
        entry_id=FIRST,
        before=Totals(),
        batches=[batch],
        record_count=2,
        after=Totals(2, len(batch), None, TIME_MS),
    )
    add = bookie.pack_adds(INCARNATION, [bookie.Add(LEDGER, FIRST, NOTHING, entry)])
    wanted = bookie.ReadRange(LEDGER, FIRST, EntryId(9), MIB, wait_ms=1000, wait_for=FIRST)
    found = bookie.ReadAnswer(BookieStatus.OK, FIRST, FIRST, False, [(FIRST, entry)])
    absent = bookie.ReadAnswer(BookieStatus.NO_ENTRY, FIRST, FIRST, True, [])
    seal = bookie.Seal(LOG, EPOCH, LEDGER)
    start = sequencer.LogMark(Dlsn(EPOCH, FIRST, 0), 7, TIME_MS)
    tail = sequencer.LogMark(Dlsn(EPOCH, FIRST, 2), 9, TIME_MS)
    redirect = sequencer.Redirect(SequencerId("seq-1"), "http://127.0.0.1:7201")
    marks = [bookie.Marks(BookieStatus.OK, NOTHING, FIRST)]
    after_lac = [bookie.Marks(BookieStatus.OK, FIRST, FIRST)]
    return {
        "batch": batch,
        "entry header": entry[:HEADER_BYTES],
        "add": add[: -len(entry)],
        "add answer": bookie.pack_statuses([BookieStatus.OK]),
        "read": bookie.pack_reads(INCARNATION, [wanted]),
        "read answer": bookie.pack_read_answers([found])[: -len(entry)],
        "read answer without entries": bookie.pack_read_answers([absent]),
        "seal": bookie.pack_seals(INCARNATION, [seal]),
        "seal answer": bookie.pack_marks(b"DSLR", marks),
        "lac": bookie.pack_lacs(INCARNATION, [bookie.LacUpdate(LEDGER, FIRST, is_write=True)]),
        "lac answer": bookie.pack_marks(b"DLCR", after_lac),
        "append": sequencer.pack_appends([sequencer.Append(LOG, 10_000, batch)])[: -len(batch)],
        "append answer": sequencer.pack_results([(0, sequencer.AppendedBatch(start, 2, tail))]),
        "append redirect": sequencer.pack_results([(0, redirect)]),
    }


@pytest.mark.parametrize("name", list(make_examples()))
def test_a_hex_example_is_what_the_code_spells(name: str) -> None:
    check_section("wire.md", f"example: {name}", dump(make_examples()[name]))
