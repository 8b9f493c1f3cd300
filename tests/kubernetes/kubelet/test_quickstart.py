"""The quick start of docs/kubernetes does what it says, block by block, on real nodes.

What the page has built by Docker lies on the nodes already, under another tag: that flag is all
that is added to what the page types. README's short form is compared with the page.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster.inside import RealCluster
from tests.kubernetes.kubelet.installation import ROOT
from tests.process.pages import check_shown, read_page

PAGE = ROOT / "docs" / "kubernetes" / "quickstart.md"
INSTALL = "helm install demo charts/duramen"
MARK = "\x1e"
TIMEOUT_S = 540


@pytest.fixture
def clean(kubelet: RealCluster) -> Iterator[RealCluster]:
    """A cluster that never had the chart, or looks so."""
    _remove(kubelet)
    yield kubelet
    kubelet.kubectl("config", "set-context", "--current", "--namespace=default")
    kubelet.kubectl("delete", "namespace", "logs", "--wait=false", check=False)
    _remove(kubelet)


@pytest.mark.timeout(600)  # pods start slowly where there is other work
def test_the_page_does_what_it_says(clean: RealCluster) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(INSTALL) == 1
    page = read_page(text.replace(INSTALL, f"{INSTALL} --set image.tag=test"))
    script = ["set -eu -o pipefail"]
    for step in page.steps:
        script += [step.commands, "printf '\\036'"]
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path if place)
    programs = f"{clean.environment['PATH']}{os.pathsep}{Path(sys.executable).parent}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**clean.environment, "PYTHONPATH": places, "PATH": programs}, timeout=TIMEOUT_S,
    )  # fmt: skip
    printed = done.stdout.split(MARK)
    last = page.steps[min(len(printed), len(page.steps)) - 1].commands
    assert done.returncode == 0, f"{last}\nprinted\n{printed[-1]}{done.stderr}"
    for step, found in zip(page.steps, printed, strict=False):
        if step.shown is not None:
            check_shown(step, found)


def test_the_readme_says_the_same() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## On Kubernetes\n")[2].partition("\n## ")[0]
    commands = section.split("```\n")[1].splitlines()
    page = PAGE.read_text(encoding="utf-8")
    assert len(commands) > 5
    for command in commands:
        assert command.removesuffix(" --create") in page, command


def _remove(kubelet: RealCluster) -> None:
    names = kubelet.kubectl("get", "crd", "--output=name").stdout.split()
    ours = [name for name in names if name.endswith(".duramen.io")]
    if ours:
        kubelet.kubectl("delete", *ours)
