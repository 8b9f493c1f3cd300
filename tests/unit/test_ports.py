"""Free ports are picked apart: processes in shares of their own, and no port twice in a row.

Source: tests/ports.py, `duramen.cluster.layout`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duramen.cluster import layout
from duramen.cluster.layout import FREE_PORTS_VARIABLE, find_port_range
from tests import ports


@pytest.fixture(autouse=True)
def _whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has no share yet; this test process keeps its own."""
    monkeypatch.setenv(FREE_PORTS_VARIABLE, "restored after the test")
    monkeypatch.delenv(FREE_PORTS_VARIABLE)


def test_each_process_picks_in_a_share_of_its_own_until_it_ends(tmp_path: Path) -> None:
    whole, found, held = find_port_range(), [], []
    for _ in range(ports.SHARES_COUNT):
        held.append(take(tmp_path))
        found.append(find_port_range())
        del os.environ[FREE_PORTS_VARIABLE]
    taken = [port for share in found for port in share]
    assert len(taken) == len(set(taken)) <= len(whole) and min(map(len, found)) > 1_000
    assert min(taken) == whole.start and max(taken) < whole.stop
    with pytest.raises(RuntimeError, match="16 processes test"):
        ports.keep_ports_apart(tmp_path)
    os.close(held.pop(3))
    held.append(take(tmp_path))
    assert find_port_range() == found[3]
    for descriptor in held:
        os.close(descriptor)


def test_a_range_of_the_environment_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FREE_PORTS_VARIABLE, "20000-20999")
    assert ports.keep_ports_apart(tmp_path) is None
    assert find_port_range() == range(20_000, 21_000)


def test_a_port_is_not_picked_again_before_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "is_free_port", lambda _: True)
    monkeypatch.setenv(FREE_PORTS_VARIABLE, "20000-20099")
    assert {layout.pick_free_port() for _ in range(100)} == set(range(20_000, 20_100))


def take(folder: Path) -> int:
    """A share that nobody holds."""
    held = ports.keep_ports_apart(folder)
    assert held is not None
    return held
