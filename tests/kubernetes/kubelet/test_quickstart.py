"""The quick start of docs/kubernetes does what it says, block by block, on real nodes, at night.

README's short form is compared with the page.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kubernetes.cluster.inside import RealCluster
from tests.kubernetes.kubelet.installation import ROOT
from tests.kubernetes.kubelet.typed_pages import PAGES, cleaned, name_test_image, type_commands
from tests.process.pages import check_shown, read_page

PAGE = PAGES / "quickstart.md"


@pytest.mark.night
@pytest.mark.timeout(600)  # pods start slowly where there is other work
def test_the_page_does_what_it_says(kubelet: RealCluster, tmp_path: Path) -> None:
    page = read_page(name_test_image(PAGE.read_text(encoding="utf-8")))
    with cleaned(kubelet):
        printed = type_commands(kubelet, [step.commands for step in page.steps], tmp_path)
    for step, found in zip(page.steps, printed, strict=True):
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
