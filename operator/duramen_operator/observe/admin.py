"""Asks a cluster's write proxy what the plan needs to know of namespaces and logs.

Only what somebody asked for is read: namespaces and logs that have an object, and the logs that an
ArchivePolicy chooses. Facts of logs are kept between looks (`log_facts`), and a look reads those
whose turn it is. What is refused or not answered is kept as a problem beside the others, so that
one broken log does not hide the rest; where the time is over, what was read so far counts.

Called by the cluster's admin in `serving`. What it gives is described in `plan.seen_logs`. Source:
docs/protocol/rest.md, docs/kubernetes/one-hand.md "What a look costs".
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import quote

from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen_operator.observe.log_facts import KeptLogFacts, LogWish
from duramen_operator.observe.questions import (
    AdminClient,
    Answer,
    NotAskedError,
    Questions,
    Silences,
    Sort,
    describe_problem,
    is_unanswered,
)
from duramen_operator.observe.request_budget import LEAST_COUNT, RequestBudget
from duramen_operator.plan.observed import EVERY_NAMESPACE, Json, KubeObject, Observed

LIST_PAGES_MAX: Final = 100
"""Of 100 names each; what is beyond is not archived by a glob."""

HELD_BACK_S: Final = 5.0
"""So soon a look comes again after one in which too many descriptions were not answered."""

_NO_SUCH_NAMESPACE: Final = "namespace_not_found"


class LookMemory:
    """What is kept between looks at one cluster; all of it may be lost at any moment."""

    def __init__(self, clock_s: Callable[[], float], *, least_count: int = LEAST_COUNT) -> None:
        """`least_count`: requests in half a minute, however few logs there are."""
        self.facts = KeptLogFacts(clock_s)
        self.budget = RequestBudget(clock_s, least_count=least_count)
        self.silences = Silences()


@dataclass(frozen=True, slots=True)
class SeenLogs:
    """What a look shows, as `AdminView` has it: namespaces by name, logs by `namespace/log`."""

    namespaces: dict[str, Json]
    logs: dict[str, Json]
    stale_logs: frozenset[str]
    unlisted: frozenset[str]
    look_again_s: float | None


async def observe_logs(
    public: AdminClient, admin: AdminClient, seen: Observed, memory: LookMemory, *, ends_s: float
) -> SeenLogs:
    """What the cluster says of all that these objects are about.

    Args:
        public, admin: the write proxy's two ports, bounded.
        seen: with LogNamespaces, Logs and ArchivePolicies as the API server gave them.
        ends_s: when the asking ends, by the clock of the running event loop.
    """
    memory.budget.accrue(len(memory.facts.paths))
    questions = Questions(public, admin, memory.silences, memory.budget)
    reading = _Reading(questions, admin, seen, memory)
    now_s = asyncio.get_running_loop().time()
    # What is not answered here leaves the logs half of the time.
    await _in_time(now_s + (ends_s - now_s) / 2, reading.read_around())
    reading.begin_logs()
    is_over = not await _in_time(ends_s, reading.read_logs())
    return reading.show(is_over=is_over)


async def _in_time(ends_s: float, work: Coroutine[Any, Any, None]) -> bool:
    """Whether it came to its end before that moment; what it has done stays."""
    try:
        async with asyncio.timeout_at(ends_s):
            await work
    except TimeoutError:
        return False
    return True


class _Reading:
    """One look at a cluster."""

    def __init__(
        self, questions: Questions, admin: AdminClient, seen: Observed, memory: LookMemory
    ) -> None:
        self._questions, self._admin = questions, admin
        self._seen, self._memory = seen, memory
        self._facts = memory.facts
        self._globs = [_read_selector(item) for item in seen.list("ArchivePolicy")]
        self._spaces: list[str] | None = None
        """Of the whole cluster; None: not asked, or not answered."""
        self._listed: dict[str, list[str]] = {}
        self._namespaces: dict[str, Json] = {}
        self._owners: Answer | None = None

    async def read_around(self) -> None:
        """Namespaces, which logs there are, and who owns them."""
        wanted = {_name(item) for item in self._seen.list("LogNamespace")}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_owners())
            for name in self._memory.silences.order(sorted(wanted)):
                group.create_task(self._read_namespace(name))
            if self._globs:
                self._spaces = await self._list_namespaces()
            for name in self._memory.silences.order(sorted(self._chosen_spaces() - wanted)):
                group.create_task(self._list_logs(name))

    def begin_logs(self) -> None:
        """Settle which logs are wanted; of others nothing is kept."""
        wishes = self._wish_logs()
        self._facts.begin(wishes)
        spaces = {_name(item) for item in self._seen.list("LogNamespace")}
        self._memory.silences.keep({*spaces, *self._chosen_spaces(), *wishes})

    async def read_logs(self) -> None:
        """Those whose turn it is: first what was answered the last time, then what was not."""
        chosen = self._facts.choose(self._memory.budget)
        for is_last in (False, True):
            async with asyncio.TaskGroup() as group:
                for path in self._memory.silences.order(chosen) if is_last else chosen:
                    group.create_task(self._read_log(path, is_last=is_last))

    def show(self, *, is_over: bool) -> SeenLogs:
        """What is known now; `is_over`: because the time is."""
        if self._owners is not None:
            owners = {str(row.get("log_id")): str(row.get("sequencer", ""))
                      for row in self._owners.get("logs") or ()}  # fmt: skip
            self._facts.on_owners(owners, frozenset(self._owners.get("silent") or ()))
        look_again_s = None
        if self._facts.list_left():
            look_again_s = 0.0 if is_over else HELD_BACK_S
        return SeenLogs(
            self._namespaces,
            self._facts.view(),
            self._facts.list_stale(),
            frozenset(self._list_unlisted()),
            look_again_s,
        )

    def _wish_logs(self) -> dict[str, LogWish]:
        wishes = dict.fromkeys(sorted(self._choose()), LogWish())
        for item in self._seen.list("Log"):
            path = f"{item.spec.get('namespace', '')}/{_name(item)}"
            is_first = wishes.get(path, LogWish()).is_urgent
            is_urgent = is_first or _is_urgent(item, self._seen)
            wishes[path] = LogWish(is_placed=True, is_urgent=is_urgent)
        return wishes

    # --- Namespaces and lists ---------------------------------------------------------------------

    async def _read_namespace(self, name: str) -> None:
        """A namespace's configuration and how many logs it has."""
        try:
            found = await self._questions.ask(Sort.NAMESPACE, name, f"/v1/namespaces/{quote(name)}")
            logs = await self._list_all(_logs_of(name), "logs", "name", name)
        except (DuramenError, PeerError) as error:
            self._namespaces[name] = describe_problem(error)
            if isinstance(error, DuramenError) and error.code == _NO_SUCH_NAMESPACE:
                self._listed[name] = []
        except NotAskedError:
            return
        else:
            self._listed[name] = logs
            self._namespaces[name] = {"config": found["config"], "logs": len(logs)}

    async def _list_namespaces(self) -> list[str] | None:
        try:
            return await self._list_all("/v1/namespaces", "namespaces", "namespace", "")
        except (DuramenError, PeerError, NotAskedError):
            return None

    async def _list_logs(self, namespace: str) -> None:
        try:
            self._listed[namespace] = await self._list_all(
                _logs_of(namespace), "logs", "name", namespace
            )
        except DuramenError as error:
            if error.code == _NO_SUCH_NAMESPACE:
                self._listed[namespace] = []
        except (PeerError, NotAskedError):
            return

    async def _list_all(self, path: str, field: str, name: str, subject: str) -> list[str]:
        names: list[str] = []
        for _ in range(LIST_PAGES_MAX):
            query = {"start_after": names[-1]} if names else None
            page = await self._questions.ask(Sort.LIST, subject, path, query)
            names += [str(row[name]) for row in page[field]]
            if not page.get("has_more") or not page[field]:
                break
        return names

    def _chosen_spaces(self) -> set[str]:
        """Namespaces that a policy's selector names."""
        return {
            name
            for name in self._spaces or ()
            if any(fnmatchcase(name, space) for space, _ in self._globs)
        }

    def _list_unlisted(self) -> set[str]:
        """Namespaces of which a policy cannot know what logs they have."""
        if self._globs and self._spaces is None:
            return {EVERY_NAMESPACE}
        return {name for name in self._chosen_spaces() if name not in self._listed}

    def _choose(self) -> set[str]:
        """Logs that a policy's selector chooses; where they cannot be listed, those of before."""
        listed = {f"{space}/{log}" for space, logs in self._listed.items() for log in logs}
        unlisted = self._list_unlisted()
        kept = {
            path
            for path in self._facts.paths
            if EVERY_NAMESPACE in unlisted or path.partition("/")[0] in unlisted
        }
        return {path for path in listed | kept if self._is_chosen(path)}

    def _is_chosen(self, path: str) -> bool:
        space, _, log = path.partition("/")
        return any(fnmatchcase(space, one) and fnmatchcase(log, two) for one, two in self._globs)

    async def _read_owners(self) -> None:
        """Who owns the logs with an open segment."""
        try:
            self._owners = await self._admin.get_json("/v1/cluster/owners")
        except (DuramenError, PeerError):
            return

    # --- Logs -------------------------------------------------------------------------------------

    async def _read_log(self, path: str, *, is_last: bool) -> None:
        """What there is to know of a log; `is_last`: also what was not answered the last time."""
        if not self._questions.is_asked(Sort.DESCRIPTION, path):
            if self._memory.silences.holds(Sort.DESCRIPTION, path) and not is_last:
                return
            await self._describe(path)
        if not self._facts.is_described(path):
            return
        parts = [
            sort
            for sort in self._facts.parts_of(path)
            if not self._questions.is_asked(sort, path)
            and (is_last or not self._memory.silences.holds(sort, path))
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for sort in parts:
                    group.create_task(self._read_part(path, sort))
        except asyncio.CancelledError:
            self._facts.on_cut(path)
            raise

    async def _describe(self, path: str) -> None:
        try:
            log = await self._questions.ask(Sort.DESCRIPTION, path, _url_of(path))
        except (DuramenError, PeerError) as error:
            self._facts.on_problem(
                path, describe_problem(error), is_unanswered=is_unanswered(error)
            )
        except NotAskedError:
            return
        else:
            self._facts.on_described(path, log)

    async def _read_part(self, path: str, sort: Sort) -> None:
        """What is good to know and no reason to know nothing; not asked, it stays as it was."""
        space, _, name = path.partition("/")
        is_placement = sort is Sort.PLACEMENT
        url = {
            Sort.SEGMENTS: f"{_url_of(path)}/segments",
            Sort.TAIL: f"{_url_of(path)}/records/tail",
            Sort.PLACEMENT: f"/v1/cluster/logs/{quote(space)}/{quote(name)}/placement",
        }[sort]
        try:
            answer = await self._questions.ask(sort, path, url, is_admin=is_placement)
        except (DuramenError, PeerError):
            self._facts.on_part(path, sort, None)
        except NotAskedError:
            return
        else:
            self._facts.on_part(path, sort, answer)


def _name(item: KubeObject) -> str:
    """Of the namespace or log that an object is about."""
    return str(item.spec.get("name") or item.name)


def _read_selector(item: KubeObject) -> tuple[str, str]:
    selector = item.spec.get("selector") or {}
    return str(selector.get("namespace", "*")), str(selector.get("logs", "*"))


def _is_urgent(item: KubeObject, seen: Observed) -> bool:
    """Whether an object was changed, is being deleted, or was refused something."""
    is_changed = item.generation != item.status.get("observedGeneration")
    return is_changed or item.is_leaving or item.ref in seen.refusals


def _logs_of(namespace: str) -> str:
    return f"/v1/namespaces/{quote(namespace)}/logs"


def _url_of(path: str) -> str:
    space, _, name = path.partition("/")
    return f"/v1/namespaces/{quote(space)}/logs/{quote(name)}"
