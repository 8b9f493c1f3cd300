"""Scopes of API tokens: their targets as people type them, and what is no wider than what.

A target is `*`, `namespace`, `namespace/prefix*` or `namespace/log`. Verbs are words that mean
something to rights, and nothing here.

Called by `issuing`. Source: docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from duramen.errors import DuramenError
from duramen.texts import check_log_name, check_namespace
from duramen.wire.nodes.access_tokens import Scope

EVERYTHING: Final = "*"


def check_target(text: str) -> str:
    """The target itself, if it is one.

    Raises:
        DuramenError: `invalid_name`, field `scopes`.
    """
    namespace, slash, rest = text.partition("/")
    if text == EVERYTHING:
        return text
    try:
        check_namespace(namespace)
        # A prefix is a name that goes on, and an empty one every name.
        if slash and rest != "*":
            check_log_name(rest.removesuffix("*"))
    except DuramenError as error:
        raise DuramenError("invalid_name", f"target {text!r}: {error}", field="scopes") from None
    return text


def covers(target: str, other: str) -> bool:
    """Whether all that another target reaches is reached by this one; both were checked."""
    if EVERYTHING in (target, other):
        return target == EVERYTHING
    namespace, slash, rest = target.partition("/")
    other_namespace, other_slash, other_rest = other.partition("/")
    if namespace != other_namespace:
        return False
    if not slash:
        return True
    if not other_slash:
        return False
    if rest.endswith("*"):
        return other_rest.startswith(rest.removesuffix("*"))
    return rest == other_rest


def find_wider(wanted: Sequence[Scope], held: Sequence[Scope]) -> tuple[str, str] | None:
    """A verb and a target that are wanted and not held; None where all is held.

    Each verb is looked for by itself, so that two held scopes together may cover a wanted one.
    """
    for scope in wanted:
        for verb in sorted(scope.verbs):
            if not any(verb in one.verbs and covers(one.target, scope.target) for one in held):
                return verb, scope.target
    return None
