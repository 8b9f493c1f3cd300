"""What tests need beyond Python and pip: how each thing is asked for, what is left out without it.

A test that lacks something calls `leave_out`, which skips it with a reason that names the thing; at
the end of every run a table says what did not run, why, and how to get it. With
DURAMEN_REQUIRE_ALL=1, as CI sets it, whatever is left out fails instead, plain skips too: nothing
vanishes silently. The hooks are loaded by `tests/conftest.py`. Source: CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Generator, Mapping
from enum import StrEnum
from typing import Final, NoReturn

import pytest
from _pytest.terminal import TerminalReporter

REQUIRE_ALL: Final = "DURAMEN_REQUIRE_ALL"


class Need(StrEnum):
    """A thing that some tests need, by the name that reasons and the table use."""

    JDK = "a JDK"
    NODE = "Node"
    CHROMIUM = "Chromium"
    GO = "Go"
    MAVEN = "Maven"
    ROOT = "root"
    LOOP_DEVICES = "loop devices"
    STRACE = "strace"
    DISK = "disk space"
    KUBERNETES = "a built Kubernetes"
    REAL_NODES = "real nodes"
    PROMTOOL = "promtool"
    CHECKOV = "checkov"
    REGISTRY = "a package registry"


WAYS: Final[Mapping[str, str]] = {
    Need.JDK: "install a JDK, 17 or newer (Debian: openjdk-17-jdk-headless), or set JAVA_HOME",
    Need.NODE: "install Node 20 or newer (Debian: nodejs)",
    Need.CHROMIUM: "install Chromium or Chrome (Debian: chromium)",
    Need.GO: "install Go 1.26 or newer from go.dev",
    Need.MAVEN: "install Maven and a JDK (Debian: maven)",
    Need.ROOT: "run the tests as root",
    Need.LOOP_DEVICES: "run on Linux with loop devices, as root (in a container: privileged)",
    Need.STRACE: "install strace (Debian: strace), and allow ptrace",
    Need.DISK: "free 20 GB where the checkout lies",
    Need.KUBERNETES: "run make test-kubernetes, which builds it with Go",
    Need.REAL_NODES: "run make test-kubernetes as root on Debian with cgroup v1",
    Need.PROMTOOL: "run make test-kubernetes where apt-get is",
    Need.CHECKOV: "run make test-kubernetes where Python packages can be had",
    Need.REGISTRY: "let pip reach its registry, or fill its cache",
}
"""How to get each."""

_REASON: Final = re.compile(r"^(?:Skipped: )?needs (?P<need>[^:]+): (?P<detail>.*)$", re.DOTALL)


def leave_out(need: Need, detail: str) -> NoReturn:
    """Skip the running test, or its fixture's tests, for want of something; fails in CI.

    Args:
        detail: what was found instead.
    """
    pytest.skip(f"needs {need}: {detail}")


def leave_out_if(need: Need, detail: str | None) -> None:
    """`leave_out` where there is a reason; None: there is none."""
    if detail is not None:
        leave_out(need, detail)


def is_everything_required() -> bool:
    """Whether nothing may be left out."""
    return os.environ.get(REQUIRE_ALL, "") not in ("", "0")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where all is required a test that was left out has failed."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and is_everything_required():
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was left out: {_reason_of(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that leaves itself out."""
    report = yield
    if report.skipped and is_everything_required():
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was left out: {_reason_of(report)}"
    return report


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """The table of what did not run here."""
    reasons = Counter(map(_reason_of, terminalreporter.stats.get("skipped", [])))
    if reasons:
        terminalreporter.section("Not run here")
        for line in report(reasons):
            terminalreporter.line(line)


def report(reasons: Mapping[str, int]) -> list[str]:
    """The table, a block for each reason: how many tests, for want of what, why, the way out."""
    lines = []
    for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])):
        tests = "1 test" if count == 1 else f"{count} tests"
        found = _REASON.match(reason)
        if found is None:
            lines.append(f"{tests}: {reason}")
        else:
            lines.append(f"{tests} for want of {found['need']}: {found['detail']}")
            lines.append(f"    to run them: {WAYS[found['need']]}")
    return lines


def _reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What `pytest.skip` was told: the third part of (file, line, reason)."""
    told = report.longrepr
    reason = told[2] if isinstance(told, tuple) else str(told)
    return reason.removeprefix("Skipped: ")
