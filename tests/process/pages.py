"""Runs the blocks of a documentation page: what it says is typed, what it shows is compared.

A page has fenced blocks with a language. `sh` is run, all blocks of a page in one shell that ends
at the first failure; `text` after it is what it prints (standard output), `…` standing for
anything; `python NAME` is written to that file, `html` and `javascript` likewise. One block, `sh
start`, starts the cluster: here that is done already. `sh serve` goes on in a terminal of its own,
for who plays the page. Any other block is a mistake.

Used by `test_quickstart` and `test_browser_page`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.process.times import HANG_S

DOCS = Path(__file__).resolve().parents[2] / "docs"

_BLOCK = re.compile(r"^```(\S*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "\x1e"
TIMEOUT_S = 2 * HANG_S
"""A hang bound of a whole page: some begin Spark four times."""


class Step(NamedTuple):
    """Commands, and what they print; None: the page does not say."""

    commands: str
    shown: str | None


class Page(NamedTuple):
    """A page's files and steps."""

    files: dict[str, str]
    steps: list[Step]


def read_page(text: str) -> Page:
    """Take a page apart; asserts that each block is understood."""
    files: dict[str, str] = {}
    steps: list[Step] = []
    start_count = 0
    for language, name, body in _BLOCK.findall(text):
        match language, name:
            case "sh", "start":
                start_count += 1
            case "sh", "serve":
                pass
            case "sh", "":
                steps.append(Step(body, None))
            case "text", "":
                assert steps and steps[-1].shown is None, f"nothing prints {body!r}"
                steps[-1] = steps[-1]._replace(shown=body)
            case "python" | "html" | "javascript", str() if name:
                files[name] = body
            case _:
                raise AssertionError(f"a block of {language!r} {name!r} is not understood")
    assert start_count == 1 and steps, "a page starts a cluster once, and uses it"
    return Page(files, steps)


def run_page(text: str, folder: Path, cluster_folder: Path, addresses: Mapping[str, str]) -> None:
    """Run a page's blocks in `folder`.

    Args:
        cluster_folder: where the cluster's data is; the page finds it as `.duramen`.
        addresses: what the page writes → where it is here.
    """
    for written, real in addresses.items():
        assert written in text, f"the page never names {written}"
        text = text.replace(written, real)
    page = read_page(text)
    programs = folder / "programs"
    programs.mkdir(parents=True)
    (folder / ".duramen").symlink_to(cluster_folder)
    for name, body in page.files.items():
        (folder / name).write_text(body)
    for name, arguments in (("python", ""), ("duramen", "-m duramen.cli.main ")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        program.chmod(0o755)
    script = [f'PATH="{programs}:$PATH"', "set -eu -o pipefail"]
    for step in page.steps:
        script += [step.commands, "printf '\\036'"]
    # What this test imports from, where it does so by a path that is relative.
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path if place)
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    printed = done.stdout.split(_MARK)
    assert done.returncode == 0, (
        f"{page.steps[len(printed) - 1].commands}\nprinted\n{printed[-1]}{done.stderr}"
    )
    for step, found in zip(page.steps, printed, strict=False):
        if step.shown is not None:
            check_shown(step, found)


def check_shown(step: Step, found: str) -> None:
    """What was printed is what the page shows."""
    shown = "" if step.shown is None else step.shown
    pattern = ".*".join(map(re.escape, shown.strip().split("…")))
    assert re.fullmatch(pattern, found.strip(), re.DOTALL), (
        f"{step.commands}\nshows\n{shown}\nbut printed\n{found}"
    )
