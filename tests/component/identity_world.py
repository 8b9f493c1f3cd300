"""Four directories of a bookie, each as if on a disk of its own, and starts on them.

A start is the identity alone, with metadata in memory; `refused` also sees to it that a refused one
leaves the disks and ZooKeeper as they were. Used by the tests of identity and of the offline tools.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from duramen.ids import BookieId
from duramen.runtime.role import StartRefusedError
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import Paths, encode_node, read_node
from duramen_bookie.cookie import Cookie, Directories, parse_cookie
from duramen_bookie.identity import establish_identity

T = TypeVar("T")

PATHS = Paths("test")
NODE = f"{PATHS.bookies}/b1"
PLACES = ("data", "journal", "ledgers-0", "ledgers-1")


class Disks:
    """Four directories, each on a disk of its own, and one start after the other on them."""

    def __init__(self, root: Path, tree: MemoryTree, bookie_id: str = "b1") -> None:
        self.tree = tree
        self.bookie_id = bookie_id
        self.paths = {place: root / place for place in PLACES}

    def open(self) -> Directories:
        data, journal, *ledgers = self.paths.values()
        return Directories(data, journal, ledgers)

    async def start(self, store: MemoryStore | None = None, **more: Any) -> Cookie:
        """One start up to the identity, and what a stop leaves."""
        store = store or MemoryStore(self.tree)
        await store.start()
        directories = self.open()
        try:
            return await establish_identity(
                directories, store, PATHS, BookieId(self.bookie_id),
                region="local", rack="r1", **more,
            )  # fmt: skip
        finally:
            directories.release()
            await store.close()

    def fill(self) -> None:
        """What a bookie that was at work leaves: files in every directory."""
        for place, path in self.paths.items():
            (path / f"{place}.bin").write_bytes(b"entries")

    def lose(self, place: str) -> None:
        """An empty disk in the place of this one."""
        shutil.rmtree(self.paths[place])
        self.paths[place].mkdir()

    def lose_all(self) -> None:
        for place in PLACES:
            self.lose(place)

    def swap(self, first: str, second: str) -> None:
        paths = self.paths
        paths[first], paths[second] = paths[second], paths[first]

    def edit_cookie(self, where: str, /, **fields: Any) -> None:
        file = self.paths[where] / "cookie.json"
        file.write_text(json.dumps({**json.loads(file.read_bytes()), **fields}))

    def cookie(self, place: str) -> Cookie:
        return parse_cookie((self.paths[place] / "cookie.json").read_bytes())

    def node(self) -> dict[str, Any]:
        found = self.tree.get(NODE)
        assert found is not None
        return read_node(found.data)

    def everything(self) -> dict[str, object]:
        """Every file, directory and node, to be compared."""
        found: dict[str, object] = {}
        for root in {path.parent for path in self.paths.values()}:
            for path in sorted(root.rglob("*")):
                found[str(path)] = path.read_bytes() if path.is_file() else None
        waiting = ["/"]
        while waiting:
            node = waiting.pop()
            found[f"zookeeper:{node}"] = self.tree.get(node)
            names = self.tree.children(node) or ()
            waiting += [f"{node.rstrip('/')}/{name}" for name in names]
        return found


def run(scenario: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await scenario

    return asyncio.run(bounded())


def refused(disks: Disks, state: type[StartRefusedError], **more: Any) -> str:
    """The sentence of a refused start that has written nothing anywhere."""
    before = disks.everything()
    with pytest.raises(state) as caught:
        run(disks.start(**more))
    assert disks.everything() == before
    sentence = str(caught.value)
    assert "\n" not in sentence and ": " in sentence
    assert state is StartRefusedError or sentence.startswith(f"{state.__name__}: ")
    return sentence


def change_node(tree: MemoryTree, change: Callable[[dict[str, Any]], None]) -> None:
    async def scenario() -> None:
        store = MemoryStore(tree)
        await store.start()
        found = await store.get(NODE)
        assert found is not None
        fields = read_node(found.data)
        change(fields)
        await store.set(NODE, encode_node(fields), version=found.version)
        await store.close()

    run(scenario())


def delete_node(tree: MemoryTree) -> None:
    async def scenario() -> None:
        store = MemoryStore(tree)
        await store.start()
        found = await store.get(NODE)
        assert found is not None
        await store.delete(NODE, version=found.version)
        await store.close()

    run(scenario())
