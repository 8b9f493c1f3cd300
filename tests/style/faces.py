"""What `help()` tells a user of the SDK: arguments, results, errors and an example of each method.

`find_face_faults` takes the source of a module and the names of its classes that users meet. It
returns its faults as sentences, none when all is well, so that `test_faces.py` can plant what is
wrong. Sections are those of the docstrings of the SDK: `Args:`, `Returns:` or `Yields:`, `Raises:`
(`Nothing.` where that is so) and `Example:`. Not here: whether an example runs
(tests/component/test_sdk_examples.py), and whether a method's code can raise what it says.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from tests.style.tidiness import Function, Module

EXAMPLE_LINES_MAX: Final = 6
SPECIAL: Final = frozenset({"__getitem__", "__await__"})
"""Public as well: users call them by another spelling."""

_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Example):\n((?:    .*(?:\n|$)|\n)+)", re.M)
_CODE = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")


class Face(NamedTuple):
    """What is asked of a class."""

    has_examples: bool = True
    is_made_by_users: bool = False
    """Its constructor is public, too."""
    inner: frozenset[str] = frozenset()
    """Methods that other parts of the SDK call, and no user."""


def find_face_faults(
    module: Module, faces: Mapping[str, Face], codes: Collection[str]
) -> list[str]:
    """Public methods whose docstring lacks a section, and classes that are not there.

    Args:
        faces: what is asked of each class that users meet.
        codes: the codes of errors.
    """
    classes = {node.name: node for node in module.tree.body if isinstance(node, ast.ClassDef)}
    faults = [f"{module.path}: no class {name}" for name in faces if name not in classes]
    names = {*codes, *(node.arg for node in ast.walk(module.tree) if isinstance(node, ast.arg))}
    for name, face in faces.items():
        for method in _list_methods(classes[name], face) if name in classes else ():
            found = _find_missing(method, face, names)
            where = f"{module.path}:{method.lineno}: {name}.{method.name}"
            faults += [f"{where} {fault}" for fault in found]
    return faults


def read_sections(docstring: str | None) -> dict[str, str]:
    """The sections of a docstring by their names, without their indentation."""
    found = _SECTION.findall(docstring or "")
    return {name: re.sub(r"^    ", "", text, flags=re.M).strip() for name, text in found}


def _list_methods(node: ast.ClassDef, face: Face) -> Iterator[Function]:
    for item in node.body:
        if not isinstance(item, Function) or item.decorator_list or item.name in face.inner:
            continue  # a property says in a sentence what it is
        is_constructor = item.name == "__init__" and face.is_made_by_users
        if not item.name.startswith("_") or item.name in SPECIAL or is_constructor:
            yield item


def _find_missing(method: Function, face: Face, names: Collection[str]) -> Iterator[str]:
    """What the docstring of a method lacks; `names` may be named where errors are told."""
    docstring = ast.get_docstring(method)
    sections = read_sections(docstring)
    if not (docstring or "").partition("\n")[0].rstrip().endswith((".", ":")):
        yield "does not say in its first line what it does"
    arguments = [a.arg for a in (*method.args.args, *method.args.kwonlyargs) if a.arg != "self"]
    told = _list_arguments(sections.get("Args", ""))
    yield from (f"does not tell its argument {name}" for name in arguments if name not in told)
    yield from (f"tells an argument {name} that it has not" for name in told - {*arguments})
    returned = "" if method.returns is None else ast.unparse(method.returns)
    if returned != "None" and not {"Returns", "Yields"} & {*sections}:
        yield "does not tell what it gives (Returns or Yields)"
    if "Raises" not in sections:
        yield "does not tell what it raises (Raises)"
    for name in _CODE.findall(sections.get("Raises", "")):
        if name not in names:
            yield f"tells of an error {name} that no table has"
    lines = sections.get("Example", "").splitlines()
    if face.has_examples and not 0 < len(lines) <= EXAMPLE_LINES_MAX:
        yield f"has an example of {len(lines)} lines, not 1 to {EXAMPLE_LINES_MAX}"


def _list_arguments(section: str) -> set[str]:
    heads = re.findall(r"^(\w+(?:, \w+)*):", section, re.M)
    return {name for head in heads for name in head.split(", ")}
