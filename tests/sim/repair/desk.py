"""A simulated bookie's part in the cluster: who it is, where it stands, what it copies for repair.

Production code does it all: `identity` puts the bookie's node (and notes an incarnation that is
lost), `OwnNode` follows it, `Registration` says that the bookie is there, `RepairQueue` reports
damage, `InventoryTaker` and `Puller` serve repair. What is played here is `service`, which ties
them together: nothing is served before the node was read, and what it says is enforced by the core
before it is published.

Called by `processes`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import SpaceLevel
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId, Member
from duramen.limits import REPAIR_BYTES_PER_S
from duramen.runtime.registry import Registration
from duramen.runtime.role import StartRefusedError
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.units import MS
from duramen.wire.metadata_json import BookieNode as OwnFields
from duramen.wire.metadata_json import read_node
from duramen.wire.repair_calls import Inventory, InventoryAnswer, Pull, PullAnswer, Source
from duramen_bookie import identity
from duramen_bookie.repair.inventory import InventoryTaker
from duramen_bookie.repair.own_node import OwnNode
from duramen_bookie.repair.proofs import MetadataProofs
from duramen_bookie.repair.pulling import Puller
from duramen_bookie.upkeep.pacing import Pace
from duramen_bookie.upkeep.repair_queue import RepairQueue, RepairReason
from duramen_bookie.upkeep.space import SpaceReport, SpaceWatch
from tests.sim.metadata import PATHS
from tests.sim.options import FULL_DISK
from tests.sim.repair.calls import SimBookieClient
from tests.sim.storage import LAYOUT

if TYPE_CHECKING:
    from tests.sim.data_plane import CountedPlane
    from tests.sim.processes import BookieNode
    from tests.sim.storage import SimStorage

_RETRY_US: Final = 300 * MS
_OLD_SESSION_S: Final = 20.0
_UNBOUND_BYTES_PER_S: Final = 1 << 50

T = TypeVar("T")
Reply = Callable[[Any], None]

_FORMATS: Final = {"formats": {"envelope": 1}}
"""It keeps entries of flexible segments."""


class RemovedError(Exception):
    """The cluster does not know these disks any more: the process does not start."""


class BookieDesk:
    """One life of a bookie process.

    Args:
        client: reads from other bookies.
        plane: stores what was read there.
        on_level: the disk became full, or has space again.
    """

    def __init__(
        self,
        bookie: BookieNode,
        core: BookieCore,
        storage: SimStorage,
        client: SimBookieClient,
        *,
        plane: CountedPlane,
        proofs: MetadataProofs,
        on_level: Callable[[SpaceLevel], None],
    ) -> None:
        self.is_serving = False
        self._proofs = proofs
        self._bookie = bookie
        self._core = core
        self._storage = storage
        self._store = cast(MetadataStore, bookie.session)
        self._member: Member = bookie.member
        self._queue = RepairQueue(self._store, PATHS, self._member)
        self._own_node = OwnNode(
            self._store, PATHS, self._member.bookie, self._member.incarnation, self._on_node
        )
        self._registration: Registration | None = None
        self._space = SpaceReport("rw", 1)
        self._watch = SpaceWatch(
            [LAYOUT.journal], bookie.disk, on_level=on_level, on_report=self._on_space
        )
        pace = Pace(REPAIR_BYTES_PER_S, now_us=lambda: bookie.world.now_us)
        self._inventories = InventoryTaker(storage, pace, on_damage=self.on_damage)
        unbound = Pace(_UNBOUND_BYTES_PER_S, now_us=lambda: bookie.world.now_us)
        self._stock = InventoryTaker(storage, unbound, on_damage=self.on_damage)
        self._puller = Puller(core, cast(Any, client), self._find_source, plane.store_copies, pace)

    # --- Start (as `service`) --------------------------------------------------------------------

    async def run(self) -> None:
        """Become one of the cluster's bookies, and serve."""
        try:
            await self._insist(self._establish)
        except (RemovedError, StartRefusedError) as error:
            self._bookie.refuse_start(str(error), is_for_good=isinstance(error, RemovedError))
            return
        await self._own_node.start()
        if FULL_DISK in self._bookie.options.faults:
            await self._watch.start()
        self._queue.start()
        for ledger_id in self._storage.damaged_ledgers():
            self._queue.put(ledger_id, RepairReason.REPLAY)
        self.is_serving = True
        path = f"{PATHS.available}/{self._bookie.name}"
        self._registration = Registration(self._store, path, self._fields())
        await self._registration.start()
        if self._core.is_doubtful and not self._core.is_doubt_bounded:
            await self._insist(self._bound_doubt)

    async def _insist(self, step: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await step()
            except MetadataError:
                await self._bookie.pass_time(_RETRY_US)

    async def _establish(self) -> None:
        """As `identity.establish_identity`, whose directories are played."""
        bookie, store = self._bookie, self._store
        path = PATHS.bookie(self._member.bookie)
        await store.sync(path)
        found = await store.get(path)
        known = {} if found is None else read_node(found.data)
        place = {"region": bookie.region, "rack": bookie.rack}
        incarnation = self._member.incarnation
        fields = {"weight": 1.0, **known, **place, "incarnation": incarnation, **_FORMATS}
        if known.get("incarnation") != incarnation:
            if bookie.is_settled:
                raise RemovedError(f"{bookie.name} was removed from the cluster")
            if found is None:
                await identity._create(store, path, fields)
            else:
                own = f"{PATHS.available}/{bookie.name}"
                await identity._wait_unregistered(store, own, _OLD_SESSION_S)
                await identity._replace(store, PATHS, path, found, known=known, fields=fields)
                bookie.world.counts["bookie began anew"] += 1
        bookie.is_settled = True

    async def _bound_doubt(self) -> None:
        self._core.on_doubt_bounded(await self._proofs.read_registered_at(self._member.bookie))
        self._bookie.world.counts["doubt bounded"] += 1

    def _on_node(self, node: OwnFields) -> None:
        """What the node says holds, then it is published."""
        if node.duty is not self._core.duty:
            self._bookie.world.note(self._bookie.name, f"obeys {node.duty.value}")
        self._core.set_duty(node.duty)
        if self._registration is not None:
            self._registration.update(self._fields())

    def _on_space(self, report: SpaceReport) -> None:
        self._space = report
        if self._registration is not None:
            self._registration.update(self._fields())

    def _fields(self) -> dict[str, Any]:
        node = self._own_node.node
        return {
            "incarnation": self._member.incarnation,
            "data_url": self._bookie.name,
            "state": self._space.state,
            "free_bytes": self._space.free_bytes,
            "draining": not node.duty.takes_new_ledgers,
            "duty": node.duty.value,
            "region": node.region,
            "rack": node.rack,
            "weight": node.weight,
            "doubtful": self._core.is_doubtful,
            **_FORMATS,
        }

    # --- Repair (as `calls`) ---------------------------------------------------------------------

    def on_damage(self, ledger_id: LedgerId) -> None:
        """An entry of this ledger turned out to be damaged: report it."""
        self._bookie.world.counts["damage reported"] += 1
        self._queue.put(ledger_id, RepairReason.READ)

    def take_stock(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> dict[EntryId, int]:
        """What the disks hold of a range now; damage that is met is reported, as a scrub does."""
        taking = self._stock.take(Inventory(ledger_id, first, last))
        try:
            taking.send(None)
        except StopIteration as stop:
            answer: InventoryAnswer = stop.value
            assert answer.next is None, answer
            return dict(answer.entries)
        raise AssertionError("taking stock waits for something")

    def serve(self, kind: str, incarnation: str, wanted: Any, reply: Reply) -> None:
        """Answer a call of repair, in a task of its own."""
        work = self._take_inventory if kind == "inventory" else self._pull
        if incarnation == self._member.incarnation:
            self._bookie.loop.run_task(work(wanted, reply))
        else:
            wrong = BookieStatus.WRONG_INCARNATION
            reply(InventoryAnswer(wrong) if kind == "inventory" else PullAnswer(wrong))

    async def _take_inventory(self, wanted: Inventory, reply: Reply) -> None:
        answer = await self._inventories.take(wanted)
        self._core.ask_if_newer(wanted.ledger_id)
        self._bookie.drain()
        reply(answer)

    async def _pull(self, wanted: Pull, reply: Reply) -> None:
        answer = await self._puller.pull(wanted)
        self._bookie.world.counts["entries pulled"] += answer.copied_count
        reply(answer)

    async def _find_source(self, named: Source) -> Source | None:
        """In place of `repair.sources`: here calls go by name, and no address can be wrong."""
        return named
