"""Schedules follow from their seed alone; summaries count what happened and call the rest void.

Pure: no process is started. Faults and acknowledgements are made up, times in seconds.
"""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.chaos.delivery import Delivered
from tests.chaos.history import Line
from tests.chaos.judge import Verdict, Violation
from tests.chaos.layout import FLAT, REGIONS, Layout
from tests.chaos.report import Summary, spread, summarize
from tests.chaos.schedule import AWAY_KIND, AWAY_S, OWNER, draw_steps, list_kinds


def fault(t0: float, t1: float, kind: str = "kill bookie", **evidence: Any) -> Line:
    evidence = evidence or {"died": True}
    return {"t0_ns": int(t0 * 1e9), "t1_ns": int(t1 * 1e9), "kind": kind, "evidence": evidence}


def verdict(*ack_times: float, reads: int = 60, violations: tuple[Violation, ...] = ()) -> Verdict:
    times = array("q", [int(t * 1e9) for t in ack_times])
    counts = dict.fromkeys(("fail", "info", "info_found", "tail", "truncate"), 0)
    counts |= {"ok": len(times), "read": reads}
    return Verdict("log", list(violations), counts, {}, times, 3)


def busy(seconds: int, *silences: tuple[float, float]) -> Verdict:
    """Ten acknowledgements a second, but for the silences."""
    times = [n / 10 for n in range(seconds * 10)]
    return verdict(*(t for t in times if not any(a < t < b for a, b in silences)))


def put_together(
    folder: Path,
    verdicts: list[Verdict],
    faults: list[Line],
    seconds: float = 60,
    *,
    layout: Layout = FLAT,
    only: tuple[str, ...] = (),
    turns: bool = False,
) -> Summary:
    path = folder / "faults.jsonl"
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in faults))
    return summarize(verdicts, path, seconds, layout=layout, only=only, turns=turns)


FAULTS = [
    fault(10, 12),
    fault(20, 25, "pause sequencer", stopped=True, owned=4),
    fault(30, 35, "cut session", withheld=3, session_expired=True),
    fault(40, 42),
]


def test_a_run_with_load_and_faults_is_good(tmp_path: Path) -> None:
    summary = put_together(tmp_path, [busy(60, (10, 11.5), (20, 26))], FAULTS)
    assert summary.is_good, summary.format()
    assert summary.faults == {"kill bookie": 2, "pause sequencer": 1, "cut session": 1}
    assert summary.stalls_s["pause sequencer"] == [6.0]
    assert summary.stalls_s["kill bookie"] == [1.5, 0.1]
    assert "nothing lost" in summary.format()


def test_a_violation_is_no_good_run(tmp_path: Path) -> None:
    bad = verdict(*(n / 10 for n in range(600)), violations=(Violation("D1", "log", "gone"),))
    summary = put_together(tmp_path, [bad], FAULTS)
    assert not summary.is_good and not summary.void and "VIOLATION D1 log: gone" in summary.format()


@pytest.mark.parametrize(
    ("verdicts", "faults"),
    [
        ([verdict(*range(60))], FAULTS),
        ([verdict(*(n / 10 for n in range(600)), reads=3)], FAULTS),
        ([busy(60)], FAULTS[:3]),
        ([busy(60)], [fault(t, t + 2) for t in range(10, 50, 5)]),
        ([busy(60)], [*FAULTS[:3], fault(40, 42, died=False)]),
        ([busy(60)], [*FAULTS[:3], fault(40, 42, "pause bookie", stopped=False)]),
        ([busy(60)], [*FAULTS[:3], fault(40, 42, "cut bookie", withheld=0)]),
        ([busy(60)], [*FAULTS[:3], fault(40, 42, "kill sequencer", died=True, owned=0)]),
        (
            [busy(60)],
            [*FAULTS[:3], fault(40, 47, "cut session", withheld=1, session_expired=False)],
        ),
        ([busy(60, (35, 45))], FAULTS),
    ],
    ids=[
        "too few appends", "too few reads", "too few faults", "only kills", "survived",
        "not paused", "held nothing back", "struck an idle sequencer", "the session lived on",
        "nothing was acknowledged before it",
    ],
)  # fmt: skip
def test_a_run_that_proves_nothing_is_void(
    verdicts: list[Verdict], faults: list[Line], tmp_path: Path
) -> None:
    summary = put_together(tmp_path, verdicts, faults)
    assert summary.void and not summary.is_good


def test_the_time_of_what_turns_is_not_for_other_faults(tmp_path: Path) -> None:
    turn = fault(25, 58, "turn authority", done=True)
    few = [fault(10, 12), fault(20, 22, "pause bookie", stopped=True)]
    assert put_together(tmp_path, [busy(60)], [*few, turn]).faults["turn authority"] == 1
    told = put_together(tmp_path, [busy(60)], [*few, turn]).void
    assert not any("effective faults" in reason for reason in told)
    idle = [*few, fault(25, 58, "turn authority", done=False)]
    told = put_together(tmp_path, [busy(60)], idle).void
    assert any("2 effective faults" in reason for reason in told)


REGION_FAULTS = [
    fault(10, 40, "kill region"),
    fault(60, 70, "pause region", stopped=True, owned=1),
    fault(90, 100, "cut region", withheld=3),
    fault(120, 140, "disk wipe", done=True),
    fault(160, 190, "drain bookie", done=True),
]


def test_a_run_on_regions_has_to_lose_a_region_and_a_disk_and_to_drain(tmp_path: Path) -> None:
    verdicts = [busy(240), verdict(reads=60)]
    assert put_together(tmp_path, verdicts, REGION_FAULTS, 240, layout=REGIONS).is_good
    for missing in range(len(REGION_FAULTS)):
        faults = [line for index, line in enumerate(REGION_FAULTS) if index != missing]
        assert put_together(tmp_path, verdicts, faults, 240, layout=REGIONS).void, missing


@pytest.mark.parametrize("kind", ["disk wipe", "disk flips", "drain bookie"])
def test_a_fault_of_a_disk_that_was_not_done_is_none(kind: str, tmp_path: Path) -> None:
    faults = [fault(10, 12, kind, done=False)]
    summary = put_together(tmp_path, [busy(60)], faults, layout=REGIONS, only=(kind,))
    assert summary.void and summary.idle_faults == {kind: 1}
    faults = [fault(10, 12, kind, done=True)]
    assert put_together(tmp_path, [busy(60)], faults, layout=REGIONS, only=(kind,)).is_good


def test_a_run_of_some_kinds_has_to_meet_each_of_them(tmp_path: Path) -> None:
    only = ("kill region", "disk wipe")
    faults = [REGION_FAULTS[0]]
    summary = put_together(tmp_path, [busy(60)], faults, layout=REGIONS, only=only)
    assert summary.void == ["no effective fault of: disk wipe"]


def test_faults_that_overlap_are_not_measured(tmp_path: Path) -> None:
    faults = [*FAULTS, fault(41, 50, "pause bookie", stopped=True)]
    stalls = put_together(tmp_path, [busy(60)], faults).stalls_s
    assert "pause bookie" not in stalls and len(stalls["kill bookie"]) == 1


def test_a_silence_belongs_to_the_fault_that_caused_it(tmp_path: Path) -> None:
    faults = [*FAULTS[:3], fault(40, 42), fault(43, 44, "pause bookie", stopped=True)]
    stalls = put_together(tmp_path, [busy(60, (42.9, 50))], faults).stalls_s
    assert max(stalls["kill bookie"]) < 0.2 and stalls["pause bookie"][0] > 7


def test_a_distribution_is_by_nearest_rank() -> None:
    assert spread([]) is None
    assert spread([3, 1, 2]) == {"count": 3, "median": 2, "p90": 3, "max": 3}
    assert spread(list(range(1, 21))) == {"count": 20, "median": 10.5, "p90": 18, "max": 20}


def test_the_seed_decides_the_schedule() -> None:
    first, again, other = (list(islice(draw_steps(seed), 50)) for seed in (7, 7, 8))
    assert first == again != other


def test_every_kind_of_fault_comes_and_short_runs_see_all_actions() -> None:
    for seed in range(20):
        steps = list(islice(draw_steps(seed), 60))
        assert {step.action for step in steps[:3]} == {"kill", "pause", "cut"}
        assert {step.name for step in steps} == set(list_kinds(FLAT))
        assert not steps[0].overlaps and any(step.overlaps for step in steps)
        assert all(0 <= step.duration_s <= 20 for step in steps)


@pytest.mark.parametrize("layout", [FLAT, REGIONS], ids=lambda layout: layout.name)
def test_what_turns_comes_alone_and_where_it_is_wanted(layout: Layout) -> None:
    for seed in range(20):
        steps = list(islice(draw_steps(seed, layout, turns=True), 140))
        assert {step.name for step in steps} == set(list_kinds(layout, turns=True))
        turns = [step for step in steps if step.action == "turn"]
        assert all(step.is_alone and not step.overlaps for step in turns)
        revoked = {step.kind: step.targets for step in turns if step.kind.startswith("revoked ")}
        assert revoked["revoked sequencer"] == (OWNER,) and len(revoked) == 4
        assert all(len(targets) == 1 for targets in revoked.values())
        assert not any(step.action == "turn" for step in islice(draw_steps(seed, layout), 140))


def test_on_regions_every_kind_comes_and_a_region_is_the_first_to_be_killed() -> None:
    for seed in range(20):
        steps = list(islice(draw_steps(seed, REGIONS), 100))
        assert {step.action for step in steps[:5]} == {"kill", "pause", "cut", "disk", "drain"}
        assert {step.name for step in steps} == set(list_kinds(REGIONS))
        region = next(step for step in steps if step.action == "kill")
        assert region.kind == "region" and 10 <= region.duration_s <= 30
        regions = {REGIONS.place(node_id)[0] for node_id in region.targets}
        assert len(regions) == 1 and len(region.targets) == 7


def test_who_holds_a_disk_in_hands_is_alone() -> None:
    for seed in range(20):
        steps = list(islice(draw_steps(seed, REGIONS), 100))
        assert not any(step.overlaps for step in steps if step.is_alone)
        assert not any(after.overlaps for step, after in pairwise(steps) if step.is_alone)
        assert any(step.overlaps for step in steps)


@pytest.mark.parametrize("layout", [FLAT, REGIONS], ids=lambda layout: layout.name)
def test_in_a_long_run_zookeeper_goes_away_alone_and_first_of_what_is_killed(
    layout: Layout,
) -> None:
    for seed in range(20):
        steps = list(islice(draw_steps(seed, layout, is_long=True), 120))
        assert {step.name for step in steps} == set(list_kinds(layout, is_long=True))
        away = [index for index, step in enumerate(steps) if step.name == AWAY_KIND]
        assert len(away) >= 2
        assert steps[away[0]] == next(step for step in steps if step.action == "kill")
        for index in away[:-1]:
            assert steps[index].duration_s == AWAY_S and steps[index].is_alone
            assert steps[index].targets == tuple(layout.ids("zookeeper"))
            assert not steps[index].overlaps and not steps[index + 1].overlaps
        assert AWAY_KIND not in {s.name for s in islice(draw_steps(seed, layout), 120)}


def test_a_short_run_meets_a_time_without_zookeeper_where_that_is_named() -> None:
    steps = islice(draw_steps(1, only=(AWAY_KIND,)), 3)
    assert [step.name for step in steps] == [AWAY_KIND] * 3


def test_a_long_run_has_to_have_been_without_zookeeper(tmp_path: Path) -> None:
    faults = [
        fault(10 + n * 12, 12 + n * 12, kind, died=True, stopped=True, withheld=1)
        for n, kind in enumerate(["kill bookie", "pause bookie", "cut bookie"] * 16)
    ]
    load = [busy(600), verdict(reads=600)]
    assert put_together(tmp_path, load, faults, 599).is_good
    assert put_together(tmp_path, load, faults, 600).void == [f"no effective fault of: {AWAY_KIND}"]
    with_it = [*faults[:-1], fault(594, 599, AWAY_KIND, died=True)]
    assert put_together(tmp_path, load, with_it, 600).is_good
    told = put_together(tmp_path, load, with_it, 600, turns=True)
    assert told.void == ["no effective fault of: turn"], "with security something has to turn"
    turned = [*with_it[:-2], fault(580, 590, "turn leaves", done=True), with_it[-1]]
    assert put_together(tmp_path, load, turned, 600, turns=True).is_good


def test_what_waiters_got_is_told(tmp_path: Path) -> None:
    delivered = Delivered(spans_s={"pause bookie": [0.1, 0.2]})
    path = tmp_path / "faults.jsonl"
    path.write_bytes(b"")
    summary = summarize([busy(60)], path, 60, delivered=delivered)
    found = summary.to_json()["delivered"]["spans_s"]
    assert found == {"pause bookie": {"count": 2, "p50": 0.1, "p99": 0.2, "max": 0.2}}
    assert "delivered to who waits" in summary.format()
    assert summarize([busy(60)], path, 60).to_json()["delivered"] is None


def test_a_region_has_a_third_of_everything() -> None:
    regions = [set(REGIONS.members_of(region)) for region in REGIONS.regions]
    assert set.union(*regions) == REGIONS.everybody() and sum(map(len, regions)) == 21
    assert {len(region) for region in regions} == {7}
    racks = {REGIONS.place(bookie) for bookie in REGIONS.ids("bookie")}
    assert len(racks) == 9


def test_a_schedule_can_be_of_some_kinds_only() -> None:
    steps = islice(draw_steps(1, only=("kill sequencer", "pause bookie")), 20)
    assert Counter(step.name for step in steps) == {"kill sequencer": 10, "pause bookie": 10}
