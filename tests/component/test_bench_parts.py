"""The parts of the bookie's bench that made-up numbers can judge: ratios, bounds, what is void.

`test_bench_commands` runs the whole, whose figures nobody can foretell. Here they are foretold: a
journal that refuses, a bookie that answers short, a replay that lost an entry, a disk that is full.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

import pytest

from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Incarnation
from duramen.runtime.http_client import PeerClient
from duramen.units import KIB, MIB
from duramen.wire.bookie_calls import ReadAnswer, pack_read_answers, pack_statuses
from duramen_bookie.offline import bench, bench_bookie, bench_journal, bench_replay
from duramen_bookie.offline.bench_machine import BareLoop, BenchError, at_least, at_most

HANG_S = 30.0
"""A bound on a hang, not a promise."""


def test_a_target_is_a_floor_or_a_ceiling() -> None:
    assert at_least(2.0).is_reached_by(3.0) and not at_least(2.0).is_reached_by(1.0)
    assert at_most(2.0).is_reached_by(1.0) and not at_most(2.0).is_reached_by(3.0)


def test_the_bare_loop_stays_in_its_file(tmp_path: Path) -> None:
    loop = BareLoop(tmp_path / "bare", 16 * KIB)
    for _ in range(3):
        loop.commit([bytes(12 * KIB)])
    loop.close()
    assert (tmp_path / "bare").stat().st_size == 16 * KIB


def test_the_ratio_is_ours_to_the_bare_loops() -> None:
    def turn(mb_per_s: float) -> bench_journal.Slice:
        return bench_journal.Slice(1.0, 0.1, 10, 5, int(mb_per_s * 1_000_000))

    turns = {"journal": [turn(30)], "writer": [turn(60)], "bare": [turn(120)]}
    figures = bench_journal._summarize_writing(bench_journal.WORKLOADS[0], turns)
    values = {figure.name: figure.value for figure in figures}
    assert values["ratio_to_bare_loop"] == 0.25
    assert values["writer_ratio_to_bare_loop"] == 0.5


async def fail_to_write(folder: Path) -> None:
    side = bench_journal._JournalSide(folder, 1 * MIB)
    workload = bench_journal.WORKLOADS[2]
    record: Any = object()
    side._journal.append_nowait = lambda *_: False  # type: ignore[method-assign]  # a full one
    try:
        async with asyncio.timeout(HANG_S):
            await side.write(bench_journal.Load(workload, record, 1), 0.01)
    finally:
        await side.close()


def test_a_journal_that_refuses_ends_the_bench(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="refused a record"):
        asyncio.run(fail_to_write(tmp_path / "journal"))


def test_reads_that_give_too_little_do_not_count() -> None:
    entries = [(EntryId(0), bytes(100))]
    answer = ReadAnswer(BookieStatus.OK, EntryId(0), EntryId(0), False, entries)
    packed = pack_read_answers([answer])
    bench_bookie._check_reads([packed], 100)
    with pytest.raises(BenchError, match="gave 100 bytes of 200"):
        bench_bookie._check_reads([packed], 200)


async def add_to_a_bookie_that_refuses(folder: Path) -> None:
    client = PeerClient()
    bare = BareLoop(folder / "bare", 1 * MIB)
    server: Any = object()
    measuring = bench_bookie._Bench(client, server, server, bare, Incarnation("ab" * 16))
    statuses = pack_statuses([BookieStatus.OVERLOADED] * 16)

    async def answer_all(*_: Any) -> Any:
        return bench_bookie.Posted(1.0, 0.1, [0.1], [statuses])

    async def answer_adds(*_: Any) -> Any:
        return await answer_all(), 1, 16 * KIB

    instead: Any = measuring  # of two servers
    instead._post, instead._add_to_bookie = answer_all, answer_adds
    try:
        await measuring._add(bench_bookie.WORKLOADS[1], 1, is_bookie_first=True)
    finally:
        bare.close()
        await client.close()


def test_adds_that_a_bookie_refused_do_not_count(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="the bookie answered"):
        asyncio.run(add_to_a_bookie_that_refuses(tmp_path))


def test_each_round_of_replay_reads_what_was_written_and_no_more(tmp_path: Path) -> None:
    figures = bench_replay.measure_replay(tmp_path / "journal", 4 * KIB, 64 * KIB, 1 * MIB)
    assert {figure.name: figure.value for figure in figures}["entries"] == 16
    assert len(list((tmp_path / "journal").glob("*.dj"))) == 1, "what starts added is gone"


def test_a_replay_that_lost_entries_does_not_count(tmp_path: Path) -> None:
    bench_replay.measure_replay(tmp_path / "journal", 4 * KIB, 64 * KIB, 1 * MIB)
    with pytest.raises(BenchError, match="replay found"):
        bench_replay._replay(tmp_path / "journal", 17, 1 * MIB)


def test_a_run_that_failed_is_no_success_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path, **_: object) -> Any:
        (folder / "left").write_bytes(b"much")
        raise OSError("the disk is full")

    monkeypatch.setattr(bench, "measure_limits", fail)
    options = argparse.Namespace(dir=tmp_path, seconds=1.0, json=False)
    assert bench._run("journal", options, lambda _folder: (1.0, [])) == 1
    assert "void: the disk is full" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
