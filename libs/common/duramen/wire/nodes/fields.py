"""What nodes of all kinds are made of: JSON with a schema version, and fields that are checked.

A reader takes its fields out of the document, so that what is left is what it does not know, and
travels through a rewrite. What is wrong raises a `ValueError` or a `TypeError`, which the reader of
the node turns into a `MetadataJsonError`.

Called by the codecs of nodes. Source: docs/protocol/metadata.md "Nodes".
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from duramen.core.segment_base import Totals
from duramen.ids import Incarnation

SCHEMA: Final = 1
"""Of all kinds of nodes but one: `segments.FLEXIBLE_SCHEMA`."""
_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")

T = TypeVar("T")


class MetadataJsonError(ValueError):
    """A node does not hold what its place promises; never to be overwritten blindly."""


def encode_node(
    fields: Mapping[str, Any], extra: Mapping[str, Any] | None = None, schema: int = SCHEMA
) -> bytes:
    """Encode a node: sorted keys, schema version added, unknown fields kept."""
    return encode_document({**(extra or {}), **fields, "v": schema})


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Encode a node whose fields are complete, its schema version too."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def read_node(data: bytes) -> dict[str, Any]:
    """Any node as a dict, without its schema version.

    Raises:
        MetadataJsonError: no JSON object, or of a schema that is newer than this code.
    """
    return read_versioned(data, SCHEMA)[1]


def read_versioned(data: bytes, newest: int) -> tuple[int, dict[str, Any]]:
    """A node's schema version, and the rest of it.

    Raises:
        MetadataJsonError: no JSON object, or of a schema that is newer than `newest`.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MetadataJsonError("the node is no JSON") from error
    return take_version(document, newest)


def take_version(document: Any, newest: int) -> tuple[int, dict[str, Any]]:
    """As `read_versioned`, of a node that another document holds."""
    if not isinstance(document, dict) or not isinstance(document.get("v"), int):
        raise MetadataJsonError("the node has no schema version")
    version = document.pop("v")
    if version > newest:
        raise MetadataJsonError(f"the node's schema {version} is newer than {newest}")
    return version, document


def take_field(document: dict[str, Any], name: str, read: Callable[[Any], T]) -> T:
    """A field, taken out of the document; what is wrong with it is said with its name."""
    value = document.pop(name)
    try:
        return read(value)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def take_if_there(document: dict[str, Any], name: str, read: Callable[[Any], T]) -> T | None:
    """The same of a field that need not be there."""
    return take_field(document, name, read) if name in document else None


def encode_totals(totals: Totals) -> dict[str, Any]:
    """Totals of a segment, a fragment or a log."""
    return {
        "records": totals.record_count,
        "bytes": totals.length_bytes,
        "max_txid": totals.max_txid,
        "max_timestamp_ms": totals.max_timestamp_ms,
    }


def read_totals(document: Mapping[str, Any]) -> Totals:
    """The inverse of `encode_totals`."""
    return Totals(
        check_whole(document["records"]),
        check_whole(document["bytes"]),
        document["max_txid"],
        document["max_timestamp_ms"],
    )


def check_whole(value: object) -> int:
    """A whole number ≥ 0; `bool` is an int to Python, and no number to anybody else."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number ≥ 0")
    return value


def check_truth(value: object) -> bool:
    """True or false, and nothing that Python takes for one of them."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def check_whole_or_none(value: object) -> int | None:
    """A whole number ≥ 0, or nothing."""
    return None if value is None else check_whole(value)


def read_number(text: object) -> int:
    """A number that is a text in JSON, because it may pass 2^53."""
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 20):
        raise ValueError(f"{text!r} is no number as text")
    return int(text)


def check_incarnation(value: object) -> Incarnation:
    """One life of a bookie's disks: 32 hex digits."""
    if not isinstance(value, str) or not _INCARNATION.fullmatch(value):
        raise ValueError(f"{value!r} is no incarnation")
    return Incarnation(value)


def check_text(value: object) -> str:
    """A text, maybe an empty one."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def check_weight(value: object) -> float:
    """A finite number ≥ 0; `bool` is an int to Python, and no number to anybody else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{value!r} is no weight: it is a number ≥ 0")
    return float(value)


def read_whole(value: object) -> int:
    """A whole number ≥ 0 of a node.

    Raises:
        MetadataJsonError: it is none.
    """
    try:
        return check_whole(value)
    except ValueError as error:
        raise MetadataJsonError(str(error)) from error
