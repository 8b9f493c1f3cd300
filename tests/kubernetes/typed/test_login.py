"""What a login becomes when the API server is not there yet, or does not know us.

The operator and `release` wait and try again after either of `Kube`'s two errors, and after none
besides. The server is the fake one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duramen_operator.kube import ApiUnreachable, Kube, Refused
from tests.kubernetes.typed.fake_api import Fault
from tests.kubernetes.typed.worlds import EVENTS, FakeWorld, fake_world


def connect(world: FakeWorld) -> Kube:
    return asyncio.run(Kube.connect(world.namespace, str(world.kubeconfig)))


@pytest.mark.parametrize(("status", "is_retryable"), [(503, True), (500, True), (401, False)])
def test_a_server_that_refuses_its_version_is_a_refusal(
    tmp_path: Path, status: int, is_retryable: bool
) -> None:
    with fake_world(EVENTS, tmp_path) as world:
        body = b'{"kind": "Status", "reason": "Why", "message": "not now"}'
        world.api.login_fault = Fault(status, "application/json", body)
        with pytest.raises(Refused) as caught:
            connect(world)
        assert caught.value.status == status
        assert caught.value.problem.code == "Why"
        assert caught.value.problem.is_retryable is is_retryable
        world.api.login_fault = None
        assert connect(world).login.server == world.api.url


def test_no_server_at_all_is_unreachable(tmp_path: Path) -> None:
    with fake_world(EVENTS, tmp_path) as world:
        pass
    with pytest.raises(ApiUnreachable):
        connect(world)
