"""`duramen placement check LOG`: does every write set of a log lie where its rule wants it (R20).

Thin over `/v1/cluster/logs/…/placement` on a write proxy's admin port; judged there, from metadata:
what bookies really hold is `duramen verify`'s business.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/placement.md.
"""

from __future__ import annotations

from collections.abc import Iterator
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

    Of a log with flexible copysets it explains the nodeset: who is in it, who may be away, and what
    still works without each rack and region.

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
        for line in _format_nodeset(answer.get("nodeset")):
            print(line)
        fragments = f"{answer['fragments']} fragments of "
        if "nodeset" in answer and not answer["fragments"]:
            fragments = ""
        counts = f"{answer['violations']} violations in {fragments}{answer['segments']} segments"
        print(f"{log}: {agree(counts)}")
    is_refused = answer.get("nodeset", {}).get("refusal") is not None
    return ExitCode.FAILED if answer["violations"] or is_refused else ExitCode.OK


def _format_nodeset(nodeset: dict[str, Any] | None) -> Iterator[str]:
    """Of a flexible log: where its next epoch would lie, and what may fail there."""
    if nodeset is None:
        return
    wanted = ", ".join(f"{name} {nodeset[name]}" for name in ("node", "rack", "region", "extras"))
    yield f"copies of an entry: {wanted}"
    if nodeset["refusal"] is not None:
        yield f"nodeset: none can be chosen: {nodeset['refusal']}"
        return
    members = " ".join(
        f"{node['bookie']}({node['region'] or '?'}/{node['rack'] or '?'}"
        f"{', absent' if node['absent'] else ''})"
        for node in nodeset["nodes"]
    )
    count = len(nodeset["nodes"])
    yield f"nodeset: {agree(f'{count} bookies')}: {members}"
    yield f"may be away: {' or '.join(nodeset['may_be_away']) or 'nobody'}"
    for place in nodeset["places"]:
        yield _format_place(place)
    for waived in nodeset["waived"]:
        yield f"waived: {waived}"
    for reason in nodeset["reopens"]:
        yield f"the open epoch makes way: {reason}"


def _format_place(place: dict[str, Any]) -> str:
    """What still works while a rack or region is away."""
    named = f"{place['kind']} {place['place']}" if place["place"] else "the unknown place"
    left = {
        (True, True): "appends and recovery go on",
        (True, False): "appends go on; what was stored last may lie there alone: no recovery",
        (False, True): "appends wait; recovery goes on",
        (False, False): "appends and recovery wait",
    }[place["appendable"], place["recoverable"]]
    count = place["nodes"]
    return f"without {named} ({agree(f'{count} bookies')}): {left}"


def _format(violation: dict[str, Any]) -> str:
    members = " ".join(
        f"{member['bookie']}({member['region'] or '?'}/{member['rack'] or '?'}"
        f"{', owed' if member['owed'] else ''})"
        for member in violation["write_set"]
    )
    place = f"e{violation['epoch']} from entry {violation['first_entry']}"
    return f"{place}: {members}: {violation['detail']}"
