"""`duramen placement check LOG`: does every write set of a log lie where its rule wants it (R20).

Thin over `/v1/cluster/logs/…/placement` on a write proxy's admin port; judged there, from metadata:
what bookies really hold is `duramen verify`'s business.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/placement.md.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from cyclopts import App

from duramen.cli.arguments import AdminUrlOption, DataOption, JsonOption, LogText
from duramen.cli.command import DATA_DEFAULT, ExitCode, call_admin, parse_argument, print_json
from duramen.texts import parse_log
from duramen.units import agree

placement_app = App(name="placement", help="Check where the copies of a log lie.")


@placement_app.command
def check(
    log: LogText, /, *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Check every fragment of every live segment against the log's racks and regions.

    Exit codes: 0 all is well; 1 something breaks the rule, or refused or failed; 2 usage.
    """
    namespace, name = parse_argument(parse_log, log)
    path = f"/v1/cluster/logs/{quote(namespace)}/{quote(name)}/placement"
    answer = call_admin(url, data, lambda client: client.get_json(path))
    if json:
        print_json(answer)
    else:
        for violation in answer["shown"]:
            print(_format(violation))
        counts = (
            f"{answer['violations']} violations in {answer['fragments']} fragments of "
            f"{answer['segments']} segments"
        )
        print(f"{log}: {agree(counts)}")
    return ExitCode.FAILED if answer["violations"] else ExitCode.OK


def _format(violation: dict[str, Any]) -> str:
    members = " ".join(
        f"{member['bookie']}({member['region'] or '?'}/{member['rack'] or '?'}"
        f"{', owed' if member['owed'] else ''})"
        for member in violation["write_set"]
    )
    place = f"e{violation['epoch']} from entry {violation['first_entry']}"
    return f"{place}: {members}: {violation['detail']}"
