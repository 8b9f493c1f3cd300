"""Nodes that one may not read, as a thief can make them: nobody else is kept from anything by them.

On the in-memory store; real rights: `tests/contract/test_guarded_sessions.py`.
Source: docs/protocol/metadata-access.md "Nodes that may not be read".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duramen.errors import DuramenError
from duramen.ids import LedgerId, SequencerId
from duramen.runtime import registry
from duramen.runtime.registry import Roster, refuse_unspoken
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Rejected, Stored, Watch
from duramen.wire.metadata_json import Paths, encode_node
from duramen.wire.nodes.formats import PROCESS_FORMATS
from duramen_sequencer.flexible.tree_format import TreeFormat
from duramen_sequencer.repair.readings import Readings, UnreadError
from duramen_writeproxy.cluster.journals import JournalCalls
from tests.waiting import wait_for

PATHS = Paths("c1")
LEDGER = LedgerId(77)
HERE: dict[str, Any] = {"incarnation": "0" * 32, "region": "local", "rack": "r1", "weight": 1.0}


class GuardedStore(MemoryStore):
    """A store that may not read some nodes."""

    def __init__(self) -> None:
        super().__init__(MemoryTree())
        self.hidden: set[str] = set()

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        if path in self.hidden:
            raise Rejected("NoAuthError()")
        return await super().get(path, watch)

    async def make(self, path: str, *, is_hidden: bool = False, **fields: object) -> None:
        await self.create(path, encode_node(fields), make_parents=True)
        if is_hidden:
            self.hidden.add(path)


def run(scenario: Callable[[GuardedStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = GuardedStore()
        await store.start()
        async with asyncio.timeout(30):
            await scenario(store)

    asyncio.run(main())


def test_a_roster_knows_the_others_and_looks_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_UNREAD_LOOK_S", 0.01)

    async def scenario(store: GuardedStore) -> None:
        await store.make(f"{PATHS.available}/hidden", is_hidden=True)
        await store.make(f"{PATHS.available}/seen")
        roster = Roster(store, PATHS.available)
        await roster.start()
        assert list(roster.nodes) == ["seen"]
        await store.make(f"{PATHS.available}/late")
        await wait_for(lambda: set(roster.nodes) == {"late", "seen"})
        store.hidden.clear()
        await wait_for(lambda: set(roster.nodes) == {"hidden", "late", "seen"})
        await roster.stop()

    run(scenario)


def test_a_configuration_waits_for_nobody_who_cannot_be_heard() -> None:
    async def scenario(store: GuardedStore) -> None:
        await store.make(f"{PATHS.available}/hidden", is_hidden=True)
        await store.make(f"{PATHS.available}/seen", formats=dict(PROCESS_FORMATS))
        await refuse_unspoken(store, PATHS, "compression")
        await store.make(PATHS.cluster, uuid="0" * 32, format=1, last_log_id=0)
        with pytest.raises(DuramenError, match=r"know them: bookie hidden; upgrade first"):
            await TreeFormat(store, PATHS).ensure("copysets")

    run(scenario)


def test_the_auditor_takes_a_hidden_registration_for_none_and_a_hidden_bookie_for_a_fault() -> None:
    async def scenario(store: GuardedStore) -> None:
        await store.make(PATHS.bookies)
        await store.make(PATHS.bookie("b1"), **HERE)
        await store.make(f"{PATHS.available}/b1", is_hidden=True)
        link = MetadataLink(store, PATHS, SequencerId("s0"), "http://s0")
        readings = Readings(link, grace_us=0)
        view = await readings.read_view()
        assert [(one.member.bookie, one.is_available) for one in view.bookies.values()] == [
            ("b1", False)
        ]
        await store.make(PATHS.queued(LEDGER), is_hidden=True)
        with pytest.raises(UnreadError, match=r"queue/77 may not be read .*`duramen access apply`"):
            await readings.read_notes(LEDGER)
        store.hidden.add(PATHS.bookie("b1"))
        with pytest.raises(UnreadError, match=r"bookies/b1 may not be read"):
            await readings.read_view()

    run(scenario)


def test_a_bookie_that_cannot_be_asked_is_silent() -> None:
    async def scenario(store: GuardedStore) -> None:
        await store.make(f"{PATHS.available}/hidden", is_hidden=True)
        answer = await JournalCalls(store, PATHS, None).ask_all()
        assert (answer.journals, answer.silent) == ([], ["hidden"])

    run(scenario)
