"""The issuers file: who may say who somebody is, to whom, by which keys.

Read whole, and every fault is told at once with its field, in the words of whoever mends it. What
it names is neither read nor asked here.

Called by `web_bearers` and at the start of a service.
Source: docs/protocol/credentials.md "Issuers".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from duramen.core.rights.grants import is_issuer_name, is_visible
from duramen.runtime.credentials.encodings import EncodingError, read_object
from duramen.runtime.credentials.key_sets import ALGORITHMS

FILE_BYTES_MAX: Final = 256 << 10
ISSUER_COUNT_MAX: Final = 16
VERSION: Final = 1

_ISSUER_LENGTH_MAX: Final = 1_024
_CLUSTER_AUDIENCE: Final = re.compile("duramen/[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}")
_MEMBERS: Final = frozenset(
    {"name", "kind", "issuer", "audience", "keys", "algorithms", "groups_claim", "review"}
)
_SOURCES: Final = ("file", "discovery", "url")


class IssuersFileError(Exception):
    """A file of issuers is not usable; the text names the file, and each field with its fault."""


class IssuerKind(StrEnum):
    """What tokens of an issuer look like."""

    OIDC = "oidc"
    KUBERNETES = "kubernetes"


class KeysFrom(NamedTuple):
    """Where an issuer's keys come from: a file, or a server that `ca_file` vouches for.

    With `is_discovery` the URL tells where the set is; else it is the set's own.
    """

    file: Path | None = None
    url: str | None = None
    is_discovery: bool = False
    ca_file: Path | None = None
    bearer_file: Path | None = None


class ReviewBy(NamedTuple):
    """The API server that reviews tokens, and what it is asked with."""

    url: str
    ca_file: Path
    bearer_file: Path


class Issuer(NamedTuple):
    """One who says who somebody is, and what its tokens have to say for that."""

    name: str
    kind: IssuerKind
    issuer: str
    audience: str
    keys: KeysFrom
    algorithms: frozenset[str]
    groups_claim: str
    review: ReviewBy | None = None


def read_issuers(path: Path) -> tuple[Issuer, ...]:
    """The issuers of a file.

    Raises:
        IssuersFileError: it cannot be read, or has faults: all of them are told.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise IssuersFileError(f"{path}: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise IssuersFileError(f"{path} has more than {FILE_BYTES_MAX} bytes")
    try:
        document = read_object(content)
    except EncodingError as error:
        raise IssuersFileError(f"{path}: {error}: write a JSON object") from None
    faults: list[str] = []
    issuers = _read_document(document, faults)
    if faults:
        raise IssuersFileError(f"{path}: {'; '.join(faults)}")
    return issuers


def _read_document(document: Mapping[str, Any], faults: list[str]) -> tuple[Issuer, ...]:
    _see_members(document, {"v", "issuers"}, "", faults)
    if type(document.get("v")) is not int or document["v"] != VERSION:
        faults.append(f"v: write {VERSION}")
    rows = document.get("issuers")
    if not isinstance(rows, list) or not 1 <= len(rows) <= ISSUER_COUNT_MAX:
        faults.append(f"issuers: write a list of 1 to {ISSUER_COUNT_MAX}")
        return ()
    issuers = [_read_issuer(row, f"issuers[{number}]", faults) for number, row in enumerate(rows)]
    found = [one for one in issuers if one is not None]
    for what, values in (("name", [one.name for one in found]),
                         ("issuer", [one.issuer for one in found])):  # fmt: skip
        twice = {value for value in values if values.count(value) > 1}
        faults.extend(f"issuers: {what} {value!r} stands twice" for value in sorted(twice))
    return tuple(found)


def _read_issuer(row: object, at: str, faults: list[str]) -> Issuer | None:
    """A row, or None where it has a fault, which is told."""
    if not isinstance(row, dict):
        faults.append(f"{at}: write an object")
        return None
    before = len(faults)
    _see_members(row, _MEMBERS, f"{at}.", faults)
    name, kind, issuer = row.get("name"), row.get("kind"), row.get("issuer")
    if not isinstance(name, str) or not is_issuer_name(name):
        faults.append(f"{at}.name: write 1 to 32 of a-z, 0-9 and '-', a letter first, no '-' last")
    if kind not in list(IssuerKind):
        faults.append(f"{at}.kind: write {' or '.join(IssuerKind)}")
    if not isinstance(issuer, str) or not 0 < len(issuer) <= _ISSUER_LENGTH_MAX:
        faults.append(f"{at}.issuer: write what its tokens have as iss")
    audience = row.get("audience")
    if kind == IssuerKind.KUBERNETES and "groups_claim" in row:
        faults.append(f"{at}.groups_claim: leave it out, a service account has no groups")
    if not is_visible(audience):
        faults.append(f"{at}.audience: write 1 to 255 visible characters")
    elif kind == IssuerKind.KUBERNETES and not _CLUSTER_AUDIENCE.fullmatch(str(audience)):
        faults.append(f"{at}.audience: write duramen/NAMESPACE/CLUSTER, which no one else asks for")
    groups_claim = row.get("groups_claim", "groups")
    if not is_visible(groups_claim):
        faults.append(f"{at}.groups_claim: write the name of a claim")
    algorithms = _read_algorithms(row, at, faults)
    keys = _read_keys(row.get("keys"), str(issuer), f"{at}.keys", faults)
    review = None
    if "review" in row and kind != IssuerKind.KUBERNETES:
        faults.append(f"{at}.review: leave it out, only Kubernetes reviews tokens")
    elif "review" in row:
        review = _read_review(row["review"], f"{at}.review", faults)
    if len(faults) > before:
        return None
    return Issuer(
        str(name), IssuerKind(str(kind)), str(issuer), str(audience), keys, algorithms,
        str(groups_claim), review,
    )  # fmt: skip


def _read_algorithms(row: Mapping[str, Any], at: str, faults: list[str]) -> frozenset[str]:
    value = row.get("algorithms", list(ALGORITHMS))
    if not isinstance(value, list) or not value or not all(one in ALGORITHMS for one in value):
        faults.append(f"{at}.algorithms: write a list of {', '.join(ALGORITHMS)}")
        return frozenset()
    return frozenset(value)


def _read_keys(value: object, issuer: str, at: str, faults: list[str]) -> KeysFrom:
    if not isinstance(value, dict) or sum(source in value for source in _SOURCES) != 1:
        faults.append(f"{at}: write an object with one of {', '.join(_SOURCES)}")
        return KeysFrom()
    is_discovery = "discovery" in value
    allowed = {"file"} if "file" in value else {"discovery", "url", "ca_file"}
    _see_members(value, allowed | ({"bearer_file"} if "url" in value else set()), f"{at}.", faults)
    if "file" in value:
        return KeysFrom(file=_read_path(value, "file", at, faults))
    if is_discovery and value["discovery"] is not True:
        faults.append(f"{at}.discovery: write true, or leave it out")
    suffix = "/.well-known/openid-configuration"
    url = f"{issuer.rstrip('/')}{suffix}" if is_discovery else value["url"]
    if not is_https(url):
        where = f"{at}.discovery: the issuer's text" if is_discovery else f"{at}.url:"
        faults.append(f"{where} is no https URL without a user, a query and a fragment")
    bearer_file = _read_path(value, "bearer_file", at, faults) if "bearer_file" in value else None
    return KeysFrom(
        url=str(url), is_discovery=is_discovery, bearer_file=bearer_file,
        ca_file=_read_path(value, "ca_file", at, faults),
    )  # fmt: skip


def _read_review(value: object, at: str, faults: list[str]) -> ReviewBy | None:
    if not isinstance(value, dict):
        faults.append(f"{at}: write an object with url, ca_file and bearer_file")
        return None
    _see_members(value, {"url", "ca_file", "bearer_file"}, f"{at}.", faults)
    if not is_https(value.get("url")):
        faults.append(f"{at}.url: is no https URL without a user, a query and a fragment")
    ca_file, bearer_file = (
        _read_path(value, one, at, faults) for one in ("ca_file", "bearer_file")
    )
    return ReviewBy(str(value.get("url")), ca_file, bearer_file)


def _read_path(value: Mapping[str, Any], name: str, at: str, faults: list[str]) -> Path:
    text = value.get(name)
    if not isinstance(text, str) or not text.startswith("/") or not text.isprintable():
        faults.append(f"{at}.{name}: write the whole path of a file")
    return Path(str(text))


def _see_members(
    found: Mapping[str, Any], known: frozenset[str] | set[str], at: str, faults: list[str]
) -> None:
    unknown = sorted(found.keys() - known)
    faults.extend(f"{at}{name[:40]}: is not known here: take it out" for name in unknown[:5])


def is_https(url: object) -> bool:
    """Whether this is a URL that may be asked for keys: https, a host, no user, query, fragment."""
    if not isinstance(url, str) or len(url) > 2 * _ISSUER_LENGTH_MAX or not url.isascii():
        return False
    if not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return (
        url.startswith("https://")
        and bool(parts.hostname)
        and "@" not in parts.netloc
        and has_port
        and not parts.query
        and not parts.fragment
    )
