"""Public ports with TLS: calls are sent on between them, also while certificates and CAs change.

Looks at folders are made by hand. Source: docs/protocol/identity.md "Public ports".
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.request import ConsumedRequest

from duramen.runtime.identity.authority import open_authority
from duramen.runtime.identity.folder import write_bundle
from duramen.runtime.identity.public_folder import read_public_folder
from tests.component.admission_world import READ, RECORDS, WRITE, AdmissionWorld, as_user, play
from tests.component.issuing_world import IssuingWorld, read_time
from tests.pauses import let_pass
from tests.unit.identities import DOMAIN
from tests.waiting import wait_for

ANN: Final = as_user("ann")
RECORD: Final = {"records": [{"body": "x"}]}


async def send_on(world: AdmissionWorld, *, is_append: bool) -> httpx.Response:
    """An append through the read proxy, or a read through the write proxy."""
    if is_append:
        return await world.http.post(RECORDS, json=RECORD, headers=ANN)
    return await world.write.get(RECORDS, headers=ANN)


def open_client(world: AdmissionWorld) -> Client:
    """Over HTTP/2, which tells a client before a server closes; it knows the CAs of now."""
    builder = ClientBuilder().http2_prior_knowledge().no_proxy()
    content = (world.callers.issued.folder / READ.name / "ca.crt").read_bytes()
    for anchor in x509.load_pem_x509_certificates(content):
        builder = builder.add_root_certificate_pem(anchor.public_bytes(Encoding.PEM))
    return builder.build()


def build(world: AdmissionWorld, client: Client, *, is_append: bool) -> ConsumedRequest:
    """As `send_on`."""
    asked = (
        client.post(f"{str(world.http.base_url).rstrip('/')}{RECORDS}").body_json(RECORD)
        if is_append
        else client.get(f"{str(world.write.base_url).rstrip('/')}{RECORDS}")
    )
    return asked.header("authorization", ANN["authorization"]).build()


async def begin(world: AdmissionWorld) -> None:
    """Wait until calls are sent on in both directions."""
    await world.callers.give("ann writer ns")
    await world.open_segment()

    async def is_forwarding() -> bool:
        answers = [await send_on(world, is_append=kind) for kind in (True, False)]
        return [answer.status_code for answer in answers] == [200, 200]

    await wait_for(is_forwarding)


async def look(world: AdmissionWorld) -> None:
    """Each folder is looked at for both of its uses."""
    for proxy in (world.proxy, world.write_proxy):
        assert proxy._security is not None and proxy._server._certificate is not None
        await proxy._security._watched.look()
        await proxy._server._certificate.look()
    await let_pass(0.3, what="calls between two certificates")


async def renew(world: AdmissionWorld) -> None:
    for one in (READ, WRITE):
        world.callers.issued.issue(one.role.value, one.name)
    await look(world)


async def announce(world: AdmissionWorld) -> None:
    """Proxies and clients come to trust a second CA."""
    issued = world.callers.issued
    with open_authority(issued.ca, read_time()) as authority:
        authority.announce(read_time())
        for one in (READ, WRITE):
            write_bundle(issued.folder / one.name, DOMAIN, authority.bundle, read_time())
    await look(world)
    world.trusted.load_verify_locations(issued.folder / READ.name / "ca.crt")


def test_calls_are_sent_on_while_certificates_and_cas_change(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await begin(world)
        stopping, counts = asyncio.Event(), {True: 0, False: 0}
        clients = [open_client(world)]

        async def call_on(*, is_append: bool) -> None:
            while not stopping.is_set():
                answer = await build(world, clients[-1], is_append=is_append).send()
                assert answer.status == 200, await answer.text()
                counts[is_append] += 1

        async def go_on() -> None:
            """Calls of both kinds are answered after each change, however long they take."""
            seen = dict(counts)

            def are_more() -> bool:
                for task in calling:
                    if task.done():
                        task.result()
                return all(counts[kind] >= seen[kind] + 3 for kind in counts)

            await wait_for(are_more)

        calling = [asyncio.create_task(call_on(is_append=kind)) for kind in (True, False)]
        await go_on()
        await renew(world)
        await go_on()
        await announce(world)
        clients.append(open_client(world))
        await go_on()
        with open_authority(world.callers.issued.ca, read_time()) as authority:
            authority.switch(read_time(), is_known_everywhere=True)
        await renew(world)
        await go_on()
        stopping.set()
        await asyncio.gather(*calling)
        for client in clients:
            await client.close()
        told = world.proxy.statistics()["security"]
        assert len(told["anchors"]) == 2 and told["issuer"] == told["anchors"][0]

    play(tmp_path, scenario, has_tls=True)


def test_nobody_is_sent_on_to_a_port_that_no_anchor_vouches_for(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await begin(world)
        certificate = world.write_proxy._server._certificate
        assert certificate is not None
        strange = IssuingWorld(tmp_path / "strange")
        certificate.held = read_public_folder(strange.server, read_time())
        for listener in certificate._listeners:
            listener()

        async def is_refused() -> bool:
            answer = await send_on(world, is_append=True)
            return answer.status_code == 503 and answer.json()["code"] == "overloaded"

        await wait_for(is_refused)

    play(tmp_path, scenario, has_tls=True)
