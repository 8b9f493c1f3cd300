"""Frames that carry envelopes and filters, each with what it says: for the tests of all frames.

Source: docs/protocol/envelopes.md.
"""

from __future__ import annotations

from duramen.ids import NOTHING, EntryId, Incarnation, LedgerId, NodeNumber
from duramen.wire import bookie_calls as calls
from duramen.wire.bookie_calls import Add, ServiceClass
from duramen.wire.envelope import Envelope, encode_envelope

LIFE = Incarnation("0123456789abcdef0123456789abcdef")
LEDGER = LedgerId(7 << 32 | 3)

STICKY = Envelope((NodeNumber(4), NodeNumber(0), NodeNumber(300)), EntryId(0))
ADDS = [
    Add(LEDGER, EntryId(0), NOTHING, b"first"),
    Add(
        LEDGER, EntryId(5), EntryId(4), b"sixth",
        envelope=encode_envelope(STICKY, LEDGER, EntryId(5), 6),
    ),
    Add(
        LEDGER, EntryId(6), EntryId(4), b"", True, ServiceClass.RECOVERY,
        envelope=encode_envelope(STICKY._replace(block=None), LEDGER, EntryId(6), 7),
    ),
]  # fmt: skip

FLEXIBLE_FRAMES = {
    "bookie-add-envelopes": (calls.pack_adds(LIFE, ADDS), calls.parse_any_adds, (LIFE, ADDS)),
}
