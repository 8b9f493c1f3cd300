"""Everything stands where it belongs: one test a rule, and for each a proof that it can fail.

The rules are in `arrangement.py`, their reasons in CONTRIBUTING.md "Style on a page".
"""

from __future__ import annotations

import pytest

from tests.style import arrangement
from tests.style.arrangement import SMALL_FOLDERS
from tests.style.tidiness import Module
from tests.style.tree import assert_tidy, list_paths, read_modules


def test_no_module_is_in_an_import_circle() -> None:
    assert_tidy(arrangement.find_circles(read_modules()))


def test_no_test_imports_a_test() -> None:
    assert_tidy([f for m in read_modules() for f in arrangement.find_test_imports(m)])


def test_no_folder_holds_one_or_two_modules() -> None:
    assert_tidy(arrangement.find_lone_modules(list_paths()))


def test_tests_wait_in_one_way() -> None:
    assert_tidy([f for m in read_modules() for f in arrangement.find_other_waits(m)])


@pytest.mark.parametrize(
    "back",
    [
        "from duramen.core.a import f",
        "from duramen.core import a",
        "import duramen.core.a",
        "if TYPE_CHECKING:\n    from duramen.core.a import F",
        "def f():\n    from duramen.core import a",
    ],
)
def test_a_circle_is_found(back: str) -> None:
    first = Module("libs/common/duramen/core/a.py", "from duramen.core.b import g\n")
    second = Module("libs/common/duramen/core/b.py", back + "\n")
    (fault,) = arrangement.find_circles([first, second])
    assert "duramen.core.a" in fault and "duramen.core.b" in fault
    assert not arrangement.find_circles([first, Module(second.path, "import os\n")])


@pytest.mark.parametrize(
    "line",
    [
        "from tests.unit.test_a import f",
        "from tests.unit import test_a",
        "import tests.unit.test_a",
        "def f():\n    from tests.unit.test_a import g",
    ],
)
def test_an_import_of_a_test_is_found(line: str) -> None:
    (fault,) = arrangement.find_test_imports(Module("tests/unit/b.py", line + "\n"))
    assert "module of its own" in fault
    assert not arrangement.find_test_imports(Module("tests/b.py", "from tests.unit.a import f\n"))


def test_a_lone_module_is_found() -> None:
    two = ["libs/a/b/__init__.py", "libs/a/b/c.py", "libs/a/b/d.py"]
    assert arrangement.find_lone_modules(two) == ["libs/a/b: 2 modules do not need a folder"]
    assert not arrangement.find_lone_modules([*two, "libs/a/b/e.py"])
    small = next(iter(SMALL_FOLDERS))
    full = [f"{small}/{name}.py" for name in "abc"]
    assert arrangement.find_lone_modules(full) == [f"{small}: needs no exception"]


def test_another_wait_is_found() -> None:
    bad = "async def wait_until(condition): ...\n"
    assert arrangement.find_other_waits(Module("tests/unit/a.py", bad))
    assert not arrangement.find_other_waits(Module(arrangement.WAITING_MODULE, bad))
