"""Takes out of a support bundle what must not leave the house. Pure.

Taken out: every value of an environment variable (and wherever else in the bundle the same text
stands), fields and flags whose name says secret, token, password or key, bearer tokens, JWTs, user
information in URLs, signed queries, private keys, cloud access keys, bodies and headers of records.
Kept: names, counts, sizes, times, states, references to secrets (the name, never the content).
When in doubt it is taken out: a hole in a report costs a question, a leaked secret costs more.

Called by `bundle` for everything that it writes. Source: docs/kubernetes/kubectl.md "Report".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

REDACTED: Final = "REDACTED"

_LITERAL_CHARS_MIN: Final = 6
"""Shorter values ("1", "true", "warn") stand everywhere and hide nothing."""

_SECRET_NAME: Final = re.compile(
    r"secret(?!_?names?$)|token(?!_?(count|bucket)s?$)|passw|passphrase|credential|private_?key"
    r"|access_?key|api_?key|account_?key|authorization|cookie|signature|sas$",
    re.IGNORECASE,
)
_HARMLESS: Final = frozenset(
    {
        "secretName", "secretRef", "secretKeyRef", "imagePullSecrets",
        "automountServiceAccountToken", "serviceAccountToken", "fencing_token_mismatch",
        "fencing_token_mismatches",
    }
)  # fmt: skip
"""Names that speak of secrets and hold none: references, and switches."""

_RECORD_FIELDS: Final = frozenset({"body", "bodies", "headers", "records", "payload"})
_DROPPED: Final = frozenset(
    {"managedFields", "kubectl.kubernetes.io/last-applied-configuration"}
)  # fmt: skip
"""Said again elsewhere in the object, in a form that nobody would look through."""

_PATTERNS: Final = (
    # PEM blocks, also with their line feeds escaped, as in JSON.
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)", re.S),
     REDACTED),
    # The same in base64, as Secrets have it; a certificate begins alike, and goes as well.
    (re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=_-]*"), REDACTED),
    # An API token of ours: its id is no secret, and says whose it was.
    (re.compile(r"dur1_([a-z2-7]{16})_\w+"), rf"dur1_\1_{REDACTED}"),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{6,}", re.I), rf"\1 {REDACTED}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(\.[A-Za-z0-9_-]*)?"), REDACTED),
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), REDACTED),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}\b"), REDACTED),
    # scheme://user:password@host
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s\"'@]+@", re.I), rf"\1{REDACTED}@"),
    # Flags and assignments: --access-key=x, password: x, "token": "x", X-Amz-Signature=x
    (re.compile(
        r"(?P<name>[\w.-]*(?:secret|token|passw(?:or)?d|passphrase|credential|private[_-]?key"
        r"|access[_-]?key|api[_-]?key|account[_-]?key|signature)[\w-]*)"
        r"(?P<sign>\\?[\"']?\s*[=:]\s*\\?[\"']?|\s+(?=[^\s-]*\d))(?P<value>[^\s\"'&,;}\\]{3,})",
        re.I),
     rf"\g<name>\g<sign>{REDACTED}"),
    # Bodies and headers of records in lines of JSON.
    (re.compile(r"(\"(?:body|payload)\"\s*:\s*)\"(?:[^\"\\]|\\.)*\"?"), rf'\1"{REDACTED}"'),
    (re.compile(r"(\"headers\"\s*:\s*)\[\s*\[.*?\]\s*\]"), rf'\1"{REDACTED}"'),
)  # fmt: skip


def find_literals(pods: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Values of environment variables of pods (or pod templates): texts to be taken out."""
    found: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, Mapping):
            for variable in _as_list(value.get("env")):
                text = variable.get("value") if isinstance(variable, Mapping) else None
                if isinstance(text, str) and len(text) >= _LITERAL_CHARS_MIN:
                    found.add(text)
            for part in value.values():
                walk(part)
        elif isinstance(value, list):
            for part in value:
                walk(part)

    for pod in pods:
        walk(pod)
    return frozenset(found)


def redact_object(value: Any, literals: Iterable[str] = ()) -> Any:
    """A JSON value without what must not be seen."""
    return _redact(value, _longest_first(literals), is_variables=False)


def redact_text(text: str, literals: Iterable[str] = ()) -> str:
    """A text, such as a log, without what must not be seen."""
    for literal in _longest_first(literals):
        text = text.replace(literal, REDACTED)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _redact(value: Any, literals: Sequence[str], *, is_variables: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _redact_field(name, part, literals, is_variables=is_variables)
            for name, part in value.items()
            if name not in _DROPPED
        }
    if isinstance(value, list):
        return [_redact(part, literals, is_variables=is_variables) for part in value]
    return redact_text(value, literals) if isinstance(value, str) else value


def _redact_field(name: str, value: Any, literals: Sequence[str], *, is_variables: bool) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if is_variables and name == "value":
        return REDACTED
    if name in _RECORD_FIELDS and not isinstance(value, int | float):
        return REDACTED
    is_plain = not isinstance(value, Mapping | list)
    if name not in _HARMLESS and is_plain and _SECRET_NAME.search(name):
        return REDACTED
    return _redact(value, literals, is_variables=name == "env")


def _longest_first(literals: Iterable[str]) -> list[str]:
    """So that no part of a longer one is left standing."""
    return sorted(literals, key=lambda text: (-len(text), text))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
