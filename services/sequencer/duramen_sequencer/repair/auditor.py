"""The auditor while it leads: rounds of audits, and the tasks that they lead to.

One leader at a time (`election`). The leader audits every while, and at once after an event: a
bookie is lost, a duty was asked for, a note was made, the backlog is empty again. Tasks run beside
the rounds, so many at once. When leadership or the session is lost, everything ends at once, in the
middle of whatever it was: what stands in the metadata is right at any time.

Called by `service` and `operations`. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass
from typing import Any, Final

from duramen.client.bookie_client import BookieClient
from duramen.core.repair.cluster_view import ClusterView
from duramen.core.repair.tasks import Backlog, Task, describe
from duramen.limits import AUDIT_INTERVAL_US, AUDIT_REST_MIN_US, LOST_BOOKIE_GRACE_US
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import SECOND
from duramen.wire.metadata_json import MetadataJsonError
from duramen_sequencer.repair import metrics
from duramen_sequencer.repair.commits import Commits
from duramen_sequencer.repair.copying import Copier
from duramen_sequencer.repair.disruption.book import SWEEP_S, GrantBook
from duramen_sequencer.repair.duties import Drains
from duramen_sequencer.repair.flexible.attempts import FlexibleRepair
from duramen_sequencer.repair.flexible.calls import AttemptCalls
from duramen_sequencer.repair.flexible.losses import LossRecorder
from duramen_sequencer.repair.readings import Readings, UnreadError
from duramen_sequencer.repair.rebalancing import Rebalancing
from duramen_sequencer.repair.rounds import Round, Rounds
from duramen_sequencer.repair.worker import (
    AskRoll,
    Done,
    Failed,
    Postponed,
    RepairWorker,
    Unrepairable,
)

_LOG = logging.getLogger(__name__)

_IDLE_US: Final = 1 * SECOND
"""How late a task that waits for its time may begin."""


@dataclass(frozen=True, slots=True)
class AuditPace:
    """How often and how patiently; tests have less time than operators."""

    interval_us: int = AUDIT_INTERVAL_US
    rest_min_us: int = AUDIT_REST_MIN_US
    grace_us: int = LOST_BOOKIE_GRACE_US


class Auditor:
    """Audits and repairs while it leads.

    Args:
        client: calls to bookies; closed by `stop`.
        ask_roll: asks the owner of a log to end its segment.
    """

    def __init__(
        self,
        link: MetadataLink,
        client: BookieClient,
        ask_roll: AskRoll,
        rng: random.Random,
        pace: AuditPace = AuditPace(),
    ) -> None:
        self._pace = pace
        self._client = client
        self._changes = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._counts = dict.fromkeys(("terms", "rounds", "rounds_cut", "tasks_cut"), 0)
        self._is_watched = {"owed": False, "queue": False}
        self.last: Round | None = None
        """The last round of this term, whole or not."""
        self.last_whole: Round | None = None
        self.is_leader = False
        self.readings = Readings(link, grace_us=pace.grace_us)
        self.commits = Commits(link)
        self.copier = Copier(client)
        self.drains = Drains(self.readings, self.commits, rng)
        self.backlog = Backlog()
        self._rounds = Rounds(self.readings, self.backlog, self.commits)
        self.grant_book = GrantBook(link.store, link.paths)
        self.rebalancing = Rebalancing(link.store, link.paths, self.commits, self.backlog)
        calls = AttemptCalls(self.copier, self.backlog)
        losses = LossRecorder(client, self.copier, self.commits)
        flexible = FlexibleRepair(
            self.readings, self.commits, calls, losses, lambda: link.store.session_id
        )
        self._worker = RepairWorker(
            self.readings, self.commits, self.copier, flexible, self.backlog, self.view,
            ask_roll, rng,
        )  # fmt: skip

    # --- Leadership ------------------------------------------------------------------------------

    def on_leadership(self, is_held: bool) -> None:
        """Leadership was won or lost."""
        for task in (*self._tasks, *self._running):
            task.cancel()
        self._counts["tasks_cut"] += len(self._running)
        self._tasks, self.is_leader = [], is_held
        if not is_held:
            metrics.show_backlog(None)
            return
        self._counts["terms"] += 1
        self.last = self.last_whole = None
        self.backlog.clear()
        self.drains.forget()
        self.readings.absences.forget()
        self.readings.doubts.forget()
        self.grant_book.forget()
        self._wanted.set()
        self._tasks = [
            asyncio.create_task(self._audit_for_ever()),
            asyncio.create_task(self._work_for_ever()),
            asyncio.create_task(self._sweep_for_ever()),
        ]

    async def stop(self) -> None:
        """End everything that runs."""
        tasks = [*self._tasks, *self._running]
        self.on_leadership(False)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    def want_round(self) -> None:
        """A round at once, or directly after the one that runs."""
        self._wanted.set()

    def view(self) -> ClusterView:
        """The bookies as the last round saw them."""
        assert self.last is not None, "tasks come from rounds"
        return self.last.view

    # --- Rounds ----------------------------------------------------------------------------------

    async def _audit_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rest_us() / SECOND):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.audit()
            except (MetadataError, UnreadError, MetadataJsonError) as error:
                self._counts["rounds_cut"] += 1
                # Only a call that returned has armed its watch.
                self._is_watched = dict.fromkeys(self._is_watched, False)
                metrics.ROUNDS.labels("cut").inc()
                _LOG.info("this audit ends early: %s", error)
            except Exception:
                self._counts["rounds_cut"] += 1
                _LOG.exception("an audit failed")
            await asyncio.sleep(self._pace.rest_min_us / SECOND)

    async def audit(self) -> Round:
        """One round, and what follows from it.

        Raises:
            MetadataError, UnreadError, MetadataJsonError: it ended early; what it found stays.
        """
        this = await self._rounds.run(self._watch("owed"), self._watch("queue"))
        self.last = this
        if this.is_whole:
            self.last_whole = this
            self.drains.note_round(this, now_us())
            await self.rebalancing.plan(this)
        await self._rounds.finish(this)
        self._counts["rounds"] += 1
        metrics.show_round(this)
        metrics.show_backlog(self.backlog)
        self._work.set()
        if this.is_whole:
            async with self._changes:
                if await self.drains.advance(this):
                    self.want_round()
        return this

    def _rest_us(self) -> int:
        """Until the next round is due by itself."""
        due_us = None if self.last is None else self.last.view.next_loss_us()
        rest_us = self._pace.interval_us
        return rest_us if due_us is None else max(0, min(rest_us, due_us - now_us()))

    def _watch(self, kind: str) -> Any:
        """A watch on one kind of notes, unless it is armed already."""
        if self._is_watched[kind]:
            return None

        def on_change() -> None:
            self._is_watched[kind] = False
            self.want_round()

        self._is_watched[kind] = True
        return on_change

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.grant_book.sweep()

    # --- Tasks -----------------------------------------------------------------------------------

    async def _work_for_ever(self) -> None:
        while True:
            self._work.clear()
            task = None if self.last is None else self.backlog.take(now_us())
            if task is None:
                await self._wait_for_work()
                continue
            runner = asyncio.create_task(self._run(task))
            self._running.add(runner)
            runner.add_done_callback(self._running.discard)

    async def _wait_for_work(self) -> None:
        next_us = self.backlog.next_us()
        wait_us = _IDLE_US if next_us is None else min(max(next_us - now_us(), 0), _IDLE_US)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait_us, 1_000) / SECOND):
                await self._work.wait()

    async def _run(self, task: Task) -> None:
        try:
            outcome = await self._worker.run(task)
        except (MetadataError, UnreadError, MetadataJsonError) as error:
            outcome = Failed(str(error))
        except asyncio.CancelledError:
            self.backlog.on_cut(task)
            raise
        except Exception as error:
            _LOG.exception("the repair of %r failed", task.finding.key)
            outcome = Failed(f"{error!r}")
        self._conclude(task, outcome)
        self._work.set()

    def _conclude(self, task: Task, outcome: Done | Postponed | Failed | Unrepairable) -> None:
        metrics.TASKS.labels(type(outcome).__name__.lower()).inc()
        metrics.COPIED_BYTES.inc(task.copied_bytes)
        match outcome:
            case Done(following):
                self.backlog.on_done(task)
                for finding in following:
                    self.backlog.put(finding)
                if not self.backlog.tasks:
                    self.want_round()  # a drain or a rebalance may wait for just this
            case Postponed(pause_us, asked_to_roll):
                self.backlog.on_postponed(task, pause_us, now_us(), was_asked=asked_to_roll)
                if asked_to_roll:
                    self.want_round()
            case Failed(reason):
                _LOG.info("repair of %r: %s", task.finding.key, reason)
                self.backlog.on_failed(task, reason, now_us())
            case Unrepairable(reason, flaws, kind):
                if self.backlog.on_unrepairable(task, reason, flaws, now_us(), kind):
                    _LOG.warning("cannot be repaired: %s", describe(task))

    # --- What is shown ---------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def change(self) -> Any:
        """One change that is asked for at a time: several drains are judged one after the other."""
        async with self._changes:
            yield
        self.want_round()

    def statistics(self) -> dict[str, Any]:
        """Every queue and counter."""
        return {
            "is_auditor": self.is_leader,
            **self._counts,
            "backlog": self.backlog.statistics(),
            "copying": self.copier.statistics(),
            "commits": self.commits.statistics(),
            "doubts": self.readings.doubts.statistics(),
        }
