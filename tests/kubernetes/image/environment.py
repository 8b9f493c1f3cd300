"""Packages of this environment, as an image takes them over: which, that they are pinned, how.

`make setup` made the environment from requirements.lock, by hash; `pins` compares what is there
with the lock, so that nothing else gets into an image. Debian's Python has the same minor version
and therefore loads the same compiled modules. Called by `recipes`.
"""

from __future__ import annotations

import compileall
import functools
import py_compile
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT: Final = Path(__file__).resolve().parents[3]
_LOCK: Final = _ROOT / "requirements.lock"
_MINOR: Final = (3, 11)


def reason_missing() -> str | None:
    """Why no image can be made of this environment; None when one can."""
    if sys.version_info[:2] != _MINOR:
        return "images take their packages from an environment of Python 3.11, Debian's"
    return None


def closure(name: str, extras: Iterable[str]) -> set[str]:
    """A package with these extras and everything that they need here, by canonical name."""
    found: dict[str, set[str]] = {}
    waiting = [(canonicalize_name(name), frozenset(extras))]
    while waiting:
        package, wanted = waiting.pop()
        if package in found and wanted <= found[package]:
            continue
        known = found.setdefault(package, set())
        known |= wanted
        for extra, needed in _requirements(package):
            marker = needed.marker
            is_wanted = extra is None or extra in known
            if is_wanted and (
                marker is None or any(marker.evaluate({"extra": e}) for e in ("", *known))
            ):
                waiting.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    return set(found)


def pins(names: Iterable[str]) -> Sequence[str]:
    """`name==version` of each, as installed and as locked.

    Raises:
        SystemExit: the environment is not that of the lock.
    """
    locked = _read_lock()
    spelt = []
    for name in sorted(names):
        version = metadata.version(name)
        if version not in locked.get(name, ()):
            raise SystemExit(f"{name} {version} is not that of requirements.lock: run make setup")
        spelt.append(f"{name}=={version}")
    return spelt


def copy_package(name: str, site: Path) -> None:
    """Copy a package's files, but for commands and compiled modules, below `site`."""
    distribution = metadata.distribution(name)
    for file in distribution.files or ():
        relative = PurePosixPath(file)
        if relative.parts[0] == ".." or "__pycache__" in relative.parts:
            continue
        target = site / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(distribution.locate_file(file)), target)


def compile_modules(folder: Path, place: str) -> None:
    """Compile every module; what is compiled holds whatever time stamps a layer has.

    Args:
        place: where the folder will be in the image.
    """
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    # Of PySpark a job loads a small part.
    compileall.compile_dir(
        folder,
        quiet=2,
        invalidation_mode=unchecked,
        rx=re.compile(r"/pyspark/|/tests?/"),
        stripdir=str(folder),
        prependdir=place,
    )


def _requirements(package: str) -> list[tuple[str | None, Requirement]]:
    """What a package needs, each with its extra where that is not in the marker.

    The project's own stand in pyproject.toml: what is installed of it may be of an older checkout.
    """
    if package != "duramen":
        return [(None, Requirement(text)) for text in metadata.requires(package) or ()]
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    found: list[tuple[str | None, Requirement]] = []
    found += [(None, Requirement(text)) for text in project["dependencies"]]
    for extra, texts in project["optional-dependencies"].items():
        found += [(extra, Requirement(text)) for text in texts]
    return found


@functools.cache
def _read_lock() -> dict[str, set[str]]:
    locked: dict[str, set[str]] = {}
    for line in _LOCK.read_text().splitlines():
        if match := re.match(r"([a-z0-9._-]+)==([^ ;\\]+)", line):
            locked.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return locked
