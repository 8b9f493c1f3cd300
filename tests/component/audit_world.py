"""An audit log that is faked: it keeps what it is given, and is away when a test says so.

Used by the tests of the audit trail and by those of doors. Source: docs/protocol/audit.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duramen.core.audit.verification import ChainFinding
from duramen.errors import DuramenError
from duramen.runtime.audit.recorded_calls import RecordedCalls
from duramen.runtime.audit.spool import AuditSpool
from duramen.runtime.audit.trail import AuditTrail
from duramen.runtime.public.calls import Side
from tests.unit.audit_lines import check_lines


class AuditLogTwin:
    """A sink.

    Attributes:
        is_away: appends are refused; nothing is stored.
        is_deaf: appends are stored, and refused as if nobody knew.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.is_away = False
        self.is_deaf = False
        self.try_count = 0

    async def append(self, lines: Sequence[bytes]) -> None:
        self.try_count += 1
        if self.is_away:
            raise DuramenError("not_enough_bookies", "1 of 3")
        self.lines += lines
        if self.is_deaf:
            raise DuramenError("append_uncertain", "nobody answered")

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.lines]
        return [one for one in found if kind in (None, one["kind"])]

    def check(self) -> list[ChainFinding]:
        return check_lines(self.lines)[1]


def make_trail(
    sink: AuditLogTwin, node: str = "writeproxy/wp-0", folder: Path | None = None,
    *, is_required: bool = False,
) -> AuditTrail:  # fmt: skip
    spool = None if folder is None else AuditSpool(folder)
    return AuditTrail(node, sink, spool, is_required=is_required)


def record_nowhere() -> RecordedCalls:
    """For a door whose calls nobody looks at: its trail is not started."""
    return RecordedCalls(make_trail(AuditLogTwin()), Side.WRITE)
