"""A client that names its identity to the one receiver that it knows: once more after a 401.

Source: docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import datetime as dt
from email.utils import format_datetime
from pathlib import Path
from typing import Final

import pytest
import uvloop

from duramen.client.credentials.credential import Credential
from duramen.client.credentials.receiver_header import ReceiverHeader
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.header import take_apart
from duramen.runtime.identity.names import make_identity
from tests.component.asking_proxy import asking_proxy
from tests.component.issuing_world import IssuingWorld, read_time
from tests.unit.identities import DOMAIN

PROXY: Final = make_identity(DOMAIN, "writeproxy", "main-writeproxy-0")
AHEAD: Final = dt.timedelta(hours=2)


def name_operator(world: IssuingWorld) -> Credential:
    folder = world.issue("operator", "main")
    header = ReceiverHeader(read_folder(folder, read_time()), PROXY)
    return Credential(ca=folder / "ca.crt", header=header)


def test_one_header_serves_many_calls_and_another_is_made_by_the_receivers_clock(
    tmp_path: Path,
) -> None:
    world = IssuingWorld(tmp_path)

    async def main() -> None:
        async with asking_proxy(world.server) as proxy:
            client = RestClient(proxy.url, credential=name_operator(world))
            for _ in range(2):
                await client.get_json("/v1/namespaces")
            first, again = proxy.named
            assert first == again
            assert take_apart(first).audience == str(PROXY)
            assert [shown for _, shown in proxy.asked] == [None, None]

            proxy.named.clear()
            proxy.unknown_count = 1
            theirs = read_time() + AHEAD
            proxy.clock = format_datetime(theirs, usegmt=True)
            await client.get_json("/v1/namespaces")
            refused, other = proxy.named
            assert refused == first
            assert abs(take_apart(other).issued_s - theirs.timestamp()) < 60

            proxy.named.clear()
            proxy.unknown_count = 9
            with pytest.raises(DuramenError, match="not believed there") as caught:
                await client.get_json("/v1/namespaces")
            assert caught.value.code == "unauthenticated"
            assert len(proxy.named) == 2, "once more, and not for ever"
            await client.close()

    uvloop.run(main())


def test_nobody_is_named_in_plain_text(tmp_path: Path) -> None:
    credential = name_operator(IssuingWorld(tmp_path))
    for url in ("http://127.0.0.1:1", "http://main-writeproxy.logs.svc:7301"):
        with pytest.raises(DuramenError, match="over https alone") as caught:
            RestClient(url, credential=credential)
        assert caught.value.code == "invalid_argument"
