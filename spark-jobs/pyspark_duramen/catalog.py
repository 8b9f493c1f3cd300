"""What a cluster says of its logs: names, ids, head, tail, segments, and where a position is.

Blocking, with an event loop in a thread; one for each reader, closed when the reader is. Logs are
asked about side by side, a bounded number at once. Refusals that are worth it are repeated.

Called by `reading.reader` and `streaming.reader`. Source: docs/protocol/rest.md "Write proxy".
"""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

from duramen.client.blocking.portal import Portal
from duramen.client.rest_client import BulkReadAnswer
from duramen.client.retry import repeat_while_refused
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.units import KIB
from pyspark_duramen.proxy_place import ProxyPlace

T = TypeVar("T")
LogName = tuple[str, str]
"""Namespace and name."""

RETRY_S: Final = 60.0
"""How long what is refused for now, or not answered, is asked again: a takeover takes seconds."""

_AT_ONCE: Final = 32
_SAMPLE_BYTES: Final = 64 * KIB
_GONE: Final = frozenset({"log_not_found", "log_deleted", "namespace_not_found"})
_GLOB: Final = frozenset("*?[")


class LogFacts(NamedTuple):
    """What a log is, and what of it can be read."""

    log_id: str
    head: int
    tail: int


class ArchivedCopy(NamedTuple):
    """A verified copy in the archive, as the segment's node vouches for it."""

    attempt: str
    manifest_sha256: str


class CatalogSegment(NamedTuple):
    """A closed segment: its records, and whether the archive has them."""

    epoch: int
    first: int
    end: int
    size_bytes: int
    cold_copy: ArchivedCopy | None = None

    @property
    def record_count(self) -> int:
        """How many records it has."""
        return self.end - self.first


class ProxyCatalog:
    """Asks one proxy, which sends on what is the other kind's."""

    def __init__(self, proxy: ProxyPlace) -> None:
        """Connects with the first call."""
        self._portal = Portal()
        self._client = proxy.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection, and end the thread."""
        self._portal.call(self._client.close())
        self._portal.close()

    def find_logs(self, patterns: Sequence[str]) -> list[LogName]:
        """The logs that match a pattern, each once, in the order of their names.

        Raises:
            DuramenError: `namespace_not_found`, or no answer.
        """
        return sorted(set(self._portal.call(self._find_logs(patterns))))

    def find_facts(self, logs: Iterable[LogName]) -> dict[LogName, LogFacts]:
        """What there is of each log; those that are not there (any more) are left out."""
        return self._ask_all(logs, self._find_facts)

    def find_segments(self, logs: Iterable[LogName]) -> dict[LogName, list[CatalogSegment]]:
        """The closed live segments of each log, oldest first."""
        return self._ask_all(logs, self._find_segments)

    def sample_record_bytes(self, places: Mapping[LogName, int]) -> dict[LogName, float]:
        """Bytes of a record, as the first ones from a sequence number on go; 0 at the tail."""
        return self._ask_all(places, lambda log: self._sample(log, places[log]))

    def locate(self, logs: Iterable[LogName], position: str) -> dict[LogName, int]:
        """The sequence number at which a read from a position begins; the tail where it is beyond.

        Raises:
            DuramenError: `invalid_position`, or no answer.
        """
        return self._ask_all(logs, lambda log: self._locate(log, position))

    def _ask_all(
        self, logs: Iterable[LogName], ask: Callable[[LogName], Awaitable[T]]
    ) -> dict[LogName, T]:
        async def ask_all() -> dict[LogName, T]:
            room = asyncio.Semaphore(_AT_ONCE)

            async def ask_one(log: LogName) -> tuple[LogName, T | None]:
                async with room:
                    try:
                        return log, await ask(log)
                    except DuramenError as error:
                        if error.code not in _GONE:
                            raise
                        return log, None

            found = await asyncio.gather(*map(ask_one, logs))
            return {log: answer for log, answer in found if answer is not None}

        return self._portal.call(ask_all())

    async def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await repeat_while_refused(call, timeout_s=RETRY_S, is_read=True)
        except PeerError as error:
            raise DuramenError("log_unavailable", str(error)) from error

    async def _find_logs(self, patterns: Sequence[str]) -> list[LogName]:
        found: list[LogName] = []
        for pattern in patterns:
            wanted_namespace, _, wanted = pattern.partition("/")
            for namespace in await self._find_namespaces(wanted_namespace):
                if not _GLOB & set(wanted):
                    found.append((namespace, wanted))
                    continue
                prefix = wanted[: min(wanted.find(mark) for mark in _GLOB & set(wanted))]
                async for name in self._list_names(
                    "logs", "name",
                    lambda prefix=prefix, start_after="", namespace=namespace: (
                        self._client.list_logs(namespace, prefix=prefix, start_after=start_after)
                    ),
                ):  # fmt: skip
                    if fnmatch.fnmatchcase(name, wanted):
                        found.append((namespace, name))
        return found

    async def _find_namespaces(self, wanted: str) -> list[str]:
        if not _GLOB & set(wanted):
            return [wanted]
        names = self._list_names(
            "namespaces", "namespace",
            lambda start_after="": self._client.list_namespaces(start_after=start_after),
        )  # fmt: skip
        return [name async for name in names if fnmatch.fnmatchcase(name, wanted)]

    async def _list_names(self, rows: str, key: str, ask: Callable[..., Any]) -> Any:
        last, has_more = "", True
        while has_more:
            after = last
            page = await self._run(lambda: ask(start_after=after))  # noqa: B023 - called at once
            has_more = bool(page["has_more"])
            for row in page[rows]:
                last = row[key]
                yield last

    async def _find_facts(self, log: LogName) -> LogFacts:
        shown = await self._run(lambda: self._client.show_log(*log))
        tail = await self._run(lambda: self._client.find_tail(*log))
        return LogFacts(str(shown["log_id"]), int(shown["head"]["seq_num"]), tail)

    async def _find_segments(self, log: LogName) -> list[CatalogSegment]:
        answer = await self._run(lambda: self._client.list_segments(*log))
        return [_read_segment(row) for row in answer["segments"] if row["records"] is not None]

    async def _sample(self, log: LogName, seq_num: int) -> float:
        answer = await self._read(log, f"seq:{seq_num}", _SAMPLE_BYTES)
        count = sum(placed.record_count for placed in answer.batches)
        return sum(len(placed.batch) for placed in answer.batches) / count if count else 0.0

    async def _locate(self, log: LogName, position: str) -> int:
        try:
            answer = await self._read(log, position, 1)
        except DuramenError as error:
            if error.code != "beyond_tail":
                raise
            return await self._run(lambda: self._client.find_tail(*log))
        if answer.first_seq_num is not None:
            return answer.first_seq_num
        return int(answer.next_position.removeprefix("seq:"))

    async def _read(self, log: LogName, position: str, most_bytes: int) -> BulkReadAnswer:
        """One answer; behind records that are lost, where the position is among them."""
        try:
            return await self._run(lambda: self._client.read(*log, position, most_bytes=most_bytes))
        except DuramenError as error:
            following = error.facts.get("next")
            if error.code != "data_lost" or not isinstance(following, str) or following == position:
                raise
            return await self._read(log, following, most_bytes)


def _read_segment(row: dict[str, Any]) -> CatalogSegment:
    copy = row.get("cold_copy")
    return CatalogSegment(
        epoch=int(row["epoch"]),
        first=int(row["start_seq_num"]),
        end=int(row["start_seq_num"]) + int(row["records"]),
        size_bytes=int(row["bytes"]),
        cold_copy=None if copy is None else ArchivedCopy(copy["attempt"], copy["manifest_sha256"]),
    )
