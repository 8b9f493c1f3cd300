"""What one read that waits at a quiet tail holds in memory, counted in bytes of the allocator.

Counted by `waiting_reads` in a process of its own: tables that double are as large as what a
process did before, which differs with the tests of a worker. The night counts the whole process
with the HTTP library's part (tests/process/test_reader_faults.py); what is counted here does not
depend on pages or on the machine, so the gate sees a few hundred bytes more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
WAIT_BYTES_MAX: Final = 10_000
"""9,820 are usual in every run, some 1,300 of them the test's own: one more coroutine or closure in
the way of each read, or a timer of its own, is told."""


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="objects have other sizes in another Python"
)
def test_a_read_that_waits_holds_little() -> None:
    command = [sys.executable, "-m", "tests.component.waiting_reads"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    each_bytes = float(done.stdout)
    print(f"a read that waits: {each_bytes:.0f} bytes")
    assert each_bytes <= WAIT_BYTES_MAX
