"""What a metadata store is asked at once, with what it has to answer in this order.

Asked of every store: the twin, ZooKeeper (`tests/contract`) and the simulator's (`tests/sim`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from duramen.runtime.stores.metadata_store import Conflict, ConflictKind, MetadataStore, Stored

Request = Coroutine[Any, Any, object]

_ROUND_COUNT = 12


class RequestOrder:
    """Requests about one node without children, of version 0 at first, and their answers.

    Attributes:
        requests: to be begun in this order, none waiting for another.
        answers: with the number of its request, as they come.
    """

    def __init__(self, store: MetadataStore, path: str) -> None:
        self.answers: list[tuple[int, object]] = []
        self._expected: list[object] = []
        self.requests: list[Request] = []
        for version in range(_ROUND_COUNT):
            self._add(store.get(path), Stored(b"", version, 0, 0))
            self._add(store.set(path, b"", version=version), version + 1)
            self._add(store.children(path), ())
            self._add(store.get(path, _ignore), Stored(b"", version + 1, 0, 0))
            self._add(store.set(path, b"", version=version), ConflictKind.BAD_VERSION)
            self._add(store.sync(path), None)

    def _add(self, request: Request, expected: object) -> None:
        self.requests.append(self._note(len(self.requests), request))
        self._expected.append(expected)

    async def _note(self, number: int, request: Request) -> None:
        try:
            self.answers.append((number, await request))
        except Conflict as conflict:
            self.answers.append((number, conflict.kind))

    def check(self) -> None:
        """Each request saw what those before it had done, and was answered in its turn."""
        assert self.answers == list(enumerate(self._expected))


def _ignore() -> None:
    """A watch."""
