"""What is left out is told, and fails where nothing may be: pytest itself, run on a small file.

Source: tests/requirements.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import REQUIRE_ALL, WAYS, Need, report

ROOT = Path(__file__).resolve().parents[2]
SOME = """
import pytest
from tests.requirements import Need, leave_out, leave_out_if


@pytest.fixture
def node():
    leave_out(Need.NODE, "none on the path")


def test_one(node):
    raise AssertionError


def test_two(node):
    raise AssertionError


def test_plain_skip():
    pytest.skip("for a reason of its own")


@pytest.mark.xfail(strict=True, reason="known")
def test_known():
    raise AssertionError


def test_needs_nothing_that_lacks():
    leave_out_if(Need.GO, None)
"""
MODULE = 'import pytest\npytest.skip("the whole module", allow_module_level=True)\n'


def run_pytest(folder: Path, *flags: str, is_all_required: bool) -> tuple[int, str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path])),
    }
    environment.pop(REQUIRE_ALL, None)
    if is_all_required:
        environment[REQUIRE_ALL] = "1"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.requirements"),
            *("-p", "no:cacheprovider", "--rootdir", str(folder), *flags, str(folder)),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("spread", [(), ("-n", "1")], ids=["alone", "spread"])
def test_a_table_says_what_did_not_run_and_how_to_get_it(
    tmp_path: Path, spread: tuple[str, ...]
) -> None:
    (tmp_path / "test_some.py").write_text(SOME)
    (tmp_path / "test_module.py").write_text(MODULE)
    status, told = run_pytest(tmp_path, *spread, is_all_required=False)
    assert status == 0, told
    assert "2 tests for want of Node: none on the path" in told
    assert WAYS[Need.NODE] in told
    assert "1 test: for a reason of its own" in told
    assert "the whole module" in told
    assert "1 passed, 4 skipped, 1 xfailed" in told


def test_whatever_is_left_out_fails_where_all_is_required(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SOME)
    status, told = run_pytest(tmp_path, is_all_required=True)
    assert status == 1, told
    assert "test_one was left out: needs Node: none on the path" in told
    assert "test_plain_skip was left out: for a reason of its own" in told
    assert "1 passed, 1 xfailed" in told and "skipped" not in told


def test_a_module_that_leaves_itself_out_fails_where_all_is_required(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    status, told = run_pytest(tmp_path, is_all_required=True)
    assert status != 0 and "test_module.py was left out: the whole module" in told


def test_each_need_has_a_way() -> None:
    assert set(WAYS) == set(Need)
    for need in Need:
        (_, way) = report({f"needs {need}: x": 3})
        assert way.endswith(WAYS[need])
