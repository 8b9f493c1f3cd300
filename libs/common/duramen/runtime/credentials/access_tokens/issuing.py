"""API tokens issued and revoked: one node each, written once, removed once.

What a token may do is no wider than what its issuer may do now, which the caller says. Of a token
that was made with another one neither the scopes nor the end pass those of that one. A write of
unknown fate is read back, since ids are never used twice (R3).

Called by whoever serves `/v1/access-tokens`. Source: docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from duramen.core.rights.grants import PrincipalKind
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.scopes import check_target, find_wider
from duramen.runtime.credentials.access_tokens.token_table import DEPTH_MAX, TokenTable
from duramen.runtime.credentials.access_tokens.token_text import TokenText, make_token
from duramen.runtime.credentials.principals import Bearer
from duramen.runtime.stores.metadata_store import (
    Conflict,
    ConflictKind,
    MetadataStore,
    OutcomeUnknown,
)
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.access_tokens import (
    SCOPE_COUNT_MAX,
    TEXT_LENGTH_MAX,
    AccessToken,
    Scope,
    encode_access_token,
    is_token_id,
    is_verbs,
)

LIFE_S_MIN: Final = 60
LIFE_S_MAX: Final = 366 * 86_400
TOKEN_COUNT_MAX: Final = 4_096
KEPT_AFTER_END_S: Final = 86_400
"""So long a token that has ended is still listed: who wonders why it is refused finds it."""

SWEPT_COUNT_MAX: Final = 64


class TokenIssuer:
    """Makes tokens, and revokes them, by a table that is kept current."""

    def __init__(self, store: MetadataStore, paths: Paths, table: TokenTable) -> None:
        self._store = store
        self._paths = paths
        self._table = table

    async def issue(
        self,
        issuer: Bearer,
        held: Sequence[Scope],
        scopes: Sequence[Scope],
        *,
        life_s: int,
        note: str,
        now_s: int,
    ) -> tuple[TokenText, AccessToken]:
        """Make a token; its text is nowhere but in the answer.

        Args:
            issuer: who asks.
            held: all that the issuer may do now, by grants and by its own scopes.
            life_s: 60 to 366 days; one that is made with a token ends with that at the latest.
            note: what it is for, printable, 400 characters at most.

        Raises:
            DuramenError: `invalid_argument` or `invalid_name`, with the field, also where there
                are too many; `forbidden` where it would be wider than its issuer.
            CredentialRefusedError: the token that it was to be made with counts no more.
            MetadataError: it is not known to be there. Nobody has its text, so it opens nothing.
        """
        _check(scopes, life_s, note)
        wider = find_wider(scopes, held)
        if wider is not None:
            raise DuramenError(
                "forbidden",
                f"scopes: {wider[0]} on {wider[1]} is more than {issuer.principal} may do",
                field="scopes",
            )
        parent = self._find_parent(issuer)
        ends_s = now_s + life_s if parent is None else min(now_s + life_s, issuer.until_s)
        await self._sweep(now_s)
        if len(self._table.list_tokens()) >= TOKEN_COUNT_MAX:
            raise DuramenError(
                "invalid_argument", f"there are {TOKEN_COUNT_MAX} tokens: revoke some"
            )
        made = make_token()
        token = AccessToken(
            made.token_id, made.hash, str(issuer.principal), tuple(scopes), now_s, ends_s, note,
            parent,
        )  # fmt: skip
        await self._write(token)
        return made, token

    async def revoke(self, token_id: str) -> bool:
        """Remove a token: it opens nothing from each process's next look on.

        Returns:
            Whether it was there.

        Raises:
            DuramenError: `invalid_argument`: that is no token's id.
            MetadataError: it may still be there: revoke it again.
        """
        if not is_token_id(token_id):
            raise DuramenError("invalid_argument", f"{token_id!r} is no token's id", field="id")
        path = self._paths.access_token(token_id)
        await self._store.sync(path)
        found = await self._store.get(path)
        if found is None:
            return False
        return await self._remove(path, found.version)

    def _find_parent(self, issuer: Bearer) -> str | None:
        """The token that another one is made with, if it is one."""
        if issuer.principal.kind is not PrincipalKind.TOKEN:
            return None
        parent_id = issuer.principal.name
        if self._table.count_line(parent_id) >= DEPTH_MAX:
            raise DuramenError(
                "forbidden", f"{issuer.principal} was made with too many others: ask as somebody"
            )
        return parent_id

    async def _sweep(self, now_s: int) -> None:
        """Remove tokens that nobody will ask about any more, a few at a time."""
        over = (
            one for one in self._table.list_tokens() if one.expires_s < now_s - KEPT_AFTER_END_S
        )
        for token in itertools.islice(over, SWEPT_COUNT_MAX):
            await self._remove(self._paths.access_token(token.token_id), 0)

    async def _remove(self, path: str, version: int) -> bool:
        try:
            await self._store.delete(path, version=version)
        except Conflict as conflict:
            if conflict.kind is not ConflictKind.NO_NODE:
                raise
            return False
        return True

    async def _write(self, token: AccessToken) -> None:
        path, data = self._paths.access_token(token.token_id), encode_access_token(token)
        try:
            await self._store.create(path, data, make_parents=True)
        except OutcomeUnknown:
            await self._store.sync(path)
            found = await self._store.get(path)
            if found is None or found.data != data:
                raise


def _check(scopes: Sequence[Scope], life_s: int, note: str) -> None:
    """See that a request has the form that a node of a token has."""
    if not 1 <= len(scopes) <= SCOPE_COUNT_MAX:
        raise DuramenError(
            "invalid_argument", f"scopes: give 1 to {SCOPE_COUNT_MAX}", field="scopes"
        )
    for scope in scopes:
        check_target(scope.target)
        if not is_verbs(scope.verbs):
            raise DuramenError(
                "invalid_argument", "scopes: give each some verbs, words in lower case",
                field="scopes",
            )  # fmt: skip
    if not LIFE_S_MIN <= life_s <= LIFE_S_MAX:
        raise DuramenError(
            "invalid_argument", f"expires: give {LIFE_S_MIN} s to {LIFE_S_MAX // 86_400} days",
            field="expires",
        )  # fmt: skip
    if len(note) > TEXT_LENGTH_MAX or not note.isprintable():
        raise DuramenError(
            "invalid_argument", f"note: give {TEXT_LENGTH_MAX} printable characters at most",
            field="note",
        )  # fmt: skip
