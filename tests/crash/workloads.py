"""What is done to a storage engine while the power may go: one function per way of using it.

Each is a few dozen operations on the disk, small enough that the states of each can be counted, and
ends with the engine running. Between restarts the same entries are added again with other bytes
where they are known to be absent. Which workloads an engine is judged by is said in the tuples at
the end.

Called through a `Run` by `test_crash_states`, once to count and once to judge.
"""

from __future__ import annotations

import errno
from functools import partial

from duramen.ids import EntryId
from tests.crash.promises import ledger, make_addition
from tests.crash.runs import Run, Stop, Workload

FIRST = ledger(7, 3)
SECOND = ledger(8, 1)
NEXT = ledger(7, 4)


def small_commits(run: Run) -> None:
    """Entries, LACs and a seal, a few hundred bytes a commit, marks between; stop, start, more."""
    run.start()
    for entry in range(0, 8, 2):
        run.add(FIRST, [entry, entry + 1], size_bytes=1_100 + 90 * entry)
        if entry == 2:
            run.idle()
    run.lac(FIRST, 7)
    run.seal(7, 3)
    run.add(SECOND, [0], size_bytes=30)
    run.restart(Stop.CLEAN)
    run.add(SECOND, [1, 2, 3], size_bytes=1_500)
    run.idle()
    run.add(NEXT, [0], size_bytes=100)


def large_commits(run: Run) -> None:
    """Group commits of many entries of several ledgers: more sectors than can be enumerated."""
    run.start()
    for first in range(0, 12, 4):
        run.add_all(
            make_addition(ledger_id, entry, 900 + 100 * entry, lac=entry - 1)
            for entry in range(first, first + 4)
            for ledger_id in (FIRST, SECOND)
        )
    run.restart(Stop.KILL)
    run.add(FIRST, range(12, 20), size_bytes=800)


def rolling_files(run: Run) -> None:
    """Commits that fill file after file, one that is larger than a file, one just behind a roll."""
    run.start()
    for entry in range(9):
        run.add(FIRST, [entry], size_bytes=7_000)
        if entry == 5:
            run.idle()
    run.add(FIRST, [9], size_bytes=40_000)
    run.seal(7, 3)
    run.add(SECOND, [0, 1], size_bytes=3_000)


def many_starts(run: Run) -> None:
    """Every kind of stop, again and again, with a commit or nothing between."""
    run.start()
    entry = 0
    for round_, how in enumerate([*Stop, Stop.POWER, Stop.KILL, Stop.POWER, *Stop]):
        if round_ % 3 != 2:
            run.add(FIRST, [entry, entry + 1], size_bytes=1_400)
            entry += 2
        run.restart(how)
    run.add(SECOND, [0])


def lost_and_sent_again(run: Run) -> None:
    """The power goes in the middle of commits; what is absent then is added with other bytes."""
    run.start()
    run.add(FIRST, [0, 1])
    for version in range(1, 5):
        with run.cut_at("fdatasync"):
            run.add(FIRST, run.missing(FIRST, 3), size_bytes=1_300, version=version)
        run.restart(Stop.POWER)
        run.add(FIRST, run.missing(FIRST, 2), size_bytes=1_500, version=10 + version)
    run.restart(Stop.KILL)


def seals_alone(run: Run) -> None:
    """Nothing but seals and LACs, over every kind of stop."""
    run.start()
    run.seal(7, 2)
    run.restart(Stop.CLEAN)
    run.seal(7, 3)
    run.restart(Stop.POWER)
    run.lac(NEXT, 11)
    run.restart(Stop.KILL)
    run.seal(8, 1)
    run.idle()
    run.restart(Stop.POWER)


def write_back_of_recovery(run: Run) -> None:
    """Entries that recovery writes below a seal; they move no LAC."""
    run.start()
    run.add(FIRST, [0, 1, 2])
    run.seal(7, 3)
    run.add(FIRST, [5, 4, 3], is_recovery=True, size_bytes=1_600)
    run.restart(Stop.POWER)
    run.add(FIRST, [6], is_recovery=True)


def drops(run: Run) -> None:
    """Ledgers are dropped between adds to others, and stay so."""
    run.start()
    run.add(FIRST, [0, 1], size_bytes=1_700)
    run.add(NEXT, [0, 1], size_bytes=1_900)
    run.drop(7, 3)
    run.add(NEXT, [2])
    run.restart(Stop.POWER)
    run.drop(7, 4)
    run.add(SECOND, [0, 1], size_bytes=1_800)
    run.restart(Stop.CLEAN)


def failing_sync(run: Run) -> None:
    """A sync fails, once: nothing more is acknowledged, and the next start reads what is there."""
    run.start()
    for version, how in enumerate([Stop.KILL, Stop.POWER, Stop.KILL], start=1):
        run.add(FIRST, run.missing(FIRST, 2), version=version)
        with run.failing("fdatasync"):
            run.refuse(partial(run.add, FIRST, run.missing(FIRST, 7), version=version))
        run.refuse(partial(run.add, SECOND, [version]))
        run.refuse(partial(run.seal, 7, 3))
        run.restart(how)


def failing_write(run: Run) -> None:
    """A write fails after a part of it, a file cannot be made: as a failing sync."""
    run.start()
    run.add(FIRST, [0, 1])
    with run.failing("pwritev"):
        run.refuse(partial(run.add, FIRST, [2, 3], size_bytes=2_000))
    run.refuse(partial(run.add, SECOND, [0]))
    run.restart(Stop.KILL)
    run.add(NEXT, [0], size_bytes=2_000)
    with run.failing("create", errno.ENOSPC):
        run.refuse(partial(run.add, NEXT, [1], size_bytes=40_000))
    run.restart(Stop.POWER)
    run.add(NEXT, [2])


def settling(run: Run) -> None:
    """Files are settled and recycled again and again, while entries come and ledgers are sealed."""
    run.start()
    for entry in range(0, 24, 4):
        run.add(FIRST, [entry, entry + 1], size_bytes=5_000)
        run.add(SECOND, [entry], size_bytes=9_000)
        run.idle()
        if entry % 8 == 4:
            run.settle()
            run.add(FIRST, [entry + 2], size_bytes=200)
            run.idle()
    run.seal(7, 3)
    run.restart(Stop.CLEAN)
    run.settle()
    run.add(NEXT, [0])


def settling_and_starts(run: Run) -> None:
    """Every kind of stop between settling and the commits into a recycled file."""
    run.start()
    for round_, how in enumerate([Stop.POWER, Stop.KILL, Stop.POWER, Stop.KILL, Stop.POWER]):
        run.add(FIRST, run.missing(FIRST, 3), size_bytes=1_500)
        run.settle()
        run.idle()
        run.add(SECOND, run.missing(SECOND, 2), size_bytes=1_700, version=round_)
        with run.cut_at("fdatasync"):
            run.add(FIRST, run.missing(FIRST, 3), size_bytes=1_300, version=round_)
        run.restart(how)
    run.settle()


def metadata_only_checkpoint(run: Run) -> None:
    """A seal, a LAC, a drop, each settled with nothing else written."""
    run.start()
    run.add(NEXT, [0], size_bytes=100)
    run.settle()
    run.seal(7, 3)
    run.settle()
    run.restart(Stop.POWER)
    run.lac(SECOND, 5)
    run.settle()
    run.drop(7, 4)
    run.settle()
    run.restart(Stop.POWER)
    run.settle()


def drops_and_settling(run: Run) -> None:
    """Ledgers are dropped before and after they are settled, and others settled after that."""
    run.start()
    run.add(FIRST, [0, 1], size_bytes=1_900)
    run.add(NEXT, [0, 1], size_bytes=1_900)
    run.add(SECOND, [0], size_bytes=900)
    run.drop(7, 3)
    run.settle()
    run.drop(7, 4)
    run.add(SECOND, [1], size_bytes=900)
    run.settle()
    run.restart(Stop.POWER)
    run.settle()


def failing_settling(run: Run) -> None:
    """A sync fails while settling: the next start goes on from what is there."""
    run.start()
    for name, how in [("fsync", Stop.KILL), ("fsync_directory", Stop.POWER)]:
        run.add(FIRST, run.missing(FIRST, 3), size_bytes=1_500)
        run.settle()
        run.add(FIRST, run.missing(FIRST, 3), size_bytes=1_500)
        with run.failing(name):
            run.refuse(run.settle)
        run.restart(how)
    run.settle()


def compacting(run: Run) -> None:
    """Ledgers lie side by side in two entry log files, most are dropped, and the rest is rewritten;
    over two kinds of stop."""
    run.start()
    for log_id, how in enumerate([Stop.POWER, Stop.KILL], start=20):
        for epoch in range(1, 4):
            run.add(ledger(log_id, epoch), range(2), size_bytes=1_200)
            if epoch != 2:
                run.settle()
        run.drop(log_id, 1)
        run.drop(log_id, 2)
        run.compact()
        run.add(FIRST, run.missing(FIRST, 1))
        run.restart(how)
    run.compact()


def stored_again(run: Run) -> None:
    """Entries that are here, hot or settled, are stored again with LACs that rise: OK to the owner
    promises those, too (V2)."""
    run.start()
    entries = [make_addition(FIRST, entry, 700, lac=-1) for entry in (6, 7, 8)]
    run.add_all(entries)
    for lac in range(3):
        run.add_all(entry._replace(lac=EntryId(lac)) for entry in entries)
        if lac == 1:
            run.settle()
            run.idle()
    run.restart(Stop.POWER)
    run.add_all([entries[0]._replace(lac=EntryId(4)), make_addition(FIRST, 9, 500, lac=3)])
    run.restart(Stop.KILL)
    run.add_all([entries[1]._replace(lac=EntryId(5))])
    run.seal(7, 3)


ALWAYS: tuple[Workload, ...] = (
    small_commits, large_commits, rolling_files, many_starts, lost_and_sent_again, seals_alone,
    write_back_of_recovery, drops, failing_sync, failing_write,
)  # fmt: skip
"""Requests and stops alone: for every engine."""

SETTLING: tuple[Workload, ...] = (
    settling, settling_and_starts, metadata_only_checkpoint, drops_and_settling, failing_settling,
)  # fmt: skip
"""For engines that settle."""

COMPACTING: tuple[Workload, ...] = (compacting,)
"""For engines with an entry log."""

WITH_ENVELOPES: tuple[Workload, ...] = (
    small_commits, lost_and_sent_again, write_back_of_recovery, failing_sync, settling,
    settling_and_starts, compacting, stored_again,
)  # fmt: skip
"""For engines that keep envelopes."""
