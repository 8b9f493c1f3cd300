"""Appends of an epoch that its owner gave to recovery, until the closed segment says their fate.

A flexible entry that stays incomplete makes the owner take its own log over (R28), and so does a
lost member of a striped `out_of_order` segment. What it had sent is neither acknowledged nor lost
then: it is kept here, with the place that it had. The node of the segment, once it is CLOSED,
decides: at or below the end, no hole and not lost, it is acknowledged; in a hole or above the end
it was not appended, and `ordered` appends it again, before all that is queued and in its order;
`out_of_order` says so. In what is lost, or where the node cannot be read, it is uncertain. Whoever
was answered meanwhile is answered no more, and its append is never made again.

Invariant (see `validate`): held bytes are the sum over what is held.
Called by `append_pipeline`, `takeover` and `log_sequencer`. Source: docs/protocol/waves.md "The
owner takes its own log over", R28, R19.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from duramen.core.flexible.segment import AnySegment
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import Fail, ReadSegment
from duramen.core.sequencer.transmit import PlacedAppend, QueuedAppend, answer_placed
from duramen.ids import EntryId, Epoch

_UNREADABLE = "the closed segment's node could not be read"
_NOT_APPENDED = "it was not appended: too few bookies took it"


class StalledAppends:
    """What was sent in one epoch and is neither acknowledged nor failed.

    Args:
        ports: `put` takes the answers, and the question for the segment's node.
    """

    def __init__(self, ports: Ports) -> None:
        self.held_bytes = 0
        self._ports = ports
        self._epoch = Epoch(0)
        self._placed: dict[EntryId, list[PlacedAppend]] = {}
        self._following = Epoch(0)
        """Ours, in which they may be appended again."""
        self._token: int | None = None
        self._again: list[QueuedAppend] = []

    @property
    def held_count(self) -> int:
        """Appends whose fate is not known yet."""
        return sum(map(len, self._placed.values())) + len(self._again)

    @property
    def is_settled(self) -> bool:
        """Whether the fate of each is known."""
        return not self._placed

    def park(self, epoch: Epoch, placed: Mapping[EntryId, list[PlacedAppend]]) -> None:
        """The owner lets its epoch be recovered, with this under way."""
        assert self.is_settled and not self._again, self
        self._epoch, self._placed, self._token = epoch, {e: p for e, p in placed.items() if p}, None
        self._count()

    def ask(self, following: Epoch) -> None:
        """The epoch is closed, and `following` is ours: read what the node says, once."""
        if self.is_settled or self._token is not None:
            return
        self._following, self._token = following, self._ports.new_token()
        self._ports.put(ReadSegment(self._token, self._epoch))

    def on_segment(self, token: int, segment: AnySegment | None) -> None:
        """The node was read, or could not be; tokens of others are ignored."""
        if token != self._token:
            return
        self._token = None
        placed, self._placed = self._placed, {}
        if segment is None or segment.last_entry is None:
            self._fail(placed.values(), "append_uncertain", _UNREADABLE)
        else:
            for entry in sorted(placed):
                self._settle(entry, placed[entry], segment)
        self._count()

    def _settle(self, entry: EntryId, placed: list[PlacedAppend], segment: AnySegment) -> None:
        assert segment.last_entry is not None and segment.start_seq_num is not None, segment
        if segment.lost_at(entry) is not None:
            self._fail([placed], "append_uncertain", "the bookies that had it lost their disks")
        elif entry <= segment.last_entry and segment.absence_at(entry) is None:
            for answer in answer_placed(placed, self._epoch, entry, segment.start_seq_num):
                self._ports.put(answer)
        elif segment.ack_mode != "ordered":
            self._fail([placed], "not_appended", _NOT_APPENDED)
        elif self._following == self._epoch + 1:
            self._again += [one.append for one in placed]
        else:
            self._fail([placed], "log_unavailable", _NOT_APPENDED)

    def give_back(self) -> list[QueuedAppend]:
        """What is to be appended again, before all others, in its order."""
        appends, self._again = self._again, []
        self.held_bytes = 0
        return appends

    def expire(self, now_us: int) -> None:
        """Answer what waited past its deadline: whoever was answered is not appended again."""
        for entry, placed in self._placed.items():
            late = [one for one in placed if one.append.deadline_us <= now_us]
            self._fail([late], "append_uncertain", "not acknowledged in time")
            self._placed[entry] = [one for one in placed if one not in late]
        over = [append for append in self._again if append.deadline_us <= now_us]
        for append in over:
            self._ports.put(Fail(append.append_id, "log_unavailable", _NOT_APPENDED))
        self._again = [append for append in self._again if append not in over]
        self._count()

    def abandon(self, reason: str) -> None:
        """The log is another's, or we are fenced once more: nobody here learns the fate."""
        placed, self._placed, self._token = self._placed, {}, None
        self._fail(placed.values(), "append_uncertain", reason)
        self._count()

    def _count(self) -> None:
        held = [one.append for placed in self._placed.values() for one in placed]
        self.held_bytes = sum(len(append.batch) for append in [*held, *self._again])

    def _fail(self, entries: Iterable[list[PlacedAppend]], code: str, detail: str) -> None:
        for placed in entries:
            for one in placed:
                self._ports.put(Fail(one.append.append_id, code, detail))

    def validate(self) -> None:
        """Assert the invariant."""
        held = [one.append for placed in self._placed.values() for one in placed]
        assert self.held_bytes == sum(len(a.batch) for a in [*held, *self._again]), self

    def __repr__(self) -> str:
        return f"<stalled e{self._epoch} {list(self._placed)} again={len(self._again)}>"
