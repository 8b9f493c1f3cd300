"""checkov, which looks for careless settings in manifests: kept out of the project's environment.

It wants eighty packages in versions of its own, so it lives in the user's cache folder, made from
checkov.lock by `python -m tests.kubernetes.chart.checkov`, as `make test-kubernetes` does. It asks
nobody for anything while it runs. EXCEPTIONS says which findings stand, and why.

Called by `test_scanners` and tests/kubernetes/__main__.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.cache import cache_folder, cached_path

HERE = Path(__file__).resolve().parent
LOCK = HERE / "checkov.lock"


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
    if _folder().is_dir():
        return None
    return "python -m tests.kubernetes.chart.checkov installs it"


def scan(manifests: Path) -> list[Finding]:
    """What it finds in a file, exceptions included."""
    command = [str(_folder() / "bin" / "python"), "-m", "checkov.main", "--skip-download"]
    done = subprocess.run(
        [*command, "--framework", "kubernetes", "--output", "json", "--file", str(manifests)],
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


def _made_of() -> tuple[bytes, str]:
    """Its packages, and the interpreter that they are compiled for."""
    return LOCK.read_bytes(), sys.version


def _folder() -> Path:
    return cached_path("checkov", *_made_of())


def main() -> int:
    """Install it, if what is there was not made from this lock; 1 where it cannot be had."""
    if reason_missing() is None:
        return 0
    try:
        cache_folder("checkov", *_made_of(), make=_install)
    except subprocess.CalledProcessError as error:
        print(f"no checkov: {error}", file=sys.stderr)
        return 1
    return 0


def _install(into: Path) -> None:
    uv = [str(Path(sys.executable).with_name("uv"))]
    # Relocatable: the folder gets its name when it is whole.
    made = [*uv, "venv", "-q", "--relocatable", "--allow-existing", "--python", sys.executable]
    subprocess.run([*made, str(into)], check=True)
    python = ["--python", str(into / "bin" / "python")]
    hashed = ["--require-hashes", "--no-deps", "-r", str(LOCK)]
    subprocess.run([*uv, "pip", "install", "-q", *python, *hashed], check=True)


if __name__ == "__main__":
    sys.exit(main())
