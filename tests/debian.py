"""Debian's packages, unpacked into a folder: nothing is installed, no script of theirs runs.

For programs that tests call and Debian has. Needs apt-get and dpkg-deb, no root. Called by what
fills the folders of `tests.cache`.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

LISTS = Path("/var/lib/apt/lists")


def update_lists() -> None:
    """Fetch the lists of packages where there are none, as on a fresh machine.

    Raises:
        subprocess.CalledProcessError: they cannot be had.
    """
    if not any(LISTS.glob("*Packages*")):
        subprocess.run(["apt-get", "update", "-qq"], check=True)


def unpack(into: Path, *packages: str) -> None:
    """Download packages, without what they depend on, and unpack them.

    Raises:
        subprocess.CalledProcessError: they cannot be had.
    """
    update_lists()
    with tempfile.TemporaryDirectory() as archives:
        # apt downloads as its own user, who must be able to write there.
        Path(archives).chmod(0o777)
        subprocess.run(["apt-get", "download", "-qq", *packages], cwd=archives, check=True)
        for archive in sorted(Path(archives).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(archive), str(into)], check=True)
