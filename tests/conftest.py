"""What holds for every test run, whatever its layer.

A run that has ended must end: a thread that a failed test left behind would keep the interpreter
waiting for it after pytest's closing line, and CI silent until its own limit.
"""

import faulthandler
import gc
import resource
import sys
from collections.abc import Generator, Iterator

import pytest

from tests import examples, interrupts, own_costs

# Hooks and a fixture: pytest finds them here by their names.
from tests.failures import pytest_configure
from tests.machine import pytest_runtest_protocol, pytest_runtestloop
from tests.requirements import (
    pytest_make_collect_report,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)
from tests.scheduling import (
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)
from tests.shared_cluster import shared_cluster

__all__ = [
    "pytest_configure",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtestloop",
    "pytest_terminal_summary",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
    "shared_cluster",
]

examples.load_profile()
own_costs.spare()

EXIT_WITHIN_S = 60


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays, so the collector of cycles is not to look at it.

    It took two fifths of a collection, and then a fourteenth of the tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A test that interrupts itself is interrupted, whoever has run in this process before."""
    interrupts.heed()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Let the interpreter end soon, or with the stacks of what keeps it and status 1.

    A worker that has done its part waits for the others, and is ended by the run's own process.
    """
    if hasattr(config, "workerinput"):
        return
    faulthandler.dump_traceback_later(EXIT_WITHIN_S, exit=True, file=sys.stderr)


@pytest.fixture
def many_files() -> Iterator[None]:
    """A test with thousands of connections has an end of each in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
