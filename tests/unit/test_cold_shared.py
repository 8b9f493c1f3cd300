"""Files of several segments: what compaction writes is read as the segments' own files were.

Source: ADR 0016; written up in docs/protocol/archive.md.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from duramen.ids import EntryId, Epoch, LogId, ledger_of
from duramen.runtime.cold import NotThere
from duramen.runtime.cold.manifests import find_manifest
from duramen.runtime.cold.memory import MemoryColdStore
from duramen.wire.cold.manifest import (
    FilePart,
    Manifest,
    ManifestError,
    encode_manifest,
    read_manifest,
)
from duramen.wire.cold.part_reader import PartReader
from duramen.wire.cold.paths import (
    CompactedPath,
    attempt_manifest_path,
    manifest_path,
    parse_compacted,
    parse_path,
    part_name,
    shared_folder,
)
from duramen.wire.cold.rebuild import ColdDataError, RebuiltEntry
from duramen.wire.cold.shared_writer import SharedWriter
from tests.golden import read_golden
from tests.unit.cold_entries import LOG, SegmentBytes, make_every_kind, write_part
from tests.unit.manifests import ATTEMPT, CLUSTER, make_manifest

EPOCHS = (Epoch(3), Epoch(5), Epoch(6))
COMPACTED = "c" * 32


class Source(NamedTuple):
    """A segment with a file of its own."""

    segment: SegmentBytes
    data: bytes
    part: FilePart

    def open(self) -> PartReader:
        """A reader of the file."""
        return open_in(self.data, self.part, self.segment)


def open_in(data: bytes, part: FilePart, segment: SegmentBytes) -> PartReader:
    """A reader of a segment's part of a file."""
    return PartReader(
        lambda offset, size_bytes: data[offset : offset + size_bytes],
        part,
        ledger_id=segment.ledger_id,
        start_seq_num=segment.start_seq_num,
    )


def read_all(reader: PartReader) -> list[RebuiltEntry]:
    """All entries of a part."""
    indices = range(len(reader.part.row_groups))
    return [entry for index in indices for entry in reader.read_entries(index)]


def make_sources(row_group_bytes: int = 1_000) -> dict[Epoch, Source]:
    """Three segments of every kind of record, in small row groups."""
    sources, start_seq_num = {}, 50
    for epoch in EPOCHS:
        segment = make_every_kind(ledger_of(LOG, epoch), start_seq_num)
        sources[epoch] = Source(segment, *write_part(segment, row_group_bytes=row_group_bytes))
        start_seq_num += segment.totals.record_count
    return sources


def make_shared() -> tuple[dict[Epoch, Source], bytes, dict[Epoch, FilePart]]:
    """Segments, a file of all, and what their manifests say of it."""
    sources = make_sources()
    written: list[bytes] = []
    writer = SharedWriter(written.append, name=part_name(0))
    for epoch, source in sources.items():
        writer.begin(epoch, source.part.identities, source.part.records)
        reader = source.open()
        for index, group in enumerate(source.part.row_groups):
            writer.add(group, reader.read_table(index))
    parts = writer.finish()
    return sources, b"".join(written), parts


def test_each_segment_reads_back_as_it_was() -> None:
    sources, data, parts = make_shared()
    assert len({part.sha256 for part in parts.values()}) == 1
    for epoch, source in sources.items():
        part = parts[epoch]
        assert read_all(open_in(data, part, source.segment)) == read_all(source.open())
        # Joined, and only where totals allow it: two runs of entries around the lost one.
        assert len(part.row_groups) == 2 < len(source.part.row_groups)
        assert part.row_groups[-1].totals_after == source.segment.totals
        assert part.size_bytes == len(data) > part.own_bytes
        assert part.sha256 == hashlib.sha256(data).hexdigest()


def test_no_byte_of_a_shared_file_can_flip_unseen() -> None:
    sources, data, parts = make_shared()
    for epoch, source in sources.items():
        part = parts[epoch]
        begin, end = part.row_groups[0].offset, part.footer_offset
        for at in (begin, part.row_groups[-1].offset, end, len(data) - 1):
            damaged = bytearray(data)
            damaged[at] ^= 1
            with pytest.raises(ColdDataError):
                read_all(open_in(bytes(damaged), part, source.segment))


def make_shared_manifest() -> Manifest:
    """The manifest of the second segment."""
    sources, _, parts = make_shared()
    segment = sources[EPOCHS[1]].segment
    return replace(
        make_manifest()[1],
        epoch=EPOCHS[1],
        attempt=COMPACTED,
        start_seq_num=segment.start_seq_num,
        files=(parts[EPOCHS[1]],),
    )


def test_manifest_of_a_shared_file() -> None:
    manifest = make_shared_manifest()
    assert read_manifest(encode_manifest(manifest)) == manifest
    assert json.loads(encode_manifest(manifest))["v"] == 2
    path = manifest.path_of(manifest.files[0])
    assert path == shared_folder(CLUSTER, LOG, COMPACTED) + "part-00000.parquet"
    assert manifest.size_bytes == manifest.files[0].own_bytes
    # Encoded bytes differ from release to release of pyarrow; what they hold does not.
    golden = read_manifest(read_golden("cold-manifest-v2.json", None))
    assert replace(golden, files=()) == replace(manifest, files=())
    assert golden.identities == manifest.identities and golden.records == manifest.records


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("first_group", -1),
        ("first_group", 100),
        ("groups", 1),
        ("footer_offset", 5),
        ("footer_offset", 1 << 40),
        ("footer_offset", None),
    ],
)
def test_a_part_that_does_not_fit_its_file_is_refused(name: str, value: Any) -> None:
    document = json.loads(encode_manifest(make_shared_manifest()))
    document["files"][0]["shared"][name] = value
    with pytest.raises(ManifestError):
        read_manifest(json.dumps(document).encode())


def test_versions_and_files_belong_together() -> None:
    document = json.loads(encode_manifest(make_shared_manifest()))
    with pytest.raises(ManifestError, match="another version"):
        read_manifest(json.dumps({**document, "v": 1}).encode())


def test_paths_of_compaction() -> None:
    path = attempt_manifest_path(CLUSTER, LOG, Epoch(5), COMPACTED)
    assert parse_compacted(path) == CompactedPath(CLUSTER, LOG, Epoch(5), COMPACTED)
    shared = shared_folder(CLUSTER, LOG, COMPACTED) + part_name(2)
    assert parse_compacted(shared) == CompactedPath(CLUSTER, LOG, None, COMPACTED)
    # What an archive job looks after is nothing of this, and the other way round.
    assert parse_path(path) is None and parse_path(shared) is None
    assert parse_compacted(manifest_path(CLUSTER, LOG, Epoch(5))) is None
    assert parse_compacted(path.replace("e0000000005", "e0000000000")) is None


def test_the_manifest_that_the_node_vouches_for_is_found() -> None:
    store = MemoryColdStore()
    compacted = make_shared_manifest()
    first = replace(compacted, attempt=ATTEMPT, files=(make_sources()[EPOCHS[1]].part,))
    place = CLUSTER, LOG, EPOCHS[1]

    def find(manifest: Manifest) -> Manifest:
        sha256 = hashlib.sha256(encode_manifest(manifest)).hexdigest()
        return find_manifest(store, *place, attempt=manifest.attempt, sha256=sha256)

    with pytest.raises(NotThere):
        find(first)
    store.put_new(manifest_path(*place), encode_manifest(first))
    store.put_new(attempt_manifest_path(*place, COMPACTED), encode_manifest(compacted))
    assert find(first) == first and find(compacted) == compacted
    with pytest.raises(ManifestError, match="not the manifest that was verified"):
        find(replace(first, archived_unix_ms=1))
    store.delete(manifest_path(*place))
    assert find(compacted) == compacted
    with pytest.raises(NotThere):
        find(first)
    assert LogId(LOG) == first.log_id and EntryId(12) == first.last_entry
