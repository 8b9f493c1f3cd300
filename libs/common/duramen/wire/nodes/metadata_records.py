"""Records of metadata logs as bytes: JSON, with the segment's node in it.

    {"v": 1, "kind": "moved", "log_id": "7", "epoch": 3, "node": {…}, "node_version": 4,
     "made": "8589934601", "config_version": 2, "config": {…}}

What is not understood is damage, or of a newer version: never a record that is passed over. Only a
kind that is not known here is: it never counts, whoever wrote it.

Called by keepers and readers of metadata logs. Source: docs/protocol/metadata-logs.md "The record".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.ids import LogId
from duramen.wire.nodes.fields import (
    MetadataJsonError,
    check_whole,
    encode_node,
    read_node,
    read_number,
    take_field,
    take_if_there,
)
from duramen.wire.nodes.segments import list_segment_fields, read_segment_fields

_KINDS: Final = {kind.value: kind for kind in MetadataKind}


def encode_metadata_record(record: MetadataRecord) -> bytes:
    """Encode a record."""
    fields: dict[str, Any] = {
        "kind": record.kind.value,
        "log_id": str(record.log_id),
        "epoch": record.epoch,
        "node": list_segment_fields(record.segment),
        "node_version": record.node_version,
        "made": str(record.made),
    }
    if record.config is not None:
        fields["config_version"] = record.config_version
        fields["config"] = dict(record.config)
    return encode_node(fields, record.extra)


def read_metadata_record(data: bytes, log_id: LogId) -> MetadataRecord | None:
    """Read a record of the metadata log of `log_id`; None: of a kind that is not known here.

    Raises:
        MetadataJsonError: it is damaged, of a newer version, or of another log.
    """
    document = read_node(data)
    try:
        kind = document.pop("kind")
        if not isinstance(kind, str):
            raise TypeError(f"kind: {kind!r} is no text")
        if kind not in _KINDS:
            return None
        return _read_known(document, _KINDS[kind], log_id)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise MetadataJsonError(f"this is no metadata record: {error!r}") from error


def _read_known(document: dict[str, Any], kind: MetadataKind, log_id: LogId) -> MetadataRecord:
    named = (
        take_field(document, "log_id", read_number),
        take_field(document, "epoch", check_whole),
    )
    segment = take_field(document, "node", read_segment_fields)
    if named != (log_id, segment.epoch) or segment.log_id != log_id:
        raise ValueError(f"it names {named}, holds {segment}, and lies where log {log_id} is told")
    return MetadataRecord(
        kind,
        segment,
        node_version=take_field(document, "node_version", check_whole),
        made=take_field(document, "made", read_number),
        config_version=take_if_there(document, "config_version", check_whole),
        config=take_if_there(document, "config", _check_object),
        extra=document,  # what is left of it
    ).validated()


def _check_object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no object")
    return value
