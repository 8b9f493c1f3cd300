"""The chart refuses a name that the definitions refuse, before anything is installed.

The LogCluster is applied by a hook, after everything else is there: a name that is refused only
then would leave half a release behind. Needs helm, and no API server.
"""

import subprocess

import pytest

from tests.kubernetes.chart.rendering import CHART, helm


def render(release: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return helm("template", release, CHART, "--set=security=none,acceptAnybody=true", *flags)


@pytest.mark.parametrize("release", ["7demo", "demo.eu", "d" * 41])
def test_a_release_whose_name_is_none_of_a_cluster_is_told_what_to_set(release: str) -> None:
    done = render(release)
    assert done.returncode != 0
    assert f"{release} is no name of a cluster: set cluster.name to at most 40" in done.stderr
    assert render(release, "--set=cluster.name=demo").returncode == 0
    assert render(release, "--set=cluster.create=false").returncode == 0


@pytest.mark.parametrize("release", ["d", "demo", "d" * 40])
def test_other_releases_are_rendered(release: str) -> None:
    assert render(release).returncode == 0
