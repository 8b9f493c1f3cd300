"""A task's rows are in the log once, whoever tries how often, and in which order they come.

On a log in memory that takes sequences as the protocol says, without Spark. Attempts that run at
the same time are interleaved at each of their appends by a seeded choice; all that must hold is
that the log has every row once, and that other rows are found.
Source: docs/protocol/rest.md "Append", docs/spark.md.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from duramen.client.rest_client import Appended
from duramen.errors import DuramenError
from pyspark_duramen.writing.delivery import RowDelivery
from pyspark_duramen.writing.rows import Row, find_key

ROWS = [Row(b"row %d" % (n % 50), ((b"n", b"%d" % (n % 50)),)) for n in range(60)]
"""Ten of them twice: rows need not differ."""

BATCH_BYTES = 70


class Died(Exception):
    """The attempt ends here, without a trace."""


class MemoryLog:
    """The batches of one producer and epoch, and who may append next."""

    def __init__(self) -> None:
        self.batches: list[list[Row]] = []
        self.is_forgetful = False

    def append(self, sequence: int, rows: list[Row]) -> Appended:
        if sequence > len(self.batches):
            raise DuramenError("producer_gap", f"{len(self.batches)} is next")
        is_duplicate = sequence < len(self.batches)
        if not is_duplicate:
            self.batches.append(list(rows))
        if is_duplicate and self.is_forgetful:
            return Appended(None, None, "", True)
        start = sum(map(len, self.batches[:sequence]))
        return Appended(start, start + len(self.batches[sequence]), "", is_duplicate)

    def read_back(self, sequence: int, appended: Appended) -> list[Row]:
        assert appended.is_duplicate
        return self.batches[sequence]

    def count_batches(self) -> int:
        return len(self.batches)

    def rows(self) -> Counter[Row]:
        return Counter(row for batch in self.batches for row in batch)


class DyingPort(MemoryLog):
    """The same log for one attempt, which dies at an append: before it, or after."""

    def __init__(self, log: MemoryLog, at: int, *, is_stored: bool) -> None:
        self._log, self._at, self._is_stored = log, at, is_stored
        self.batches = log.batches

    def append(self, sequence: int, rows: list[Row]) -> Appended:
        self._at -= 1
        if self._at < 0:
            if self._is_stored:
                self._log.append(sequence, rows)
            raise Died
        return self._log.append(sequence, rows)


def deliver(port: MemoryLog, rows: list[Row]) -> RowDelivery:
    delivery = RowDelivery(port, BATCH_BYTES, name="test")
    for begin in range(0, len(rows), 7):
        delivery.add(rows[begin : begin + 7])
    delivery.finish()
    return delivery


def test_rows_are_cut_into_batches_by_their_order_alone() -> None:
    one, two = MemoryLog(), MemoryLog()
    deliver(one, ROWS)
    whole = RowDelivery(two, BATCH_BYTES, name="test")
    whole.add(ROWS)
    whole.finish()
    assert one.batches == two.batches
    assert len(one.batches) > 5
    assert [row for batch in one.batches for row in batch] == ROWS


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("is_forgetful", [True, False])
@pytest.mark.parametrize("order", ["same", "other"])
def test_a_task_that_dies_at_any_append_is_completed_by_the_next_one(
    is_stored: bool, is_forgetful: bool, order: str
) -> None:
    count = len(ROWS) * 15 // BATCH_BYTES
    for at in range(count):
        log = MemoryLog()
        log.is_forgetful = is_forgetful
        with pytest.raises(Died):
            deliver(DyingPort(log, at, is_stored=is_stored), ROWS)
        there = log.rows()
        again = list(ROWS)
        if order == "other":
            random.Random(at).shuffle(again)
        done = deliver(log, again)
        assert log.rows() == Counter(ROWS)
        assert done.repeated_count == there.total()


@pytest.mark.parametrize("seed", range(40))
def test_attempts_at_the_same_time_write_each_row_once(seed: int) -> None:
    """Three attempts, each with its own order of the rows, or two with the same."""
    log = MemoryLog()
    rng = random.Random(seed)
    orders = [list(ROWS) for _ in range(3)]
    if seed % 4:
        for order in orders:
            rng.shuffle(order)
    turns = Turns(rng, len(orders))
    attempts = [
        threading.Thread(target=turns.run, args=(index, log, order))
        for index, order in enumerate(orders)
    ]
    for attempt in attempts:
        attempt.start()
    for attempt in attempts:
        attempt.join(30)
    assert turns.faults == []
    assert log.rows() == Counter(ROWS)


class Turns:
    """Lets one of several attempts run at a time, each up to its next call of the log."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self._rng = rng
        self._left = set(range(count))
        self._changed = threading.Condition()
        self._turn = 0
        self.faults: list[BaseException] = []

    def run(self, index: int, log: MemoryLog, rows: list[Row]) -> None:
        try:
            self.wait(index)
            deliver(TurningPort(log, lambda: self.wait(index)), rows)
        except BaseException as error:
            self.faults.append(error)
        with self._changed:
            self._left.discard(index)
            self._pass_on()

    def wait(self, index: int) -> None:
        with self._changed:
            if self._turn == index:
                self._pass_on()
            self._changed.wait_for(lambda: self._turn == index, 30)

    def _pass_on(self) -> None:
        if self._left:
            self._turn = self._rng.choice(sorted(self._left))
        self._changed.notify_all()


class TurningPort(MemoryLog):
    def __init__(self, log: MemoryLog, wait: Callable[[], None]) -> None:
        self._log, self._wait = log, wait
        self.batches = log.batches

    def append(self, sequence: int, rows: list[Row]) -> Appended:
        self._wait()
        return self._log.append(sequence, rows)

    def read_back(self, sequence: int, appended: Appended) -> list[Row]:
        self._wait()
        return self._log.read_back(sequence, appended)


def test_rows_that_the_repeated_task_does_not_have_are_found() -> None:
    log = MemoryLog()
    with pytest.raises(Died):
        deliver(DyingPort(log, 3, is_stored=True), ROWS)
    other = [row._replace(body=row.body + b"!") for row in ROWS]
    with pytest.raises(DuramenError, match="its input is another than it was") as caught:
        deliver(log, other)
    assert caught.value.code == "condition_failed"


def test_batches_behind_the_last_row_of_a_shorter_task_are_found() -> None:
    log = MemoryLog()
    deliver(log, ROWS)
    with pytest.raises(DuramenError, match="batches after 2"):
        deliver(log, [row for batch in log.batches[:3] for row in batch])


def test_rows_with_and_without_txid_or_time_are_not_in_one_batch() -> None:
    log = MemoryLog()
    rows = [Row(b"a"), Row(b"b", txid=1), Row(b"c", txid=2), Row(b"d", timestamp_ms=5), Row(b"e")]
    deliver(log, rows)
    assert log.batches == [rows[:1], rows[1:3], rows[3:4], rows[4:]]


def test_equal_records_alone_have_one_key() -> None:
    rows = [
        (b"a", (), None, None),
        (b"a", ((b"", b""),), None, None),
        (b"a", ((b"x", b"y"),), None, None),
        (b"ax", ((b"", b"y"),), None, None),
        (b"a", (), 0, None),
        (b"a", (), None, 0),
    ]
    assert len({find_key(*row) for row in rows}) == len(rows)
