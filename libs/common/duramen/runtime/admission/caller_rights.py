"""What a caller may do now: what is granted to it and its groups, and what its token carries.

The one place where the two are put together. Nothing is looked up of what is asked for.

Called by `admission`, and by routes through `callers`.
Source: docs/protocol/rights.md "How a call is judged", docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

from typing import Final

from duramen.core.rights.judgement import GrantTable, Rights
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.scopes import EVERYTHING, covers
from duramen.runtime.credentials.principals import Bearer
from duramen.wire.nodes.access_tokens import Scope

_OF_CLUSTER: Final = "the cluster"


class CallerRights:
    """By one table of grants."""

    __slots__ = ("_granted", "_scopes")

    def __init__(self, granted: Rights, scopes: tuple[Scope, ...]) -> None:
        self._granted = granted
        self._scopes = scopes

    def judge(self, verb: Verb, namespace: str | None = None, log: str | None = None) -> bool:
        """Whether the caller may do this to the log, else to the namespace, else to the cluster."""
        if self._granted.judge(verb, namespace, log):
            return True
        if not self._scopes:
            return False
        target = _name_target(namespace, log) or EVERYTHING
        return any(
            verb.value in scope.verbs and covers(scope.target, target) for scope in self._scopes
        )

    def reaches(self, verb: Verb, namespace: str) -> bool:
        """Whether the caller may do this to anything in the namespace; of lists."""
        return self._granted.reaches(verb, namespace) or any(
            verb.value in scope.verbs and scope.target.partition("/")[0] in (EVERYTHING, namespace)
            for scope in self._scopes
        )


def put_together(table: GrantTable, caller: Bearer) -> CallerRights:
    """The rights of a caller, by this table."""
    return CallerRights(table.rights_of(caller.principal, *caller.groups), caller.scopes)


def refuse(verb: Verb, namespace: str | None = None, log: str | None = None) -> DuramenError:
    """The one refusal: it names what was asked, and is the same whether or not that is there."""
    word = "to" if verb is Verb.APPEND else "on"
    target = _name_target(namespace, log) or _OF_CLUSTER
    return DuramenError("forbidden", f"{verb.value} {word} {target}: you may not")


def _name_target(namespace: str | None, log: str | None) -> str | None:
    if namespace is None:
        return None
    return namespace if log is None else f"{namespace}/{log}"
