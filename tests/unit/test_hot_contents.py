"""Contents of hot entries' envelopes in memory: which is in force, and what they cost.

Source: docs/protocol/envelopes.md "On disk", V1.
"""

from __future__ import annotations

from duramen.ids import EntryId, LedgerId
from duramen.wire.disk.journal_format import Location
from duramen_bookie.entry_log.contents import ContentRun
from duramen_bookie.index import EntryIndex
from tests.tiers import sized
from tests.unit.allocation import allocated_bytes
from tests.unit.stores import LEDGER, OTHER, PLAIN, STICKY, content, envelope_of

ENTRY_COUNT = sized(fast=6_250, gate=25_000, night=100_000)

A, B, C = content(STICKY), content(PLAIN), content(OTHER)


def put(index: EntryIndex, entry_id: int, envelope: bytes = b"", file_id: int = 1) -> None:
    index.put(LEDGER, EntryId(entry_id), Location(file_id, 80 * entry_id, 64), envelope)


def runs(index: EntryIndex, first: int = 0, last: int = 99) -> list[ContentRun]:
    return index.list_contents(LEDGER, EntryId(first), EntryId(last))


def test_equal_neighbours_are_a_run_and_those_without_are_in_none() -> None:
    index = EntryIndex()
    for entry_id, envelope in enumerate([b"", A, A, A, b"", A, B, A]):
        put(index, entry_id, envelope)
    assert runs(index) == [(1, 3, A), (5, 5, A), (6, 6, B), (7, 7, A)]
    assert runs(index, 2, 5) == [(2, 3, A), (5, 5, A)]
    assert runs(index, 4, 4) == [] and runs(EntryIndex()) == []
    assert index.list_contents(LedgerId(LEDGER + 1), EntryId(0), EntryId(9)) == []


def test_the_envelope_in_force_is_that_of_the_place() -> None:
    """V1, in each order: what is put later is where the body is read."""
    for order in ((A, B), (B, A), (A, b""), (b"", A)):
        index = EntryIndex()
        put(index, 7, C)
        for file_id, envelope in enumerate(order, start=1):
            put(index, 7, envelope, file_id)
        [place] = index.select(LEDGER, EntryId(7), 1, 0)
        assert place.location.file_id == 2
        assert [run.content for run in runs(index)] == ([order[1]] if order[1] else [])


def test_a_gap_that_is_filled_keeps_each_ones_own() -> None:
    index = EntryIndex()
    for entry_id, envelope in [(1, A), (5, A), (3, B), (2, A), (4, A)]:
        put(index, entry_id, envelope)
    assert runs(index) == [(1, 2, A), (3, 3, B), (4, 5, A)]


def test_what_leaves_takes_its_content_along() -> None:
    index = EntryIndex()
    for entry_id in range(30):
        put(index, entry_id, content(envelope_of(entry_id, 99)))
    put(index, 30)
    index.forget(LEDGER, [*range(10), 30])
    index.renew_contents(LEDGER)
    assert [run.first for run in runs(index)] == list(range(10, 30))
    assert all(run.content == content(envelope_of(run.first, 99)) for run in runs(index))
    assert len(index._contents[LEDGER]._bytes) == 20 * len(content(envelope_of(1, 99)))
    index.forget(LEDGER, list(range(10, 30)))
    index.renew_contents(LEDGER)
    assert not index._contents and not index._ledgers
    put(index, 40, A)
    index.drop(LEDGER)
    assert not index._contents and runs(index) == []


def test_a_hot_entry_with_an_envelope_costs_four_bytes_more() -> None:
    """28 + 4 of a sticky block, with the core's 8; the arrays grow by a sixteenth."""

    def build(envelopes: list[bytes]) -> EntryIndex:
        index = EntryIndex()
        for entry_id in range(ENTRY_COUNT):
            put(index, entry_id, envelopes[entry_id % len(envelopes)])
        return index

    bare = allocated_bytes(lambda: build([b""])) / ENTRY_COUNT
    sticky = allocated_bytes(lambda: build([A])) / ENTRY_COUNT
    own = allocated_bytes(lambda: build([A, B, C])) / ENTRY_COUNT
    assert bare < 20 * 1.07 and sticky < 24 * 1.07, (bare, sticky)
    assert own < 36 * 1.13, own


def test_what_envelopes_take_of_new_files_is_bounded() -> None:
    index = EntryIndex()
    assert index.envelope_bytes_max() == 0
    put(index, 1, A)
    put(index, 2)
    assert index.envelope_bytes_max() >= 2 * (len(A) + 4)
