"""A process that has imported what every test needs, and forks one child for each run of pytest.

Importing pytest, FastAPI and the rest costs more than most of the runs. Nothing of ours is imported
here but this module and `touching`: each child imports the tree as it is at that moment. Started by
`tree`, with an order of JSON on each line; answers with the child's id, then with its exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import warnings
from typing import Any, Final

import pytest

from tests.mutants_services.touching import Touches

_HEAVY: Final = (
    "_pytest.junitxml", "cyclopts", "fastapi.testclient", "granian.server.embed", "httpx",
    "hypothesis.strategies", "_hypothesis_pytestplugin", "kazoo.client", "obstore", "orjson",
    "prometheus_client", "pyarrow.parquet", "pydantic", "pyreqwest.client", "pytest_timeout",
    "requests", "rich.console", "schemathesis.pytest.plugin", "uvicorn", "uvloop", "yaml",
)  # fmt: skip


def main() -> None:
    """Serve orders until the input ends."""
    with warnings.catch_warnings(action="ignore"):
        for name in _HEAVY:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(json.loads(line))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(order: dict[str, Any]) -> None:
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, descriptor)
    os.environ |= order["environment"]
    code = 3  # as pytest's own for a mistake within it
    try:
        code = int(pytest.main(order["arguments"], [Touches()]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
