"""Commands of `duramen` on a cluster of processes, and what they print with `--json`.

Used by the tests of rolls, rebalance and balance. Source: docs/cli.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.process.cluster import LocalCluster


def duramen(cluster: LocalCluster, *arguments: str) -> dict[str, Any]:
    """What a command prints with `--json`; fails unless it ends well."""
    done = run_duramen(cluster, *arguments)
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run_duramen(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "duramen.cli.main", *arguments, "--json"]
    command += ["--data", str(cluster.folder)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)
