"""A token file that is written anew under clients of the SDK, whose former token is then revoked.

Between the proxies and an SDK that appends and follows, with a long poll open all the time; real
processes that die between the steps are `tests/process/test_rolled_credentials.py`'s. Source:
docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from duramen.client import Client
from tests.component.admission_world import LOG, AdmissionWorld, play, until
from tests.component.admission_world import bear as bear_token
from tests.unit.web_token_forge import EC, forge, to_jwk, to_set
from tests.waiting import wait_for

Key = ec.EllipticCurvePrivateKey


async def give_token(world: AdmissionWorld) -> tuple[str, str]:
    """Another API token, of which both proxies have heard."""
    text, token_id = await world.callers.make_token("read,append,list ns")
    for client in (world.http, world.write):
        await until(partial(client.get, LOG, headers=bear_token(text)), 200, 404)
    return text, token_id


async def read_on(client: Client, found: list[bytes]) -> None:
    async for batch in client["ns"]["log"].read("head", follow=True):
        found += batch.bodies


def sign(key: Key, key_id: str) -> str:
    return forge({"kid": key_id}, {"sub": "ann"}, key=key)


@pytest.mark.parametrize("forwarded", [False, True], ids=["own", "forwarded"])
def test_whoever_shows_a_file_goes_on_with_what_stands_in_it(
    tmp_path: Path, forwarded: bool
) -> None:
    file = tmp_path / "token"

    async def scenario(world: AdmissionWorld) -> None:
        await world.open_segment()
        await world.callers.give("ann writer ns")
        text, token_id = await give_token(world)
        file.write_text(text)
        urls = [str(world.write.base_url), str(world.http.base_url)]
        write_url, read_url = reversed(urls) if forwarded else urls
        found: list[bytes] = []
        async with (
            Client(write_url, token_file=file) as writer,
            Client(read_url, token_file=file) as reader,
        ):
            following = asyncio.create_task(read_on(reader, found))
            feeds = world.proxy.statistics

            async def see_going_on(count: int) -> None:
                await writer["ns"]["log"].append(b"x")
                await world.append(1)
                await wait_for(lambda: len(found) == count, what=f"{count} records")
                await wait_for(lambda: bool(feeds()["feeds"]["waiting"]), what="a long poll")

            await see_going_on(1)
            other, _ = await give_token(world)
            file.write_text(other)
            await world.callers.revoke(token_id)
            for client in (world.http, world.write):
                await until(partial(client.get, LOG, headers=bear_token(text)), 401)
            await see_going_on(2)

            keys = {"ec-1": EC}
            file.write_text(sign(EC, "ec-1"))
            await see_going_on(3)
            for number in range(2):
                # Beside the former, shown at once, and the former is gone at once.
                keys[f"key-{number}"] = ec.generate_private_key(ec.SECP256R1())
                world.key_file.write_bytes(to_set(*(to_jwk(k, i) for i, k in keys.items())))
                file.write_text(sign(keys[f"key-{number}"], f"key-{number}"))
                await see_going_on(4 + 2 * number)
                del keys[next(iter(keys))]
                world.key_file.write_bytes(to_set(*(to_jwk(k, i) for i, k in keys.items())))
                await see_going_on(5 + 2 * number)
            assert not following.done()
            following.cancel()
        assert found == [b"r%d" % number for number in range(7)], "each once, and in order"
        assert len(world.sequencer.rows) == 7

    play(tmp_path, scenario)
