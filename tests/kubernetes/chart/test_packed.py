"""The chart that is shipped: helm takes it, and makes of it what it makes of the folder.

What is in the archive, and in which layout, is asked in tests/distribution, without helm.
"""

from pathlib import Path

from tests.distribution.make import make_chart
from tests.kubernetes.chart.rendering import CHART, helm


def test_helm_takes_the_archive(tmp_path: Path) -> None:
    packed = make_chart(CHART, tmp_path, epoch=1_700_000_000)
    flags = ("--set=security=none,acceptAnybody=true",)
    outputs = [helm("template", "first", chart, *flags).stdout for chart in (packed, CHART)]
    assert "kind: LogCluster" in outputs[0]
    assert outputs[0] == outputs[1]
