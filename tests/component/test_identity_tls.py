"""What TLS libraries make of our certificates: granian, pyreqwest and OpenSSL, over loopback.

The rules of docs/protocol/identity.md that rest on how those libraries behave are held here, also
where one would wish that they behaved otherwise: a version that does fails the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from duramen.runtime.identity.certificates import make_authority
from tests.component.issuing_world import IssuingWorld, read_time
from tests.pauses import look_again_soon

_WAIT_S: Final = 20


@contextlib.asynccontextmanager
async def serving(files: Path, *, lists: tuple[Path, ...] = ()) -> AsyncIterator[str]:
    """A server that asks for a client's certificate; gives its URL."""

    async def answer(_scope: Any, protocol: Any) -> None:
        await protocol()
        protocol.response_bytes(200, [("content-type", "text/plain")], b"seen")

    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    server = Server(
        answer, address="127.0.0.1", port=port, interface=Interfaces.RSGI, http=HTTPModes.auto,
        websockets=False, log_enabled=False, ssl_cert=files / "tls.crt", ssl_key=files / "tls.key",
        ssl_ca=files / "ca.crt", ssl_crl=list(lists) or None, ssl_client_verify=True,
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
        yield f"https://127.0.0.1:{port}/b/read"
    finally:
        server.stop()  # type: ignore[no-untyped-call]  # granian has no annotation there
        await asyncio.wait_for(task, _WAIT_S)


async def call(url: str, trusted: Path, identity: Path | None) -> str:
    """The version of HTTP of the answer, or `refused`."""
    builder = ClientBuilder().http2_prior_knowledge().no_proxy().timeout(dt.timedelta(seconds=5))
    builder = builder.add_root_certificate_pem((trusted / "ca.crt").read_bytes())
    if identity is not None:
        builder = builder.identity_pem(
            (identity / "tls.key").read_bytes() + (identity / "tls.crt").read_bytes()
        )
    client = builder.build()
    try:
        response = await client.post(url).body_bytes(b"x").build().send()
        assert bytes(await response.bytes()) == b"seen"
        return str(response.version)
    except PyreqwestError:
        return "refused"
    finally:
        await client.close()


def shake(url: str, world: IssuingWorld, change: Callable[[ssl.SSLContext], object]) -> str:
    """The version of TLS that OpenSSL and the server agree on, or why not."""
    context = ssl.create_default_context(cafile=world.caller / "ca.crt")
    context.load_cert_chain(world.caller / "tls.crt", world.caller / "tls.key")
    change(context)
    port = int(url.split(":")[2].split("/", maxsplit=1)[0])
    try:
        with (
            socket.create_connection(("127.0.0.1", port), _WAIT_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            return str(wrapped.version())
    except ssl.SSLError as error:
        return str(error)


def test_who_has_a_certificate_of_the_cluster_is_answered_and_nobody_else(tmp_path: Path) -> None:
    world, other = IssuingWorld(tmp_path / "a"), IssuingWorld(tmp_path / "b")

    async def main() -> None:
        async with serving(world.server) as url:
            assert await call(url, world.caller, world.caller) == "HTTP/2.0"
            assert await call(url, world.caller, None) == "refused"
            assert await call(url, world.caller, other.caller) == "refused"
            assert await call(url, other.caller, world.caller) == "refused", "a stranger serves"
            assert await call(url.replace("https", "http"), world.caller, None) == "refused"
            other_name = url.replace("127.0.0.1", "localhost")
            assert await call(other_name, world.caller, world.caller) == "refused"

            def old(context: ssl.SSLContext) -> None:
                context.maximum_version = ssl.TLSVersion.TLSv1_2

            assert await asyncio.to_thread(shake, url, world, lambda _: None) == "TLSv1.3"
            assert "alert" in (await asyncio.to_thread(shake, url, world, old)).lower()

    uvloop.run(main())


def test_a_ca_that_a_parent_signed_is_an_anchor_and_openssl_has_to_be_told(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path, make_authority("e" * 32, read_time()))

    async def main() -> None:
        async with serving(world.server) as url:
            assert await call(url, world.caller, world.caller) == "HTTP/2.0"

            def accept_anchor(context: ssl.SSLContext) -> None:
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

            assert "issuer" in await asyncio.to_thread(shake, url, world, lambda _: None)
            assert await asyncio.to_thread(shake, url, world, accept_anchor) == "TLSv1.3"

    uvloop.run(main())


def test_a_revoked_certificate_is_refused_and_so_is_one_whose_ca_has_no_list(
    tmp_path: Path,
) -> None:
    world = IssuingWorld(tmp_path / "a")
    honest = world.issue("sequencer", "sequencer-1")
    world.revoke("sequencer-0")
    next_world = IssuingWorld(tmp_path / "b")
    both = tmp_path / "both"
    both.mkdir()
    for name in ("tls.crt", "tls.key"):
        (both / name).write_bytes((world.server / name).read_bytes())
    anchors = [(ca / "ca.crt").read_bytes() for ca in (world.ca, next_world.ca)]
    (both / "ca.crt").write_bytes(b"".join(anchors))
    mine, theirs = world.ca / "ca.crl", next_world.ca / "ca.crl"

    async def main() -> None:
        async with serving(both, lists=(mine, theirs)) as url:
            assert await call(url, world.caller, world.caller) == "refused"
            assert await call(url, world.caller, honest) == "HTTP/2.0"
            assert await call(url, world.caller, next_world.caller) == "HTTP/2.0"
        async with serving(both, lists=(mine,)) as url:
            assert await call(url, world.caller, honest) == "HTTP/2.0"
            assert await call(url, world.caller, next_world.caller) == "refused"

    uvloop.run(main())
