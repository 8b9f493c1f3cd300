"""Every answer of a route is a model, but for those of which the reason is written here.

The rule is in `answers.py`; each of its parts is proved to fail. Source: docs/protocol/rest.md.
"""

import pytest

from tests.style.answers import find_hand_made
from tests.style.tidiness import Module
from tests.style.tree import assert_tidy, read_modules

PLACES = ("services/", "libs/common/duramen/runtime/")

SPELLED: dict[str, tuple[str, ...]] = {
    # A model per record would cost more than reading it: tests/unit/test_public_answers.py holds
    # what is spelled against the models that describe it.
    "services/readproxy/duramen_readproxy/rest.py": ("answer_read",),
    # Refusals have one form and their own table (duramen.errors), and no model says more.
    "libs/common/duramen/runtime/rest.py": ("_answer_with_status",),
    "libs/common/duramen/runtime/admin.py": ("problem_response",),
}
"""Path of a module → functions that spell an answer without a model."""


def test_answers_are_models() -> None:
    faults = []
    for module in read_modules():
        if module.path.startswith(PLACES):
            faults += find_hand_made(module, SPELLED.get(module.path, ()))
    assert_tidy(faults)


def test_what_has_a_model_is_not_excused() -> None:
    modules = {module.path: module for module in read_modules()}
    for path, names in SPELLED.items():
        found = " ".join(find_hand_made(modules[path]))
        assert [name for name in names if f": {name} " not in found] == [], path


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        (
            "@app.get('/a')\nasync def a() -> dict[str, Any]:\n    return {}\n",
            "m.py:2: a is a route and gives a dict, not a model",
        ),
        (
            "@app.get('/a', responses={200: {'type': 'object'}})\nasync def a() -> Tail: ...\n",
            "m.py:2: a has a schema that is written at its route",
        ),
        (
            "def b(app):\n    app.router.add_api_route('/b', c, openapi_extra={'x': 1})\n",
            "m.py:1: b has a schema that is written at its route",
        ),
        (
            "async def c():\n    return Response(orjson.dumps({'tail': 1}))\n",
            "m.py:1: c spells an answer that is no model",
        ),
        (
            "async def d():\n    return Response(content=json.dumps(tail).encode())\n",
            "m.py:1: d spells an answer that is no model",
        ),
        (
            "async def e():\n    return JSONResponse({'tail': 1})\n",
            "m.py:1: e spells an answer that is no model",
        ),
    ],
)
def test_an_answer_without_a_model_is_found(planted: str, fault: str) -> None:
    assert find_hand_made(Module("m.py", planted)) == [fault]


def test_a_model_is_no_fault_and_a_reason_excuses() -> None:
    good = "@app.get('/a')\nasync def a() -> TailAnswer:\n    return respond(TailAnswer(tail=1))\n"
    assert find_hand_made(Module("m.py", good)) == []
    hot = "async def c():\n    return Response(orjson.dumps({'tail': 1}))\n"
    assert find_hand_made(Module("m.py", hot), ("c",)) == []
