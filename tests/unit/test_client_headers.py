"""Headers in which a proxy names the client it calls for: who may make them, and where they count.

Source: docs/protocol/identity.md "The caller's header".
"""

from __future__ import annotations

import datetime as dt
from base64 import urlsafe_b64encode
from typing import Any, Final

import orjson
import pytest

from duramen.runtime.credentials.encodings import decode_base64url
from duramen.runtime.identity import callers as callers_module
from duramen.runtime.identity.callers import (
    CLIENT_HEADER_COUNT_MAX,
    OF_SPEAKER,
    CallerBounds,
    Callers,
    LeafBounds,
    OwnHeaders,
    TooManyHeadersError,
    bound_public_port,
)
from duramen.runtime.identity.header import (
    FOR_CLIENT_BYTES_MAX,
    HEADER_BYTES_MAX,
    LIFE_S_MAX,
    SKEW_S_MAX,
    CallerRefusedError,
    NamedClient,
    make_header,
)
from duramen.runtime.identity.names import Identity, Role, make_identity
from tests.unit.callers import AUTHORITY, BUNDLE, NOW_S, OTHER, after, hold
from tests.unit.identities import DOMAIN, NOW

RECEIVER: Final = make_identity(DOMAIN, "readproxy", "r-0")
PROXY: Final = make_identity(DOMAIN, "writeproxy", "w-0")
CLIENT: Final = NamedClient("user:corp/ann", ("staff", "ägypten"), NOW_S + 60)


def speak(
    client: NamedClient = CLIENT, role: Role = Role.WRITEPROXY, receiver: Identity = RECEIVER
) -> str:
    own = OwnHeaders(hold(make_identity(DOMAIN, role, "w-0")))
    return own.give_for(receiver, client, NOW)


def open_public(receiver: Identity = RECEIVER) -> Callers:
    return Callers(receiver, BUNDLE, bound_public_port(receiver.role))


@pytest.mark.parametrize("at", Role)
@pytest.mark.parametrize("role", Role)
def test_proxies_of_the_other_kind_alone_speak_for_clients(role: Role, at: Role) -> None:
    receiver = make_identity(DOMAIN, at, "p-0")
    callers, header = open_public(receiver), speak(role=role, receiver=receiver)
    if {role, at} == {"writeproxy", "readproxy"}:
        caller = callers.find(header, NOW)
        assert (caller.identity.role, caller.client) == (role, CLIENT)
    else:
        with pytest.raises(CallerRefusedError, match="speaks for a client"):
            callers.find(header, NOW)


def test_nobody_speaks_for_a_client_at_a_data_port() -> None:
    with pytest.raises(CallerRefusedError, match="speaks for a client"):
        Callers(RECEIVER, BUNDLE).find(speak(), NOW)


def test_in_its_own_name_a_proxy_is_itself_everywhere() -> None:
    header = OwnHeaders(hold(PROXY)).give(RECEIVER, NOW)
    for callers in (open_public(), Callers(RECEIVER, BUNDLE)):
        caller = callers.find(header, NOW)
        assert (caller.identity, caller.client) == (PROXY, None)


FORMS: Final[dict[str, Any]] = {
    "none": None, "a text": "user:corp/ann", "a list": ["user:corp/ann"], "nothing": {},
    "no until": {"groups": [], "principal": "user:corp/ann"},
    "no groups": {"principal": "user:corp/ann", "until": NOW_S},
    "one more": {"groups": [], "principal": "p", "until": NOW_S, "verb": "read"},
    "another order": {"principal": "p", "groups": [], "until": NOW_S},
    "a bool": {"groups": [], "principal": "p", "until": True},
    "a float": {"groups": [], "principal": "p", "until": 1.5},
    "a group that is none": {"groups": [1], "principal": "p", "until": NOW_S},
    "many groups": {"groups": ["g"] * 129, "principal": "p", "until": NOW_S},
    "a principal that is none": {"groups": [], "principal": 7, "until": NOW_S},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_client_has_one_form(form: str) -> None:
    held = hold(PROXY)
    head, payload, _ = make_header(held.key, held.leaf, RECEIVER, NOW, CLIENT).split(".")
    body = orjson.loads(decode_base64url(payload)) | {"for": FORMS[form]}
    forged = f"{head}.{urlsafe_b64encode(orjson.dumps(body)).rstrip(b'=').decode()}.{'A' * 86}"
    with pytest.raises(CallerRefusedError, match=r"another form|other claims"):
        open_public().find(forged, NOW)


def test_the_largest_client_of_a_web_token_fits_and_nothing_larger_is_read() -> None:
    groups = tuple(f"{number:03}" + "g" * 44 for number in range(128))
    header = speak(NamedClient("user:corp/" + "a" * 255, groups, NOW_S + 60))
    assert HEADER_BYTES_MAX < len(header) <= FOR_CLIENT_BYTES_MAX
    assert open_public().find(header, NOW).client is not None
    with pytest.raises(CallerRefusedError, match="characters"):
        open_public().find(header + "A" * (FOR_CLIENT_BYTES_MAX - len(header) + 1), NOW)
    own = OwnHeaders(hold(PROXY)).give(RECEIVER, NOW)
    with pytest.raises(CallerRefusedError):
        open_public().find(own + "A" * HEADER_BYTES_MAX, NOW)


def test_a_header_is_kept_for_its_client_and_made_anew_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, other = OwnHeaders(hold(PROXY)), CLIENT._replace(principal="user:corp/bob")
    first = own.give_for(RECEIVER, CLIENT, NOW)
    assert own.give_for(RECEIVER, CLIENT, after(LIFE_S_MAX / 2 - 1)) == first
    assert len({first, own.give_for(RECEIVER, other, NOW), own.give(RECEIVER, NOW)}) == 3
    assert own.give_for(RECEIVER, CLIENT, after(LIFE_S_MAX / 2)) != first
    second = own.give_for(RECEIVER, CLIENT, after(LIFE_S_MAX / 2))
    assert not own.forget(RECEIVER, first, CLIENT) and not own.forget(RECEIVER, second)
    assert own.forget(RECEIVER, second, CLIENT)
    third = own.give_for(RECEIVER, CLIENT, NOW)
    own.shift(RECEIVER, NOW_S - 9_999, NOW)
    assert own.give_for(RECEIVER, CLIENT, NOW) != third, "by the receiver's clock"
    monkeypatch.setattr(callers_module, "MADE_FOR_CLIENT_COUNT_MAX", 3)
    for number in range(9):
        own.give_for(RECEIVER, CLIENT._replace(until_s=number), NOW)
    assert len(own._made_for) <= 3
    own.renew(hold(PROXY))
    assert not own._made_for


def test_what_lasts_goes_by_the_certificate_once_the_header_is_over() -> None:
    callers, header = open_public(), speak()
    callers.find(header, NOW)
    later = after(LIFE_S_MAX + SKEW_S_MAX)
    with pytest.raises(CallerRefusedError, match="it holds from"):
        callers.find(header, later)
    found = callers.find_again(header, later)
    assert (found.identity, found.client) == (PROXY, CLIENT)
    assert found.leaf_until_s == (NOW + dt.timedelta(days=7)).timestamp()
    with pytest.raises(CallerRefusedError, match="certificate"):
        callers.find_again(header, NOW + dt.timedelta(days=8))
    assert AUTHORITY.certificate in BUNDLE.anchors


def count_refused(callers: Callers, headers: list[str], second: float) -> int:
    refused = 0
    for header in headers:
        try:
            callers.find(header, after(second))
        except TooManyHeadersError:
            refused += 1
    return refused


def test_many_clients_of_one_proxy_are_heard_after_a_restart_and_for_ever() -> None:
    own, callers = OwnHeaders(hold(PROXY)), open_public()
    clients = [CLIENT._replace(principal=f"user:corp/u{number}") for number in range(3_000)]
    headers = [own.give_for(RECEIVER, client, NOW) for client in clients]
    assert [count_refused(callers, headers, second) for second in range(4)] == [0] * 4
    assert callers.statistics()["verified"] == 3_000, "each of them once"
    callers.trust(BUNDLE)
    assert count_refused(callers, headers, 4) == 0, "another bundle, or another process"
    of_speaker = OF_SPEAKER
    assert of_speaker.row_count >= CLIENT_HEADER_COUNT_MAX <= of_speaker.first_count
    assert of_speaker.gained_per_s * 86e-6 < 0.2, "of a core, at what one costs"


def test_clients_that_are_named_to_two_receivers_keep_their_headers() -> None:
    own = OwnHeaders(hold(PROXY))
    pairs = [
        (receiver, CLIENT._replace(principal=f"user:corp/u{number}"))
        for number in range(3_000)
        for receiver in (RECEIVER, OTHER)
    ]
    first, second = ([own.give_for(*pair, NOW) for pair in pairs] for _ in range(2))
    assert first == second, "one that is made anew is one more to verify"


def few(row_count: int, first_count: int) -> Callers:
    bounds = LeafBounds(row_count, first_count)
    return Callers(RECEIVER, BUNDLE, CallerBounds(9, frozenset((Role.WRITEPROXY,)), bounds))


def test_of_a_proxy_s_headers_the_one_used_longest_ago_makes_room() -> None:
    own, callers = OwnHeaders(hold(PROXY)), few(3, 9)
    headers = [
        own.give_for(RECEIVER, CLIENT._replace(principal=f"user:corp/u{number}"), NOW)
        for number in range(4)
    ]
    assert count_refused(callers, [*headers[:3], headers[0], headers[3]], 0) == 0
    callers.find(headers[0], NOW)
    assert callers.statistics()["verified"] == 4
    callers.find(headers[1], NOW)
    assert callers.statistics()["verified"] == 5


def test_first_headers_are_bounded_and_refused_ones_heard_later() -> None:
    own, callers = OwnHeaders(hold(PROXY)), few(8, 5)
    headers = [
        own.give_for(RECEIVER, CLIENT._replace(principal=f"user:corp/u{number}"), NOW)
        for number in range(8)
    ]
    assert [count_refused(callers, headers, second) for second in range(5)] == [3, 2, 1, 0, 0]
