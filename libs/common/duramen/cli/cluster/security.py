"""`duramen security report`: what the cluster would refuse, while security is turned on.

Thin over `/v1/cluster/would-refuse` on a write proxy's admin port: what it answers is what `--json`
prints; without it a table of who, what and how often. Nothing is decided here.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/turning-on.md "What is judged, and only
counted".
"""

from __future__ import annotations

from typing import Any, Final

from cyclopts import App

from duramen.cli.arguments import AdminUrlOption, DataOption, JsonOption
from duramen.cli.command import DATA_DEFAULT, ExitCode, call_admin, print_json, say, show_rows

security_app: Final = App(name="security", help="Turn security on while the cluster runs.")

_COLUMNS: Final = ("node", "port", "who", "verb", "why", "count", "target", "last")


@security_app.command
def report(
    *, url: AdminUrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False
) -> int:
    """List who would be refused with --security on, by whom, for what and how often.

    Each node with --security migrate counts since it started.

    Exit codes: 0 nobody would, and each node counts; 1 somebody would, a node does not answer or
    does not count, or it failed; 2 usage.
    """
    answer = call_admin(url, data, lambda client: client.get_json("/v1/cluster/would-refuse"))
    rows = [row for node in answer["nodes"] for row in _list_rows(node)]
    blind = [node["node"] for node in answer["nodes"] if node["security"] == "none"]
    if json:
        print_json(answer)
    else:
        show_rows({"rows": rows}, "rows", _COLUMNS, is_json=False)
        for node in answer["nodes"]:
            if node["forgotten"]:
                say(f"{node['node']} had no room for {node['forgotten']} rows more")
        if blind:
            say(f"with --security none, so nothing is counted: {', '.join(blind)}")
        if answer["silent"]:
            say(f"no answer from {', '.join(answer['silent'])}")
    return ExitCode.FAILED if rows or blind or answer["silent"] else ExitCode.OK


def _list_rows(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"node": node["node"], **row} for row in node["rows"] or ()]
