"""Operations by which logs change hands while both sequencers live, as control calls.

`hand_over` goes to the owner: it closes the log's segment in peace, tells the target to `take` the
log, and sends what waited meanwhile there; nothing is recovered. If the target does not take it,
the log is nobody's and the next append claims it by hash. The balancer's hand-over says so, and is
refused for a log that has just come here. `owned` and `story` tell what is here.

Called by `control` (`/s/control`) and `admin_routes`. Source: docs/protocol/ownership.md "Whose is
a log".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from duramen.core.ownership.balancer import is_held_off
from duramen.core.ownership.writers_region import find_writers_region
from duramen.core.sequencer.log_state import LogState
from duramen.errors import DuramenError
from duramen.ids import LAST_LOG_ID, LogId
from duramen.runtime.http_client import PeerClient, PeerError
from duramen.runtime.sequencer.log_driver import LogDriver, now_us
from duramen.units import SECOND
from duramen_sequencer.log_host import LogHost
from duramen_sequencer.ownership.claims import pick_target

_LOG = logging.getLogger(__name__)

_TAKE_TIMEOUT_US: Final = 2 * SECOND
"""The target only begins; the appends that follow wait for it."""

_REASON_LENGTH_MAX: Final = 200
"""What a story keeps of why somebody else wanted a move."""

Operation = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class HandOver:
    """Hand-overs of one sequencer, and the questions of those who plan them."""

    def __init__(self, host: LogHost, client: PeerClient) -> None:
        self._host = host
        self._client = client

    @property
    def operations(self) -> dict[str, Operation]:
        """Control operations, by `op`."""
        return {
            "hand_over": self._on_hand_over,
            "take": self._on_take,
            "owned": self._on_owned,
            "story": self._on_story,
        }

    async def hand_over(
        self,
        log_id: LogId,
        to: str | None,
        *,
        reason: str = "",
        is_balancing: bool = False,
        is_for_region: bool = False,
    ) -> dict[str, Any]:
        """Close a log in peace and let another sequencer have it.

        Args:
            to: a live sequencer; None: the next one by hash.
            reason: for its story; empty: somebody asked for it.
            is_balancing: nobody asked for it, so a log that has just come stays.
            is_for_region: so that it is where its writers are.

        Returns:
            `from`, `to`, the `epoch` that was closed, and whether it `closed` in peace.

        Raises:
            DuramenError: `log_unavailable`: this process has no open segment of the log, or it is
                changing hands (ask its owner, or retry); `metadata_unavailable`;
                `invalid_argument`: `to` cannot take it.
        """
        host = self._host
        driver = host.drivers.get(log_id)
        view = None if driver is None else driver.core.view
        is_open = driver is not None and driver.core.writer is not None
        if driver is None or view is None or not is_open or host.is_leaving(log_id):
            raise DuramenError("log_unavailable", "this sequencer has no open segment of the log")
        if not host.has_session():
            raise DuramenError("metadata_unavailable", "without ZooKeeper no log changes hands")
        if is_balancing and is_held_off(driver.held_us):
            raise DuramenError("log_unavailable", "the log has just come here, and stays for now")
        assert driver.core.writer is not None
        epoch = driver.core.writer.segment.epoch
        target, url = pick_target(host.claims, view.log, to, host.sequencer_id)
        is_closed = False
        try:
            is_closed = await host.leave(log_id, _explain(f"handed over to {target}", reason))
            host.claims.note_pending_owner(log_id, target)
            message: dict[str, Any] = {"op": "take", "log_id": str(log_id)}
            message |= {"from": host.sequencer_id}
            message |= {"reason": reason} if reason else {}
            message |= {"for_region": True} if is_for_region else {}
            await self._notify(log_id, target, url, message)
        finally:
            host.release_held(log_id)
        return {"from": host.sequencer_id, "to": target, "epoch": epoch, "closed": is_closed}

    async def _notify(self, log_id: LogId, target: str, url: str, message: dict[str, Any]) -> None:
        try:
            status, _ = await self._client.request_json(
                "POST", f"{url}/s/control", json.dumps(message).encode(), _TAKE_TIMEOUT_US
            )
        except PeerError as error:
            status = 0
            _LOG.info("log %d: %s did not take it: %s", log_id, target, error)
        if status != 200:
            self._host.claims.forget_pending_owner(log_id)
            self._host.stories.note(log_id, "hand-over failed", reason=f"{target} did not answer")

    async def _on_hand_over(self, request: dict[str, Any]) -> dict[str, Any]:
        to = request.get("to")
        if to is not None and not isinstance(to, str):
            raise DuramenError("invalid_argument", "to: the id of a sequencer", field="to")
        return await self.hand_over(
            _log_id(request),
            to,
            reason=_take_reason(request),
            is_balancing=request.get("balancing") is True,
            is_for_region=request.get("for_region") is True,
        )

    async def _on_take(self, request: dict[str, Any]) -> dict[str, Any]:
        log_id = _log_id(request)
        if not self._host.has_session():
            raise DuramenError("metadata_unavailable", "without ZooKeeper no log changes hands")
        self._host.claims.note_taken(log_id)
        how = _explain(f"handed over by {request.get('from')}", _take_reason(request))
        self._host.stories.note(log_id, "taken", reason=how)
        self._host.take_over(log_id, demand=1)
        driver = self._host.drivers.get(log_id)
        if driver is not None and request.get("for_region") is True:
            driver.came_for_region = True
        return {"sequencer": self._host.sequencer_id}

    async def _on_owned(self, _request: dict[str, Any]) -> dict[str, Any]:
        """Logs with an open segment here, and their loads."""
        logs = [
            {
                "log_id": str(log_id),
                **driver.statistics(),
                "hot": self._host.hot.get(log_id),
                **_encode_wish(driver),
            }
            for log_id, driver in sorted(self._host.drivers.items())
            if driver.core.state is not LogState.IDLE
        ]
        is_stopping = self._host.is_stopping
        return {"sequencer": self._host.sequencer_id, "stopping": is_stopping, "logs": logs}

    async def _on_story(self, request: dict[str, Any]) -> dict[str, Any]:
        events = self._host.stories.report(_log_id(request))
        return {"sequencer": self._host.sequencer_id, "events": events}


def _encode_wish(driver: LogDriver) -> dict[str, Any]:
    """Of a log that is to be where its writers are: where that is, and whether it came for that."""
    view = driver.core.view
    if view is None or view.log.config.owner_region == "none":
        return {}
    at_us = now_us()
    appends_per_s, _ = driver.load.rates(at_us)
    return {
        "writers_region": find_writers_region(driver.load.regions_per_s(at_us), appends_per_s),
        "came_for_region": driver.came_for_region,
    }


def _take_reason(request: dict[str, Any]) -> str:
    reason = request.get("reason", "")
    return reason[:_REASON_LENGTH_MAX] if isinstance(reason, str) else ""


def _explain(what: str, reason: str) -> str:
    return f"{what}, because {reason}" if reason else what


def _log_id(request: dict[str, Any]) -> LogId:
    text = request.get("log_id")
    is_number = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 10
    if not is_number or not 0 < int(str(text)) <= LAST_LOG_ID:
        raise DuramenError("invalid_argument", f"{text!r} is no log id", field="log_id")
    return LogId(int(str(text)))
