"""Keeps current what placement sees of the cluster: bookies, their places, closed regions.

Follows `available`, `bookies` and the node `regions`. A location that is changed in `bookies/<id>`
counts from the moment that it is seen here, and where a bookie was that is gone stays known: its
copies are still somewhere. A former life of a bookie was where its successor is. Who left and came
back is unsteady for a while (`core.placement.steadiness`); the end of that is a change, too.

Not here: the rule (`core.placement`). Called by the sequencer's service and by
`duramen.client.core`. Source: docs/protocol/placement.md "Choosing".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from duramen.core.flexible.nodeset import list_serving
from duramen.core.placement.roster import BookieRow, choose_candidates, list_present, read_rows
from duramen.core.placement.rule import Candidate
from duramen.core.placement.steadiness import Steadiness
from duramen.core.sequencer.context import SequencerContext
from duramen.ids import BookieId, Member
from duramen.limits import STEADY_AFTER_US
from duramen.runtime.registry import Follower, Roster
from duramen.runtime.security.peers import Learn
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import SECOND
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node

_LOG = logging.getLogger(__name__)

_TIMER_SLACK_S: Final = 0.01
"""Loops round their timers: a look a little early would only set the next one."""

LOCATIONS_MAX: Final = 10_000
"""Members of which the place is kept: bookies, and lives of them that are over."""


class Surveyor:
    """Fills in what the context says of bookies, and their URLs.

    Args:
        on_change: called after every change, with the context current.
        steady_after_us: how long a bookie that came back counts as unsteady.
        now_us: a monotonic clock.
        learn: as of `Roster`, of bookies.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        context: SequencerContext,
        on_change: Callable[[], None],
        *,
        steady_after_us: int = STEADY_AFTER_US,
        now_us: Callable[[], int] = now_us,
        learn: Learn | None = None,
    ) -> None:
        self.urls: dict[BookieId, str] = {}
        self.closed: tuple[str, ...] = ()
        self._path = paths.regions
        self._context = context
        self._on_change = on_change
        self._now_us = now_us
        self._steadiness = Steadiness(steady_after_us)
        self._timer: asyncio.TimerHandle | None = None
        self._available = Roster(store, paths.available, self._refresh, learn=learn)
        self._registered = Roster(store, paths.bookies, self._refresh)
        self._regions = Follower(store, paths.regions, self._look_at_regions)

    async def start(self) -> None:
        """Read everything once and follow it from then on."""
        await self._regions.start()
        await self._registered.start()
        await self._available.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._available.stop()
        await self._registered.stop()
        await self._regions.stop()
        if self._timer is not None:
            self._timer.cancel()

    def list_bookies(self) -> list[BookieRow]:
        """Every bookie, by id."""
        unsteady = self._steadiness.list_unsteady(self._now_us())
        return read_rows(self._available.nodes, self._registered.nodes, self.closed, unsteady)

    def locate(self, members: set[Member]) -> dict[Member, Candidate]:
        """Where members are, as far as it is known; by their bookie's place if need be."""
        locations = self._context.locations or {}
        places = {row.bookie: row.candidate for row in self.list_bookies()}
        found = {member: locations.get(member) or places.get(member.bookie) for member in members}
        return {member: place for member, place in found.items() if place is not None}

    def statistics(self) -> dict[str, Any]:
        """What is there now."""
        return {
            "bookies": len(self._available.nodes),
            "bookies_registered": len(self._registered.nodes),
            "bookies_taking_new_data": len(self._context.candidates),
            "bookies_unsteady": len(self._steadiness.list_unsteady(self._now_us())),
            "closed_regions": list(self.closed),
        }

    def _refresh(self) -> None:
        made = {BookieId(name): number for name, number in self._available.made.items()}
        self._steadiness.observe(made, self._now_us())
        self._set_timer()
        rows = self.list_bookies()
        for name, node in self._available.nodes.items():
            if isinstance(node.get("data_url"), str):
                self.urls[BookieId(name)] = node["data_url"]
        locations = dict(self._context.locations or {})
        for row in rows:
            member = row.candidate.member
            locations.pop(member, None)
            locations[member] = row.candidate
        while len(locations) > LOCATIONS_MAX:
            del locations[next(iter(locations))]
        candidates = [c for c in choose_candidates(rows) if c.member.bookie in self.urls]
        self._context.candidates = candidates
        self._context.locations = locations
        self._survey_flexible(rows)
        self._on_change()

    def _survey_flexible(self, rows: list[BookieRow]) -> None:
        """What flexible epochs see: who may be in a nodeset, and who is there."""
        self._context.serving = list_serving(rows)
        roster = list_present(rows)
        if roster != self._context.roster:
            self._context.roster = roster  # writers know by the object whether it is another one

    def _set_timer(self) -> None:
        """Look again when the next bookie has stayed long enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left_us = min(self._steadiness.list_unsteady(self._now_us()).values(), default=None)
        if left_us is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(left_us / SECOND + _TIMER_SLACK_S, self._refresh)

    async def _look_at_regions(self) -> None:
        stored = await self._regions.get(self._path)
        try:
            closed = () if stored is None else read_closed(read_node(stored.data))
        except MetadataJsonError as error:
            _LOG.error("%s is not understood: %s", self._path, error)
            return
        if closed != self.closed:
            _LOG.info("closed regions: %s", ", ".join(closed) or "none")
            self.closed = closed
            self._refresh()


def read_closed(fields: dict[str, Any]) -> tuple[str, ...]:
    """The closed regions of the node's fields, sorted.

    Raises:
        MetadataJsonError: they are no list of texts.
    """
    closed = fields.get("closed", [])
    if not isinstance(closed, list) or not all(isinstance(name, str) for name in closed):
        raise MetadataJsonError("closed: a list of regions is expected")
    return tuple(sorted(set(closed)))
