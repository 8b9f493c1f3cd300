"""Which tests come to which statements: a fault is shown to those tests alone that reach its line.

A probe is put before each statement that a fault changes, in the copy of the tree; it notes which
test is under way, also in processes that the test starts. A statement to which no test came is
shown to all. `Touches` is a plugin of pytest, used by `warm`; `playing` and `tree` use the rest.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

Span = tuple[int, int]
"""First and last line of a statement, of a compound one those of its head."""
FILE_VARIABLE: Final = "DURAMEN_MUTANT_TOUCHES"
_TEST_VARIABLE: Final = "DURAMEN_MUTANT_TEST"
_seen: Final[set[tuple[str, str]]] = set()


class Touches:
    """Tells the probes which test is under way; outside of tests it is ""."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Everything from a test's first fixture to its last counts for it."""
        os.environ[_TEST_VARIABLE] = item.nodeid
        try:
            return (yield)
        finally:
            os.environ[_TEST_VARIABLE] = ""


def touch(name: str) -> None:
    """A probe: somebody came to a statement."""
    test = os.environ.get(_TEST_VARIABLE, "")
    if (test, name) in _seen or FILE_VARIABLE not in os.environ:
        return
    _seen.add((test, name))
    with open(os.environ[FILE_VARIABLE], "a", encoding="utf-8") as file:
        file.write(json.dumps([name, test]) + "\n")


def format_span(path: str, span: Span) -> str:
    """A span as probes name it."""
    return f"{path}:{span[0]}"


def read_touches(text: str) -> dict[str, set[str]]:
    """For each name the tests that came to it."""
    tests: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, test = json.loads(line)
        tests.setdefault(name, set()).add(test)
    return tests


def list_changed_spans(source: str, old: str, new: str) -> list[Span]:
    """The statements of a module that change when `old` becomes `new`."""
    base = source[: source.index(old)].count("\n") + 1
    old_lines, new_lines = old.split("\n"), new.split("\n")
    changed = set()
    matcher = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    for kind, first, end, _, _ in matcher.get_opcodes():
        if kind != "equal":
            changed |= set(range(base + first, base + max(end, first + 1)))
    heads = [head for node in ast.walk(ast.parse(source)) if (head := _head_of(node)) is not None]
    heads.sort(key=lambda head: head[1] - head[0])
    found = {next((h for h in heads if h[0] <= line <= h[1]), None) for line in changed}
    return sorted(span for span in found if span is not None)


def put_probes(source: str, path: str, spans: Sequence[Span]) -> str:
    """The module with a probe before each of these statements; its comments are lost."""
    tree = ast.parse(source)
    for node in list(ast.walk(tree)):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if not isinstance(statements, list):
                continue
            for statement in list(statements):
                head = _head_of(statement)
                if head in spans and head is not None:
                    probe = _make_probe(format_span(path, head))
                    statements.insert(statements.index(statement), probe)
        if isinstance(node, ast.ExceptHandler):
            head = _head_of(node)
            if head in spans and head is not None:
                node.body.insert(0, _make_probe(format_span(path, head)))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _make_probe(name: str) -> ast.stmt:
    module = "tests.mutants_services.touching"
    return ast.parse(f"__import__({module!r}, fromlist=['touch']).touch({name!r})").body[0]


def _head_of(node: ast.AST) -> Span | None:
    if not isinstance(node, ast.stmt | ast.ExceptHandler):
        return None
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        return node.lineno, max(node.lineno, body[0].lineno - 1)
    return node.lineno, node.end_lineno or node.lineno
