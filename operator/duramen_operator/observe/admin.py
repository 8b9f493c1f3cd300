"""Asks a cluster's write proxy what the plan needs to know of namespaces and logs.

Only what somebody asked for is read: namespaces and logs that have an object, and the logs that an
ArchivePolicy chooses. Every answer is read anew; what is refused or not answered is kept as a
problem beside the others, so that one broken log does not hide the rest.

Called by the worker. What it gives is described in `plan.seen_logs`. Source: docs/protocol/rest.md.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol
from urllib.parse import quote

from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen_operator.plan.observed import Json

IN_FLIGHT_MAX: Final = 8
"""Requests at once: a cluster may have thousands of logs, and the operator is in no hurry."""

LIST_PAGES_MAX: Final = 100
"""Of 100 names each; what is beyond is not archived by a glob, and the policy's status says so."""

Answer = dict[str, Any]


class AdminClient(Protocol):
    """Reads of one proxy, as `duramen.client.rest_client.RestClient` makes them."""

    async def get_json(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """GET a JSON object.

        Raises:
            DuramenError: refused. PeerError: no usable answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class SeenLogs:
    """Namespaces by name and logs by `namespace/log`, as `plan.seen_logs` reads them."""

    namespaces: dict[str, Json]
    logs: dict[str, Json]


async def observe_logs(
    public: AdminClient, admin: AdminClient, objects: Iterable[Json]
) -> SeenLogs:
    """What the cluster says of all that these objects are about.

    Args:
        public, admin: the write proxy's two ports.
        objects: LogNamespaces, Logs and ArchivePolicies as the API server gave them.

    Raises:
        PeerError: the proxy does not answer at all.
        DuramenError: nor does what is behind it.
    """
    namespaces, paths, globs = _list_wanted(objects)
    reading = _Reading(public, admin)
    chosen = await reading.choose(globs) if globs else set()
    found = await asyncio.gather(
        *(reading.read_namespace(name) for name in sorted(namespaces)),
        return_exceptions=False,
    )
    owners = await reading.read_owners() if paths or chosen else {}
    logs = await asyncio.gather(
        *(
            reading.read_log(path, owners, is_placed=path in paths)
            for path in sorted(paths | chosen)
        )
    )
    return SeenLogs(dict(found), dict(logs))


def _list_wanted(objects: Iterable[Json]) -> tuple[set[str], set[str], list[tuple[str, str]]]:
    """Namespaces, paths of logs, and selectors of policies; names as they stand in the objects."""
    namespaces: set[str] = set()
    paths: set[str] = set()
    globs: list[tuple[str, str]] = []
    for item in objects:
        spec = item.get("spec") or {}
        name = str(spec.get("name") or item["metadata"]["name"])
        match item.get("kind"):
            case "LogNamespace":
                namespaces.add(name)
            case "Log":
                paths.add(f"{spec.get('namespace', '')}/{name}")
            case "ArchivePolicy":
                selector = spec.get("selector") or {}
                globs.append((str(selector.get("namespace", "*")), str(selector.get("logs", "*"))))
            case _:
                pass
    return namespaces, paths, globs


class _Reading:
    """One look at a cluster."""

    def __init__(self, public: AdminClient, admin: AdminClient) -> None:
        self._public, self._admin = public, admin
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def choose(self, globs: list[tuple[str, str]]) -> set[str]:
        """Paths of the logs that a selector chooses."""
        spaces = await self._list_all("/v1/namespaces", "namespaces", "namespace")
        wanted = [name for name in spaces if any(fnmatchcase(name, space) for space, _ in globs)]
        lists = await asyncio.gather(*(self._list_logs(name) for name in wanted))
        return {
            f"{space}/{log}"
            for space, logs in zip(wanted, lists, strict=True)
            for log in logs
            if any(fnmatchcase(space, one) and fnmatchcase(log, two) for one, two in globs)
        }

    async def read_namespace(self, name: str) -> tuple[str, Json]:
        """A namespace's configuration and how many logs it has."""

        async def read() -> Answer:
            found = await self._get(f"/v1/namespaces/{quote(name)}")
            return {"config": found["config"], "logs": len(await self._list_logs(name))}

        return name, await _or_problem(read)

    async def read_log(
        self, path: str, owners: Mapping[str, str], *, is_placed: bool
    ) -> tuple[str, Json]:
        """What there is to know of a log; `is_placed`: where its copies lie, too."""
        space, _, name = path.partition("/")
        url = f"/v1/namespaces/{quote(space)}/logs/{quote(name)}"

        async def read() -> Answer:
            log = await self._get(url)
            found: Answer = {"log": log, "owner": owners.get(str(log.get("log_id")), "")}
            found["segments"] = await _or_none(lambda: self._get(f"{url}/segments"), "segments")
            tail = await _or_none(lambda: self._get(f"{url}/records/tail"), "tail")
            found["tail"] = None if tail is None else tail.get("seq_num")
            if is_placed:
                place = f"/v1/cluster/logs/{quote(space)}/{quote(name)}/placement"
                placed = await _or_none(lambda: self._get(place, is_admin=True))
                shown = (placed or {}).get("shown") or ()
                found["violations"] = None if placed is None else placed.get("violations")
                found["violation"] = shown[0].get("detail", "") if shown else ""
                found["refusal"] = ((placed or {}).get("nodeset") or {}).get("refusal")
            return found

        return path, await _or_problem(read)

    async def read_owners(self) -> dict[str, str]:
        """Log id → sequencer, of the logs with an open segment."""
        answer = await _or_none(lambda: self._get("/v1/cluster/owners", is_admin=True))
        rows = (answer or {}).get("logs") or ()
        return {str(row.get("log_id")): str(row.get("sequencer", "")) for row in rows}

    async def _list_logs(self, namespace: str) -> list[str]:
        return await self._list_all(f"/v1/namespaces/{quote(namespace)}/logs", "logs", "name")

    async def _list_all(self, path: str, field: str, name: str) -> list[str]:
        names: list[str] = []
        for _ in range(LIST_PAGES_MAX):
            query = {"start_after": names[-1]} if names else None
            page = await self._get(path, query=query)
            names += [str(row[name]) for row in page[field]]
            if not page.get("has_more") or not page[field]:
                break
        return names

    async def _get(
        self, path: str, *, query: Mapping[str, str] | None = None, is_admin: bool = False
    ) -> Answer:
        async with self._slots:
            return await (self._admin if is_admin else self._public).get_json(path, query)


async def _or_problem(read: Callable[[], Awaitable[Answer]]) -> Json:
    try:
        return await read()
    except DuramenError as error:
        return {"problem": {"code": error.code, "detail": error.detail}}


async def _or_none(read: Callable[[], Awaitable[Answer]], field: str = "") -> Any:
    """What is good to know and no reason to know nothing."""
    try:
        answer = await read()
    except (DuramenError, PeerError):
        return None
    return answer.get(field) if field else answer
