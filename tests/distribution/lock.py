"""What requirements.lock pins, and which part of it an extra of the project needs here.

A pin is taken over as it is written, with its hashes and its marker, so that pip checks both. Which
packages belong to an extra is asked of the metadata of this environment, which was made from the
lock; `tests.kubernetes.image.environment` answers the same for images.

Called by `environments`, `licences` and `bill`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from tests.kubernetes.image.environment import closure

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "requirements.lock"
# Of these nothing is shipped: they check, test and build.
DEVELOPMENT: Final = "dev"

_PIN: Final = re.compile(r"(?P<name>[a-z0-9._-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+))?")


@dataclass(frozen=True)
class Pin:
    """One package of the lock: `text` are its lines, hashes too."""

    name: str
    version: str
    marker: Marker | None
    text: str

    @property
    def is_for_here(self) -> bool:
        """Whether pip installs it for this interpreter on this machine."""
        return self.marker is None or self.marker.evaluate()


def read_project() -> dict[str, Any]:
    """pyproject.toml, whole."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def read_pins(text: str | None = None) -> Sequence[Pin]:
    """Every pin of a lock, of the project's own if none is given, in its order."""
    pins: list[Pin] = []
    for line in (LOCK.read_text() if text is None else text).splitlines(keepends=True):
        if found := _PIN.match(line):
            marker = Marker(found["marker"].strip()) if found["marker"] else None
            pins.append(Pin(canonicalize_name(found["name"]), found["version"], marker, line))
        elif line.startswith("    --hash="):
            last = pins.pop()
            pins.append(Pin(last.name, last.version, last.marker, last.text + line))
    return pins


def pins_of(extras: Iterable[str]) -> Sequence[Pin]:
    """What the project with these extras needs here, itself left out.

    Raises:
        SystemExit: this environment is not that of the lock.
    """
    wanted = closure("duramen", extras) - {"duramen"}
    found = [pin for pin in read_pins() if pin.name in wanted and pin.is_for_here]
    for pin in found:
        require_installed(pin)
    missing = wanted - {pin.name for pin in found}
    if missing:
        raise SystemExit(f"{', '.join(sorted(missing))}: not in requirements.lock: run make lock")
    return found


def require_installed(pin: Pin) -> metadata.Distribution:
    """The installed package of a pin.

    Raises:
        SystemExit: it is not installed, or another version is.
    """
    try:
        found = metadata.distribution(pin.name)
    except metadata.PackageNotFoundError:
        raise SystemExit(f"{pin.name} is locked and not installed: run make setup") from None
    if found.version != pin.version:
        raise SystemExit(
            f"{pin.name} {found.version} is not that of requirements.lock: run make setup"
        )
    return found


def shipped_extras() -> Sequence[str]:
    """Every extra but that of developers."""
    extras = read_project()["project"]["optional-dependencies"]
    return [name for name in extras if name != DEVELOPMENT]
