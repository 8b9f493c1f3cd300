"""Makes a plan's calls to a cluster's write proxy, and tells what was refused in its own words.

Each call is sent once: whether it was done is seen by the next observation, which is what decides
about doing it again. Called by `executor`. Source: docs/protocol/rest.md.
"""

from typing import Any

from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen_operator.apply.executor import CallRefused
from duramen_operator.plan.observed import Problem
from duramen_operator.plan.seen_logs import RETRYABLE
from duramen_operator.plan.steps import Call

CALL_TIMEOUT_S = 20.0
"""Longer than the proxy itself tries (10 s)."""


class ProxyCalls:
    """The write proxy of one cluster: its public port, and its admin port for `/v1/cluster/…`."""

    def __init__(self, public_url: str, admin_url: str) -> None:
        self.public = RestClient(public_url, timeout_s=CALL_TIMEOUT_S)
        self.admin = RestClient(admin_url, timeout_s=CALL_TIMEOUT_S)

    async def close(self) -> None:
        """Close every connection."""
        await self.public.close()
        await self.admin.close()

    async def call(self, step: Call) -> None:
        """Make one call.

        Raises:
            CallRefused: it was refused, or its fate is open; doing it again is safe.
        """
        client = self.admin if step.is_admin_port else self.public
        body: dict[str, Any] = dict(step.body or {})
        try:
            match step.method:
                case "PUT" | "PATCH":
                    await client.change_json(step.method, step.path, body)
                case "POST":
                    await client.post_json(step.path, body)
                case "DELETE":
                    await client.delete_json(step.path)
                case _:
                    raise ValueError(f"{step.method} is no method of a plan")
        except DuramenError as error:
            is_retryable = error.code in RETRYABLE
            problem = Problem(error.code, error.detail, is_retryable=is_retryable)
            raise CallRefused(problem) from error
        except PeerError as error:
            raise CallRefused(Problem("unreachable", str(error))) from error
