"""The rules of the house style that a machine can check, as plain functions over source text.

Each `find_…` takes a module (or a list of paths) and returns its faults as sentences, none when all
is well. Nothing here touches the disk, so `test_tidy.py` can feed bad sources and prove that each
rule can fail. Not here: what ruff, mypy and import-linter already see. CONTRIBUTING.md has
the style on a page.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

NOSE_LINES_MIN, NOSE_LINES_MAX = 3, 15
MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
FOLDER_MODULES_MAX = 12
LINE_COLUMNS_MAX = 100

# fmt: off
TOP_LEVEL = frozenset({
    ".ci", ".gitignore", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile",
    "LICENSE", "Makefile", "README.md", "charts", "docs", "libs", "operator", "pyproject.toml",
    "requirements.lock", "services", "spark-jobs", "tests",
})
PRODUCT_FOLDERS = ("libs", "services", "operator", "spark-jobs")
EMPTY_NAMES = frozenset({
    "utils", "util", "helpers", "helper", "common", "misc", "base", "manager",
})

# Modules that reach a disk, a network, a clock, an event loop or a log. import-linter follows
# chains of imports and is the rule; this list is the quick answer at the line that broke it.
IMPURE_MODULES = frozenset({
    "asyncio", "concurrent", "granian", "httpx", "io", "kazoo", "logging", "multiprocessing", "os",
    "pathlib", "pyreqwest", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl",
    "subprocess", "tempfile", "threading", "time", "uvloop",
})
IMPURE_CALLS = frozenset({"now", "today", "utcnow", "uuid1", "uuid4", "urandom", "open"})
# fmt: on

# Spelt with classes of one letter, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X|H[A]CK)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A Python file: its path from the repository's root, with forward slashes, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    def is_in(self, *folders: str) -> bool:
        return any(self.path.startswith(f"{folder}/") for folder in folders)


def find_nose_faults(module: Module) -> list[str]:
    """The module's docstring: 3 to 15 lines; a package's own file may be shorter, or empty."""
    nose = ast.get_docstring(module.tree)
    lines = len(nose.splitlines()) if nose else 0
    is_package = module.name == "__init__.py"
    if is_package and (lines or not module.tree.body) and lines <= NOSE_LINES_MAX:
        return []
    if NOSE_LINES_MIN <= lines <= NOSE_LINES_MAX:
        return []
    return [f"{module.path}: the opening docstring has {lines} lines, not 3 to 15"]


def find_size_faults(module: Module) -> list[str]:
    """Modules of at most 700 lines, functions of at most 70, lines of at most 100 columns."""
    lines = module.text.splitlines()
    faults = []
    if len(lines) > MODULE_LINES_MAX:
        faults.append(f"{module.path}: {len(lines)} lines, more than {MODULE_LINES_MAX}")
    for number, line in enumerate(lines, start=1):
        if len(line) > LINE_COLUMNS_MAX:
            faults.append(f"{module.path}:{number}: {len(line)} columns")
    for function in _walk_functions(module.tree):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > FUNCTION_LINES_MAX:
            faults.append(f"{module.path}:{function.lineno}: {function.name} has {length} lines")
    return faults


def find_unfinished(path: str, text: str) -> list[str]:
    """Words that mark work as not done. They belong into an issue."""
    return [
        f"{path}:{number}: {line.strip()[:80]}"
        for number, line in enumerate(text.splitlines(), start=1)
        if UNFINISHED.search(line)
    ]


def find_sleeps(module: Module) -> list[str]:
    """Tests wait for conditions: `sleep` with anything but a literal 0 is a guess about time."""
    return [
        f"{module.path}:{call.lineno}: sleeps instead of waiting for a condition"
        for call in ast.walk(module.tree)
        if isinstance(call, ast.Call) and _called_name(call) == "sleep" and not _is_zero(call.args)
    ]


def find_impurities(module: Module) -> list[str]:
    """What a core may not hold: I/O, a clock, its own randomness, iteration over a set.

    `random` may be imported for the type of an injected `random.Random`, and for nothing else.
    """
    faults = []
    for node in ast.walk(module.tree):
        found = _find_impurity(node)
        if found:
            faults.append(f"{module.path}:{getattr(node, 'lineno', 1)}: {found}")
    return faults


def find_undocumented(module: Module) -> list[str]:
    """Public classes and functions at module level without a docstring."""
    return [
        f"{module.path}:{node.lineno}: {node.name} has no docstring"
        for node in module.tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]


def find_name_faults(paths: Iterable[str]) -> list[str]:
    """Files and folders whose name says nothing. `libs/common` alone is allowed."""
    faults = set()
    for path in paths:
        parts = PurePosixPath(path).parts
        for depth, part in enumerate(parts, start=1):
            here = "/".join(parts[:depth])
            is_code = depth < len(parts) or part.endswith(".py")
            if is_code and here != "libs/common" and part.removesuffix(".py") in EMPTY_NAMES:
                faults.add(f"{here}: say what is in it")
    return sorted(faults)


def find_crowded_folders(paths: Iterable[str]) -> list[str]:
    """Product folders with more than 12 modules, `__init__.py` not counted."""
    modules = Counter(
        str(PurePosixPath(path).parent)
        for path in paths
        if path.endswith(".py")
        and not path.endswith("/__init__.py")
        and path.split("/")[0] in PRODUCT_FOLDERS
    )
    return sorted(
        f"{folder}: {count} modules"
        for folder, count in modules.items()
        if count > FOLDER_MODULES_MAX
    )


def find_layout_faults(paths: Iterable[str]) -> list[str]:
    """Entries at the top level that are not agreed, and what would hide a module of Python's own.

    `operator/__init__.py` would replace the standard library's `operator` for any Python that has
    the repository's root on its path.
    """
    paths = list(paths)
    top = {path.split("/")[0] for path in paths}
    faults = [f"{entry}: not an agreed entry of the top level" for entry in sorted(top - TOP_LEVEL)]
    if "operator/__init__.py" in paths:
        faults.append("operator/__init__.py: hides the standard library's operator")
    return faults


def _walk_functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _called_name(call: ast.Call) -> str:
    """The last part of what is called: `sleep` for both `sleep(1)` and `asyncio.sleep(1)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _is_zero(args: list[ast.expr]) -> bool:
    return bool(args) and isinstance(args[0], ast.Constant) and args[0].value == 0


def _is_set(node: ast.expr) -> bool:
    """A set as one can see it in the source: `{…}`, `{… for …}`, `set(…)`, `frozenset(…)`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in {"set", "frozenset"}
    return isinstance(node, ast.Set | ast.SetComp)


def _find_impurity(node: ast.AST) -> str:
    match node:
        case ast.Import(names=names):
            bad = sorted({alias.name.split(".")[0] for alias in names} & IMPURE_MODULES)
            return f"imports {', '.join(bad)}" if bad else ""
        case ast.ImportFrom(module="random", names=names):
            return "" if [alias.name for alias in names] == ["Random"] else "imports from random"
        case ast.ImportFrom(module=str(name), level=0) if name.split(".")[0] in IMPURE_MODULES:
            return f"imports {name}"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="random"))):
            return "draws from, or makes, its own randomness"
        case ast.Call(func=ast.Name(id="Random")):
            return "makes its own randomness"
        case ast.Call() as call if _called_name(call) in IMPURE_CALLS:
            return f"calls {_called_name(call)}"
        case ast.For(iter=source) | ast.comprehension(iter=source) if _is_set(source):
            return "iterates over a set: the order differs from run to run"
    return ""
