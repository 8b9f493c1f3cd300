"""A simulated sequencer's part in repair: it stands for election, and audits while it leads.

The production `Election`, `Auditor` (rounds, worker, commits, copier, drains, rebalance) and the
operations that people ask for run in the process's event loop; a roll is asked for by the
production control operation. Only the calls to bookies are played.

Called by `sequencers`, asked by `faults`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.units import SECOND
from duramen_sequencer.log_changes import LogChanges
from duramen_sequencer.repair.auditor import Auditor, AuditPace
from duramen_sequencer.repair.disruption.granting import Granting
from duramen_sequencer.repair.disruption.judging import BookieJudge
from duramen_sequencer.repair.election import Election
from duramen_sequencer.repair.operations import RepairOperations
from tests.sim.metadata import PATHS
from tests.sim.network import Network
from tests.sim.repair.calls import SimBookieClient
from tests.sim.world import Node

if TYPE_CHECKING:
    from tests.sim.sequencers import SequencerNode

PACE = AuditPace(interval_us=8 * SECOND, rest_min_us=2 * SECOND, grace_us=4 * SECOND)
"""A grace that outlasts most kills, and ends within most of what is longer."""


class AuditSeat:
    """Repair's part of one life of a sequencer process.

    Args:
        peers: calls to other sequencers.
    """

    def __init__(
        self,
        node: SequencerNode,
        network: Network,
        bookies: Mapping[str, Node],
        peers: Any,
    ) -> None:
        self._node = node
        store = cast(MetadataStore, node.session)
        client = cast(Any, SimBookieClient(network, node, bookies))
        rng = node.context.rng
        self.changes = LogChanges(store, PATHS, cast(Any, node.host), peers)
        self.auditor = Auditor(node.link, client, self._ask_roll, rng, PACE)
        fields = {"sequencer": node.name, "admin_url": node.name}
        self._election = Election(store, PATHS.auditor, fields, self._on_leadership)
        calls = cast(Any, peers)
        judge = BookieJudge(self.auditor.readings, node.link, calls, tuple, rng)
        granting = Granting(self.auditor.grant_book, judge, calls, lambda: self.is_leader)
        self._operations = RepairOperations(self.auditor, self._election, granting)
        node.loop.run_task(self._election.start())

    @property
    def is_leader(self) -> bool:
        """Whether this one is the auditor."""
        return self.auditor.is_leader

    async def stop(self) -> None:
        """Give up leadership in peace."""
        await self._election.stop()
        await self.auditor.stop()

    def ask(self, operation: str, request: dict[str, Any]) -> None:
        """Somebody asks the auditor for something."""
        self._node.loop.run_task(self._carry_out(operation, request))

    async def _carry_out(self, operation: str, request: dict[str, Any]) -> None:
        try:
            answer = await self._operations.by_name[operation](request)
            fate = "redirected" if "auditor" in answer else "done"
        except DuramenError as error:
            fate = error.code
        except MetadataError:
            fate = "metadata unavailable"
        self._node.world.note(self._node.name, f"asked: {operation}", *request.values(), fate)
        self._node.world.counts[f"{operation}: {fate}"] += 1

    async def _ask_roll(self, log_id: LogId) -> object:
        self._node.world.counts["roll asked by repair"] += 1
        return await self.changes.roll({"log_id": str(log_id)})

    def _on_leadership(self, is_held: bool) -> None:
        self._node.world.note(self._node.name, "in office" if is_held else "out of office")
        self._node.world.counts["auditor elected"] += is_held
        self.auditor.on_leadership(is_held)
