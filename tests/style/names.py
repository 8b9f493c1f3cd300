"""Names: a class name means one thing across the product, and the field's words stay.

Each `find_…` takes modules or paths and returns its faults as sentences, none when all is well.
Nothing here touches the disk, so `test_tidy.py` can plant what is wrong and prove that each rule
can fail. What stands in texts, such as a key of an answer or a metric, is no name and may stay as
users know it. Not here: names that say nothing (`tidiness.py`), PEP 8 (ruff). The words that
Duramen uses are explained in docs/glossary.md.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from tests.style.tidiness import PRODUCT_FOLDERS, Module

OLD_WORDS: Final[Mapping[str, str]] = {
    "shelf": "entry log",
    "office": "leadership",
    "heir": "pending owner",
    "heirs": "pending owners",
    "surroundings": "context",
}
"""Words of our own, and what the field calls the same: in no name any more."""
OLD_VERBS: Final[Mapping[str, str]] = {
    "spell": "encode_ (bytes, JSON) or format_ (text)",
    "tell": "report_, send_ or notify_",
}
"""First words of names of several words."""
OLD_MODULES: Final[Mapping[str, str]] = {"whole": "plan", "doing": "executor", "telling": "status"}
STORED: Final = frozenset({"shelf_bytes", "shelf_entries", "shelf_files"})
"""Fields whose names are keys of `duramen-bookie fsck --json`: scripts read them."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def find_twin_classes(modules: Iterable[Module]) -> list[str]:
    """Names that several classes of the product have, private ones included.

    Who greps for a class finds one; who reads a name without its import knows which it is.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        if module.is_in(*PRODUCT_FOLDERS):
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{module.path}:{node.lineno}")
    return [
        f"{name} is a class in {', '.join(found)}: let each name say which one it is"
        for name, found in sorted(places.items())
        if len(found) > 1
    ]


def find_old_names(module: Module) -> list[str]:
    """Names that a module gives to classes, functions, arguments and variables."""
    faults = []
    for name, line in _list_names(module.tree):
        words = [word.lower() for word in _WORD.findall(name)]
        instead = next((OLD_WORDS[word] for word in words if word in OLD_WORDS), "")
        if not instead and len(words) > 1:
            instead = OLD_VERBS.get(words[0], "")
        if instead and name not in STORED:
            faults.append(f"{module.path}:{line}: {name}: the field's word is {instead}")
    return faults


def find_old_modules(paths: Iterable[str]) -> list[str]:
    """Python files and their folders with a name that gave way to another."""
    faults = set()
    for path in paths:
        if not path.endswith(".py"):
            continue
        parts = PurePosixPath(path).with_suffix("").parts
        for depth, part in enumerate(parts, start=1):
            words = [word.lower() for word in _WORD.findall(part)]
            instead = OLD_MODULES.get(words[0], "") if len(words) == 1 else ""
            instead = next((OLD_WORDS[word] for word in words if word in OLD_WORDS), instead)
            if instead:
                faults.add(f"{'/'.join(parts[:depth])}: the field's word is {instead}")
    return sorted(faults)


def _list_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that is given here, and the line where."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno
