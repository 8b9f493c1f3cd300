"""Who may stop what: judged for one question, granted by a compare-and-set, renewed, ended.

A judgement reads the grants first; what it gives is bound to the grants that were read. So a grant
that came meanwhile has it judged again. Questions are judged one after the other.

Called by `operations`. Not here: what is judged of bookies (`judging`), time (`book`).
Source: docs/protocol/disruption.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from duramen.core.repair.audit import FragmentKey
from duramen.core.repair.disruption_grants import (
    ACCEPTABLE,
    DisruptionGrant,
    DisruptionKind,
    DisruptionTarget,
    TargetKind,
)
from duramen.errors import DuramenError
from duramen.ids import BookieId
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.stores.metadata_store import Check, Conflict, Op, OutcomeUnknown
from duramen.units import SECOND
from duramen_sequencer.repair.disruption.book import BookPage, GrantBook
from duramen_sequencer.repair.disruption.judging import BookieJudge
from duramen_sequencer.repair.disruption.lags import AskedSequencers, ask_lags
from duramen_sequencer.repair.disruption.questions import DisruptionQuestion

_TRIES: Final = 5
"""Each judges anew; so many others that ask within a second are no operators."""
_WAITING_MAX: Final = 8
_WAIT_S: Final = 20.0
_GRANTED_WITHIN_US: Final = 50 * SECOND
"""A write proxy waits for a minute."""

Answer = dict[str, Any]


class _Turns:
    """One judgement at a time, since each reads all metadata; so many wait, and not for long."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self.waiting_count = 0

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """A turn.

        Raises:
            DuramenError: `overloaded`.
        """
        if self.waiting_count >= _WAITING_MAX:
            raise _too_many()
        self.waiting_count += 1
        try:
            try:
                async with asyncio.timeout(_WAIT_S):
                    await self._turn.acquire()
            except TimeoutError:
                raise _too_many() from None
        finally:
            self.waiting_count -= 1
        try:
            yield
        finally:
            self._turn.release()


class Granting:
    """Judges and grants, for the auditor.

    Args:
        is_auditor: whether this process is, still.
    """

    def __init__(
        self,
        book: GrantBook,
        judge: BookieJudge,
        sequencers: AskedSequencers,
        is_auditor: Callable[[], bool],
    ) -> None:
        self._book = book
        self._bookies = judge
        self._sequencers = sequencers
        self._is_auditor = is_auditor
        # Who only looks, as a dashboard does, keeps nobody from taking a grant.
        self._looks, self._takes = _Turns(), _Turns()

    def statistics(self) -> dict[str, int]:
        """Questions that wait for their turn, of those who take and of those who only look."""
        return {
            "takes_waiting": self._takes.waiting_count,
            "looks_waiting": self._looks.waiting_count,
            "waiting_max": _WAITING_MAX,
        }

    async def list_grants(self) -> Answer:
        """Those that are outstanding.

        Raises:
            DuramenError: `metadata_unavailable`; MetadataError: it is not known.
        """
        page = await self._book.read()
        return {"grants": [self._describe(grant) for grant in page.grants]}

    async def judge(self, bookie: BookieId, kind: DisruptionKind) -> Answer:
        """Whether the bookie may be restarted or removed now.

        Raises:
            DuramenError: as `BookieJudge.judge`; `overloaded`: many ask at once.
            MetadataError: nothing is known, so nothing is allowed.
        """
        async with self._looks.take():
            page = await self._book.read()
            if page.grants:
                answer = _deny(kind, page.grants)
            else:
                target = DisruptionTarget(TargetKind.BOOKIE, bookie)
                answer = (await self._bookies.judge(target, kind, field="bookie")).answer
        return {"bookie": bookie, **answer}

    async def stand(self, given_up: Collection[FragmentKey]) -> Answer:
        """How every bookie stands, each as if it alone were to be restarted now; grants nothing.

        Args:
            given_up: as of `BookieJudge.judge_all`.

        Raises:
            DuramenError, MetadataError: as `judge`.
        """
        async with self._looks.take():
            try:
                async with asyncio.timeout(_GRANTED_WITHIN_US / SECOND):
                    return (await self._bookies.judge_all(given_up)).answer
            except TimeoutError:
                raise DuramenError("overloaded", "judging took too long: ask again") from None

    async def take(self, question: DisruptionQuestion) -> Answer:
        """Judge, and grant if nothing speaks against it; with the same token it is the same grant.

        Raises:
            DuramenError: as `judge`.
            MetadataError: it may be granted or not; the same question may be asked again.
        """
        ends_us = now_us() + _GRANTED_WITHIN_US
        async with self._takes.take():
            for _ in range(_TRIES):
                session_id = self._book.session_id
                page = await self._book.read()
                own = next((grant for grant in page.grants if question.is_of(grant)), None)
                others = [grant for grant in page.grants if grant is not own]
                answer, checks = await self._judge(question, others)
                answer = {"target": str(question.target), **answer, "grant": None}
                if not answer["allowed"]:
                    return answer
                self._check_may_grant(session_id, ends_us)
                grant = _make_grant(question, own, page)
                try:
                    await self._book.write(page, [*others, grant], checks)
                except Conflict:
                    continue
                except OutcomeUnknown:
                    if grant not in (await self._book.read()).grants:
                        continue
                return {**answer, "grant": self._describe(grant)}
        raise _too_many()

    def _check_may_grant(self, session_id: int, ends_us: int) -> None:
        """Who slept meanwhile, or is the auditor no longer, knows nothing of now; and a grant that
        nobody waits for any more would only be in the way.

        Raises:
            DuramenError: `metadata_unavailable`, `overloaded`.
        """
        if self._book.session_id != session_id or not self._is_auditor():
            detail = "the auditor changed while it was judged: try again"
            raise DuramenError("metadata_unavailable", detail)
        if now_us() > ends_us:
            raise DuramenError("overloaded", "judging took too long: ask again")

    async def renew(self, token: str) -> Answer:
        """Have a grant last for its whole life again; `grant` is null where it is over.

        Raises:
            DuramenError: `overloaded`; MetadataError: it may be renewed or not.
        """
        for _ in range(_TRIES):
            page = await self._book.read()
            own = _find(page, token)
            if own is None:
                return {"grant": None}
            grant = replace(own, renewals=own.renewals + 1)
            try:
                await self._book.write(page, [grant if one is own else one for one in page.grants])
            except (Conflict, OutcomeUnknown):
                continue  # renewed twice is renewed
            return {"grant": self._describe(grant)}
        raise _too_many()

    async def end(self, token: str) -> Answer:
        """Take a grant out; one that is not there is over already.

        Raises:
            DuramenError: `overloaded`; MetadataError: it may be there still.
        """
        was_there = False
        for _ in range(_TRIES):
            page = await self._book.read()
            own = _find(page, token)
            if own is None:
                return {"token": token, "ended": was_there}
            was_there = True
            try:
                await self._book.write(page, [one for one in page.grants if one is not own])
            except (Conflict, OutcomeUnknown):
                continue
            return {"token": token, "ended": True}
        raise _too_many()

    async def guard_duty(self, bookie: BookieId) -> Sequence[Op]:
        """What a change of the bookie's duty has to be bound to, so that nobody removes a bookie
        whose drain was cancelled meanwhile.

        Raises:
            DuramenError: `condition_failed`: somebody may remove it now.
        """
        page = await self._book.make()
        for grant in page.grants:
            if (grant.target, grant.kind) == (f"bookie/{bookie}", DisruptionKind.REMOVE.value):
                raise DuramenError("condition_failed", grant.explain())
        assert page.version is not None, "it was made"
        return (Check(self._book.path, page.version),)

    async def _judge(
        self, question: DisruptionQuestion, others: Sequence[DisruptionGrant]
    ) -> tuple[Answer, Sequence[Op]]:
        target, kind = question.target, question.kind
        if others:
            return _deny(kind, others), ()
        if target.kind is TargetKind.SEQUENCER:
            return _conclude(kind, await self._judge_sequencer(question), question.accepts), ()
        if target.kind is TargetKind.ZOOKEEPER:
            return _conclude(kind, _judge_zookeeper(question), question.accepts), ()
        judged = await self._bookies.judge(target, kind, question.accepts, is_granting=True)
        return judged.answer, judged.checks

    async def _judge_sequencer(self, question: DisruptionQuestion) -> list[tuple[str, str]]:
        lags = await ask_lags(self._sequencers)
        name = question.target.name
        if name not in {*lags.answered, *lags.silent}:
            detail = f"target: there is no sequencer {name}: see duramen members"
            raise DuramenError("invalid_argument", detail, field="target")
        if any(one != name and self._sequencers.weight_of(one) > 0 for one in lags.answered):
            return []
        detail = (
            f"no other sequencer answers that may have logs ({len(lags.silent)} are silent): start "
            "one, or accept it: no log takes appends until this one is back"
        )
        return [("alone", detail)]

    def _describe(self, grant: DisruptionGrant) -> Answer:
        return {
            "token": grant.token,
            "target": grant.target,
            "kind": grant.kind,
            "holder": grant.holder,
            "life_ms": grant.life_ms,
            "over_in_ms": self._book.left_ms(grant),
            "granted_unix_ms": grant.granted_unix_ms,
            "accepts": list(grant.accepts),
        }


def _judge_zookeeper(question: DisruptionQuestion) -> list[tuple[str, str]]:
    majority = question.voters // 2 + 1
    if question.others_serving >= majority:
        return []
    detail = (
        f"{question.others_serving} of {question.voters} members would serve, and {majority} are a "
        "majority: wait until more of them serve, or accept it: nothing changes hands meanwhile"
    )
    return [("quorum", detail)]


def _deny(kind: DisruptionKind, grants: Sequence[DisruptionGrant]) -> Answer:
    return _conclude(kind, [("granted", grants[0].explain())], (), count=len(grants))


def _conclude(
    kind: DisruptionKind,
    reasons: Sequence[tuple[str, str]],
    accepts: Sequence[str],
    count: int = 1,
) -> Answer:
    return {
        "kind": kind.value,
        "allowed": {code for code, _ in reasons} <= ACCEPTABLE.intersection(accepts),
        "reasons": [{"code": code, "detail": why, "count": count} for code, why in reasons],
        "logs_at_risk": [],
        "logs_at_risk_count": 0,
        "read_unix_ms": time.time_ns() // 1_000_000,
        "metadata_age_ms": 0,
    }


def _make_grant(
    question: DisruptionQuestion, own: DisruptionGrant | None, page: BookPage
) -> DisruptionGrant:
    """The grant; one that is there lasts on, and never shorter than its holder may count."""
    # A token that was over, and is asked for again, is another grant than the one of before.
    before = own or next((one for one in page.over if one.token == question.token), None)
    return DisruptionGrant(
        question.token,
        str(question.target),
        question.kind.value,
        question.holder,
        question.life_ms if own is None else max(own.life_ms, question.life_ms),
        0 if before is None else before.renewals + 1,
        time.time_ns() // 1_000_000 if own is None else own.granted_unix_ms,
        question.accepts,
    )


def _find(page: BookPage, token: str) -> DisruptionGrant | None:
    return next((grant for grant in page.grants if grant.token == token), None)


def _too_many() -> DuramenError:
    return DuramenError("overloaded", "others ask for grants at the same time: try again")
