"""Confirms that this bookie holds nothing of purged logs, so that their tombstones may go.

In order of their sequence: the first tombstone of whose log a ledger is here ends the round. What
is dropped is not this module's to decide (`deletion` reads the log's own node, twice); it looks at
what is left, and a drop counts when it is durable. The confirmation is a field of `bookies/<id>`,
written only while that node names this incarnation: other disks would confirm for these.

Called by `rounds`. Source: docs/protocol/metadata.md "tombstones and tombstones/<sequence>", R4,
docs/protocol/retention.md.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from duramen.ids import Member
from duramen.limits import DELETION_INTERVAL_US
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore, SessionState
from duramen.wire.metadata_json import (
    MetadataJsonError,
    Paths,
    encode_confirmed,
    read_confirmed,
    read_node,
    read_tombstone,
)
from duramen_bookie.upkeep.deletion import LedgerHoldings
from duramen_bookie.upkeep.pacing import Periodic

_LOG = logging.getLogger(__name__)

READ_COUNT_MAX: Final = 1_000
"""Tombstones that one round reads; the next ones come with the next round."""


class Confirmation:
    """What this bookie says of tombstones.

    Args:
        member: this bookie in this life of its disks.
        holdings: what is here.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        member: Member,
        holdings: LedgerHoldings,
        *,
        interval_us: int = DELETION_INTERVAL_US,
    ) -> None:
        self._store = store
        self._paths = paths
        self._member = member
        self._holdings = holdings
        self._rounds = Periodic("tombstones", self.run_round, rest_us=interval_us)
        self._confirmed = 0
        self._counts = dict.fromkeys(("rounds_cut", "waiting_for_drops"), 0)

    def start(self) -> None:
        """Begin with a round at once."""
        self._rounds.start()

    async def stop(self) -> None:
        """Stop confirming."""
        await self._rounds.stop()

    def statistics(self) -> dict[str, Any]:
        """Up to where it has confirmed, and rounds that ended early since the start."""
        return {
            **self._counts,
            "confirmed": self._confirmed,
            "rounds": self._rounds.statistics(),
        }

    async def run_round(self) -> None:
        """Confirm as far as is true now; what the metadata store leaves open waits."""
        if self._store.session is not SessionState.CONNECTED:
            self._counts["rounds_cut"] += 1
            return
        try:
            await self._confirm()
        except (MetadataError, MetadataJsonError) as error:
            # A conflict or an unknown outcome too: the next round begins with what is there (R3).
            self._counts["rounds_cut"] += 1
            _LOG.info("tombstones are not confirmed: %s", error)

    async def _confirm(self) -> None:
        path = f"{self._paths.bookies}/{self._member.bookie}"
        await self._store.sync(path)
        stored = await self._store.get(path)
        if stored is None:
            return
        fields = read_node(stored.data)
        if fields.get("incarnation") != self._member.incarnation:
            return
        confirmed = read_confirmed(fields)
        names = await self._store.children(self._paths.tombstones) or ()
        sequences = sorted(int(name) for name in names if name.isdecimal())
        through = await self._find_last(
            [sequence for sequence in sequences if sequence > confirmed][:READ_COUNT_MAX]
        )
        if through > confirmed:
            data = encode_confirmed(fields, through)
            await self._store.set(path, data, version=stored.version)
            _LOG.info("nothing is here of purged logs up to tombstone %d", through)
        self._confirmed = max(confirmed, through)

    async def _find_last(self, sequences: list[int]) -> int:
        """The last tombstone before the first whose log has a ledger here; 0 if there is none."""
        through = 0
        for sequence in sequences:
            stored = await self._store.get(self._paths.tombstone(sequence))
            if stored is None:
                # Nobody removes it before this bookie has confirmed it: look again later.
                break
            if any(self._holdings.list_sights_of(log) for log in read_tombstone(stored.data)):
                self._counts["waiting_for_drops"] += 1
                break
            through = sequence
        return through
