"""Pages whose lines a person types: the same lines, in a folder with the chart, on real nodes.

Pages call their namespace `logs` and their release `demo`. What a page has built by Docker lies on
the nodes already, under another tag: that flag is all that is added to what it types. Used by the
tests beside this module.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.kubernetes.cluster.inside import RealCluster
from tests.kubernetes.kubelet.installation import ROOT

PAGES = ROOT / "docs" / "kubernetes"
NAMESPACE = "logs"
RELEASE = "demo"
INSTALL = f"helm install {RELEASE} charts/duramen"
TIMEOUT_S = 540
_MARK = "\x1e"


@contextmanager
def cleaned(kubelet: RealCluster) -> Iterator[None]:
    """A cluster that never had the chart, or looks so, for the block."""
    _remove_definitions(kubelet)
    kubelet.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    try:
        yield
    finally:
        kubelet.kubectl("config", "set-context", "--current", "--namespace=default")
        kubelet.kubectl("delete", "namespace", NAMESPACE, "--wait=false", check=False)
        _remove_definitions(kubelet)


def name_test_image(text: str) -> str:
    """The page with the tag of the tests' images; it has to install once."""
    assert text.count(INSTALL) == 1
    return text.replace(INSTALL, f"{INSTALL} --set image.tag=test")


def type_commands(kubelet: RealCluster, steps: Sequence[str], folder: Path) -> list[str]:
    """Type what the steps say, all in one shell that ends at the first failure.

    Args:
        folder: where they are typed; the charts are put there.

    Returns:
        What each of them printed (standard output).
    """
    (folder / "charts").symlink_to(ROOT / "charts")
    script = ["set -eu -o pipefail"]
    for step in steps:
        script += [step, "printf '\\036'"]
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path if place)
    programs = f"{kubelet.environment['PATH']}{os.pathsep}{Path(sys.executable).parent}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=folder, capture_output=True, text=True, check=False,
        env={**kubelet.environment, "PYTHONPATH": places, "PATH": programs}, timeout=TIMEOUT_S,
    )  # fmt: skip
    printed = done.stdout.split(_MARK)
    last = steps[min(len(printed), len(steps)) - 1]
    assert done.returncode == 0, f"{last}\nprinted\n{printed[-1]}{done.stderr}"
    return printed[:-1]


def _remove_definitions(kubelet: RealCluster) -> None:
    names = kubelet.kubectl("get", "crd", "--output=name").stdout.split()
    ours = [name for name in names if name.endswith(".duramen.io")]
    if ours:
        kubelet.kubectl("delete", *ours)
