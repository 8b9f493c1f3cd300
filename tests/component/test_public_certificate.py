"""The certificate of a public port: what is shown, what is refused, and how another one comes.

Over loopback, with the server that proxies use. Looks are made by hand, so nothing waits for one.
Source: docs/protocol/identity.md "Public ports".
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
import prometheus_client
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from pyreqwest.client import Client, ClientBuilder

from duramen.runtime.http_server import PublicServer
from duramen.runtime.identity import generations
from duramen.runtime.identity.certificates import Authority, make_authority
from duramen.runtime.identity.names import IdentityError
from duramen.runtime.identity.public_folder import read_public_folder
from duramen.runtime.security.public_certificate import PublicCertificate
from tests.component.issuing_world import IssuingWorld, read_time
from tests.pauses import let_pass
from tests.unit.identities import DOMAIN, usage
from tests.waiting import wait_for

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
STALLED_COUNT: Final = 2_000
HALF_A_HELLO: Final = bytes.fromhex("16030100c8010000c40303")
DAY: Final = dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy is under way here."""
    monkeypatch.setattr(generations, "_SETTLING_S", 0.0)


class Issuer:
    """A CA that clients know, with another one below it that issues for hosts."""

    def __init__(self) -> None:
        self.root = make_root()
        self.below = make_authority(DOMAIN, read_time() - DAY, self.root)

    def fill(
        self,
        folder: Path,
        *,
        key: PrivateKey | None = None,
        host: str | None = "localhost",
        ends: dt.timedelta = DAY,
    ) -> x509.Certificate:
        """Have another certificate in a folder."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        leaf = sign(self.below, key, host, read_time() + ends)
        chain = leaf, self.below.certificate
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "tls.crt").write_bytes(b"".join(one.public_bytes(Encoding.PEM) for one in chain))
        (folder / "tls.key").touch(mode=0o600)
        (folder / "tls.key").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        return leaf

    def trust(self) -> ssl.SSLContext:
        """What a client knows: the root alone, so the chain has to be sent."""
        context = ssl.create_default_context(
            cadata=self.root.certificate.public_bytes(Encoding.PEM).decode()
        )
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def make_root() -> Authority:
    """A CA below which there may be others."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(read_time() - 2 * DAY)
        .not_valid_after(read_time() + 9 * DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage(key_cert_sign=True), critical=True)
    )
    return Authority(key, builder.sign(key, hashes.SHA256()))


def sign(
    issuer: Authority, key: PrivateKey, host: str | None, ends: dt.datetime
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "logs")]))
        .issuer_name(issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(read_time() - 2 * DAY)
        .not_valid_after(ends)
    )
    if host is not None:
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer.key, hashes.SHA256())


async def answer(scope: Any, _receive: Any, send: Any) -> None:
    """An application that says which version of HTTP it was called by."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["http_version"].encode()})


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[PublicServer, PublicCertificate]]:
    certificate = PublicCertificate(folder, read_public_folder(folder, read_time()))
    server = PublicServer("127.0.0.1", 0, answer, certificate=certificate)
    await server.start()
    try:
        yield server, certificate
    finally:
        await server.stop()


async def ask(port: int, trust: ssl.SSLContext) -> str:
    async with httpx.AsyncClient(verify=trust) as client:
        return (await client.get(f"https://localhost:{port}/v1/namespaces")).text


def open_http2(issuer: Issuer) -> Client:
    root = issuer.root.certificate.public_bytes(Encoding.PEM)
    return ClientBuilder().http2_prior_knowledge().add_root_certificate_pem(root).build()


def read_shown(port: int, trust: ssl.SSLContext) -> x509.Certificate:
    """The certificate that a new connection is shown."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        trust.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def read_if_taken(port: int, trust: ssl.SSLContext) -> x509.Certificate | None:
    """The same; None: the connection waited at the server that closes, and was sent away."""
    with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
        return read_shown(port, trust)
    return None


@pytest.mark.parametrize(
    "make_key",
    [
        lambda: ec.generate_private_key(ec.SECP256R1()),
        lambda: ec.generate_private_key(ec.SECP384R1()),
        lambda: rsa.generate_private_key(65_537, 2_048),
    ],
    ids=["P-256", "P-384", "RSA"],
)
def test_a_client_that_knows_the_root_calls_by_either_version(
    tmp_path: Path, make_key: Callable[[], PrivateKey]
) -> None:
    issuer = Issuer()
    issuer.fill(tmp_path / "public", key=make_key())

    async def scenario() -> None:
        async with serving(tmp_path / "public") as (server, _):
            assert await ask(server.port, issuer.trust()) == "1.1"
            async with open_http2(issuer) as client:
                asked = client.get(f"https://localhost:{server.port}/v1/namespaces").build()
                assert await (await asked.send()).text() == "2"

    asyncio.run(scenario())


def test_nothing_but_tls_13_is_spoken(tmp_path: Path) -> None:
    issuer = Issuer()
    issuer.fill(tmp_path / "public")

    async def scenario() -> None:
        async with serving(tmp_path / "public") as (server, _):
            old = issuer.trust()
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(httpx.ConnectError, match=r"(?i)version|protocol"):
                await ask(server.port, old)
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.TransportError):
                    await client.get(f"http://localhost:{server.port}/v1/namespaces")
            with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
                await ask(server.port, Issuer().trust())

    asyncio.run(scenario())


def test_another_certificate_is_shown_and_no_call_is_lost(tmp_path: Path) -> None:
    issuer, folder = Issuer(), tmp_path / "public"
    former = issuer.fill(folder)

    async def scenario() -> None:
        async with serving(folder) as (server, certificate):
            trust, stopping, count = issuer.trust(), asyncio.Event(), 0

            async def call_on() -> None:
                nonlocal count
                async with open_http2(issuer) as client:
                    while not stopping.is_set():
                        asked = client.get(f"https://localhost:{server.port}/v1/logs").build()
                        answered = await asked.send()
                        assert answered.status == 200
                        count += 1

            calling = asyncio.create_task(call_on())
            assert await asyncio.to_thread(read_shown, server.port, trust) == former
            for changed in range(1, 4):
                latter = issuer.fill(folder)
                await certificate.look()
                assert certificate.statistics() == {"changes": changed, "refused": 0}
                async with asyncio.timeout(10):
                    while await asyncio.to_thread(read_if_taken, server.port, trust) != latter:
                        await let_pass(0.02, what="another server that takes the port over")
                before = count
                await wait_for(lambda: calling.done() or count > before + 6)  # noqa: B023 - now
            stopping.set()
            await calling

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["tls.key", "tls.crt"])
def test_a_file_that_is_half_copied_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    issuer, folder = Issuer(), tmp_path / "public"
    leaf = issuer.fill(folder)
    whole = (folder / name).read_bytes()
    rest = [whole[: len(whole) // 2], whole]
    (folder / name).write_bytes(b"")
    monkeypatch.setattr(generations, "_SETTLING_S", 20.0)

    def go_on(_s: float) -> None:
        (folder / name).write_bytes(rest.pop(0))

    monkeypatch.setattr(generations, "time", SimpleNamespace(monotonic=time.monotonic, sleep=go_on))
    assert read_public_folder(folder, read_time()).leaf == leaf
    assert not rest


def test_a_change_before_the_start_and_many_at_once_are_each_shown_in_the_end(
    tmp_path: Path,
) -> None:
    issuer, folder = Issuer(), tmp_path / "public"
    issuer.fill(folder)

    async def scenario() -> None:
        certificate = PublicCertificate(folder, read_public_folder(folder, read_time()))
        server = PublicServer("127.0.0.1", 0, answer, certificate=certificate)
        early = issuer.fill(folder)
        await certificate.look()
        await let_pass(0.05, what="the renewal that is asked for")
        await server.start()
        try:
            trust = issuer.trust()
            assert await asyncio.to_thread(read_shown, server.port, trust) == early
            for _ in range(5):
                latter = issuer.fill(folder)
                await certificate.look()

            async def is_shown() -> bool:
                return await asyncio.to_thread(read_if_taken, server.port, trust) == latter

            await wait_for(is_shown, rest_s=0.02)
        finally:
            await server.stop()

    asyncio.run(scenario())


@pytest.mark.usefixtures("many_files")
def test_who_never_ends_a_handshake_keeps_nobody_out_and_is_sent_away(tmp_path: Path) -> None:
    """Half of them say nothing, and half begin to say hello."""
    issuer = Issuer()
    issuer.fill(tmp_path / "public")

    async def scenario() -> None:
        async with serving(tmp_path / "public") as (server, _), AsyncExitStack() as open_ones:
            trust, stalled = issuer.trust(), []
            for index in range(STALLED_COUNT):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                open_ones.callback(writer.close)
                if index % 2:
                    writer.write(HALF_A_HELLO)
                stalled.append(reader)
            for _ in range(5):
                async with asyncio.timeout(1):
                    await asyncio.to_thread(read_shown, server.port, trust)
            async with asyncio.timeout(30):
                await asyncio.gather(*(reader.read() for reader in stalled))

    asyncio.run(scenario())


def test_what_cannot_be_used_is_told_once_and_the_former_one_stays(tmp_path: Path) -> None:
    issuer, folder = Issuer(), tmp_path / "public"
    former = issuer.fill(folder)

    async def scenario() -> None:
        async with serving(folder) as (server, certificate):
            issuer.fill(folder, ends=-DAY)
            await certificate.look()
            await certificate.look()
            assert certificate.statistics() == {"changes": 0, "refused": 1}
            assert await asyncio.to_thread(read_shown, server.port, issuer.trust()) == former
            left_s = prometheus_client.REGISTRY.get_sample_value(
                "duramen_public_certificate_expires_seconds",
                {"serial": f"{former.serial_number:x}"},
            )
            assert left_s is not None and 0 < left_s < DAY.total_seconds()

    asyncio.run(scenario())


def spoil_mode(folder: Path, _issuer: Issuer) -> None:
    (folder / "tls.key").chmod(0o640)


def spoil_pair(folder: Path, issuer: Issuer) -> None:
    kept = (folder / "tls.key").read_bytes()
    issuer.fill(folder)
    (folder / "tls.key").write_bytes(kept)


SPOILED: Final[dict[str, tuple[Callable[[Path, Issuer], Any], str]]] = {
    "expired": (lambda folder, issuer: issuer.fill(folder, ends=-DAY), "has expired at"),
    "nobody's host": (lambda folder, issuer: issuer.fill(folder, host=None), "names no host"),
    "short key": (
        lambda folder, issuer: issuer.fill(folder, key=rsa.generate_private_key(65_537, 1_024)),
        "RSA with 2,048 bits",
    ),
    "open key": (spoil_mode, "may be read by others"),
    "another key": (spoil_pair, "is not the key of"),
    "no key": (lambda folder, _: (folder / "tls.key").unlink(), "tls.key is missing"),
    "no certificate": (lambda folder, _: (folder / "tls.crt").write_text("none"), "in PEM"),
    "strange anchors": (lambda folder, _: (folder / "ca.crt").write_text("none"), "ca.crt holds"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_start_with_nothing_to_show_is_refused_with_the_reason(tmp_path: Path, what: str) -> None:
    issuer, folder = Issuer(), tmp_path / "public"
    issuer.fill(folder)
    spoil, reason = SPOILED[what]
    spoil(folder, issuer)
    with pytest.raises(IdentityError, match=reason):
        read_public_folder(folder, read_time())


def test_the_folder_of_an_identity_serves_too(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    held = read_public_folder(world.server, read_time())
    assert held.anchors == (world.server / "ca.crt").read_bytes()
