"""Rules about where things stand: import circles, tests that import tests, lone modules, waits.

Each `find_…` takes modules or paths and returns faults as sentences, none when all is well; nothing
touches the disk, so that `test_arrangement.py` can prove that each rule can fail. Layers are
import-linter's matter; style inside one module is `tidiness`'s.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath
from typing import Final

from tests.style.tidiness import PRODUCT_FOLDERS, Module

SOURCE_ROOTS: Final = ("libs/common", *(f"services/{one}" for one in
    ("bookie", "sequencer", "writeproxy", "readproxy")), "operator", "spark-jobs")  # fmt: skip

FOLDER_MODULES_MIN: Final = 3
SMALL_FOLDERS: Final = {
    "operator/duramen_operator/apply": "observe, plan and apply are the operator's three steps",
    "spark-jobs/duramen_spark/retention": "each job is a package of its own, with its driver",
    "spark-jobs/duramen_spark/verify": "each job is a package of its own, with its driver",
}
"""Product folders that may be small, each with its reason."""

WAITING_MODULE: Final = "tests/waiting.py"
WAIT_NAMES: Final = frozenset({"wait_for", "wait_until", "wait_until_so", "eventually"})


def find_circles(modules: Iterable[Module]) -> list[str]:
    """Product modules that import each other in a loop, imports for types alone included; one loop
    is told at a time.
    """
    named = {name: module for module in modules if (name := _name_module(module.path))}
    arrows = {name: sorted(_find_imports(module, named)) for name, module in named.items()}
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1]) + ": import each other"]
    return []


def find_test_imports(module: Module) -> list[str]:
    """Imports of test modules: what several tests share stands in a module that is no test."""
    return [
        f"{module.path}:{node.lineno}: imports {name}: move what is shared into a module of its own"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _list_imported(node)
        if name.startswith("tests.") and ".test_" in name
    ]


def find_lone_modules(paths: Iterable[str]) -> list[str]:
    """Product folders of one or two modules, `__init__.py` not counted, without a reason."""
    paths = list(paths)
    counts = Counter(
        str(PurePosixPath(path).parent)
        for path in paths
        if path.endswith(".py")
        and path.split("/")[0] in PRODUCT_FOLDERS
        and not path.endswith("/__init__.py")
    )
    parents = {str(PurePosixPath(folder).parent) for folder in counts}
    faults = [
        f"{folder}: {count} modules do not need a folder"
        for folder, count in counts.items()
        if count < FOLDER_MODULES_MIN and folder not in SMALL_FOLDERS and folder not in parents
    ]
    return sorted(faults) + sorted(
        f"{folder}: needs no exception"
        for folder in SMALL_FOLDERS
        if counts.get(folder, 0) >= FOLDER_MODULES_MIN
    )


def find_other_waits(module: Module) -> list[str]:
    """Loops of a test's own that wait for a condition: `tests/waiting.py` has the one."""
    if module.path == WAITING_MODULE:
        return []
    return [
        f"{module.path}:{node.lineno}: {node.name}: use wait_for of tests/waiting.py"
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in WAIT_NAMES
    ]


def _name_module(path: str) -> str | None:
    for root in SOURCE_ROOTS:
        if path.startswith(f"{root}/") and path.endswith(".py"):
            dotted = path.removeprefix(f"{root}/").removesuffix(".py").replace("/", ".")
            return dotted.removesuffix(".__init__")
    return None


def _find_imports(module: Module, named: dict[str, Module]) -> set[str]:
    """The modules of ours that a module names; a package's face where it takes a name from it."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _list_imported(node):
                found.add(name if name in named else name.rpartition(".")[0])
    return (found & named.keys()) - {_name_module(module.path)}


def _list_imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    return [f"{node.module}.{one.name}" for one in node.names]
