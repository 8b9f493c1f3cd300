"""What a route answers is a model, from which its schema follows: no dict, and no schema by hand.

`find_hand_made` takes a module and returns its faults as sentences, none when all is well, so that
`test_answers.py` can plant what is wrong. It sees answers that are spelled from something else than
a model (`Response(json.dumps(…))`, `JSONResponse(…)`, a route that gives a dict) and schemas that
are written at a route (`responses=`, `openapi_extra=`). Not here: that the published document has
no other schemas of answers (tests/unit/test_openapi.py).
"""

import ast
from collections.abc import Collection, Iterator
from typing import Final

from tests.style.tidiness import Function, Module

_BY_HAND: Final = frozenset({"responses", "openapi_extra"})
_VERBS: Final = frozenset({"get", "put", "post", "patch", "delete", "add_api_route"})


def find_hand_made(module: Module, spelled: Collection[str] = ()) -> list[str]:
    """Answers without a model.

    Args:
        spelled: functions that spell an answer without one, for a reason.
    """
    faults = []
    for function in ast.walk(module.tree):
        if not isinstance(function, Function) or function.name in spelled:
            continue
        where = f"{module.path}:{function.lineno}: {function.name}"
        faults += [f"{where} {fault}" for fault in _find_in(function)]
    return sorted(set(faults))


def _find_in(function: Function) -> Iterator[str]:
    is_route = any(_is_route(decorator) for decorator in function.decorator_list)
    if is_route and function.returns is not None and "dict" in ast.unparse(function.returns):
        yield "is a route and gives a dict, not a model"
    calls = [*function.decorator_list, *_walk_own(function)]
    for call in (node for node in calls if isinstance(node, ast.Call)):
        if _is_route(call) and _BY_HAND & {keyword.arg for keyword in call.keywords}:
            yield "has a schema that is written at its route"
        name = ast.unparse(call.func)
        if name == "JSONResponse" or (name == "Response" and _has_dumps(call)):
            yield "spells an answer that is no model"


def _walk_own(function: Function) -> Iterator[ast.AST]:
    """What is in the function and not in another one inside."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Function):
            yield node
            waiting += ast.iter_child_nodes(node)


def _is_route(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _VERBS
        and ast.unparse(node.func.value).endswith(("app", "router"))
    )


def _has_dumps(call: ast.Call) -> bool:
    """Whether the content is spelled in the call itself."""
    content = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func).endswith("dumps")
        for argument in content
        for node in ast.walk(argument)
    )
