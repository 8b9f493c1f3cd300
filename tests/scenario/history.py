"""What a rebuild reads in a scenario: stand-ins for batches name their producers.

A batch of a producer is the text `name@id/epoch/sequence*records`; the production parser of control
records reads the rest. Any bookie that is up and has the entry answers.

Called by the stage. Source: docs/scenarios.md, docs/protocol/recovery.md "Takeover".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.exactly_once.stamps import HistoryEntry, Stamp, StampedBatch
from duramen.ids import EntryId
from duramen.wire.entry import HEADER_BYTES, read_entry_info
from duramen.wire.entry_history import read_history
from tests.scenario.actors import StageBookie

_STAMP = re.compile(r"[^@ ]+@([a-z0-9]+)/([0-9]+)/([0-9]+)(?:\*([0-9]+))?")


def read_stamp(text: str) -> Stamp | None:
    """The producer that an append names, if it names one."""
    found = _STAMP.fullmatch(text)
    return None if found is None else Stamp(found[1], int(found[2]), int(found[3]))


def read_disks(
    bookies: Mapping[str, StageBookie], request: fx.ReadHistory
) -> list[HistoryEntry] | None:
    """The range, entry by entry; None if its first entry cannot be read anywhere."""
    entries: list[HistoryEntry] = []
    for number in range(request.first, request.last + 1):
        entry = EntryId(number)
        members = request.segment.list_holders(entry)
        copies = [
            bookies[member.bookie].stored.get((request.segment.ledger_id, entry))
            for member in members
            if bookies[member.bookie].is_up and bookies[member.bookie].member == member
        ]
        payload = next((copy for copy in copies if copy is not None), None)
        if payload is None:
            break
        entries.append(_read_entry(payload, is_header_only=request.is_headers_only))
    return entries or None


def _read_entry(payload: bytes, *, is_header_only: bool) -> HistoryEntry:
    info = read_entry_info(payload)
    if is_header_only or info.is_control:
        return read_history(payload, is_header_only=is_header_only)
    slot = 0
    stamped = []
    for text in payload[HEADER_BYTES:].decode().split():
        found = _STAMP.fullmatch(text)
        if found is not None:
            stamp = Stamp(found[1], int(found[2]), int(found[3]))
            count = int(found[4] or 1)
            stamped.append(StampedBatch(stamp, slot, info.first_position + slot, count, 0))
            slot += count
    return HistoryEntry(info.entry_id, info.has_state, False, None, tuple(stamped))
