"""Who should get a log's appends: reads what is known, asks the core, looks at doubtful owners.

An owner that a proxy has tried in vain, that is not in the roster any more, or that is said to be
away, is looked at. If its process refuses connections, or is away, the log is the next sequencer's
at once. If it is there, it is given a moment to let go of the log (it may be handing it over), and
then the append is refused for now. An owner that has the log by such a hint itself keeps it. A log
that was lost lately is left alone for a pause, and one of an embedded writer for as long as that
one has its session.

Called by `log_host`. The decisions are `core.ownership.choice`'s and `loss_pauses`'.
Source: docs/protocol/ownership.md "Whose is a log" and "Failure detection".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from duramen.core.hashing import rank_nodes, weights_of
from duramen.core.log_node import LogNode
from duramen.core.ownership.choice import (
    OwnerChoice,
    OwnerVerdict,
    choose_next_owner,
    choose_owner,
)
from duramen.core.ownership.loss_pauses import LossPauses
from duramen.core.ownership.relief import can_append
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import Owner
from duramen.errors import DuramenError
from duramen.ids import LogId, SequencerId, is_metadata_log
from duramen.runtime.registry import Roster
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import MS
from duramen.wire.metadata_json import MetadataJsonError, read_log
from duramen.wire.sequencer_calls import Redirect
from duramen_sequencer.ownership.probes import Probes

_LOOK_COUNT: Final = 6
_LOOK_INTERVAL_S: Final = 0.02
"""An owner that closes a segment in peace needs some 10 to 50 ms."""

_AWAY_LOOK_S: Final = 0.05
"""A machine that is there accepts or refuses a connection much sooner."""

_PENDING_OWNER_KEPT_US: Final = 5_000 * MS
"""To whom a log was handed over: the owner node says so within a takeover's time."""

_PENDING_OWNER_COUNT_MAX: Final = 10_000


class _PendingOwner(NamedTuple):
    sequencer_id: str
    until_us: int


class Claims:
    """Whose the logs are, as far as this process can know.

    Args:
        probes: looks at other processes; real connections, if None.
        away: sequencers that answer nobody, as their neighbours say: a hint.
        now_us: the monotonic clock.
    """

    def __init__(
        self,
        context: SequencerContext,
        link: MetadataLink,
        sequencers: Roster,
        *,
        probes: Probes | None = None,
        away: Callable[[], Collection[str]] = tuple,
        now_us: Callable[[], int] = now_us,
    ) -> None:
        self._id = context.sequencer_id
        self._context = context
        self._now_us = now_us
        self._link = link
        self._sequencers = sequencers
        self._pending_owners: dict[LogId, _PendingOwner] = {}
        self._probes = probes or Probes()
        self._away = away
        self.pauses = LossPauses(context.rng)
        self.hint_count = 0
        self.away_count = 0

    async def find_owner(
        self, log_id: LogId, tried: Collection[str] = (), *, is_leaving: bool = False
    ) -> Redirect | None:
        """Who should get the log's appends: None if it is this process.

        Args:
            tried: sequencers that were asked in vain, none of which is named.
            is_leaving: this process takes no logs any more.

        Raises:
            DuramenError: `log_not_found`, `metadata_unavailable`; `log_held`: an embedded writer
                has it; `log_unavailable`: retry, its owner is there and did not take the append,
                or it was lost lately;
                `server_draining`: this process is stopping and nobody else is there.
        """
        if is_metadata_log(log_id):
            # Its keeper claims it in a change of its own; an append comes from nobody.
            raise DuramenError("log_not_found", f"no log has the id {log_id}", field="log")
        try:
            return await self._find_owner(log_id, tried, is_leaving=is_leaving)
        except (MetadataError, MetadataJsonError) as error:
            raise DuramenError(
                "metadata_unavailable", f"ownership is not known: {error}"
            ) from error

    def rank(self, log: LogNode, *, without: Collection[str] = ()) -> list[str]:
        """Live sequencers by their claim on the log, strongest first.

        Those that say that they reach too few bookies for it stand behind all others.
        """
        nodes = self._sequencers.nodes
        names = [
            name
            for name in rank_nodes(f"{log.namespace}/{log.name}", weights_of(nodes))
            if name not in without
        ]
        candidates = self._context.candidates
        cut_off = [
            name
            for name in names
            if (unreached := unreached_by(nodes[name]))
            and not can_append(log.config, candidates, unreached)
        ]
        return [name for name in names if name not in cut_off] + cut_off

    def rank_able(self, log: LogNode, able: Collection[str]) -> list[str]:
        """Those of `able` that take logs by hash, strongest first."""
        return [name for name in self.rank(log) if name in able]

    def list_unreached(self) -> dict[str, Collection[str]]:
        """The bookies that every other live sequencer says it does not reach."""
        return {
            name: unreached
            for name, fields in sorted(self._sequencers.nodes.items())
            if name != self._id and (unreached := unreached_by(fields)) is not None
        }

    def first_of(self, log: LogNode) -> str:
        """The sequencer that the hash names; this one if none is known."""
        return next(iter(self.rank(log)), self._id)

    async def read_log(self, log_id: LogId) -> LogNode | None:
        """The log node, None if there is none.

        Raises:
            MetadataError, MetadataJsonError: it cannot be read.
        """
        stored = await self._link.store.get(self._link.paths.log(log_id))
        return None if stored is None else read_log(stored.data)

    def url_of(self, sequencer_id: str) -> str | None:
        """Where a live sequencer serves."""
        url = self._sequencers.nodes.get(sequencer_id, {}).get("data_url")
        return url if isinstance(url, str) else None

    def note_pending_owner(self, log_id: LogId, sequencer_id: str) -> None:
        """The log was handed over to a sequencer that may not have put its node yet."""
        self._pending_owners.pop(log_id, None)
        if len(self._pending_owners) >= _PENDING_OWNER_COUNT_MAX:
            del self._pending_owners[next(iter(self._pending_owners))]
        self._pending_owners[log_id] = _PendingOwner(
            sequencer_id, self._now_us() + _PENDING_OWNER_KEPT_US
        )

    def forget_pending_owner(self, log_id: LogId) -> None:
        """The log was taken back, or its pending owner did not take it."""
        self._pending_owners.pop(log_id, None)

    def note_taken(self, log_id: LogId) -> None:
        """The log's owner hands it over to this process: it is no pending owner's, and no hint
        brings it here.
        """
        self.forget_pending_owner(log_id)
        self._context.hints.forget(log_id)

    def statistics(self) -> dict[str, int]:
        """Hints that led to a takeover, probes, logs that are left alone."""
        return {
            "hinted_takeovers": self.hint_count,
            "away_takeovers": self.away_count,
            "probes": self._probes.probe_count,
            "refused_probes": self._probes.refused_count,
            "lost_logs": len(self.pauses),
        }

    # --- Finding ---------------------------------------------------------------------------------

    async def _find_owner(
        self, log_id: LogId, tried: Collection[str], *, is_leaving: bool
    ) -> Redirect | None:
        away = set(self._away()) - {self._id}
        without = {*tried, *away, self._id} if is_leaving else {*tried, *away}
        for look in range(_LOOK_COUNT):
            if look:
                await asyncio.sleep(_LOOK_INTERVAL_S)
                await self._link.store.sync(self._link.paths.log(log_id))
            owner = await self._link.read_owner(log_id)
            log = None if owner is not None else await self.read_log(log_id)
            if owner is None:
                self._context.hints.forget(log_id)
            if owner is None and log is None:
                raise DuramenError(
                    "log_not_found", f"there is no log with id {log_id}", field="log"
                )
            choice = self._choose(log_id, owner, log, without)
            if choice.verdict is OwnerVerdict.PROBE:
                assert owner is not None, choice
                if not await self._is_gone(log_id, owner, away):
                    continue
                choice = await self._succeed(log_id, owner, without)
            return self._act_on(log_id, owner, choice, is_leaving=is_leaving)
        raise DuramenError(
            "log_unavailable", "the log's owner is there and does not take appends now"
        )

    def _choose(
        self, log_id: LogId, owner: Owner | None, log: LogNode | None, without: Collection[str]
    ) -> OwnerChoice:
        pending_owner = self._pending_owners.get(log_id)
        if pending_owner is not None and pending_owner.until_us <= self._now_us():
            del self._pending_owners[log_id]
            pending_owner = None
        return choose_owner(
            self._id,
            owner=None if owner is None else owner.sequencer_id,
            is_embedded=owner is not None and owner.is_embedded,
            pending_owner=None if pending_owner is None else pending_owner.sequencer_id,
            ranked=() if log is None else self.rank(log),
            live=self._sequencers.nodes,
            tried=without,
        )

    async def _is_gone(self, log_id: LogId, owner: Owner, away: Collection[str]) -> bool:
        """Whether an owner that did not take the append is not there, or said to be away.

        The first is the better reason: the connection is tried also where the second is known.
        """
        is_away = owner.sequencer_id in away and not owner.by_hint
        try:
            async with asyncio.timeout(_AWAY_LOOK_S if is_away else None):
                is_refused = await self._probes.is_refused(owner.data_url)
        except TimeoutError:
            is_refused = False
        if is_refused:
            self._context.hints.forget(log_id)
            self.hint_count += 1
        elif is_away:
            self._context.hints.note(log_id, self._now_us())
            self.away_count += 1
        return is_refused or is_away

    async def _succeed(self, log_id: LogId, owner: Owner, without: Collection[str]) -> OwnerChoice:
        """Whose the log of a dead owner becomes."""
        log = await self.read_log(log_id)
        ranked = [] if log is None else self.rank(log)
        return choose_next_owner(
            self._id, pending_owner=None, ranked=ranked, tried={*without, owner.sequencer_id}
        )

    def _act_on(
        self, log_id: LogId, owner: Owner | None, choice: OwnerChoice, *, is_leaving: bool
    ) -> Redirect | None:
        if choice.verdict is OwnerVerdict.HELD:
            raise DuramenError(
                "log_held",
                f"it is written by {choice.sequencer_id}, which takes no other's appends",
            )
        if choice.verdict is OwnerVerdict.REDIRECT:
            url = self.url_of(choice.sequencer_id)
            if url is None:
                raise DuramenError("log_unavailable", f"{choice.sequencer_id} has just left")
            return Redirect(SequencerId(choice.sequencer_id), url)
        if is_leaving:
            raise DuramenError("server_draining", "this sequencer is stopping")
        left_us = self.pauses.left_us(log_id, self._now_us())
        is_own = owner is not None and owner.sequencer_id == self._id
        if left_us and not is_own:
            raise DuramenError(
                "log_unavailable",
                "another sequencer has just taken the log from this one",
                retry_after_ms=max(left_us // MS, 1),
            )
        return None


def unreached_by(fields: Mapping[str, Any]) -> Collection[str] | None:
    """What a sequencer's roster node says of bookies; None: it says nothing."""
    names = fields.get("unreached")
    is_said = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_said else None


def pick_target(claims: Claims, log: LogNode, wanted: str | None, self_id: str) -> tuple[str, str]:
    """To whom a log is handed over, and where that is: the wanted one, else the next by hash.

    Raises:
        DuramenError: `invalid_argument`, field `to`: not live, this one, or nobody else is there.
    """
    target: Any = wanted
    if target is None:
        target = next(iter(claims.rank(log, without=(self_id,))), None)
    url = None if target is None else claims.url_of(target)
    if target is None or target == self_id or url is None:
        who = "nobody else" if target is None else target
        raise DuramenError(
            "invalid_argument", f"{who}: another sequencer that is live is needed", field="to"
        )
    return target, url
