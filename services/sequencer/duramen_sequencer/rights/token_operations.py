"""The control operations `issue_token`, `list_tokens` and `revoke_token`: JSON in, JSON out.

The secret of a token is in none of them: who gives its text away has drawn it.

Called by `control`. Source: docs/protocol/credentials.md "Who sees and revokes one",
docs/protocol/wire.md "Sequencer: POST /s/control".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from duramen.core.rights.grants import check_token_id
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.issuing import AskedToken, TokenIssuer
from duramen.runtime.credentials.access_tokens.token_stock import TokenStock
from duramen.runtime.credentials.access_tokens.token_text import format_prefix
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import MIB
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.access_tokens import (
    AccessToken,
    check_hash,
    check_note,
    encode_scopes,
    read_scopes,
)
from duramen.wire.nodes.fields import check_text, check_whole
from duramen_sequencer.rights.told_callers import read_caller

LIST_COUNT_MAX: Final = 1_000
_PAGE_BYTES_MAX: Final = 1 * MIB

T = TypeVar("T")


class TokenOperations:
    """What clients ask about access tokens."""

    def __init__(self, store: MetadataStore, paths: Paths, stock: TokenStock) -> None:
        self._issuer = TokenIssuer(store, paths, stock)
        self.by_name = {
            "issue_token": self.issue,
            "list_tokens": self.list,
            "revoke_token": self.revoke,
        }

    async def issue(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Make a token, or find the one that an earlier try of this call made.

        Raises:
            DuramenError: as `TokenIssuer.issue`, or what is wrong with the request.
        """
        caller = read_caller(request)
        asked = AskedToken(
            _take(request, "id", _check_id),
            _take(request, "sha256", check_hash),
            _take(request, "scopes", read_scopes),
            _take(request, "life_s", check_whole),
            _take(request, "note", check_note),
        )
        token = await self._issuer.issue(caller.bearer, asked, _now_s())
        caller.note(f"access token {format_prefix(token.token_id)} made, ends {token.expires_s}")
        return _encode(token)

    async def list(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A page of the tokens that the caller may see.

        Raises:
            DuramenError: as `TokenIssuer.list_for`, or what is wrong with the request.
        """
        caller = read_caller(request)
        start_after = _take(request, "start_after", check_text)
        limit = _take(request, "limit", _check_limit)
        page, has_more = await self._issuer.list_for(caller.bearer, start_after, limit, _now_s())
        tokens: list[dict[str, Any]] = []
        room_bytes = _PAGE_BYTES_MAX
        for token in page:
            row = _encode(token)
            room_bytes -= len(json.dumps(row))
            if room_bytes < 0:
                has_more = True
                break
            tokens.append(row)
        caller.note(f"{len(tokens)} access tokens listed")
        return {"tokens": tokens, "has_more": has_more}

    async def revoke(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Remove a token.

        Raises:
            DuramenError: as `TokenIssuer.revoke`, or what is wrong with the request.
        """
        caller, token_id = read_caller(request), _take(request, "id", _check_id)
        is_changed = await self._issuer.revoke(caller.bearer, token_id, _now_s())
        caller.note(f"access token {format_prefix(token_id)} revoked: {is_changed}")
        return {"changed": is_changed}


def _take(request: Mapping[str, Any], field: str, read: Callable[[Any], T]) -> T:
    try:
        return read(request[field])
    except KeyError:
        raise DuramenError("invalid_argument", f"{field} is missing", field=field) from None
    except (TypeError, ValueError) as error:
        raise DuramenError("invalid_argument", f"{field}: {error}", field=field) from None


def _check_id(value: object) -> str:
    return check_token_id(check_text(value))


def _check_limit(value: object) -> int:
    limit = check_whole(value)
    if not 1 <= limit <= LIST_COUNT_MAX:
        raise ValueError(f"a number from 1 to {LIST_COUNT_MAX} is expected")
    return limit


def _encode(token: AccessToken) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": token.token_id,
        "scopes": encode_scopes(token.scopes),
        "by": str(token.issued_by),
        "created_unix_s": token.created_s,
        "ends_unix_s": token.expires_s,
        "note": token.note,
    }
    return told if token.parent_id is None else {**told, "parent": token.parent_id}


def _now_s() -> int:
    return int(time.time())
