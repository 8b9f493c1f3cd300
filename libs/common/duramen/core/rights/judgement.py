"""Whether a caller may do what it asks for: one table of all grants, and what it says of a caller.

A `GrantTable` never changes: another version of the node is another table. `rights_of` puts the
grants of a caller's principals and its token's scopes together, once; `Rights.judge` then looks in
a dictionary or two, and searches the prefixes of that namespace. Nothing here knows which names are
there. Where no table can be had, `CertainRights` have what is certain without one.

Called by whoever follows or changes the node.
Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from duramen.core.rights.grants import Grant, GrantScope, Principal, PrincipalKind
from duramen.core.rights.system_namespace import (
    SYSTEM_NAMESPACE,
    list_observed_bits,
    list_system_bits,
)
from duramen.core.rights.token_scopes import TokenScope
from duramen.core.rights.verbs import GrantedRole, Verb, bits_of
from duramen.errors import DuramenError

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
    """What one caller may do, by one table: each rule is a scope and verbs as bits.

    Args:
        system_bits: what its identity has in the system namespace, where no grant counts.
    """

    __slots__ = ("_everywhere", "_namespaces", "_system")

    def __init__(self, rules: Iterable[tuple[GrantScope, int]], system_bits: int = 0) -> None:
        self._everywhere = 0
        inside: dict[str, list[tuple[GrantScope, int]]] = {}
        for scope, bits in rules:
            if scope.namespace is None:
                self._everywhere |= bits
            else:
                inside.setdefault(scope.namespace, []).append((scope, bits))
        inside.pop(SYSTEM_NAMESPACE, None)
        self._namespaces = {name: _NamespaceRights(rules) for name, rules in inside.items()}
        self._system = system_bits | list_observed_bits(self._everywhere)

    def judge(self, verb: Verb, namespace: str | None = None, log: str | None = None) -> bool:
        """Whether the caller may do this to the log, else to the namespace, else to the cluster."""
        assert log is None or namespace is not None, log
        if namespace == SYSTEM_NAMESPACE:
            return bool(self._system & verb.bit)
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
        if namespace == SYSTEM_NAMESPACE:
            return bool(self._system & verb.bit)
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
        if scope.namespace == SYSTEM_NAMESPACE:
            return self._system
        if scope.namespace is None or (inside := self._namespaces.get(scope.namespace)) is None:
            return self._everywhere
        held = self._everywhere | inside.whole
        if scope.log is None:
            return held
        named = 0 if scope.is_prefix else inside.logs.get(scope.log, 0)
        return held | named | inside.find_prefixed(scope.log)


class CertainRights(Rights):
    """What a caller may do without any grant, while grants are unknown: a no is no answer."""

    __slots__ = ("_unknown",)

    def __init__(
        self,
        principals: Iterable[Principal],
        scopes: Iterable[TokenScope],
        unknown: DuramenError,
    ) -> None:
        principals = tuple(principals)
        super().__init__(_list_certain(principals, scopes), list_system_bits(principals))
        self._unknown = unknown

    def judge(self, verb: Verb, namespace: str | None = None, log: str | None = None) -> bool:
        """As of `Rights`, and never false.

        Raises:
            DuramenError: the one that was given: a grant might allow it.
        """
        return self._is_certain(super().judge(verb, namespace, log))

    def reaches(self, verb: Verb, namespace: str) -> bool:
        """As `judge`."""
        return self._is_certain(super().reaches(verb, namespace))

    def holds(self, verbs: Iterable[Verb], scope: GrantScope) -> bool:
        """As `judge`."""
        return self._is_certain(super().holds(verbs, scope))

    def _is_certain(self, is_allowed: bool) -> bool:
        if not is_allowed:
            raise self._unknown
        return True


class GrantTable:
    """All grants of a cluster, as one version of the node has them."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._granted: dict[Principal, list[tuple[GrantScope, int]]] = {}
        self._count = 0
        for grant in grants:
            self._granted.setdefault(grant.who, []).append((grant.scope, bits_of(grant.role)))
            self._count += 1
        self._callers: dict[_Caller, Rights] = {}

    def rights_of(self, *principals: Principal, scopes: tuple[TokenScope, ...] = ()) -> Rights:
        """What a caller may do that is all of these: itself, and its groups.

        Args:
            scopes: of the access token that it has shown; they come on top.
        """
        key: _Caller = (principals, scopes) if scopes else principals
        rights = self._callers.get(key)
        if rights is None:
            granted = (each for one in principals for each in self._granted.get(one, ()))
            rules = (*_list_certain(principals, scopes), *granted)
            rights = Rights(rules, list_system_bits(principals))
            if len(self._callers) >= CALLERS_MAX:
                del self._callers[next(iter(self._callers))]
            self._callers[key] = rights
        return rights

    def statistics(self) -> dict[str, int]:
        """Grants, who has some, and callers whose rights are kept."""
        return {
            "grants": self._count,
            "principals": len(self._granted),
            "callers": len(self._callers),
            "callers_max": CALLERS_MAX,
        }


_Caller = tuple[Principal, ...] | tuple[tuple[Principal, ...], tuple[TokenScope, ...]]


def _list_certain(
    principals: Iterable[Principal], scopes: Iterable[TokenScope]
) -> Iterator[tuple[GrantScope, int]]:
    """What certificates and tokens themselves give."""
    for principal in principals:
        if principal.kind is PrincipalKind.SERVICE:
            for role in BUILT_IN.get(principal.name.partition("/")[0], ()):
                yield GrantScope(), bits_of(role)
    for scope in scopes:
        yield scope.on, scope.bits
