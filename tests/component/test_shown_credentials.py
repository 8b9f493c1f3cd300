"""What clients show over loopback, to a server that asks: tokens, certificates, and to whom not.

Source: docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from duramen.client.credentials.credential import Credential, make_credential
from duramen.client.credentials.tokens import TokenCommand, TokenFile
from duramen.client.rest_client import RestClient
from duramen.client.retry import RetryPolicy
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError, UntrustedPeerError
from duramen.runtime.identity import sole_anchors
from tests.component.asking_proxy import AskingProxy, asking_proxy
from tests.component.issuing_world import IssuingWorld
from tests.component.sdk_faces import FACES, open_client

PATH = "/v1/namespaces"
AT_ONCE = RetryPolicy(within_s=0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    uvloop.run(main())


async def ask(url: str, credential: Credential) -> str:
    """`answered`, or what went wrong."""
    client = RestClient(url, credential=credential)
    try:
        await client.get_json(PATH)
        return "answered"
    except (DuramenError, PeerError) as error:
        return str(error)
    finally:
        await client.close()


def shown(proxy: AskingProxy) -> list[str | None]:
    found = [header for _, header in proxy.asked]
    proxy.asked.clear()
    return found


def test_a_token_is_shown_and_without_one_the_refusal_says_the_way_out() -> None:
    async def main() -> None:
        async with asking_proxy() as proxy:
            proxy.believed = {"good"}
            assert await ask(proxy.url, make_credential(token="good")) == "answered"
            assert shown(proxy) == ["Bearer good"]
            refused = await ask(proxy.url, make_credential())
            assert refused.startswith("unauthenticated: nothing was shown")
            assert "token_file" in refused and "duramen context add" in refused
            assert shown(proxy) == [None]
            refused = await ask(proxy.url, make_credential(token="planted"))
            assert "the token that was given" in refused and "planted" not in refused
            assert len(shown(proxy)) == 1, "there is no other token to show"

    run(main)


def test_a_file_is_read_anew_when_it_changed_and_once_after_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")

    async def main() -> None:
        async with asking_proxy() as proxy:
            client = RestClient(proxy.url, credential=make_credential(token_file=file))
            proxy.believed = {"first"}
            await client.get_json(PATH)
            file.write_text("  second ")
            proxy.believed = {"second"}
            await client.get_json(PATH)
            assert shown(proxy) == ["Bearer first", "Bearer second"], "no refusal was needed"

            # Renewed within the same tick of the file system's clock: only the refusal tells.
            before = file.stat()
            with file.open("r+") as opened:
                opened.write("  THIRD ")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            proxy.believed = {"THIRD"}
            await client.get_json(PATH)
            assert shown(proxy) == ["Bearer second", "Bearer THIRD"]

            proxy.believed = {"another"}
            with pytest.raises(DuramenError) as raised:
                await client.get_json(PATH)
            assert raised.value.code == "unauthenticated" and str(file) in raised.value.detail
            assert "duramen context" in raised.value.detail
            assert shown(proxy) == ["Bearer THIRD"], "the same text is not shown twice"

            # As `command > file` leaves it until the command writes.
            file.write_text("")
            with pytest.raises(DuramenError, match="is not believed there"):
                await client.get_json(PATH)
            proxy.believed = {"THIRD"}
            await client.get_json(PATH)
            assert shown(proxy) == ["Bearer THIRD"] * 2
            proxy.believed = {"another"}
            file.write_text("fourth")
            with pytest.raises(DuramenError):
                await client.get_json(PATH)
            assert shown(proxy) == ["Bearer fourth"]
            file.unlink()
            with pytest.raises(DuramenError, match="No such file") as raised:
                await client.append("a", "b", b"batch")
            assert not raised.value.uncertain, "nothing was sent"
            await client.close()

    run(main)


def test_a_second_refusal_is_the_answer(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f"echo x >> {count}; wc -l < {count}"

    async def main() -> None:
        async with asking_proxy() as proxy:
            credential = Credential(token=TokenCommand(f"sh -c '{script}'"))
            proxy.believed = {"2"}
            client = RestClient(proxy.url, credential=credential)
            await asyncio.gather(*(client.get_json(PATH) for _ in range(20)))
            found = shown(proxy)
            assert set(found) == {"Bearer 1", "Bearer 2"} and len(found) <= 40
            assert count.read_text() == "x\nx\n", "it ran once for all who were refused"
            proxy.believed = {"never"}
            with pytest.raises(DuramenError, match="unauthenticated"):
                await client.get_json(PATH)
            assert shown(proxy) == ["Bearer 2", "Bearer 3"]
            await client.close()

    run(main)


@pytest.mark.parametrize("is_problem", [True, False])
def test_an_append_that_was_refused_is_certainly_not_stored(is_problem: bool) -> None:
    async def main() -> None:
        async with asking_proxy() as proxy:
            proxy.believed = {"good"}
            if not is_problem:
                proxy.refusal = b"<html>an ingress that asks before a proxy does</html>"
            client = RestClient(proxy.url, credential=make_credential(token="bad"))
            with pytest.raises(DuramenError) as raised:
                await client.append("a", "b", b"batch")
            assert raised.value.code == "unauthenticated" and not raised.value.uncertain
            await client.close()

    run(main)


@pytest.mark.parametrize("face", FACES)
def test_the_sdk_shows_a_token_over_tls_to_who_has_a_certificate_of_the_ca(
    face: str, tmp_path: Path
) -> None:
    world, other = IssuingWorld(tmp_path / "a"), IssuingWorld(tmp_path / "b")
    file = tmp_path / "token"
    file.write_text("good")

    async def main() -> None:
        async with asking_proxy(world.server) as proxy:
            proxy.believed = {"good"}
            options = {"retry": AT_ONCE, "ca": world.caller / "ca.crt"}
            for given in ({"token": "good"}, {"token_file": file}):
                async with open_client(face, proxy.url, **given, **options) as client:
                    assert [one async for one in client.namespaces()] == []
            assert shown(proxy) == ["Bearer good"] * 2
            options["ca"] = other.caller / "ca.crt"
            async with open_client(face, proxy.url, token="good", **options) as client:
                with pytest.raises(DuramenError, match="certificate is refused"):
                    _ = [one async for one in client.namespaces()]
            del options["ca"]
            async with open_client(face, proxy.url, token="good", **options) as client:
                with pytest.raises(DuramenError, match="certificate is refused"):
                    _ = [one async for one in client.namespaces()]
            assert shown(proxy) == []
        with pytest.raises(DuramenError, match="one of token and token_file"):
            async with open_client(face, proxy.url, token="a", token_file=file):
                pass

    run(main)


def test_a_certificate_is_shown_where_it_is_asked_for_and_renewed_with_its_folder(
    tmp_path: Path,
) -> None:
    world, other = IssuingWorld(tmp_path / "a"), IssuingWorld(tmp_path / "b")
    operator = world.issue("operator", "operator")

    async def main() -> None:
        async with asking_proxy(world.server, asks_certificate=True) as proxy:
            client = RestClient(proxy.url, credential=Credential(identity=operator))
            await client.get_json(PATH)
            first = client._connections.find()
            assert client._connections.find() is first
            world.issue("operator", "operator")
            assert client._connections.find() is not first
            await client.get_json(PATH)
            (operator / "tls.crt").unlink()
            await client.get_json(PATH)  # what cannot be read leaves what is there
            await client.close()

            ca = world.caller / "ca.crt"
            refused = await ask(proxy.url, Credential(ca=ca))
            assert "unauthenticated" in refused and "asks for another certificate" in refused
            refused = await ask(proxy.url, Credential(identity=other.caller, ca=ca))
            assert "unauthenticated" in refused and str(other.caller) in refused

    run(main)


def test_a_port_without_tls_and_one_of_another_name_are_told_clearly(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    credential = Credential(ca=world.caller / "ca.crt")

    async def main() -> None:
        async with asking_proxy() as proxy:
            told = await ask(proxy.url.replace("http:", "https:"), credential)
            assert "speaks no TLS" in told
        async with asking_proxy(world.server) as proxy:
            told = await ask(proxy.url.replace("127.0.0.1", "localhost"), credential)
            assert "certificate is refused" in told and "localhost" in told

    run(main)


@pytest.mark.parametrize(
    ("home", "is_followed"),
    [
        ("http://logs.example.org:7301", False),
        ("http://10.0.0.7:7301", False),
        ("http://127.0.0.1:{port}", True),
    ],
)
def test_a_url_that_an_answer_names_gets_the_token_only_where_it_may_go(
    home: str, is_followed: bool
) -> None:
    async def main() -> None:
        async with asking_proxy() as proxy, asking_proxy() as near:
            proxy.home = home.format(port=near.url.rpartition(":")[2])
            options = {"token": "good", "follow_owner": True, "retry": AT_ONCE}
            async with open_client("async", proxy.url, **options) as client:
                await client.log("a/b").append(b"x")
                async for _ in client.log("a/b").read("head", follow=False):
                    pass
                assert client.statistics()["homes"]["proxies"] == int(is_followed)
            elsewhere = shown(near)
            assert bool(elsewhere) is is_followed and set(elsewhere) <= {"Bearer good"}
            if not is_followed:
                posts = [path for path, _ in proxy.asked if path.endswith("/records")]
                assert len(posts) >= 3, "the proxy that was asked serves both calls"

    run(main)


def test_no_token_is_told_by_any_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = "-".join(("planted", "in", "a", "test"))
    file = tmp_path / "token"
    file.write_text(secret)
    caplog.set_level(logging.DEBUG)
    given = make_credential(token=secret)
    kept = make_credential(token_file=file)
    command = Credential(token=TokenCommand(f"echo {secret} {secret}"))
    told: list[str] = []

    async def main() -> None:
        async with asking_proxy() as proxy:
            proxy.believed = {"another"}
            for credential in (given, kept, command):
                client = RestClient(proxy.url, credential=credential)
                try:
                    await client.append("a", "b", b"batch")
                except DuramenError as error:
                    told.append("".join(traceback.format_exception(error)) + repr(error.problem()))
                await client.close()
                told.extend((repr(credential), str(credential), repr(vars(client))))
            assert [header for _, header in proxy.asked] == [f"Bearer {secret}"] * 2

    run(main)
    told.append(pickle.dumps(kept).decode("latin-1"))
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(given)
    loaded = pickle.loads(pickle.dumps(kept))
    assert isinstance(loaded.token, TokenFile) and asyncio.run(loaded.token.read()) == secret
    told += [str(one) for one in caplog.records]
    assert len(told) > 12 and not [one for one in told if secret in one]


def test_clients_that_are_made_at_once_trust_their_own_anchors_and_leave_the_environment(
    tmp_path: Path,
) -> None:
    world, other = IssuingWorld(tmp_path / "a"), IssuingWorld(tmp_path / "b")
    before = {name: os.environ.get(name) for name in sole_anchors._VARIABLES}

    async def main() -> None:
        async with asking_proxy(world.server) as proxy:

            def make(folder: Path) -> RestClient:
                return RestClient(proxy.url, credential=Credential(ca=folder / "ca.crt"))

            folders = [world.caller, other.caller] * 8
            clients = await asyncio.gather(*(asyncio.to_thread(make, one) for one in folders))
            for folder, client in zip(folders, clients, strict=True):
                if folder == world.caller:
                    await client.get_json(PATH)
                else:
                    with pytest.raises(UntrustedPeerError, match="certificate is refused"):
                        await client.get_json(PATH)
                await client.close()

    run(main)
    assert {name: os.environ.get(name) for name in sole_anchors._VARIABLES} == before
