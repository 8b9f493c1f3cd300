"""Mutants of readers: where the tail is, what is read up to it, what followers are given, and where
positions lie.

Part of `tests.sim.mutants`. Source: docs/protocol/reading.md.
"""

from __future__ import annotations

from typing import Any, Final

from duramen.ids import EntryId
from duramen.runtime.reading import bookies
from duramen.runtime.reading.log_reader import LogCursor
from duramen.runtime.reading.positioning.record_search import Key, SearchTarget
from duramen.runtime.reading.tail import Tail, TailFinder
from duramen_readproxy.following.feed import LogFeed
from duramen_readproxy.following.record_reader import RecordReader
from tests.sim.mutants.mutant import Mutant

_share_round = TailFinder._share_round
_join_feed = RecordReader._join_feed


async def _believe_what_is_stored(
    _self: TailFinder, _follower: Any, segment: Any, _config: Any, answers: Any
) -> tuple[EntryId, bool]:
    first_entry = segment.last_fragment.first_entry
    return EntryId(max([first_entry - 1, *(marks.highest for marks in answers.values())])), True


def _join_the_running_round(self: TailFinder, follower: Any) -> Any:
    running = self._running.get(follower.log_id)
    return _share_round(self, follower) if running is None else running


async def _end_where_the_end_was_first(self: LogCursor, tail: Tail) -> bool:
    self._found = tail
    return bool(self._ready)


def _join_at_the_end_of_the_feed(self: RecordReader, seq_num: int) -> LogFeed:
    feed = _join_feed(self, seq_num)
    self._position = max(self._position, feed.window.end)
    return feed


def _take_as_it_is(answer: Any, _wanted: Any) -> Any:
    entries = [(entry_id, bytes(body)) for entry_id, body in answer.entries]
    return answer._replace(entries=entries)


def _is_passed(self: SearchTarget, totals: Any) -> bool:
    greatest = totals.max_txid if self.key is Key.TXID else totals.max_timestamp_ms
    return greatest is not None and greatest > self.number


MUTANTS: Final[dict[str, Mutant]] = {
    "tail-at-what-is-stored": Mutant(
        "L1", "a tail lies beyond the LAC, behind what recovery may still cut off",
        ((TailFinder, "_judge", _believe_what_is_stored),),
    ),
    "tail-of-a-round-under-way": Mutant(
        "L1", "who asks for the tail is given what somebody else was about to find",
        ((TailFinder, "_share_round", _join_the_running_round),),
    ),
    "read-to-the-end-that-was-known-first": Mutant(
        "D1", "a reader that is told the tail ends below it and says that this is the end",
        ((LogCursor, "on_tail", _end_where_the_end_was_first),),
    ),
    "feed-joined-at-its-end": Mutant(
        "G1", "who joins a feed misses what lies between itself and the feed's end",
        ((RecordReader, "_join_feed", _join_at_the_end_of_the_feed),),
    ),
    "damage-shown-to-readers": Mutant(
        "reading.md", "what a bookie gives is shown without its checksum",
        ((bookies, "verify_read", _take_as_it_is),),
    ),
    "position-behind-its-time": Mutant(
        "reading.md", "a time leads to the first record that is later",
        ((SearchTarget, "is_reached", _is_passed),),
    ),
}  # fmt: skip
