"""API tokens issued, listed and revoked: one node each, written once, removed once.

Who asks is judged by the node `grants` as it is, which the same `multi()` proves unchanged, and a
token by its own node. The secret is not here: whoever asks has drawn it and tells its hash, so a
try whose fate is unknown is found by the id, which is never used twice (R3).

Called by the sequencer's control operations.
Source: docs/protocol/credentials.md "Who makes one, and for how long".
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

from duramen.core.rights.grants import GrantScope
from duramen.core.rights.token_scopes import TokenScope
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.lines import DEPTH_MAX, find_line, is_whole
from duramen.runtime.credentials.access_tokens.token_stock import SeenTokens, TokenStock
from duramen.runtime.credentials.access_tokens.token_text import format_prefix
from duramen.runtime.credentials.principals import Bearer
from duramen.runtime.rights.grants_reading import read_grants_now
from duramen.runtime.rights.judged_callers import JudgedCaller, judge_caller
from duramen.runtime.stores.metadata_store import (
    Conflict,
    ConflictKind,
    Create,
    DeleteNode,
    MetadataError,
    MetadataStore,
    Op,
    OutcomeUnknown,
    create_parents,
)
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.access_tokens import AccessToken, encode_access_token

LIFE_S_MIN: Final = 60
LIFE_S_MAX: Final = 366 * 86_400
TOKEN_COUNT_MAX: Final = 4_096
NAMESPACE_TOKEN_COUNT_MAX: Final = 256
"""Of those that name one namespace, so that one issuer does not use up what all share."""

KEPT_AFTER_END_S: Final = 86_400
"""So long a token that has ended is still listed: who wonders why it is refused finds it."""

SWEPT_COUNT_MAX: Final = 64
_TRIES: Final = 20

_LOG: Final = logging.getLogger(__name__)


class AskedToken(NamedTuple):
    """What a new token is to be; its id and hash were drawn by whoever gives its text away."""

    token_id: str
    secret_hash: bytes
    scopes: tuple[TokenScope, ...]
    life_s: int
    note: str


class TokenIssuer:
    """Makes tokens, shows them, and revokes them."""

    def __init__(self, store: MetadataStore, paths: Paths, stock: TokenStock) -> None:
        self._store = store
        self._paths = paths
        self._stock = stock

    async def issue(self, caller: Bearer, asked: AskedToken, now_s: int) -> AccessToken:
        """Make a token, or find the one that an earlier try made.

        Args:
            now_s: seconds since 1970.

        Raises:
            DuramenError: `forbidden`; `invalid_argument` with the field, also where there are too
                many; `metadata_unavailable`: it may be there or not, the same may be asked again.
            MetadataError: as the latter.
        """
        check_life_s(asked.life_s)
        path = self._paths.access_token(asked.token_id)
        for _ in range(_TRIES):
            judged = await self._judge(caller, now_s)
            made = judged.seen.tokens.get(asked.token_id)
            if made is not None:
                return _recognise(made, asked, caller)
            token = _make(judged, asked, now_s)
            _check_room(judged.seen, token, now_s)
            ops: tuple[Op, ...] = (
                *judged.read.prove(), *judged.prove_line(self._paths),
                Create(path, encode_access_token(token)),
            )  # fmt: skip
            try:
                await self._store.commit(ops)
            except Conflict as conflict:
                if (conflict.kind, conflict.path) == (ConflictKind.NO_NODE, path):
                    await create_parents(self._store.commit, path)
            except OutcomeUnknown:
                pass  # the next look tells
            else:
                await self._sweep(path, judged.seen)
                return token
        raise _too_often()

    async def list_for(
        self, caller: Bearer, start_after: str, limit: int, now_s: int
    ) -> tuple[tuple[AccessToken, ...], bool]:
        """A page of the tokens that the caller may see, by id, and whether there are more.

        Raises:
            DuramenError: `forbidden`, `metadata_unavailable`.
            MetadataError: they cannot be read.
        """
        judged = await self._judge(caller, now_s)
        shown = (
            token
            for token_id, token in sorted(judged.seen.tokens.items())
            if token_id > start_after and judged.may_see(token)
        )
        page = tuple(itertools.islice(shown, limit + 1))
        return page[:limit], len(page) > limit

    async def revoke(self, caller: Bearer, token_id: str, now_s: int) -> bool:
        """Remove a token: it opens nothing from each process's next look on.

        Returns:
            Whether this call removed it.

        Raises:
            DuramenError: `forbidden`; `metadata_unavailable`: it may be there or not.
            MetadataError: as the latter.
        """
        path = self._paths.access_token(token_id)
        is_sent = False
        for _ in range(_TRIES):
            judged = await self._judge(caller, now_s)
            found = await self._store.get(path)
            if found is None or token_id not in judged.seen.names:
                return is_sent
            token = judged.seen.tokens.get(token_id)
            # What opens nothing says of nobody that it is theirs.
            everything = judged.rights.holds((Verb.GRANT,), GrantScope()) if token is None else True
            if not everything or (token is not None and not judged.may_see(token)):
                raise DuramenError(
                    "forbidden", f"revoke {format_prefix(token_id)}: you may not", field="id"
                )
            try:
                await self._store.commit((*judged.read.prove(), DeleteNode(path, found.version)))
            except Conflict:
                continue
            except OutcomeUnknown:
                is_sent = True
            else:
                return True
        raise _too_often()

    async def _judge(self, caller: Bearer, now_s: int) -> JudgedCaller:
        # First the grants: what is read later may be newer, and the commit proves that they stay.
        read = await read_grants_now(self._store, self._paths.grants)
        return judge_caller(read, await self._stock.look(), caller, now_s)

    async def _sweep(self, written: str, seen: SeenTokens) -> None:
        """Remove tokens that nobody will ask about any more, a few at a time.

        The time is the store's, of the node just written: a process whose own clock is ahead would
        remove tokens that live.
        """
        try:
            found = await self._store.get(written)
            if found is None:
                return
            dead = _find_dead(seen, found.changed_unix_ms // 1_000)
            for token_id in itertools.islice(dead, SWEPT_COUNT_MAX):
                await remove_token(self._store, self._paths.access_token(token_id))
        except MetadataError as error:
            _LOG.info("ended API tokens stay for now: %s", error)


async def remove_token(store: MetadataStore, path: str) -> None:
    """Remove a token's node, if it is there.

    Raises:
        MetadataError: it may still be there.
    """
    try:
        await store.delete(path, version=0)
    except Conflict as conflict:
        if conflict.kind is not ConflictKind.NO_NODE:
            raise


def check_life_s(life_s: int) -> int:
    """How long a token is to live, 60 s to 366 days.

    Raises:
        DuramenError: `invalid_argument`, field `expires`.
    """
    if not LIFE_S_MIN <= life_s <= LIFE_S_MAX:
        raise DuramenError(
            "invalid_argument",
            f"expires: give a time from {LIFE_S_MIN} s to {LIFE_S_MAX // 86_400} days",
            field="expires",
        )
    return life_s


def _recognise(made: AccessToken, asked: AskedToken, caller: Bearer) -> AccessToken:
    """The token, if it is the one that is asked for."""
    if (made.secret_hash, made.issued_by) != (asked.secret_hash, caller.principal):
        raise DuramenError("invalid_argument", "that token is somebody else's", field="id")
    return made


def _make(judged: JudgedCaller, asked: AskedToken, now_s: int) -> AccessToken:
    """The token, if the caller may make it.

    Raises:
        DuramenError: `forbidden`.
    """
    for scope in asked.scopes:
        for verb in sorted(scope.verbs):
            if not judged.rights.holds((verb,), scope.on):
                raise DuramenError(
                    "forbidden", f"{verb} on {scope.on}: you may not", field="scopes"
                )
    line, ends_s = judged.line, now_s + asked.life_s
    if len(line) >= DEPTH_MAX:
        raise DuramenError(
            "forbidden", f"{judged.bearer.principal} was made with too many others: ask as somebody"
        )
    if line:
        ends_s = min(ends_s, *(one.expires_s for one in line))
    elif not judged.grants_on(asked.scopes):
        # Whoever grants could give what lasts without a token.
        ends_s = min(ends_s, judged.bearer.ends_s)
    return AccessToken(
        asked.token_id, asked.secret_hash, judged.bearer.principal, asked.scopes,
        now_s, ends_s, asked.note, line[0].token_id if line else None,
    )  # fmt: skip


def _check_room(seen: SeenTokens, token: AccessToken, now_s: int) -> None:
    """Refuse what would be too many: of all, and of those that name a namespace."""
    alive = [
        one
        for one in seen.tokens.values()
        if one.expires_s > now_s and is_whole(find_line(one, seen.tokens))
    ]
    if len(alive) + seen.unreadable_count >= TOKEN_COUNT_MAX:
        raise _refuse_more(f"there are {TOKEN_COUNT_MAX} tokens")
    for namespace in sorted(list_namespaces(token)):
        if sum(namespace in list_namespaces(one) for one in alive) >= NAMESPACE_TOKEN_COUNT_MAX:
            raise _refuse_more(f"{NAMESPACE_TOKEN_COUNT_MAX} tokens name {namespace}")


def list_namespaces(token: AccessToken) -> frozenset[str]:
    """The namespaces that a token's scopes name; `*` names none."""
    return frozenset(one.on.namespace for one in token.scopes if one.on.namespace is not None)


def _refuse_more(what: str) -> DuramenError:
    return DuramenError("invalid_argument", f"{what}: revoke some", field="scopes")


def _find_dead(seen: SeenTokens, now_s: int) -> Iterator[str]:
    """Ids of tokens that ended long ago, and of those whose line is broken."""
    for token_id, token in seen.tokens.items():
        first_maker = find_line(token, seen.tokens)[-1].parent_id
        is_broken = first_maker is not None and first_maker not in seen.names
        if is_broken or token.expires_s < now_s - KEPT_AFTER_END_S:
            yield token_id


def _too_often() -> DuramenError:
    return DuramenError("metadata_unavailable", "grants or tokens change all the time: try again")
