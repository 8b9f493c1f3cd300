"""`make bench-peers` with scripts of this test: turns, ratios, what is set aside, what is missing.

The folder of scripts is made here and starts nothing but a sleeping process, which has to be gone
at the end; our own rows are made here, too. Source: docs/benchmarks.md "Beside real peers".
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.bench.cluster import BenchError
from tests.bench.peers import __main__ as command
from tests.bench.peers import scripts as scripts_module
from tests.bench.peers.rows import OWN, Row, read_row, read_rows, sift
from tests.bench.peers.scripts import PeerScripts
from tests.bench.peers.table import Comparison, compare, format_comparisons

_GROUP = """#!/bin/bash
echo "$1 $2 $SECS $REPS" >> "$PEERS/calls"
sleep 600 & echo $! > "$PEERS/$1.pid"
cat "$(dirname $0)/$1.rows" >> "$RES"
[ -z "$HANGS" ] || wait
kill $(cat "$PEERS/$1.pid"); rm "$PEERS/$1.pid"
"""
_PEER = """#!/bin/bash
[ -f "$PEERS/NAME.pid" ] || exit 0
kill $(cat "$PEERS/NAME.pid"); rm "$PEERS/NAME.pid"
"""
_INSTALL = """#!/bin/bash
echo "install $1" >> "$PEERS/calls"
"""


def make_line(peer: str, workload: str, **fields: Any) -> dict[str, Any]:
    """A line as the scripts write it: 1,000 records a second, 1 ms of servers' CPU for each."""
    return {
        "peer": peer, "cls": "D2", "wl": workload, "size": 1024, "recs": 8_000, "rec_s": 1_000.0,
        "MB_s": 1.024, "srv_cpu": 8.0, "cli_cpu": 1.0, "other_cpu": 0.1, "wall": 9.0, **fields,
    }  # fmt: skip


def make_rows(*lines: dict[str, Any]) -> list[Row]:
    return [read_row(line) for line in lines]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Scripts of two peers: one has two ways of saturation, one promises less."""
    made = tmp_path / "scripts"
    made.mkdir()
    rows = {
        "kafka": [
            make_line("kafka", "W1-tuned", rec_s=50_000.0, srv_cpu=4.0),
            make_line("kafka", "W1-default", rec_s=10_000.0),
            make_line("kafka", "W1b", p50=2.0, p99=4.0),
        ],
        "redis": [make_line("redis", "W1b", cls="D1", p50=0.5, p99=0.9)],
    }
    for name, text in (("group", _GROUP), ("install", _INSTALL)):
        (made / f"{name}.sh").write_text(text)
    for peer, lines in rows.items():
        (made / f"{peer}.rows").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (made / f"{peer}.sh").write_text(_PEER.replace("NAME", peer))
    for script in made.glob("*.sh"):
        script.chmod(0o755)
    return made


def own_rows(_cluster: object, seconds: int) -> Iterator[Row]:
    assert seconds == 3
    yield from make_rows(
        make_line(OWN, "W1-sdk", rec_s=75_000.0, srv_cpu=2.0),
        make_line(OWN, "W1b-rest", p50=3.0, p99=5.0),
    )


def fake_cluster(place: Path) -> AbstractContextManager[object]:
    place.mkdir()
    return nullcontext(object())


def find(found: list[Comparison], workload: str, name: str) -> Comparison:
    (one,) = (one for one in found if (one.workload, one.name) == (workload, name))
    return one


def test_without_scripts_it_says_so_and_measures_nothing(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "scratch"
    assert command.main(["", "--scratch", str(scratch)]) == 2
    assert "SCRIPTS names no folder" in capsys.readouterr().err
    (folder / "kafka.sh").unlink()
    arguments = ["--scratch", str(scratch), "--peer", "kafka", "--peer", "redis"]
    assert command.main([str(folder), *arguments]) == 2
    assert f"no kafka.sh in {folder}" in capsys.readouterr().err
    assert not scratch.exists() or not list(scratch.iterdir())


def test_products_take_turns_and_one_table_has_the_ratios(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "measure_own", own_rows)
    monkeypatch.setattr(command, "LocalCluster", fake_cluster)
    scratch, document = tmp_path / "scratch", tmp_path / "found.json"
    arguments = [str(folder), "--peer", "kafka", "--peer", "redis", "--rounds", "2"]
    arguments += ["--seconds", "3", "--scratch", str(scratch), "--json", str(document)]
    assert command.main(arguments) == 0
    turns = ["kafka D2 3 1", "redis D2 3 1"] * 2
    calls = (scratch / "calls").read_text().splitlines()
    assert calls == ["install kafka", "install redis", *turns]
    told = capsys.readouterr()
    rounds = [line for line in told.err.splitlines() if line.startswith("round 1")]
    assert rounds == [f"round 1 of 2: {name}" for name in (OWN, "kafka", "redis")]
    assert "50,000 (W1-tuned)  1.50 ×" in told.out
    assert told.out.count("redis W1b 1024 B: class D1: acknowledged before a quorum") == 2
    found = json.loads(document.read_text())
    assert len(found["rows"]) == 12 and found["fault"] is None
    assert not list(scratch.glob("peers-*")) and not list(scratch.glob("*.pid"))
    # What is built stays so, for a scratch folder.
    assert command.main(arguments) == 0
    assert "install" not in "".join((scratch / "calls").read_text().splitlines()[6:])


def test_a_figure_stands_beside_the_fastest_way_of_each_peer() -> None:
    rows = make_rows(
        make_line(OWN, "W1-sdk", rec_s=60_000.0, srv_cpu=2.0),
        make_line(OWN, "W1-sdk", rec_s=90_000.0, srv_cpu=4.0),
        make_line(OWN, "W1-sdk", size=100),
        make_line(OWN, "W3-100-sdk"),
        make_line("kafka", "W1-default", rec_s=10_000.0),
        make_line("kafka", "W1-tuned", rec_s=50_000.0, srv_cpu=4.0),
        make_line("nats", "W1b", p50=1.0),
    )
    found = compare(rows)
    rate = find(found[:4], "W1-sdk", "records/s")
    assert rate.own == 75_000 and rate.peers == {"kafka": ("W1-tuned", 50_000.0)}
    cpu = find(found[:4], "W1-sdk", "servers' CPU µs a record")
    assert cpu.own == 375 and cpu.peers == {"kafka": ("W1-tuned", 500.0)}
    assert not any(one.peers for one in found[4:]), "another size, another family"
    assert "p50 ms" not in {one.name for one in found}, "how long one waits where many wait"
    assert format_comparisons(found).splitlines()[0].split() == [
        "workload", "bytes", "figure", OWN, "kafka", "ratio",
    ]  # fmt: skip


def test_what_says_little_is_set_aside_with_its_reason() -> None:
    cores = os.cpu_count() or 1
    rows = make_rows(
        make_line("nats", "W1-w500", errors=3),
        make_line("nats", "W1-w4000", other_cpu=0.2 * 9.0 * cores),
        make_line("redis", "W1-redis-benchmark", cls="D0.leader-fsync"),
        make_line("redis", "W1-c16p32", cls="D1.5"),
        make_line("redis", "W9"),
    )
    kept, doubts = sift(rows)
    assert [row.workload for row in kept] == ["W1-c16p32"]
    assert [doubt.partition(": ")[2] for doubt in doubts] == [
        "3 records failed", "others took 20% of the CPU",
        "class D0.leader-fsync: acknowledged before a quorum has synced",
    ]  # fmt: skip


def test_a_line_without_a_figure_is_named(tmp_path: Path) -> None:
    line = make_line("kafka", "W1b")
    del line["srv_cpu"]
    path = tmp_path / "rows"
    assert read_rows(path) == []
    path.write_text(json.dumps(line))
    with pytest.raises(ValueError, match="without 'srv_cpu'"):
        read_rows(path)


def test_scripts_that_hang_are_ended_and_leave_no_server(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts_module, "_START_S", 1.0)
    monkeypatch.setattr(scripts_module, "_WORKLOADS_MAX", 0)
    monkeypatch.setenv("HANGS", "1")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scripts = PeerScripts(folder, scratch)
    with pytest.raises(BenchError, match=r"group\.sh kafka D2 did not end in 1 s"):
        scripts.play("kafka", 3, tmp_path / "rows")
    assert not list(scratch.glob("*.pid")), "its servers are stopped by its own script"
