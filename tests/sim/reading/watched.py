"""The production drivers of readers, watched: what checkers must know is read off them.

A follower of a log carries who is told; cursors, which feeds and readers make by name (`clock`
binds that name), tell of it what their cores learn: LACs, gaps, what is skipped. Bookies tell what
each of them said of a LAC. Nothing is decided here.

Made by `proxy`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from duramen.core.reading.effects import CancelRead, Effect, Gap, Skip
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, LedgerId, LogId, Member, ledger_of
from duramen.runtime.metadata_log.segment_nodes import SegmentNodes
from duramen.runtime.reading.bookies import Bookies
from duramen.runtime.reading.log_reader import LogCursor
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.bookie_calls import ReadAnswer, ReadRange
from tests.sim.metadata import PATHS
from tests.sim.processes import BookieNode
from tests.sim.world import World

_HEARD = (BookieStatus.OK, BookieStatus.NO_ENTRY)


class History(Protocol):
    """What is told of readers."""

    def new_reader(self) -> int: ...

    def on_reader_lac(self, reader: int, ledger_id: LedgerId, lac: EntryId) -> None: ...

    def on_skip(self, reader: int, log_id: LogId, epoch: Epoch, entry_id: EntryId) -> None: ...

    def bookie_lac(self, reader: int, member: Member, ledger_id: LedgerId) -> EntryId: ...

    def on_bookie_lac(
        self, reader: int, member: Member, ledger_id: LedgerId, lac: EntryId,
        floor: EntryId | None = None,
    ) -> None: ...  # fmt: skip


class WatchedFollower(LogFollower):
    """The metadata of one log in one process, and what its cursors may show of each segment."""

    def __init__(
        self,
        world: World,
        store: MetadataStore,
        log_id: LogId,
        segment_nodes: SegmentNodes,
        history: History,
    ) -> None:
        super().__init__(store, PATHS, log_id, segment_nodes)
        self.world = world
        self.history = history
        self.bounds: dict[Epoch, EntryId] = {}
        """The highest that any cursor of this process has shown, or may show."""


class WatchedCursor(LogCursor):
    """One cursor; a reader of its own to the checkers."""

    def __init__(self, follower: LogFollower, *args: Any) -> None:
        self._told: tuple[Epoch, EntryId] = (Epoch(0), NOTHING)
        self._watch = cast(WatchedFollower, follower)
        self._number = self._watch.history.new_reader()
        super().__init__(follower, *args)

    def _pump(self) -> None:
        super()._pump()
        self._report_bound()

    def _report_bound(self) -> None:
        core, watch = self._core, self._watch
        epoch, bound = core.epoch, core.bound
        if bound == NOTHING or (epoch, bound) == self._told:
            return
        self._told = epoch, bound
        ledger_id = ledger_of(watch.log_id, epoch)
        watch.history.on_reader_lac(self._number, ledger_id, bound)
        watch.bounds[epoch] = max(bound, watch.bounds.get(epoch, NOTHING))

    def _carry_out(self, effect: Effect) -> None:
        watch = self._watch
        counts = watch.world.counts
        match effect:
            case CancelRead():
                counts["read cancelled"] += 1
            case Gap():
                counts["gap reported"] += 1
            case Skip(epoch, entry_id):
                counts["reader skips what is gone"] += 1
                watch.history.on_skip(self._number, watch.log_id, epoch, entry_id)
            case _:
                self._report_bound()  # what is delivered lies below the bound of this moment
        super()._carry_out(effect)


class WatchedBookies(Bookies):
    """The bookies as one process sees them.

    Args:
        nodes: the processes themselves, to know whose disk is sound.
    """

    def __init__(
        self, *args: Any, nodes: Mapping[str, BookieNode], history: History, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._nodes = nodes
        self._history = history
        self._number = history.new_reader()

    async def read_ranges(
        self, member: Member, wanted: Sequence[ReadRange], timeout_us: int
    ) -> list[ReadAnswer]:
        """As the bookies."""
        ledger_id = wanted[0].ledger_id
        floor = self._history.bookie_lac(self._number, member, ledger_id)
        answers = await super().read_ranges(member, wanted, timeout_us)
        node, first = self._nodes[member.bookie], answers[0]
        if first.status in _HEARD and node.member == member and not node.disk.is_rotten:
            self._history.on_bookie_lac(self._number, member, ledger_id, first.lac, floor)
        if wanted[0].wait_ms:
            node.world.counts[f"poll {first.status.name.lower()}"] += 1
        elif first.status is not BookieStatus.OK:
            node.world.counts[f"read {first.status.name.lower()}"] += 1
        return answers
