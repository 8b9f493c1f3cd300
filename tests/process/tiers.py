"""Tiering on real processes: a log that moves to the cold store, and the jobs that move it.

Used by `test_tiering`, `test_cold_reads`, `test_cold_stores` and the tutorial's test.
Source: docs/protocol/archive.md.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import httpx

from tests.process.cluster import LocalCluster

MOVE = {"tiering": {"policy": "move", "keep_hot": "0s"}, "retention": {"age": None}}


def command(cluster: LocalCluster, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON answer of a command."""
    whole = [sys.executable, "-m", *words, "--data", str(cluster.folder), "--json"]
    done = subprocess.run(whole, capture_output=True, timeout=120, check=False)
    assert done.stdout, done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


def want_retention(cluster: LocalCluster) -> None:
    """A round of every sequencer that is there."""
    for node_id in cluster.ids("sequencer"):
        with contextlib.suppress(httpx.TransportError):  # one may be killed
            httpx.post(cluster.process(node_id)["admin_url"] + "/v1/retention", timeout=30)
