"""Frames that carry envelopes and filters, each with what it says: for the tests of all frames.

Source: docs/protocol/envelopes.md.
"""

from __future__ import annotations

from duramen.core.flexible.sending import ReadFilter
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, Incarnation, LedgerId, Member, NodeNumber
from duramen.wire import bookie_calls as calls
from duramen.wire.bookie_calls import Add, ReadRange, ServiceClass
from duramen.wire.flexible.envelope import Envelope, encode_envelope
from duramen.wire.flexible.filtered_answers import (
    EnvelopeRun,
    FilteredAnswer,
    pack_filtered_answers,
    parse_filtered_answers,
)
from duramen.wire.flexible.filtered_reads import (
    FilteredRange,
    pack_filtered_reads,
    parse_filtered_reads,
)
from duramen.wire.repair_calls import (
    Inventory,
    InventoryAnswer,
    Pull,
    PullMap,
    Source,
    mark_question,
    pack_inventory,
    pack_inventory_answer,
    pack_pull,
    parse_any_pull,
    parse_inventory,
    parse_inventory_answer,
)

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

FILTER = ReadFilter(
    frozenset(map(NodeNumber, (0, 4, 300))), {EntryId(0): NodeNumber(4), EntryId(64): NodeNumber(0)}
)
READS = [
    FilteredRange(
        ReadRange(LEDGER, EntryId(4), EntryId(9), 1 << 20, service=ServiceClass.CATCH_UP_READ),
        filter_number=17, bound=EntryId(8), read_filter=FILTER, own=NodeNumber(300),
        with_envelopes=True, is_digest=True,
    ),
    FilteredRange(
        ReadRange(
            LEDGER, EntryId(0), EntryId(4_095), 0, seal_epoch=3, service=ServiceClass.RECOVERY
        ),
        is_digest=True,
    ),
    FilteredRange(ReadRange(LEDGER, EntryId(4), EntryId(4), 100, headers_only=True)),
]  # fmt: skip
READ_ANSWERS = [
    FilteredAnswer(
        BookieStatus.OK, EntryId(8), EntryId(12), True, 17, EntryId(9),
        entries=((EntryId(4), b"fifth"), (EntryId(6), b""), (EntryId(8), b"last")),
        unvouched=((EntryId(5), EntryId(5)),),
        runs=(
            EnvelopeRun(EntryId(4), EntryId(6), STICKY),
            EnvelopeRun(EntryId(8), EntryId(8), STICKY._replace(block=None)),
        ),
    ),
    FilteredAnswer(
        BookieStatus.OK, NOTHING, EntryId(7), False, 0, EntryId(4_096),
        digests=((EntryId(0), 0xDEAD_BEEF), (EntryId(7), 7)),
    ),
    FilteredAnswer(BookieStatus.NOT_RELEASED, EntryId(3), EntryId(9), False, 17, EntryId(4)),
]  # fmt: skip

PULL = Pull(
    LEDGER,
    ranges=[(EntryId(0), EntryId(0)), (EntryId(4), EntryId(9))],
    sources=[Source(Member(BookieId("bookie-2"), LIFE), "")],
    lac=EntryId(9),
    budget_bytes=1 << 20,
    node_map=PullMap(NodeNumber(4), (NodeNumber(0), NodeNumber(4), NodeNumber(300))),
)

INVENTORY = Inventory(LEDGER, EntryId(4), EntryId(900), is_marked=True)
INVENTORY_ANSWER = InventoryAnswer(
    BookieStatus.OK, EntryId(8), EntryId(9), EntryId(10),
    entries=((EntryId(4), 0xDEAD_BEEF), (EntryId(7), 7)),
    unknown=((EntryId(5), EntryId(6)),),
    mark=0xFEED_FACE_0000_0002,
)  # fmt: skip

FLEXIBLE_FRAMES = {
    "bookie-add-envelopes": (calls.pack_adds(LIFE, ADDS), calls.parse_any_adds, (LIFE, ADDS)),
    "bookie-read-filtered": (
        pack_filtered_reads(LIFE, READS), parse_filtered_reads, (LIFE, READS),
    ),
    "bookie-read-filtered-answer": (
        pack_filtered_answers(READ_ANSWERS), parse_filtered_answers, READ_ANSWERS,
    ),
    "bookie-inventory-marked": (
        pack_inventory(LIFE, INVENTORY), parse_inventory, (LIFE, INVENTORY),
    ),
    "bookie-inventory-mark-alone": (
        pack_inventory(LIFE, mark_question(LEDGER)), parse_inventory, (LIFE, mark_question(LEDGER)),
    ),
    "bookie-inventory-marked-answer": (
        pack_inventory_answer(INVENTORY_ANSWER), parse_inventory_answer, INVENTORY_ANSWER,
    ),
    "bookie-pull-mapped": (pack_pull(LIFE, PULL), parse_any_pull, (LIFE, PULL)),
}  # fmt: skip
