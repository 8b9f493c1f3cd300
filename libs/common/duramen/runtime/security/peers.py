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
from typing import Any, Final

from duramen.runtime.identity.names import Identity, InvalidIdentityError, Role, make_identity

SECURE_SCHEME: Final = "https://"
HEARD_COUNT_MAX: Final = 4_096

Learn = Callable[[Mapping[str, Mapping[str, Any]]], None]
"""Takes the nodes of one role as they are registered now, name → fields, the oldest first."""


class NotKnownError(Exception):
    """Nobody is registered at a URL, so nobody can be named as the receiver of a call."""


class PeerNames:
    """The identities behind URLs, by role.

    Args:
        domain: of the cluster; nobody else is called.
    """

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._registered: dict[Role, dict[str, Identity]] = {}
        self._heard: OrderedDict[tuple[Role, str], Identity] = OrderedDict()

    def learn_role(self, role: Role) -> Learn:
        """What a roster of this role's nodes calls after every change."""
        return partial(self._learn_all, role)

    def hear(self, role: Role, name: str, url: str) -> None:
        """Somebody says where a node is reached, or a node itself said so some time ago."""
        try:
            identity = make_identity(self._domain, role, name)
        except InvalidIdentityError:
            return
        self._heard[role, url] = identity
        self._heard.move_to_end((role, url))
        if len(self._heard) > HEARD_COUNT_MAX:
            self._heard.popitem(last=False)

    def find(self, role: Role, url: str) -> Identity | None:
        """Who of this role is reached at a URL (no slash at its end); None: nobody known."""
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
        before, now = self._registered.get(role, {}), {}
        for name, fields in nodes.items():
            url = fields.get("data_url")
            if not isinstance(url, str):
                continue
            try:
                now[url] = make_identity(self._domain, role, name)
            except InvalidIdentityError:
                continue
        for url, identity in before.items():
            if url not in now:
                self.hear(role, identity.name, url)
        self._registered[role] = now
