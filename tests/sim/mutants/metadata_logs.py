"""Mutants of metadata logs: what a keeper binds, what counts, what a rewrite has.

Part of `tests.sim.mutants`. Played where segments are archived, released and moved as they come,
and sequencers die, stop, and hand logs over. Source: docs/protocol/metadata-logs.md "Changes".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from duramen.core.log_node import LogNode
from duramen.core.metadata_log import moving
from duramen.core.metadata_log.keeper import ClaimEpoch, CommitMarks
from duramen.core.metadata_log.listing import PlacedRecord
from duramen.core.metadata_log.moving import StoredNode
from duramen.ids import Epoch
from duramen.runtime.metadata_log.records import MetadataRecords
from duramen.runtime.stores.metadata_store import Check
from duramen_sequencer.life.metadata_epochs import MetadataEpoch
from duramen_sequencer.life.metadata_logs import MetadataLogNodes
from tests.sim.focus import Focus
from tests.sim.mutants.mutant import Mutant

_commit = MetadataLogNodes.commit

_MOVING: Final = Focus(
    (
        "sequencer killed", "sequencer paused", "session expires", "handed over",
        "killed at a commit", "paused at a commit", "early takeover",
    ),
    does_move=True,
)  # fmt: skip


async def _close_nothing(self: MetadataEpoch) -> bool:
    return True


def _bind_nothing(self: MetadataLogNodes, want: ClaimEpoch, epoch: Epoch, nonce: str) -> Check:
    return Check(self._paths.log(want.log.log_id), want.version)


async def _delete_any_version(self: MetadataLogNodes, want: CommitMarks) -> None:
    """Each node goes as it is now."""
    deleted: list[StoredNode] = []
    for node in want.deleted:
        found = await self._store.get(self._paths.segment(want.log.log_id, node.segment.epoch))
        deleted.append(node if found is None else node._replace(version=found.version))
    await _commit(self, CommitMarks(want.log, want.version, deleted))


async def _set_any_log_node(self: MetadataLogNodes, want: CommitMarks) -> None:
    found = await self._store.get(self._paths.log(want.log.log_id))
    assert found is not None
    await _commit(self, CommitMarks(want.log, found.version, want.deleted))


async def _read_what_counts(self: MetadataRecords, log: LogNode) -> Sequence[PlacedRecord] | None:
    return await self.read(log)


def _may_leave_when_closed(log: LogNode, node: StoredNode, *_: Any) -> bool:
    return node.segment.is_closed


MUTANTS: Final[dict[str, Mutant]] = {
    "records-of-an-open-epoch-count": Mutant(
        "metadata-logs.md", "a keeper commits its records before their epoch is closed",
        ((MetadataEpoch, "close", _close_nothing),), focus=_MOVING,
    ),
    "keeper-claims-without-its-log": Mutant(
        "metadata-logs.md", "the claim of an epoch checks the log node and does not set it",
        ((MetadataLogNodes, "bind_claim", _bind_nothing),), focus=_MOVING,
    ),
    "move-of-any-node-version": Mutant(
        "metadata-logs.md", "a segment node leaves that has changed since it was recorded",
        ((MetadataLogNodes, "commit", _delete_any_version),), focus=_MOVING,
    ),
    "move-by-an-overtaken-keeper": Mutant(
        "metadata-logs.md", "a move or a rewrite sets whatever the log node is by then",
        ((MetadataLogNodes, "commit", _set_any_log_node),), focus=_MOVING,
    ),
    "rewrite-up-to-the-last-that-counts": Mutant(
        "metadata-logs.md", "a rewrite leaves behind the history that was told since the last move",
        ((MetadataRecords, "read_closed", _read_what_counts),), focus=_MOVING,
    ),
    "move-of-what-is-hot": Mutant(
        "metadata-logs.md", "a segment node leaves once it is closed, whoever still needs it",
        ((moving, "_may_leave", _may_leave_when_closed),), focus=_MOVING,
    ),
}  # fmt: skip
