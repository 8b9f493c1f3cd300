"""Ids of metadata logs: the top bit, at the edges of every format, and where clients never see it.

Source: docs/protocol/metadata-logs.md "Words", docs/protocol/wire.md "Identities".
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import (
    LAST_EPOCH,
    LAST_LOG_ID,
    EntryId,
    Epoch,
    LedgerId,
    LogId,
    described_by,
    epoch_of,
    is_log_id,
    is_metadata_log,
    ledger_of,
    log_of,
    metadata_log_of,
)
from duramen.wire import bookie_calls, repair_calls
from duramen.wire.cold.paths import log_folder, parse_path
from duramen.wire.metadata_json import MetadataJsonError, Paths, encode_tombstone, read_tombstone
from duramen_sequencer.log_changes import read_log_id as read_requested_log_id
from duramen_writeproxy.logs.names import read_log_id as read_named_log_id
from tests.unit.bookie_driver import LIFE, Driver, row, seal, span

LOG = metadata_log_of(LogId(7))
LEDGER = ledger_of(LOG, Epoch(3))
LAST_LEDGER = ledger_of(metadata_log_of(LAST_LOG_ID), LAST_EPOCH)

log_ids = st.integers(1, LAST_LOG_ID).map(LogId)
epochs = st.integers(1, LAST_EPOCH).map(Epoch)


@given(log_ids, epochs)
def test_a_metadata_log_is_a_log_of_its_own(log_id: LogId, epoch: Epoch) -> None:
    metadata_log = metadata_log_of(log_id)
    assert is_metadata_log(metadata_log) and not is_metadata_log(log_id)
    assert described_by(metadata_log) == log_id
    ledger_id = ledger_of(metadata_log, epoch)
    assert (log_of(ledger_id), epoch_of(ledger_id)) == (metadata_log, epoch)
    assert ledger_id != ledger_of(log_id, epoch) and ledger_id < 1 << 64


def test_a_metadata_log_has_none_of_its_own() -> None:
    with pytest.raises(AssertionError):
        metadata_log_of(LOG)
    with pytest.raises(AssertionError):
        described_by(LogId(7))


def test_ids_end_where_32_bits_end() -> None:
    edges = [0, 1, LAST_LOG_ID, 1 << 31, (1 << 31) + 1, (1 << 32) - 1, 1 << 32, -1, -(1 << 31)]
    assert [number for number in edges if is_log_id(number)] == [
        1, LAST_LOG_ID, (1 << 31) + 1, (1 << 32) - 1,
    ]  # fmt: skip
    assert metadata_log_of(LAST_LOG_ID) == (1 << 32) - 1
    assert LAST_LEDGER == (1 << 64) - 1


# --- Bookies -------------------------------------------------------------------------------------


def test_a_bookie_keeps_a_metadata_log_as_any_log() -> None:
    driver = Driver()
    driver.stored(row(0, ledger=LEDGER))
    sealed = driver.seal(seal(3, ledger=LEDGER)._replace(log_id=LOG))
    driver.persist()
    refused = driver.add(row(1, ledger=LEDGER))
    others = driver.add(row(0))
    driver.persist()
    assert driver.answers[refused] == [BookieStatus.SEALED]
    assert driver.answers[others] == [BookieStatus.OK], "log 7 itself is not sealed"
    assert driver.answers[sealed]
    assert driver.plan(driver.read(span(0, ledger=LEDGER))).status is BookieStatus.OK
    driver.core.drop(LOG, Epoch(4), is_all_below=True)
    driver.drain()
    driver.persist()
    assert driver.plan(driver.read(span(0, ledger=LEDGER))).status is BookieStatus.GONE


# --- Bytes and paths -----------------------------------------------------------------------------


def test_frames_carry_the_last_ledger() -> None:
    seals = [bookie_calls.Seal(log_of(LAST_LEDGER), LAST_EPOCH, LAST_LEDGER)]
    assert bookie_calls.parse_seals(bookie_calls.pack_seals(LIFE, seals)) == (LIFE, seals)
    lacs = [bookie_calls.LacUpdate(LAST_LEDGER, EntryId(5), True)]
    assert bookie_calls.parse_lacs(bookie_calls.pack_lacs(LIFE, lacs)) == (LIFE, lacs)
    wanted = [span(0, 9, ledger=LAST_LEDGER)]
    assert bookie_calls.parse_reads(bookie_calls.pack_reads(LIFE, wanted)) == (LIFE, wanted)
    asked = repair_calls.mark_question(LAST_LEDGER)
    spelt = repair_calls.pack_inventory(LIFE, asked)
    assert repair_calls.parse_inventory(spelt) == (LIFE, asked)


def test_its_nodes_lie_beside_those_of_all_logs() -> None:
    paths = Paths("c1")
    assert paths.log(LOG) == "/duramen/c1/logs/8000/0007"
    assert paths.segment(log_of(LAST_LEDGER), LAST_EPOCH).endswith("/ffff/ffff/segments/4294967295")
    assert paths.queued(LAST_LEDGER).endswith("/18446744073709551615")


def test_it_can_be_buried() -> None:
    assert read_tombstone(encode_tombstone([LOG])) == (LOG,)


# --- Hidden --------------------------------------------------------------------------------------


def test_no_name_and_no_call_of_a_client_leads_to_it() -> None:
    with pytest.raises(DuramenError, match="no log id"):
        read_requested_log_id({"log_id": str(LOG)})
    with pytest.raises(MetadataJsonError, match="no log id"):
        read_named_log_id({"log_id": str(LOG)})


def test_the_archive_has_no_place_for_it() -> None:
    with pytest.raises(AssertionError):
        log_folder("0" * 32, LOG)
    path = f"v1/{'0' * 32}/{LOG:08x}/e0000000001/manifest.json"
    assert parse_path(path) is None


def test_what_a_journal_says_of_it_is_recovered() -> None:
    driver = Driver()
    driver.core.on_recovered_seal(LOG, Epoch(9))
    driver.core.on_recovered_drop(LOG, Epoch(2), is_all_below=True)
    assert driver.core.sealed_epoch(LOG) == 9
    assert driver.core.sealed_epoch(described_by(LOG)) == 0
    below = ledger_of(LOG, Epoch(1))
    assert driver.plan(driver.read(span(0, ledger=below))).status is BookieStatus.GONE


def test_the_metadata_log_of_no_log_is_no_ledger() -> None:
    driver = Driver()
    request = driver.add(row(0, ledger=LedgerId(1 << 63 | 1)))
    assert driver.answers[request] == [BookieStatus.INVALID]
