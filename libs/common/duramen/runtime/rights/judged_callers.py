"""A caller of whom a proxy tells, judged by what is stored now: who it is, and what it may do.

What changes grants or tokens outlasts the call, so it is not enough that a proxy believed the
caller a moment ago: a credential that has ended gives nothing, and an API token is what its own
node and those of its makers say, whatever is told of it. `prove_line` has a commit refused once one
of these nodes has gone.

Called by `grant_changes` and by whoever issues access tokens.
Source: docs/protocol/rights.md "How grants change", docs/protocol/credentials.md "Who makes one,
and for how long".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duramen.core.rights.grants import Principal, PrincipalKind
from duramen.core.rights.judgement import Rights
from duramen.core.rights.token_scopes import TokenScope
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.lines import find_line, is_whole
from duramen.runtime.credentials.access_tokens.token_stock import SeenTokens
from duramen.runtime.credentials.principals import Bearer, name_token
from duramen.runtime.rights.grants_reading import ReadGrants
from duramen.runtime.stores.metadata_store import Check, Op
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.access_tokens import AccessToken


class JudgedCaller(NamedTuple):
    """Who it is by its own node, and what it may do by the grants that were read."""

    bearer: Bearer
    rights: Rights
    read: ReadGrants
    seen: SeenTokens
    line: tuple[AccessToken, ...]
    """Of the token that it has shown; empty: none."""

    def may_see(self, token: AccessToken) -> bool:
        """Whether it is the token's maker, the token itself, or grants on all of its targets."""
        if self.bearer.principal in (token.issued_by, name_token(token.token_id)):
            return True
        return self.grants_on(token.scopes)

    def grants_on(self, scopes: Sequence[TokenScope]) -> bool:
        """Whether it grants on all of these targets."""
        return all(self.rights.holds((Verb.GRANT,), scope.on) for scope in scopes)

    def prove_line(self, paths: Paths) -> tuple[Op, ...]:
        """What refuses a commit if its token, or one that this was made with, has gone."""
        return tuple(Check(paths.access_token(one.token_id), 0) for one in self.line)


def judge_caller(read: ReadGrants, seen: SeenTokens, caller: Bearer, now_s: float) -> JudgedCaller:
    """Who asks, by what is stored now.

    Args:
        seen: tokens that were read behind the grants; of a caller that is no token none are asked.
        now_s: seconds since 1970.

    Raises:
        DuramenError: `forbidden`: its credential has ended, or its token was revoked.
    """
    line: tuple[AccessToken, ...] = ()
    if caller.principal.kind is PrincipalKind.TOKEN:
        token = seen.tokens.get(caller.principal.name)
        line = () if token is None else find_line(token, seen.tokens)
        if token is None or not is_whole(line):
            raise say_revoked(caller.principal)
        ends_s = min(caller.ends_s, *(one.expires_s for one in line))
        caller = Bearer(caller.principal, ends_s, scopes=token.scopes)
    if caller.ends_s <= now_s:
        raise DuramenError("forbidden", "your credential has ended meanwhile")
    return JudgedCaller(caller, read.rights_of(caller), read, seen, line)


def say_revoked(principal: Principal) -> DuramenError:
    """The refusal of a token whose node, or a maker's, is not there."""
    return DuramenError("forbidden", f"{principal} was revoked")
