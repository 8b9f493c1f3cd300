"""A failure is told when it happens: a run that is ended before its end has told what failed.

pytest tells failures at the end of a run, and CI ends a run that takes too long. Of a run with
workers the process that spreads the tests tells. Loaded by `tests/conftest.py`.
"""

from __future__ import annotations

from typing import Final

import pytest

_TOLD_MAX: Final = 2_000
"""Characters of the end of a failure; all of it comes when the run ends."""


class FailureTeller:
    """Writes each failure where pytest writes its dots."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell the test, the end of its traceback, and the end of what it printed."""
        if report.failed:
            self._terminal.write_line(f"\nFAILED in {report.when}: {report.nodeid}")
            for text in (report.longreprtext, report.capstdout):
                if text:
                    self._terminal.write_line(text[-_TOLD_MAX:])


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Tell them, but for workers, which have no terminal."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureTeller(terminal), "failures")
