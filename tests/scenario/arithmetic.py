"""Arithmetic that a scenario can show without a cluster: covers, write sets, placement.

Plain functions of a command's options; each returns lines and calls the production functions of
`core.quorum` and `core.placement` for every answer.

Called by the interpreter. Source: R12, R20, docs/scenarios.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from duramen.core.placement import (
    Candidate,
    PlacementRule,
    choose_ensemble,
    explain_refusal,
    satisfies,
)
from duramen.core.quorum import Quorum, covers, write_sets
from duramen.ids import BookieId, Incarnation, Member
from tests.scenario.actors import StageRandom
from tests.scenario.formatting import format_members
from tests.scenario.stage import Line


def judge_cover(options: Mapping[str, str]) -> list[Line]:
    """Who is silent in each write set, and whether the responders cover."""
    quorum = _read_quorum(options)
    responders = _members(options["responders"].split(","))
    sets = write_sets(_ensemble(quorum), quorum)
    lines = []
    for members in sets:
        silent = [m for m in members if m not in responders]
        could = "could be" if len(silent) >= quorum.ack_quorum else "cannot be"
        said = f"{format_members(silent)} silent, {could} an ack set" if silent else "all answered"
        lines.append(Line(format_members(members), said))
    verdict = "yes" if covers(responders, sets, quorum.ack_quorum) else "no"
    return [*lines, Line("covers", verdict)]


def list_write_sets(options: Mapping[str, str]) -> list[Line]:
    """The write sets of an ensemble."""
    quorum = _read_quorum(options)
    sets = write_sets(_ensemble(quorum), quorum)
    return [Line(f"entry {index}", format_members(members)) for index, members in enumerate(sets)]


def place_ensemble(options: Mapping[str, str]) -> list[Line]:
    """Choose an ensemble on regions of equal size, some of them lost."""
    quorum = _read_quorum(options)
    rule = PlacementRule(
        int(options.get("min_racks", 1)),
        int(options.get("min_regions", 1)),
        is_strict=options.get("placement", "strict") == "strict",
    )
    lost = options.get("lost", "").split(",")
    count = int(options["per_region"])
    candidates = [
        Candidate(member, region, f"{region}-{member.bookie}")
        for region in options["regions"].split(",")
        if region not in lost
        for member in _members(f"{region}{i + 1:02}" for i in range(count))
    ]
    ensemble = choose_ensemble(candidates, quorum, rule, StageRandom())
    if ensemble is None:
        refusal = explain_refusal(candidates, quorum, rule)
        assert refusal is not None
        return [Line(refusal.reason, refusal.detail)]
    places = {candidate.member: candidate for candidate in candidates}
    counts = Counter(places[member].region for member in ensemble)
    spread = " ".join(f"{region}:{number}" for region, number in sorted(counts.items()))
    is_good = satisfies(ensemble, quorum, rule, places)
    return [
        Line("chosen", f"{spread}, fullest {max(counts.values())}, Qa {quorum.ack_quorum}"),
        Line("rule", "holds for every write set" if is_good else "does not hold"),
    ]


def _read_quorum(options: Mapping[str, str]) -> Quorum:
    write_quorum = int(options["Qw"])
    return Quorum(int(options.get("E", write_quorum)), write_quorum, int(options["Qa"]))


def _ensemble(quorum: Quorum) -> tuple[Member, ...]:
    return _members(f"b{index + 1}" for index in range(quorum.ensemble_size))


def _members(names: Iterable[str]) -> tuple[Member, ...]:
    return tuple(Member(BookieId(name), Incarnation("0001" * 8)) for name in names)
