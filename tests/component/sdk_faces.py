"""The two faces of the SDK as one: lets a test that is written with `await` use `SyncClient` too.

`open_client("sync", …)` gives an object with the names of `Client`, each call of which runs the
synchronous one in a thread; so one suite holds both faces to the same. Tickets are awaitable, reads
are asynchronous iterators. Used by the `test_sdk_…` modules and by tests/process/test_sdk.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from duramen.client import (
    Client,
    SyncBulkTicket,
    SyncClient,
    SyncLog,
    SyncNamespace,
    SyncPartitionedLog,
    SyncPartitionedProducer,
    SyncProducer,
    SyncTicket,
)

FACES = ("async", "sync")
_PLAIN = (
    "log", "partition_of", "partitioned_log", "producer", "statistics", "is_done",
)  # fmt: skip
_LISTS = ("read", "logs", "namespaces")
_WRAPPED = (
    SyncNamespace, SyncLog, SyncPartitionedLog, SyncPartitionedProducer, SyncProducer, SyncTicket,
    SyncBulkTicket,
)  # fmt: skip


class Threaded:
    """A synchronous object with an asynchronous face."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getitem__(self, name: str) -> Any:
        return Threaded(self._inner[name])

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        if name in _PLAIN:
            return lambda *args, **options: _wrap(found(*args, **options))
        if name in _LISTS:
            return lambda *args, **options: _iterate(found(*args, **options))

        async def call(*args: Any, **options: Any) -> Any:
            return _wrap(await asyncio.to_thread(found, *args, **options))

        return call

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.to_thread(self._inner.result).__await__()

    async def __aenter__(self) -> Any:
        await asyncio.to_thread(self._inner.__enter__)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await asyncio.to_thread(self._inner.__exit__, *raised)


def _wrap(result: Any) -> Any:
    return Threaded(result) if isinstance(result, _WRAPPED) else result


async def _iterate(items: Iterator[Any]) -> AsyncIterator[Any]:
    try:
        while (step := await asyncio.to_thread(next, items, None)) is not None:
            yield _wrap(step)
    finally:
        await asyncio.to_thread(items.close)  # type: ignore[attr-defined]  # all are generators


@asynccontextmanager
async def open_client(face: str, url: str, **options: Any) -> AsyncIterator[Any]:
    """A client of either face, with the names of the asynchronous one."""
    if face == "async":
        async with Client(url, **options) as client:
            yield client
        return
    sync = await asyncio.to_thread(lambda: SyncClient(url, **options))
    try:
        yield Threaded(sync)
    finally:
        await asyncio.to_thread(sync.close)
