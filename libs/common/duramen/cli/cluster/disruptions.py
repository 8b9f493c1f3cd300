"""`duramen disruption|disruptions`: may this be stopped now, and who may stop something.

Thin over `/v1/cluster/…` on a write proxy's admin port: what it answers is what `--json` prints.
Nothing is decided here.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/disruption.md.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import sys
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from cyclopts import Parameter

from duramen.cli.arguments import AdminUrlOption, BookieText, DataOption, JsonOption
from duramen.cli.command import DATA_DEFAULT, ExitCode, UsageError, call_admin, print_json
from duramen.units import MS, parse_duration_us

_ASK_TIMEOUT_S: Final = 60.0
_PATH: Final = "/v1/cluster/disruptions"


def disruption(
    bookie: BookieText,
    /,
    *,
    kind: Annotated[Literal["restart", "remove"], Parameter(help="what is to be done to it")],
    take: Annotated[
        bool, Parameter(negative="", help="take a grant: nobody else gets one meanwhile")
    ] = False,
    life: Annotated[str | None, Parameter(help="how long the grant lasts, 10s to 10m [5m]")] = None,
    holder: Annotated[str | None, Parameter(help="who takes it [USER@HOST]")] = None,
    token: Annotated[
        str | None, Parameter(help="of a grant that is to last on, or of a question without answer")
    ] = None,
    accept: Annotated[
        list[str] | None,
        Parameter(negative="", help="take it in spite of this reason, such as no_spare"),
    ] = None,
    url: AdminUrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Ask whether a bookie may be restarted or removed now.

    With --take it is granted, too: stop the bookie at once, and end the grant when it serves again
    (`duramen disruptions --end TOKEN`). Taken again with its --token it lasts on.

    Exit codes: 0 allowed, with --take granted; 1 denied, refused or failed; 2 usage.
    """
    if not take:
        if life or holder or token or accept:
            raise UsageError("--life, --holder, --token, --accept are of a grant: add --take")
        path = f"/v1/cluster/bookies/{quote(bookie)}/disruption"
        answer = call_admin(url, data, lambda client: client.get_json(path, {"kind": kind}))
    else:
        question: dict[str, Any] = {
            "token": token or secrets.token_hex(16),
            "target": f"bookie/{bookie}",
            "kind": kind,
            "holder": holder or _name_caller(),
            "accepts": accept or [],
        }
        if life is not None:
            question["life_ms"] = _read_life_ms(life)
        print(f"token {question['token']}", file=sys.stderr)  # also where no answer comes
        answer = call_admin(
            url, data, lambda client: client.post_json(_PATH, question, timeout_s=_ASK_TIMEOUT_S)
        )
    if json:
        print_json(answer)
    else:
        print(f"{bookie}: {kind} {'allowed' if answer['allowed'] else 'denied'}")
        for reason in answer["reasons"]:
            print(f"  {reason['code']} ({reason['count']}): {reason['detail']}")
        for name in answer["logs_at_risk"]:
            print(f"  at risk: {name}")
        if answer["logs_at_risk_count"] > len(answer["logs_at_risk"]):
            print(f"  at risk: {answer['logs_at_risk_count']} logs in all")
        if take and answer["grant"] is not None:
            print(f"  granted for {answer['grant']['life_ms'] / 1_000:g} s from the question on")
    return ExitCode.OK if answer["allowed"] else ExitCode.FAILED


def disruptions(
    *,
    end: Annotated[
        str | None, Parameter(help="end the grant with this token, also a dead holder's")
    ] = None,
    url: AdminUrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Show who may stop what now; nothing else is granted meanwhile.

    Ending a grant whose holder is at work lets somebody else stop something beside it.

    Exit codes: 0 shown, or ended; 1 refused or failed, with --end also: no such grant; 2 usage.
    """
    if end is not None:
        path = f"{_PATH}/{quote(end, safe='')}"
        ended = call_admin(url, data, lambda client: client.delete_json(path))
        if json:
            print_json(ended)
        else:
            print(f"{end}: {'ended' if ended['ended'] else 'there is no such grant'}")
        return ExitCode.OK if ended["ended"] else ExitCode.FAILED
    answer = call_admin(url, data, lambda client: client.get_json(_PATH))
    if json:
        print_json(answer)
    elif not answer["grants"]:
        print("nobody may stop anything now")
    else:
        for grant in answer["grants"]:
            print(_format_grant(grant))
    return ExitCode.OK


def _format_grant(grant: dict[str, Any]) -> str:
    accepted = "".join(f", {code} accepted" for code in grant["accepts"])
    left_s = grant["over_in_ms"] // 1_000
    return (
        f"{grant['token']}: {grant['holder']} may {grant['kind']} {grant['target']}{accepted}; "
        f"over in {left_s} s unless it is renewed"
    )


def _read_life_ms(text: str) -> int:
    try:
        return parse_duration_us(text) // MS
    except ValueError as error:
        raise UsageError(f"--life: {error}") from error


def _name_caller() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a pod's user may have no name
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
