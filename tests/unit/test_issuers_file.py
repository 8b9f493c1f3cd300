"""The file of issuers: what may stand there, and that each fault is told with its field.

Source: docs/protocol/credentials.md "Issuers".
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from duramen.runtime.credentials.issuers import (
    FILE_BYTES_MAX,
    ISSUER_COUNT_MAX,
    IssuerKind,
    IssuersFileError,
    KeysFrom,
    ReviewBy,
    is_https,
    read_issuers,
)
from duramen.runtime.credentials.key_sets import ALGORITHMS

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "protocol" / "credentials.md"
ROW: Final[dict[str, Any]] = {
    "name": "corp",
    "kind": "oidc",
    "issuer": "https://login.example.com/a/",
    "audience": "duramen/events",
    "keys": {"file": "/k"},
}
K8S: Final = ROW | {"kind": "kubernetes", "audience": "duramen/a/b"}
BY_SERVER: Final = {"discovery": True, "ca_file": "/ca"}


def write(folder: Path, content: bytes) -> Path:
    path = folder / "issuers.json"
    path.write_bytes(content)
    return path


def complain(folder: Path, content: bytes) -> str:
    with pytest.raises(IssuersFileError) as refusal:
        read_issuers(write(folder, content))
    return str(refusal.value)


def document(*rows: Any, version: Any = 1) -> bytes:
    return orjson.dumps({"v": version, "issuers": rows})


def test_the_page_s_example_is_read(tmp_path: Path) -> None:
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 1
    corp, k8s = read_issuers(write(tmp_path, blocks[0].encode()))
    assert corp.name == "corp"
    assert corp.algorithms == {"ES256", "RS256"}
    assert corp.keys.url == (
        "https://login.example.com/realms/corp/.well-known/openid-configuration"
    )
    assert corp.keys.is_discovery
    assert k8s.kind is IssuerKind.KUBERNETES
    assert k8s.keys == KeysFrom(file=Path("/etc/duramen/k8s.jwks"))
    assert k8s.algorithms == {*ALGORITHMS}


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    row = ROW | {"keys": BY_SERVER}
    (issuer,) = read_issuers(write(tmp_path, document(row)))
    assert issuer.groups_claim == "groups"
    assert issuer.algorithms == {*ALGORITHMS}
    assert issuer.issuer.endswith("/"), "it is what tokens have as iss"
    assert issuer.keys.url == "https://login.example.com/a/.well-known/openid-configuration"


def test_an_api_server_may_review_tokens(tmp_path: Path) -> None:
    by = {"url": "https://kubernetes.default.svc/r", "ca_file": "/ca", "bearer_file": "/token"}
    (issuer,) = read_issuers(write(tmp_path, document(K8S | {"review": by})))
    assert issuer.review == ReviewBy(by["url"], Path("/ca"), Path("/token"))


def test_an_api_server_is_asked_at_its_own_url_with_a_credential(tmp_path: Path) -> None:
    url = "https://kubernetes.default.svc/openid/v1/jwks"
    keys = {"url": url, "ca_file": "/ca", "bearer_file": "/token"}
    (issuer,) = read_issuers(write(tmp_path, document(ROW | {"keys": keys})))
    assert issuer.keys == KeysFrom(url=url, ca_file=Path("/ca"), bearer_file=Path("/token"))


FAULTS: Final[dict[str, tuple[Any, str]]] = {
    "a text": ("corp", "issuers[0]: write an object"),
    "no name": (ROW | {"name": None}, "issuers[0].name"),
    "a name with a slash": (ROW | {"name": "a/b"}, "issuers[0].name"),
    "a name with a colon": (ROW | {"name": "a:b"}, "issuers[0].name"),
    "a name in capitals": (ROW | {"name": "Corp"}, "issuers[0].name"),
    "a name with a line end": (ROW | {"name": "corp\n"}, "issuers[0].name"),
    "a name of 33 letters": (ROW | {"name": "a" * 33}, "issuers[0].name"),
    "another kind": (ROW | {"kind": "saml"}, "issuers[0].kind"),
    "a kind that is a list": (ROW | {"kind": ["oidc"]}, "issuers[0].kind"),
    "no issuer": (ROW | {"issuer": ""}, "issuers[0].issuer"),
    "no audience": (ROW | {"audience": None}, "issuers[0].audience"),
    "audiences": (ROW | {"audience": ["a"]}, "issuers[0].audience"),
    "an audience with a space": (ROW | {"audience": "a b"}, "issuers[0].audience"),
    "the API server's audience": (
        ROW | {"kind": "kubernetes", "audience": "https://kubernetes.default.svc"},
        "issuers[0].audience: write duramen/NAMESPACE/CLUSTER",
    ),
    "groups of Kubernetes": (
        ROW | {"kind": "kubernetes", "audience": "duramen/a/b", "groups_claim": "groups"},
        "issuers[0].groups_claim: leave it out",
    ),
    "no algorithm": (ROW | {"algorithms": []}, "issuers[0].algorithms"),
    "HS256": (ROW | {"algorithms": ["ES256", "HS256"]}, "issuers[0].algorithms"),
    "none": (ROW | {"algorithms": ["none"]}, "issuers[0].algorithms"),
    "an algorithm that is a text": (ROW | {"algorithms": "ES256"}, "issuers[0].algorithms"),
    "a claim of groups that is none": (ROW | {"groups_claim": ""}, "issuers[0].groups_claim"),
    "an unknown member": (ROW | {"skew": 300}, "issuers[0].skew: is not known here"),
    "no keys": (ROW | {"keys": None}, "issuers[0].keys: write an object"),
    "keys without a source": (ROW | {"keys": {"ca_file": "/a"}}, "issuers[0].keys: write"),
    "two sources": (ROW | {"keys": {"file": "/a", "discovery": True}}, "issuers[0].keys: write"),
    "a file that is not whole": (ROW | {"keys": {"file": "a.jwks"}}, "issuers[0].keys.file"),
    "a file and a CA": (
        ROW | {"keys": {"file": "/a", "ca_file": "/b"}},
        "issuers[0].keys.ca_file: is not known here",
    ),
    "discovery without a CA": (ROW | {"keys": {"discovery": True}}, "issuers[0].keys.ca_file"),
    "discovery that is false": (
        ROW | {"keys": BY_SERVER | {"discovery": False}},
        "issuers[0].keys.discovery: write true",
    ),
    "discovery with a credential": (
        ROW | {"keys": BY_SERVER | {"bearer_file": "/t"}},
        "issuers[0].keys.bearer_file: is not known here",
    ),
    "discovery over http": (
        ROW | {"issuer": "http://login.example.com", "keys": BY_SERVER},
        "issuers[0].keys.discovery: the issuer's text is no https URL",
    ),
    "a review by another issuer": (
        ROW | {"review": {"url": "https://a.example", "ca_file": "/a", "bearer_file": "/b"}},
        "issuers[0].review: leave it out",
    ),
    "a review that is true": (K8S | {"review": True}, "issuers[0].review: write an object"),
    "a review over http": (
        K8S | {"review": {"url": "http://a.example", "ca_file": "/a", "bearer_file": "/b"}},
        "issuers[0].review.url: is no https URL",
    ),
    "a review without a credential": (
        K8S | {"review": {"url": "https://a.example", "ca_file": "/a"}},
        "issuers[0].review.bearer_file: write the whole path",
    ),
    "a review with more": (
        K8S | {"review": {"url": "https://a.example", "cache": "1h"}},
        "issuers[0].review.cache: is not known here",
    ),
    "a set over http": (
        ROW | {"keys": {"url": "http://a.example/keys", "ca_file": "/ca"}},
        "issuers[0].keys.url: is no https URL",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_its_field(tmp_path: Path, name: str) -> None:
    row, complaint = FAULTS[name]
    told = complain(tmp_path, document(row))
    assert complaint in told
    assert told.startswith(f"{tmp_path / 'issuers.json'}: ")


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    rows = (ROW | {"name": ""}, ROW | {"kind": "x", "keys": {}}, 7)
    told = complain(tmp_path, document(*rows, version=2))
    for field in ("v: write 1", "[0].name", "[1].kind", "[1].keys", "[2]: write an object"):
        assert field in told


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "no JSON"),
        (b"issuers: []", "no JSON"),
        (b"[]", "no JSON object"),
        (document(), f"issuers: write a list of 1 to {ISSUER_COUNT_MAX}"),
        (document(*[ROW] * (ISSUER_COUNT_MAX + 1)), "issuers: write a list"),
        (document(ROW, version=True), "v: write 1"),
        (document(ROW, ROW | {"issuer": "b"}), "issuers: name 'corp' stands twice"),
        (document(ROW, ROW | {"name": "b"}), "stands twice"),
        (b'{"v":1,"v":1,"issuers":[]}', "a member that stands twice"),
        (b" " * (FILE_BYTES_MAX + 1), "more than"),
        (json.dumps({"v": 1, "issuers": [ROW], "more": 1}).encode(), "more: is not known here"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    assert complaint in complain(tmp_path, content)


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(IssuersFileError, match=r"none\.json: No such file"):
        read_issuers(tmp_path / "none.json")


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example", "https://", "https:///keys", "https://u@a.example", "https://@a/",
        "https://a.example/?q", "https://a.example/#f", "https://a.example/ b", "HTTPS://a.example",
        "https://a.example:99999", "https://a.example:x", "https://a.example/\n", "ftp://a", "", 7,
        "https://a.example/\u00e9", "https://" + "a" * 3_000, "https://[::1",
    ],
)  # fmt: skip
def test_a_url_that_nobody_should_be_asked_at(url: object) -> None:
    assert not is_https(url)


@pytest.mark.parametrize("url", ["https://a.example", "https://a:8443/b/c", "https://[::1]:1/"])
def test_a_url_that_may_be_asked(url: str) -> None:
    assert is_https(url)
