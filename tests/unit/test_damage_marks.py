"""A bookie's damage mark of a ledger: another number after each loss and each start.

Source: R26, docs/protocol/repair.md "Damage marks".
"""

from __future__ import annotations

from duramen.core.bookie import BookieCore
from duramen.core.bookie.ledger_book import LedgerBook
from duramen.ids import NOTHING, EntryId, Epoch, LedgerId, LogId, ledger_of
from tests.unit.bookie_driver import LIFE

LOG = LogId(7)
LEDGER, OTHER = (ledger_of(LOG, Epoch(number)) for number in (3, 4))
START = 0xFEED_FACE


def holding(*entries: int, start_number: int = START) -> LedgerBook:
    book = LedgerBook(start_number)
    for entry in entries:
        recover(book, LEDGER, entry)
    return book


def recover(book: LedgerBook, ledger_id: LedgerId, entry: int) -> None:
    book.on_recovered_add(ledger_id, EntryId(entry), NOTHING, 7, is_recovery=False)


def test_each_loss_of_the_ledger_makes_another_mark() -> None:
    book = holding(0, 1, 2)
    book.on_settled(LEDGER, [2])
    assert book.damage_mark_of(LEDGER) == START << 32
    for count, entry in enumerate((0, 2), 1):
        book.on_unreadable(LEDGER, EntryId(entry))
        assert book.damage_mark_of(LEDGER) == START << 32 | count, "hot or settled"
    assert book.damage_mark_of(OTHER) == START << 32


def test_what_was_not_there_is_not_lost_and_what_is_mended_was() -> None:
    book = holding(0)
    for entry in (0, 0, 5):
        book.on_unreadable(LEDGER, EntryId(entry))
    assert book.damage_mark_of(LEDGER) == START << 32 | 1
    recover(book, LEDGER, 0)
    assert book.list_held(LEDGER, EntryId(0), EntryId(9)) == [(0, 0)]
    assert book.damage_mark_of(LEDGER) == START << 32 | 1, "an answer told it before, perhaps"


def test_what_lies_behind_the_end_and_goes_is_no_loss() -> None:
    book = holding(0, 1, 2)
    book.purge_beyond(LEDGER, EntryId(0))
    assert book.damage_mark_of(LEDGER) == START << 32


def test_the_count_stays_within_its_half() -> None:
    book = holding(0)
    dict(book.list_ledgers())[LEDGER].loss_count = 0xFFFF_FFFF
    book.on_unreadable(LEDGER, EntryId(0))
    assert book.damage_mark_of(LEDGER) == START << 32


def test_a_start_makes_another_mark_of_every_ledger() -> None:
    one, other = (BookieCore(LIFE, start_number=number) for number in (1, 2))
    assert one.damage_mark_of(LEDGER) != other.damage_mark_of(LEDGER)
    other.restore(one.snapshot())
    assert one.damage_mark_of(LEDGER) != other.damage_mark_of(LEDGER), "no checkpoint keeps it"
