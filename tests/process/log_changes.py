"""How often metadata of one log were changed, as ZooKeeper counts it.

The versions of the log's own node, of its owner's and of its segments', and of what is owed to
bookies for it. Whatever the product does for a log is a change of one of these, so two readings
tell how many writes a fault cost it, and how many epochs.
Used by tests and figures of flexible logs. Source: docs/protocol/metadata.md.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.ids import LedgerId, LogId, log_of
from duramen.wire.metadata_json import read_log
from tests.process.cluster import LocalCluster
from tests.process.copies import open_store


class LogVersions(NamedTuple):
    """The nodes of a log that are there, each with the number of its changes."""

    by_path: dict[str, int]
    epoch_count: int

    def count_writes(self, earlier: LogVersions) -> int:
        """Changes since an earlier reading: data of nodes, new nodes, nodes that are gone."""
        before, after = earlier.by_path, self.by_path
        gone = before.keys() - after.keys()
        return len(gone) + sum(n - before.get(path, -1) for path, n in after.items())


async def read_versions(cluster: LocalCluster, log_id: LogId) -> LogVersions:
    """As ZooKeeper has them now."""
    async with open_store(cluster) as (store, paths):
        segments = paths.segments(log_id)
        epochs = await store.children(segments) or ()
        names = [paths.log(log_id), paths.owner(log_id), *(f"{segments}/{e}" for e in epochs)]
        for ledger in await store.children(paths.repair_owed) or ():
            if log_of(LedgerId(int(ledger))) == log_id:
                parent = f"{paths.repair_owed}/{ledger}"
                names += [f"{parent}/{one}" for one in await store.children(parent) or ()]
        found = {name: await store.get(name) for name in names}
    by_path = {name: node.version for name, node in found.items() if node is not None}
    log = found[paths.log(log_id)]
    assert log is not None, log_id
    # History of an epoch is told within a minute, in the background: a change for each epoch of the
    # metadata log, which is not the fault's.
    by_path[paths.log(log_id)] -= read_log(log.data).metadata.epoch
    return LogVersions(by_path, len(epochs))
