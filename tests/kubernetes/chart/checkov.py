"""checkov, which looks for careless settings in manifests: kept out of the project's environment.

It wants eighty packages in versions of its own, so it lives in build/checkov, made from
checkov.lock by `python -m tests.kubernetes.chart.checkov`, as `make test-kubernetes` does. It asks
nobody for anything while it runs. EXCEPTIONS says which findings stand, and why.

Called by `test_scanners` and tests/kubernetes/__main__.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
LOCK = HERE / "checkov.lock"
FOLDER = HERE.parents[2] / "build" / "checkov"
STAMP = FOLDER / "made-of"


class Finding(NamedTuple):
    """A check that a resource did not pass."""

    check: str
    resource: str
    text: str


class Leave(NamedTuple):
    """A finding that stands, and why."""

    check: str
    about: str
    """What the resource's name begins with, from its kind on."""
    why: str


_TOKEN = "it asks the API server: that is what it is for"
_ENDS = "it runs to its end and serves nobody: its exit status is what counts"

EXCEPTIONS = (
    Leave("CKV_K8S_38", "Deployment.demo-duramen-operator", _TOKEN),
    Leave("CKV_K8S_38", "Job.demo-duramen-", _TOKEN),
    Leave("CKV_K8S_8", "Pod.demo-duramen-test", _ENDS),
    Leave("CKV_K8S_9", "Pod.demo-duramen-test", _ENDS),
)


def reason_missing() -> str | None:
    """Why it cannot run here; None when it can."""
    if STAMP.exists() and STAMP.read_text() == _digest():
        return None
    return f"no checkov in {FOLDER}: python -m tests.kubernetes.chart.checkov installs it"


def scan(manifests: Path) -> list[Finding]:
    """What it finds in a file, exceptions included."""
    command = [FOLDER / "bin" / "checkov", "--framework", "kubernetes", "--skip-download"]
    done = subprocess.run(
        [*map(str, command), "--output", "json", "--file", str(manifests)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env={"PATH": os.environ["PATH"], "HOME": str(manifests.parent)},
    )
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["passed"] > 100
    return [
        Finding(one["check_id"], _strip(one["resource"]), one["check_name"])
        for one in report["results"]["failed_checks"]
    ]


def _strip(resource: str) -> str:
    """`Job.shop.name` without the namespace."""
    kind, _, name = resource.split(".", 2)
    return f"{kind}.{name}"


def _digest() -> str:
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()


def main() -> int:
    """Install it, if what is there was not made from this lock; 1 where it cannot be had."""
    if reason_missing() is None:
        return 0
    try:
        _install()
    except subprocess.CalledProcessError as error:
        print(f"no checkov: {error}", file=sys.stderr)
        return 1
    return 0


def _install() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    uv = [str(Path(sys.executable).with_name("uv"))]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(FOLDER)], check=True)
    python = ["--python", str(FOLDER / "bin" / "python")]
    hashed = ["--require-hashes", "--no-deps", "-r", str(LOCK)]
    subprocess.run([*uv, "pip", "install", "-q", *python, *hashed], check=True)
    STAMP.write_text(_digest())


if __name__ == "__main__":
    sys.exit(main())
