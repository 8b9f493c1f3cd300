"""Where tokens come from, and which URLs may see one: texts, files, commands.

Source: docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from duramen.client.credentials import tokens
from duramen.client.credentials.credential import Credential, is_here, make_credential
from duramen.client.credentials.tokens import GivenToken, TokenCommand, TokenFile
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from tests.waiting import wait_in_thread

HERE = (
    "http://localhost:7301", "http://LOCALHOST", "http://a.localhost:1", "http://127.0.0.1:7301",
    "http://127.9.9.9", "http://[::1]:7301", "http://localhost.:7301",
)  # fmt: skip
ELSEWHERE = (
    "http://logs.example.org", "http://10.0.0.7:7301", "http://0.0.0.0:7301", "http://[::]:7301",
    "http://localhost.example.org", "http://127.0.0.1.example.org", "http://localhost@example.org",
    "http://notlocalhost", "http://2130706433", "http://127.1", "http://[fe80::1]", "http://",
    "http://[broken", "http://example.org#@localhost", "http://example.org?@localhost/",
)  # fmt: skip


@pytest.mark.parametrize("url", HERE)
def test_a_token_may_go_to_this_machine_in_plain_text(url: str) -> None:
    assert is_here(url)
    make_credential(token="x").check_url(url)


@pytest.mark.parametrize("url", ELSEWHERE)
def test_a_token_goes_nowhere_else_without_tls(url: str) -> None:
    assert not is_here(url)
    with pytest.raises(DuramenError, match="https, or to this machine alone") as raised:
        RestClient(url, credential=make_credential(token="planted"))
    assert raised.value.field == "url" and "planted" not in str(raised.value)
    make_credential(token="x").check_url(url.replace("http:", "https:"))
    make_credential().check_url(url)


@pytest.mark.parametrize(
    ("given", "named", "may"),
    [
        ("https://a", "https://b", True),
        ("http://127.0.0.1:1", "https://b", True),
        ("http://127.0.0.1:1", "http://127.0.0.1:2", True),
        ("https://a", "http://127.0.0.1:2", False),
        ("https://a", "http://b", False),
        ("http://127.0.0.1:1", "http://b", False),
    ],
)
def test_who_may_be_followed_with_a_token(given: str, named: str, may: bool) -> None:
    assert make_credential(token="x").may_follow(given, named) is may
    assert make_credential().may_follow(given, named), "without one there is nothing to lose"


@pytest.mark.parametrize(
    "text", ["", "a b", "a\nb", "a\r\nx: y", "ä", "x" * 8_193, "\x00", "a\x7f"]
)
def test_what_is_no_token_is_refused_and_not_told(text: str, tmp_path: Path) -> None:
    with pytest.raises(DuramenError, match="visible characters") as raised:
        GivenToken(text)
    assert raised.value.code == "invalid_argument"
    file = tmp_path / "token"
    file.write_text(f"planted{text}planted" if text not in ("", "x" * 8_193) else text)
    with pytest.raises(DuramenError, match="holds no token") as raised:
        asyncio.run(TokenFile(file).read())
    assert raised.value.code == "unauthenticated" and "planted" not in str(raised.value)


def test_a_file_is_read_once_while_it_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("one")
    second.write_text("two")
    link = tmp_path / "token"
    link.symlink_to(first)
    source = TokenFile(link)

    async def main() -> None:
        assert await source.read() == "one"
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", None)
            assert await source.read() == "one"
        link.unlink()
        link.symlink_to(second)  # as a kubelet does
        assert await source.read() == "two"
        assert await source.renew("two") is None
        assert await source.renew("one") == "two"

    asyncio.run(main())


def test_a_command_gives_a_token_once_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    source = TokenCommand(f"sh -c 'echo x >> {count}; echo planted$(wc -l < {count})'")

    async def main() -> None:
        found = await asyncio.gather(*(source.read() for _ in range(5)))
        assert found == ["planted1"] * 5
        assert await asyncio.gather(*(source.renew("planted1") for _ in range(5))) == (
            ["planted2"] * 5
        )
        for command, told in {
            "sh -c 'echo planted; exit 3'": "ended with status 3",
            "sh -c 'echo planted planted'": "holds no token",
            "cat /dev/zero": "holds no token",
            "no-such-program-anywhere": "cannot be run",
            "cat": "holds no token",
        }.items():
            with pytest.raises(DuramenError, match=told) as raised:
                await TokenCommand(command).read()
            assert raised.value.code == "unauthenticated" and "planted" not in str(raised.value)

    asyncio.run(main())
    for command in ("", "  ", "sh -c 'open"):
        with pytest.raises(DuramenError, match="token command"):
            TokenCommand(command)


def test_a_command_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "COMMAND_S", 0.3)
    file = tmp_path / "pid"
    source = TokenCommand(f"sh -c 'sleep 60 & echo $! > {file}; wait'")
    began_s = time.monotonic()
    with pytest.raises(DuramenError, match=r"within 0\.3 s"):
        asyncio.run(source.read())
    assert time.monotonic() - began_s < 20
    status = Path(f"/proc/{file.read_text().strip()}/stat")

    def is_gone() -> bool:
        try:
            return status.read_text().split()[2] == "Z"
        except OSError:
            return True

    wait_in_thread(is_gone, 20, "what it had started to end")


def test_who_leaves_a_commands_group_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "COMMAND_S", 0.3)
    file = tmp_path / "pid"
    source = TokenCommand(f"setsid -f sh -c 'echo $$ > {file}; exec sleep 60'")
    began_s = time.monotonic()
    with pytest.raises(DuramenError, match=r"within 0\.3 s"):
        asyncio.run(source.read())
    assert time.monotonic() - began_s < 20
    os.kill(int(file.read_text()), signal.SIGKILL)


def test_what_was_shown_is_named() -> None:
    told = Credential(identity=Path("operator-tls")).explain_refusal()
    assert "operator-tls" in told and "a public port wants a token" in told
    assert os.sep not in repr(make_credential(token="x"))
