"""The owner of a log with `compression: zstd`: which entries it compresses, once, from when on.

Source: docs/protocol/write.md "Window and flush", ADR 0029.
"""

from __future__ import annotations

from dataclasses import replace

from duramen.config import LogConfig
from duramen.core.segment import Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.exactly_once.stamps import Stamp
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch
from duramen.limits import SNAPSHOT_BYTES
from duramen.units import MIB, SECOND
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.entry import check_entry, open_payload
from duramen.wire.record_batch import encode_batch
from tests.unit.core_fakes import FakeStore
from tests.unit.core_formatting import encode_plain_entry
from tests.unit.nodes import make_log
from tests.unit.sequencer_driver import Driver

LINES = encode_batch([b'{"sensor": 17, "state": "nothing happens here"}'] * 40, 5)


def make_driver(compression: str = "zstd") -> Driver:
    log = make_log()
    config = LogConfig.model_validate(log.config.to_json() | {"compression": compression})
    driver = Driver(FakeStore(replace(log, config=config)))
    driver.context.encode_control = lambda record: repr(record).encode() * 40
    driver.activate()
    return driver


def append(
    driver: Driver, append_id: int, batch: bytes = LINES, stamp: Stamp | None = None
) -> None:
    deadline_us = driver.now_us + 10 * SECOND
    driver.core.append(
        QueuedAppend(append_id, batch, 40, None, 5, deadline_us, stamp=stamp), driver.now_us
    )


def store(driver: Driver) -> list[bytes]:
    """All that is sent is stored; the payloads, one an entry."""
    payloads: dict[EntryId, bytes] = {}
    for add in driver.take(fx.SendAdd):
        assert payloads.setdefault(add.entry, add.payload) == add.payload
        epoch = Epoch(add.ledger_id & 0xFFFF_FFFF)
        driver.core.on_add(add.member, epoch, add.entry, BookieStatus.OK, driver.now_us)
    return list(payloads.values())


def test_an_entry_is_compressed_whole_and_its_totals_are_those_of_the_batches() -> None:
    driver, plain = make_driver(), make_driver("none")
    for append_id in range(3):
        append(driver, append_id)
        append(plain, append_id)
    found, meant = store(driver), store(plain)
    assert len(found) == len(meant)
    for one, other in zip(found, meant, strict=True):
        info = check_entry(one)
        assert info.is_compressed and not check_entry(other).is_compressed
        assert bytes(open_payload(one)) == bytes(open_payload(other))
        assert len(one) < len(other) and info.totals == check_entry(other).totals
    for each in (driver, plain):
        assert each.core.writer is not None
        assert each.core.writer.totals.length_bytes == 3 * len(LINES)


def test_a_log_without_compression_sends_what_it_always_did() -> None:
    driver = make_driver("none")
    append(driver, 1)
    (payload,) = store(driver)
    info = check_entry(payload)
    assert payload == encode_plain_entry(
        info.ledger_id, info.entry_id, Totals(), [LINES], 40, info.totals
    )


def test_what_a_client_compressed_is_passed_on_as_it_is() -> None:
    driver = make_driver()
    packed = encode_batch([b"again " * 4_000], 5, codec=Codec.ZSTD)
    append(driver, 1, packed)
    (payload,) = store(driver)
    assert not check_entry(payload).is_compressed and payload.endswith(packed)


def test_a_changed_configuration_is_in_force_with_the_next_entry() -> None:
    driver = make_driver("none")
    flags = []
    for version, compression in enumerate(("none", "zstd", "none"), 2):
        assert driver.core.view is not None
        config = driver.core.view.log.config.model_copy(update={"compression": compression})
        driver.core.on_config(config, version, driver.now_us)
        append(driver, version)
        flags += [check_entry(payload).is_compressed for payload in store(driver)]
    assert flags == [False, True, False]
    assert driver.core.writer is not None and driver.core.writer.segment.epoch == 1, "no roll"


def test_control_entries_stay_as_they_are() -> None:
    driver = make_driver()
    append(driver, 1, stamp=Stamp("who", 1, 0))
    (entry,) = store(driver)
    assert check_entry(entry).has_state and check_entry(entry).is_compressed
    driver.core.stop(driver.now_us)
    snapshots = [check_entry(payload) for payload in store(driver)]
    assert snapshots and all(one.is_control and not one.is_compressed for one in snapshots)


def test_a_resend_is_the_same_bytes() -> None:
    driver = make_driver()
    append(driver, 1)
    first = driver.take(fx.SendAdd)
    for add in first[:2]:
        driver.core.on_add(add.member, Epoch(1), add.entry, BookieStatus.OK, driver.now_us)
    late = first[2]
    driver.core.on_add(late.member, Epoch(1), late.entry, BookieStatus.TIMEOUT, driver.now_us)
    again: list[fx.SendAdd] = []
    for _ in range(20):
        driver.pass_time(SECOND // 2)
        again += driver.take(fx.SendAdd)
    assert again and {add.payload for add in again} == {late.payload}


def test_what_a_rebuild_has_to_decompress_is_what_makes_a_snapshot_due() -> None:
    """A zero compresses to nothing: of 64 MiB as stored a new owner would open some GiB."""
    driver = make_driver()
    zeros = encode_batch([bytes(MIB // 2)] * 2, 5)
    count = SNAPSHOT_BYTES // MIB
    written = 0
    for sequence in range(count):
        append(driver, sequence, zeros, Stamp("who", 1, sequence))
        infos = [(len(payload), check_entry(payload)) for payload in store(driver)]
        assert all(size < MIB // 100 for size, info in infos if not info.is_control)
        written += sum(info.is_control for _, info in infos)
    assert written >= 1
