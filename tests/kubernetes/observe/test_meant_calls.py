"""A call of the operator changes the log that was meant, or nothing; older clusters are served too.

By HTTP to the twin of a cluster. Source: docs/kubernetes/one-hand.md 12; docs/protocol/rest.md "The
log that is meant".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest

from duramen_operator.apply.admin_calls import ProxyCalls
from duramen_operator.apply.executor import CallRefused
from duramen_operator.plan.observed import Ref
from duramen_operator.plan.steps import Call
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin

ABOUT: Final = Ref("duramen.io/v1alpha1", "Log", "orders")
URL: Final = "/v1/namespaces/shop/logs/orders"
CALLS: Final[dict[str, tuple[str, str, dict[str, Any] | None]]] = {
    "change": ("PATCH", f"{URL}?config_version=1", {"retention": {"age": "1h"}}),
    "end": ("POST", f"{URL}:end", {}),
    "truncate": ("POST", f"{URL}:truncate", {"to": "seq:1"}),
    "delete": ("DELETE", URL, None),
}


@pytest.fixture
def twin() -> Iterator[AdminTwin]:
    with running_twin() as made:
        made.state.ensure_namespace("shop", {})
        made.state.ensure_log("shop", "orders", {})
        made.state.find_log("shop", "orders").append(3, 300)
        yield made


def make_step(which: str, log_id: str) -> Call:
    method, path, body = CALLS[which]
    return Call(ABOUT, method, path, body, log_id=log_id)


def find_id(twin: AdminTwin) -> str:
    return str(twin.state.show_log("shop", "orders")["log_id"])


def send(twin: AdminTwin, step: Call) -> None:
    async def call() -> None:
        calls = ProxyCalls(twin.url, twin.url)
        try:
            await calls.call(step)
        finally:
            await calls.close()

    asyncio.run(call())


@pytest.mark.parametrize("which", CALLS)
def test_a_late_call_leaves_another_log_of_that_name_alone(twin: AdminTwin, which: str) -> None:
    former = find_id(twin)
    twin.state.delete_log("shop", "orders")
    twin.state.ensure_log("shop", "orders", {})
    twin.state.find_log("shop", "orders").append(3, 300)
    before = twin.state.show_log("shop", "orders")
    with pytest.raises(CallRefused) as caught:
        send(twin, make_step(which, former))
    assert caught.value.problem.code == "condition_failed"
    assert not caught.value.problem.is_retryable
    assert twin.state.show_log("shop", "orders") == before
    send(twin, make_step(which, find_id(twin)))


@pytest.mark.parametrize("which", CALLS)
def test_a_cluster_that_does_not_know_the_parameter_is_served_as_before(
    twin: AdminTwin, which: str
) -> None:
    twin.state.knows_meant_logs = False
    send(twin, make_step(which, find_id(twin)))
    assert [one.status for one in twin.changes] == [400, 200]
