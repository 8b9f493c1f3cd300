"""A scenario with the SDK over a cluster in one ASGI app, with either of its faces.

Used by the `test_sdk…` modules. Source: docs/sdk.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duramen.client import (
    RetryPolicy,
)
from tests.component.sdk_faces import FACES, open_client
from tests.component.sdk_world import (
    FakeCluster,
    running_cluster,
)

Scenario = Callable[[FakeCluster, Any], Awaitable[None]]
SOON = RetryPolicy(within_s=5, first_pause_s=0.001, longest_pause_s=0.01)
face = pytest.mark.parametrize("face", FACES)


def play(scenario: Scenario, face: str, **options: Any) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(30),
            running_cluster() as cluster,
            open_client(face, cluster.url, **{"retry": SOON, **options}) as client,
        ):
            await scenario(cluster, client)

    asyncio.run(run())


def bodies(cluster: FakeCluster, log: str = "ns/log") -> list[bytes]:
    return [body for batch in cluster.log(log).batches for body in batch.decode().bodies]
