"""The summary of a cluster as a tree of lines, for people. Pure.

Plain text, so that it reads the same in a terminal, a pipe and a ticket: a mark (`ok`, `!!`, `??`)
stands where a person looks for what is wrong. Colours are added by who prints it.

Called by `status` and `bundle`. Source: docs/kubernetes/kubectl.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from duramen.units import GIB, agree
from duramen_operator.names import READ_PROXY, SEQUENCER, WRITE_PROXY, ZOOKEEPER
from kubectl_duramen.summary import NOT_HEALTH

_TITLES: Final = {
    SEQUENCER: "sequencers", WRITE_PROXY: "write proxies", READ_PROXY: "read proxies",
    ZOOKEEPER: "ZooKeeper",
}  # fmt: skip
_LOGS_SHOWN_MAX: Final = 20
_GRANTS_SHOWN_MAX: Final = 20
_MARKS: Final = {"True": "ok", "False": "!!", "Unknown": "??"}


class Branch(NamedTuple):
    """A line and what hangs from it."""

    text: str
    children: Sequence[Branch] = ()


def render(summary: Mapping[str, Any]) -> list[str]:
    """The lines of the tree."""
    lines = [_head(summary)]
    parts = [
        _operator(summary["operator"]),
        Branch("conditions", [_condition(c) for c in summary["conditions"]]),
        _bookies(summary),
        *(_service(role, summary["services"][role]) for role in _TITLES),
        _repair(summary["repair"]),
        _logs(summary["logs"]),
        *([_grants(summary["grants"])] if summary["grants"]["objects"] else []),
        *(
            [Branch("archive", [_policy(p) for p in summary["archive"]])]
            if summary["archive"]
            else []
        ),
    ]
    if summary["unknown"]:
        parts.append(
            Branch("not known", [Branch(f"{k}: {v}") for k, v in summary["unknown"].items()])
        )
    lines += _draw(parts, "")
    if summary["trouble"]:
        lines += ["", "to look at:", *(f"  {text}" for text in summary["trouble"])]
    return lines


def _head(summary: Mapping[str, Any]) -> str:
    is_silent = bool(summary["operator"]["why"])
    state = "ready" if summary["ready"] else "NOT KNOWN" if is_silent else "NOT READY"
    paused = ", paused" if summary["paused"] else ""
    image = f", {summary['image']}" if summary["image"] else ""
    return f"LogCluster {summary['namespace']}/{summary['cluster']}: {state}{paused}{image}"


def _operator(operator: Mapping[str, Any]) -> Branch:
    if operator["why"]:
        return Branch(f"!! {operator['why']}")
    return Branch("?? operator: not known" if operator["serves"] is None else "ok operator serves")


def _draw(nodes: Sequence[Branch], indent: str) -> Iterator[str]:
    for number, node in enumerate(nodes):
        is_last = number == len(nodes) - 1
        yield f"{indent}{'└─ ' if is_last else '├─ '}{node.text}"
        yield from _draw(node.children, indent + ("   " if is_last else "│  "))


def _condition(condition: Mapping[str, Any]) -> Branch:
    kind, status = condition["type"], condition["status"]
    mark = _MARKS.get(status, "??")
    if status == "False" and kind in NOT_HEALTH:
        mark = "--"
    why = ": ".join(filter(None, [condition["reason"], condition["message"]]))
    return Branch(f"{mark} {kind} {status}  {why}".rstrip())


def _bookies(summary: Mapping[str, Any]) -> Branch:
    rows = summary["bookies"]
    sets = ", ".join(
        f"{one['bookie_set']} {_number(one['ready'])}/{_number(one['wanted'])}"
        for one in summary["bookie_sets"]
    )
    places: dict[tuple[str, str], list[Branch]] = {}
    for row in rows:
        place = (row["region"] or "no region", row["zone"] or "no zone")
        places.setdefault(place, []).append(_bookie(row))
    by_region: dict[str, list[Branch]] = {}
    for (region, zone), nodes in places.items():
        by_region.setdefault(region, []).append(Branch(f"zone {zone}", nodes))
    regions = [Branch(f"region {region}", nodes) for region, nodes in by_region.items()]
    notes = [Branch(why) for one in summary["bookie_sets"] for why in one["why"]]
    return Branch(f"bookies {sets or len(rows)}", [*notes, *regions])


def _bookie(row: Mapping[str, Any]) -> Branch:
    mark = "!!" if row["why"] else "ok"
    facts = [row["state"] or "state not known"]
    if row["free_bytes"] is not None:
        facts.append(f"{row['free_bytes'] / GIB:,.1f}GiB free")
    if row["duty"] not in (None, "serving"):
        facts.append(row["duty"])
    if row["caught_up"] is False and not row["why"]:
        facts.append("catches up")
    if row["restarts"]:
        facts.append(agree(f"{row['restarts']} restarts"))
    if row["node"]:
        facts.append(f"on {row['node']}")
    notes = [Branch(why) for why in row["why"]]
    if row["drain"] is not None:
        notes.insert(0, Branch(_drain(row["drain"])))
    return Branch(f"{mark} {row['bookie']}  {', '.join(facts)}", notes)


def _drain(drain: Mapping[str, Any]) -> str:
    left = "" if drain["fragments"] is None else agree(f", {drain['fragments']} fragments left")
    size = "" if drain["bytes"] is None else f", {drain['bytes'] / 1e6:,.1f} MB"
    waits = f", waits for {drain['waits_for']}" if drain["waits_for"] else ""
    return f"{drain['duty']}{left}{size}{waits}"


def _service(role: str, service: Mapping[str, Any]) -> Branch:
    if service["external"]:
        return Branch(f"ok {_TITLES[role]}: external servers")
    wanted = service["wanted"] if service["wanted"] is not None else service["pods"]
    is_good = service["ready"] >= wanted and not service["not_ready"]
    restarts = agree(f", {service['restarts']} restarts") if service["restarts"] else ""
    notes = [Branch(f"!! {name} {why}") for name, why in service["not_ready"].items()]
    mark = "ok" if is_good else "!!"
    return Branch(f"{mark} {_TITLES[role]} {service['ready']}/{wanted} ready{restarts}", notes)


def _repair(repair: Mapping[str, Any] | None) -> Branch:
    if repair is None:
        return Branch("?? repair: not known")
    if not repair["fragments"] and not repair["unrepairable"]:
        return Branch("ok repair: nothing waits")
    rest = f", {repair['estimate_s']:,} s left" if repair["estimate_s"] else ""
    size, speed = (repair["left_bytes"] or 0) / 1e6, (repair["bytes_per_s"] or 0) / 1e6
    notes = [
        Branch(f"!! log {one['log_id']} epoch {one['epoch']}: {one['reason']}")
        for one in repair["unrepairable"]
    ]
    todo = agree(f"{repair['fragments']:,} fragments to do")
    text = f"{todo}, {size:,.1f} MB at {speed:,.1f} MB/s{rest}"
    return Branch(f"{'!!' if notes else '--'} repair: {text}", notes)


def _logs(logs: Mapping[str, Any]) -> Branch:
    sick = logs["unhealthy"]
    notes = [
        Branch(f"!! {row['log']}", [Branch(why) for why in row["why"]])
        for row in sick[:_LOGS_SHOWN_MAX]
    ]
    if len(sick) > _LOGS_SHOWN_MAX:
        notes.append(Branch(f"… and {len(sick) - _LOGS_SHOWN_MAX} more: --json"))
    counts = f"{_number(logs['objects'])} Log objects, {_number(logs['open'])} open"
    return Branch(f"{'!!' if sick else 'ok'} logs: {counts}, {len(sick)} not healthy", notes)


def _grants(grants: Mapping[str, Any]) -> Branch:
    sick = grants["unhealthy"]
    notes = [
        Branch(f"!! {row['grant']}", [Branch(why) for why in row["why"]])
        for row in sick[:_GRANTS_SHOWN_MAX]
    ]
    if len(sick) > _GRANTS_SHOWN_MAX:
        notes.append(Branch(f"… and {len(sick) - _GRANTS_SHOWN_MAX} more: --json"))
    text = agree(f"grants: {grants['objects']:,} LogGrant objects, {len(sick)} not there")
    return Branch(f"{'!!' if sick else 'ok'} {text}", notes)


def _policy(policy: Mapping[str, Any]) -> Branch:
    mark = "!!" if policy["why"] else "--" if policy["suspended"] else "ok"
    last = policy["last_run"]
    run = f"last run {last['result'] or ''} {last['finished'] or ''}".rstrip()
    state = "suspended" if policy["suspended"] else run if last["name"] else "no run yet"
    lag = (
        ""
        if policy["lag_segments"] is None
        else agree(f", {policy['lag_segments']} segments behind")
    )
    return Branch(f"{mark} {policy['policy']}: {state}{lag}", [Branch(w) for w in policy["why"]])


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
