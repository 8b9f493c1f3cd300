"""How a public port refuses: each of three ways with one text, whatever is there.

Called by `admission`, by the door, and by routes through `callers`.
Source: docs/protocol/rights.md "How a call is judged", docs/protocol/credentials.md "Who it is".
"""

from __future__ import annotations

from typing import Final

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError

_OF_CLUSTER: Final = "the cluster"
_SHOWS_NOBODY: Final = "who are you? Show a credential: Authorization or Duramen-Identity"


def refuse_verb(verb: Verb, namespace: str | None = None, log: str | None = None) -> DuramenError:
    """It names what was asked, and is the same whether or not that is there."""
    word = "to" if verb is Verb.APPEND else "on"
    target = _name_target(namespace, log)
    return DuramenError("forbidden", f"{verb.value} {word} {target}: you may not")


def refuse_unknown() -> DuramenError:
    """The one refusal of whoever is not known."""
    return DuramenError("unauthenticated", _SHOWS_NOBODY)


def refuse_blindly() -> DuramenError:
    """Nobody can be known now, so nobody is refused as unknown."""
    return DuramenError("metadata_unavailable", "who calls cannot be known now: ask again later")


def _name_target(namespace: str | None, log: str | None) -> str:
    if namespace is None:
        return _OF_CLUSTER
    return namespace if log is None else f"{namespace}/{log}"
