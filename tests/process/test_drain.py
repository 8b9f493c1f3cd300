"""A bookie is emptied while logs are appended to, taken away, wiped, and not one copy is missing.

With little data and no word about time; the figures of a large one: `drain_figures`. What the
auditor decides at each step: `tests/component/test_auditor_drain`. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen.units import MIB
from tests.process.cluster import run, running_plain_cluster
from tests.process.drain_figures import drain_under_load

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


def test_a_bookie_is_drained_under_load_and_its_disk_wiped(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--bookies", "4", "--no-restart") as cluster:
        work = drain_under_load(cluster, bookie_bytes=16 * MIB, log_count=3, before_s=1)
        figures = run(work)
        assert figures["held_mib"] >= 8 and figures["copies"] > 0, figures
        assert figures["failures"] == [], figures
