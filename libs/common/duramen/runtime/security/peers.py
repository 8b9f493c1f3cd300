"""Who is reached at a URL: a caller names the receiver in its header, and has to know it first.

A node says of itself where it is reached, and its name and role are those of the node: so nobody
can have headers made for another one by writing a URL. What is registered counts before what was
heard of; who left its place is remembered, since its process may well be there still.

Fed by rosters, asked by `process_security`. Source: docs/protocol/identity.md "The caller's
header".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from duramen.runtime.identity.names import Identity, InvalidIdentityError, Role, make_identity
from duramen.runtime.turning.addresses import TLS_DATA_URL, find_tls_url

HEARD_COUNT_MAX: Final = 4_096

Learn = Callable[[Mapping[str, Mapping[str, Any]]], None]
"""Takes the nodes of one role as they are registered now, name → fields, the oldest first."""


def notify_learners(*learners: Learn | None) -> Learn:
    """One that tells several, of which some may be none."""

    def tell(nodes: Mapping[str, Mapping[str, Any]]) -> None:
        for learn in learners:
            if learn is not None:
                learn(nodes)

    return tell


class NotKnownError(Exception):
    """Nobody is registered at a URL, so nobody can be named as the receiver of a call."""


class Way(NamedTuple):
    """How a peer is called; `receiver` None: in plain text, and nobody is named to it."""

    url: str
    receiver: Identity | None


class PeerPlace(NamedTuple):
    """Who is behind a URL; `tls_url`: where it speaks TLS besides, None: nowhere, or just there."""

    identity: Identity
    tls_url: str | None = None


class PeerNames:
    """The identities behind URLs, by role.

    Args:
        domain: of the cluster; nobody else is called.
    """

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._registered: dict[Role, dict[str, PeerPlace]] = {}
        self._heard: OrderedDict[tuple[Role, str], PeerPlace] = OrderedDict()

    def learn_role(self, role: Role) -> Learn:
        """What a roster of this role's nodes calls after every change."""
        return partial(self._learn_all, role)

    def hear(self, role: Role, name: str, url: str, tls_url: str | None = None) -> None:
        """Somebody says where a node is reached, or a node itself said so some time ago.

        Args:
            tls_url: where it speaks TLS besides.
        """
        try:
            identity = make_identity(self._domain, role, name)
        except InvalidIdentityError:
            return
        for place, also in _list_places(url, tls_url):
            self._heard[role, place] = PeerPlace(identity, also)
            self._heard.move_to_end((role, place))
            if len(self._heard) > HEARD_COUNT_MAX:
                self._heard.popitem(last=False)

    def find(self, role: Role, url: str) -> Identity | None:
        """Who of this role is reached at a URL (no slash at its end); None: nobody known."""
        found = self.find_place(role, url)
        return None if found is None else found.identity

    def find_place(self, role: Role, url: str) -> PeerPlace | None:
        """The same, and where it speaks TLS besides."""
        found = self._registered.get(role, {}).get(url)
        return found if found is not None else self._heard.get((role, url))

    def statistics(self) -> dict[str, int]:
        """How many are known."""
        registered_count = sum(map(len, self._registered.values()))
        return {
            "registered": registered_count,
            "heard": len(self._heard),
            "heard_max": HEARD_COUNT_MAX,
        }

    def _learn_all(self, role: Role, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        before, now = self._registered.get(role, {}), dict[str, PeerPlace]()
        for name, fields in nodes.items():
            url = fields.get("data_url")
            if not isinstance(url, str):
                continue
            try:
                identity = make_identity(self._domain, role, name)
            except InvalidIdentityError:
                continue
            for place, also in _list_places(url, find_tls_url(fields, TLS_DATA_URL)):
                now[place] = PeerPlace(identity, also)
        for url, left in before.items():
            if url not in now:
                self.hear(role, left.identity.name, url, left.tls_url)
        self._registered[role] = now


def _list_places(url: str, tls_url: str | None) -> tuple[tuple[str, str | None], ...]:
    """Each URL of a node, with where it speaks TLS besides."""
    return ((url, None),) if tls_url is None else ((url, tls_url), (tls_url, None))
