"""Lines of an audit log, checked as `duramen audit verify` checks them.

Used by the tests of chains and of the audit trail. Source: docs/protocol/audit.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from duramen.core.audit.verification import ChainCheck, ChainFinding
from duramen.wire.edge.audit_records import AuditRecordError, read_record


def check_lines(
    lines: Sequence[bytes], *, is_whole: bool = True
) -> tuple[ChainCheck, list[ChainFinding]]:
    """What a check of these lines finds."""
    check = ChainCheck(is_whole=is_whole)
    found: list[ChainFinding] = []
    for line in lines:
        try:
            found += check.add(read_record(line).checked)
        except AuditRecordError as error:
            found.append(check.refuse(str(error)))
    return check, found
