"""Both ends of a standing stream in one loop, and the wire between them in the test's hands.

Bytes move when the test says so, as many as it says; the wire is cut where it says. Used under a
standing clock by the tests of what becomes of requests.
Source: docs/protocol/standing-streams.md "Rules".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from duramen.runtime.edge.port_listener import ConnectionPlace
from duramen.runtime.http_server import Answer
from duramen.runtime.identity.names import Identity
from duramen.runtime.standing.call_stream import CallStream, OpenCall
from duramen.runtime.standing.fates import NeverBegunError, StreamLostError
from duramen.runtime.standing.process_name import make_process_name
from duramen.runtime.standing.stream_server import Send, StreamServer
from duramen.units import KIB
from duramen.wire.edge.gate import Gate
from duramen.wire.standing.opening import parse_stream_url

HIGH_BYTES = 64 * KIB


class HalfWire:
    """The transport of one end: what it wrote lies here until it is carried over."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        self.buffer = bytearray()
        self.is_paused = False
        self.is_lost = False
        self.written_bytes = 0
        self.write_count = 0
        self.other: HalfWire | None = None

    def write(self, data: bytes) -> None:
        if self.is_lost:
            return
        self.buffer += data
        self.write_count += 1
        self.written_bytes += len(data)
        if len(self.buffer) > HIGH_BYTES and not self.is_paused:
            self.is_paused = True
            self.protocol.pause_writing()

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def set_write_buffer_limits(self, *, high: int, low: int) -> None:
        assert (high, low) == (HIGH_BYTES, HIGH_BYTES // 2)

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.1", 7) if name == "peername" else None

    def close(self) -> None:
        raise AssertionError("closed while something comes it is reset, and what lay in it lost")

    def abort(self) -> None:
        self.buffer.clear()
        self._lose()

    def carry(self, most_bytes: int) -> int:
        """Give the other end so many bytes; how many there were."""
        assert self.other is not None
        if self.is_lost or not self.buffer:
            return 0
        piece = bytes(self.buffer[:most_bytes])
        del self.buffer[:most_bytes]
        self.other.protocol.data_received(piece)
        if self.is_paused and len(self.buffer) <= HIGH_BYTES // 2 and not self.is_lost:
            self.is_paused = False
            self.protocol.resume_writing()
        return len(piece)

    def cut(self) -> None:
        """As by a reset: what lay in the wire is gone."""
        self.abort()

    def _lose(self) -> None:
        for half, error in ((self, None), (self.other, ConnectionResetError("cut"))):
            if half is not None and not half.is_lost:
                half.is_lost = True
                half.buffer.clear()
                asyncio.get_running_loop().call_soon(half.protocol.connection_lost, error)


class StreamPair:
    """A caller and a server with a handler that the test holds or lets go.

    Attributes:
        begun: bodies that the handler got, in their order.
    """

    def __init__(self, name: Callable[[], str] | None = None) -> None:
        process = make_process_name()
        self.begun: list[bytes] = []
        self.holds: dict[bytes, asyncio.Future[None]] = {}
        self.is_holding = False
        self.is_over = False
        self.server = StreamServer("h", 0, process, self._answer, gate=Gate(), guard=None)
        place = parse_stream_url(f"http://10.0.0.1:7/standing/{process}")
        self.caller = CallStream(place, make_process_name(), name, self._on_over)
        self.there = HalfWire(self.caller)
        self.server_stream = self.server.make_stream(ConnectionPlace("10.0.0.1", Counter()))
        self.back = HalfWire(self.server_stream)
        self.there.other, self.back.other = self.back, self.there
        for half in (self.there, self.back):
            half.protocol.connection_made(cast(asyncio.Transport, half))

    async def open(self) -> None:
        self.carry_all()
        await self.caller.wait_open(1)

    def carry_all(self) -> None:
        """Until nothing is written any more."""
        while self.there.carry(1 << 20) + self.back.carry(1 << 20):
            pass

    def release(self, body: bytes) -> None:
        """Let the handler go on."""
        hold = self.holds.pop(body)
        if not hold.done():
            hold.set_result(None)

    async def _answer(
        self, path: str, body: bytes, _peer: str, _caller: Identity | None, send: Send
    ) -> Answer | None:
        self.begun.append(body)
        if self.is_holding:
            self.holds[body] = hold = asyncio.get_running_loop().create_future()
            await hold
        if path == "/s/append":
            await send(b"piece of ")
            await send(body)
            return None
        return 200, "", b"answer to " + body

    def _on_over(self, _stream: CallStream) -> None:
        assert not self.is_over, "told once"
        self.is_over = True


async def learn_fate(call: OpenCall, deadline_s: float) -> tuple[str, bytes]:
    """What became of a request: `answered` with the whole, `never`, `lost` or `late`."""
    whole = b""
    try:
        while True:
            status, piece = await call.take(deadline_s)
            whole += piece
            if status is not None:
                return ("answered" if status == 200 else f"status {status}"), whole
    except NeverBegunError:
        return "never", whole
    except StreamLostError:
        return "lost", whole
    except TimeoutError:
        return "late", whole
    finally:
        call.give_up()
