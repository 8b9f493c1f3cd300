"""Keepers of metadata logs in a simulated sequencer: the production `Keeping`, counted.

Nodes, records, epochs and cores are those that ship; bookies are asked through the process's own
lanes. Only who understands metadata logs is not asked (every process here is of this version), and
what a metadata log has trimmed is kept for seconds, as of the other logs of a run.

Called by `sequencers`; `clock` binds the claims and the configuration. Documented in
docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from duramen.config import LogConfig
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.configuring import metadata_log_config
from duramen.core.sequencer.effects import CommitOutcome, Write
from duramen.ids import LogId
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.units import SECOND
from duramen_sequencer.life.keeping import Keeping
from duramen_sequencer.life.metadata_epochs import ClaimLink
from duramen_sequencer.life.metadata_logs import MetadataLogNodes
from tests.sim.hosting import Process, SimHost
from tests.sim.metadata import PATHS, StoreSession

if TYPE_CHECKING:
    from duramen_sequencer.flexible.tree_format import TreeFormat

_TRUNCATED_US: Final = 6 * SECOND
_REST_US: Final = 1 * SECOND
"""The archive of a run looks again at what it may compact, and does so within seconds."""


class _Agreed:
    """As much of `TreeFormat` as is asked for."""

    async def ensure(self, _field: str) -> None:
        """Everybody understands everything."""


class CountedClaimLink(ClaimLink):
    """The production link of a keeper's driver; what becomes of its claims is counted."""

    async def commit(self, log_id: LogId, writes: Sequence[Write]) -> CommitOutcome:
        """As the link."""
        outcome = await super().commit(log_id, writes)
        world = cast(StoreSession, self.store).node.world
        world.counts[f"metadata commit: {outcome.value}"] += 1
        world.note(str(self.sequencer_id), f"metadata commit {outcome.value}", log_id)
        return outcome


def short_lived_config(config: LogConfig) -> LogConfig:
    """The configuration of a metadata log, of which what is trimmed goes soon."""
    made = metadata_log_config(config)
    kept = made.retention.model_copy(update={"truncated": _TRUNCATED_US})
    return made.model_copy(update={"retention": kept})


def make_keeping(node: Process, host: SimHost, records: MetadataRecords) -> Keeping:
    """The keepers of one life of a process."""
    store = node.link.store

    async def is_ours(log: LogNode) -> bool:
        owner = await node.link.read_owner(log.log_id)
        return host.looks_after(log, None if owner is None else owner.sequencer_id)

    return Keeping(
        host,
        node.context,
        MetadataLogNodes(store, PATHS),
        records,
        cast("TreeFormat", _Agreed()),
        is_ours=is_ours,
        rest_us=_REST_US,
    )
