"""Whom a port answers: the one decision, as a table of what browsers and programs send.

That every port asks it is `tests/component/test_gates.py`'s matter, that it helps against a real
browser `tests/process/test_strange_pages.py`'s. Source: ADR 0025.
"""

from __future__ import annotations

from typing import Final

import pytest

from duramen.runtime.public.calls import CALLS, JSON, find_bodies
from duramen.wire.edge.gate import Bodies, Gate, RequestHead, find_name, parse_name

HERE: Final = "127.0.0.1:7301"
PAGE: Final = "http://page.example:8000"
GATE: Final = Gate.of(["0.0.0.0", "node-1.nodes.ns.svc", "[fd00::1]", "Logs.Example.ORG."], [PAGE])
SHUT: Final = Gate()

HOSTS: Final = {
    "": True,  # HTTP/1.0
    HERE: True,
    "127.0.0.1": True,
    "10.1.2.3:7302": True,  # a probe of Kubernetes, Prometheus
    "[::1]:7301": True,
    "[fd00::1]": True,
    "localhost:7301": True,
    "LOCALHOST": True,
    "localhost.:7301": True,
    "a.localhost": True,
    "node-1.nodes.ns.svc:7101": True,
    "logs.example.org": True,
    "logs.example.org.:443": True,
    "node-1.nodes.ns.svc.evil.example": False,
    "evil.logs.example.org": False,
    "evil.example:7301": False,
    "notlocalhost": False,
    "localhost.evil.example": False,
    "127.0.0.1.evil.example": False,
    "127.1:7301": False,  # browsers write it out
    "2130706433": False,
    "0x7f000001": False,
    "[evil.example]": False,
    "[::1": False,
    "::1": False,
    "localhost:7301:1": False,
    "localhost:x": False,
    "localhost evil.example": False,
    "localhost, evil.example": False,  # twice
    "127.0.0.1, 127.0.0.1": False,
    "user@127.0.0.1": False,
    "127.0.0.1/": False,
    "１２７.0.0.1": False,  # noqa: RUF001 - digits, but not those of an address
}
ORIGINS: Final[dict[tuple[str | None, str | None], bool]] = {
    (None, None): True,
    (None, "none"): True,
    (None, "same-origin"): True,
    (None, "same-site"): True,
    (None, "cross-site"): False,
    (None, "CROSS-SITE"): False,
    (None, "same-origin, cross-site"): False,
    ("http://127.0.0.1:7301", None): True,
    ("http://127.0.0.1:7301", "same-origin"): True,
    ("https://127.0.0.1:7301", None): True,  # TLS ends in front of us
    (PAGE, None): True,
    (PAGE, "cross-site"): True,
    (f"{PAGE}0", None): False,
    (PAGE.upper(), None): False,
    (f"{PAGE}, {PAGE}", None): False,
    ("http://127.0.0.1:7401", None): False,
    ("http://127.0.0.1", None): False,
    ("http://localhost:7301", None): False,
    ("http://stranger.example", "same-origin"): False,
    ("ftp://127.0.0.1:7301", None): False,
    ("127.0.0.1:7301", None): False,
    ("http://", None): False,
    ("null", None): False,
    ("", None): False,
}
TYPES: Final[list[tuple[str | None, bool, set[Bodies]]]] = [
    ("application/json", True, {Bodies.JSON, Bodies.FRAMES}),
    ("Application/JSON ; charset=utf-8", True, {Bodies.JSON, Bodies.FRAMES}),
    ("application/octet-stream", True, {Bodies.FRAMES}),
    (None, True, {Bodies.FRAMES}),
    (None, False, {Bodies.JSON, Bodies.FRAMES}),
    ("text/plain", True, set()),
    ("text/plain", False, set()),
    ("text/plain;application/json", True, set()),
    ("application/json, text/plain", True, set()),
    ("application/x-www-form-urlencoded", True, set()),
    ("multipart/form-data; boundary=x", True, set()),
    ("", True, set()),
]
CHANGES: Final = ("POST", "PUT", "PATCH", "DELETE", "BREW")


@pytest.mark.parametrize(("host", "is_taken"), HOSTS.items())
@pytest.mark.parametrize("method", ["GET", *CHANGES])
def test_a_name_must_be_one_of_the_servers(host: str, is_taken: bool, method: str) -> None:
    refusal = GATE.judge(RequestHead(method, host), Bodies.JSON)
    if is_taken:
        assert refusal is None
    else:
        assert refusal is not None and (refusal.code, refusal.field) == ("misdirected", "Host")
        assert "--public-name" in refusal.detail, "and the way out is said"


def test_who_was_told_nothing_knows_loopback_alone() -> None:
    for host in (HERE, "localhost", "[::1]:1", "192.0.2.1"):
        assert SHUT.judge(RequestHead("POST", host), Bodies.JSON) is None
    for host in ("node-1.nodes.ns.svc", "logs.example.org"):
        assert SHUT.judge(RequestHead("GET", host), Bodies.JSON) is not None


@pytest.mark.parametrize(("page", "is_taken"), ORIGINS.items())
@pytest.mark.parametrize("method", ["GET", "OPTIONS", *CHANGES])
@pytest.mark.parametrize("bodies", Bodies)
def test_a_page_must_be_ours_or_named(
    page: tuple[str | None, str | None], is_taken: bool, method: str, bodies: Bodies
) -> None:
    origin, site = page
    refusal = GATE.judge(RequestHead(method, HERE, origin, site), bodies)
    assert (None if refusal is None else refusal.code) == (None if is_taken else "forbidden")
    if refusal is not None:
        assert refusal.field == ("Sec-Fetch-Site" if origin is None else "Origin")


def test_a_page_is_ours_by_the_address_in_the_bar() -> None:
    for host, origin in (
        ("logs.example.org", "https://logs.example.org"),
        ("logs.example.org:443", "https://logs.example.org"),
        ("logs.example.org", "http://logs.example.org"),
        ("LOGS.example.org:80", "http://logs.example.org"),
        ("[fd00::1]:7302", "http://[fd00::1]:7302"),
        ("[fd00::1]", "https://[fd00::1]"),
    ):
        assert GATE.judge(RequestHead("POST", host, origin), Bodies.JSON) is None, host
    for host, origin in (
        ("logs.example.org:80", "https://logs.example.org"),
        ("logs.example.org:7302", "http://logs.example.org"),
        ("", "http://"),
    ):
        refusal = GATE.judge(RequestHead("POST", host, origin), Bodies.JSON)
        assert refusal is not None and refusal.code == "forbidden", host


def test_the_name_comes_first_then_the_page_then_the_type() -> None:
    worst = RequestHead(
        "POST", "evil.example", "http://evil.example", "same-origin", "text/plain", True
    )
    for head, code in (
        (worst, "misdirected"),
        (worst._replace(host=HERE), "forbidden"),
        (worst._replace(host=HERE, origin=None), "unsupported_media"),
        (worst._replace(host=HERE, origin=None, media=JSON), None),
    ):
        refusal = GATE.judge(head, Bodies.JSON)
        assert (None if refusal is None else refusal.code) == code


@pytest.mark.parametrize(("media", "has_body", "takers"), TYPES)
def test_what_a_page_may_send_unasked_is_no_json(
    media: str | None, has_body: bool, takers: set[Bodies]
) -> None:
    for method in CHANGES:
        head = RequestHead(method, HERE, media=media, has_body=has_body)
        for bodies in Bodies:
            refusal = SHUT.judge(head, bodies)
            assert (refusal is None) == (bodies is Bodies.OWN or bodies in takers), bodies
            if refusal is not None:
                assert (refusal.code, refusal.field) == ("unsupported_media", "Content-Type")
        for reading in ("GET", "HEAD", "OPTIONS"):
            assert SHUT.judge(head._replace(method=reading), Bodies.JSON) is None


def test_only_appends_have_bodies_of_their_own() -> None:
    own = {call.name for call in CALLS if find_bodies(call.path) is Bodies.OWN}
    # Reads share the path of the append, and have no body.
    assert own == {"append", "appendStream", "getRecords"}
    base = "/v1/namespaces/a/logs/l"
    for path in (f"{base}/records", f"{base}/records:stream"):
        assert find_bodies(path) is Bodies.OWN
    for path in (
        base, f"{base}:end", f"{base}/records/", f"{base}/records:other", f"/x{base}/records",
        f"{base}/m/records", "/v1/namespaces/a/logs/records", "/v1/anything",
    ):  # fmt: skip
        assert find_bodies(path) is Bodies.JSON, path


def test_a_refusal_does_not_echo_at_length() -> None:
    for head in (
        RequestHead("GET", "x" * 9_999),
        RequestHead("GET", HERE, f"http://{'x' * 9_999}"),
    ):
        refusal = SHUT.judge(head, Bodies.JSON)
        assert refusal is not None and len(refusal.detail) < 500


def test_a_name_is_given_without_scheme_and_port() -> None:
    for text, name in (
        ("logs.example.org", "logs.example.org"),
        ("LOGS.Example.org.", "logs.example.org"),
        ("main-writeproxy", "main-writeproxy"),
        ("a_b.c", "a_b.c"),
    ):
        assert parse_name(text) == name
        assert find_name(f"{text}:80") == name
    for text in (
        "", ".", "*", "*.example.org", "http://a", "a:80", "a/b", "127.0.0.1", "[::1]", "::1",
        "a b", "-a", "a-", "a..b", "x" * 64, ".".join(["x" * 60] * 5), "a\n",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no name of a host"):
            parse_name(text)
