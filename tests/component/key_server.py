"""An https server of loopback that answers as an issuer's, or as a hostile one's, and counts.

Used by the tests of issuers' keys. Source: docs/protocol/credentials.md "Keys of issuers".
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from duramen.runtime.identity.certificates import (
    Places,
    issue_leaf,
    make_authority,
    make_key,
)
from duramen.runtime.identity.folder import encode_key
from tests.unit.identities import BOOKIE, DOMAIN

HERE: Final = Places((), (ipaddress.ip_address("127.0.0.1"),))


class KeyServer:
    """What is answered at each path, and who asked."""

    def __init__(self, port: int, ca_file: Path) -> None:
        self.url = f"https://127.0.0.1:{port}"
        self.ca_file = ca_file
        self.answers: dict[str, tuple[str, bytes]] = {}
        """Path → status line with header lines, and body."""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def put(self, path: str, body: bytes, status: str = "200 OK", *headers: str) -> None:
        self.answers[path] = "\r\n".join((f"HTTP/1.1 {status}", *headers)), body

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = head[0].split(" ")[1]
            fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            self.requests.append((path, fields))
            self.bodies.append(body)
            await self.may_answer.wait()
            told, body = self.answers.get(path, ("HTTP/1.1 404 Not Found", b""))
            length = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write(f"{told}\r\n{length}".encode() + body)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def serving_keys(folder: Path) -> AsyncIterator[KeyServer]:
    """A server whose certificate is one of `ca_file`'s, and no one else's."""
    now = dt.datetime.now(dt.UTC)
    authority, key = make_authority(DOMAIN, now), make_key()
    leaf = issue_leaf(authority, BOOKIE, key.public_key(), now, places=HERE)
    files = {
        "issuer-ca.crt": authority.certificate.public_bytes(Encoding.PEM),
        "issuer.pem": encode_key(key) + leaf.public_bytes(Encoding.PEM),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "issuer.pem")
    served: list[KeyServer] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await served[0].serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    served.append(KeyServer(server.sockets[0].getsockname()[1], folder / "issuer-ca.crt"))
    try:
        yield served[0]
    finally:
        served[0].may_answer.set()
        server.close()
