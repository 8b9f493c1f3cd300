"""A copy of the tree in which faults are put, and tests run against it with a time bound.

The checkout itself is only read. The copy has what git tracks or would take; its import roots come
before everything installed, so that the copy's code is what runs. Whatever a run leaves behind,
a server that a killed test had started, is found by a mark in its environment and ended.
Called by `playing`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from tests.cache import cache_root
from tests.machine import LOCK_NAME, MachineLock
from tests.mutants_services.fault import Fault
from tests.mutants_services.touching import FILE_VARIABLE, Span, put_probes, read_touches
from tests.pauses import is_readable

_MARK: Final = "DURAMEN_MUTANT_RUN"
_NOTICED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_PASSED, _FAILED, _INTERRUPTED = 0, 1, 2
"""Exit codes of pytest; with 2 a test file could not be imported."""


class Run(NamedTuple):
    """How a run of tests ended."""

    code: int | None
    """Of pytest; None: it hung and was ended."""
    elapsed_s: float
    noticed: str
    """The first test that failed, "" if none did."""
    output: str

    @property
    def has_passed(self) -> bool:
        """Whether all tests ran and none objected."""
        return self.code == _PASSED

    @property
    def has_noticed(self) -> bool:
        """Whether a test objected, could not be imported, or hung."""
        return self.code in (None, _FAILED, _INTERRUPTED)


class Tree:
    """A copy of a checkout in a folder of its own."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.root = folder / "tree"
        self._scratch = folder / "scratch"
        self._times = self._scratch / "times.xml"
        self._touches = self._scratch / "touches.json"
        self._warm: subprocess.Popen[str] | None = None
        self._child: int | None = None
        self._scratch.mkdir(parents=True)
        for name in list_files(checkout):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, target, follow_symlinks=False)

    @contextlib.contextmanager
    def broken(self, fault: Fault) -> Iterator[None]:
        """Run the block with a fault in place."""
        source = (self.root / fault.path).read_text(encoding="utf-8")
        self._write(fault.path, fault.apply(source))
        try:
            yield
        finally:
            self._write(fault.path, source)

    @contextlib.contextmanager
    def probed(self, spans: Mapping[str, Sequence[Span]]) -> Iterator[None]:
        """Run the block with probes before statements of modules."""
        sources = {path: (self.root / path).read_text(encoding="utf-8") for path in spans}
        self._touches.unlink(missing_ok=True)
        try:
            for path, source in sources.items():
                self._write(path, put_probes(source, path, spans[path]))
            yield
        finally:
            for path, source in sources.items():
                self._write(path, source)

    def run(self, tests: Sequence[str], *, limit_s: float, until_first: bool = True) -> Run:
        """Run test files or single tests, for `limit_s` at most."""
        log, mark = self._scratch / "output.txt", uuid4().hex
        self._times.unlink(missing_ok=True)
        arguments = [
            "-q", "-rfE", "--no-header", "--tb=line", "-p", "no:cacheprovider",
            f"--basetemp={self._scratch / 'tests'}", f"--junit-xml={self._times}",
            *(["-x"] if until_first else []), *tests,
        ]  # fmt: skip
        order = {
            "log": str(log), "arguments": arguments,
            "environment": {_MARK: mark, FILE_VARIABLE: str(self._touches)},
        }  # fmt: skip
        with _machine_shared():
            began_s = time.monotonic()
            code = self._carry_out(order, began_s + limit_s)
            elapsed_s = time.monotonic() - began_s
        _end_marked(mark)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        found = _NOTICED.search(text)
        noticed = "" if found is None else found[1]
        return Run(code, elapsed_s, noticed, text)

    def read_touches(self) -> dict[str, set[str]]:
        """For each probe that was put last, the tests that came to it ("": while importing)."""
        if not self._touches.exists():
            return {}
        return read_touches(self._touches.read_text(encoding="utf-8"))

    def close(self) -> None:
        """End the process that runs the tests, and what it runs."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child, signal.SIGKILL)
        if self._warm is not None:
            self._warm.kill()
            self._warm.wait()
            self._warm = None

    def _carry_out(self, order: dict[str, Any], until_s: float) -> int | None:
        if self._warm is None:
            self._warm = subprocess.Popen(
                [sys.executable, "-m", "tests.mutants_services.warm"],
                cwd=self.root, env=self._environment(), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, bufsize=1,
            )  # fmt: skip
        assert self._warm.stdin is not None and self._warm.stdout is not None
        self._warm.stdin.write(json.dumps(order) + "\n")
        self._warm.stdin.flush()
        self._child = child = int(self._warm.stdout.readline())
        ready = is_readable(self._warm.stdout.fileno(), until_s - time.monotonic())
        if not ready:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        code = int(self._warm.stdout.readline())
        self._child = None
        return code if ready else None

    def read_times(self) -> dict[str, float]:
        """Seconds that each test file of the last run took, if all its tests passed."""
        times: dict[str, float] = {}
        failed = set()
        if not self._times.exists():
            return {}
        for case in xml.etree.ElementTree.parse(self._times).iter("testcase"):
            module = case.get("classname", "").replace(".", "/")
            while module and not (self.root / f"{module}.py").is_file():
                module = module.rpartition("/")[0]
            times[f"{module}.py"] = times.get(f"{module}.py", 0) + float(case.get("time", "0"))
            if case.find("failure") is not None or case.find("error") is not None:
                failed.add(f"{module}.py")
        return {name: time_s for name, time_s in times.items() if name not in failed}

    def _write(self, name: str, source: str) -> None:
        path = self.root / name
        path.write_text(source, encoding="utf-8")
        # Compiled files are believed by size and second of their source: changes may share both.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)

    def _environment(self) -> dict[str, str]:
        roots = [str(self.root / name) for name in _list_import_roots(self.root)]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*roots, str(self.root)]),
            "PYTHONSAFEPATH": "1",
        }


def list_files(checkout: Path) -> list[str]:
    """What git tracks in a checkout, or would take, as far as it is there."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
    names = {name for name in listed.stdout.split("\0") if name}
    return sorted(name for name in names if (checkout / name).is_file())


def _list_import_roots(root: Path) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return list(project["tool"]["hatch"]["build"]["dev-mode-dirs"])


@contextlib.contextmanager
def _machine_shared() -> Iterator[None]:
    """Share the machine for the block; waits for quiet tests of others.

    The tests of a run share it themselves. Where they had to wait, their limit counted it, and a
    fault that nobody had looked at was noticed by a hang.
    """
    lock = MachineLock(cache_root() / LOCK_NAME)
    try:
        lock.share()
        yield
    finally:
        lock.release()


def _end_marked(mark: str) -> None:
    """End every process of one run, found by the mark that all of them inherit."""
    wanted = f"{_MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
