"""The jar that ZooKeeper loads is what `libs/zookeeper-access` says: compiled anew and compared.

Needs javac and PySpark's jars. `PYTHONPATH=. .venv/bin/python -m tests.unit.test_access_jar` writes
the jar again. What the classes do: `tests/contract/test_secured_zookeeper`.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import pytest

import duramen.runtime.identity

SOURCES: Final = Path(__file__).parents[2] / "libs" / "zookeeper-access"
JAR: Final = Path(duramen.runtime.identity.__file__).parent / "duramen-access.jar"
_NEEDED: Final = ("zookeeper-3*", "zookeeper-jute-*", "slf4j-api-*", "javax.servlet-api-*")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def compile_classes(out: Path) -> dict[str, bytes]:
    """The classes, as javac makes them: for Java 17, without what names lines and variables."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.submodule_search_locations
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    path = ":".join(str(found) for name in _NEEDED for found in jars.glob(f"{name}.jar"))
    sources = sorted(map(str, (SOURCES / "duramen").glob("*.java")))
    command = ["javac", "--release", "17", "-g:none", "-cp", path, "-d", str(out), *sources]
    subprocess.run(command, check=True)
    return {str(found.relative_to(out)): found.read_bytes() for found in out.rglob("*.class")}


@pytest.mark.skipif(shutil.which("javac") is None, reason="no javac")
def test_the_jar_is_made_of_the_sources(tmp_path: Path) -> None:
    with zipfile.ZipFile(JAR) as jar:
        held = {name: jar.read(name) for name in jar.namelist()}
    assert held == compile_classes(tmp_path), "make it again, as the head of this file says"


def _write() -> None:
    with tempfile.TemporaryDirectory() as out, zipfile.ZipFile(JAR, "w") as jar:
        for name, content in sorted(compile_classes(Path(out)).items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            jar.writestr(entry, content)


if __name__ == "__main__":
    _write()
