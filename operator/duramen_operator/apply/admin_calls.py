"""Makes a plan's calls to a cluster's write proxy, and tells what was refused in its own words.

Each call is sent once: whether it was done is seen by the next observation, which is what decides
about doing it again. Write proxies of before `log_id` refuse it, and nothing is done then: they get
the call as they always did. Called by `executor`. Source: docs/protocol/rest.md.
"""

from collections.abc import Callable
from typing import Any

from duramen.client.credentials.credential import NOTHING_SHOWN, Credential
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen_operator.apply.executor import CallRefused
from duramen_operator.plan.observed import Json, Problem
from duramen_operator.plan.seen_logs import RETRYABLE
from duramen_operator.plan.steps import DISRUPTION_DENIED, Call

STANDING_TIMEOUT_S = 60.0
"""As long as the proxy itself waits for the auditor."""
CALL_TIMEOUT_S = 20.0
"""Longer than the proxy itself tries (10 s)."""


class ProxyCalls:
    """The write proxy of one cluster: its public port, and its admin port for `/v1/cluster/…`."""

    def __init__(
        self,
        public_url: str,
        admin_url: str,
        *,
        shown: Credential = NOTHING_SHOWN,
        shown_to_admin: Credential = NOTHING_SHOWN,
    ) -> None:
        """Make the clients; they connect with their first calls.

        Raises:
            DuramenError: what is shown cannot be used, or would travel in plain text.
        """
        self.public = RestClient(public_url, timeout_s=CALL_TIMEOUT_S, credential=shown)
        self.admin = RestClient(admin_url, timeout_s=CALL_TIMEOUT_S, credential=shown_to_admin)

    async def close(self) -> None:
        """Close every connection."""
        await self.public.close()
        await self.admin.close()

    async def ask_standing(self) -> dict[str, Any]:
        """How the bookies stand: the auditor reads all metadata for that.

        Raises:
            DuramenError: refused. PeerError: no usable answer.
        """
        path = "/v1/cluster/disruptions/standing"
        return await self.admin.get_json(path, timeout_s=STANDING_TIMEOUT_S)

    async def take(self, question: Json, check: Callable[[], None] = lambda: None) -> None:
        """Take a grant of disruption.

        Raises:
            CallRefused: as of `AdminCalls.take`.
        """
        check()
        try:
            answer = await self.admin.post_json(
                "/v1/cluster/disruptions", dict(question), timeout_s=STANDING_TIMEOUT_S
            )
        except DuramenError as error:
            problem = Problem(error.code, error.detail, is_retryable=error.code in RETRYABLE)
            raise CallRefused(problem) from error
        except PeerError as error:
            raise CallRefused(Problem("unreachable", str(error))) from error
        if answer["grant"] is None:
            reasons = "; ".join(f"{one['code']}: {one['detail']}" for one in answer["reasons"])
            raise CallRefused(Problem(DISRUPTION_DENIED, reasons))

    async def call(self, step: Call, check: Callable[[], None] = lambda: None) -> None:
        """Make one call.

        Args:
            check: asked before it is sent, and before it is sent again.

        Raises:
            CallRefused: it was refused, or its fate is open; doing it again is safe.
        """
        check()
        try:
            try:
                await self._send(step, _name_log(step))
            except DuramenError as error:
                if not step.log_id or (error.code, error.field) != ("unknown_field", "log_id"):
                    raise
                check()
                await self._send(step, step.path)
        except DuramenError as error:
            is_retryable = error.code in RETRYABLE
            problem = Problem(error.code, error.detail, is_retryable=is_retryable)
            raise CallRefused(problem) from error
        except PeerError as error:
            raise CallRefused(Problem("unreachable", str(error))) from error

    async def _send(self, step: Call, path: str) -> None:
        client = self.admin if step.is_admin_port else self.public
        body: dict[str, Any] = dict(step.body or {})
        match step.method:
            case "PUT" | "PATCH":
                await client.change_json(step.method, path, body)
            case "POST":
                await client.post_json(path, body)
            case "DELETE":
                await client.delete_json(path)
            case _:
                raise ValueError(f"{step.method} is no method of a plan")


def _name_log(step: Call) -> str:
    """The path, with the log that is meant."""
    if not step.log_id:
        return step.path
    return f"{step.path}{'&' if '?' in step.path else '?'}log_id={step.log_id}"
