"""What a bookie's core costs in memory: per idle ledger and per hot entry.

The targets of docs/benchmarks.md "A bookie alone" are 2 KB per idle ledger and 32 bytes per hot
entry, for core, index and entry log together; the core's own share is held here. Memory is counted
by
`tracemalloc`, so the bounds do not depend on the machine.
"""

from __future__ import annotations

import pytest

from duramen.core.bookie import BookieCore
from duramen.ids import NOTHING, EntryId, Epoch, LogId, ledger_of
from tests.tiers import sized
from tests.unit.allocation import allocated_bytes
from tests.unit.bookie_driver import LIFE

# Powers of four apart, so that tables are equally full in each tier and a unit costs the same.
LEDGER_COUNT = sized(fast=1_250, gate=5_000, night=20_000)
ENTRY_COUNT = sized(fast=6_250, gate=25_000, night=100_000)
ENTRIES_OF_LEDGER = 3

LEDGER_BYTES_MAX = 1024
"""Half of the target, with an exact count of about 900 for a log of its own."""

ENTRY_BYTES_MAX = 9
"""4 for the id, 4 for the checksum; arrays grow by a sixteenth."""


def settled_ledgers(ledgers_of_log: int) -> BookieCore:
    """Ledgers that were written, settled and left alone."""
    core = BookieCore(LIFE)
    entries = [EntryId(entry) for entry in range(300, 300 + ENTRIES_OF_LEDGER)]
    for number in range(LEDGER_COUNT):
        log_number, epoch = divmod(number, ledgers_of_log)
        log_id = LogId(1000 + log_number)
        ledger_id = ledger_of(log_id, Epoch(300 + epoch))
        for entry in entries:
            core.on_recovered_add(ledger_id, entry, EntryId(entry - 1), 7, is_recovery=False)
        core.on_recovered_seal(log_id, Epoch(300 + epoch))
        core.on_settled(ledger_id, entries)
    return core


@pytest.mark.parametrize("ledgers_of_log", [1, 20])
def test_an_idle_ledger_costs_less_than_a_kilobyte(ledgers_of_log: int) -> None:
    size = allocated_bytes(lambda: settled_ledgers(ledgers_of_log))
    assert size < LEDGER_COUNT * LEDGER_BYTES_MAX, f"{size / LEDGER_COUNT:.0f} bytes a ledger"


def test_ledgers_from_a_checkpoint_cost_no_more_than_those_that_grew() -> None:
    grown = settled_ledgers(1)
    snapshot = grown.snapshot()

    def restore() -> BookieCore:
        core = BookieCore(LIFE)
        core.restore(snapshot)
        return core

    size = allocated_bytes(restore)
    assert size < LEDGER_COUNT * LEDGER_BYTES_MAX, f"{size / LEDGER_COUNT:.0f} bytes a ledger"


def test_a_hot_entry_costs_eight_bytes_and_the_growth_of_arrays() -> None:
    def build() -> BookieCore:
        core = BookieCore(LIFE)
        ledger_id = ledger_of(LogId(1), Epoch(1))
        for entry in range(ENTRY_COUNT):
            core.on_recovered_add(ledger_id, EntryId(entry), NOTHING, 1 << 31, is_recovery=False)
        return core

    size = allocated_bytes(build)
    assert size < ENTRY_COUNT * ENTRY_BYTES_MAX, f"{size / ENTRY_COUNT:.1f} bytes an entry"


def test_a_ledger_whose_entries_are_settled_gives_their_memory_back() -> None:
    def build() -> BookieCore:
        core = BookieCore(LIFE)
        ledger_id = ledger_of(LogId(1), Epoch(1))
        entries = [EntryId(entry) for entry in range(ENTRY_COUNT)]
        for entry in entries:
            core.on_recovered_add(ledger_id, entry, NOTHING, 1 << 31, is_recovery=False)
        core.on_settled(ledger_id, entries[:-1])
        assert core.hot_entries(ledger_id) == [ENTRY_COUNT - 1]
        return core

    assert allocated_bytes(build) < 8 * LEDGER_BYTES_MAX


def test_dropped_ledgers_give_everything_back_but_the_mark() -> None:
    def build() -> BookieCore:
        core = settled_ledgers(LEDGER_COUNT)
        core.on_recovered_drop(LogId(1000), Epoch(300 + LEDGER_COUNT), True)
        assert core.list_ledgers() == []
        return core

    # A dictionary keeps the size of its table; nothing else may be left.
    assert allocated_bytes(build) < LEDGER_COUNT * 64
