"""Whether a caller may do what it asks for: one table of all grants, and what it says of a caller.

A `GrantTable` never changes: another version of the node is another table. `rights_of` puts the
grants of a caller's principals together, once; `Rights.judge` then looks in a dictionary or two,
and searches the prefixes of that namespace. Nothing here knows which names are there.

Called by whoever follows the node. Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Final

from duramen.core.rights.grants import Grant, GrantScope, Principal, PrincipalKind
from duramen.core.rights.verbs import GrantedRole, Verb, bits_of

CALLERS_MAX: Final = 4_096
"""Callers whose rights a table keeps; the one that was made first makes room. As many callers have
a row in the table of verified headers."""

BUILT_IN: Final[Mapping[str, tuple[GrantedRole, ...]]] = {
    "operator": tuple(GrantedRole),
    "archive": (GrantedRole.ARCHIVER,),
    "monitor": (GrantedRole.MONITOR,),
    "sequencer": (GrantedRole.MONITOR,),
    "writeproxy": (GrantedRole.MONITOR,),
}
"""Role of an identity → what it may do on the whole cluster without any grant."""


class _NamespaceRights:
    """Verbs within one namespace, as bits.

    All names that begin with a prefix follow it in one run, so the greatest prefix that is not
    above a name has each prefix of the name as its own beginning; `_nested` has their lengths.
    """

    __slots__ = ("_closed", "_nested", "_sorted", "anything", "logs", "whole")

    def __init__(self, rules: Iterable[tuple[GrantScope, int]]) -> None:
        self.anything = self.whole = 0
        self.logs: dict[str, int] = {}
        prefixes: dict[str, int] = {}
        for scope, bits in rules:
            self.anything |= bits
            if scope.log is None:
                self.whole |= bits
            else:
                named = prefixes if scope.is_prefix else self.logs
                named[scope.log] = named.get(scope.log, 0) | bits
        self._sorted = sorted(prefixes)
        self._nested: list[tuple[int, ...]] = []
        self._closed: dict[str, int] = {}
        """Prefix → its bits, and those of every shorter one that it begins with."""
        outer: list[str] = []
        for prefix in self._sorted:
            while outer and not prefix.startswith(outer[-1]):
                outer.pop()
            self._closed[prefix] = prefixes[prefix] | (self._closed[outer[-1]] if outer else 0)
            outer.append(prefix)
            self._nested.append(tuple(map(len, outer)))

    def find_prefixed(self, log: str) -> int:
        """Of all prefixes that the text begins with."""
        place = bisect_right(self._sorted, log) - 1
        if place < 0:
            return 0
        nearest, lengths = self._sorted[place], self._nested[place]
        if log.startswith(nearest):
            return self._closed[nearest]
        fitting = bisect_left(lengths, True, key=lambda it: not log.startswith(nearest[:it]))
        return self._closed[nearest[: lengths[fitting - 1]]] if fitting else 0


class Rights:
    """What one caller may do, by one table."""

    __slots__ = ("_everywhere", "_namespaces")

    def __init__(self, grants: Iterable[tuple[GrantScope, GrantedRole]]) -> None:
        self._everywhere = 0
        inside: dict[str, list[tuple[GrantScope, int]]] = {}
        for scope, role in grants:
            if scope.namespace is None:
                self._everywhere |= bits_of(role)
            else:
                inside.setdefault(scope.namespace, []).append((scope, bits_of(role)))
        self._namespaces = {name: _NamespaceRights(rules) for name, rules in inside.items()}

    def judge(self, verb: Verb, namespace: str | None = None, log: str | None = None) -> bool:
        """Whether the caller may do this to the log, else to the namespace, else to the cluster."""
        assert log is None or namespace is not None, log
        if self._everywhere & verb.bit:
            return True
        if namespace is None or (inside := self._namespaces.get(namespace)) is None:
            return False
        if inside.whole & verb.bit:
            return True
        if log is None or not inside.anything & verb.bit:
            return False
        return bool((inside.logs.get(log, 0) | inside.find_prefixed(log)) & verb.bit)

    def reaches(self, verb: Verb, namespace: str) -> bool:
        """Whether the caller may do this to anything in the namespace; of lists."""
        inside = self._namespaces.get(namespace)
        bits = self._everywhere if inside is None else self._everywhere | inside.anything
        return bool(bits & verb.bit)

    def holds(self, verbs: Iterable[Verb], scope: GrantScope) -> bool:
        """Whether the caller has each of the verbs on all that the scope covers, now or later."""
        held = self._held_on(scope)
        return all(held & verb.bit for verb in verbs)

    def may_give(self, grant: Grant) -> bool:
        """Whether the caller may hand this on: it grants there, and has all of it itself."""
        return self.holds((Verb.GRANT, *grant.role.verbs), grant.scope)

    def _held_on(self, scope: GrantScope) -> int:
        if scope.namespace is None or (inside := self._namespaces.get(scope.namespace)) is None:
            return self._everywhere
        held = self._everywhere | inside.whole
        if scope.log is None:
            return held
        named = 0 if scope.is_prefix else inside.logs.get(scope.log, 0)
        return held | named | inside.find_prefixed(scope.log)


class GrantTable:
    """All grants of a cluster, as one version of the node has them."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._granted: dict[Principal, list[tuple[GrantScope, GrantedRole]]] = {}
        self._count = 0
        for grant in grants:
            self._granted.setdefault(grant.who, []).append((grant.scope, grant.role))
            self._count += 1
        self._callers: dict[tuple[Principal, ...], Rights] = {}

    def rights_of(self, *principals: Principal) -> Rights:
        """What a caller may do that is all of these: itself, and its groups."""
        rights = self._callers.get(principals)
        if rights is None:
            rights = Rights(
                each for one in principals for each in (*_list_built_in(one), *self._find(one))
            )
            if len(self._callers) >= CALLERS_MAX:
                del self._callers[next(iter(self._callers))]
            self._callers[principals] = rights
        return rights

    def _find(self, principal: Principal) -> Iterable[tuple[GrantScope, GrantedRole]]:
        return self._granted.get(principal, ())

    def statistics(self) -> dict[str, int]:
        """Grants, who has some, and callers whose rights are kept."""
        return {
            "grants": self._count,
            "principals": len(self._granted),
            "callers": len(self._callers),
            "callers_max": CALLERS_MAX,
        }


def _list_built_in(principal: Principal) -> Iterable[tuple[GrantScope, GrantedRole]]:
    if principal.kind is not PrincipalKind.SERVICE:
        return ()
    roles = BUILT_IN.get(principal.name.partition("/")[0], ())
    return ((GrantScope(), role) for role in roles)
