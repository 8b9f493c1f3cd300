"""HTTP spelt by hand over plain sockets: calls whose body is open while the answer comes.

One interface for HTTP/1.1 (chunked) and cleartext HTTP/2 (one stream a connection, headers without
Huffman coding), so that a test says exactly which bytes go out when, which no client library lets
it. Not a client: what a server answers is read as far as tests need it.
"""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Protocol

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_INITIAL_WINDOW = 4
_WINDOW_BYTES, _WINDOW_BYTES_MAX = 65_535, (1 << 31) - 1
_FRAME_BYTES = 16_384
_ANSWER_S = 30.0


class Call(Protocol):
    """One POST, in the middle."""

    async def send(self, body: bytes) -> None:
        """Send a piece of the body."""
        ...

    async def end(self) -> None:
        """End the body."""
        ...

    async def read_line(self, within_s: float = _ANSWER_S) -> bytes:
        """The next line of the answer's body; empty: the answer has ended."""
        ...

    def close(self) -> None:
        """Cut the connection."""
        ...


async def open_call(protocol: str, port: int, path: str, **headers: str) -> Call:
    """Send the head of a POST; names of headers are written with underscores.

    `host` is sent as each protocol has it.
    """
    headers = {"host": "127.0.0.1", **headers}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    call = _Call1(reader, writer) if protocol == "h1" else _Call2(reader, writer)
    await call.begin(path, pairs)
    return call


class _Call1:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = b""
        self._is_head_read = self._is_over = False

    async def begin(self, path: str, pairs: list[tuple[str, str]]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
        head = f"POST {path} HTTP/1.1\r\ntransfer-encoding: chunked\r\n{lines}\r\n"
        self._writer.write(head.encode())
        await self._writer.drain()

    async def send(self, body: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(body), body))
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def read_line(self, within_s: float = _ANSWER_S) -> bytes:
        async with asyncio.timeout(within_s):
            if not self._is_head_read:
                await self._reader.readuntil(b"\r\n\r\n")
                self._is_head_read = True
            while b"\n" not in self._buffer and not self._is_over:
                size = int(await self._reader.readline(), 16)
                self._buffer += (await self._reader.readexactly(size + 2))[:size]
                self._is_over = size == 0
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def close(self) -> None:
        self._writer.close()


class _Call2:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = b""
        self._is_over = False
        self._windows = {0: _WINDOW_BYTES, 1: _WINDOW_BYTES}
        self._has_changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def begin(self, path: str, pairs: list[tuple[str, str]]) -> None:
        head = [(":method", "POST"), (":scheme", "http"), (":path", path)]
        named = [(":authority" if name == "host" else name, value) for name, value in pairs]
        block = b"".join(_encode_header(*pair) for pair in [*head, *sorted(named)])
        # Answers are never held back: windows as large as they can be.
        settings = struct.pack(">HI", _INITIAL_WINDOW, _WINDOW_BYTES_MAX)
        more = struct.pack(">I", _WINDOW_BYTES_MAX - _WINDOW_BYTES)
        self._writer.write(_PREFACE + _encode_frame(SETTINGS, 0, 0, settings))
        self._writer.write(_encode_frame(WINDOW_UPDATE, 0, 0, more))
        self._writer.write(_encode_frame(HEADERS, _END_HEADERS, 1, block))
        await self._writer.drain()
        self._reading = asyncio.create_task(self._read_frames())

    async def send(self, body: bytes) -> None:
        while body:
            await self._wait(lambda: min(self._windows.values()) > 0)
            room_bytes = min(*self._windows.values(), _FRAME_BYTES)
            piece, body = body[:room_bytes], body[room_bytes:]
            for stream in self._windows:
                self._windows[stream] -= len(piece)
            self._writer.write(_encode_frame(DATA, 0, 1, piece))
            await self._writer.drain()

    async def end(self) -> None:
        self._writer.write(_encode_frame(DATA, _END_STREAM, 1, b""))
        await self._writer.drain()

    async def read_line(self, within_s: float = _ANSWER_S) -> bytes:
        async with asyncio.timeout(within_s):
            await self._wait(lambda: b"\n" in self._buffer or self._is_over)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._has_changed.clear()
            await self._has_changed.wait()

    async def _read_frames(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._on_frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
                self._has_changed.set()
        self._is_over = True
        self._has_changed.set()

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._buffer += payload
        elif kind == SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW:
                    self._windows[1] += value - _WINDOW_BYTES
            self._writer.write(_encode_frame(SETTINGS, _ACK, 0, b""))
        elif kind == PING and not flags & _ACK:
            self._writer.write(_encode_frame(PING, _ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._windows[stream] += int.from_bytes(payload, "big")
        if kind in (RST_STREAM, GOAWAY) or (kind in (DATA, HEADERS) and flags & _END_STREAM):
            self._is_over = True


def _encode_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _encode_header(name: str, value: str) -> bytes:
    """A literal that is not indexed; lengths below 127 fit the seven bits."""
    assert len(name) < 127 and len(value) < 127
    return bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
