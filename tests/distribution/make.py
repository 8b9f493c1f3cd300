"""Makes what is shipped, from this checkout: wheel, source archive, chart, licences, SBOM, sums.

Each has the same bytes whenever and wherever it is made of the same commit with the same lock. The
chart is written by `sources`, in the order and under the names of `helm package`, which puts the
present time into its archive. Nothing is made where a licence is not allowed or not known.

Called by `python -m tests.distribution` (`make dist`) and by the tests beside it. It lives here
because it is no part of the product, and what tests run on is what it makes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from tests.distribution import bill, licences, sources
from tests.distribution.lock import DEVELOPMENT, pins_of, read_pins, read_project, shipped_extras

SUMS: Final = "SHA256SUMS"


class LicenceError(Exception):
    """A locked package has a licence that is not allowed, or none that can be told."""


def make_all(out: Path) -> Sequence[Path]:
    """Make everything in a folder; what it held of other versions stays.

    Raises:
        LicenceError: naming every package that is not in order; nothing was made.
        SystemExit: this environment is not that of the lock.
    """
    pins = read_pins()
    known, faults = licences.judge(pins)
    if faults:
        raise LicenceError("\n".join(faults))
    out.mkdir(parents=True, exist_ok=True)
    project = read_project()["project"]
    stem = f"{project['name']}-{project['version']}"
    epoch = sources.commit_epoch()
    with tempfile.TemporaryDirectory(prefix="duramen-dist-") as scratch:
        tree = Path(scratch)
        sources.copy_sources(tree)
        made = [build(kind, tree, out) for kind in ("wheel", "sdist")]
        made.append(make_chart(tree / "charts" / "duramen", out, epoch=epoch))
    listed = out / f"{stem}.licences.md"
    listed.write_text(licences.format_list(known, needed_by()))
    billed = out / f"{stem}.cdx.json"
    billed.write_text(bill.format_bill(pins, known, epoch=epoch))
    made += [listed, billed]
    (out / SUMS).write_text(format_sums(made))
    return [*made, out / SUMS]


def build(kind: str, tree: Path, out: Path) -> Path:
    """Build a `wheel` or an `sdist` of a tree, with what is installed here."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(dir=out, prefix="build-") as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder]
        ended = subprocess.run(
            command,
            cwd=tree,
            env={**inherited, "SOURCE_DATE_EPOCH": str(sources.commit_epoch())},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"hatchling: {ended.stdout}{ended.stderr}")
        [made] = Path(folder).iterdir()
        return made.replace(out / made.name)


def make_chart(folder: Path, out: Path, *, epoch: int) -> Path:
    """The chart's archive, as `helm install` takes it."""
    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    skip = [".helmignore", *(folder / ".helmignore").read_text().split()]
    archive = out / f"{chart['name']}-{chart['version']}.tgz"
    sources.write_archive(archive, folder, top=chart["name"], epoch=epoch, skip=skip)
    return archive


def needed_by() -> Mapping[str, Sequence[str]]:
    """A locked package → `every process`, or the extras that bring it."""
    users: dict[str, list[str]] = defaultdict(list)
    of_all = {pin.name for pin in pins_of(())}
    for extra in (*shipped_extras(), DEVELOPMENT):
        for pin in pins_of([extra]):
            if pin.name not in of_all and (extra != DEVELOPMENT or not users[pin.name]):
                users[pin.name].append(extra)
    return users | {name: ["every process"] for name in of_all}


def format_sums(files: Sequence[Path]) -> str:
    """As `sha256sum --check` reads it."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    return "\n".join(sorted(lines, key=lambda line: line.split()[1])) + "\n"
