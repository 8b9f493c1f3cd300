"""One bit of a cleanly stopped bookie flips, anywhere: it starts, and never says what is wrong.

Journal, entry log file, index and both copies of the checkpoint, each with something that only it
holds. After the flip every answer is right, UNKNOWN or doubt: no other bytes, no denial of what was
acknowledged, no seal that is gone. Flips where nothing stands (zeros that are never looked at) are
among them. The gate tries 1,500, the more the more meaningful the bytes are;
DURAMEN_BIT_FLIPS=all tries every bit, a number so many.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from duramen.core.bookie.bookie_state import AddRow
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId
from duramen.limits import READ_BYTES_MAX
from duramen.wire.bookie_calls import ReadRange
from duramen.wire.flexible.envelope import encode_content
from tests.crash.disk import Disk
from tests.crash.envelope_engine import EnvelopeEngine, envelope_of
from tests.crash.promises import Key, ledger, make_addition
from tests.crash.storage_engine import INCARNATION, StorageEngine
from tests.tiers import sized

FLIP_COUNT = os.environ.get("DURAMEN_BIT_FLIPS", str(sized(fast=150, gate=1_500, night=15_000)))
SETTLED, HOT, SEALED = ledger(7, 3), ledger(8, 1), ledger(9, 2)


def prepare(open_engine: type[StorageEngine]) -> tuple[Disk, dict[Key, bytes]]:
    """A stopped bookie's disk, and what it acknowledged."""
    disk = Disk(random.Random(1))
    engine = open_engine(disk)
    kept: dict[Key, bytes] = {}

    def add(ledger_id: LedgerId, entry_count: int, size_bytes: int) -> None:
        adds = [make_addition(ledger_id, n, size_bytes, lac=n - 1) for n in range(entry_count)]
        engine.add(adds)
        kept.update({each.key: each.body for each in adds})

    add(SETTLED, 6, 300)
    add(SEALED, 2, 200)
    engine.seal(SEALED >> 32, SEALED & 0xFFFF_FFFF)  # type: ignore[arg-type]
    engine.settle()
    add(HOT, 5, 250)
    engine.stop()
    return disk, kept


def judge(engine: StorageEngine, kept: dict[Key, bytes]) -> list[str]:
    """What the bookie says that it may not, and what became of the kept entries."""
    fates: list[str] = []
    for (ledger_id, entry_id), body in kept.items():
        status, found = _read(engine, ledger_id, entry_id)
        if found is not None and found != body:
            raise AssertionError(f"entry {entry_id} of {ledger_id} is served with other bytes")
        assert found is not None or status is BookieStatus.UNKNOWN, (ledger_id, entry_id, status)
        fates.append(status.name)
        if isinstance(engine, EnvelopeEngine) and found is not None:
            own = encode_content(envelope_of((ledger_id, entry_id), body))
            content = engine.find_content((ledger_id, entry_id))
            assert content in (None, own), "V11: another's envelope"
            fates.append("own envelope" if content else "no envelope")
    for ledger_id in (SETTLED, HOT, SEALED):
        status, found = _read(engine, ledger_id, EntryId(40))
        assert found is None and status is not BookieStatus.OK, "nobody added this"
    row = make_addition(SEALED, 9, 100)
    request = engine._open()
    engine.core.on_adds(request, INCARNATION, [AddRow(SEALED, EntryId(9), row.lac, 1, False, True)])
    (status,) = _statuses(engine)
    assert status is not BookieStatus.OK, "the seal is gone"
    return fates


def _read(
    engine: StorageEngine, ledger_id: LedgerId, entry_id: EntryId
) -> tuple[BookieStatus, bytes | None]:
    plan = engine.core.plan(ReadRange(ledger_id, entry_id, entry_id, READ_BYTES_MAX))
    readings, _ = engine.storage.select([plan])
    result = engine.storage.read(readings)
    for unreadable in result.unreadable:
        engine.core.on_unreadable(*unreadable)
    (answer,) = result.answers
    return answer.status, bytes(answer.entries[0][1]) if answer.entries else None


def _statuses(engine: StorageEngine) -> list[BookieStatus]:
    """Of the adds that were just given to the core; UNKNOWN asks for a proof, which has no say."""
    for effect in engine.core.outbox:
        statuses = getattr(effect, "statuses", None)
        if statuses is not None:
            return list(statuses)
    return [BookieStatus.OK]  # it waits for the disk: it was accepted


def pick_flips(disk: Disk, rng: random.Random) -> list[tuple[str, int]]:
    """(path, bit), three in four of them where something other than zeros stands."""
    paths = disk.list_files()
    every = [(path, bit) for path in paths for bit in range(8 * disk.size_bytes(path))]
    if FLIP_COUNT == "all":
        return every
    used = [
        (path, 8 * at + bit)
        for path in paths
        for at, byte in enumerate(bytes(disk.inode(path).device()))
        if byte
        for bit in range(8)
    ]
    count = int(FLIP_COUNT)
    used_count = min(len(used), count - count // 4)
    return rng.sample(used, used_count) + rng.sample(every, count - used_count)


@pytest.mark.timeout(36_000 if FLIP_COUNT == "all" else 300 + int(FLIP_COUNT) // 20)
@pytest.mark.parametrize("open_engine", [StorageEngine, EnvelopeEngine])
def test_no_flipped_bit_makes_a_bookie_lie(
    open_engine: type[StorageEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    disk, kept = prepare(open_engine)
    fates: Counter[str] = Counter()
    flips = pick_flips(disk, random.Random(5))
    for path, bit in flips:
        flipped = disk.copy()
        flipped.flip_bit(path, bit)
        try:
            fates.update(judge(open_engine(flipped), kept))
        except Exception as error:
            raise AssertionError(f"bit {bit} of {path}: {error!r}") from error
    with capsys.disabled():
        print(f"\nbit flips: {len(flips):,}, answers afterwards: {dict(fates)}")
    assert fates["UNKNOWN"], "no flip hurt anything: nothing was proved"
    assert fates["OK"] > fates["UNKNOWN"]
    if open_engine is EnvelopeEngine:
        assert fates["own envelope"] > fates["no envelope"] > 0
