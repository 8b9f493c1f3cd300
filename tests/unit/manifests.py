"""A manifest of an archived segment, with the names that it is made of.

Used by `test_cold_manifest` and `test_cold_shared`. Source: docs/protocol/archive.md.
"""

from __future__ import annotations

from duramen.ids import EntryId
from duramen.wire.cold.manifest import Manifest
from tests.unit.cold_entries import (
    EPOCH,
    LOG,
    START_SEQ_NUM,
    make_every_kind,
    write_part,
)

CLUSTER = "0a1b2c3d-0000-4000-8000-000000000001"
ATTEMPT = "0123456789abcdef0123456789abcdef"


def make_manifest() -> tuple[bytes, Manifest]:
    """A manifest of one file, and the file."""
    segment = make_every_kind()
    data, part = write_part(segment, row_group_bytes=2_000)
    manifest = Manifest(
        cluster=CLUSTER,
        namespace="space",
        log="log",
        log_id=LOG,
        epoch=EPOCH,
        attempt=ATTEMPT,
        start_seq_num=START_SEQ_NUM,
        last_entry=EntryId(segment.next_entry - 1),
        totals=segment.totals,
        files=(part,),
        lost=((EntryId(7), EntryId(7)),),
        archived_unix_ms=1_700_000_000_000,
        history={"created_unix_ms": 1, "job": "a job"},
    )
    return data, manifest
