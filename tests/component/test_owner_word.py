"""What a reading process asks owners: where they are, and the LAC as soon as it moves.

The store is real, the calls are played. What an owner says of both ends of its epoch is in
`test_acknowledged_tail`. Source: docs/protocol/owner-lac.md "The call".
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from duramen.ids import EntryId, Epoch, LogId
from duramen.runtime.http_client import NoAnswerError, OverloadedError, UnreachableError
from duramen.runtime.reading.owner_word import OwnerWords
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import Paths, encode_node
from duramen.wire.sequencer_calls import LacWait, OpenLac, pack_lac_wait, pack_open_lac

PATHS = Paths("test")
LOG = LogId(7)
URL = "http://10.0.0.9:7201"
WAIT = LacWait(LOG, Epoch(3), EntryId(4), 10_000)


class Peer:
    """Answers every call alike."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, bytes, int]] = []

    async def call(self, url: str, body: bytes, timeout_us: int) -> bytes:
        self.asked.append((url, body, timeout_us))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def make_words(store: MemoryStore, peer: Peer) -> OwnerWords:
    return OwnerWords(store, PATHS, cast(Any, peer))


def test_the_owner_is_where_its_node_says() -> None:
    async def scenario() -> None:
        store = MemoryStore(MemoryTree())
        words = make_words(store, Peer(b""))
        assert await words.find(LOG) is None, "the store is not started: it is not known"
        await store.start()
        assert await words.find(LOG) is None
        node = encode_node({"sequencer": "s1", "data_url": URL})
        await store.create(PATHS.owner(LOG), node, make_parents=True)
        assert await words.find(LOG) == URL
        await store.close()

    asyncio.run(scenario())


def test_a_wait_goes_to_the_owner_and_has_time_for_its_answer() -> None:
    found = OpenLac(Epoch(3), EntryId(5))
    peer = Peer(pack_open_lac(found))
    words = make_words(MemoryStore(MemoryTree()), peer)
    assert asyncio.run(words.wait_lac(URL, WAIT)) == found
    assert peer.asked == [(f"{URL}/s/lac", pack_lac_wait(WAIT), 10_000 * MS + 1 * SECOND)]


@pytest.mark.parametrize(
    "answer",
    [
        pack_open_lac(None),
        pack_open_lac(OpenLac(Epoch(3), EntryId(5)))[:-1],
        b"the sequencer serves /s/append and /s/control",
        UnreachableError("nobody"),
        NoAnswerError("404"),
        OverloadedError("full", 30 * SECOND),
    ],
)
def test_whatever_is_no_lac_is_none(answer: bytes | Exception) -> None:
    words = make_words(MemoryStore(MemoryTree()), Peer(answer))
    assert asyncio.run(words.wait_lac(URL, WAIT)) is None
