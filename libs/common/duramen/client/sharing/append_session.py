"""One append session as a client speaks it: frames go up, and a line comes down for each.

The request is open for as long as the frames last. Its head is waited for with a bound; an ingress
that keeps a request until it is whole never gives one.

Called by `client.sharing.append_stream`. Source: docs/protocol/rest.md "Append sessions".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import orjson
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.response import ResponseBodyReader

from duramen.client.rest_client import Appended, RestClient, parse_appended, parse_problem
from duramen.errors import DuramenError
from duramen.limits import APPEND_TIMEOUT_US
from duramen.runtime.http_client import KeptCancellation, NoAnswerError, PeerError, translate
from duramen.units import KIB, MS
from duramen.wire.edge.batch_stream import MEDIA_TYPE

_LINE_BYTES_MAX: Final = 64 * KIB
_OK: Final = 200
_SERVER_ERROR: Final = 500


async def run_session(
    proxy: RestClient,
    log: tuple[str, str],
    frames: AsyncIterator[bytes],
    *,
    open_s: float,
    group_s: float,
) -> AsyncGenerator[bytes]:
    """Open a session; gives an empty line once it is open, then the lines of its answer.

    Args:
        frames: of `wire.edge.batch_stream`; none is asked for before the session is open.
        open_s: how long to wait for that.
        group_s: what the proxy has at most for batches that it sends on together.

    Raises:
        DuramenError: refused. PeerError: no session could be opened, or it broke.
    """
    is_decided, is_open = asyncio.Event(), False

    async def wait_and_send() -> AsyncIterator[bytes]:
        await is_decided.wait()
        if is_open:
            async for piece in frames:
                yield piece

    group_ms = max(1, min(round(group_s * 1000), APPEND_TIMEOUT_US // MS))
    builder = await proxy.begin_stream(log, wait_and_send(), media=MEDIA_TYPE, group_ms=group_ms)
    request = builder.streamed_read_buffer_limit(0).build_streamed()
    try:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(open_s):
                with KeptCancellation():
                    response = await stack.enter_async_context(request)
            if response.status != _OK:
                with KeptCancellation():
                    body = bytes(await response.bytes())
                raise parse_problem(response.status, body, must_tell=False)
            is_open = True
            is_decided.set()
            yield b""
            async for line in _cut_lines(response.body_reader):
                yield line
    except TimeoutError:
        raise NoAnswerError(f"{proxy.url} opens no session") from None
    except PyreqwestError as error:
        raise translate(error, proxy.url) from error
    finally:
        # The library goes on with a request that nobody waits for: its body ends here.
        is_decided.set()


def parse_line(line: bytes) -> Appended | DuramenError | None:
    """What a line says of its batch; None: that the session ends, and took nothing from there on.

    Raises:
        PeerError: it is no answer.
    """
    try:
        answer = orjson.loads(line)
        if "start" in answer:
            return parse_appended(answer)
        if answer.get("session_ended") is True:
            return None
        status = int(answer["status"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PeerError(f"a line that is no answer: {line[:200]!r}") from error
    return parse_problem(status, line, must_tell=status >= _SERVER_ERROR)


async def _cut_lines(reader: ResponseBodyReader) -> AsyncIterator[bytes]:
    rest = b""
    while True:
        with KeptCancellation():
            piece = await reader.read_chunk()
        if piece is None:
            if rest.strip():
                raise PeerError("an answer that ends in the middle of a line")
            return
        *lines, rest = (rest + bytes(piece)).split(b"\n")
        if len(rest) > _LINE_BYTES_MAX:
            raise PeerError("a line that does not end")
        for line in lines:
            if line.strip():
                yield line
