"""Reads entries of closed segments from bookies for a rebuild of a log's producers and token.

One replica after the other is asked for a range; what it returns together, whole and undamaged, is
the answer. Nothing is decided here: a range that nobody returns is None, and the core asks again.

Called by `log_driver`. Source: docs/protocol/recovery.md "Takeover", docs/protocol/reading.md
"Which replica".
"""

from __future__ import annotations

from collections.abc import Iterable

from duramen.core.sequencer.effects import ReadHistory
from duramen.core.sequencer.exactly_once.stamps import HistoryEntry
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId
from duramen.limits import READ_TIMEOUT_US
from duramen.runtime.http_client import NoAnswerError, UnreachableError
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.units import MIB
from duramen.wire import bookie_calls as calls
from duramen.wire.entry import EntryError, check_entry, read_entry_info
from duramen.wire.entry_history import read_history
from duramen.wire.frame import FrameError

_BYTES_MAX = 4 * MIB
"""Of one answer: parsing it holds the event loop up for some ms."""


def range_of(effect: ReadHistory) -> calls.ReadRange:
    """What is asked of a bookie: never beyond the fragment that `first` lies in."""
    segment = effect.segment
    last = segment.end_of_place(effect.first, effect.last)
    return calls.ReadRange(
        segment.ledger_id,
        effect.first,
        last,
        _BYTES_MAX,
        service=calls.ServiceClass.RECOVERY,
        headers_only=effect.is_headers_only,
    )


async def read_entries(lanes: BookieLanes, effect: ReadHistory) -> tuple[HistoryEntry, ...] | None:
    """At least one entry from the first on, or None if no replica returns it now."""
    wanted = range_of(effect)
    for member in effect.segment.list_holders(effect.first):
        body = calls.pack_reads(member.incarnation, [wanted])
        try:
            answer = await lanes.post(member, "/b/read", body, READ_TIMEOUT_US)
            (found,) = calls.parse_read_answers(answer)
        except (UnreachableError, NoAnswerError, FrameError, ValueError):
            continue
        if found.status is BookieStatus.OK:
            entries = read_whole(
                wanted.ledger_id, found.entries, is_headers_only=wanted.headers_only
            )
            if entries and entries[0].entry == effect.first:
                return entries
    return None


def read_whole(
    ledger_id: LedgerId,
    entries: Iterable[tuple[EntryId, bytes | memoryview]],
    *,
    is_headers_only: bool,
) -> tuple[HistoryEntry, ...]:
    """The entries up to the first that is missing, damaged or another one's."""
    found: list[HistoryEntry] = []
    for entry_id, body in entries:
        if found and entry_id != found[-1].entry + 1:
            break
        try:
            info = read_entry_info(body) if is_headers_only else check_entry(bytes(body))
            if (info.ledger_id, info.entry_id) != (ledger_id, entry_id):
                break
            found.append(read_history(body, is_header_only=is_headers_only))
        except EntryError:
            break
    return tuple(found)
