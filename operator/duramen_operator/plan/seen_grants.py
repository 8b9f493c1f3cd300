"""What the cluster said of its grants, and the calls that change them.

`observe.grants` fills `AdminView.grants` with the answer of `GET /v1/grants?scope=*`, with
`{"is_judged": false}` or with `{"problem": {"code", "detail"}}`. A `GrantDraft` is what there will
be after the calls that were planned so far: each replaces the grants within one scope by the
version that the one before leaves, so that one pass makes many changes.

Called by `log_grants`. Source: docs/protocol/rights.md "Calls and tools".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlencode

from duramen.core.rights.grants import Grant, GrantScope, parse_scope
from duramen.errors import DuramenError
from duramen_operator.plan.observed import Json, KubeObject, Problem
from duramen_operator.plan.seen_logs import read_problem
from duramen_operator.plan.steps import Call


class GrantTexts(NamedTuple):
    """A grant as it is written: a role that only a newer cluster knows has a text, too."""

    who: str
    role: str
    scope: str

    @classmethod
    def of(cls, grant: Grant) -> GrantTexts:
        """A grant's."""
        return cls(str(grant.who), grant.role.value, str(grant.scope))

    def __str__(self) -> str:
        return f"{self.role} on {self.scope} to {self.who}"


class GivenMark(NamedTuple):
    """Who gave a grant and when: tells it from one that was taken and given anew."""

    by: str
    given: str


@dataclass(frozen=True, slots=True)
class ClusterGrants:
    """All grants at one look, or why nothing is known of them."""

    rows: Mapping[GrantTexts, GivenMark] = field(default_factory=dict)
    scopes: Mapping[GrantTexts, GrantScope] = field(default_factory=dict)
    version: int = 0
    problem: Problem | None = None
    """Why no grant is known; a grant that is not seen then is not gone."""
    is_judged: bool = True
    """False: the cluster asks nobody who it is, so grants count for nothing."""


def read_cluster_grants(facts: Json | None) -> ClusterGrants:
    """What `AdminView.grants` says."""
    if facts is None:
        return ClusterGrants(problem=Problem("not_asked", "the cluster was not asked"))
    if facts.get("is_judged") is False:
        return ClusterGrants(is_judged=False)
    problem = read_problem(facts)
    if problem is None and facts.get("unreadable"):
        problem = Problem("metadata_unavailable", f"the grants: {facts['unreadable']}")
    if problem is not None:
        return ClusterGrants(problem=problem)
    rows: dict[GrantTexts, GivenMark] = {}
    scopes: dict[GrantTexts, GrantScope] = {}
    for row in facts["grants"]:
        texts = GrantTexts(str(row["who"]), str(row["role"]), str(row["scope"]))
        try:
            scopes[texts] = parse_scope(texts.scope)
        except DuramenError as error:
            # Whether a change would leave it out cannot be known.
            detail = f"{texts}: no scope for this operator, which is to be upgraded: {error.detail}"
            return ClusterGrants(problem=Problem("not_understood", detail))
        rows[texts] = GivenMark(str(row["by"]), str(row["given"]))
    return ClusterGrants(rows, scopes, int(facts["version"]))


class GrantDraft:
    """Grants and the version of their node, as they are after the calls that were planned."""

    def __init__(self, seen: ClusterGrants) -> None:
        self._scopes = dict(seen.scopes)
        self._version = seen.version

    def holds(self, grant: Grant) -> bool:
        """Whether the grant will be there: several objects may say it, and one call does."""
        return GrantTexts.of(grant) in self._scopes

    def change(self, item: KubeObject, grant: Grant, *, is_wanted: bool) -> Call:
        """The call by which a grant is given, or taken; for those behind it, it is done.

        Args:
            item: the object for which it is done.
        """
        texts = GrantTexts.of(grant)
        if is_wanted:
            self._scopes[texts] = grant.scope
        else:
            self._scopes.pop(texts, None)
        within = sorted(one for one, on in self._scopes.items() if grant.scope.covers(on))
        query = urlencode({"scope": texts.scope, "version": self._version})
        self._version += 1
        rows = [one._asdict() for one in within]
        return Call(item.ref, "PUT", f"/v1/grants?{query}", {"grants": rows})
