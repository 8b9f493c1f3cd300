"""HTTP/2 as RFC 9113 has it, at both public ports: h2spec in cleartext mode, prior knowledge.

The tool is Go's. It is taken from the path or made by `go install` into a temporary folder; without
Go, or where the module cannot be had, the test is skipped and says so. What the server library does
otherwise is listed with its reason: a case that is not in the list fails the test, and so does one
that is mended.

Source: docs/testing.md "HTTP/2".
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from tests.process.cluster import LocalCluster, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.timeout(600)]

MODULE: Final = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
CASE_COUNT: Final = 145
EXCEPTIONS: Final = {
    "http2/3.5: Sends invalid connection preface": "the port speaks HTTP/1.1 too: what is no "
    "preface is a bad HTTP/1.1 request, answered with 400 before the connection is closed",
}
"""Cases that fail, and why that is harmless."""

RUN_COUNT: Final = 3

HEADER_BYTES: Final = 220_000
"""h2spec makes five such headers of it where a frame is to be too large: more than our 1 MiB."""


@pytest.fixture(scope="module")
def h2spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = shutil.which("h2spec")
    if found is not None:
        return Path(found)
    go = shutil.which("go")
    if go is None:
        pytest.skip("neither h2spec nor Go is here")
    folder = tmp_path_factory.mktemp("go")
    made = subprocess.run(
        [go, "install", MODULE], env={**os.environ, "GOBIN": str(folder)}, timeout=300, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip(f"go install {MODULE}: {made.stderr.strip()[-200:]}")
    return folder / "h2spec"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("h2") / "c") as started:
        yield started


@pytest.mark.parametrize("side", ["write_url", "read_url"])
def test_http2_is_as_the_standard_says(
    h2spec: Path, cluster: LocalCluster, side: str, tmp_path: Path
) -> None:
    """An answer that is under way when h2spec breaks a rule can hide what is said of the rule.

    So a case counts as failed where it fails every time.
    """
    failed = find_failures(h2spec, cluster.state()[side], tmp_path)
    for _ in range(RUN_COUNT - 1):
        if failed != set(EXCEPTIONS):
            failed &= find_failures(h2spec, cluster.state()[side], tmp_path)
    print(f"{side}: {CASE_COUNT - len(failed)} of {CASE_COUNT}")
    assert failed == set(EXCEPTIONS)


def find_failures(h2spec: Path, url: str, folder: Path) -> set[str]:
    """The cases that fail in one run."""
    address = urlsplit(url)
    report = folder / "report.xml"
    command = [str(h2spec), "--host", str(address.hostname), "--port", str(address.port)]
    command += ["--path", "/v1/namespaces?limit=1", "--timeout", "5"]
    command += ["--max-header-length", str(HEADER_BYTES), "--junit-report", str(report)]
    ran = subprocess.run(command, timeout=150, check=False, capture_output=True, text=True)
    assert report.exists(), ran.stderr
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    assert len(cases) == CASE_COUNT, ran.stdout[-500:]
    return {
        f"{case.get('package')}: {case.get('classname')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
