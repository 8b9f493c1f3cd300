"""`duramen token create|list|revoke`: thin over `/v1/access-tokens`.

A token's text is told once: on standard output, or in a file that its owner alone may read. It
never stands in an argument.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

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
from duramen.cli.rights.token_files import open_token_file
from duramen.client.rest_client import RestClient
from duramen.core.rights.grants import check_token_id
from duramen.core.rights.token_scopes import TokenScope, parse_token_scope
from duramen.errors import DuramenError
from duramen.texts import parse_time_ms
from duramen.units import SECOND, parse_duration_us

token_app = App(name="token", help="Make access tokens; list and revoke them.")

_PATH: Final = "/v1/access-tokens"
_PREFIX: Final = "dur1_"
_KIND: Final = "token:"
"""Before the id of a principal, as grants have it."""

_PAGE_COUNT: Final = 1_000
_COLUMNS: Final = ("prefix", "may", "by", "ends", "note")

Row = dict[str, Any]


@token_app.command
def create(
    *,
    scope: Annotated[
        list[str], Parameter(help="VERBS:TARGET, such as append,list:shop/orders; may be repeated")
    ],
    expires: Annotated[str, Parameter(help="how long it is to live, such as 30d; 366d at most")],
    note: Annotated[str, Parameter(help="what it is for; whoever may see the token sees it")] = "",
    out: Annotated[
        Path | None, Parameter(help="a new file for the token, which its owner alone may read")
    ] = None,
    url: UrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False,
) -> int:  # fmt: skip
    """Make an access token, and tell its text once. It may do no more than you, and ends with
    what you show now unless you have `grant` on its targets.

    Exit codes: 0 made; 1 refused or failed; 2 usage.
    """
    scopes = [parse_argument(_parse_scope, text) for text in scope]
    wanted_s = parse_argument(_parse_expires, expires)
    target = find_url(url, data, "write_url")
    asked = {
        "scopes": [{"verbs": sorted(one.verbs), "target": str(one.on)} for one in scopes],
        "expires": expires,
        "note": note,
    }
    if out is None:
        made = call_proxy(target, lambda client: client.post_json(_PATH, asked))
    else:
        with open_token_file(out) as write:
            made = call_proxy(target, lambda client: client.post_json(_PATH, asked))
            write(made.pop("token"))
    if json:
        print_json(made)
    elif out is None:
        print(made["token"])
    say(f"{made['prefix']}: ends {made['ends']}" + ("" if out is None else f", in {out}"))
    if parse_time_ms(made["ends"]) - parse_time_ms(made["created"]) < wanted_s * 1_000:
        say(f"that is sooner than {expires}: what you show ends then, and so does this token")
    return ExitCode.OK


@token_app.command(name="list")
def list_tokens(
    *, url: UrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False
) -> int:
    """List the access tokens that you made, or on whose targets you may grant.

    Exit codes: 0 listed; 1 refused or failed; 2 usage.
    """
    target = find_url(url, data, "write_url")
    found = call_proxy(target, _list_all)
    if json:
        print_json({"tokens": found})
        return ExitCode.OK
    rows = [{**row, "may": _format_scopes(row["scopes"])} for row in found]
    show_rows({"tokens": rows}, "tokens", _COLUMNS, is_json=False, droppable=("by", "note"))
    return ExitCode.OK


@token_app.command
def revoke(
    token: Annotated[str, Parameter(help="its id, dur1_ID or token:ID")], /, *,
    url: UrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False,
) -> int:  # fmt: skip
    """Revoke an access token: within seconds it opens nothing, nor does what was made with it.

    Exit codes: 0 revoked, or it was not there; 1 refused or failed (safe to repeat); 2 usage.
    """
    token_id = parse_argument(check_token_id, token.removeprefix(_KIND).removeprefix(_PREFIX))
    target = find_url(url, data, "write_url")
    answer = call_proxy(target, lambda client: client.delete_json(f"{_PATH}/{token_id}"))
    if json:
        print_json(answer)
    else:
        print(f"{_PREFIX}{token_id}: {'revoked' if answer.get('changed') else 'was not there'}")
    return ExitCode.OK


async def _list_all(client: RestClient) -> list[Row]:
    found: list[Row] = []
    has_more = True
    while has_more:
        query = {"limit": str(_PAGE_COUNT)}
        if found:
            query["start_after"] = str(found[-1]["id"])
        page = await client.get_json(_PATH, query)
        found += page["tokens"]
        has_more = bool(page["has_more"] and page["tokens"])
    return found


def _parse_scope(text: str) -> TokenScope:
    verbs, colon, target = text.partition(":")
    if not colon:
        raise DuramenError(
            "invalid_argument", f"--scope {text!r}: write VERBS:TARGET, such as read,list:shop"
        )
    return parse_token_scope(verbs.split(","), target)


def _parse_expires(text: str) -> int:
    try:
        return parse_duration_us(text) // SECOND
    except ValueError as error:
        raise DuramenError("invalid_argument", f"--expires: {error}") from None


def _format_scopes(scopes: list[Row]) -> str:
    return " ".join(f"{','.join(one['verbs'])}:{one['target']}" for one in scopes)
