"""`duramen grant …` and `duramen token …` against a server that plays a write proxy.

What is checked is what a user sees, what is asked of the server, and where a token's text goes.
Against a sequencer's own operations the calls run in `tests/component/test_rights_routes`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duramen.cli.main import main
from duramen.errors import DuramenError
from tests.unit.fake_proxy import FakeProxy, running_proxy

TOKENS = "/v1/access-tokens"
SHOP = "/v1/grants?scope=shop"
ANN = {"who": "user:corp/ann", "role": "owner", "scope": "shop"}
BOB = {"who": "group:corp/till staff", "role": "reader", "scope": "shop"}
GIVEN = {"by": "service:operator/op", "given": "2026-01-01T01:00:00.000Z"}
SECRET = f"dur1_{'a' * 16}_{'b' * 52}"
TOKEN = {
    "id": "a" * 16, "prefix": f"dur1_{'a' * 16}", "by": "user:corp/ann", "note": "till",
    "scopes": [{"verbs": ["append", "list"], "target": "shop/a*"}],
    "created": "2026-01-01T01:00:00.000Z", "ends": "2026-01-31T01:00:00.000Z",
}  # fmt: skip


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProxy]:
    with running_proxy() as server:
        monkeypatch.setenv("DURAMEN_URL", server.url)
        yield server


def see(proxy: FakeProxy, *rows: dict[str, Any], version: int = 3, **more: Any) -> str:
    """What the list of `shop` is; gives the path of a change that was made of it."""
    answer = {"version": version, "grants": [{**row, **GIVEN} for row in rows], **more}
    proxy.answers[SHOP] = answer
    change = f"{SHOP}&version={version}"
    proxy.answers.setdefault(change, answer)
    return change


# --- Grants --------------------------------------------------------------------------------------


def test_grants_are_listed(proxy: FakeProxy, capsys: pytest.CaptureFixture[str]) -> None:
    see(proxy, ANN)
    assert main(["grant", "list", "shop"]) == 0
    said = capsys.readouterr()
    assert [line.split() for line in said.out.splitlines()][-1] == [
        "user:corp/ann", "owner", "shop", GIVEN["by"], GIVEN["given"],
    ]  # fmt: skip
    assert main(["grant", "list", "shop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == proxy.answers[SHOP]
    everything = "/v1/grants?scope=%2A"
    for more in ({"not_understood": [{"if": 1}]}, {"unreadable": "no JSON"}):
        proxy.answers[everything] = {"version": 1, "grants": [], **more}
        assert main(["grant", "list"]) == 1
        assert f"not understood, and gives nothing: {next(iter(more.values()))}" in (
            capsys.readouterr().err
        )


@pytest.mark.parametrize(
    ("words", "before", "after", "line"),
    [
        (("give", *ANN.values()), [BOB], [BOB, ANN], "owner on shop to user:corp/ann: given"),
        (("give", *ANN.values()), [ANN], None, "owner on shop to user:corp/ann: is there already"),
        (("take", *ANN.values()), [ANN, BOB], [BOB], "owner on shop to user:corp/ann: taken"),
        (("take", *ANN.values()), [BOB], None, "owner on shop to user:corp/ann: was not there"),
        (("take", *BOB.values()), [BOB], [], "reader on shop to group:corp/till staff: taken"),
    ],
)
def test_one_grant_is_given_or_taken_and_the_others_stay(  # noqa: PLR0917 - as many as columns
    proxy: FakeProxy,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    before: list[dict[str, Any]],
    after: list[dict[str, Any]] | None,
    line: str,
) -> None:
    change = see(proxy, *before)
    assert main(["grant", *words]) == 0
    assert capsys.readouterr().out == f"{line}\n"
    asked = [(SHOP, None)]
    assert proxy.asked == asked + ([] if after is None else [(change, {"grants": after})])
    assert main(["grant", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {**dict(zip(ANN, words[1:], strict=True)), "changed": after is not None}


def test_who_was_slower_reads_again(
    proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change = see(proxy, ANN)
    proxy.answers[change] = DuramenError("config_conflict", "read them again")
    assert main(["grant", "give", *BOB.values()]) == 1
    assert len(proxy.asked) == 10, "five tries"
    assert "somebody else changed it" in capsys.readouterr().err


def test_what_nobody_understands_is_not_written_over(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    see(proxy, unreadable="no JSON")
    assert main(["grant", "give", *ANN.values()]) == 1
    assert [path for path, _ in proxy.asked] == [SHOP]
    assert "the grants: no JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("list", "shop/*"),
        ("give", "ann", "owner", "shop"),
        ("give", "user:corp/ann", "king", "shop"),
        ("give", "user:corp/ann", "monitor", "shop"),
        ("take", "user:corp/ann", "owner", "shop/"),
    ],
)
def test_a_grant_that_is_none_is_usage(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(["grant", *words]) == 2
    assert proxy.asked == []


# --- Tokens --------------------------------------------------------------------------------------

CREATE = ("token", "create", "--scope", "list,append:shop/a*", "--expires", "30d")
ASKED = {"scopes": TOKEN["scopes"], "expires": "30d", "note": "till"}


def test_a_token_is_told_once_on_standard_output(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.answers[TOKENS] = {**TOKEN, "token": SECRET}
    assert main([*CREATE, "--note", "till"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{SECRET}\n"
    assert said.err == f"{TOKEN['prefix']}: ends {TOKEN['ends']}\n"
    assert proxy.asked == [(TOKENS, ASKED)]
    assert main([*CREATE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == proxy.answers[TOKENS]


def test_a_token_that_ends_sooner_than_asked_says_so(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.answers[TOKENS] = {**TOKEN, "token": SECRET}
    told = "that is sooner than 60d: what you show ends then, and so does this token"
    for expires, is_told in (("30d", False), ("60d", True)):
        assert main([*CREATE[:-1], expires]) == 0
        assert (told in capsys.readouterr().err) == is_told
    assert main([*CREATE[:-1], "soon"]) == 2
    assert "--expires" in capsys.readouterr().err and len(proxy.asked) == 2


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_token_goes_into_a_file_of_its_owner_alone(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    proxy.answers[TOKENS] = {**TOKEN, "token": SECRET}
    out, before = tmp_path / "token", os.umask(0)
    try:
        assert main([*CREATE, "--out", str(out), *flags]) == 0
    finally:
        os.umask(before)
    assert out.read_text() == f"{SECRET}\n"
    assert out.stat().st_mode & 0o777 == 0o600
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert main([*CREATE, "--out", str(out)]) == 2, "it is there"
    assert len(proxy.asked) == 1, "no token that nobody has"
    assert out.read_text() == f"{SECRET}\n"


def test_a_refusal_leaves_no_file(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    proxy.answers[TOKENS] = DuramenError("forbidden", "append on shop/a*: you may not")
    assert main([*CREATE, "--out", str(tmp_path / "token")]) == 1
    assert list(tmp_path.iterdir()) == []
    assert "you may not" in capsys.readouterr().err


def test_tokens_are_listed_page_by_page(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    second = {**TOKEN, "id": "b" * 16, "prefix": f"dur1_{'b' * 16}"}
    first_page = f"{TOKENS}?limit=1000"
    proxy.answers[first_page] = {"tokens": [TOKEN], "has_more": True}
    proxy.answers[f"{first_page}&start_after={'a' * 16}"] = {"tokens": [second], "has_more": False}
    assert main(["token", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"tokens": [TOKEN, second]}
    assert main(["token", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[-2:]] == [
        [row["prefix"], "append,list:shop/a*", "user:corp/ann"] for row in (TOKEN, second)
    ]


@pytest.mark.parametrize("name", ["a" * 16, f"dur1_{'a' * 16}", f"token:{'a' * 16}"])
def test_a_token_is_revoked_by_its_id_or_prefix(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = f"{TOKENS}/{'a' * 16}"
    for is_there, what in ((True, "revoked"), (False, "was not there")):
        proxy.answers[path] = {"id": "a" * 16, "changed": is_there}
        assert main(["token", "revoke", name]) == 0
        assert capsys.readouterr().out == f"dur1_{'a' * 16}: {what}\n"
    assert proxy.asked == [(path, "deleted")] * 2
    assert main(["token", "revoke", SECRET]) == 2, "the whole text is no id, and goes nowhere"
    assert SECRET[22:] not in capsys.readouterr().err
    assert SECRET[22:] not in "".join(path for path, _ in proxy.asked)


@pytest.mark.parametrize(
    "words",
    [
        ("--scope", "shop", "--expires", "1h"),
        ("--scope", "peek:shop", "--expires", "1h"),
        ("--scope", "read:shop/*", "--expires", "1h"),
        ("--scope", "operate:shop", "--expires", "1h"),
        ("--expires", "1h"),
        ("--scope", "read:shop"),
    ],
)
def test_a_token_that_can_be_none_is_usage(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(["token", "create", *words]) == 2
    assert proxy.asked == []


def test_a_token_may_be_granted_as_a_list_names_it(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    see(proxy)
    assert main(["grant", "take", f"token:dur1_{'a' * 16}", "reader", "shop"]) == 0
    assert f"token:{'a' * 16}: was not there" in capsys.readouterr().out
    assert main(["grant", "take", f"token:{SECRET}", "reader", "shop"]) == 2
    assert SECRET[22:] not in capsys.readouterr().err
