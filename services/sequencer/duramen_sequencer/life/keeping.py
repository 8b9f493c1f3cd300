"""Keeps the metadata logs of the logs that this process looks after.

Retention names the logs that it looks after, round by round; of those where something is due a few
are worked on at a time. A pass is the life of one keeper (`core.metadata_log.keeper`), which is
given what it wants one after the other until it rests: history of epochs that this process has
opened, segments that may leave ZooKeeper, a rewrite, a trim. Nothing of the log itself waits for a
pass, and what fails waits for a later round.

Before the first one, every registered process must understand metadata logs. Called by `service`
and `retention`. Source: docs/protocol/metadata-logs.md "Words", "History", "Who may meet it".
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any, Final, NamedTuple

from duramen.core.log_node import LogNode
from duramen.core.metadata_log.configuring import metadata_log_config
from duramen.core.metadata_log.keeper import (
    HISTORY_COUNT_MAX,
    AppendMetadata,
    ClaimEpoch,
    CommitMarks,
    Keeper,
    KeeperView,
    Look,
    MakeLog,
    ReadAll,
    TrimLog,
    Want,
)
from duramen.core.metadata_log.moving import NODE_BYTES_MAX, first_to_move, rechecked_unix_ms
from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.core.ownership.relief import can_append
from duramen.core.sequencer.context import SequencerContext
from duramen.errors import DuramenError
from duramen.ids import Epoch, LogId, is_metadata_log, metadata_log_of
from duramen.limits import METADATA_REST_US
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.stores.metadata_store import MetadataError, SessionState
from duramen.units import MINUTE, MS
from duramen.wire.metadata_json import MetadataJsonError
from duramen.wire.nodes.metadata_entries import pack_metadata_batches
from duramen_sequencer.flexible.tree_format import METADATA_LOGS, TreeFormat
from duramen_sequencer.life.metadata_epochs import MetadataEpoch
from duramen_sequencer.life.metadata_logs import MetadataLogNodes
from duramen_sequencer.log_host import LogHost

_LOG = logging.getLogger(__name__)

PASS_COUNT: Final = 4
"""Logs that are worked on at one time: a pass is a dozen calls one after the other."""

PASS_S: Final = 120.0
"""A pass that lasts longer is given up: bookies or ZooKeeper do not answer."""

OBSTACLE_MS: Final = 5 * MINUTE // MS
"""After nothing could be kept: no log is looked at in each round in vain."""

ASKED_AGAIN_S: Final = 30.0
"""After a process was found that does not know metadata logs."""

_WAITING_MAX: Final = 10_000
"""Logs that wait for a pass; others are named again in a later round."""


class _Told(NamedTuple):
    """Up to where the history of a log is told, ordered as it grows."""

    epoch: int
    is_closed: bool


class Keeping:
    """The keepers of one process.

    Args:
        is_ours: whether this process looks after a log, by its nodes as they are now.
        tree: whether every process understands metadata logs.
        rest_us: released segments stay for so long after the second look at their cold copy.
    """

    def __init__(
        self,
        host: LogHost,
        context: SequencerContext,
        nodes: MetadataLogNodes,
        records: MetadataRecords,
        tree: TreeFormat,
        *,
        is_ours: Callable[[LogNode], Awaitable[bool]],
        rest_us: int = METADATA_REST_US,
    ) -> None:
        self._host = host
        self._rest_ms = rest_us // MS
        self._context = context
        self._nodes = nodes
        self._records = records
        self._tree = tree
        self._is_ours = is_ours
        self._told: dict[LogId, _Told] = {}
        self._rests_until_ms: dict[LogId, int] = {}
        """Of logs whose next segment to leave has a fresh cold copy."""
        self._waiting: dict[LogId, None] = {}
        self._is_wanted = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._passes: dict[asyncio.Task[None], None] = {}
        """In the order of their beginning, in which a lost session ends them."""
        self._counts: Counter[str] = Counter()
        self._obstacle = ""
        self._asked_again_at_s = 0.0

    def start(self) -> None:
        """Begin to work on what retention names."""
        self._workers = [asyncio.create_task(self._work()) for _ in range(PASS_COUNT)]

    async def stop(self) -> None:
        """End what is under way; it is begun anew by whoever looks after the log next."""
        tasks = [*self._workers, *self._passes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def on_session(self, state: SessionState) -> None:
        """Without a session there is no background work."""
        if state is not SessionState.CONNECTED:
            self._waiting.clear()
            for task in self._passes:
                task.cancel()

    def forget_others(self, seen: Collection[LogId]) -> None:
        """What is known of logs that are not there any more is forgotten."""
        for known in (self._told, self._rests_until_ms):
            for log_id in [log_id for log_id in known if log_id not in seen]:
                del known[log_id]

    def want(self, log: LogNode) -> int | None:
        """A log that this process looks after, as it is now.

        Returns:
            When it is to be named again, in wall-clock ms; None: when its node has changed.
        """
        now_ms = read_unix_ms()
        if is_metadata_log(log.log_id) or log.is_deleted:
            return None
        if not self._is_due(log, now_ms):
            return self._rests_until_ms.get(log.log_id) if _has_more(log) else None
        if len(self._waiting) < _WAITING_MAX:
            self._waiting[log.log_id] = None
            self._is_wanted.set()
        return now_ms + (OBSTACLE_MS if self._obstacle else 0)

    def statistics(self) -> dict[str, Any]:
        """Passes and what they did since the start, and why there are none."""
        names = ("passes", "failed", "epochs", "moved", "rewrites", "trims")
        return {
            **{name: self._counts[name] for name in names},
            "waiting": len(self._waiting),
            "obstacle": self._obstacle,
            "records": self._records.statistics(),
        }

    def _is_due(self, log: LogNode, now_ms: int) -> bool:
        may_move = _has_more(log) and now_ms >= self._rests_until_ms.get(log.log_id, 0)
        newest = self._find_newest(log)
        told = self._told.get(log.log_id)
        if told is None:
            # Of a log that nobody appends to here, only what is to come is told.
            is_known_here = self._find_opened(log.log_id) is None
            self._told[log.log_id] = newest if is_known_here else _Told(0, is_closed=False)
            return not is_known_here or log.metadata.epoch > 0 or may_move
        return newest > told or may_move

    def _find_opened(self, log_id: LogId) -> LogNode | None:
        """The log node that opened the epoch which is open here."""
        driver = self._host.drivers.get(log_id)
        return None if driver is None or driver.core.writer is None else driver.opened_by

    def _find_newest(self, log: LogNode) -> _Told:
        """The newest that can be told: what is open here, or the last that is closed."""
        opened = self._find_opened(log.log_id)
        closed = _Told(log.last_clean_epoch, is_closed=True)
        return closed if opened is None else max(closed, _Told(opened.next_epoch - 1, False))

    # --- passes ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._is_wanted.clear()
                await self._is_wanted.wait()
            log_id = next(iter(self._waiting))
            del self._waiting[log_id]
            task = asyncio.create_task(self.run_pass(log_id))
            self._passes[task] = None
            task.add_done_callback(self._passes.pop)
            await asyncio.wait([task])

    async def run_pass(self, log_id: LogId) -> None:
        """Have a keeper do what is due at one log; what fails is left to a later round."""
        self._counts["passes"] += 1
        one = _KeeperPass(self._host, self._look, self._nodes, self._records, self._counts)
        try:
            async with asyncio.timeout(PASS_S):
                log = await self._find_kept(log_id)
                if log is not None:
                    newest = await self._report_history(log, one.keeper)
                    await one.run(log_id)
                    self._note_rest(log_id, one.view)
                    if newest is not None and not one.keeper.has_history:
                        self._told[log_id] = newest
        except (DuramenError, MetadataError, MetadataJsonError, TimeoutError) as error:
            self._counts["failed"] += 1
            _LOG.info("metadata of log %d stay where they are: %s", log_id, error or "time-out")
        finally:
            one.end()

    async def _find_kept(self, log_id: LogId) -> LogNode | None:
        """The log, if a keeper may begin here and now."""
        if self._host.drives(metadata_log_of(log_id)):
            return None  # what another keeper left is being closed
        if not await self._is_understood():
            return None
        view = await self._look(log_id)
        if view is None or not view.is_keeper:
            return None
        if not can_append(metadata_log_config(view.log.config), self._context.candidates, ()):
            self._obstacle = f"there are too few bookies for the metadata log of log {log_id}"
            return None
        return view.log

    async def _look(self, log_id: LogId) -> KeeperView | None:
        rested_ms = read_unix_ms() - self._rest_ms
        return await self._nodes.look(log_id, self._is_ours, rested_unix_ms=rested_ms)

    def _note_rest(self, log_id: LogId, view: KeeperView | None) -> None:
        """Look again when the next segment may leave, and not before."""
        if view is not None and view.stored:
            rechecked_ms = rechecked_unix_ms(view.stored[0].segment)
            self._rests_until_ms[log_id] = rechecked_ms + self._rest_ms

    async def _is_understood(self) -> bool:
        """Whether every process knows metadata logs; nobody is asked again for a while."""
        if time.monotonic() < self._asked_again_at_s:
            return False
        try:
            await self._tree.ensure(METADATA_LOGS)
        except DuramenError as error:
            self._obstacle = error.detail
            self._asked_again_at_s = time.monotonic() + ASKED_AGAIN_S
            return False
        self._obstacle = ""
        return True

    async def _report_history(self, log: LogNode, keeper: Keeper) -> _Told | None:
        """Give the keeper what was not told; up to where it is told then, None: nothing is new."""
        log_id, newest = log.log_id, self._find_newest(log)
        told = self._told.get(log_id)
        if told is None or newest <= told:
            return None
        # What was told while it was open is told again: it is closed by now.
        first = told.epoch or newest.epoch - 1
        if not log.metadata.epoch:
            first = 1  # nobody has told anything yet, and a log may have rolled since it was made
        oldest = max(first, newest.epoch - HISTORY_COUNT_MAX + 1, log.first_live_epoch)
        for epoch in map(Epoch, range(oldest, newest.epoch + 1)):
            node = await self._nodes.read_stored(log_id, epoch)
            if node is None or node.size_bytes > NODE_BYTES_MAX:
                continue
            opened = self._find_opened(log_id)
            record = MetadataRecord(MetadataKind.TOLD, node.segment, node.version, node.made)
            if opened is not None and opened.next_epoch == epoch + 1:
                config = opened.config.to_json()
                record = replace(record, config_version=opened.config_version, config=config)
            keeper.tell(record.validated())
        return newest


class _KeeperPass:
    """The life of one keeper."""

    def __init__(
        self,
        host: LogHost,
        look: Callable[[LogId], Awaitable[KeeperView | None]],
        nodes: MetadataLogNodes,
        records: MetadataRecords,
        counts: Counter[str],
    ) -> None:
        self.keeper = Keeper(_make_nonce)
        self._host = host
        self._nodes = nodes
        self._records = records
        self._look = look
        self._counts = counts
        self._epoch: MetadataEpoch | None = None
        self.view: KeeperView | None = None
        """What the last look showed."""

    async def run(self, log_id: LogId) -> None:
        """Until the keeper rests. Raises: DuramenError, MetadataError, MetadataJsonError."""
        self.keeper.wake()
        while self.keeper.outbox:
            await self._carry_out(log_id, self.keeper.outbox.popleft())
        if self.keeper.epoch is not None and self._epoch is not None:
            await self._epoch.close()

    def end(self) -> None:
        """Leave nothing under way."""
        if self._epoch is not None:
            self._epoch.end()
            self._epoch = None

    async def _carry_out(self, log_id: LogId, want: Want) -> None:
        keeper, now_ms = self.keeper, read_unix_ms()
        match want:
            case Look():
                self.view = await self._look(log_id)
                keeper.on_look(self.view)
            case MakeLog():
                await self._nodes.make(want, created_unix_ms=now_ms, nonce=_make_nonce())
                keeper.on_changed(is_worth_a_look=True)
            case ClaimEpoch():
                keeper.on_opened(await self._open(log_id, want))
            case ReadAll():
                assert self.view is not None
                keeper.on_read(await self._records.read_closed(self.view.log))
            case AppendMetadata(records=records):
                assert self._epoch is not None
                placed = await self._epoch.append(pack_metadata_batches(records, now_ms))
                self.end()
                keeper.on_appended(*(placed or (None, None)))
            case CommitMarks():
                await self._nodes.commit(want)
                self._counts["moved" if want.deleted else "rewrites"] += len(want.deleted) or 1
                keeper.on_changed(is_worth_a_look=True)
            case TrimLog():
                await self._nodes.trim(log_id, want, unix_ms=now_ms, nonce=_make_nonce())
                self._counts["trims"] += 1
                keeper.on_changed(is_worth_a_look=True)

    async def _open(self, log_id: LogId, want: ClaimEpoch) -> Epoch | None:
        if self._host.drives(metadata_log_of(log_id)):
            return None  # the scan for orphans has found what another keeper left, and closes it
        nonce = _make_nonce()
        self._epoch = MetadataEpoch(
            self._host, log_id, lambda epoch: self._nodes.bind_claim(want, epoch, nonce)
        )
        epoch = await self._epoch.open()
        self._counts["epochs"] += epoch is not None
        return epoch


def _has_more(log: LogNode) -> bool:
    """Whether a released segment has not left yet."""
    return first_to_move(log) < log.first_hot_epoch


def read_unix_ms() -> int:
    """The wall clock: a wrong one makes segments leave early or late by as much."""
    return time.time_ns() // 1_000_000


def _make_nonce() -> str:
    return secrets.token_hex(12)
