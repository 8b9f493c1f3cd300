"""What `make dist` makes: the same bytes each time, whole, and as other programs read it.

It is made as people make it, by the command, in a process of its own; what is asked of the bill of
materials alone is asked of the functions. What helm makes of the chart is asked in
tests/kubernetes/chart, where there is a helm.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.validation.json import JsonStrictValidator

from tests.distribution import bill, make
from tests.distribution.licences import judge
from tests.distribution.lock import ROOT, read_pins, read_project
from tests.kubernetes.image import recipes

# Each make takes some seconds; on a machine full of other work it was seen to take minutes.
pytestmark = [pytest.mark.gate, pytest.mark.timeout(1800)]

EPOCH = 1_700_000_000
HANG_S = 900.0


def make_dist(out: Path, **variables: str) -> None:
    """As `make dist` does, in a process of its own."""
    command = [sys.executable, "-m", "tests.distribution", "--out", str(out)]
    paths = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_S,
        check=False, umask=0o077 if variables else 0o022,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    make_dist(out)
    return out


@pytest.fixture(scope="module")
def document(dist: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(dist.glob("*.cdx.json")).read_text())
    return found


def read_all(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_runs_make_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    # Another order of sets, another zone, other rights of new files.
    make_dist(tmp_path / "again", PYTHONHASHSEED="7", TZ="Asia/Tokyo")
    once, again = read_all(dist), read_all(tmp_path / "again")
    assert {name for name in once if once[name] != again.get(name)} == set()
    assert set(once) == set(again)


def test_everything_is_there_under_its_sum(dist: Path) -> None:
    project = read_project()["project"]
    stem = f"{project['name']}-{project['version']}"
    chart = yaml.safe_load((ROOT / "charts" / "duramen" / "Chart.yaml").read_text())
    wanted = {f"{stem}-py3-none-any.whl", f"{stem}.tar.gz", f"{stem}.cdx.json"}
    wanted |= {f"{stem}.licences.md", f"duramen-{chart['version']}.tgz"}
    lines = (dist / make.SUMS).read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert set(sums) == wanted
    assert set(read_all(dist)) == {*wanted, make.SUMS}
    for name, digest in sums.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest


def test_the_wheel_holds_every_module_and_nothing_else(dist: Path, tree: Path) -> None:
    packages = read_project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    wanted = {
        path.relative_to((tree / package).parent).as_posix()
        for package in packages
        for path in (tree / package).rglob("*")
        if path.is_file()
    }
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == wanted
    assert "duramen/py.typed" in held


def test_the_source_archive_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    [tree] = tmp_path.iterdir()
    (tmp_path / "out").mkdir()
    wheel = make.build("wheel", tree, tmp_path / "out")
    assert wheel.read_bytes() == (dist / wheel.name).read_bytes()


def test_the_chart_is_whole_and_in_the_layout_of_helm(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tgz"))) as archive:
        names = archive.getnames()
        assert {(m.uid, m.gid, m.mode) for m in archive} == {(0, 0, 0o644)}
    assert names[0] == "duramen/Chart.yaml"
    folder = ROOT / "charts" / "duramen"
    files = {f"duramen/{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file()}
    assert set(names) == files - {"duramen/.helmignore"}


def test_the_bill_is_valid(dist: Path, document: dict[str, Any]) -> None:
    validator = JsonStrictValidator(bill.SCHEMA)
    text = next(dist.glob("*.cdx.json")).read_text()
    assert validator.validate_str(text) is None
    del document["components"][0]["type"]
    assert validator.validate_str(json.dumps(document)) is not None, "it can say no"


def test_the_bill_lists_every_locked_package_and_every_image(dist: Path) -> None:
    found = json.loads(next(dist.glob("*.cdx.json")).read_text())["components"]
    packages = {(c["name"], c["version"]): c for c in found if c["type"] == "library"}
    assert set(packages) == {(pin.name, pin.version) for pin in read_pins()}
    scopes = {name: component["scope"] for (name, _), component in packages.items()}
    assert scopes["kazoo"] == "required"
    assert scopes["fastapi"] == scopes["deltalake"] == "optional"
    assert scopes["pytest"] == scopes["cyclonedx-python-lib"] == "excluded"
    images = {c["name"].rpartition("/")[2] for c in found if c["type"] == "container"}
    assert images == {*recipes.RECIPES, "debian"}
    unlicensed = {key for key, component in packages.items() if not component.get("licenses")}
    assert unlicensed == {(pin.name, pin.version) for pin in read_pins() if not pin.is_for_here}


def test_the_bill_follows_its_content() -> None:
    pins = read_pins()
    licences, _ = judge(pins)
    whole = json.loads(bill.format_bill(pins, licences, epoch=EPOCH))
    assert whole["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")
    without = json.loads(bill.format_bill(pins[:-1], licences, epoch=EPOCH))
    assert whole["serialNumber"] != without["serialNumber"]


def test_the_images_of_the_chart_are_those_that_are_built() -> None:
    assert list(bill.image_names()) == sorted(recipes.RECIPES)
    text = "".join(
        path.read_text() for path in (ROOT / "charts" / "duramen" / "templates").rglob("*.*")
    )
    for suffix in ("", "-spark", "-zookeeper"):
        assert f'include "duramen.image" (list . "{suffix}")' in text.replace("$ ", ". ")
