"""Control operations on a log's life: `truncate`, `end`, `delete`, `undelete`.

With an epoch open its owner acts (others answer where it is): only it knows the LAC, and only it
closes the segment in the same `multi()` that ends the log. With none open whoever is asked changes
the log node by compare-and-set; an unclosed epoch without owner is closed first.

Every operation may be sent again: the predicate is judged anew on what is read after a conflict or
an unknown outcome (R3), and what holds already is answered as done. A name keeps pointing at its
deleted log until it is created anew or the undelete window is over; the log node is the truth, the
mark on the name only hides it from listings.

Called by `control`. Source: docs/protocol/retention.md "End of stream" and "Deletion".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from duramen.core.life.retention import purge_time_ms
from duramen.core.log_node import Ending, LogNode, TrimPoint
from duramen.core.sequencer.log_state import LogState
from duramen.errors import DuramenError
from duramen.ids import NOTHING, EntryId, LogId, SequencerId, lsn_of
from duramen.limits import UNDELETE_WINDOW_US
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.metadata_store import Conflict, MetadataError, OutcomeUnknown, Set
from duramen.texts import format_time, parse_position
from duramen.wire.metadata_json import encode_log, encode_name, read_log, read_node
from duramen.wire.record_json import encode_tail
from duramen.wire.sequencer_calls import Redirect, encode_redirect
from duramen_sequencer.life.boundaries import Boundaries, Extent
from duramen_sequencer.log_changes import read_log_id, read_tried
from duramen_sequencer.log_host import LogHost

_LOG = logging.getLogger(__name__)

_TRIES = 10
_CLOSE_WAIT_S = 4.0
"""A close drains for 2 s at most and waits 2 s for owed copies; the caller waits 5 s."""

_OPEN_STATES = (LogState.ACTIVE, LogState.DRAINING, LogState.CLOSING)

Answer = dict[str, Any]


class _Elsewhere(Exception):
    """Another sequencer owns the log."""

    def __init__(self, sequencer_id: str, url: str) -> None:
        super().__init__(f"owned by {sequencer_id}")
        self.answer = encode_redirect(Redirect(SequencerId(sequencer_id), url))


class LifeOperations:
    """Operations of one sequencer.

    Args:
        now_unix_ms: wall-clock time.
    """

    def __init__(
        self,
        host: LogHost,
        link: MetadataLink,
        boundaries: Boundaries,
        *,
        now_unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        undelete_window_us: int = UNDELETE_WINDOW_US,
    ) -> None:
        self._host = host
        self._link = link
        self._boundaries = boundaries
        self._now_unix_ms = now_unix_ms
        self._window_us = undelete_window_us
        self.by_name: dict[str, Callable[[Answer], Awaitable[Answer]]] = {
            "truncate": lambda request: _redirected(self._truncate(request)),
            "end": lambda request: _redirected(self._finish(request, Ending.END)),
            "delete": lambda request: _redirected(self._finish(request, Ending.DELETE)),
            "undelete": self._undelete,
        }
        self._counts = dict.fromkeys((*self.by_name, "conflicts"), 0)

    def statistics(self) -> dict[str, int]:
        """Operations that took effect, and changes that met another's."""
        return {**self._counts, "headers_read": self._boundaries.header_count}

    # --- truncate --------------------------------------------------------------------------------

    async def _truncate(self, request: Answer) -> Answer:
        log_id = read_log_id(request)
        position, tried = _read_position(request), read_tried(request)
        for _ in range(_TRIES):
            extent = await self._find_extent(log_id, tried)
            log = extent.log
            point = await self._boundaries.find(position, extent, field="to")
            if point <= log.trim:
                return _encode_trim(log.trim, extent, is_changed=False)
            trimmed = log.with_trim(
                point,
                release=extent.end,
                unix_ms=self._now_unix_ms(),
                nonce=secrets.token_hex(12),
            )
            if await self._store_log(trimmed, extent.version):
                _LOG.info("log %d is truncated before %s", log_id, point.dlsn)
                self._counts["truncate"] += 1
                return _encode_trim(point, extent, is_changed=True)
        raise _busy()

    async def _find_extent(self, log_id: LogId, tried: tuple[str, ...]) -> Extent:
        """The log and its release pointer, as the owner or with no epoch open."""
        log, version = await self._read_log(log_id)
        if log.is_deleted:
            raise self._deleted(log)
        timestamp_ms = log.totals.max_timestamp_ms or 0
        if not log.unclosed_epochs:
            return Extent(log, version, log.closed_end, timestamp_ms, None)
        writer = (await self._own(log, tried)).core.writer
        if writer is None or log.unclosed_epochs != (writer.segment.epoch,):
            raise _busy()
        seq_num = log.totals.record_count + writer.lac_totals.record_count
        end = TrimPoint(lsn_of(writer.segment.epoch, EntryId(writer.lac + 1)), 0, seq_num)
        if writer.lac != NOTHING:
            timestamp_ms = max(timestamp_ms, writer.lac_totals.max_timestamp_ms or 0)
        return Extent(log, version, end, timestamp_ms, writer.segment)

    # --- end and delete --------------------------------------------------------------------------

    async def _finish(self, request: Answer, ending: Ending) -> Answer:
        log_id, tried = read_log_id(request), read_tried(request)
        for _ in range(_TRIES):
            log, version = await self._read_log(log_id)
            if log.is_deleted and ending is Ending.END:
                raise self._deleted(log)
            if log.is_deleted:
                await self._hide_name(log)
                return self._encode_deleted(log)
            if log.is_ended and ending is Ending.END:
                return _encode_ended(log)
            if log.unclosed_epochs:
                await self._close(await self._own(log, tried), ending)
                continue
            nonce = secrets.token_hex(12)
            over = log.with_ending(ending, unix_ms=self._now_unix_ms(), nonce=nonce)
            if await self._store_log(over, version):
                _LOG.info("log %d: %s", log_id, ending.value)
                self._counts[ending.value] += 1
        raise _busy()

    async def _own(self, log: LogNode, tried: tuple[str, ...]) -> LogDriver:
        """The driver of a log with an unclosed epoch, if this process owns it or may have it.

        Args:
            tried: sequencers that the call has been to in vain: a dead owner is succeeded.

        Raises:
            _Elsewhere: another sequencer is to be asked.
        """
        elsewhere = await self._host.find_owner(log.log_id, tried)
        if elsewhere is not None:
            raise _Elsewhere(elsewhere.sequencer_id, elsewhere.url)
        driver = self._host.drive(log.log_id)
        if driver.core.state is LogState.IDLE:
            # Nobody's, a dead owner's, or left by an earlier life of ours: it is closed first.
            owner = await self._link.read_owner(log.log_id) if tried else None
            is_owner_gone = owner is not None and owner.sequencer_id in tried
            driver.take_over(close_only=True, is_owner_gone=is_owner_gone)
            driver.flush()
        return driver

    async def _close(self, driver: LogDriver, ending: Ending) -> None:
        """Let the owner close its segment with the log; what came of it is read afterwards."""
        if driver.core.is_owner or driver.core.state in _OPEN_STATES:
            driver.finish(ending)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_WAIT_S):
                await driver.idle.wait()
                return
        raise DuramenError("log_unavailable", "its open segment could not be closed in time")

    # --- undelete --------------------------------------------------------------------------------

    async def _undelete(self, request: Answer) -> Answer:
        name_path = self._link.paths.name(_text(request, "namespace"), _text(request, "log"))
        for _ in range(_TRIES):
            await self._link.store.sync(name_path)
            name = await self._link.store.get(name_path)
            if name is None:
                raise DuramenError(
                    "log_not_found", "there is no such log, nor can one be had back", field="log"
                )
            fields = read_node(name.data)
            log, version = await self._read_log(LogId(int(fields["log_id"])))
            if not log.is_deleted:
                if "replaces" in fields:
                    raise DuramenError(
                        "log_deleted",
                        f"the name was given to a new log, {log.log_id}: log {fields['replaces']} "
                        "cannot have it back",
                        field="log",
                    )
                return {"log_id": str(log.log_id), "config": log.config.to_json()}
            if self._now_unix_ms() >= purge_time_ms(log, self._window_us) or log.is_purged:
                raise self._deleted(log)
            back = log.undeleted(secrets.token_hex(12))
            ops = (
                Set(self._link.paths.log(log.log_id), encode_log(back), version),
                Set(name_path, encode_name(log.log_id, fields), name.version),
            )
            try:
                await self._link.store.commit(ops)
                self._counts["undelete"] += 1
            except (Conflict, OutcomeUnknown):
                self._counts["conflicts"] += 1
        raise _busy()

    async def _hide_name(self, log: LogNode) -> None:
        """Mark the name, for listings; nothing depends on it."""
        path = self._link.paths.name(log.namespace, log.name)
        with contextlib.suppress(MetadataError):
            name = await self._link.store.get(path)
            if name is None:
                return
            fields = read_node(name.data)
            if fields["log_id"] != str(log.log_id) or fields.get("deleted"):
                return
            replaced = LogId(int(fields["replaces"])) if "replaces" in fields else None
            data = encode_name(log.log_id, fields, replaced=replaced, is_deleted=True)
            await self._link.store.set(path, data, version=name.version)

    # --- nodes -----------------------------------------------------------------------------------

    async def _read_log(self, log_id: LogId) -> tuple[LogNode, int]:
        path = self._link.paths.log(log_id)
        await self._link.store.sync(path)
        stored = await self._link.store.get(path)
        if stored is None:
            raise DuramenError("log_not_found", f"there is no log with id {log_id}", field="log")
        return read_log(stored.data), stored.version

    async def _store_log(self, log: LogNode, version: int) -> bool:
        """False: somebody else changed it, or nobody knows: it is to be read again."""
        try:
            await self._link.store.set(self._link.paths.log(log.log_id), encode_log(log),
                                       version=version)  # fmt: skip
        except (Conflict, OutcomeUnknown):
            self._counts["conflicts"] += 1
            return False
        return True

    # --- answers ---------------------------------------------------------------------------------

    def _deleted(self, log: LogNode) -> DuramenError:
        until_ms = purge_time_ms(log, self._window_us)
        is_over = log.is_purged or self._now_unix_ms() >= until_ms
        advice = "its undelete window is over" if is_over else (
            f"undelete brings it back until {format_time(until_ms)}")  # fmt: skip
        detail = f"{log.namespace}/{log.name} was deleted: {advice}"
        return DuramenError("log_deleted", detail, field="log")

    def _encode_deleted(self, log: LogNode) -> Answer:
        until_ms = purge_time_ms(log, self._window_us)
        return {"log_id": str(log.log_id), "undelete_until": format_time(until_ms)}


async def _redirected(work: Awaitable[Answer]) -> Answer:
    try:
        return await work
    except _Elsewhere as elsewhere:
        return elsewhere.answer


def _busy() -> DuramenError:
    return DuramenError("log_unavailable", "the log is being taken over or changed: try again")


def _encode_trim(trim: TrimPoint, extent: Extent, *, is_changed: bool) -> Answer:
    head = {"seq_num": trim.seq_num, "lsn": f"e{trim.dlsn.epoch}n{trim.dlsn.entry}",
            "dlsn": str(trim.dlsn)}  # fmt: skip
    return {"head": head, "tail": extent.encode_tail(), "changed": is_changed}


def _encode_ended(log: LogNode) -> Answer:
    end = log.closed_end
    tail = encode_tail(end.seq_num, log.totals.max_timestamp_ms or 0, end.dlsn)
    return {"log_id": str(log.log_id), "ended": True, "tail": tail}


def _read_position(request: Answer) -> Any:
    try:
        return parse_position(_text(request, "to"))
    except DuramenError as error:
        raise DuramenError(error.code, error.detail, field="to") from None


def _text(request: Answer, field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str):
        raise DuramenError("invalid_argument", f"{field}: a text is expected", field=field)
    return value
