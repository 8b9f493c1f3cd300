"""Control calls that change how a log is written: its configuration, and the end of its segment.

A configuration is changed by compare-and-set on the log node, by whichever sequencer is asked; the
log's owner is then told, and would see it at its next read of the nodes anyway. A roll is the
owner's: another sequencer passes the call on, once. What a dead owner left open is closed by taking
the log over.

Called by `control`. Source: docs/protocol/metadata.md "The changes", R3, docs/protocol/write.md
"Roll", docs/protocol/rest.md "Write proxy".
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from duramen.config import LogConfig, parse_log_config
from duramen.config_changes import merge_log_config
from duramen.core.log_node import LogNode
from duramen.core.segment import Totals
from duramen.errors import ERRORS, DuramenError
from duramen.ids import EntryId, LogId
from duramen.runtime.http_client import PeerClient, PeerError
from duramen.runtime.registry import refuse_unspoken
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.stores.metadata_store import Conflict, MetadataStore, OutcomeUnknown
from duramen.texts import parse_log_id
from duramen.units import SECOND
from duramen.wire.metadata_json import Paths, encode_log, read_log
from duramen.wire.sequencer_calls import Redirect
from duramen_sequencer.log_host import LogHost

_LOG = logging.getLogger(__name__)
_TRIES: Final = 20
_PEER_TIMEOUT_US: Final = 2 * SECOND
_NONCE_CHARACTERS_MAX: Final = 64
_NAMED_MAX: Final = 5
"""Producers that a refusal names; more are counted."""

AUDITOR: Final = "auditor"
"""As `by` of a roll: who asks for it is told by the story."""

_WHY_ROLLS: Final = {
    AUDITOR: "asked for by the auditor: copies of it are to be made or moved, once it is closed",
}


class _UnansweredError(DuramenError):
    """The log's owner gave no answer."""


CheckConfig = Callable[[LogConfig, LogId], Awaitable[None]]
"""Judges the configuration of a log with this id before it is stored; raises DuramenError."""


async def take_any_config(_config: LogConfig, _log_id: LogId) -> None:
    """Where nothing is known of a cluster."""


def _places_anew(old: LogConfig, new: LogConfig) -> bool:
    """Whether the change is judged as a creation is."""
    names = ("copysets", "replication", "nodeset")
    is_moved = any(getattr(old, name) != getattr(new, name) for name in names)
    return is_moved or _loses_order(old, new)


def _loses_order(old: LogConfig, new: LogConfig) -> bool:
    """Whether the log is to acknowledge out of order from now on."""
    return new.ack_mode != old.ack_mode == "ordered"


class LogChanges:
    """The operations `roll`, `reconfigure`, `config_changed`, `report_state` and `report_tail` of
    one sequencer.

    Args:
        check_config: raises DuramenError for what cannot work on this cluster.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        host: LogHost,
        client: PeerClient,
        check_config: CheckConfig = take_any_config,
    ) -> None:
        self._check_config = check_config
        self._store = store
        self._paths = paths
        self._host = host
        self._client = client

    async def roll(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Begin to close the open segment and to open the next one; `by` says who asks.

        Returns:
            `epoch` of the segment that is being closed; None if the log has none open.

        Raises:
            DuramenError: `log_unavailable` (a takeover is under way, or its owner does not answer);
                `log_not_found`, `log_deleted`; `server_draining`.
        """
        log_id = read_log_id(request)
        driver = self._host.drivers.get(log_id)
        if driver is not None and driver.core.writer is not None:
            epoch = driver.core.writer.segment.epoch
            reason = _WHY_ROLLS.get(str(request.get("by")), "asked for by somebody")
            self._host.stories.note(log_id, "rolls", epoch, reason)
            driver.core.request_roll()
            driver.flush()
            return {"epoch": epoch}
        if driver is not None and driver.core.is_owner:
            raise DuramenError("log_unavailable", "the log is being taken over")
        tried = read_tried(request)
        owner = await self._host.find_owner(log_id, tried)
        if owner is not None and not request.get("forwarded"):
            try:
                asked = {"op": "roll", "log_id": str(log_id), "by": request.get("by")}
                return await self._ask(owner.url, asked)
            except _UnansweredError:
                # Nobody waits for its session's end whose process is known to be gone.
                owner = await self._host.find_owner(log_id, (*tried, owner.sequencer_id))
        return await self._roll_unowned(log_id, owner)

    async def _roll_unowned(self, log_id: LogId, owner: Redirect | None) -> dict[str, Any]:
        """What is open of a log that nobody writes is closed by a takeover, which opens the next.

        Args:
            owner: whose it is, if it is not this process's.
        """
        log, _ = await self._read(log_id)
        if not log.unclosed_epochs:
            return {"epoch": None}
        if owner is not None:
            raise DuramenError("log_unavailable", f"it is {owner.sequencer_id}'s now: try again")
        if self._host.is_stopping:
            raise DuramenError("server_draining", "this sequencer is stopping")
        self._host.take_over(log_id, demand=1)
        return {"epoch": log.unclosed_epochs[-1]}

    async def reconfigure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Change the fields of a log's configuration that `config` names.

        Returns:
            The whole configuration and its version, and whether this call changed it.

        Raises:
            DuramenError: `log_not_found`, `log_deleted`, `config_conflict` (`config_version` is not
                the stored one), a field's fault; `metadata_unavailable`: it may be changed or not,
                the same call may be repeated.
        """
        log_id = read_log_id(request)
        patch, expected = request.get("config"), request.get("config_version")
        if not isinstance(patch, dict):
            raise DuramenError("invalid_argument", "config: an object is expected", field="config")
        log, is_changed = await self._change(log_id, patch, expected, read_nonce(request))
        if is_changed:
            await self._notify_owner(log)
        return {
            "log_id": str(log_id),
            "config": log.config.to_json(),
            "config_version": log.config_version,
            "changed": is_changed,
        }

    async def learn(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Another sequencer has changed the configuration of a log that may be ours."""
        log = (await self._read(read_log_id(request)))[0]
        return {"owner": self._apply(log)}

    async def _change(
        self, log_id: LogId, patch: Mapping[str, Any], expected: object, nonce: str
    ) -> tuple[LogNode, bool]:
        for _ in range(_TRIES):
            log, version = await self._read(log_id)
            # Not the node's own nonce: the roll that follows at once has written over that.
            if log.config_nonce == nonce:
                return log, True
            if expected is not None and log.config_version != expected:
                detail = f"the stored configuration has version {log.config_version}"
                raise DuramenError("config_conflict", detail, field="config_version")
            config = parse_log_config(merge_log_config(log.config.to_json(), patch))
            if config == log.config:
                return log, False
            if _loses_order(log.config, config):
                await self._check_stateless(log)
            if _places_anew(log.config, config):
                await self._check_config(config, log_id)
            if config.compression not in {"none", log.config.compression}:
                await refuse_unspoken(self._store, self._paths, "compression")
            changed = replace(
                log,
                config=config,
                config_version=log.config_version + 1,
                nonce=nonce,
                config_nonce=nonce,
            )
            try:
                await self._store.set(self._paths.log(log_id), encode_log(changed), version=version)
            except (Conflict, OutcomeUnknown):
                # Read again: the node says whether it is ours, or what to decide anew (R3).
                continue
            return changed, True
        raise DuramenError("metadata_unavailable", "the log node changes too often: try again")

    async def report_state(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the log's owner knows of producers and token, in words; empty: there are none.

        Raises:
            DuramenError: `log_unavailable`: it is not known here, or not yet.
        """
        return {"state": await self._find_state(read_log_id(request), is_forwarded=True)}

    async def report_tail(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Where the open epoch of a log of this process ends, as of `OwnerWord`.

        Raises:
            DuramenError: `log_unavailable`: no epoch of it is open here, or older ones are not
                closed.
        """
        driver = self._host.drivers.get(read_log_id(request))
        ours = None if driver is None else driver.core.open_epoch
        if driver is None or ours is None or not driver.core.knows_state:
            raise DuramenError("log_unavailable", "no epoch of the log is open here")
        released = (ours.writer.lac, ours.writer.lac_totals)
        ends = {"released": released, "acknowledged": max(released, ours.acknowledged, key=_entry)}
        told = {
            name: [entry, totals.record_count, totals.max_timestamp_ms or 0]
            for name, (entry, totals) in ends.items()
        }
        return {"epoch": ours.number, **told}

    async def _check_stateless(self, log: LogNode) -> None:
        """Refuse `out_of_order` for a log with producers or a token: its owner knows them (R29).

        Who comes after this look is refused by the owner, or waited for: it opens no such epoch
        while there is anybody.

        Raises:
            DuramenError: `needs_ordered`, naming them; `log_unavailable`: nobody knows them yet.
        """
        if log.is_stateless and not log.unclosed_epochs:
            return
        state = await self._find_state(log.log_id, is_forwarded=False)
        if state:
            detail = (
                f"ack_mode: the log has {state}, and they need ordered: set an empty token, let "
                "producers expire (producers.expire_after), or make another log"
            )
            raise DuramenError("needs_ordered", detail, field="ack_mode")

    async def _find_state(self, log_id: LogId, *, is_forwarded: bool) -> str:
        """As of `report_state`; where nobody knows it the log is taken over, which reads it."""
        driver = self._host.drivers.get(log_id)
        if driver is not None and driver.core.is_owner:
            if not driver.core.knows_state:
                raise DuramenError("log_unavailable", "the log is being taken over: try again")
            return _name_some(driver.core.pipeline.list_state(now_us()))
        owner = await self._host.find_owner(log_id)
        if owner is not None and is_forwarded:
            raise DuramenError("log_unavailable", f"it is {owner.sequencer_id}'s now: try again")
        if owner is not None:
            answer = await self._ask(owner.url, {"op": "report_state", "log_id": str(log_id)})
            return str(answer["state"])
        if self._host.is_stopping:
            raise DuramenError("server_draining", "this sequencer is stopping")
        self._host.take_over(log_id, demand=1)
        raise DuramenError("log_unavailable", "the log's producers are being read: try again")

    async def _read(self, log_id: LogId) -> tuple[LogNode, int]:
        path = self._paths.log(log_id)
        await self._store.sync(path)
        stored = await self._store.get(path)
        if stored is None:
            raise DuramenError("log_not_found", f"there is no log with id {log_id}", field="log")
        log = read_log(stored.data)
        if log.is_deleted:
            raise DuramenError("log_deleted", f"log {log.namespace}/{log.name} was deleted")
        return log, stored.version

    def _apply(self, log: LogNode) -> bool:
        """Tell the log's driver, if it is driven here."""
        driver = self._host.drivers.get(log.log_id)
        if driver is None:
            return False
        driver.on_config(log.config, log.config_version)
        return driver.core.writer is not None

    async def _notify_owner(self, log: LogNode) -> None:
        """As far as it can be reached: it reads the nodes itself before it rolls."""
        if self._apply(log):
            return
        try:
            owner = await self._host.find_owner(log.log_id)
            if owner is not None:
                await self._ask(owner.url, {"op": "config_changed", "log_id": str(log.log_id)})
        except DuramenError as error:
            _LOG.info("the owner of log %d was not told: %s", log.log_id, error)

    async def _ask(self, url: str, message: dict[str, Any]) -> dict[str, Any]:
        """Pass a call on to another sequencer, which passes it on no further."""
        body = json.dumps({**message, "forwarded": True}).encode()
        try:
            status, answer = await self._client.request_json(
                "POST", f"{url}/s/control", body, _PEER_TIMEOUT_US
            )
            document = json.loads(answer)
        except (PeerError, ValueError) as error:
            raise _UnansweredError("log_unavailable", f"the log's owner: {error}") from error
        if status != 200:
            code = document.get("code")
            raise DuramenError(
                code if code in ERRORS else "log_unavailable", str(document.get("detail"))
            )
        return dict(document)


def _entry(end: tuple[EntryId, Totals]) -> EntryId:
    return end[0]


def _name_some(names: list[str]) -> str:
    """The first of them, and how many there are beside."""
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def read_log_id(request: Mapping[str, Any]) -> LogId:
    """The log id of a request.

    Raises:
        DuramenError: `invalid_argument`.
    """
    text = request.get("log_id")
    if not isinstance(text, str):
        raise DuramenError("invalid_argument", f"{text!r} is no log id", field="log_id")
    return parse_log_id(text)


def read_nonce(request: Mapping[str, Any]) -> str:
    """What tells this call from all others, the same in each try of it; drawn here if it has none.

    Raises:
        DuramenError: `invalid_argument`.
    """
    nonce = request.get("nonce")
    if nonce is None:
        return secrets.token_hex(12)
    if not (isinstance(nonce, str) and 0 < len(nonce) <= _NONCE_CHARACTERS_MAX):
        detail = f"nonce: a text of 1 to {_NONCE_CHARACTERS_MAX} characters is expected"
        raise DuramenError("invalid_argument", detail, field="nonce")
    return nonce


def read_tried(request: Mapping[str, Any]) -> tuple[str, ...]:
    """The sequencers that the call has been to in vain.

    Raises:
        DuramenError: `invalid_argument`.
    """
    tried = request.get("tried", [])
    if not (isinstance(tried, list) and all(isinstance(name, str) for name in tried)):
        detail = "tried: a list of sequencers' ids is expected"
        raise DuramenError("invalid_argument", detail, field="tried")
    return tuple(tried)
