"""The control operations `list_grants` and `replace_grants`: JSON in, JSON out.

Called by `control`. Source: docs/protocol/rights.md "Calls and tools", docs/protocol/wire.md
"Sequencer: POST /s/control".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duramen.core.rights.changes import GRANT_COUNT_MAX
from duramen.core.rights.grants import GivenGrant, Grant, parse_grant, parse_scope
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.token_stock import TokenStock
from duramen.runtime.rights.grant_changes import GrantChanges, SeenGrants
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.metadata_json import Paths
from duramen_sequencer.log_changes import read_nonce
from duramen_sequencer.rights.told_callers import read_caller

_MEMBERS: Final = ("who", "role", "scope")


class GrantOperations:
    """What clients ask about grants."""

    def __init__(self, store: MetadataStore, paths: Paths, stock: TokenStock) -> None:
        self._changes = GrantChanges(store, paths, stock)
        self.by_name = {"list_grants": self.list, "replace_grants": self.replace}

    async def list(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The grants within a scope.

        Raises:
            DuramenError: as `GrantChanges.list_within`, or what is wrong with the request.
        """
        scope = parse_scope(_read_text(request, "scope"))
        return _encode(await self._changes.list_within(scope, read_caller(request).bearer))

    async def replace(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Have these grants within a scope, and no others.

        Raises:
            DuramenError: as `GrantChanges.replace_within`, or what is wrong with the request.
        """
        caller, scope = read_caller(request), parse_scope(_read_text(request, "scope"))
        version = request.get("version")
        if type(version) is not int or version < 0:
            raise _refuse("version", "a whole number ≥ 0 is expected: that of the list you saw")
        wanted = tuple(map(_read_grant, _read_rows(request, "grants")))
        strange = _read_rows(request, "not_understood") if "not_understood" in request else None
        seen = await self._changes.replace_within(
            scope, wanted, caller.bearer,
            version=version, nonce=read_nonce(request), strange=strange,
        )  # fmt: skip
        caller.note(f"grants of {scope} are {len(wanted)} now, version {seen.version}")
        return _encode(seen)


def _read_rows(request: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    rows = request.get(field)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _refuse(field, "a list of objects is expected")
    if len(rows) > 2 * GRANT_COUNT_MAX:
        raise _refuse(field, f"a cluster has {GRANT_COUNT_MAX} grants at most: give to groups")
    return rows


def _read_grant(row: Mapping[str, Any]) -> Grant:
    for member in row:
        if member not in _MEMBERS:
            raise DuramenError("unknown_field", f"a grant has no member {member!r}", field="grants")
    try:
        return parse_grant(*(_read_text(row, member) for member in _MEMBERS))
    except DuramenError as error:
        raise _refuse("grants", f"{error.field}: {error.detail}") from None


def _read_text(request: Mapping[str, Any], field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str):
        raise _refuse(field, "a text is expected")
    return value


def _encode(seen: SeenGrants) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "version": seen.version,
        "grants": [_encode_row(given) for given in seen.grants],
    }
    if seen.not_understood:
        answer["not_understood"] = list(seen.not_understood)
    if seen.unreadable is not None:
        answer["unreadable"] = seen.unreadable
    return answer


def _encode_row(given: GivenGrant) -> dict[str, Any]:
    scope, who, role = given.grant
    told = {"who": str(who), "role": role.value, "scope": str(scope), "by": str(given.by)}
    return {**told, "given_unix_ms": given.given_unix_ms}


def _refuse(field: str, detail: str) -> DuramenError:
    return DuramenError("invalid_argument", f"{field}: {detail}", field=field)
