"""Audit records as lines of JSON: spelled with their digest, read again, and held against it.

The digest is of the line's bytes before it, so a reader hashes what is there and spells nothing
anew. Whatever does not agree is no record.

Called by `runtime.audit`, `duramen audit` and write proxies that take others' records.
Source: docs/protocol/audit.md "A record".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from duramen.core.audit.chain import ChainHead, ChainLink, find_node
from duramen.core.audit.verification import CheckedRecord

VERSION: Final = 1
RECORD_BYTES_MAX: Final = 4_096
COUNTS_BYTES_MAX: Final = 16_384
START: Final = "start"
CALL: Final = "call"
COUNTS: Final = "counts"
LOST: Final = "lost"
END: Final = "end"

_TAIL: Final = re.compile(rb',"hash":"([0-9a-f]{64})"}')
_TAIL_BYTES: Final = len(',"hash":"') + 64 + len('"}')
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NUMBER_MAX: Final = 1 << 53


class AuditRecordError(ValueError):
    """The bytes are no audit record, or another one than was written."""


class SealedRecord(NamedTuple):
    """A line without its line feed, and its digest."""

    line: bytes
    digest: str


class AuditRecord(NamedTuple):
    """A record that is as it was written: its place in its chain, and its members."""

    checked: CheckedRecord
    members: dict[str, Any]


def seal_record(link: ChainLink, kind: str, members: Mapping[str, Any]) -> SealedRecord:
    """Spell one record.

    Args:
        members: what stands between `kind` and `hash`, `at` among it.
    """
    spelled = {"v": VERSION, **link._asdict(), "kind": kind, **members}
    text = json.dumps(spelled, separators=(",", ":"), check_circular=False)
    hashed = text[:-1].encode("ascii")
    digest = hashlib.sha256(hashed).hexdigest()
    line = b'%b,"hash":"%b"}' % (hashed, digest.encode())
    assert len(line) <= (COUNTS_BYTES_MAX if kind == COUNTS else RECORD_BYTES_MAX), len(line)
    return SealedRecord(line, digest)


def read_record(line: bytes) -> AuditRecord:
    """Read one record and see that it is whole.

    Raises:
        AuditRecordError: it is none, of another version, or its digest does not agree.
    """
    hashed, tail = line[:-_TAIL_BYTES], line[-_TAIL_BYTES:]
    found = _TAIL.fullmatch(tail)
    if found is None or len(line) > COUNTS_BYTES_MAX:
        raise AuditRecordError("it does not end as a record does")
    digest = hashlib.sha256(hashed).hexdigest()
    if digest != found[1].decode():
        raise AuditRecordError("its digest does not agree with it")
    try:
        members = json.loads(line)
        if members["v"] != VERSION:
            raise AuditRecordError(f"version {members['v']!r} is not read here")
        return AuditRecord(_read_place(members, digest), members)
    except (KeyError, TypeError, ValueError) as error:
        raise AuditRecordError(f"it is no record: {error}") from None


def find_foreign(line: bytes, node: str) -> str | None:
    """The node whose record this is, where it is another one; None: this one's, or no record."""
    try:
        found = read_record(line).checked.node
    except AuditRecordError:
        return None
    return None if found == node else found


def encode_handed(lines: Sequence[bytes]) -> bytes:
    """The body in which a node hands records on; a damaged line may hold any byte."""
    return json.dumps({"lines": [line.decode("latin-1") for line in lines]}).encode()


def decode_handed(members: Mapping[str, Any]) -> list[bytes]:
    """The lines of such a body.

    Raises:
        ValueError: it is none.
    """
    lines = members.get("lines")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError("texts are expected")
    return [line.encode("latin-1") for line in lines]


def read_head(value: object) -> ChainHead:
    """The last record of a chain, as `former` and the file `head` have it.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("a chain, a number and a digest are expected")
    chain, n, digest = value
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise ValueError("that is no digest")
    return ChainHead(_read_chain(chain), _read_number(n), digest)


def _read_place(members: Mapping[str, Any], digest: str) -> CheckedRecord:
    chain, prev, kind = _read_chain(members["chain"]), members["prev"], members["kind"]
    if not isinstance(prev, str) or _DIGEST.fullmatch(prev) is None:
        raise ValueError("prev is no digest")
    former = members.get("former")
    return CheckedRecord(
        ChainLink(chain, _read_number(members["n"]), prev),
        digest,
        find_node(chain),
        None if former is None else read_head(former),
        kind == END,
    )


def _read_chain(value: object) -> str:
    if not isinstance(value, str) or "/" not in value:
        raise ValueError("chain is no name of one")
    return value


def _read_number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _NUMBER_MAX:
        raise ValueError("n is no number of a record")
    return value
