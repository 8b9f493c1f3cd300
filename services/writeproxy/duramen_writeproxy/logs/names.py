"""Names of logs to log ids: a cache over `names/<ns>/<log>` in ZooKeeper, kept true by watches.

A name that is there is cached until its watch fires. A name that is missing is never cached, and is
called missing only by a look-up that began after the question and read behind a sync: a log that
somebody was told exists is found. While ZooKeeper cannot be reached, what is known stays in use:
ids are never given twice, and the sequencer refuses a log that is gone. Appends then go on without
metadata. What a name stands for is compared with what a caller means by a read of its own.

Called by `append_route`, `catalog`, `life`, `fencing` and `cluster`.
Source: docs/protocol/wire.md "Identities", docs/protocol/rest.md "The log that is meant",
docs/protocol/metadata.md "namespaces/<ns> and names/<ns>/<log>".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from duramen.errors import DuramenError
from duramen.ids import LAST_LOG_ID, LogId
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore, SessionState
from duramen.texts import parse_log_id
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node

NAME_COUNT_MAX: Final = 100_000
"""Names kept: some 30 MB; a proxy that serves more logs reads the oldest again."""

LOG_ID_FIELD: Final = "log_id"
"""Of a query: the id of the log that the caller means."""

_MISSING: Final = ("namespace_not_found", "log_not_found")


class _Entry:
    """A cached id; stale once its watch has fired, which may be before it is cached."""

    __slots__ = ("is_stale", "log_id")

    def __init__(self) -> None:
        self.log_id = LogId(0)
        self.is_stale = False

    def expire(self) -> None:
        self.is_stale = True


class NameCache:
    """The ids of the logs that are in use here."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._lookups: dict[tuple[str, str], asyncio.Task[LogId]] = {}
        self._read_count = 0

    def find_nowait(self, namespace: str, log: str) -> LogId | None:
        """The id if it is known and current; None says nothing about the log."""
        entry = self._entries.get((namespace, log))
        return None if entry is None or entry.is_stale else entry.log_id

    async def find(self, namespace: str, log: str) -> LogId:
        """The id of a log whose name is legal.

        Raises:
            DuramenError: `namespace_not_found`, `log_not_found`, `metadata_unavailable`.
        """
        key = (namespace, log)
        known = self._entries.get(key)
        if known is not None and (
            not known.is_stale or self._store.session is not SessionState.CONNECTED
        ):
            return known.log_id
        earlier = self._lookups.get(key)
        if earlier is not None:
            try:
                return await asyncio.shield(earlier)
            except DuramenError as error:
                # It began before this call: what it missed may have been made in between.
                if error.code not in _MISSING:
                    raise
        return await asyncio.shield(self._share_lookup(key))

    async def find_meant(self, namespace: str, log: str, meant: LogId | None) -> LogId:
        """The id of the log that a change is made to; a change that comes late may find another.

        The change is then made by this id, at the log's own node. A log that is not deleted keeps
        its name, so whoever takes the name away after this read has deleted the log before, and
        the node says so.

        Args:
            meant: which log the name must stand for; None: whichever it does, as `find` has it.

        Raises:
            DuramenError: `condition_failed`: it stands for another one; as `find`.
        """
        if meant is None:
            return await self.find(namespace, log)
        there = await self._read_now(namespace, log)
        if there != meant:
            detail = (
                f"{namespace}/{log} is log {there}, not log {meant}: nothing was changed. "
                f"Log {meant} was deleted, or never had this name; look at log {there} and "
                "name its id if it is meant"
            )
            raise DuramenError("condition_failed", detail, field=LOG_ID_FIELD)
        return meant

    def doubt(self, namespace: str, log: str) -> None:
        """A sequencer does not know the id: read the name again before its next use."""
        entry = self._entries.get((namespace, log))
        if entry is not None:
            entry.expire()

    def statistics(self) -> dict[str, int]:
        """Sizes now and reads since the start."""
        return {
            "names": len(self._entries),
            "lookups": len(self._lookups),
            "reads": self._read_count,
        }

    def _share_lookup(self, key: tuple[str, str]) -> asyncio.Task[LogId]:
        """Whoever asks for the same name meanwhile waits for the same reads."""
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = asyncio.create_task(self._look_up(*key))
            self._lookups[key] = lookup
            lookup.add_done_callback(lambda task: self._on_looked_up(key, task))
        return lookup

    def _on_looked_up(self, key: tuple[str, str], task: asyncio.Task[LogId]) -> None:
        self._lookups.pop(key, None)
        if not task.cancelled():
            # Marks it as seen: everybody who waited may have gone.
            task.exception()

    async def _look_up(self, namespace: str, log: str) -> LogId:
        key = (namespace, log)
        try:
            entry = await self._read(namespace, log)
        except MetadataError as error:
            known = self._entries.get(key)
            if known is not None:
                return known.log_id
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        except MetadataJsonError as error:
            raise DuramenError("internal", f"{namespace}/{log}: {error}") from error
        if entry is None:
            self._entries.pop(key, None)
            await self._refuse_missing(namespace, log)
        self._entries.pop(key, None)
        if len(self._entries) >= NAME_COUNT_MAX:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = entry
        return entry.log_id

    async def _read(self, namespace: str, log: str) -> _Entry | None:
        path = self._paths.name(namespace, log)
        self._read_count += 1
        # Without a watch first: one on a name that does not exist would stay for ever.
        if await self._store.get(path) is None:
            await self._store.sync(path)
        if await self._store.get(path) is None:
            return None
        entry = _Entry()
        found = await self._store.get(path, entry.expire)
        if found is None:
            return None
        entry.log_id = read_log_id(read_node(found.data))
        return entry

    async def _read_now(self, namespace: str, log: str) -> LogId:
        """As the name is behind a sync; what is kept here may be as old as its watch is late."""
        path = self._paths.name(namespace, log)
        self._read_count += 1
        try:
            await self._store.sync(path)
            found = await self._store.get(path)
            there = None if found is None else read_log_id(read_node(found.data))
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        except MetadataJsonError as error:
            raise DuramenError("internal", f"{namespace}/{log}: {error}") from error
        if there is None:
            await self._refuse_missing(namespace, log)
        return there

    async def _refuse_missing(self, namespace: str, log: str) -> NoReturn:
        try:
            found = await self._store.get(self._paths.namespace(namespace))
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        if found is None:
            raise namespace_not_found(namespace)
        raise DuramenError("log_not_found", f"there is no log {namespace}/{log}", field="log")


def read_log_id(fields: dict[str, Any]) -> LogId:
    """The id in a name's node.

    Raises:
        MetadataJsonError: there is none.
    """
    text = fields.get("log_id")
    if not isinstance(text, str) or not text.isdigit() or not 0 < int(text) <= LAST_LOG_ID:
        raise MetadataJsonError(f"{text!r} is no log id")
    return LogId(int(text))


def read_meant(query: Mapping[str, str]) -> LogId | None:
    """Which log the caller of a change means; None: whichever has the name.

    Raises:
        DuramenError: `invalid_argument`, field `log_id`.
    """
    text = query.get(LOG_ID_FIELD)
    return None if text is None else parse_log_id(text)


def namespace_not_found(namespace: str) -> DuramenError:
    """The refusal of a namespace that is not there."""
    return DuramenError(
        "namespace_not_found", f"there is no namespace {namespace}", field="namespace"
    )
