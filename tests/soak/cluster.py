"""The cluster of a soak: that of the chaos runs, with an archive and quick upkeep, and no faults.

Called by `run`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from duramen.cluster.layout import CLUSTER_NAME, REGION, ProcessPlan
from tests.chaos.cluster import ChaosCluster
from tests.chaos.layout import Layout
from tests.soak.quick import quick

_WITH_ARCHIVE: Final = ("sequencer", "readproxy")
_JOB_S: Final = 300.0


class SoakCluster(ChaosCluster):
    """Processes, an archive in a folder, and the jobs that work on it."""

    def __init__(self, folder: Path, layout: Layout, on_event: Callable[[str], None]) -> None:
        self.cold = folder / "cold"
        self.cold.mkdir(parents=True)
        super().__init__(folder, layout, on_event)

    def _make_command(self, plan: ProcessPlan, zookeeper: str, tls_dir: Path | None) -> list[str]:
        command = quick(super()._make_command(plan, zookeeper, tls_dir))
        if plan.role in _WITH_ARCHIVE:
            command += ["--cold-store", self.cold.as_uri()]
        return command

    async def run_job(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """A job of the archive: exit status, report, and what it said if there is no report."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "duramen_spark.main", *words, "--json",
            "--zookeeper", self.zookeeper, "--cluster", CLUSTER_NAME,
            "--cold-store", self.cold.as_uri(), "--region", REGION,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env=os.environ | {"NO_COLOR": "1"},
        )  # fmt: skip
        try:
            async with asyncio.timeout(_JOB_S):
                out, err = await process.communicate()
        except TimeoutError:
            return 1, {}, f"no end within {_JOB_S:g} s"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        report = json.loads(out) if out.strip().startswith(b"{") else {}
        return process.returncode or 0, report, err.decode(errors="replace")[-600:]
