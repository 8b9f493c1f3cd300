"""All three bookies lose power inside one commit that several producers share, each its own way.

Of the commit every disk keeps other sectors. After the restart none of the bookies is in doubt:
each holds an entry or vouches that it does not, so every recovery can close (R12, R15) and nothing
stays UNKNOWN. The simulator does this to whole clusters; here every disk's part is drawn anew some
hundred times, with what was acknowledged before known exactly.
"""

from __future__ import annotations

import random

import pytest

from duramen.core.quorum import Quorum, covers, write_set
from duramen.core.status import BookieStatus
from duramen.ids import BookieId, EntryId, Incarnation, Member
from duramen.limits import READ_BYTES_MAX
from duramen.wire.bookie_calls import ReadRange
from duramen_bookie.journal.writer import JournalPoisoned
from tests.crash.disk import Disk, Operation, PowerCut, crash_states
from tests.crash.promises import Addition, ledger, make_addition
from tests.crash.storage_engine import StorageEngine
from tests.tiers import sized

LEDGERS = [ledger(log_id, 1) for log_id in (7, 8, 9)]
MEMBERS = tuple(Member(BookieId(f"b{i}"), Incarnation("0" * 32)) for i in range(3))
QUORUM = Quorum(3, 3, 2)
ROUND_COUNT = sized(fast=20, gate=100, night=2_000)


def shared_commit(entry_id: int) -> list[Addition]:
    """One entry of each ledger, some sectors each, in one commit."""
    return [make_addition(ledger_id, entry_id, 1_700, lac=entry_id - 1) for ledger_id in LEDGERS]


def cut_in_commit(rng: random.Random, *, is_recycled: bool) -> Disk:
    """A bookie's disk after its power went while the shared commit was written."""
    disk = Disk(random.Random(1))
    engine = StorageEngine(disk)
    for entry_id in range(2):
        engine.add(shared_commit(entry_id))
    if is_recycled:
        engine.settle()
        engine.add([make_addition(ledger(99, 1), 0, 30_000)])
        engine.idle()
        engine.settle()

    def stop_at_sync(operation: Operation) -> None:
        if operation.name == "fdatasync":
            raise PowerCut(operation.name)

    disk.hook = stop_at_sync
    with pytest.raises(JournalPoisoned):
        engine.add(shared_commit(2))
    disk.hook = None
    engine.abandon()
    disk.give_up_handles()
    states = crash_states(disk, 40, rng)
    return states.make(rng.choice(list(states.choices())))


def ask(engine: StorageEngine, addition: Addition) -> BookieStatus:
    ledger_id, entry_id = addition.key
    plan = engine.core.plan(ReadRange(ledger_id, entry_id, EntryId(entry_id), READ_BYTES_MAX))
    readings, _ = engine.storage.select([plan])
    (answer,) = engine.storage.read(readings).answers
    if answer.entries:
        assert bytes(answer.entries[0][1]) == addition.body
    return answer.status


@pytest.mark.parametrize("is_recycled", [False, True], ids=["new file", "recycled file"])
def test_a_commit_torn_on_every_bookie_leaves_nobody_in_doubt(is_recycled: bool) -> None:
    rng = random.Random(3)
    torn_count = 0
    for _ in range(ROUND_COUNT):
        engines = [StorageEngine(cut_in_commit(rng, is_recycled=is_recycled)) for _ in MEMBERS]
        for addition in [*shared_commit(0), *shared_commit(1)]:
            assert [ask(engine, addition) for engine in engines] == [BookieStatus.OK] * 3
        for addition in shared_commit(2):
            answers = [ask(engine, addition) for engine in engines]
            assert set(answers) <= {BookieStatus.OK, BookieStatus.NO_ENTRY}, answers
            absent = [
                member
                for member, answer in zip(MEMBERS, answers, strict=True)
                if answer is BookieStatus.NO_ENTRY
            ]
            members = write_set(MEMBERS, QUORUM, addition.entry_id)
            is_proved_absent = covers(absent, (members,), QUORUM.ack_quorum)
            assert is_proved_absent or BookieStatus.OK in answers, "recovery could not decide"
            torn_count += 0 < len(absent) < 3
    assert torn_count, "no commit was torn in different ways"
