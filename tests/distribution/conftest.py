"""The wheel of this checkout, and environments that hold it and one set of extras.

Made once for all tests. Where pip reaches no registry and the packages are not kept from before,
the tests that need an environment are left out, in one place, and say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.distribution import make, sources
from tests.distribution.environments import (
    Environment,
    NoRegistryError,
    format_text,
    make_environment,
)
from tests.requirements import Need, leave_out


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git would take."""
    folder = tmp_path_factory.mktemp("tree")
    sources.copy_sources(folder)
    return folder


@pytest.fixture(scope="session")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make.build("wheel", tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def library(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel and no extra."""
    return _make(tmp_path_factory, wheel, ())


@pytest.fixture(scope="session")
def local_cluster(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel and the extra `run`."""
    return _make(tmp_path_factory, wheel, ("run",))


def _make(folders: pytest.TempPathFactory, wheel: Path, extras: Sequence[str]) -> Environment:
    try:
        return make_environment(folders.mktemp(format_text(extras)) / "venv", wheel, extras)
    except NoRegistryError as error:
        leave_out(Need.REGISTRY, f"duramen[{','.join(extras)}] cannot be installed: {error}")
