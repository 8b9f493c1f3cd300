"""HTTP/2 as RFC 9113 has it, at both public ports: h2spec in cleartext mode, prior knowledge.

The tool is Go's. It is taken from the path or made by `go install` into a temporary folder; without
Go, or where the module cannot be had, the test is left out. What the server library does
otherwise is listed with its reason: a case that is not in the list fails the test, and so does one
that is mended. The tool breaks rules in the middle of a request, and an answer that is there before
would hide what is said of them: so it asks for news of a log without any, which takes a while.
As a POST that is refused at once: the cases that depend on it have a path that needs its body.
No case of a server that follows the standard waits for a time limit of the tool's: that is as long
as a hang. How long a case may take is asserted here, without what the machine did not give.

Source: docs/testing.md "The REST contract".
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree

import httpx
import pytest

from tests import go_builds
from tests.cache import cache_folder
from tests.process.cluster import LocalCluster, running_plain_cluster
from tests.process.times import HANG_S
from tests.requirements import Need, leave_out
from tests.ticker import Ticker, running_ticker
from tests.waiting import wait_in_thread

MODULE: Final = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
PARTS: Final = {
    ("generic", "http2/3", "http2/4", "http2/5"): 76,
    ("http2/6", "http2/7", "http2/8", "hpack"): 69,
}
"""All sections, and how many cases they have. The last of the first part opens as many streams as
the port allows and leaves them. That are a thousand requests, a second of a processor, and the
first case that waits for a whole answer waited for all of them."""

CASE_COUNT: Final = sum(PARTS.values())
EXCEPTIONS: Final = {
    "http2/3.5: Sends invalid connection preface": "the port speaks HTTP/1.1 too: what is no "
    "preface is a bad HTTP/1.1 request, answered with 400 before the connection is closed",
}
"""Cases that fail, and why that is harmless."""

BODY_CASES: Final = {
    "http2/8.1/1": "http2/8.1: Sends a second HEADERS frame without the END_STREAM flag",
    "http2/8.1.2.1/3": "http2/8.1.2.1: Sends a HEADERS frame that contains a pseudo-header field "
    "as trailers",
}
"""Cases with malformed trailers of a POST, by the name the tool takes: judged in their own run,
with a request that needs its body. At another path the refusal may be there before the trailers."""

SOMETIMES: Final = {
    'http2/8.1.2.6: Sends a HEADERS frame with the "content-length" header field which does not '
    + end: "the gate refuses a body without a type by its headers, before the body is there"
    for end in (
        "equal the DATA frame payload length",
        "equal the sum of the multiple DATA frames payload length",
    )
}
"""Cases that may fail, and why that is harmless: no request of the tool's has a content type."""

PATH: Final = "/v1/namespaces/default/logs/http2/records?from=tail&wait=200ms"
"""What is asked for: a GET is answered long after all frames of the request."""

BODY_PATH: Final = "/v1/namespaces/default/logs/http2:truncate"
"""A POST is answered when its body has come to its end, and not before."""

HEADER_BYTES: Final = 220_000
"""h2spec makes five such headers of it where a frame is to be too large: more than our 1 MiB."""

SILENCE_S: Final = 30
"""For how long h2spec waits for a frame."""

CASE_S: Final = 5.0
"""The product's part of a case: 0.6 s at most beside twenty busy processes."""


@pytest.fixture(scope="module")
def h2spec() -> Path:
    found = shutil.which("h2spec")
    if found is not None:
        return Path(found)
    go = shutil.which("go")
    if go is None:
        leave_out(Need.GO, "it builds h2spec, which is not on the path either")

    def build(folder: Path) -> None:
        # It names no versions of what it needs: Go chooses them, and has to write that down.
        flags = go_builds.ENVIRONMENT["GOFLAGS"].replace("-mod=readonly", "-mod=mod")
        environment = {**os.environ, **go_builds.ENVIRONMENT, "GOFLAGS": flags}
        environment["GOBIN"] = str(folder)
        command = [go, "install", MODULE]
        subprocess.run(command, env=environment, timeout=HANG_S, check=True, capture_output=True)

    try:
        return cache_folder("h2spec", MODULE, make=build) / "h2spec"
    except subprocess.CalledProcessError as error:
        leave_out(Need.GO, f"go install {MODULE}: {error.stderr.decode().strip()[-200:]}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One that asks nobody who calls: h2spec shows no header."""
    with running_plain_cluster(tmp_path_factory.mktemp("plain") / "c") as running:
        yield running


@pytest.mark.process
@pytest.mark.zookeeper
@pytest.mark.timeout(600)
@pytest.mark.parametrize("side", ["write_url", "read_url"])
def test_http2_is_as_the_standard_says(
    h2spec: Path, cluster: LocalCluster, side: str, tmp_path: Path
) -> None:
    httpx.put(f"{cluster.state()['write_url']}/v1/namespaces/default/logs/http2")
    url = cluster.state()[side]
    answer = httpx.get(url + PATH)
    assert (answer.status_code, answer.elapsed.total_seconds() >= 0.2) == (200, True), answer.text
    with running_ticker(tmp_path) as ticker:
        failed: Causes = {}
        for cases, count in PARTS.items():
            failed |= find_failures(
                ticker, h2spec, f"{url}{PATH}", tmp_path, cases=cases, count=count
            )
            wait_in_thread(lambda: is_idle(cluster), HANG_S, "what was left to be answered")
        failed = {case: cause for case, cause in failed.items() if case not in BODY_CASES.values()}
        bodies = tuple(BODY_CASES)
        failed |= find_failures(
            ticker, h2spec, f"{url}{BODY_PATH}", tmp_path, cases=bodies, count=len(bodies)
        )
    if find_doubts(failed):
        print(show_statistics(cluster, side))
    print(f"{side}: {CASE_COUNT - len(failed)} of {CASE_COUNT}")
    assert not find_doubts(failed)


Causes = dict[str, str]
"""Cases that failed, each with what h2spec says of it."""


def find_doubts(failed: Causes) -> Causes:
    """What is otherwise than in the lists: a new failure, or a listed one that is mended."""
    mended = EXCEPTIONS.keys() - failed.keys()
    known = EXCEPTIONS.keys() | SOMETIMES.keys()
    unexpected = {case: cause for case, cause in failed.items() if case not in known}
    return unexpected | dict.fromkeys(sorted(mended), "passes, though it is in the list")


def show_statistics(cluster: LocalCluster, side: str) -> str:
    """What the process of this port counts: what it waited for, where an answer did not come."""
    node = {"write_url": "writeproxy-0", "read_url": "readproxy-0"}[side]
    return httpx.get(f"{cluster.process(node)['admin_url']}/v1/statistics", timeout=HANG_S).text


def is_idle(cluster: LocalCluster) -> bool:
    """Whether no request is in flight at either port; the one for writing forwards what is read."""
    written = json.loads(show_statistics(cluster, "write_url"))
    read = json.loads(show_statistics(cluster, "read_url"))
    in_flight = [written["requests"], written["forwarding"]["open"], read["requests"]["open"]]
    return not any(in_flight)


def find_failures(
    ticker: Ticker, h2spec: Path, url: str, folder: Path, *, cases: tuple[str, ...], count: int
) -> Causes:
    """Which of so many cases fail in one run of these, and which take too long."""
    address = urlsplit(url)
    report = folder / "report.xml"
    command = [str(h2spec), "--host", str(address.hostname), "--port", str(address.port)]
    command += ["--path", url.removeprefix(f"{address.scheme}://{address.netloc}")]
    command += ["--timeout", str(SILENCE_S), "--max-header-length", str(HEADER_BYTES), "--verbose"]
    command += ["--junit-report", str(report), *cases]
    began_s = time.monotonic()
    ran = subprocess.run(command, timeout=HANG_S, check=False, capture_output=True, text=True)
    assert report.exists(), ran.stderr
    found = read_report(report)
    assert found.case_count == count, ran.stdout[-500:]
    print(find_frames(ran.stdout))
    print(f"{max(found.took_s):.1f} s for the slowest case")
    return found.failed | find_slow(ticker, began_s, found)


def find_slow(ticker: Ticker, began_s: float, found: Report) -> Causes:
    """The cases whose own part took too long: they run one after another."""
    slow: Causes = {}
    for case, took_s in zip(found.cases, found.took_s, strict=True):
        if took_s > CASE_S and ticker.product_s(began_s, began_s + took_s) > CASE_S:
            slow[case] = f"took {took_s:.1f} s"
        began_s += took_s
    return slow


def find_frames(told: str) -> str:
    """What was sent and received in each case that failed, out of the tool's words of all cases."""
    frames: list[str] = []
    failed: list[str] = []
    for line in told.partition("\nFailures:")[0].splitlines():
        words = line.strip()
        if words.startswith(("[send]", "[recv]")):
            frames.append(words)
            continue
        if words.startswith("×"):
            failed += [words, *frames]
        if words:
            frames.clear()
    return "\n".join(failed)


class Report(NamedTuple):
    """What h2spec wrote of one run."""

    cases: list[str]
    """In the order in which they ran; two may have one name."""
    took_s: list[float]
    failed: Causes

    @property
    def case_count(self) -> int:
        """How many there are."""
        return len(self.cases)


def read_report(path: Path) -> Report:
    """Every case, and the causes of those that failed."""
    found = Report([], [], {})
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('package')}: {case.get('classname')}"
        found.cases.append(name)
        found.took_s.append(float(case.get("time", 0)))
        faults = [" ".join("".join(fault.itertext()).split())
                  for kind in ("failure", "error") for fault in case.iter(kind)]  # fmt: skip
        if faults:
            found.failed[name] = "; ".join(faults)
    return found


ONE_EXCEPTION: Final = next(iter(EXCEPTIONS))


@pytest.mark.parametrize(
    ("failed", "doubtful"),
    [
        ({ONE_EXCEPTION: "a 400"}, set()),
        ({ONE_EXCEPTION: "a 400"} | SOMETIMES, set()),
        ({ONE_EXCEPTION: "a 400", "x": "timeout"}, {"x"}),
        ({}, {ONE_EXCEPTION}),
    ],
    ids=["as listed", "sometimes", "not in the list", "mended"],
)
def test_what_is_otherwise_than_in_the_list_is_told(failed: Causes, doubtful: set[str]) -> None:
    assert find_doubts(failed).keys() == doubtful


def test_the_cause_of_a_failure_is_told(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite name="http2">
        <testcase package="http2/4.2" classname="Sends a large frame" time="0.1">
          <failure>GOAWAY frame\nConnection closed</failure>
          <error>what came: timeout</error></testcase>
        <testcase package="http2/4.3" classname="Sends none" time="5.7"></testcase>
        <testcase package="http2/4.3" classname="Is left out"><skipped></skipped></testcase>
        </testsuite></testsuites>"""
    )
    found = read_report(report)
    cause = "GOAWAY frame Connection closed; what came: timeout"
    cases = ["http2/4.2: Sends a large frame", "http2/4.3: Sends none", "http2/4.3: Is left out"]
    assert found == Report(cases, [0.1, 5.7, 0.0], {cases[0]: cause})
    assert cause in str(find_doubts(found.failed))


@pytest.mark.parametrize(("stall", "slow"), [((0.0, 0.2), {"b"}), ((2.0, 3.0), set())])
def test_a_case_that_takes_too_long_without_a_stall_of_the_machine_is_told(
    stall: tuple[float, float], slow: set[str]
) -> None:
    ticker = Ticker()
    for kind in ("cpu", "disk"):
        ticker.note(kind, 100 + stall[0], 100 + stall[1])
        ticker.note(kind, 120.0, 120.0)
    assert find_slow(ticker, 100.0, Report(["a", "b"], [0.3, 5.7], {})).keys() == slow


def test_the_frames_of_a_case_that_failed_are_told() -> None:
    told = """HTTP/2
      [send] SETTINGS Frame
      ✔ 1: Passes
      [send] HEADERS Frame
      [recv] Timeout

      × 2: Fails
        -> The endpoint MUST answer.
Failures:
      × 2: Fails
"""
    assert find_frames(told).splitlines() == [
        "× 2: Fails",
        "[send] HEADERS Frame",
        "[recv] Timeout",
    ]
