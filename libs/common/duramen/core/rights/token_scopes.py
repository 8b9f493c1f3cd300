"""Scopes of an access token: verbs on a scope of grants, which the token itself allows.

They come on top of what is granted. One reader serves requests and nodes: a text that is no scope,
or a verb that is not known, is refused wherever it stands.

Called by `judgement`, the codec of tokens' nodes, and whoever issues one.
Source: docs/protocol/credentials.md "API tokens", docs/protocol/rights.md "Grants".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from duramen.core.rights.grants import EVERYTHING, GrantScope, parse_scope
from duramen.core.rights.verbs import OF_CLUSTER, Verb
from duramen.errors import DuramenError

SCOPE_COUNT_MAX: Final = 32
"""Of one token."""

_VERBS: Final = {verb.value: verb for verb in Verb}


class TokenScope(NamedTuple):
    """What a token may do, and on what."""

    verbs: frozenset[Verb]
    on: GrantScope

    @property
    def bits(self) -> int:
        """The verbs as one number."""
        return sum(verb.bit for verb in self.verbs)


def parse_token_scope(verbs: Iterable[str], target: str) -> TokenScope:
    """Read verbs and a target, as requests and nodes have them.

    Raises:
        DuramenError: `invalid_argument`, field `scopes`.
    """
    words = list(verbs)
    unknown = next((word for word in words if word not in _VERBS), None)
    if unknown is not None or not words:
        what = "give each some verbs" if unknown is None else f"{unknown[:80]!r} is no verb"
        raise _refuse(f"{what}: {', '.join(Verb)} are")
    if len(set(words)) < len(words):
        raise _refuse("a verb stands twice")
    try:
        scope = parse_scope(target)
    except DuramenError as error:
        raise _refuse(error.detail) from None
    taken = frozenset(_VERBS[word] for word in words)
    if taken & OF_CLUSTER and scope != GrantScope():
        raise _refuse(f"{' and '.join(sorted(OF_CLUSTER))} are given on {EVERYTHING} alone")
    return TokenScope(taken, scope)


def _refuse(detail: str) -> DuramenError:
    return DuramenError("invalid_argument", f"scopes: {detail}", field="scopes")
