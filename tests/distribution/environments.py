"""Environments that hold the project's wheel, what an extra of it needs, and nothing else.

The packages are installed by pip from its registry, by the hashes of requirements.lock, into a
folder of `tests.cache` that never holds the project itself. An environment is an empty one that
has a wheel installed and looks for other packages there: pip is asked to install the wheel with
its extras and without any index, so it refuses where the lock lacks something that the wheel asks
for. No folder of the checkout is on any path of it, and its PATH has its own commands alone.

Called by the tests beside it.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cache import cache_folder
from tests.distribution.lock import pins_of, read_pins

_INSTALL_S: Final = 1500.0
_SHORT_S: Final = 600.0
# What pip prints where nobody answers, or nobody who knows the package in any version; not where a
# hash is wrong, or the version alone is gone.
_UNREACHABLE: Final = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError"
    r"|Network is unreachable|\(from versions: none\)"
)
# They build PySpark, which is published as source only (see Makefile).
_BUILDERS: Final = ("setuptools", "wheel")


class NoRegistryError(Exception):
    """pip reaches no registry, so nothing could be installed that was not kept from before."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel; its programs run in the folder `home`."""

    folder: Path
    home: Path

    @property
    def commands(self) -> Path:
        return self.folder / "bin"

    def run(
        self, program: str, *arguments: str, limit_s: float = _SHORT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs in an empty folder of its own, with no variables of ours."""
        self.home.mkdir(exist_ok=True)
        return subprocess.run(
            [str(self.commands / program), *arguments],
            cwd=self.home,
            env={"PATH": str(self.commands), "HOME": str(self.home), "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )


def make_environment(folder: Path, wheel: Path, extras: Sequence[str]) -> Environment:
    """An environment with the wheel and these extras of it.

    Raises:
        NoRegistryError: the packages are not kept, and pip reaches no registry.
    """
    packages = keep_packages(extras)
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    environment = Environment(folder, folder / "home")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = folder / "lib" / version / "site-packages"
    (site / "packages.pth").write_text(f"{packages}\n")
    wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    target = str(environment.commands / "python")
    _run_pip(["--python", target, "install", "--no-index", wanted], limit_s=_SHORT_S)
    return environment


def keep_packages(extras: Sequence[str]) -> Path:
    """The folder with the packages that these extras need, installed now unless it is there.

    Raises:
        NoRegistryError: pip reaches no registry.
    """
    builders = [pin for pin in read_pins() if pin.name in _BUILDERS]
    assert {pin.name for pin in builders} == set(_BUILDERS)
    pins = "".join(pin.text for pin in pins_of(extras))

    def install(folder: Path) -> None:
        listed = folder / "requirements.txt"
        listed.write_text(pins)
        print(f"installing what {format_text(extras)} needs", file=sys.stderr, flush=True)
        _install(listed, folder)

    made_of = (pins, *(pin.text for pin in builders), sys.version, sysconfig.get_platform())
    return cache_folder(f"packages-{format_text(extras)}", *made_of, make=install)


def format_text(extras: Sequence[str]) -> str:
    """The extras in a word."""
    return "-".join(extras) or "library"


def pip_command() -> Sequence[str]:
    """pip of this environment, or where it was made without (see Makefile) of its interpreter."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    return [f"{sys.base_prefix}/bin/python3", "-m", "pip", "--python", sys.executable]


def _install(listed: Path, folder: Path) -> None:
    # Without build isolation: PySpark is built by the locked tools of this environment.
    flags = ["--no-deps", "--require-hashes", "--no-build-isolation"]
    _run_pip(["install", *flags, "--target", str(folder), "-r", str(listed)], limit_s=_INSTALL_S)


def _run_pip(arguments: Iterable[str], *, limit_s: float) -> None:
    command = [*pip_command(), *arguments, "--disable-pip-version-check", "--no-input"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=limit_s, check=False, cwd="/"
    )
    said = ended.stdout + ended.stderr
    if ended.returncode and "--no-index" not in command and _UNREACHABLE.search(said):
        raise NoRegistryError(f"pip reaches no registry: {said.strip().splitlines()[-1]}")
    assert ended.returncode == 0, f"{' '.join(command)}\n{said}"
