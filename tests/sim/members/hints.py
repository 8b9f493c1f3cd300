"""By what a sequencer takes a log from another, as the simulator knows it, for `hint_record`.

A claim follows a hint where the look at the owner did not end with a refused connection and the
log is taken all the same. That is noted here, beside the marks of the product, which are what is
judged; a mark falls when the product forgets its own, because something better than a hint came.

Used by `hosting` and `run`. Source: docs/protocol/members.md "What a confirmed suspicion does".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from duramen.core.ownership.hints import HintedLogs
from duramen.core.sequencer.effects import ReplaceOwner, Write
from duramen.ids import LogId
from duramen.runtime.stores.metadata_store import Create, DeleteNode, Op
from duramen.units import SECOND
from duramen.wire.metadata_json import read_node
from tests.sim.checkers import Checkers
from tests.sim.metadata import PATHS, StoreSession
from tests.sim.world import Node

_KEPT_US: Final = 60 * SECOND
"""How long the claims of who followed a hint follow it: as the page says."""


class HintMarks:
    """The logs that one life of a process takes, or took, by a hint."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._noted_us: dict[LogId, int] = {}
        self._claimed: dict[LogId, bool] = {}

    def note(self, log_id: LogId) -> None:
        """A hint makes this process take the log."""
        self._noted_us[log_id] = self._now_us()

    def forget(self, log_id: LogId) -> None:
        """There is a better reason."""
        self._noted_us.pop(log_id, None)

    def on_commit(self, log_id: LogId, writes: Sequence[Write]) -> None:
        """A change of the log is proposed: where it claims the log, by what."""
        if any(isinstance(write, ReplaceOwner) and write.epoch is not None for write in writes):
            noted_us = self._noted_us.get(log_id)
            self._claimed[log_id] = noted_us is not None and self._now_us() < noted_us + _KEPT_US

    def is_claimed_by_hint(self, log_id: LogId) -> bool:
        """Whether the last claim that was proposed follows a hint."""
        return self._claimed.get(log_id, False)


class MarkedHints(HintedLogs):
    """The marks of the product; what they forget is forgotten in `HintMarks`, too."""

    def __init__(self, marks: HintMarks) -> None:
        super().__init__()
        self._marks = marks

    def forget(self, log_id: LogId) -> None:
        """As in the product."""
        self._marks.forget(log_id)
        super().forget(log_id)


class Claimant(Protocol):
    """What is asked of a sequencer process."""

    marks: HintMarks


class _Removed(NamedTuple):
    owner: str
    zxid: int


class OwnerWatch:
    """Every owner node that is put, told to the checkers.

    Args:
        sequencers: the processes, by name.
    """

    def __init__(
        self, log_count: int, sequencers: Mapping[str, Claimant], checkers: Checkers
    ) -> None:
        self._log_ids = {PATHS.owner(LogId(i + 1)): LogId(i + 1) for i in range(log_count)}
        self._sequencers = sequencers
        self._checkers = checkers
        self._removed: dict[LogId, _Removed] = {}

    def on_applied(self, op: Op, before: bytes | None, session: StoreSession) -> None:
        """An operation of a commit was applied; what removes a node comes before what puts one."""
        log_id = self._log_ids.get(op.path)
        if log_id is None:
            return
        zxid = session.store.zxid
        if isinstance(op, DeleteNode) and before is not None:
            self._removed[log_id] = _Removed(read_node(before)["sequencer"], zxid)
        elif isinstance(op, Create):
            removed = self._removed.pop(log_id, None)
            is_at_once = removed is not None and removed.zxid == zxid
            self._put(log_id, session.node, removed.owner if removed and is_at_once else None)

    def _put(self, log_id: LogId, author: Node, replaced: str | None) -> None:
        by_hint = self._sequencers[author.name].marks.is_claimed_by_hint(log_id)
        self._checkers.on_owner(log_id, author.name, replaced, by_hint=by_hint)
        if by_hint and replaced not in (None, author.name):
            author.world.note(author.name, "takes by a hint", log_id, replaced)
            author.world.counts["log taken by a hint"] += 1
