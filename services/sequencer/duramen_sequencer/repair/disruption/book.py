"""The grants of disruption as they stand in the metadata, and since when this process saw them.

Each change is one compare-and-set of one node, judged on what was read of it, so that of two who
ask at once one is judged again. What is over is left out of what is read, and goes with the next
change or look.

Called by `auditor` and `granting`. Source: docs/protocol/disruption.md 2 and 19, R3.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from duramen.core.repair.disruption_grants import DisruptionGrant, GrantSightings, split_over
from duramen.errors import DuramenError
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.stores.metadata_store import (
    Conflict,
    Create,
    MetadataError,
    MetadataStore,
    Op,
    OutcomeUnknown,
    Set,
    Stored,
    create_parents,
)
from duramen.units import MS
from duramen.wire.metadata_json import MetadataJsonError, Paths
from duramen.wire.nodes.disruptions import DisruptionsNode, encode_disruptions, read_disruptions

_LOG = logging.getLogger(__name__)

SWEEP_S: Final = 60.0
"""Between two looks of the auditor, whoever asks or not."""


@dataclass(frozen=True, slots=True)
class BookPage:
    """The node as it was read.

    Args:
        grants: those that are outstanding; `over`: those that are not any more.
        version: of the node; None: there is none.
    """

    grants: tuple[DisruptionGrant, ...]
    over: tuple[DisruptionGrant, ...]
    node: DisruptionsNode
    version: int | None


class GrantBook:
    """All grants of disruption of a cluster, for one process."""

    def __init__(
        self, store: MetadataStore, paths: Paths, clock_us: Callable[[], int] = now_us
    ) -> None:
        self.path = paths.disruptions
        self._store = store
        self._clock_us = clock_us
        self._sightings = GrantSightings()

    @property
    def session_id(self) -> int:
        """Of the store."""
        return self._store.session_id

    async def read(self) -> BookPage:
        """What stands there now.

        Raises:
            DuramenError: `metadata_unavailable`: it is not understood.
            MetadataError: it is not known.
        """
        await self._store.sync(self.path)
        stored = await self._store.get(self.path)
        try:
            return self._look(stored)
        except MetadataJsonError as error:
            detail = f"{self.path} is not understood ({error}): remove it with ZooKeeper's client"
            raise DuramenError("metadata_unavailable", detail) from error

    def _look(self, stored: Stored | None) -> BookPage:
        node = DisruptionsNode() if stored is None else read_disruptions(stored.data)
        at_us = self._clock_us()
        self._sightings.observe(node.grants, at_us)
        left, over = split_over(node.grants, self._sightings, at_us)
        version = None if stored is None else stored.version
        return BookPage(tuple(left), tuple(over), node, version)

    async def make(self) -> BookPage:
        """The same, of a node that is there from now on.

        Raises:
            As `read`.
        """
        page = await self.read()
        while page.version is None:
            with contextlib.suppress(Conflict, OutcomeUnknown):
                await self.write(page, ())
            page = await self.read()
        return page

    async def write(
        self, page: BookPage, grants: Sequence[DisruptionGrant], checks: Sequence[Op] = ()
    ) -> None:
        """Have these be outstanding instead of those of a page.

        Args:
            checks: what has to be so as well.

        Raises:
            Conflict: the node, or what is checked, has changed since.
            OutcomeUnknown: it may be written or not; MetadataError: it is not written.
        """
        data = encode_disruptions(replace(page.node, grants=tuple(grants)))
        if page.version is None:
            await create_parents(self._store.commit, self.path)
            own: Op = Create(self.path, data)
        else:
            own = Set(self.path, data, page.version)
        await self._store.commit((own, *checks))
        self._sightings.observe(grants, self._clock_us())

    async def sweep(self) -> None:
        """Look, so that what nobody asks about grows old as well, and take out what is over.

        What cannot be read or written stays: who asks for a grant is told of it.
        """
        try:
            page = await self.read()
            if page.over:
                await self.write(page, page.grants)
        except (DuramenError, MetadataError) as error:
            _LOG.warning("grants of disruption are not looked at: %s", error)

    def forget(self) -> None:
        """This process is not the auditor any more: what it saw counts for nothing."""
        self._sightings.forget()

    def left_ms(self, grant: DisruptionGrant) -> int:
        """How much longer it is outstanding at most, if nobody renews it."""
        return self._sightings.left_us(grant, self._clock_us()) // MS
