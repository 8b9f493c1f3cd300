"""The manifest and the paths of the archive: one spelling, read strictly; golden files.

Source: docs/protocol/archive.md "Manifest, versions 1 and 2".
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.segment import Totals
from duramen.ids import NOTHING, Epoch, LogId
from duramen.wire.cold.manifest import ManifestError, encode_manifest, read_manifest
from duramen.wire.cold.paths import (
    ColdPath,
    attempt_folder,
    manifest_path,
    parse_path,
    part_name,
    segment_folder,
)
from tests.golden import FOLDER, read_golden
from tests.unit.cold_entries import (
    make_every_kind,
    open_part,
)
from tests.unit.manifests import ATTEMPT, CLUSTER, make_manifest


def test_golden_files() -> None:
    """What was written then is read now: the manifest, and the file that it names."""
    golden = read_golden("cold-manifest-v1.json", None)
    manifest = read_manifest(golden)
    assert encode_manifest(manifest) == golden
    _, present = make_manifest()
    # Encoded bytes differ from release to release of pyarrow; what they hold does not.
    assert manifest.identities == present.identities and manifest.records == present.records
    assert replace(manifest, files=()) == replace(present, files=())
    reader = open_part((FOLDER / "cold-part-v1.parquet").read_bytes(), manifest.files[0])
    indices = range(len(manifest.files[0].row_groups))
    entries = [entry for index in indices for entry in reader.read_entries(index)]
    originals = make_every_kind().entries
    assert [entry.entry_id for entry in entries] == list(originals)
    exact = [entry for entry in entries if entry.is_exact]
    assert [entry.data for entry in exact] == [originals[entry.entry_id] for entry in exact]


def test_round_trip_and_sums() -> None:
    _, manifest = make_manifest()
    assert read_manifest(encode_manifest(manifest)) == manifest
    assert (manifest.entry_count, manifest.row_count) == (12, 22)
    assert manifest.size_bytes == manifest.files[0].size_bytes
    assert manifest.path_of(manifest.files[0]) == (
        f"v1/{CLUSTER}/00000007/e0000000003/{ATTEMPT}/part-00000.parquet"
    )
    document = json.loads(encode_manifest(manifest))
    assert document["first_lsn"] == "e3n0" and document["last_lsn"] == "e3n12"
    assert (document["first_seq_num"], document["next_seq_num"]) == (1_000, 1_021)


def test_an_empty_segment_has_no_files() -> None:
    _, manifest = make_manifest()
    empty = replace(manifest, files=(), last_entry=NOTHING, totals=Totals(), lost=())
    assert read_manifest(encode_manifest(empty)) == empty


def test_fields_of_newer_jobs_are_passed_over() -> None:
    _, manifest = make_manifest()
    document = json.loads(encode_manifest(manifest))
    document["new"] = document["files"][0]["new"] = 1
    assert read_manifest(json.dumps(document).encode()) == manifest


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("v", 2),
        ("v", True),
        ("cluster", 7),
        ("log_id", "0"),
        ("log_id", 7),
        ("epoch", 0),
        ("epoch", True),
        ("attempt", "../../x"),
        ("last_entry", 13),
        ("last_entry", 11),
        ("start_seq_num", -1),
        ("start_seq_num", 1_001),
        ("entries", 13),
        ("rows", 23),
        ("first_lsn", "e3n1"),
        ("next_seq_num", 1_022),
        ("identities", "0" * 64),
        ("records", "0" * 64),
        ("lost", []),
        ("lost", [[7, 6]]),
        ("holes", [[7, 7]]),
        ("history", []),
        ("totals", {}),
        ("files", []),
        ("files.0.name", "../part-00000.parquet"),
        ("files.0.sha256", "xyz"),
        ("files.0.size_bytes", 10),
        ("files.0.row_groups", []),
        ("files.0.row_groups.1.offset", 0),
        ("files.0.row_groups.0.size_bytes", 0),
        ("files.0.row_groups.0.rows", 1),
        ("files.0.row_groups.0.entries", 100),
        ("files.0.row_groups.0.last_entry", 12),
        ("files.0.row_groups.0.totals_before.records", 1.0),
        ("files.0.row_groups.0.totals_after.max_txid", "5"),
    ],
)
def test_what_does_not_fit_is_refused(path: str, value: Any) -> None:
    _, manifest = make_manifest()
    document = json.loads(encode_manifest(manifest))
    at: Any = document
    *steps, last = path.split(".")
    for step in steps:
        at = at[int(step)] if step.isdigit() else at[step]
    at[last] = value
    with pytest.raises(ManifestError):
        read_manifest(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000])
def test_other_bytes_are_no_manifest(data: bytes) -> None:
    with pytest.raises(ManifestError):
        read_manifest(data)


@given(st.sets(st.sampled_from(list(json.loads(encode_manifest(make_manifest()[1]))))))
def test_every_field_is_needed(missing: set[str]) -> None:
    _, manifest = make_manifest()
    document = json.loads(encode_manifest(manifest))
    for name in missing:
        del document[name]
    data = json.dumps(document).encode()
    if missing:
        with pytest.raises(ManifestError):
            read_manifest(data)
    else:
        assert read_manifest(data) == manifest


def test_paths() -> None:
    segment = LogId(0x1F), Epoch(12)
    assert segment_folder(CLUSTER, *segment) == f"v1/{CLUSTER}/0000001f/e0000000012/"
    path = manifest_path(CLUSTER, *segment)
    assert parse_path(path) == ColdPath(CLUSTER, *segment, None, None)
    part = attempt_folder(CLUSTER, *segment, ATTEMPT) + part_name(3)
    assert parse_path(part) == ColdPath(CLUSTER, *segment, ATTEMPT, 3)
    for other in ("", path + "x", f"x{path}", part.replace("e00", "e0"), "v1/../x/manifest.json"):
        assert parse_path(other) is None
    assert parse_path(path.replace("0000001f", "00000000")) is None
