"""A server that plays a proxy which asks who calls: by token, by certificate, or by neither.

It is granian, as proxies are, over HTTP/1.1 and HTTP/2, plain or with TLS. Used by the tests of
what clients show. Source: docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import orjson
from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server

from duramen.errors import DuramenError
from duramen.wire.read_answers import pack_batches
from tests.pauses import look_again_soon

_WAIT_S: Final = 20
REFUSED: Final = DuramenError("unauthenticated", "nobody who is known here")


class AskingProxy:
    """What it believes, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.believed: set[str] = set()
        """Texts of tokens; empty: it asks for none."""
        self.asked: list[tuple[str, str | None]] = []
        """Path, and what stood in the header of authorization."""
        self.named: list[str] = []
        """Headers by which identities named themselves; the first `unknown_count` are refused, at
        the time that `clock` says as an HTTP date."""
        self.unknown_count = 0
        self.clock = ""
        self.home: str | None = None
        self.refusal = orjson.dumps(REFUSED.problem())

    async def answer(self, scope: Any, protocol: Any) -> None:
        await protocol()
        shown = scope.headers.get("authorization")
        self.asked.append((scope.path, shown))
        headers = [("content-type", "application/json")]
        name = scope.headers.get("duramen-identity")
        if name is not None:
            self.named.append(name)
        if name is not None and len(self.named) <= self.unknown_count:
            headers.append(("date", self.clock))
            protocol.response_bytes(401, headers, self.refusal)
        elif self.believed and shown not in {f"Bearer {one}" for one in self.believed}:
            protocol.response_bytes(401, headers, self.refusal)
        elif scope.path.endswith("/records") and scope.method == "GET":
            headers += [("duramen-next", "seq:0"), ("duramen-tail", "seq:0")]
            if self.home is not None:
                headers.append(("duramen-home", self.home))
            protocol.response_bytes(200, headers, pack_batches([]))
        elif scope.query_string == "redirect=owner_region" and self.home is not None:
            moved = [("location", f"{self.home}{scope.path}")]
            protocol.response_bytes(307, moved, b"")
        elif scope.path.endswith("/records"):
            place = {"seq_num": 0, "dlsn": "1-0-0"}
            end = place | {"seq_num": 1}
            body = {"start": place, "end": end, "tail": end}
            protocol.response_bytes(200, headers, orjson.dumps(body))
        else:
            protocol.response_bytes(200, headers, b'{"namespaces": [], "has_more": false}')


@contextlib.asynccontextmanager
async def asking_proxy(
    files: Path | None = None, *, asks_certificate: bool = False
) -> AsyncIterator[AskingProxy]:
    """A proxy that serves.

    Args:
        files: an identity's folder, for TLS.
        asks_certificate: of who calls, by an authority of that folder.
    """
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    scheme = "http" if files is None else "https"
    proxy = AskingProxy(f"{scheme}://127.0.0.1:{port}")
    tls: dict[str, Any] = {}
    if files is not None:
        tls = {"ssl_cert": files / "tls.crt", "ssl_key": files / "tls.key"}
    if files is not None and asks_certificate:
        tls |= {"ssl_ca": files / "ca.crt", "ssl_client_verify": True}
    server = Server(
        proxy.answer, address="127.0.0.1", port=port, interface=Interfaces.RSGI,
        http=HTTPModes.auto, websockets=False, log_enabled=False, **tls,
    )  # fmt: skip
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(_WAIT_S):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await look_again_soon()
        yield proxy
    finally:
        server.stop()  # type: ignore[no-untyped-call]  # granian has no annotation there
        await asyncio.wait_for(task, _WAIT_S)
