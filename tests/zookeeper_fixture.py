"""A real ZooKeeper for tests, and a TCP proxy in front of it that cuts and loses replies.

`running_zookeeper` is the body of a session-scoped fixture: one server for a whole test run, with
its data in a temporary folder, stopped at the end. Tests keep apart by the paths that they use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from duramen.cluster.layout import pick_free_port
from duramen.runtime.embedded_zookeeper import EmbeddedZooKeeper

T = TypeVar("T")

# Far above what any test takes, below pytest's own time-out, so that a hang names its coroutine.
# The longest one starts five JVMs: 14 s on a machine of its own, four times that beside others.
RUN_TIMEOUT_S = 240.0
# Type of a multi in the header of ZooKeeper's frames: length, xid, type, four bytes each.
_MULTI_TYPE = (14).to_bytes(4, "big")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` within a bound."""

    async def bounded() -> T:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            return await coroutine

    return asyncio.run(bounded())


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[EmbeddedZooKeeper]:
    """A server with its data and log in `folder`, stopped at the end."""
    server = EmbeddedZooKeeper(folder / "data", pick_free_port(), log_file=folder / "zookeeper.log")
    run(server.start())
    try:
        yield server
    finally:
        run(server.stop())


def _types(chunk: bytes) -> Iterator[bytes]:
    """Types of the requests that begin in a chunk, of which the first begins with it."""
    begin = 0
    while begin + 12 <= len(chunk):
        yield chunk[begin + 8 : begin + 12]
        begin += 4 + int.from_bytes(chunk[begin : begin + 4], "big")


class FaultyProxy:
    """Forwards TCP to ZooKeeper until told otherwise.

    Args:
        is_sealed: what it forwards is TLS: whatever goes up next is taken for a multi.
    """

    def __init__(self, upstream_address: str, *, is_sealed: bool = False) -> None:
        self._is_sealed = is_sealed
        host, _, port = upstream_address.rpartition(":")
        self._upstream = (host, int(port))
        self._is_cut = False
        self._is_reply_doomed = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.lost_replies_count = 0

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Resets all connections and refuses new ones until `heal`."""
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def heal(self) -> None:
        self._is_cut = False

    def lose_next_reply(self) -> None:
        """Lets the next multi through, swallows its reply and resets the connection."""
        self._is_reply_doomed = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, upstream_writer}
        lost = asyncio.Event()  # the multi whose reply is to be lost has gone up
        await asyncio.gather(
            self._forward_requests(reader, upstream_writer, lost),
            self._forward_replies(upstream_reader, writer, lost),
        )
        self._writers -= {writer, upstream_writer}

    async def _forward_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(1 << 16):
                is_multi = self._is_sealed or _MULTI_TYPE in _types(chunk)
                if self._is_reply_doomed and is_multi:
                    self._is_reply_doomed = False
                    lost.set()
                writer.write(chunk)
        writer.transport.abort()

    async def _forward_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while chunk := await reader.read(1 << 16):
                if lost.is_set():
                    self.lost_replies_count += 1
                    break
                writer.write(chunk)
        writer.transport.abort()
