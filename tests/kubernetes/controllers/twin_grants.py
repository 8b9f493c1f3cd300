"""The grants of a cluster without processes, judged by the product's own core.

Whoever asks has an operator's rights; a test gives and takes in other names. Versions go up by one
with each change, and a change by another version is refused, as a sequencer does.

Called by `twin_state` and the tests of plans. Source: docs/protocol/rights.md "How grants change".
"""

from __future__ import annotations

import time
from typing import Any, Final

from duramen.core.rights.changes import list_grants, replace_grants
from duramen.core.rights.grants import (
    GivenGrant,
    GrantScope,
    Principal,
    parse_grant,
    parse_principal,
    parse_scope,
)
from duramen.core.rights.judgement import GrantTable
from duramen.errors import DuramenError
from duramen.texts import format_time

OPERATOR: Final = parse_principal("service:operator/kubernetes")

Answer = dict[str, Any]


class TwinGrants:
    """All grants, and the version of their node."""

    def __init__(self) -> None:
        self.rows: tuple[GivenGrant, ...] = ()
        self.version = 0
        self.now_unix_ms = time.time_ns() // 1_000_000

    def show(self, scope: str) -> Answer:
        """The answer of GET."""
        on = parse_scope(scope)
        return self._encode(list_grants(self.rows, on, self._rights))

    def replace(self, scope: str, version: int, rows: list[Answer]) -> Answer:
        """The answer of PUT by the operator."""
        wanted = [parse_grant(row["who"], row["role"], row["scope"]) for row in rows]
        return self._replace(parse_scope(scope), version, wanted, OPERATOR)

    def give(self, who: str, role: str, scope: str, *, by: str = "user:corp/ann") -> None:
        """Somebody gives a grant by hand; one that is there stays as it is."""
        grant = parse_grant(who, role, scope)
        wanted = {given.grant for given in self.rows} | {grant}
        self._replace(GrantScope(), self.version, wanted, parse_principal(by))

    def take(self, who: str, role: str, scope: str) -> None:
        """Somebody takes a grant by hand."""
        wanted = {given.grant for given in self.rows} - {parse_grant(who, role, scope)}
        self._replace(GrantScope(), self.version, wanted, OPERATOR)

    def names(self) -> set[tuple[str, str, str]]:
        """Who, role and scope of all."""
        return {
            (str(one.grant.who), one.grant.role.value, str(one.grant.scope)) for one in self.rows
        }

    @property
    def _rights(self) -> Any:
        return GrantTable([]).rights_of(OPERATOR)

    def _replace(self, scope: GrantScope, version: int, wanted: Any, by: Principal) -> Answer:
        self.now_unix_ms += 1
        changed = replace_grants(
            self.rows, scope, tuple(wanted), by=by, rights=self._rights,
            now_unix_ms=self.now_unix_ms,
        )  # fmt: skip
        if version != self.version:
            detail = f"the grants have version {self.version} now"
            raise DuramenError("config_conflict", detail, field="version")
        if changed != self.rows:
            self.rows, self.version = changed, self.version + 1
        return self._encode(list_grants(self.rows, scope, self._rights))

    def _encode(self, rows: tuple[GivenGrant, ...]) -> Answer:
        told = [
            {
                "who": str(one.grant.who), "role": one.grant.role.value,
                "scope": str(one.grant.scope), "by": str(one.by),
                "given": format_time(one.given_unix_ms),
            }
            for one in rows
        ]  # fmt: skip
        return {"version": self.version, "grants": told}
