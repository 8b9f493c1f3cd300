"""One append from a batch to its answer: route, send, follow redirects, try again while it is safe.

The rule that everything here obeys: a batch is sent again only when the last answer proves that it
was not appended (no connection, a redirect, `log_unavailable`, `server_draining`,
`metadata_unavailable`), or when it has a producer, by which the log knows it again. Without one, an
append that was sent and not answered is uncertain and never repeated, whatever time is left. Once
uncertain, only an acknowledgement (of a duplicate, as a rule) settles an append: a refusal of the
repetition says nothing about the first.

A sequencer that was tried in vain is told to the next one, which looks whether it is there at all
and takes its log over if it is not. So is one that is said to be away (`docs/protocol/members.md`);
what may be sent again does not wait for it any longer.

Called by `append_route` and `intake`. Source: docs/protocol/metadata.md "Rules for every change",
docs/protocol/write.md "Uncertain", docs/protocol/errors.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, TypeVar

from duramen.backoff import Backoff
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.http_client import UnreachableError
from duramen.units import MS, SECOND
from duramen.wire.record_batch import BatchProducer
from duramen.wire.sequencer_calls import (
    NO_OPTIONS,
    AppendOptions,
    AppendResult,
    Redirect,
    Stored,
)
from duramen_writeproxy.intake.settling import Group, Outcome, Result
from duramen_writeproxy.lanes import Lanes, uncertain
from duramen_writeproxy.routing import Router, Target

T = TypeVar("T")

REDIRECT_COUNT_MAX: Final = 5
"""Redirects that are followed at once: longer chains are a cluster that has not settled."""

_BACKOFF: Final = Backoff(100 * MS, 1 * SECOND)
_SHORT_BACKOFF: Final = Backoff(50 * MS, 400 * MS)

_TRY_S: Final = 3.0
"""One try of an append that may be repeated: a frozen sequencer must not use up its time."""
_ASK_ANEW_COUNT: Final = 2
"""After so many short pauses everybody may be asked again, also who was not there before."""

_ASK_ANOTHER: Final = ("server_draining", "metadata_unavailable")
"""This sequencer cannot take it, and has not; another one may."""

_RETRIED: Final = ("log_unavailable", *_ASK_ANOTHER)
_RETRIED_IN_SESSION: Final = (*_RETRIED, "window_full", "overloaded", "not_enough_bookies")
"""A session waits where a request is told to come again: that is its flow control."""

_RETRIED_WHEN_UNCERTAIN: Final = (
    *_RETRIED_IN_SESSION,
    # The batch before it may be on its way a second time, too.
    "producer_gap",
)


class _Journey:
    """Where one append, or the group of a session, has been, and how long it paused."""

    __slots__ = (
        "deadline", "gone", "is_repeatable", "options", "pause_count", "redirect_count", "retried",
        "short_pause_count", "tried", "was_uncertain",
    )  # fmt: skip

    def __init__(
        self,
        deadline: float,
        options: AppendOptions,
        *,
        is_repeatable: bool,
        retried: tuple[str, ...] = _RETRIED,
    ) -> None:
        self.deadline = deadline
        self.options = options
        self.is_repeatable = is_repeatable
        self.retried = retried
        self.was_uncertain = False
        self.tried: dict[str, str] = {}
        """Urls that were asked in vain, and are not asked before a pause → the sequencers' ids."""
        self.gone: dict[str, str] = {}
        """Of them, those that could not be reached: others are told so also behind a pause."""
        self.redirect_count = 0
        self.pause_count = 0
        self.short_pause_count = 0

    def next_deadline(self) -> float:
        """When the next try must be answered."""
        if not self.is_repeatable:
            return self.deadline
        return min(self.deadline, asyncio.get_running_loop().time() + _TRY_S)

    def may_retry(self, answer: DuramenError) -> bool:
        """Whether the same batch may be sent again after this answer."""
        if answer.uncertain:
            return self.is_repeatable
        return answer.code in (_RETRIED_WHEN_UNCERTAIN if self.was_uncertain else self.retried)

    async def pause(self, last: DuramenError) -> None:
        """Wait longer each time, then everybody may be asked again.

        Raises:
            DuramenError: `last`, where the deadline comes first.
        """
        pause_us = _BACKOFF.pause_us(self.pause_count)
        self.pause_count += 1
        await self._sleep(pause_us / SECOND, last)
        self.forget_tried()

    async def pause_shortly(self, last: DuramenError) -> bool:
        """Wait for a takeover that is under way; True when everybody may be asked again.

        Raises:
            DuramenError: `last`, where the deadline comes first.
        """
        pause_us = _SHORT_BACKOFF.pause_us(self.short_pause_count)
        self.short_pause_count += 1
        await self._sleep(pause_us / SECOND, last)
        is_anew = self.short_pause_count % _ASK_ANEW_COUNT == 0
        if is_anew:
            self.forget_tried()
        return is_anew

    def tried_before(self, target: Target) -> tuple[str, ...]:
        """Whom `target` is told of: the others that were asked in vain."""
        others = {**self.tried, **self.gone}
        others.pop(target.url, None)
        return tuple(others.values())

    def add_tried(self, target: Target, *, is_gone: bool = False) -> None:
        """`target` was asked in vain: the next one is told."""
        self.tried[target.url] = target.sequencer_id
        self.gone.pop(target.url, None)
        if is_gone:
            self.gone[target.url] = target.sequencer_id

    def forget_tried(self) -> None:
        """Everybody may be asked again."""
        self.tried.clear()
        self.redirect_count = 0

    async def _sleep(self, delay: float, last: DuramenError) -> None:
        if asyncio.get_running_loop().time() + delay >= self.deadline:
            raise last
        await asyncio.sleep(delay)


class OrderedBatch(NamedTuple):
    """A batch of a session, checked, with its conditions and who made it."""

    batch: bytes
    options: AppendOptions = NO_OPTIONS
    producer: BatchProducer | None = None


class Appender:
    """Brings batches to the sequencers that own their logs."""

    def __init__(self, router: Router, lanes: Lanes) -> None:
        self._router = router
        self._lanes = lanes
        names = ("redirects", "unreachable", "pauses", "retries", "repeats", "ended_tries")
        self._counts = dict.fromkeys(names, 0)
        self._tries: dict[str, dict[asyncio.Timeout, None]] = {}
        """Of each sequencer: what waits for it and may be sent again."""

    async def append(
        self,
        key: str,
        log_id: LogId,
        batch: bytes,
        deadline: float,
        options: AppendOptions = NO_OPTIONS,
        *,
        is_repeatable: bool = False,
    ) -> Stored:
        """Append one batch, once.

        Args:
            key: `namespace/log`, for routing.
            batch: an encoded record batch that was checked.
            deadline: in the loop's time.
            options: the conditions that a sequencer judges.
            is_repeatable: the batch has a producer, so that it may be sent again if its fate is
                open.

        Raises:
            DuramenError: a sequencer's refusal, `log_unavailable`, `overloaded`,
                `append_uncertain`.
        """
        if is_repeatable:
            return await self._repeat(key, log_id, batch, deadline, options)
        journey = _Journey(deadline, options, is_repeatable=False)
        target = self._router.pick(key, log_id)
        # The usual case, without the bookkeeping of the others.
        if target is None or self._router.list_away():
            return await self._travel(key, log_id, batch, journey, None)
        try:
            result = await self._lanes.lane_of(target.url).append(log_id, batch, deadline, options)
        except UnreachableError as error:
            return await self._travel(key, log_id, batch, journey, (target, error))
        if isinstance(result, Stored):
            self._router.learn(log_id, target)
            return result
        return await self._travel(key, log_id, batch, journey, (target, result))

    async def _repeat(
        self, key: str, log_id: LogId, batch: bytes, deadline: float, options: AppendOptions
    ) -> Stored:
        """Append a batch with a producer; what was uncertain once is settled only by success."""
        journey = _Journey(deadline, options, is_repeatable=True)
        try:
            return await self._travel(key, log_id, batch, journey, None)
        except DuramenError as error:
            if journey.was_uncertain and not error.uncertain:
                raise uncertain(f"its repetition ended in {error.code} ({error.detail})") from error
            raise

    async def append_in_order(
        self,
        key: str,
        log_id: LogId,
        batches: Sequence[OrderedBatch],
        deadline: float,
    ) -> list[Outcome]:
        """Append batches of one session: those in the log stand there in this order.

        Each has its own outcome. Where one is refused for a while, it is sent again together with
        those behind it, as long as none of those can be in the log (`intake.settling`).

        Args:
            key: `namespace/log`, for routing.
            batches: at least one, together far below a frame.
            deadline: in the loop's time, of all of them.
        """
        # Repeatable or not: that is the group's to decide, batch by batch.
        journey = _Journey(deadline, NO_OPTIONS, is_repeatable=True, retried=_RETRIED_IN_SESSION)
        group = Group(
            [batch.producer for batch in batches],
            lambda refusal: refusal.code in _RETRIED_IN_SESSION,
        )
        try:
            await self._carry_group(key, log_id, batches, journey, group)
        except DuramenError as error:
            return group.outcomes(_unsettled() if error.uncertain else error)
        return group.outcomes(_unsettled())

    async def _carry_group(
        self,
        key: str,
        log_id: LogId,
        batches: Sequence[OrderedBatch],
        journey: _Journey,
        group: Group,
    ) -> None:
        """Send a group until each batch is settled.

        Raises:
            DuramenError: why the rest of it was given up.
        """
        # Shorter tries only where an open fate costs nothing.
        can_repeat_all = all(batch.producer is not None for batch in batches)
        target = self._router.pick(key, log_id)
        while True:
            while target is None:
                self._counts["pauses"] += 1
                await journey.pause(_no_sequencer())
                target = self._router.pick(key, log_id)
            tried = self._tried_before(journey, target)
            rows = [
                (batches[i].batch, batches[i].options._replace(tried=tried)) for i in group.open
            ]
            deadline = journey.next_deadline() if can_repeat_all else journey.deadline
            call = self._try_together(target, log_id, rows, deadline, may_end_early=can_repeat_all)
            answer = group.settle(await call)
            if answer is None:
                if group.is_any_stored:
                    self._router.learn(log_id, target)
                return
            target = await self._next(key, log_id, journey, target, answer)

    async def _try_together(
        self,
        target: Target,
        log_id: LogId,
        rows: Sequence[tuple[bytes, AppendOptions]],
        deadline: float,
        *,
        may_end_early: bool,
    ) -> Sequence[Result]:
        call = self._lanes.lane_of(target.url).append_together(log_id, rows, deadline)
        try:
            return await (self._until_away(target, call) if may_end_early else call)
        except DuramenError as error:
            if error.code == "server_draining":
                raise
            # For lack of room here: none of them was sent.
            return [error] * len(rows)

    def statistics(self) -> dict[str, int]:
        """What did not go straight, since the start."""
        return dict(self._counts)

    def end_tries(self) -> None:
        """Somebody is away who was not: end what waits there and may be sent elsewhere."""
        now = asyncio.get_running_loop().time()
        for name in self._router.list_away():
            for scope in list(self._tries.get(name, ())):
                self._counts["ended_tries"] += 1
                scope.reschedule(now)

    async def _try(
        self, log_id: LogId, batch: bytes, journey: _Journey, target: Target
    ) -> AppendResult:
        """One try at one sequencer.

        Raises:
            UnreachableError, DuramenError: as a lane.
        """
        options = journey.options._replace(tried=self._tried_before(journey, target))
        lane = self._lanes.lane_of(target.url)
        call = lane.append(log_id, batch, journey.next_deadline(), options)
        return await (self._until_away(target, call) if journey.is_repeatable else call)

    async def _until_away(self, target: Target, call: Awaitable[T]) -> T:
        """What a call gives that may be repeated, unless its sequencer is away before.

        Raises:
            DuramenError: `append_uncertain`: it is away; what the call raises.
        """
        scopes = self._tries.setdefault(target.sequencer_id, {})
        scope = asyncio.timeout(None)
        try:
            async with scope:
                scopes[scope] = None
                return await call
        except TimeoutError:
            raise uncertain("the sequencer answers nobody") from None
        finally:
            scopes.pop(scope, None)
            if not scopes and self._tries.get(target.sequencer_id) is scopes:
                del self._tries[target.sequencer_id]

    def _tried_before(self, journey: _Journey, target: Target) -> tuple[str, ...]:
        """Whom `target` is told of: where the append was in vain, or would be."""
        names = dict.fromkeys((*journey.tried_before(target), *self._router.list_away()))
        names.pop(target.sequencer_id, None)
        return tuple(names)

    async def _travel(
        self,
        key: str,
        log_id: LogId,
        batch: bytes,
        journey: _Journey,
        last: tuple[Target, Redirect | DuramenError | UnreachableError] | None,
    ) -> Stored:
        """Go on from the `last` answer until the batch is appended or the time is over."""
        while True:
            if last is None:
                target = self._router.pick(key, log_id, journey.tried)
            else:
                target = await self._next(key, log_id, journey, *last)
            while target is None:
                self._counts["pauses"] += 1
                await journey.pause(_no_sequencer())
                target = self._router.pick(key, log_id)
            try:
                result = await self._try(log_id, batch, journey, target)
            except UnreachableError as error:
                last = (target, error)
                continue
            except DuramenError as error:
                if not (journey.is_repeatable and error.uncertain):
                    raise
                last = (target, error)
                continue
            if isinstance(result, Stored):
                self._router.learn(log_id, target)
                return result
            last = (target, result)

    async def _next(
        self,
        key: str,
        log_id: LogId,
        journey: _Journey,
        target: Target,
        answer: Redirect | DuramenError | UnreachableError,
    ) -> Target | None:
        """Whom to ask after `target` gave `answer`; None: nobody is left.

        Raises:
            DuramenError: the answer is final.
        """
        match answer:
            case UnreachableError():
                self._counts["unreachable"] += 1
                journey.add_tried(target, is_gone=True)
                self._router.forget(log_id, target)
                return self._router.pick(key, log_id, journey.tried)
            case Redirect(sequencer_id, url):
                self._counts["redirects"] += 1
                journey.add_tried(target)
                journey.redirect_count += 1
                owner = Target(sequencer_id, url)
                if url in journey.tried or journey.redirect_count > REDIRECT_COUNT_MAX:
                    self._router.forget(log_id, target)
                    self._counts["pauses"] += 1
                    await journey.pause(_unsettled())
                self._router.learn(log_id, owner)
                return owner
            case DuramenError():
                if not journey.may_retry(answer):
                    raise answer
                if answer.uncertain:
                    self._counts["repeats"] += 1
                    journey.was_uncertain = True
                    await journey.pause_shortly(answer)
                    # Whoever answers next: not the one that may be frozen, unless nobody else does.
                    self._router.forget(log_id, target)
                    journey.add_tried(target)
                    return self._router.pick(key, log_id, journey.tried)
                self._counts["retries"] += 1
                if answer.code in _ASK_ANOTHER:
                    journey.add_tried(target)
                    self._router.forget(log_id, target)
                    following = self._router.pick(key, log_id, journey.tried)
                    is_away = answer.code == "metadata_unavailable" and not journey.was_uncertain
                    if following is None and is_away:
                        # None of them reaches the metadata store: a pause would not help soon.
                        raise answer
                    return following
                # Who takes the log over is asked again, not whoever was tried before it.
                is_anew = await journey.pause_shortly(answer)
                return self._router.pick(key, log_id) if is_anew else target


def _no_sequencer() -> DuramenError:
    return DuramenError("log_unavailable", "no sequencer can be reached; nothing was appended")


def _unsettled() -> DuramenError:
    return DuramenError(
        "log_unavailable", "the sequencers do not agree yet who owns the log; nothing was appended"
    )
