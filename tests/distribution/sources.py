"""The files that a distribution is made from, as git would take them, and tar files of them.

A distribution is made in a copy, so that what lies about in a checkout gets into none. Time stamps
are the commit's (SOURCE_DATE_EPOCH where it is set), owners and modes are fixed: the same commit
gives the same bytes on any machine. Called by `make`.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.distribution.lock import ROOT
from tests.style.tree import list_paths

# Without git and without the variable: what build tools take then, the second of February 2020.
_EPOCH_DEFAULT: Final = 1_580_601_600


def commit_epoch() -> int:
    """Seconds since 1970 that stand in everything that is made."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    if not (ROOT / ".git").exists():
        return _EPOCH_DEFAULT
    return int(_git("log", "-1", "--format=%ct"))


def changed_paths() -> Sequence[str]:
    """What differs from the last commit; none where there is no git."""
    return _git("status", "--porcelain").splitlines() if (ROOT / ".git").exists() else []


def copy_sources(target: Path) -> None:
    """Copy every file that git knows or would take."""
    for name in list_paths():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)


def write_archive(out: Path, folder: Path, *, top: str, epoch: int, skip: Sequence[str]) -> None:
    """A gzipped tar file of a folder whose paths begin with `top`; the same bytes each time.

    Args:
        skip: patterns of names that are left out.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    with (
        out.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        # helm reads Chart.yaml first, and writes it first.
        for path in sorted(files, key=lambda path: path != folder / "Chart.yaml"):
            if any(path.match(pattern) for pattern in skip):
                continue
            data = path.read_bytes()
            member = tarfile.TarInfo(f"{top}/{path.relative_to(folder).as_posix()}")
            member.size, member.mode, member.mtime = len(data), 0o644, epoch
            tar.addfile(member, io.BytesIO(data))


def _git(*arguments: str) -> str:
    ended = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return ended.stdout
