"""A bookie follows its own node: what it takes on, and what it tells others of itself.

Real bookie, metadata in memory; somebody else changes `bookies/<id>` as the auditor does. What each
duty forbids: `tests/unit/test_bookie_duty.py`. Source: docs/protocol/repair.md "Drain".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duramen.core.duty import Duty
from duramen.core.status import BookieStatus
from duramen.ids import Epoch, ledger_of
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.bookie_calls import Add
from duramen.wire.metadata_json import encode_bookie, read_bookie, read_node
from tests.component.bookie_world import (
    LOG,
    OK,
    PATHS,
    Bookie,
    add,
    bodies,
    entry,
    expected,
    run,
    running,
    span,
)
from tests.waiting import wait_for

READ_ONLY = BookieStatus.READ_ONLY
NEXT = ledger_of(LOG, Epoch(2))


def add_next(number: int) -> Add:
    return add(number)._replace(ledger_id=NEXT, entry=entry(number, ledger=NEXT))


async def change(tree: MemoryTree, **fields: Any) -> None:
    """What an auditor or an admin call does."""
    store = MemoryStore(tree)
    await store.start()
    path = PATHS.bookie("b1")
    found = await store.get(path)
    assert found is not None
    node = read_bookie(found.data)
    changed = {name: fields.get(name, getattr(node, name)) for name in node.__slots__}
    await store.set(path, encode_bookie(type(node)(**changed)), version=found.version)
    await store.close()


def told(bookie: Bookie) -> dict[str, Any]:
    found = bookie.tree.get(f"{PATHS.available}/b1")
    return {} if found is None else read_node(found.data)


def test_a_duty_is_enforced_and_then_published(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            assert await bookie.add(add(0)) == [OK]
            assert (told(bookie)["duty"], told(bookie)["draining"]) == ("serving", False)
            await change(bookie.tree, duty=Duty.DRAINING)
            await wait_for(lambda: told(bookie)["duty"] == "draining")
            assert told(bookie)["draining"] is True
            assert await bookie.add(add(1), add_next(0)) == [OK, READ_ONLY]
            assert bookie.service.describe()["duty"] == "draining"
            await change(bookie.tree, duty=Duty.LEAVING)
            await wait_for(lambda: told(bookie)["duty"] == "leaving")
            assert await bookie.add(add(2, recovery=True)) == [READ_ONLY]
            assert bodies((await bookie.read(span(0, 4)))[0]) == expected([0, 1])
            await change(bookie.tree, duty=Duty.SERVING)
            await wait_for(lambda: told(bookie)["duty"] == "serving")
            assert await bookie.add(add(2), add_next(0)) == [OK, OK]

    run(scenario)


def test_a_restart_keeps_the_duty_from_its_first_answer_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path, tree) as bookie:
            await bookie.add(add(0))
            await change(tree, duty=Duty.DRAINED)
            await wait_for(lambda: told(bookie)["duty"] == "drained")
        async with running(tmp_path, tree) as bookie:
            assert told(bookie)["duty"] == "drained" and told(bookie)["draining"] is True
            assert await bookie.add(add(1, recovery=True)) == [READ_ONLY]
            assert (await bookie.read(span(0)))[0].status is OK

    run(scenario)


def test_location_and_weight_are_told_as_the_node_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await change(bookie.tree, region="eu", rack="r9", weight=0.0, extra={"later": 1})
            await wait_for(lambda: told(bookie)["rack"] == "r9")
            assert (told(bookie)["region"], told(bookie)["weight"]) == ("eu", 0.0)

    run(scenario)


def test_a_node_that_makes_no_sense_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            store = MemoryStore(bookie.tree)
            await store.start()
            path = PATHS.bookie("b1")
            found = await store.get(path)
            assert found is not None
            await store.set(path, b'{"v":1,"duty":"on holiday"}', version=found.version)
            await store.set(path, found.data, version=found.version + 1)
            await store.close()
            await change(bookie.tree, rack="r9")
            await wait_for(lambda: told(bookie)["rack"] == "r9")
            assert await bookie.add(add_next(0)) == [OK]

    run(scenario)
