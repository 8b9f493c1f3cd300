"""What a worker is given that meets neither an API server nor a cluster.

Used by test_waking and test_doing.
"""

from __future__ import annotations

from typing import Any, cast

from duramen_operator.kube import Kube
from duramen_operator.leading.hand import Hand
from duramen_operator.serving.watches import Watches
from duramen_operator.serving.worker import WorkerContext
from duramen_operator.settings import Settings
from duramen_operator.typed.client import TypedClient


class Admin:
    """A cluster that nobody asks."""

    async def close(self) -> None:
        """Nothing is open."""


def make_context() -> WorkerContext:
    return WorkerContext(
        cast("Kube", None),
        cast("TypedClient", None),
        Settings("here"),
        Watches((), lambda: 0.0),
        lambda _: cast("Any", Admin()),
        Hand(),
    )
