"""The window of a feed (`core.reading`): what a reader at a position is told, and when to refuse.

Source: docs/protocol/reading.md "Long polls".
"""

from hypothesis import given
from hypothesis import strategies as st

from duramen.core.reading.feed_window import TAKE_COUNT_MAX, FeedWindow
from duramen.ids import EntryId, Epoch


def at(epoch: int, entry: int) -> tuple[Epoch, EntryId]:
    return Epoch(epoch), EntryId(entry)


def add(window: FeedWindow, epoch: int, *entries: int) -> None:
    window.add(Epoch(epoch), 100 * epoch, [EntryId(entry) for entry in entries])


def take(window: FeedWindow, epoch: int, entry: int) -> list[tuple[int, int]] | None:
    found = window.take(at(epoch, entry))
    return None if found is None else [(e.epoch, e.entry_id) for e in found]


def test_who_waits_is_told_what_follows_and_nothing_of_what_it_has() -> None:
    window = FeedWindow(at(1, 5))
    assert take(window, 1, 5) == [] and take(window, 2, 0) == []
    add(window, 1, 5, 6, 8)  # 7 is a hole
    assert take(window, 1, 5) == [(1, 5), (1, 6), (1, 8)]
    assert take(window, 1, 7) == [(1, 8)]
    assert take(window, 1, 9) == [] == take(window, 2, 3), "it knows more than the feed"
    assert take(window, 1, 4) is None, "what came before was never here"
    assert window.end == at(1, 9)


def test_one_answer_is_of_one_segment() -> None:
    window = FeedWindow(at(1, 0))
    add(window, 1, 0)
    add(window, 2, 0, 1)
    assert take(window, 1, 0) == [(1, 0)]
    assert take(window, 1, 1) == [(2, 0), (2, 1)]
    found = window.take(at(2, 0))
    assert found and found[0].start_seq_num == 200


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 7))
def test_every_position_is_fed_whole_or_refused(steps: list[int], count_max: int) -> None:
    """0 begins an epoch; 1 to 3 step over as many entries."""
    window = FeedWindow(at(1, 0), count_max)
    epoch, entry, everything = 1, 0, []
    for step in steps:
        epoch, entry = (epoch + 1, 0) if step == 0 else (epoch, entry + step)
        add(window, epoch, entry)
        everything.append((epoch, entry))
        entry += 1
    assert len(window) == min(len(everything), count_max)
    for position in [(1, 0), *everything, (epoch, entry)]:
        following = [e for e in everything if e >= position]
        found = take(window, *position)
        is_there = position >= window.begin
        assert (found is not None) == is_there
        if found is None:
            assert len(following) > len(window)
        else:
            same = [e for e in following if e[0] == following[0][0]] if following else []
            assert found == same[:TAKE_COUNT_MAX]
