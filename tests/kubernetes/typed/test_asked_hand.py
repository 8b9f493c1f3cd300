"""No request of the operator that writes is sent without the Lease; reading needs none.

Beside the steps of a plan the issuer writes Secrets by `Kube`, so that is where it is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from kr8s.asyncio import Api

from duramen_operator.kube import Kube
from duramen_operator.leading.hand import Hand, HandLostError
from duramen_operator.plan.observed import Ref

RECORD = Ref("v1", "ConfigMap", "main-authority")
MANIFEST = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": RECORD.name}}
Work = Callable[[Kube], Awaitable[Any]]


def send(work: Work, hand: Hand) -> list[str]:
    """The methods of the requests that went out."""
    sent: list[str] = []

    @asynccontextmanager
    async def call_api(**request: Any) -> Any:
        sent.append(request["method"])
        yield httpx.Response(200, json={})

    login = dict.fromkeys(
        ("server", "server_ca_file", "client_cert_file", "client_key_file", "token")
    )
    auth = SimpleNamespace(**login, tls_server_name=None)
    kube = Kube(cast("Api", SimpleNamespace(auth=auth, call_api=call_api)), "here", hand.check)

    async def play() -> None:
        await work(kube)

    asyncio.run(play())
    return sent


WRITES: dict[str, Work] = {
    "apply": lambda kube: kube.apply(MANIFEST),
    "status": lambda kube: kube.apply(MANIFEST, is_status=True),
    "merge": lambda kube: kube.merge(RECORD, {}),
    "delete": lambda kube: kube.delete(RECORD, "uid", "1"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_is_written_without_the_lease(write: Work) -> None:
    hand = Hand(lambda: 0.0)
    with pytest.raises(HandLostError):
        send(write, hand)
    hand.note_renewal(0.0)
    assert len(send(write, hand)) == 1


def test_reading_needs_no_lease() -> None:
    assert send(lambda kube: kube.get(RECORD), Hand(lambda: 0.0)) == ["GET"]
