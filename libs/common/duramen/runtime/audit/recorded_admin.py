"""What a proxy's admin port does for people and operators, recorded: each `operate`, each refusal.

A route is named as it is written in the code, never as it was called. What only shows something is
not recorded. Before the trail has begun, as while a process waits for ZooKeeper, nothing is.

Given to `security.admin_door` by the wiring of both proxies.
Source: docs/protocol/audit.md "What is recorded".
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from duramen.core.audit.counts import CountKey
from duramen.runtime.audit.recorded_calls import draw_request_id, find_address, name_outcome
from duramen.runtime.audit.trail import AuditTrail


class RecordedAdmin:
    """The calls of one admin port."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

    def refuse(self, scope: Any, who: str | None, verb: str | None, status: int) -> None:
        """A call was not let in.

        Args:
            who: the principal; None: nobody who is known.
        """
        if not self._trail.has_begun:
            return
        members = {**_describe(scope, who, verb, status), "outcome": "refused"}
        if not self._trail.note_refusal(members):
            self._trail.count(CountKey(who, None, verb, "refused"))

    def begin(self, scope: Any, who: str, route: str, send: Any) -> RecordedAdminCall:
        """A call that changes something was let in.

        Args:
            route: method and path, as the code has them.
        """
        return RecordedAdminCall(self._trail, scope, who, route, send)


class RecordedAdminCall:
    """One call until its answer begins; it is ASGI's `send` itself."""

    def __init__(self, trail: AuditTrail, scope: Any, who: str, route: str, send: Any) -> None:
        self._trail = trail
        self._scope = scope
        self._who = who
        self._route = route
        self._send = send
        self._is_told = False

    def __call__(self, message: Any) -> Awaitable[None]:
        """Send on, and see what came of the call."""
        if message["type"] == "http.response.start":
            self._note(message["status"])
        sent: Awaitable[None] = self._send(message)
        return sent

    def end(self) -> None:
        """Nothing more is sent."""
        self._note(None)

    def _note(self, status: int | None) -> None:
        if self._is_told or not self._trail.has_begun:
            return
        self._is_told = True
        told = _describe(self._scope, self._who, "operate", status)
        self._trail.note({**told, "call": self._route})


def _describe(scope: Any, who: str | None, verb: str | None, status: int | None) -> dict[str, Any]:
    return {
        "who": who,
        "from": find_address(scope),
        "verb": verb,
        "target": "cluster",
        "outcome": name_outcome(status),
        "status": status,
        "request": draw_request_id(),
    }
