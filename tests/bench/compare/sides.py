"""The two products that are compared: the working tree, and a revision in a folder of its own.

A revision is taken out of git as an archive: no work tree is registered that a crash could leave
behind. Its processes get its folders on PYTHONPATH, before the installed ones, and the packages of
the environment that runs this; where its `requirements.lock` is another one, the run says so and
compares with the current packages all the same.

Called by `python -m tests.bench.compare` and `kept`. Not here: loads and counts (`workloads`).
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Final

from tests.bench.cluster import ASKS_NOBODY, BenchError, LocalCluster

ROOT: Final = Path(__file__).parents[3]
COUNTS_VARIABLE: Final = "DURAMEN_BENCH_COUNTS"
_PROBE: Final = Path(__file__).parent / "probe"
_TIMEOUT_S: Final = 60.0


class MisuseError(Exception):
    """What was asked for does not exist; the text says what."""


class Side:
    """One product: a tree, and a cluster of it in a folder.

    Args:
        name: for people.
        tree: the root of its sources.
        folder: for the cluster's data and for counts; made here, the caller's to remove.

    Raises:
        BenchError: its processes would import another tree.
    """

    def __init__(self, name: str, tree: Path, folder: Path) -> None:
        self.name = name
        self.counts_folder = folder / "counts"
        self.counts_folder.mkdir(parents=True)
        roots = find_roots(tree)
        self.environment = {
            "PYTHONPATH": os.pathsep.join(map(str, [_PROBE, *roots])),
            "PYTHONSAFEPATH": "1",
            COUNTS_VARIABLE: str(self.counts_folder),
        }
        self._check_imports(tree)
        self.cluster = LocalCluster(folder / "data", self.environment, find_flags(tree))

    def read_disk_calls(self) -> tuple[int, int]:
        """Syncs that the bookies have made since they started, and the bytes they wrote."""
        syncs = written_bytes = 0
        for member in self.cluster.members("bookie"):
            content = (self.counts_folder / str(member["pid"])).read_bytes()
            syncs += int.from_bytes(content[:8], "little")
            written_bytes += int.from_bytes(content[8:16], "little")
        return syncs, written_bytes

    def _check_imports(self, tree: Path) -> None:
        code = "import duramen, duramen_bookie as b; print(*duramen.__path__, *b.__path__)"
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | self.environment | {COUNTS_VARIABLE: ""},
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        paths = ran.stdout.split()
        if ran.returncode or not paths or not all(Path(p).is_relative_to(tree) for p in paths):
            raise BenchError(f"{self.name}: Python finds {paths}, not {tree}: {ran.stderr[-1000:]}")


def find_flags(tree: Path) -> tuple[str, ...]:
    """Those by which a tree's cluster asks nobody who calls: one of before that could be said has
    none."""
    path = tree / "libs/common/duramen/cli/programs/run.py"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return ASKS_NOBODY if "_SecurityOption" in text else ()


def find_roots(tree: Path) -> list[Path]:
    """The folders that the packages of a tree lie in, as its wheel is made of them.

    Raises:
        BenchError: the tree's pyproject.toml does not say.
    """
    try:
        document = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
        packages = document["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    except (OSError, KeyError, ValueError) as error:
        raise BenchError(f"{tree / 'pyproject.toml'} names no packages: {error!r}") from None
    return list(dict.fromkeys(tree / Path(package).parent for package in packages))


def find_commit(revision: str, repository: Path = ROOT) -> str:
    """The commit that a revision names.

    Raises:
        MisuseError: there is no such revision, or no repository.
    """
    ran = _run_git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options",
                   f"{revision}^{{commit}}")  # fmt: skip
    if ran.returncode:
        why = ran.stderr.decode(errors="replace").strip() or "git knows no such commit"
        raise MisuseError(f"no revision {revision!r}: {why}")
    return ran.stdout.decode().strip()


def check_out(commit: str, folder: Path, repository: Path = ROOT) -> None:
    """Put the files of a commit into a folder.

    Raises:
        BenchError: git failed.
    """
    ran = _run_git(repository, "archive", "--format=tar", commit)
    if ran.returncode:
        raise BenchError(f"git archive {commit}: {ran.stderr.decode(errors='replace').strip()}")
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as archive:
        archive.extractall(folder, filter="data")


def explain_locks(base: Path, tree: Path) -> str | None:
    """What to say where the two were locked to other packages; None where they were not."""
    locks = [_read_lock(root / "requirements.lock") for root in (base, tree)]
    changed = sorted(
        name for name in locks[0].keys() | locks[1].keys()
        if locks[0].get(name) != locks[1].get(name)
    )  # fmt: skip
    if not changed:
        return None
    return (
        "The base is locked to other packages and runs with the current ones here: "
        f"{', '.join(changed[:8])}{' …' if len(changed) > 8 else ''}. "
        "What those changed is on both sides."
    )


def _read_lock(path: Path) -> dict[str, str]:
    """Version by name."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pinned = [line.split()[0].partition("==") for line in lines if "==" in line and line[0] != " "]
    return {name: version for name, _, version in pinned}


def _run_git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
