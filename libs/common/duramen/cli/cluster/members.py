"""`duramen members`: which sequencers answer, as each of them sees the others.

Thin over `/v1/cluster/members` on a write proxy's admin port: what it answers is what `--json`
prints; without it a table of who says what of whom. Nothing is decided here.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/members.md "To see it".
"""

from __future__ import annotations

from typing import Any, Final

from duramen.cli.arguments import AdminUrlOption, DataOption, JsonOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    call_admin,
    print_json,
    say,
    show_rows,
)

_COLUMNS: Final = ("id", "state", "incarnation", "said_by")


def members(
    *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False
) -> int:
    """List which sequencers answer, as each of them sees the others.

    One line for each thing that is said of a sequencer, with those who say it.

    Exit codes: 0 all are alive to all; 1 somebody is not, does not answer, or it failed; 2 usage.
    """
    answer = call_admin(url, data, lambda client: client.get_json("/v1/cluster/members"))
    rows = _make_rows(answer)
    if json:
        print_json(answer)
    else:
        show_rows({"members": rows}, "members", _COLUMNS, is_json=False)
        mute = [view["sequencer"] for view in answer["views"] if view["members"] is None]
        if mute:
            say(f"without gossip: {', '.join(mute)}")
        if answer["silent"]:
            say(f"no answer from {', '.join(answer['silent'])}")
    is_well = not answer["silent"] and all(row["state"] == "alive" for row in rows)
    return ExitCode.OK if is_well else ExitCode.FAILED


def _make_rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each thing that is said of a member, with who says it."""
    said: dict[tuple[str, str, int], list[str]] = {}
    for view in answer["views"]:
        for member in view["members"] or ():
            word = (member["id"], member["state"], member["incarnation"])
            said.setdefault(word, []).append(view["sequencer"])
    return [
        {"id": name, "state": state, "incarnation": number, "said_by": ", ".join(who)}
        for (name, state, number), who in sorted(said.items())
    ]
