"""What exists: namespaces and logs with their configurations, read from ZooKeeper.

Each answer begins with a sync, so that it shows everything that anybody was told is written. Only
reading: creation is the sequencers' (`creation`). Listings prove nothing (R4): they are for people.

Called by `rest`. Source: docs/protocol/rest.md "Write proxy", docs/protocol/metadata.md
"namespaces/<ns> and names/<ns>/<log>".
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from duramen.config import parse_namespace_config
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.public.answers import (
    ListedLogAnswer,
    ListedNamespaceAnswer,
    LogAnswer,
    LogsAnswer,
    NamespaceAnswer,
    NamespacesAnswer,
    describe_log,
)
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_log, read_node
from duramen_writeproxy.logs.names import NameCache, namespace_not_found, read_log_id

LIST_COUNT_DEFAULT: Final = 100
LIST_COUNT_MAX: Final = 1_000

T = TypeVar("T")

Shows = Callable[[str], bool]
"""Whether a name stands in a listing: whoever may not list it is not told that it is there."""


def show_all(_name: str) -> bool:
    """Nobody is asked who it is."""
    return True


_QUERY_NUMBER_CHARACTERS_MAX: Final = 6


class Page(NamedTuple):
    """Which part of a listing is wanted."""

    prefix: str
    start_after: str
    limit: int


def parse_page(fields: dict[str, str]) -> Page:
    """Read the query of a listing.

    Raises:
        DuramenError: `invalid_argument`, field `limit`.
    """
    text = fields.get("limit", str(LIST_COUNT_DEFAULT))
    is_number = text.isascii() and text.isdigit() and len(text) <= _QUERY_NUMBER_CHARACTERS_MAX
    if not is_number or not 1 <= int(text) <= LIST_COUNT_MAX:
        raise DuramenError(
            "invalid_argument", f"limit is a number from 1 to {LIST_COUNT_MAX}", field="limit"
        )
    return Page(fields.get("prefix", ""), fields.get("start_after", ""), int(text))


class CatalogQueries:
    """Reads of what exists."""

    def __init__(self, store: MetadataStore, paths: Paths, names: NameCache) -> None:
        self._store = store
        self._paths = paths
        self._names = names

    async def get_namespace(self, namespace: str) -> NamespaceAnswer:
        """A namespace's answer.

        Raises:
            DuramenError: `namespace_not_found`, `metadata_unavailable`.
        """
        return await self._translate(lambda: self._get_namespace(namespace))

    async def get_log(self, namespace: str, log: str) -> LogAnswer:
        """A log's answer.

        Raises:
            DuramenError: `namespace_not_found`, `log_not_found`, `metadata_unavailable`.
        """
        return await self._translate(lambda: self._get_log(namespace, log))

    async def find_log_id(self, namespace: str, log: str, meant: LogId | None) -> LogId:
        """The id of a log by its name, which must stand for `meant` unless that is None.

        Raises:
            DuramenError: `namespace_not_found`, `log_not_found`, `condition_failed`,
                `metadata_unavailable`.
        """
        return await self._names.find_meant(namespace, log, meant)

    async def list_namespaces(self, page: Page, shows: Shows) -> NamespacesAnswer:
        """A page of the namespaces that are shown.

        Raises:
            DuramenError: `metadata_unavailable`.
        """
        return await self._translate(lambda: self._list_namespaces(page, shows))

    async def list_logs(self, namespace: str, page: Page, shows: Shows) -> LogsAnswer:
        """A page of a namespace's logs that are shown.

        Raises:
            DuramenError: `namespace_not_found`, `metadata_unavailable`.
        """
        return await self._translate(lambda: self._list_logs(namespace, page, shows))

    async def _translate(self, read: Callable[[], Awaitable[T]]) -> T:
        try:
            await self._store.sync(self._paths.root)
            return await read()
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        except MetadataJsonError as error:
            raise DuramenError("internal", f"a node cannot be read: {error}") from error

    async def _get_namespace(self, namespace: str) -> NamespaceAnswer:
        found = await self._store.get(self._paths.namespace(namespace))
        if found is None:
            raise namespace_not_found(namespace)
        config = parse_namespace_config(read_node(found.data).get("config", {}))
        return NamespaceAnswer(namespace=namespace, config=config.to_json())

    async def _get_log(self, namespace: str, log: str) -> LogAnswer:
        log_id = await self._names.find(namespace, log)
        found = await self._store.get(self._paths.log(log_id))
        if found is None:
            self._names.doubt(namespace, log)
            raise DuramenError("log_not_found", f"there is no log {namespace}/{log}", field="log")
        node = read_log(found.data)
        if node.is_deleted:
            self._names.doubt(namespace, log)
            raise DuramenError("log_deleted", f"{namespace}/{log} was deleted", field="log")
        return describe_log(node)

    async def _list_namespaces(self, page: Page, shows: Shows) -> NamespacesAnswer:
        found = await self._store.children(self._paths.namespaces)
        names, has_more = _cut(found or (), page, shows)
        listed = [ListedNamespaceAnswer(namespace=name) for name in names]
        return NamespacesAnswer(namespaces=listed, has_more=has_more)

    async def _list_logs(self, namespace: str, page: Page, shows: Shows) -> LogsAnswer:
        limit = page.limit
        found = await self._store.children(self._paths.names_of(namespace))
        if not found and await self._store.get(self._paths.namespace(namespace)) is None:
            raise namespace_not_found(namespace)
        logs: list[ListedLogAnswer] = []
        has_more = True
        # Names that are not shown must not make a page short: callers go on after the last shown.
        while has_more and len(logs) < page.limit:
            names, has_more = _cut(found or (), page, shows)
            logs += await self._read_names(namespace, names)
            page = page if not names else page._replace(start_after=names[-1])
        has_more = has_more or len(logs) > limit
        return LogsAnswer(logs=logs[:limit], has_more=has_more)

    async def _read_names(self, namespace: str, names: Sequence[str]) -> list[ListedLogAnswer]:
        """The logs of these names that are there and not deleted."""
        parent = self._paths.names_of(namespace)
        nodes = await asyncio.gather(*(self._store.get(f"{parent}/{name}") for name in names))
        found = [
            (name, read_node(node.data))
            for name, node in zip(names, nodes, strict=True)
            # A log that was purged between the two reads is not there any more.
            if node is not None
        ]
        return [
            ListedLogAnswer(namespace=namespace, name=name, log_id=str(read_log_id(fields)))
            for name, fields in found
            if not fields.get("deleted")
        ]


def _cut(names: Sequence[str], page: Page, shows: Shows) -> tuple[list[str], bool]:
    """The page's names in order, and whether more follow; the system's own are not shown.

    What the caller may not list counts for nothing, so no page tells that something was left out.
    """
    shown = sorted(
        name
        for name in names
        if name[0] not in "._" and name.startswith(page.prefix) and shows(name)
    )
    first = bisect_right(shown, page.start_after)
    return shown[first : first + page.limit], len(shown) > first + page.limit
