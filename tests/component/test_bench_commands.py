"""`duramen bench journal` and `duramen bench bookie` end to end, with tiny settings.

Through the command that people type, which hands over to the bookie's own program. What is checked
is that everything was measured and can be read by a program; no figure is judged here.

Source: docs/benchmarks.md "A bookie alone".
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duramen_bookie.offline.bench import format_table
from duramen_bookie.offline.bench_machine import Figure, at_least, at_most, summarize

pytestmark = pytest.mark.gate

LIMITS = {"fdatasync_4k_us", "sequential_write_mb_per_s", "sequential_read_mb_per_s"}
TIMEOUT_S = 100


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it, with `folder` for the disk."""
    command = [sys.executable, "-m", "duramen.cli.main", "bench", *arguments, "--dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def read_last_line(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return document


def ratios_of(document: dict[str, Any]) -> Iterator[float]:
    yield document["ratio_to_bare_loop"]
    for figures in document["figures"].values():
        yield from (figure["value"] for name, figure in figures.items() if "ratio" in name)


@pytest.mark.process
def test_the_journal_is_measured_against_a_bare_loop(tmp_path: Path) -> None:
    sizes = ("--replay-size", "1MiB", "--file-size", "1MiB")
    ran = bench(tmp_path, "journal", "--seconds", "0.5", "--json", *sizes)
    document = read_last_line(ran)
    assert document["bench"] == "journal"
    assert set(document["figures"]["machine"]) == LIMITS
    loads = {"64k_x16", "1k_x64", "4k_x1"}
    assert set(document["figures"]) == loads | {"machine", "replay_64k", "replay_1k", "memory"}
    for load in loads:
        figures = document["figures"][load]
        assert figures["journal_bytes"]["value"] > 0 and figures["journal_syncs"]["value"] > 0
        low, high = figures["ratio_to_bare_loop"]["quartiles"]
        assert low <= figures["ratio_to_bare_loop"]["value"] <= high
    assert document["figures"]["64k_x16"]["ratio_to_bare_loop"]["target"]["bound"] == 0.8
    assert all(ratio > 0 for ratio in ratios_of(document))
    assert list(tmp_path.iterdir()) == [], "what was written is gone"


@pytest.mark.process
def test_a_bookie_is_measured_against_its_transport(tmp_path: Path) -> None:
    document = read_last_line(bench(tmp_path, "bookie", "--seconds", "0.5", "--json"))
    assert document["bench"] == "bookie"
    figures = document["figures"]
    assert set(figures["machine"]) == LIMITS
    assert {"frames_256k", "adds_1k_frames_of_16", "catch_up_settled_cold"} <= set(figures)
    assert figures["frames_256k"]["ratio_to_transport"]["target"]["bound"] == 0.6
    assert figures["adds_1k_frames_of_16"]["entries_per_sync"]["value"] >= 1
    assert figures["catch_up_settled_cold"]["ratio_to_reading_the_file"]["value"] > 0
    assert all(ratio > 0 for ratio in ratios_of(document))
    assert list(tmp_path.iterdir()) == [], "what was written is gone"


def test_without_json_a_table_says_what_was_reached() -> None:
    figures = [
        summarize("load", "rate", [3.0, 1.0, 2.0], "MB/s", at_least(1.5)),
        Figure("load", "memory", 40.0, "bytes", target=at_most(32)),
        Figure("other", "count", 1_234_567.0, ""),
    ]
    table = format_table(figures)
    assert "2.00  MB/s   1.50 … 2.50  ≥ 1.50: reached" in table
    assert "≤ 32.0: missed" in table
    assert "1,234,567" in table


@pytest.mark.parametrize("arguments", [("journal", "--seconds", "many"), ("nothing",)])
def test_a_command_line_without_sense_is_refused(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ran = bench(tmp_path, *arguments)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
