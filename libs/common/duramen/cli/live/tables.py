"""The tables of `duramen sql`: their columns, and how their rows are had from a running cluster.

Three kinds of sources: one call to the admin port (`owners`, `bookies`, `repairs`), the pages of
the listings (`namespaces`, `logs`), and one call for each log (`segments`, `fragments`). Every row
is a tuple in the order of its columns. Nothing is cached, and tables of one statement are read one
after the other, so they are not of one moment.

Called by `live.sql`. Source: docs/cli.md "sql".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from duramen.cli.command import ProxyKind
from duramen.cli.logs import list_all
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError

Row = tuple[Any, ...]

_IN_FLIGHT_MAX: Final = 16


class TooManyLogsError(Exception):
    """A table would need a call for more logs than the caller allows."""


class SqlColumn(NamedTuple):
    """A column, its SQL type, and what it says."""

    name: str
    kind: str
    what: str


class SqlTable(NamedTuple):
    """A table and how to load it."""

    name: str
    what: str
    columns: tuple[SqlColumn, ...]
    load: Callable[[Sources], Awaitable[list[Row]]]


class Sources:
    """Where rows come from.

    Args:
        connect: makes a client of the proxy of that kind; only what a table needs is looked for.
        namespace, log: load only what belongs to these, where given.
        logs_max: of how many logs tables with a call for each may be loaded.
    """

    def __init__(
        self,
        connect: Callable[[ProxyKind], RestClient],
        *,
        namespace: str | None,
        log: str | None,
        logs_max: int,
    ) -> None:
        self._make_client = connect
        self._clients: dict[ProxyKind, RestClient] = {}
        self._namespace = namespace
        self._log = log
        self._logs_max = logs_max
        self._segments: list[tuple[str, dict[str, Any]]] | None = None

    async def close(self) -> None:
        """Close the clients that were made."""
        for client in self._clients.values():
            await client.close()

    def _connect(self, kind: ProxyKind) -> RestClient:
        if kind not in self._clients:
            self._clients[kind] = self._make_client(kind)
        return self._clients[kind]

    async def ask(self, kind: ProxyKind, path: str) -> dict[str, Any]:
        """One answer. Raises as `RestClient.get_json`."""
        return await self._connect(kind).get_json(path)

    async def namespaces(self) -> list[str]:
        """The namespaces that are wanted."""
        if self._namespace is not None:
            return [self._namespace]
        client = self._connect("write_url")
        rows = await list_all(client, "/v1/namespaces", "namespaces")
        return [row["namespace"] for row in rows]

    async def logs(self, most: int | None = None) -> list[dict[str, Any]]:
        """The logs that are wanted; with `most` at least one more, if there are."""
        client = self._connect("write_url")
        if self._namespace is not None and self._log is not None:
            path = f"/v1/namespaces/{quote(self._namespace)}/logs/{quote(self._log)}"
            return [await client.get_json(path)]
        found: list[dict[str, Any]] = []
        for namespace in await self.namespaces():
            path = f"/v1/namespaces/{quote(namespace)}/logs"
            left = None if most is None else most - len(found)
            found += await list_all(client, path, "logs", most=left)
            if most is not None and len(found) > most:
                break
        return found

    async def segments(self) -> list[tuple[str, dict[str, Any]]]:
        """(log, segment) of every log that is wanted; read once.

        Raises:
            TooManyLogsError: of more than `logs_max` logs.
        """
        if self._segments is not None:
            return self._segments
        logs = await self.logs(self._logs_max)
        if len(logs) > self._logs_max:
            raise TooManyLogsError(
                f"segments and fragments take a call for each log, and there are more than "
                f"{self._logs_max:,}: narrow it with --namespace or --log, or raise --logs-max"
            )
        client = self._connect("read_url")
        room = asyncio.Semaphore(_IN_FLIGHT_MAX)

        async def read(log: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
            async with room:
                try:
                    answer = await client.list_segments(log["namespace"], log["name"])
                except DuramenError as error:
                    if error.code in ("log_not_found", "log_deleted"):
                        return []  # It went between the listing and this call.
                    raise
            name = f"{log['namespace']}/{log['name']}"
            return [(name, segment) for segment in answer["segments"]]

        self._segments = [row for rows in await asyncio.gather(*map(read, logs)) for row in rows]
        return self._segments


def _pick(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> list[Row]:
    wanted = tuple(names)
    return [tuple(row.get(name) for name in wanted) for row in rows]


async def _load_namespaces(sources: Sources) -> list[Row]:
    return [(name,) for name in await sources.namespaces()]


async def _load_logs(sources: Sources) -> list[Row]:
    return [
        (f"{row['namespace']}/{row['name']}", row["namespace"], row["name"], row["log_id"])
        for row in await sources.logs()
    ]


async def _load_segments(sources: Sources) -> list[Row]:
    rows = [
        {
            **segment,
            "log": log,
            "lost_entries": _count_entries(segment.get("lost")),
            "hole_entries": _count_entries(segment.get("holes")),
            "fragments": len(segment["fragments"]) if "fragments" in segment else None,
            "property": _format_property(segment.get("property")),
            "cold_bytes": (segment.get("cold_copy") or {}).get("bytes"),
        }
        for log, segment in await sources.segments()
    ]
    return _pick(rows, (column.name for column in _SEGMENTS))


def _count_entries(ranges: Sequence[Sequence[int]] | None) -> int:
    return sum(last - first + 1 for first, last in ranges or ())


async def _load_fragments(sources: Sources) -> list[Row]:
    rows = []
    for log, segment in await sources.segments():
        for fragment in segment.get("fragments", ()):
            place = (log, segment["epoch"], segment["ledger_id"], fragment["first_entry"])
            for index, member in enumerate(fragment["ensemble"]):
                rows.append((*place, index, member["bookie"], member["incarnation"]))
    return rows


def _format_property(wanted: Mapping[str, int] | None) -> str | None:
    if wanted is None:
        return None
    return f"node {wanted['node']}, rack {wanted['rack']}, region {wanted['region']}"


async def _load_nodes(sources: Sources) -> list[Row]:
    rows = [
        {**node, "log": log, "epoch": segment["epoch"], "ledger_id": segment["ledger_id"]}
        for log, segment in await sources.segments()
        for node in segment.get("nodes", ())
    ]
    return _pick(rows, (column.name for column in _NODES))


async def _load_owners(sources: Sources) -> list[Row]:
    answer = await sources.ask("admin_url", "/v1/cluster/owners")
    if answer["silent"]:
        detail = f"{', '.join(answer['silent'])} did not answer: not all owners are known"
        raise DuramenError("log_unavailable", detail)
    rows = ({**log, "log": log.get("name")} for log in answer["logs"])
    return _pick(rows, (column.name for column in _OWNERS))


async def _load_bookies(sources: Sources) -> list[Row]:
    answer = await sources.ask("admin_url", "/v1/cluster/bookies")
    return _pick(
        ({**row, "bookie": row["id"]} for row in answer["bookies"]),
        (column.name for column in _BOOKIES),
    )


async def _load_holdings(sources: Sources) -> list[Row]:
    answer = await sources.ask("admin_url", "/v1/cluster/repair/bookies")
    return _pick(answer["bookies"], (column.name for column in _HOLDINGS))


async def _load_repairs(sources: Sources) -> list[Row]:
    answer = await sources.ask("admin_url", "/v1/cluster/repair")
    rows = [
        {**task, "state": state}
        for state in ("running", "unrepairable")
        for task in answer[state]
    ]  # fmt: skip
    return _pick(rows, (column.name for column in _REPAIRS))


_LOG: Final = SqlColumn("log", "TEXT", "namespace/log")
_LOG_ID: Final = SqlColumn("log_id", "TEXT", "its id, never given twice")
_EPOCH: Final = SqlColumn("epoch", "INTEGER", "the segment's epoch")
_INCARNATION: Final = SqlColumn("incarnation", "TEXT", "one life of its disks")
_REGION: Final = SqlColumn("region", "TEXT", "where it is")
_RACK: Final = SqlColumn("rack", "TEXT", "where it is in the region")
_FIRST_ENTRY: Final = SqlColumn("first_entry", "INTEGER", "of the fragment")

_SEGMENTS: Final = (
    _LOG,
    _EPOCH,
    SqlColumn("ledger_id", "TEXT", "log id and epoch as one number, as bookies name it"),
    SqlColumn("state", "TEXT", "OPEN, IN_RECOVERY or CLOSED"),
    SqlColumn("status", "TEXT", "how much of it was truncated"),
    SqlColumn("start_seq_num", "INTEGER", "of its first record; NULL: not known yet"),
    SqlColumn("records", "INTEGER", "NULL until it is closed"),
    SqlColumn("bytes", "INTEGER", "NULL until it is closed"),
    SqlColumn("last_entry", "INTEGER", "NULL until it is closed"),
    SqlColumn("first_txid", "INTEGER", "NULL: none, or not known yet"),
    SqlColumn("last_txid", "INTEGER", "the greatest; NULL: none, or not closed"),
    SqlColumn("first_timestamp", "TEXT", "of its first record; NULL: not known yet"),
    SqlColumn("last_timestamp", "TEXT", "the greatest; NULL until it is closed"),
    SqlColumn("lost_entries", "INTEGER", "whose loss a person accepted"),
    SqlColumn("hole_entries", "INTEGER", "that were never acknowledged and are not there"),
    SqlColumn("created", "TEXT", "RFC 3339"),
    SqlColumn("completed", "TEXT", "RFC 3339; NULL until it is closed"),
    SqlColumn("hot_copies", "TEXT", "kept, or released: the bookies may have dropped it"),
    SqlColumn(
        "cold_bytes", "INTEGER", "of its verified copy in the cold store; NULL: there is none"
    ),
    SqlColumn("ensemble_size", "INTEGER", "bookies of a fragment; NULL: a flexible segment"),
    SqlColumn("write_quorum", "INTEGER", "copies of an entry; NULL: a flexible segment"),
    SqlColumn("ack_quorum", "INTEGER", "copies that are awaited; NULL: a flexible segment"),
    SqlColumn(
        "fragments", "INTEGER", "ranges of entries with bookies of their own; NULL: as there"
    ),
    SqlColumn("property", "TEXT", "what the copies of an entry span; NULL: a striped segment"),
)
_NODES: Final = (
    _LOG,
    _EPOCH,
    SqlColumn("ledger_id", "TEXT", "as in segments"),
    SqlColumn("number", "INTEGER", "of the bookie in the segment, never given twice"),
    SqlColumn("bookie", "TEXT", "its id"),
    _INCARNATION,
    _REGION,
    _RACK,
    SqlColumn("weight", "REAL", "its share of the copies"),
    SqlColumn("role", "TEXT", "own, guest (of a recovery) or added (by repair)"),
)
_FRAGMENTS: Final = (
    _LOG,
    _EPOCH,
    SqlColumn("ledger_id", "TEXT", "as in segments"),
    _FIRST_ENTRY,
    SqlColumn("place", "INTEGER", "of the bookie in the ensemble, from 0"),
    SqlColumn("bookie", "TEXT", "its id"),
    _INCARNATION,
)
_OWNERS: Final = (
    _LOG,
    _LOG_ID,
    SqlColumn("sequencer", "TEXT", "the owner"),
    SqlColumn("epoch", "INTEGER", "that it appends in"),
    SqlColumn("state", "TEXT", "active, or on its way"),
    SqlColumn("appends_per_s", "REAL", "of the last 5 to 10 s"),
    SqlColumn("bytes_per_s", "REAL", "of the last 5 to 10 s"),
    SqlColumn("unanswered_count", "INTEGER", "appends that wait for their acknowledgement"),
    SqlColumn("held_s", "INTEGER", "for how long the owner has had it"),
    SqlColumn("hot", "TEXT", "window or cpu: more than its owner can carry; NULL: it is not"),
)
_BOOKIES: Final = (
    SqlColumn("bookie", "TEXT", "its id"),
    _INCARNATION,
    _REGION,
    _RACK,
    SqlColumn("state", "TEXT", "rw, ro or absent"),
    SqlColumn("duty", "TEXT", "serving, draining, leaving or drained"),
    SqlColumn("weight", "REAL", "its share of new data"),
    SqlColumn("free_bytes", "INTEGER", "NULL while it is absent"),
    SqlColumn("doubtful", "INTEGER", "1: damage may have held anything, it vouches for no absence"),
    SqlColumn("takes_new_data", "INTEGER", "1: new ensembles may hold it"),
    SqlColumn("steady_in_s", "INTEGER", "0, or when it is no last choice any more: it came back"),
)
_HOLDINGS: Final = (
    SqlColumn("bookie", "TEXT", "its id"),
    _INCARNATION,
    SqlColumn("copies", "INTEGER", "fragments that name it"),
    SqlColumn("bytes", "INTEGER", "that it holds for them, about"),
    SqlColumn("share", "REAL", "1.0: as much as its weight asks for"),
    SqlColumn("fate", "TEXT", "here, leaving, away or lost"),
)
_REPAIRS: Final = (
    _LOG_ID,
    _EPOCH,
    _FIRST_ENTRY,
    SqlColumn("state", "TEXT", "running or unrepairable"),
    SqlColumn("problem", "TEXT", "what is wrong"),
    SqlColumn("action", "TEXT", "what is done about it"),
    SqlColumn("good_copies", "INTEGER", "that are there"),
    SqlColumn("bytes", "INTEGER", "to copy"),
    SqlColumn("copied_bytes", "INTEGER", "so far"),
    SqlColumn("attempts", "INTEGER", "that failed"),
    SqlColumn("reason", "TEXT", "of the last failure"),
)

TABLES: Final = {
    table.name: table
    for table in (
        SqlTable("namespaces", "every namespace", (SqlColumn("namespace", "TEXT", "its name"),),
              _load_namespaces),
        SqlTable("logs", "every log, a page at a time",
              (_LOG, SqlColumn("namespace", "TEXT", "where it is"),
               SqlColumn("name", "TEXT", "without its namespace"), _LOG_ID), _load_logs),
        SqlTable("segments", "live segments; a call for each log", _SEGMENTS, _load_segments),
        SqlTable("fragments", "bookies of each fragment of each segment; a call for each log",
              _FRAGMENTS, _load_fragments),
        SqlTable("nodes", "bookies of each flexible segment; a call for each log", _NODES,
              _load_nodes),
        SqlTable("owners", "logs with an open segment, and their loads", _OWNERS, _load_owners),
        SqlTable("bookies", "who stores data, where, and what takes new ones", _BOOKIES,
              _load_bookies),
        SqlTable("holdings", "what each bookie holds, as the auditor last counted", _HOLDINGS,
              _load_holdings),
        SqlTable("repairs", "copies being made, and what cannot be repaired (the first of these)",
              _REPAIRS, _load_repairs),
    )
}  # fmt: skip
"""Name → table, in the order in which they are shown."""
