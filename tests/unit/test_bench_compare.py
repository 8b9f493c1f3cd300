"""The verdict of `make bench-compare` and of kept figures: planted faults fail, noise does not.

Pairs are made here, with seeded noise; the loads themselves need a cluster and are not run. Also
the base's way out of git, and what is said where it cannot be had. Source: docs/benchmarks.md.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.cluster import BenchError
from tests.bench.compare import __main__ as command
from tests.bench.compare import kept
from tests.bench.compare.sides import (
    ROOT,
    MisuseError,
    Side,
    check_out,
    explain_locks,
    find_commit,
    find_flags,
    find_roots,
)
from tests.bench.compare.verdict import (
    TOLERANCES,
    Comparison,
    Figure,
    Kind,
    Sample,
    find_unshared,
    format_comparisons,
    judge,
    take_medians,
)
from tests.bench.machine import serve_echo_cpu

SYNCS = Figure("lone", "fsyncs of bookies", "per 1,000", Kind.COUNT, 10)
PACKETS = Figure("lone", "ZooKeeper packets", "per 1,000", Kind.COUNT, 200)
SHARED = Figure("singles", "fsyncs of bookies", "per 1,000", Kind.GROUPED, 10)
CPU = Figure("lone", "CPU of bookie", "µs an append", Kind.CPU, 20)
P50 = Figure("lone", "time of an append, p50", "ms", Kind.TIME)
ECHO = kept.find_control("lone")
QUIET = {SYNCS: 3000.0, PACKETS: 20.0, SHARED: 120.0, CPU: 900.0, ECHO: 150.0, P50: 4.0}


def make_pairs(
    factors: dict[Figure, float], *, noise: float = 0.0, count: int = 5
) -> list[tuple[Sample, Sample]]:
    """`factors` on the tree's side; `noise`: each CPU and time is up to so much more."""
    rng = random.Random(7)

    def disturb(figure: Figure, value: float) -> float:
        is_noisy = figure.kind in (Kind.CPU, Kind.TIME)
        return value * (1 + rng.random() * noise) if is_noisy else value

    return [
        (
            {figure: disturb(figure, value) for figure, value in QUIET.items()},
            {figure: disturb(figure, v * factors.get(figure, 1)) for figure, v in QUIET.items()},
        )
        for _ in range(count)
    ]


def names_beyond(pairs: list[tuple[Sample, Sample]]) -> list[Figure]:
    return [one.figure for one in judge(pairs, TOLERANCES) if one.is_beyond]


# --- Verdict -------------------------------------------------------------------------------------


def test_five_percent_more_syncs_are_beyond_and_two_are_not() -> None:
    assert names_beyond(make_pairs({SYNCS: 1.05})) == [SYNCS]
    assert names_beyond(make_pairs({SYNCS: 1.021})) == [SYNCS]
    assert names_beyond(make_pairs({SYNCS: 1.019})) == []


def test_cpu_has_more_room_and_noise_that_hits_both_does_not_fail() -> None:
    assert names_beyond(make_pairs({CPU: 1.16})) == [CPU]
    assert names_beyond(make_pairs({CPU: 1.14})) == []
    assert names_beyond(make_pairs({}, noise=0.25)) == []


def test_times_are_never_judged() -> None:
    pairs = make_pairs({P50: 10.0}, noise=2.0)
    assert names_beyond(pairs) in ([], [CPU])
    (time,) = [one for one in judge(pairs, TOLERANCES) if one.figure is P50]
    assert time.ratio > 3 and time.tolerance is None and time.verdict == ""


def test_one_bad_pair_of_five_does_not_decide_and_three_do() -> None:
    good, bad = make_pairs({}), make_pairs({SYNCS: 1.5})
    assert names_beyond(bad[:2] + good[2:]) == []
    assert names_beyond(bad[:3] + good[3:]) == [SYNCS]


def test_two_slow_pairs_of_five_do_not_decide_where_all_cost_a_little_more() -> None:
    slow, usual = make_pairs({CPU: 2.0}), make_pairs({CPU: 1.1})
    assert names_beyond(slow[:2] + usual[2:]) == []
    assert names_beyond(slow[:3] + usual[3:]) == [CPU]


def test_a_great_ratio_of_nearly_nothing_is_within_the_slack() -> None:
    assert names_beyond(make_pairs({PACKETS: 4.0})) == []
    assert names_beyond(make_pairs({PACKETS: 51.0})) == [PACKETS]


def test_grouped_counts_may_differ_by_half() -> None:
    assert names_beyond(make_pairs({SHARED: 1.4})) == []
    assert names_beyond(make_pairs({SHARED: 8.0})) == [SHARED]


def test_what_comes_with_time_has_more_room_and_is_not_kept(tmp_path: Path) -> None:
    packets = Figure("lone", "ZooKeeper packets", "per 1,000", Kind.PACED, 200)
    for after, is_beyond in ((1400.0, False), (1600.0, True)):
        (one,) = judge([({packets: 1000.0}, {packets: after})], TOLERANCES)
        assert one.is_beyond == is_beyond
    kept.keep(kept.Result(HERE, {packets: 1000.0, SYNCS: 1.0}), tmp_path / "kept.json")
    assert list(kept.read_kept(tmp_path / "kept.json").figures) == [SYNCS]


def test_less_is_shown_and_never_beyond() -> None:
    (syncs,) = [c for c in judge(make_pairs({SYNCS: 0.5}), TOLERANCES) if c.figure is SYNCS]
    assert syncs.verdict == "less" and not syncs.is_beyond


def test_something_where_there_was_nothing_is_beyond() -> None:
    (one,) = judge([({SYNCS: 0.0}, {SYNCS: 50.0})], TOLERANCES)
    assert one.is_beyond and one.to_json()["ratios"] == [None]
    (one,) = judge([({SYNCS: 0.0}, {SYNCS: 0.0})], TOLERANCES)
    assert one.ratio == 1 and one.verdict == "ok"


def test_ratios_are_pair_by_pair() -> None:
    (one,) = judge([({CPU: 100.0}, {CPU: 110.0}), ({CPU: 200.0}, {CPU: 190.0})], TOLERANCES)
    assert one.ratios == (1.1, 0.95) and one.difference == 0


def test_what_one_side_does_not_tell_is_named() -> None:
    pairs = [({SYNCS: 1.0, CPU: 1.0}, {CPU: 1.0})]
    assert find_unshared(pairs) == [SYNCS]
    assert [one.figure for one in judge(pairs, TOLERANCES)] == [CPU]


def test_the_table_has_counts_first_and_the_verdict_last() -> None:
    lines = format_comparisons(judge(make_pairs({SYNCS: 1.05}), TOLERANCES)).splitlines()
    kinds = [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
    assert kinds == ["kind", "count", "grouped count", "CPU", "control", "time"]
    (syncs,) = [line for line in lines if line.endswith("BEYOND 1.02")]
    assert " 3,000 " in syncs and " 3,150 " in syncs and "1.050" in syncs


def test_the_last_lines_name_what_is_beyond() -> None:
    found = judge(make_pairs({SYNCS: 1.05}), TOLERANCES)
    beyond = [one for one in found if one.is_beyond]
    expected = "beyond: lone, fsyncs of bookies: 1.050 times, at most 1.02\n"
    assert command.format_verdict(beyond) == expected
    assert command.format_verdict([]) == "nothing is beyond its tolerance\n"
    assert isinstance(found[0], Comparison)


# --- The base ------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits of one file and of a lock."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for text in ("old", "new"):
        (folder / "file").write_text(text)
        (folder / "requirements.lock").write_text(
            f"kazoo=={text} \\\n    --hash=sha256:0\nlz4==1\n"
        )
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", text)
    return folder


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Anne", "-c", "user.email=anne@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_a_revision_is_taken_out_beside_the_tree(repository: Path, tmp_path: Path) -> None:
    commit = find_commit("HEAD~1", repository)
    check_out(commit, tmp_path / "base", repository)
    assert (tmp_path / "base/file").read_text() == "old"
    assert not (repository / ".git/worktrees").exists()
    assert (repository / "file").read_text() == "new"


@pytest.mark.parametrize("revision", ["no-such-branch", "--all", "HEAD:file", ""])
def test_a_revision_that_is_none_is_refused_in_clear_words(repository: Path, revision: str) -> None:
    with pytest.raises(MisuseError, match=f"no revision {revision!r}"):
        find_commit(revision, repository)


def test_the_command_ends_with_2_for_an_unknown_revision(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.main(["no-such-branch", "--data", str(tmp_path / "data")]) == 2
    assert capsys.readouterr().err.startswith("no revision 'no-such-branch': ")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("flags", [["--pairs", "0"], ["--seconds", "0"], ["--only", "none"]])
def test_the_command_ends_with_2_for_flags_without_sense(flags: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["HEAD", *flags])


def test_other_packages_are_said(repository: Path, tmp_path: Path) -> None:
    check_out(find_commit("HEAD~1", repository), tmp_path / "base", repository)
    said = explain_locks(tmp_path / "base", repository)
    assert said is not None and "kazoo" in said and "lz4" not in said
    assert explain_locks(repository, repository) is None


def test_a_tree_that_knows_no_security_is_not_told_to_do_without(tmp_path: Path) -> None:
    assert find_flags(ROOT) == ("--security", "none")
    assert find_flags(tmp_path) == ()


def test_the_tree_s_packages_are_found_and_imported_from_it(tmp_path: Path) -> None:
    roots = find_roots(ROOT)
    assert ROOT / "libs/common" in roots and ROOT / "services/bookie" in roots
    assert len(set(roots)) == len(roots)
    side = Side("working tree", ROOT, tmp_path)
    assert side.environment["PYTHONPATH"].split(os.pathsep)[1:] == list(map(str, roots))


def test_a_side_that_would_import_another_tree_is_void(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    with pytest.raises(BenchError, match=r"base: Python finds"):
        Side("base", tree, tmp_path / "side")
    with pytest.raises(BenchError, match="names no packages"):
        find_roots(tmp_path)


def test_every_sync_and_every_byte_is_counted_from_outside(tmp_path: Path) -> None:
    code = (
        "import os; f = os.open('file', os.O_RDWR | os.O_CREAT)\n"
        "os.pwrite(f, b'12345', 0); os.pwritev(f, [b'ab', b'c'], 5)\n"
        "os.fdatasync(f); os.fsync(f); os.fdatasync(f); print(os.getpid())"
    )
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "tests/bench/compare/probe"),
        "DURAMEN_BENCH_COUNTS": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    content = (tmp_path / ran.stdout.strip()).read_bytes()
    assert int.from_bytes(content[:8], "little") == 3
    assert int.from_bytes(content[8:], "little") == 8
    assert (tmp_path / "file").read_bytes() == b"12345abc"


# --- Kept figures --------------------------------------------------------------------------------

HERE = {"cpu": "a processor", "cores": 2, "python": "3.11.7", "kernel": "6"}


def test_kept_figures_come_back_as_they_were_and_times_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    kept.keep(kept.Result(HERE, QUIET), path)
    back = kept.read_kept(path)
    assert back.machine == HERE
    assert back.figures == {figure: v for figure, v in QUIET.items() if figure is not P50}
    assert kept.compare_with_kept(kept.Result(HERE, QUIET), path) == []


@pytest.mark.parametrize(
    ("figure", "factor", "is_worse"),
    [(SYNCS, 1.05, True), (SYNCS, 1.01, False), (CPU, 1.5, True), (CPU, 1.3, False),
     (PACKETS, 4.0, False), (SYNCS, 0.5, False)],
)  # fmt: skip
def test_what_costs_more_than_was_kept_is_said(
    tmp_path: Path, figure: Figure, factor: float, is_worse: bool
) -> None:
    path = tmp_path / "kept.json"
    kept.keep(kept.Result(HERE, QUIET), path)
    now = kept.Result(HERE, QUIET | {figure: QUIET[figure] * factor})
    said = kept.compare_with_kept(now, path)
    assert len(said) == is_worse
    assert all(f"{figure.workload}, {figure.name}: " in line for line in said)


@pytest.mark.parametrize(
    ("dearer", "factor", "is_worse"),
    [(2.0, 2.0, False), (2.0, 2.6, False), (2.0, 3.0, True), (0.5, 0.8, True), (0.5, 0.6, False)],
)
def test_cpu_is_judged_by_what_the_control_takes_on_that_day(
    tmp_path: Path, dearer: float, factor: float, is_worse: bool
) -> None:
    path = tmp_path / "kept.json"
    kept.keep(kept.Result(HERE, QUIET), path)
    now = kept.Result(HERE, QUIET | {ECHO: 150 * dearer, CPU: 900 * factor})
    said = kept.compare_with_kept(now, path)
    assert len(said) == is_worse
    assert all(f"{900 * dearer:,.0f} as the machine is now" in line for line in said)


def test_the_control_counts_the_cpu_of_its_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # as `make bench` has it
    with serve_echo_cpu() as echo:
        (echo_us,) = kept.measure_control(echo, "lone").values()
    assert 1 < echo_us < 1e5


def test_cpu_of_another_machine_is_not_compared_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    kept.keep(kept.Result(HERE, QUIET), path)
    there = kept.Result(HERE | {"cores": 64}, QUIET | {CPU: 9e9, SYNCS: 4000.0})
    assert [line.split(":")[0] for line in kept.compare_with_kept(there, path)] == [
        "lone, fsyncs of bookies"
    ]
    assert "2 cores" in (kept.explain_machines(there, path) or "")
    assert kept.explain_machines(kept.Result(HERE, {}), path) is None


def test_what_was_kept_and_is_not_measured_any_more_is_said(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    kept.keep(kept.Result(HERE, QUIET), path)
    now = kept.Result(HERE, {figure: v for figure, v in QUIET.items() if figure is not SYNCS})
    (said,) = kept.compare_with_kept(now, path)
    assert said == "lone, fsyncs of bookies: kept as 3,000, and not measured now"


def test_medians_are_taken_of_what_every_turn_told() -> None:
    samples = [{SYNCS: 1.0, CPU: 5.0}, {SYNCS: 9.0}, {SYNCS: 2.0, CPU: 1.0}]
    assert take_medians(samples) == {SYNCS: 2.0}


def test_the_kept_file_of_this_tree_can_be_read() -> None:
    figures = kept.read_kept().figures
    loads = {figure.workload for figure in figures}
    assert loads == {"lone", "batches", "singles"}
    assert all(value >= 0 for value in figures.values())
    kinds = {Kind.COUNT, Kind.GROUPED, Kind.CPU, Kind.CONTROL}
    assert kinds == {figure.kind for figure in figures}
    assert loads == {figure.workload for figure in figures if figure.kind is Kind.CONTROL}
