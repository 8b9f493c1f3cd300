"""What one answer takes of the batches that are offered to it: where it stops, and why.

Answers as clients see them are in `tests/component/test_readproxy.py`; here a bound is made small.
"""

import pytest

from duramen.ids import Dlsn, EntryId, Epoch
from duramen.runtime.reading.positioning.positions import Start
from duramen.wire.read_answers import PlacedBatch
from duramen.wire.record_batch import encode_batch
from duramen_readproxy import answers
from duramen_readproxy.answers import BatchPick, Bounds, RecordPick

START = Start(Epoch(1), EntryId(0), 0)


def batch(number: int, size_bytes: int = 10) -> PlacedBatch:
    """A batch of one record, which is also the only one of its entry."""
    encoded = encode_batch([bytes(size_bytes)], 1_000)
    return PlacedBatch(Dlsn(Epoch(1), EntryId(number), 0), number, 1, encoded)


def test_a_binary_answer_has_so_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "BATCH_COUNT_MAX", 2)
    pick = BatchPick(START, Bounds(None, None, None))
    assert pick.offer(batch(0)) and not pick.is_full
    assert pick.offer(batch(1)) and pick.is_full
    assert pick.next_seq_num == 2


def test_an_answer_does_not_pass_its_bytes_but_with_its_first_record() -> None:
    pick = RecordPick(START, Bounds(None, 25, None), is_base64=False)
    assert pick.offer(batch(0)) and pick.offer(batch(1))
    assert not pick.offer(batch(2)) and pick.next_seq_num == 2
    large = RecordPick(START, Bounds(None, 25, None), is_base64=False)
    assert large.offer(batch(0, size_bytes=90)) and not large.offer(batch(1))


def test_an_answer_tells_of_so_many_holes_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "GAP_COUNT_MAX", 2)
    for pick in (
        BatchPick(START, Bounds(None, None, None)),
        RecordPick(START, Bounds(None, None, None), is_base64=False),
    ):
        pick.pass_hole({"kind": "hole"}, 3)
        assert (pick.is_empty, pick.is_full, pick.wanted_seq_num) == (False, False, 3)
        pick.pass_hole({"kind": "hole"}, 5)
        assert (pick.is_full, pick.next_seq_num) == (True, 5)
