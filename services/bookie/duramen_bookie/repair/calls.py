"""Repair's calls on the data port: so many at once, at one pace, ended when the bookie stops.

A pull or an inventory takes seconds, so each is a task of its own: when the client goes away it is
cancelled, when the bookie stops all are. What finds its kind full is refused with advice when to
ask again, as any class of service does.

Not here: what the calls do (`inventory`, `pulling`), when repair is needed (the auditor). Called by
the data plane, started and stopped by `service`. Source: docs/protocol/wire.md,
docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from duramen.client.bookie_client import BookieClient
from duramen.core.status import BookieStatus
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.units import SECOND
from duramen.wire.bookie_calls import ServiceClass
from duramen.wire.repair_calls import (
    INVENTORY_PATH,
    PULL_PATH,
    InventoryAnswer,
    PullAnswer,
    pack_inventory_answer,
    pack_pull_answer,
    parse_any_pull,
    parse_inventory,
)
from duramen_bookie.handlers import DataPlane, StoppingError
from duramen_bookie.metrics import show_repair
from duramen_bookie.repair.inventory import InventoryTaker
from duramen_bookie.repair.pulling import FindSource, Puller, PullStoppedError
from duramen_bookie.repair.yielding import YieldingPace
from duramen_bookie.storage import Storage

PULL_COUNT_MAX: Final = 4
"""At once: some 40 MiB each if all entries are the largest, and the pace is for all together."""

INVENTORY_COUNT_MAX: Final = 4
"""At once: a piece each."""

_READ_PATIENCE_US: Final = 1 * SECOND
"""How long an answer is held back at most: well before whoever pulls takes it for silence."""


class RepairCalls:
    """Serves `inventory` and `pull` on a data plane.

    Args:
        storage: started.
        plane: refuses, and stores what a pull fetches.
        find_source: where the bookies are that a pull names.
        pace: of pulls, inventories, and what others pull from here. None: as `limits.py` has it.
        security: by which other bookies are asked.
    """

    def __init__(
        self,
        storage: Storage,
        plane: DataPlane,
        find_source: FindSource,
        *,
        pace: YieldingPace | None = None,
        security: ProcessSecurity | None = None,
    ) -> None:
        self._incarnation = storage.core.incarnation
        self._plane = plane
        self._pace = pace or YieldingPace()
        self._client = BookieClient(security)
        self._inventories = InventoryTaker(storage, self._pace, on_damage=plane.on_damage)
        self._puller = Puller(
            storage.core, self._client, find_source, plane.store_copies, self._pace
        )
        self._running: dict[str, set[asyncio.Task[bytes]]] = {"inventory": set(), "pull": set()}
        self._refused_count = 0
        self._is_stopping = False
        self._probe: asyncio.Task[None] | None = None
        plane.serve(INVENTORY_PATH, self._on_inventory)
        plane.serve(PULL_PATH, self._on_pull)
        plane.watch(self._pace.on_client_waited, self._on_repair_read)
        show_repair(self._pace.statistics)

    def start(self) -> None:
        """Begin to look at how late the event loop is; calls are served before, too."""
        self._probe = asyncio.create_task(self._pace.probe())

    async def stop(self) -> None:
        """End what is under way; afterwards no thread of it reads."""
        self._is_stopping = True
        self._pace.stop()
        tasks: list[asyncio.Task[Any]] = [] if self._probe is None else [self._probe]
        tasks += [task for running in self._running.values() for task in running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    def statistics(self) -> dict[str, Any]:
        """What is under way, the bounds, and what was done since the start."""
        return {
            "pulls": len(self._running["pull"]),
            "pulls_max": PULL_COUNT_MAX,
            "inventories": len(self._running["inventory"]),
            "inventories_max": INVENTORY_COUNT_MAX,
            "refused": self._refused_count,
            "pace": self._pace.statistics(),
            **self._puller.statistics(),
            **self._inventories.statistics(),
        }

    async def _on_repair_read(self, size_bytes: int) -> None:
        """Hold an answer to another bookie's pull back: who waits for it asks for less then."""
        await self._pace.admit(size_bytes, patience_us=_READ_PATIENCE_US)

    async def _on_inventory(self, body: bytes, _peer: str) -> bytes:
        incarnation, wanted = parse_inventory(body)
        if incarnation != self._incarnation:
            return pack_inventory_answer(InventoryAnswer(BookieStatus.WRONG_INCARNATION))
        if wanted.is_empty:  # it reads nothing, so it waits for nobody: a mark that is old is none
            return pack_inventory_answer(await self._inventories.take(wanted))

        async def take() -> bytes:
            answer = await self._inventories.take(wanted)
            self._plane.ask_if_newer(wanted.ledger_id)
            return pack_inventory_answer(answer)

        return await self._run("inventory", INVENTORY_COUNT_MAX, take())

    async def _on_pull(self, body: bytes, _peer: str) -> bytes:
        incarnation, wanted = parse_any_pull(body)
        if incarnation != self._incarnation:
            return pack_pull_answer(PullAnswer(BookieStatus.WRONG_INCARNATION))

        async def pull() -> bytes:
            return pack_pull_answer(await self._puller.pull(wanted))

        return await self._run("pull", PULL_COUNT_MAX, pull())

    async def _run(self, kind: str, count_max: int, work: Coroutine[Any, Any, bytes]) -> bytes:
        running = self._running[kind]
        if self._is_stopping or len(running) >= count_max:
            work.close()
            if self._is_stopping:
                raise StoppingError("the bookie is stopping")
            self._refused_count += 1
            raise self._plane.refuse(
                ServiceClass.REPAIR, f"{len(running)} calls of repair are under way"
            )
        task = asyncio.create_task(work)
        running.add(task)
        task.add_done_callback(running.discard)
        try:
            return await task
        except PullStoppedError as error:
            raise StoppingError("the bookie is stopping") from error
        except asyncio.CancelledError as error:
            if self._is_stopping:
                raise StoppingError("the bookie is stopping") from error
            raise
        finally:
            task.cancel()
