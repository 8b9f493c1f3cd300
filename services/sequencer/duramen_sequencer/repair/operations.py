"""What the auditor is asked: state, disruption, drain, rebalance. Others say who the auditor is.

The same operations serve `/s/control` (write proxies) and the admin routes (`admin_routes`).
Whether a bookie may be stopped or taken away is judged on metadata that is read for this one
question, and the answer says when that was.

Called by `control`, `admin_routes`. Source: docs/protocol/repair.md "Asking".
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from duramen.core.repair.cluster_view import CopyFate
from duramen.core.repair.disruption import Disruption, DisruptionKind
from duramen.core.repair.rebalance import TOLERANCE_DEFAULT, spread
from duramen.core.repair.tasks import describe
from duramen.errors import DuramenError
from duramen.ids import BookieId, Incarnation, LedgerId, Member
from duramen.runtime.sequencer.log_driver import now_us
from duramen.units import MS, SECOND
from duramen_sequencer.repair.auditor import Auditor
from duramen_sequencer.repair.election import Election
from duramen_sequencer.repair.readings import LogAudit, UnreadError
from duramen_sequencer.repair.rounds import need_of

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

    def __init__(self, auditor: Auditor, election: Election, rng: random.Random) -> None:
        self._auditor = auditor
        self._election = election
        self._rng = rng
        self.by_name: dict[str, Callable[[Answer], Awaitable[Answer]]] = {
            "repair": self._redirected(lambda _: self.show()),
            "repair_bookies": self._redirected(lambda _: self.list_bookies()),
            "disruption": self._redirected(
                lambda r: self.judge_disruption(_text(r, "bookie"), _text(r, "kind"))
            ),
            "drain": self._redirected(lambda r: self.drain(_text(r, "bookie"))),
            "cancel_drain": self._redirected(lambda r: self.cancel_drain(_text(r, "bookie"))),
            "accept_loss": self._redirected(lambda r: self.accept_loss(_text(r, "bookie"), r)),
            "rebalance": self._redirected(lambda _: self.show_rebalance()),
            "start_rebalance": self._redirected(self.start_rebalance),
            "stop_rebalance": self._redirected(lambda _: self.stop_rebalance()),
        }

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
            "drains": [] if last is None else auditor.drains.list_drains(last.view, last),
            "last_round": None if last is None else last.describe(),
            "statistics": auditor.statistics(),
        }

    async def list_bookies(self) -> Answer:
        """Every bookie as the last round saw it: place, state, duty, copies and bytes."""
        last = self._require_leader().last
        if last is None:
            raise _not_yet()
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
                }
                for bookie, state in sorted(last.view.bookies.items())
            ],
        }

    async def judge_disruption(self, bookie: str, kind: str) -> Answer:
        """Whether the bookie may be restarted or removed now, from metadata read for this.

        Raises:
            DuramenError: `invalid_argument`; `metadata_unavailable`: nothing is known, so nothing
                is allowed; MetadataError: the same.
        """
        auditor = self._require_leader()
        if kind not in list(DisruptionKind):
            raise DuramenError("invalid_argument", "kind: restart or remove", field="kind")
        began_us, read_unix_ms = now_us(), time.time_ns() // 1_000_000
        try:
            view = await auditor.readings.read_view()
            if BookieId(bookie) not in view.bookies:
                detail = f"there is no bookie {bookie}: see the list of bookies"
                raise DuramenError("invalid_argument", detail, field="bookie")
            question = Disruption(BookieId(bookie), DisruptionKind(kind), view)
            noted = await auditor.readings.list_noted(None, None)

            async def visit(audit: LogAudit) -> None:
                question.note_log(audit.log, need_of(audit.log))
                is_risky = False
                async for segment, debts in audit.segments:
                    is_risky |= question.note_segment(audit.log, segment, debts)
                if is_risky:
                    question.note_risk(audit.log)

            ledgers = frozenset(LedgerId(number) for number in noted)
            await auditor.readings.walk(visit, question.note_unread, ledgers)
        except UnreadError as error:
            raise DuramenError("metadata_unavailable", str(error)) from error
        age_ms = (now_us() - began_us) // MS
        answer = question.conclude(self._rng)
        return {**answer, "read_unix_ms": read_unix_ms, "metadata_age_ms": age_ms}

    async def drain(self, bookie: str) -> Answer:
        """Begin to empty a bookie."""
        auditor = self._require_leader()
        async with auditor.change():
            return await _known(auditor.drains.begin(BookieId(bookie), auditor.last_whole))

    async def cancel_drain(self, bookie: str) -> Answer:
        """Let a bookie serve again."""
        auditor = self._require_leader()
        async with auditor.change():
            return await auditor.drains.cancel(BookieId(bookie))

    async def accept_loss(self, bookie: str, request: Mapping[str, Any]) -> Answer:
        """Take a person's word that an incarnation is gone for ever, with what only it had (R15).

        Raises:
            DuramenError: `invalid_argument`: it is not lost, or not known; `metadata_unavailable`:
                try again. MetadataError: it may be noted or not; the same call may be repeated.
        """
        auditor = self._require_leader()
        incarnation = _text(request, "incarnation")
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


def _text(request: Mapping[str, Any], field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str) or not value:
        raise DuramenError("invalid_argument", f"{field}: a text is expected", field=field)
    return value
