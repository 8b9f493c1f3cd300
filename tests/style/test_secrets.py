"""No file of the repository holds a secret; and each rule finds one that is planted.

Reads what `test_tidy` reads: the files that git knows or would take. What is planted here is put
together while running, so that this file does not find itself.
"""

from __future__ import annotations

import pytest

from tests.style import secrets
from tests.style.secrets import ALLOWED, RULES, find_allowed, find_secrets
from tests.style.tree import ROOT, list_paths

A40 = "aB3/" * 10
PLANTED = {
    "private key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "PuTTY key": "PuTTY-User-Key-" + "File-2: ssh-rsa",
    "key of AWS": "AKIA" + "Z7" * 8,
    "secret of AWS": "aws_secret" + f"_access_key = {A40}",
    "key of Google": "AIza" + "Sy0" * 11 + "ab",
    "token of Google": "ya29" + "." + "a0Af_by" * 4,
    "service account": '"private_key' + '_id": "' + "0f" * 20 + '"',
    "key of Azure": "Account" + "Key=" + "q1W2" * 21 + "==",
    "token of GitHub": "ghp" + "_" + "a1B2" * 9,
    "token of GitLab": "glpat" + "-" + "x9Y8" * 5,
    "token of Slack": "xoxb" + "-123456789012-abc",
    "token of PyPI": "pypi-AgEI" + "cHlwaS5vcmc" + "CJDk" * 15,
    "token of npm": "npm" + "_" + "a1B2" * 9,
    "token of Docker": "dckr" + "_pat_" + "a1B2" * 6,
    "key of Stripe": "sk" + "_live_" + "a1B2" * 6,
    "JSON web token": "eyJhbGc" + "iOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0.c2lnbmVkLWJ5LW1l",
    "password in a URL": "postgres://" + "app:s3cr3t-of-ours" + "@db.internal/log",
    "header of authorization": "Authorization: " + "Basic " + "YWRtaW46aHVudGVyMg==",
    "secret in a text": "db_pass" + 'word: str = "' + 'correct-horse"',
}
HARMLESS = """
kazoo==2.11.0 --hash=sha256:8b0d4a9e4f2d2d2b8e3a2f5c6d7e8f90123456789abcdef0123456789abcdef0
http://127.0.0.1:7301/v1/namespaces, mail@example.org, zk-0:2181,zk-1:2181
password = os.environ["PASSWORD"]
token: str = "{token}"
https://user:${PASSWORD}@host
-----BEGIN CERTIFICATE-----
-----BEGIN PUBLIC KEY-----
Authorization: Bearer $TOKEN
secret="short"
"""


def read_texts() -> dict[str, str]:
    return {
        path: (ROOT / path).read_bytes().decode(errors="replace")
        for path in list_paths()
        if not (ROOT / path).is_symlink()
    }


def test_no_file_holds_a_secret() -> None:
    texts = read_texts()
    faults = [fault for path, text in texts.items() for fault in find_secrets(path, text)]
    assert not faults, "\n".join(["", *faults])
    needed = {entry for path, text in texts.items() for entry in find_allowed(path, text)}
    assert needed == set(ALLOWED), "what is allowed and no longer there is taken out"


@pytest.mark.parametrize("rule", RULES)
def test_a_planted_secret_is_found(rule: str) -> None:
    text = f"# settings\nx = 1\n  {PLANTED[rule]}\ny = 2\n"
    [fault] = [each for each in find_secrets("docs/a.md", text) if rule in each]
    assert fault == f"docs/a.md:3: looks like a {rule}"
    assert PLANTED[rule] not in fault, "a log of CI is no place for it either"


def test_what_is_harmless_is_let_through() -> None:
    assert find_secrets("docs/a.md", HARMLESS) == []


def test_what_is_allowed_is_so_in_its_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = PLANTED["key of AWS"]
    assert find_secrets("tests/a.py", planted)
    monkeypatch.setattr(secrets, "ALLOWED", {("tests/*", "key of AWS", planted): "planted"})
    assert find_secrets("tests/a.py", planted) == []
    assert find_secrets("docs/a.md", planted) == ["docs/a.md:1: looks like a key of AWS"]
    assert find_secrets("tests/a.py", planted.replace("Z7", "Y6")), "another key is another matter"


def test_every_allowance_has_its_reason() -> None:
    assert all(len(reason.split()) >= 4 for reason in ALLOWED.values())
