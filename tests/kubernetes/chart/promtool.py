"""promtool, which checks rules and metrics pages: the machine's own, or Debian's unpacked here.

`python -m tests.kubernetes.chart.promtool` unpacks it from Debian's package prometheus into
build/promtool, as `make test-kubernetes` does: no root, nothing installed, no server started.
`run` is for tests, which skip without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kubernetes.conftest import require

FOLDER = Path(__file__).resolve().parents[3] / "build" / "promtool"
PROGRAM = FOLDER / "usr" / "bin" / "promtool"


def find() -> str | None:
    """Where it is; None: nowhere."""
    return str(PROGRAM) if os.access(PROGRAM, os.X_OK) else shutil.which("promtool")


def run(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run it; the test skips where it is missing."""
    program = find()
    reason = "no promtool: python -m tests.kubernetes.chart.promtool unpacks it (needs apt-get)"
    require(None if program else reason)
    return subprocess.run(
        [str(program), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def main() -> int:
    """Unpack it, if there is none; gives 1, and says why, where it cannot be had."""
    if find() is not None:
        return 0
    if shutil.which("apt-get") is None:
        print("no promtool: there is no apt-get that could give it", file=sys.stderr)
        return 1
    try:
        _unpack()
    except subprocess.CalledProcessError as error:
        print(f"no promtool: {error}", file=sys.stderr)
        return 1
    return 0


def _unpack() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    # apt downloads as its own user, who must be able to write there.
    FOLDER.chmod(0o777)
    if not any(Path("/var/lib/apt/lists").glob("*Packages*")):
        subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=FOLDER, check=True)
    for archive in FOLDER.glob("prometheus_*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(archive), str(FOLDER)], check=True)
        archive.unlink()
    # 100 MB of a server that nobody starts.
    (FOLDER / "usr" / "bin" / "prometheus").unlink(missing_ok=True)
    shutil.rmtree(FOLDER / "usr" / "share", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
