"""What looks like a secret: private keys, keys of clouds and forges, passwords in URLs and texts.

`find_secrets` takes a text and returns the lines that hold something which only its owner should
know, by its form alone; what is known to be harmless is in `ALLOWED`, each with its reason. Rules
of our own rather than a scanner: those that fit guess by entropy, and then a list of exceptions for
hashes (requirements.lock alone has thousands) hides more than the scan finds.

Called by `test_secrets`, over every file that git knows or would take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Final

RULES: Final[Mapping[str, re.Pattern[str]]] = {
    "private key": re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    "PuTTY key": re.compile(r"PuTTY-User-Key-File-\d"),
    "key of AWS": re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b"),
    "secret of AWS": re.compile(
        r"(?i)aws.{0,20}secret.{0,20}['\"=:\s]([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
    ),
    "key of Google": re.compile(r"\bAIza[A-Za-z0-9_-]{35}"),
    "token of Google": re.compile(r"\bya29\.[A-Za-z0-9_-]{20,}"),
    "service account": re.compile(r"\"private_key_id\"\s*:\s*\"[0-9a-f]{40}\""),
    "key of Azure": re.compile(r"(?i)\b(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{40,}={0,2}"),
    "token of GitHub": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})"),
    "token of GitLab": re.compile(r"\bgl(?:pat|rt|ptt|dt)-[A-Za-z0-9_-]{20,}"),
    "token of Slack": re.compile(r"\bxox[abposr]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/T"),
    "token of PyPI": re.compile(r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}"),
    "token of npm": re.compile(r"\bnpm_[A-Za-z0-9]{36}\b"),
    "token of Docker": re.compile(r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}"),
    "key of Stripe": re.compile(r"\b[rs]k_live_[A-Za-z0-9]{20,}"),
    "JSON web token": re.compile(
        r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"
    ),
    "password in a URL": re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@'\"<>{}]*:([^\s/@'\"<>{}$]+)@"),
    "header of authorization": re.compile(
        r"(?i)authorization['\"]?\s*[:=]\s*['\"]?(?:basic|bearer)\s+([A-Za-z0-9+/_.=-]{12,})"
    ),
    "secret in a text": re.compile(
        r"(?i)\b[a-z_]*(?:password|passwd|secret|token|api_?key|access_?key)\b['\"]?"
        r"\s*(?::\s*str\s*)?[:=]\s*['\"]([^'\"\s{}$<>]{8,})['\"]"
    ),
}
"""Rule → its form. Where there is a group, it is the secret; else it is all that was found."""

ALLOWED: Final[Mapping[tuple[str, str, str], str]] = {
    ("docs/quickstart.md", "secret in a text", "leader-1"): "a name in the example of takeovers",
    ("docs/quickstart.md", "secret in a text", "leader-2"): "a name in the example of takeovers",
    (
        "operator/kubectl_duramen/support/redaction.py",
        "password in a URL",
        "password",
    ): "the word itself: it describes what a support bundle leaves out",
    (
        "tests/kubernetes/kubectl/test_on_api_server.py",
        "secret in a text",
        "planted-in-a-secret",
    ): "planted, to see that a support bundle leaves it out",
    (
        "tests/kubernetes/kubectl/test_redaction.py",
        "secret in a text",
        "hunter2hunter2",
    ): "planted, to see that it is blanked",
    (
        "tests/*",
        "JSON web token",
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJkdXJhbWVuIn0.c2lnbmF0dXJl",
    ): "signed with the word `signature`; planted, to see that it is blanked",
    (
        "tests/*",
        "private key",
        "-----BEGIN RSA PRIVATE KEY-----",
    ): "a heading without a key below it; planted, to see that it is blanked",
    ("tests/*", "key of AWS", "AKIAIOSFODNN7EXAMPLE"): "the example of AWS's own documentation",
}
"""(Pattern of a path, rule, what was found) → why it is no secret of anybody."""


def find_secrets(path: str, text: str) -> list[str]:
    """What looks like a secret and is not known to be harmless: `PATH:LINE: RULE`, without it."""
    return [
        f"{path}:{number}: looks like a {rule}"
        for number, rule, found in _find(text)
        if allowance(path, rule, found) is None
    ]


def allowance(path: str, rule: str, found: str) -> tuple[str, str, str] | None:
    """The entry of `ALLOWED` that a finding falls under."""
    for entry in ALLOWED:
        pattern, its_rule, its_text = entry
        if its_rule == rule and its_text == found and fnmatch(path, pattern):
            return entry
    return None


def find_allowed(path: str, text: str) -> set[tuple[str, str, str]]:
    """The entries of `ALLOWED` that a text needs."""
    found = {allowance(path, rule, what) for _, rule, what in _find(text)}
    return {entry for entry in found if entry is not None}


def _find(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, rule and secret of each finding."""
    for rule, form in RULES.items():
        for found in form.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, rule, found[form.groups]
