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
# Where time passes on purpose; the pauses of chaos runs are the lengths of their faults.
PAUSE_MODULES = frozenset({"tests/pauses.py", "tests/ticker.py", "tests/chaos/waiting.py"})
FIRST_CLOCK_MODULE = "tests/unit/web_token_forge.py"
"""Its tokens live for half a day, which no run of all tests takes."""
_CLOCKS = frozenset(
    {f"time.{clock}" for clock in ("time", "monotonic", "perf_counter")}
    | {f"time.{clock}_ns" for clock in ("time", "monotonic", "perf_counter")}
    | {f"{module}{clock}" for module in ("", "dt.", "datetime.") for clock in (
        "datetime.now", "datetime.utcnow", "datetime.today", "date.today"
    )}
    | {"read_time", "localtime", "gmtime", "time.localtime", "time.gmtime"}
)
_COPIES = frozenset({"os.dup", "socket.dup", "socket.fromfd", "copy_socket"})
_SETS = frozenset({"set", "frozenset", "Set", "MutableSet"})
_SOCKET_TABLES = re.compile(r"/proc/(\w+/)?net/(tcp|udp)")
OWN_SOCKETS_MODULE = "tests/component/own_sockets.py"
PAUSES = frozenset({"observe_for", "let_pass"})
SIGNALS = frozenset({"Event", "Condition", "Semaphore", "Queue", "SimpleQueue", "Future"})
WAITS = frozenset({"wait", "wait_for", "get", "acquire", "result"})
COMMANDS = frozenset({"run", "call", "check_call", "check_output"})

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
    """Tests wait for conditions: what only lets time pass is a guess about it, however it is spelt.

    `sleep` with anything but a literal 0; a wait for signals, sockets or futures that are none; a
    wait for what was made on the spot or is never handed on, so that nobody can end it; a wait with
    a time-out whose outcome nobody looks at; a `sleep` as a command. Time that is the matter itself
    passes in `tests/pauses.py`, which asks what it measures, in words.
    """
    if module.path in PAUSE_MODULES:
        return []
    dead_ends = {id(node) for node in _find_dead_ends(module.tree)}
    faults = []
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        if _called_name(node) == "wait_at_most" and module.is_in("tests/chaos"):
            continue
        if id(node) in dead_ends or _is_pause(node):
            faults.append(f"{module.path}:{node.lineno}: sleeps instead of waiting for a condition")
        elif _is_unnamed_pause(node):
            faults.append(f"{module.path}:{node.lineno}: a pause does not say what it measures")
    return faults


def find_stale_clocks(module: Module) -> list[str]:
    """Clocks that a test reads when its module is loaded: a run of all tests begins an hour before
    the last of them is played, and what was to live for minutes then has ended.
    """
    if module.path == FIRST_CLOCK_MODULE:
        return []
    return [
        f"{module.path}:{node.lineno}: reads a clock when it is loaded: ask where it is used"
        for node in _find_loaded(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _CLOCKS
    ]


def find_copied_descriptors(module: Module) -> list[str]:
    """Descriptors of its own process that a test copies by number, whatever they are.

    A copy of a locked file that nobody closes keeps the lock of the machine, and who waits for it
    waits for ever. `own_sockets` copies sockets alone; what a test opened itself has a name.
    """
    if module.path == OWN_SOCKETS_MODULE:
        return []
    return [
        f"{module.path}:{node.lineno}: copies a descriptor by number: use copy_own_sockets"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in _COPIES
        and not _is_named_descriptor(node.args[0] if node.args else None)
    ]


def find_sets_with_none(module: Module) -> list[str]:
    """Sets, and promises of sets, that may hold None beside something else.

    `hash(None)` is an address before Python 3.12: what such a set gives next differs from process
    to process whatever the hash seed is, and a simulated seed is no run any more. A dict keeps the
    order in which its keys came.
    """
    return [
        f"{module.path}:{node.lineno}: a set that may hold None has another order in each process"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Subscript)
        and ast.unparse(node.value).split(".")[-1] in _SETS
        and any(isinstance(part, ast.Constant) and part.value is None for part in _list_union(node))
    ]


def _list_union(node: ast.Subscript) -> list[ast.expr]:
    """The parts of `X | Y | None` between the brackets."""
    parts, todo = [], [node.slice]
    while todo:
        match todo.pop():
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                todo += [left, right]
            case part:
                parts.append(part)
    return parts


def find_whole_tables(module: Module) -> list[str]:
    """Readers of /proc/net, where the kernel prints all connections of the machine for each.

    A loop that does so for one port or one connection stands still beside whoever leaves many.
    """
    texts = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    return [
        f"{module.path}:{node.lineno}: reads all connections of the machine: call list_sockets"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in texts
        and _SOCKET_TABLES.search(node.value)
    ]


def find_replaced_clocks(module: Module) -> list[str]:
    """Clocks and sleeps of the whole process that a test replaces.

    A thread that an earlier test left meets them, too, and takes a step that was laid out for the
    test. The product's module has a name of its own, which can be replaced alone.
    """
    return [
        f"{module.path}:{node.lineno}: replaces every thread's time: give the module its own"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and _called_name(node) == "setattr"
        and _is_process_time(node.args)
    ]


def _is_process_time(arguments: list[ast.expr]) -> bool:
    match arguments:
        case [ast.Constant(value=str(path)), *_]:
            return re.search(r"(^|\.)time\.\w+$", path) is not None
        case [target, ast.Constant(), *_]:
            return ast.unparse(target).rpartition(".")[2] == "time"
        case _:
            return False


def _is_named_descriptor(argument: ast.expr | None) -> bool:
    """Whether it is asked of an object, as `file.fileno()` is."""
    if isinstance(argument, ast.Call):
        return isinstance(argument.func, ast.Attribute) and argument.func.attr == "fileno"
    return isinstance(argument, ast.Attribute)


def _find_loaded(node: ast.AST) -> Iterator[ast.AST]:
    """What is worked out when a module is loaded: all but what stands inside of functions, whose
    decorators and defaults are loaded with it.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        defaults = [default for default in node.args.kw_defaults if default is not None]
        loaded: list[ast.AST] = [*decorators, *node.args.defaults, *defaults]
    else:
        yield node
        loaded = list(ast.iter_child_nodes(node))
    for part in loaded:
        yield from _find_loaded(part)


def find_lone_writes(module: Module) -> list[str]:
    """Tests beside a whole cluster that write a node as if nobody else did.

    Its services write to the same nodes at any time (an auditor's proof, a roll): who sets the
    version that it read must be ready to read anew, as `metadata_nodes.change_node` is.
    """
    return [
        f"{module.path}:{node.lineno}: sets a node's version once: change_node reads anew"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and _called_name(node) == "set"
        and any(keyword.arg == "version" for keyword in node.keywords)
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


def _is_pause(call: ast.Call) -> bool:
    """A call that only lets time pass, as one can see it at the call itself."""
    name, first = _called_name(call), call.args[0] if call.args else None
    match name:
        case "sleep":
            return not _is_zero(call.args)
        case "sigtimedwait":
            return _is_empty(first)
        case "select":
            return len(call.args) >= 3 and all(map(_is_empty, call.args[:3]))
        case "wait_at_most":
            return True
        case _ if name in COMMANDS:
            return (
                isinstance(first, ast.List) and bool(first.elts) and _is_word_sleep(first.elts[0])
            )
        case _:
            return False


def _find_dead_ends(tree: ast.AST) -> Iterator[ast.Call]:
    """Waits for what nobody else knows, and waits with a time-out whose outcome is dropped."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called_name(node) in WAITS:
            waited = node.func.value if isinstance(node.func, ast.Attribute) else None
            if _is_signal(waited) or any(map(_is_signal, node.args)):
                yield node
        elif isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
            if _called_name(node.value) == "create_future":
                yield node.value
        elif isinstance(node, ast.Expr):
            call = node.value.value if isinstance(node.value, ast.Await) else node.value
            if isinstance(call, ast.Call) and _is_asyncio_wait(call):
                yield call
    for function in _walk_functions(tree):
        yield from _find_lonely_waits(function)


def _find_lonely_waits(function: Function) -> Iterator[ast.Call]:
    """Waits of a function for a signal of its own that it never sets and hands to nobody."""
    made: set[str] = set()
    waits: dict[str, list[ast.Call]] = {}
    uses = Counter[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target, value in _pair_up(node.targets[0], node.value):
                if isinstance(target, ast.Name) and _is_signal(value):
                    made.add(target.id)
        elif isinstance(node, ast.Call) and _called_name(node) in WAITS:
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                waits.setdefault(node.func.value.id, []).append(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses[node.id] += 1
    for name in sorted(made & waits.keys()):
        if uses[name] == len(waits[name]):
            yield from waits[name]


def _pair_up(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def _is_signal(node: ast.expr | None) -> bool:
    """`Event()` and the like, made on the spot."""
    if isinstance(node, ast.BoolOp):
        return any(map(_is_signal, node.values))
    return isinstance(node, ast.Call) and _called_name(node) in SIGNALS


def _is_asyncio_wait(call: ast.Call) -> bool:
    """`asyncio.wait(…, timeout=…)`; the method of an event or a process is called otherwise."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="asyncio"), attr="wait"):
            return any(keyword.arg == "timeout" for keyword in call.keywords)
        case _:
            return False


def _is_unnamed_pause(call: ast.Call) -> bool:
    """A pause whose `what` is missing, or says nothing, or is put together elsewhere."""
    if _called_name(call) not in PAUSES:
        return False
    said = [keyword.value for keyword in call.keywords if keyword.arg == "what"]
    return not any(isinstance(one, ast.Constant) and str(one.value).strip() for one in said)


def _is_empty(node: ast.expr | None) -> bool:
    return isinstance(node, ast.List | ast.Tuple) and not node.elts


def _is_word_sleep(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "sleep"


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
