"""Clusters by name: the file of contexts, its commands, and which server and file a command takes.

Source: docs/cli.md "Contexts", docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from duramen.cli.command import DATA_DEFAULT, FoundUrl, find_url
from duramen.cli.main import main
from duramen.client.credentials.local_cluster import find_credential_of
from duramen.client.credentials.tokens import TokenFile
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.token_text import make_token
from tests.unit.fake_proxy import FakeProxy, running_proxy

PUBLIC = "https://logs.example.org"
ADMIN = "https://admin.example.org"
WORD = "word"
URLS = ("--url", PUBLIC, "--admin-url", ADMIN)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of who runs the tests is looked at."""
    for name in ("URL", "ADMIN_URL", "TOKEN_FILE", "IDENTITY", "CA"):
        monkeypatch.delenv(f"DURAMEN_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def proxy() -> Iterator[FakeProxy]:
    with running_proxy() as server:
        for path in ("/v1/namespaces", "/v1/namespaces?limit=1000"):
            server.answers[path] = {"namespaces": [], "has_more": False}
        yield server


def add(name: str, *more: str, urls: Sequence[str] = URLS) -> None:
    """The files that it names are there."""
    for flag, value in zip(more[::2], more[1::2], strict=True):
        if flag != "--token-command":
            Path(value).touch()
    assert main(["context", "add", name, *urls, *more]) == 0


def describe(found: FoundUrl) -> tuple[str, str, str | None]:
    ca = found.credential.ca
    return found.url, found.credential.name, None if ca is None else ca.name


def write_cluster(folder: Path, url: str, admin_url: str, pid: int | None) -> str:
    """A folder of `duramen run --security on`, whose one process is this one; the token's text."""
    (folder / "identities/operator").mkdir(parents=True)
    token = make_token().text
    (folder / "token").write_text(token)
    (folder / "token").chmod(0o600)
    process = {"pid": pid, "data_url": url, "admin_url": admin_url}
    document = {"v": 1, "write_url": url, "read_url": url, "admin_url": admin_url}
    (folder / "cluster.json").write_text(json.dumps(document | {"processes": [process]}))
    return token


def test_contexts_are_kept_for_their_owner_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.umask(0o022)
    add("prod", "--token-file", "t", "--ca", "ca.crt")
    add("test", "--token-command", "vault read token", "--identity", "op")
    file = home / "config/duramen/contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert main(["context", "use", "prod"]) == 0
    capsys.readouterr()
    assert main(["context", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["used"] == "prod"
    assert listed["contexts"] == [
        {
            "name": "prod", "url": PUBLIC, "admin_url": ADMIN, "token_file": str(home / "t"),
            "ca": str(home / "ca.crt"),
        },
        {
            "name": "test", "url": PUBLIC, "admin_url": ADMIN, "token_command": "vault read token",
            "identity": str(home / "op"),
        },
    ]  # fmt: skip
    assert main(["context", "list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[1].split()[:2] == ["*", "prod"] and "token file" in rows[1]
    assert "token command vault read token, identity" in rows[2]
    assert main(["context", "remove", "prod"]) == 0
    assert main(["context", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert listed["used"] is None and [one["name"] for one in listed["contexts"]] == ["test"]
    for words in (["use", "prod"], ["remove", "prod"], ["env", "prod"]):
        assert main(["context", *words]) == 1
        assert "no context 'prod'" in capsys.readouterr().err


def test_no_context_may_be_used(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cluster(home / ".duramen", "http://127.0.0.1:7301", "https://127.0.0.1:7302", None)
    add("prod")
    assert main(["context", "use", "prod"]) == 0
    assert find_url(None, DATA_DEFAULT, "write_url").url == PUBLIC
    capsys.readouterr()
    assert main(["context", "use", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"used": None}
    assert find_url(None, DATA_DEFAULT, "write_url").url == "http://127.0.0.1:7301"
    assert main(["context", "add", "none", *URLS]) == 1
    assert "choose another name" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--token-file", "--identity", "--ca"])
def test_a_file_that_is_not_there_is_told_at_once(
    flag: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["context", "add", "a", *URLS, flag, "nowhere"]) == 2
    assert f"{flag} nowhere: there is nothing" in capsys.readouterr().err
    assert not (home / "config").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_a_file_that_others_can_open_is_refused(
    mode: int, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add("prod")
    (home / "config/duramen/contexts.json").chmod(mode)
    for words in (["context", "list"], ["context", "use", "prod"], ["log", "list"]):
        assert main(words) == 1
        assert "chmod 600" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"v": 2, "contexts": {}}', b'{"v":1,"contexts":{"a":{"x":"y"}}}',
                b'{"v":1,"contexts":{"a":{"url":7}}}', b'{"v":1,"contexts":{},"used":"a"}',
                b'{"v":1,"contexts":{"../a":{}}}'],
)  # fmt: skip
def test_a_file_that_is_none_of_ours_is_refused(
    content: bytes, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add("prod")
    (home / "config/duramen/contexts.json").write_bytes(content)
    assert main(["context", "list"]) == 1
    assert "no file of contexts" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["a"],
        ["a", "--url", "logs.example.org"],
        ["a", "--url", f"https://me:{WORD}@logs.example.org"],
        ["a", "--url", "https://logs.example.org?token=1"],
        ["a", "--url", PUBLIC, "--token-file", "a", "--token-command", "b"],
    ],
)
def test_what_makes_no_context_is_usage(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["context", "add", *words]) == 2
    assert "word@" not in capsys.readouterr().err
    assert not (home / "config").exists()


def test_a_token_is_no_argument_and_is_not_repeated(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = make_token().text
    for flag in ("--token-file", "--token-command", "--identity"):
        value = f"echo {token}" if flag == "--token-command" else token
        assert main(["context", "add", "a", "--url", PUBLIC, flag, value]) == 2
        said = capsys.readouterr()
        assert "is no argument" in said.err and token[30:] not in said.err + said.out
    assert not (home / "config").exists()


def test_what_is_shown_comes_from_where_the_url_came_from(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("prod", "--token-file", "of-context", "--identity", "op", "--ca", "ca.crt")
    local = home / ".duramen"
    write_cluster(local, "http://127.0.0.1:7301", "https://127.0.0.1:7302", os.getpid())
    other = home / "other"
    write_cluster(other, "http://127.0.0.1:8301", "https://127.0.0.1:8302", None)

    def find(kind: Any, url: str | None = None, data: Path = DATA_DEFAULT) -> tuple[Any, ...]:
        return describe(find_url(url, data, kind))

    # Nothing is named: the local cluster.
    own = (f"the token in {local / 'token'}", None)
    assert find("write_url") == ("http://127.0.0.1:7301", *own)
    assert find("admin_url") == (
        "https://127.0.0.1:7302", f"the certificate in {local / 'identities/operator'}", None,
    )  # fmt: skip
    # The context in use comes before it, a folder that is named before the context.
    assert main(["context", "use", "prod"]) == 0
    assert find("read_url") == (PUBLIC, f"the token in {home / 'of-context'}", "ca.crt")
    assert find("admin_url") == (ADMIN, f"the certificate in {home / 'op'}", "ca.crt")
    assert find("read_url", data=other)[:2] == (
        "http://127.0.0.1:8301", f"the token in {other / 'token'}",
    )  # fmt: skip
    # A URL of the line or the environment gets what the environment names, and nothing else.
    assert find("write_url", "https://elsewhere") == ("https://elsewhere", "nothing", None)
    monkeypatch.setenv("DURAMEN_URL", "https://of-variable")
    assert find("write_url") == ("https://of-variable", "nothing", None)
    monkeypatch.setenv("DURAMEN_TOKEN_FILE", "given")
    monkeypatch.setenv("DURAMEN_IDENTITY", "mine")
    monkeypatch.setenv("DURAMEN_CA", "its-ca")
    assert find("write_url") == ("https://of-variable", "the token in given", "its-ca")
    assert find("write_url", "https://line") == ("https://line", "the token in given", "its-ca")
    assert find("admin_url", "https://line") == (
        "https://line",
        "the certificate in mine",
        "its-ca",
    )
    assert find("admin_url") == (ADMIN, f"the certificate in {home / 'op'}", "ca.crt")
    monkeypatch.delenv("DURAMEN_TOKEN_FILE")
    monkeypatch.delenv("DURAMEN_CA")
    # But what a running process of the local cluster has is found for its port.
    assert find("write_url", "http://localhost:7301") == ("http://localhost:7301", *own)
    assert find("write_url", "http://localhost:7303")[1] == "nothing"


def test_a_folders_token_goes_to_its_running_processes_alone(home: Path) -> None:
    folder = home / ".duramen"
    url = "http://127.0.0.1:7301"
    write_cluster(folder, url, "https://127.0.0.1:7302", os.getpid())
    assert isinstance(find_credential_of(url).token, TokenFile)
    assert find_credential_of("http://logs.example.org:7301").token is None
    assert find_credential_of("http://localhost").token is None
    assert find_credential_of("http://localhost:x").token is None
    (folder / "token").chmod(0o640)
    with pytest.raises(DuramenError, match="may be read by others: chmod 600"):
        find_credential_of(url)
    assert find_credential_of("http://logs.example.org:7301").token is None, "that is not asked"
    (folder / "token").chmod(0o600)
    document = json.loads((folder / "cluster.json").read_text())
    for pid in (None, 0, 1, -1, "1", 2**22 + 1):
        document["processes"][0]["pid"] = pid
        (folder / "cluster.json").write_text(json.dumps(document))
        assert find_credential_of(url).token is None, f"pid {pid} does not run"
    for content in ("", "[]", '{"processes": 1}', '{"processes": [1]}', '{"processes": [{}]}'):
        (folder / "cluster.json").write_text(content)
        assert find_credential_of(url).token is None


def test_commands_show_what_a_context_names(
    home: Path, proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "t").write_text("of-the-file\n")
    add("a", "--token-file", "t", urls=("--url", proxy.url))
    assert main(["context", "use", "a"]) == 0
    assert main(["namespace", "list"]) == 0
    add("a", "--token-command", "echo spoken", urls=("--url", proxy.url))
    assert main(["namespace", "list"]) == 0
    assert proxy.shown == ["Bearer of-the-file", "Bearer spoken"]
    add("a", "--token-file", "t", urls=("--url", proxy.url))
    (home / "t").unlink()
    capsys.readouterr()
    assert main(["namespace", "list"]) == 1
    said = capsys.readouterr().err
    assert "No such file" in said and "next: " in said and "duramen context add" in said
    add("b", urls=("--url", proxy.url))
    assert main(["context", "use", "b"]) == 0
    assert main(["top", "--once"]) == 2
    assert "the context b has no --admin-url" in capsys.readouterr().err


def test_the_environment_names_files_and_curl_gets_one_of_its_own(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = make_token().text
    (home / "t o").write_text(token)
    add("prod", "--token-file", "t o", "--identity", 'o"p')
    assert main(["context", "use", "prod"]) == 0
    capsys.readouterr()
    assert main(["context", "env"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[:4] == [
        f"export DURAMEN_URL={PUBLIC}", f"export DURAMEN_ADMIN_URL={ADMIN}",
        f"export DURAMEN_TOKEN_FILE='{home / 't o'}'", f"""export DURAMEN_IDENTITY='{home}/o"p'""",
    ]  # fmt: skip
    file = home / "config/duramen/curl-prod.conf"
    assert said.out.splitlines()[4:] == [f'# curl -K {file} "$DURAMEN_URL/v1/namespaces"']
    assert token not in said.out + said.err
    assert file.stat().st_mode & 0o777 == 0o600
    assert f'header = "Authorization: Bearer {token}"' in file.read_text()
    assert f'cert = "{home}/o\\"p/tls.crt"' in file.read_text()
    # Without a context: the local cluster, whose file for curl is there.
    write_cluster(home / "c", "http://127.0.0.1:7301", "https://127.0.0.1:7302", None)
    assert main(["context", "env", "--data", "c", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "variables": {
            "DURAMEN_URL": "http://127.0.0.1:7301", "DURAMEN_ADMIN_URL": "https://127.0.0.1:7302",
        },
        "curl_file": None,
    }  # fmt: skip
    (home / "c/curl.conf").touch()
    assert main(["context", "env", "--data", "c"]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith(f"# curl -K {home}/c/curl.conf ")


def test_the_sdk_finds_the_token_of_a_local_cluster(home: Path, proxy: FakeProxy) -> None:
    from duramen.client import Client

    token = write_cluster(home / ".duramen", proxy.url, proxy.url, os.getpid())

    async def ask(**given: str) -> None:
        async with Client(proxy.url, http2=False, **given) as client:  # type: ignore[arg-type]
            assert [one async for one in client.namespaces()] == []

    asyncio.run(ask())
    asyncio.run(ask(token="mine"))
    asyncio.run(ask(read_url="http://logs.example.org"))
    assert proxy.shown == [f"Bearer {token}", "Bearer mine", None], "both, or nothing is shown"
