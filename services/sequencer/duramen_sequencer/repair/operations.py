"""What the auditor is asked: state, disruption, drain, rebalance. Others say who the auditor is.

The same operations serve `/s/control` (write proxies) and the admin routes (`admin_routes`).

Called by `control`, `admin_routes`. Source: docs/protocol/repair.md "Asking".
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from duramen.core.repair.cluster_view import CopyFate
from duramen.core.repair.rebalance import TOLERANCE_DEFAULT, spread
from duramen.core.repair.tasks import describe
from duramen.errors import DuramenError
from duramen.ids import BookieId, Incarnation, Member
from duramen.runtime.sequencer.log_driver import now_us
from duramen.units import SECOND
from duramen_sequencer.repair.auditor import Auditor
from duramen_sequencer.repair.disruption.granting import Granting
from duramen_sequencer.repair.disruption.questions import parse_kind, parse_question, take_text
from duramen_sequencer.repair.duties import StuckCopies
from duramen_sequencer.repair.election import Election
from duramen_sequencer.repair.readings import UnreadError

_SHOWN_MAX: Final = 100
_TOLERANCE_MIN, _TOLERANCE_MAX = 0.01, 1.0

Answer = dict[str, Any]
T = TypeVar("T")


class NotAuditorError(Exception):
    """Another sequencer is the auditor. `holder`: the node `auditor`, as it was seen last."""

    def __init__(self, holder: Mapping[str, Any]) -> None:
        super().__init__(f"the auditor is {holder.get('sequencer')}")
        self.holder = holder


class RepairOperations:
    """Operations of one sequencer; those of the auditor answer, the others name it."""

    def __init__(self, auditor: Auditor, election: Election, granting: Granting) -> None:
        self._auditor = auditor
        self._election = election
        self._granting = granting
        self.by_name: dict[str, Callable[[Answer], Awaitable[Answer]]] = {
            "repair": self._redirected(lambda _: self.show()),
            "repair_bookies": self._redirected(lambda _: self.list_bookies()),
            "disruption": self._redirected(
                lambda r: self.judge_disruption(take_text(r, "bookie"), take_text(r, "kind"))
            ),
            "disruptions": self._redirected(lambda _: self.list_disruptions()),
            "standing": self._redirected(lambda _: self.show_standing()),
            "take_disruption": self._redirected(self.take_disruption),
            "renew_disruption": self._redirected(
                lambda r: self.renew_disruption(take_text(r, "token"))
            ),
            "end_disruption": self._redirected(
                lambda r: self.end_disruption(take_text(r, "token"))
            ),
            "drain": self._redirected(lambda r: self.drain(take_text(r, "bookie"))),
            "cancel_drain": self._redirected(lambda r: self.cancel_drain(take_text(r, "bookie"))),
            "accept_loss": self._redirected(lambda r: self.accept_loss(take_text(r, "bookie"), r)),
            "rebalance": self._redirected(lambda _: self.show_rebalance()),
            "start_rebalance": self._redirected(self.start_rebalance),
            "stop_rebalance": self._redirected(lambda _: self.stop_rebalance()),
        }

    def statistics(self) -> Answer:
        """Questions that wait."""
        return self._granting.statistics()

    async def show(self) -> Answer:
        """Backlog, progress, estimate, what cannot be repaired, drains, the last round."""
        auditor = self._require_leader()
        last, backlog = auditor.last, auditor.backlog
        estimate_us = backlog.estimate_us(now_us())
        running = [task for task in backlog.tasks.values() if task.is_running]
        unrepairable = backlog.list_unrepairable()
        return {
            "auditor": self._election.holder.get("sequencer"),
            "backlog": backlog.statistics(),
            "bytes_per_s": round(backlog.bytes_per_s(now_us())),
            "estimate_s": None if estimate_us is None else round(estimate_us / SECOND),
            "running": [describe(task) for task in running],
            "unrepairable": [describe(task) for task in unrepairable[:_SHOWN_MAX]],
            "drains": [] if last is None else auditor.drains.list_drains(last, self._find_stuck()),
            "last_round": None if last is None else last.describe(),
            "statistics": auditor.statistics(),
        }

    async def list_bookies(self) -> Answer:
        """Every bookie as the last round saw it: place, state, duty, copies and bytes."""
        auditor = self._require_leader()
        last = auditor.last
        if last is None:
            raise _not_yet()
        stuck = self._find_stuck()
        shares = spread(last.loads, last.view)
        return {
            "read_unix_ms": last.began_unix_ms,
            "whole": last.is_whole,
            "bookies": [
                {
                    "bookie": bookie,
                    "incarnation": state.member.incarnation,
                    "region": state.region,
                    "rack": state.rack,
                    "weight": state.weight,
                    "duty": state.duty.value,
                    "fate": last.view.fate(state.member).value,
                    "writable": state.is_writable,
                    "doubtful": state.is_doubtful,
                    "free_bytes": state.free_bytes if state.is_available else None,
                    "copies": last.loads.copy_count.get(bookie, 0),
                    "bytes": last.loads.size_bytes.get(bookie, 0),
                    "share": round(shares[bookie], 3) if bookie in shares else None,
                    "stuck": stuck[bookie].to_json() if bookie in stuck else None,
                }
                for bookie, state in sorted(last.view.bookies.items())
            ],
        }

    def _find_stuck(self) -> dict[BookieId, StuckCopies]:
        auditor = self._auditor
        if auditor.last_whole is None:
            return {}
        return auditor.drains.find_stuck(auditor.last_whole, auditor.backlog, now_us())

    async def judge_disruption(self, bookie: str, kind: str) -> Answer:
        """Whether the bookie may be restarted or removed now; see `Granting.judge`."""
        self._require_leader()
        return await self._granting.judge(BookieId(bookie), parse_kind(kind))

    async def list_disruptions(self) -> Answer:
        """Grants that are outstanding."""
        self._require_leader()
        return await self._granting.list_grants()

    async def show_standing(self) -> Answer:
        """How every bookie stands; see `Granting.stand`."""
        unrepairable = self._require_leader().backlog.list_unrepairable()
        return await self._granting.stand({task.finding.key.fragment for task in unrepairable})

    async def take_disruption(self, request: Mapping[str, Any]) -> Answer:
        """Judge what somebody wants to stop, and grant it; see `Granting.take`."""
        self._require_leader()
        return await self._granting.take(parse_question(request))

    async def renew_disruption(self, token: str) -> Answer:
        """Have a grant last on; see `Granting.renew`."""
        self._require_leader()
        return await self._granting.renew(token)

    async def end_disruption(self, token: str) -> Answer:
        """Take a grant out; see `Granting.end`."""
        self._require_leader()
        return await self._granting.end(token)

    async def drain(self, bookie: str) -> Answer:
        """Begin to empty a bookie."""
        auditor = self._require_leader()
        async with auditor.change():
            return await _known(auditor.drains.begin(BookieId(bookie), auditor.last_whole))

    async def cancel_drain(self, bookie: str) -> Answer:
        """Let a bookie serve again.

        Raises:
            DuramenError: `condition_failed`: somebody may remove it now; as `Drains.cancel`.
        """
        auditor = self._require_leader()
        async with auditor.change():
            guard = partial(self._granting.guard_duty, BookieId(bookie))
            return await auditor.drains.cancel(BookieId(bookie), guard)

    async def accept_loss(self, bookie: str, request: Mapping[str, Any]) -> Answer:
        """Take a person's word that an incarnation is gone for ever, with what only it had (R15).

        Raises:
            DuramenError: `invalid_argument`: it is not lost, or not known; `metadata_unavailable`:
                try again. MetadataError: it may be noted or not; the same call may be repeated.
        """
        auditor = self._require_leader()
        incarnation = take_text(request, "incarnation")
        member = Member(BookieId(bookie), Incarnation(incarnation))
        async with auditor.change():
            view = await _known(auditor.readings.read_view())
            if view.fate(member) is not CopyFate.LOST:
                raise DuramenError(
                    "invalid_argument",
                    f"{bookie} with incarnation {incarnation} is {view.fate(member).value}, not "
                    "lost: stop it, and wait until it has been away for longer than the grace",
                    field="incarnation",
                )
            return await auditor.commits.accept_loss(member, time.time_ns() // 1_000_000)

    async def show_rebalance(self) -> Answer:
        """Whether one runs, and how evenly bytes lie."""
        auditor = self._require_leader()
        last, request = auditor.last_whole, await auditor.rebalancing.read()
        return {
            "running": request is not None,
            "request": request,
            "moves_waiting": auditor.backlog.statistics()["by_problem"].get("unbalanced", 0),
            "shares": {} if last is None else spread(last.loads, last.view),
        }

    async def start_rebalance(self, request: Mapping[str, Any]) -> Answer:
        """Begin a rebalance, or with `dry_run` only say how it would begin.

        Raises:
            DuramenError: `invalid_argument` with the field; MetadataError: it may have begun.
        """
        auditor = self._require_leader()
        is_dry_run = request.get("dry_run", False)
        tolerance = request.get("tolerance", TOLERANCE_DEFAULT)
        if not isinstance(is_dry_run, bool):
            raise DuramenError("invalid_argument", "dry_run: true or false", field="dry_run")
        is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
        if not is_number or not _TOLERANCE_MIN <= tolerance <= _TOLERANCE_MAX:
            detail = f"tolerance: a number from {_TOLERANCE_MIN} to {_TOLERANCE_MAX}"
            raise DuramenError("invalid_argument", detail, field="tolerance")
        if is_dry_run:
            return auditor.rebalancing.dry_run(auditor.last_whole, float(tolerance))
        async with auditor.change():
            await auditor.rebalancing.request(float(tolerance))
        return await self.show_rebalance()

    async def stop_rebalance(self) -> Answer:
        """Plan no more moves."""
        auditor = self._require_leader()
        async with auditor.change():
            await auditor.rebalancing.cancel()
        return await self.show_rebalance()

    def _require_leader(self) -> Auditor:
        if self._auditor.is_leader:
            return self._auditor
        holder = self._election.holder
        if not holder or self._election.is_held:
            raise _not_yet()
        raise NotAuditorError(holder)

    def _redirected(
        self, operation: Callable[[Answer], Awaitable[Answer]]
    ) -> Callable[[Answer], Awaitable[Answer]]:
        async def run(request: Answer) -> Answer:
            try:
                return await operation(request)
            except NotAuditorError as error:
                return {"auditor": dict(error.holder)}

        return run


def _not_yet() -> DuramenError:
    return DuramenError(
        "metadata_unavailable", "no auditor has read the metadata yet: try again in a second"
    )


async def _known(work: Awaitable[T]) -> T:
    try:
        return await work
    except UnreadError as error:
        raise DuramenError("metadata_unavailable", str(error)) from error
