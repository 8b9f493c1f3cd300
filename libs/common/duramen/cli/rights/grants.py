"""`duramen grant list|give|take`: thin over `/v1/grants`.

A change reads the grants of its scope, adds or leaves out one, and writes them back by the version
that it has read: where somebody else was faster it is done again, so nothing is given back that was
taken meanwhile.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/rights.md "Calls and tools".
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import urlencode

from cyclopts import App, Parameter

from duramen.cli.arguments import DataOption, JsonOption, UrlOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    find_url,
    parse_argument,
    print_json,
    say,
    show_rows,
)
from duramen.cli.logs import call_proxy
from duramen.client.rest_client import RestClient
from duramen.core.rights.grants import EVERYTHING, Grant, is_token_id, parse_grant, parse_scope
from duramen.core.rights.verbs import GrantedRole
from duramen.errors import DuramenError

grant_app = App(name="grant", help="List grants; give and take them.")

_PATH: Final = "/v1/grants"
_TRIES: Final = 5
_COLUMNS: Final = ("who", "role", "scope", "by", "given")
_TOKEN_KIND: Final = "token:"
_TOKEN_PREFIX: Final = f"{_TOKEN_KIND}dur1_"
_MEMBERS: Final = ("who", "role", "scope")

Row = dict[str, Any]

WhoText = Annotated[
    str, Parameter(help="the principal: user:ISSUER/SUBJECT, group:ISSUER/GROUP, token:ID, …")
]
RoleText = Annotated[str, Parameter(help=f"one of {', '.join(GrantedRole)}")]
ScopeText = Annotated[
    str, Parameter(help="*, NAMESPACE, NAMESPACE/PREFIX* or NAMESPACE/LOG; quote a * for the shell")
]


@grant_app.command(name="list")
def list_grants(
    scope: ScopeText = EVERYTHING, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """List the grants within a scope, who gave them and when.

    Exit codes: 0 listed; 1 refused or failed, or not all are understood; 2 usage.
    """
    parse_argument(parse_scope, scope)
    target = find_url(url, data, "write_url")
    seen = call_proxy(target, lambda client: client.get_json(_PATH, {"scope": scope}))
    show_rows(seen, "grants", _COLUMNS, is_json=json)
    strange = seen.get("unreadable") or seen.get("not_understood")
    if strange:
        say(f"not understood, and gives nothing: {strange}")
    return ExitCode.FAILED if strange else ExitCode.OK


@grant_app.command
def give(
    who: WhoText, role: RoleText, scope: ScopeText, /, *, url: UrlOption = None,
    data: DataOption = DATA_DEFAULT, json: JsonOption = False,
) -> int:  # fmt: skip
    """Give a principal a role on a scope, or find that it has that grant.

    Exit codes: 0 given or there; 1 refused or failed; 2 usage.
    """
    grant = _parse_grant(who, role, scope)
    target = find_url(url, data, "write_url")
    is_new = call_proxy(target, lambda client: _change(client, grant, is_wanted=True))
    _tell(grant, "given" if is_new else "is there already", is_new=is_new, is_json=json)
    return ExitCode.OK


@grant_app.command
def take(
    who: WhoText, role: RoleText, scope: ScopeText, /, *, url: UrlOption = None,
    data: DataOption = DATA_DEFAULT, json: JsonOption = False,
) -> int:  # fmt: skip
    """Take a grant away. What its principal has by other grants stays.

    Exit codes: 0 taken, or it was not there; 1 refused or failed; 2 usage.
    """
    grant = _parse_grant(who, role, scope)
    target = find_url(url, data, "write_url")
    is_new = call_proxy(target, lambda client: _change(client, grant, is_wanted=False))
    _tell(grant, "taken" if is_new else "was not there", is_new=is_new, is_json=json)
    return ExitCode.OK


def _parse_grant(who: str, role: str, scope: str) -> Grant:
    """A token may be named as a list of tokens names it."""
    token_id = who.removeprefix(_TOKEN_PREFIX)
    if is_token_id(token_id):  # a whole token stays what it is: it is not told when it is refused
        who = f"{_TOKEN_KIND}{token_id}"
    grant: Grant = parse_argument(lambda text: parse_grant(who, role, text), scope)
    return grant


async def _change(client: RestClient, grant: Grant, *, is_wanted: bool) -> bool:
    """Whether this call gave it, or took it.

    Raises:
        DuramenError, PeerError: as `RestClient`.
    """
    row, scope = _spell(grant), str(grant.scope)
    for is_last in (*(False,) * (_TRIES - 1), True):
        seen = await client.get_json(_PATH, {"scope": scope})
        if seen.get("unreadable"):
            # A change would take all that somebody may still mend.
            raise DuramenError("metadata_unavailable", f"the grants: {seen['unreadable']}")
        rows = [{name: each[name] for name in _MEMBERS} for each in seen["grants"]]
        if (row in rows) == is_wanted:
            return False
        wanted = [*rows, row] if is_wanted else [each for each in rows if each != row]
        try:
            await client.change_json("PUT", f"{_PATH}?{_query(scope, seen)}", {"grants": wanted})
        except DuramenError as error:
            if error.code != "config_conflict" or is_last:
                raise
        else:
            return True
    raise AssertionError("the last try returns or raises")


def _query(scope: str, seen: dict[str, Any]) -> str:
    return urlencode({"scope": scope, "version": seen["version"]})


def _spell(grant: Grant) -> Row:
    return {"who": str(grant.who), "role": grant.role.value, "scope": str(grant.scope)}


def _tell(grant: Grant, what: str, *, is_new: bool, is_json: bool) -> None:
    if is_json:
        print_json({**_spell(grant), "changed": is_new})
    else:
        print(f"{grant}: {what}")
