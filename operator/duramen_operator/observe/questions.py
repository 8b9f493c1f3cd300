"""Questions to a cluster's write proxy in one look: each bounded in time, given up by sort.

A question gets 2 s. Each sort has slots of its own, so that one which hangs holds no other up. When
three of a sort got no answer in a look, no more of that sort are asked in it. Which ones got none
is remembered between looks (`Silences`): they are asked last, the longest silent first, so that
three logs which never answer keep nobody else from being asked.

Called by `admin` and `serving.cluster_admin`. Source: docs/kubernetes/one-hand.md "What a look
costs" (15, 18).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, Final, Protocol

from duramen.errors import DuramenError
from duramen.runtime.http_client import NoAnswerError, PeerError
from duramen_operator.observe.request_budget import RequestBudget
from duramen_operator.plan.seen_logs import RETRYABLE

ANSWER_S: Final = 2.0
"""For one answer; a log that is well gives it in some milliseconds."""

SLOT_COUNT: Final = 4
"""Questions of one sort at once: a cluster may have thousands of logs, and nobody is in a hurry."""

UNANSWERED_COUNT_MAX: Final = 3
"""What so many logs do not answer is not one log's fault."""

Answer = dict[str, Any]


class Sort(Enum):
    """What is asked; of whom is the subject: a namespace, or `namespace/log`."""

    NAMESPACE = "namespace"
    LIST = "list"
    DESCRIPTION = "description"
    SEGMENTS = "segments"
    TAIL = "tail"
    PLACEMENT = "placement"


OF_LOGS: Final = frozenset({Sort.DESCRIPTION, Sort.SEGMENTS, Sort.TAIL, Sort.PLACEMENT})
"""What is paid from the budget: it accrues by the number of logs."""


class NotAskedError(Exception):
    """Too many of that sort got no answer in this look."""


class AdminClient(Protocol):
    """Reads of one proxy, as `duramen.client.rest_client.RestClient` makes them."""

    async def get_json(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """GET a JSON object.

        Raises:
            DuramenError: refused. PeerError: no usable answer.
        """
        ...


class BoundedClient:
    """Reads of one proxy that end in time."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    async def get_json(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """GET a JSON object within `ANSWER_S`.

        Raises:
            DuramenError: refused. PeerError: no usable answer, or none in time.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._client.get_json(path, query)
        except TimeoutError as error:
            raise NoAnswerError(f"no answer in {ANSWER_S:g} s") from error


class Silences:
    """Which questions got no answer when they were last asked, the longest silent subject first."""

    def __init__(self) -> None:
        self._sorts: dict[str, set[Sort]] = {}

    def note(self, sort: Sort, subject: str) -> None:
        """It was asked, and not answered."""
        sorts = self._sorts.pop(subject, set())
        self._sorts[subject] = sorts | {sort}

    def forget(self, sort: Sort, subject: str) -> None:
        """It was answered."""
        sorts = self._sorts.get(subject)
        if sorts is not None:
            sorts.discard(sort)
            if not sorts:
                del self._sorts[subject]

    def holds(self, sort: Sort, subject: str) -> bool:
        """Whether this question got no answer."""
        return sort in self._sorts.get(subject, ())

    def keep(self, subjects: Iterable[str]) -> None:
        """Nobody asks about others any more."""
        kept = set(subjects)
        self._sorts = {one: sorts for one, sorts in self._sorts.items() if one in kept}

    def order(self, subjects: Iterable[str]) -> list[str]:
        """Who answers comes first, as given; then who did not."""
        ranks = {subject: rank for rank, subject in enumerate(self._sorts, 1)}
        return sorted(subjects, key=lambda subject: ranks.get(subject, 0))


class _Lane:
    """The slots of one sort in one look, and how many of its questions got no answer."""

    def __init__(self) -> None:
        self._unanswered_count = 0
        self._under_way_count = 0
        self._changed = asyncio.Condition()

    @property
    def is_given_up(self) -> bool:
        """Whether no more is asked."""
        return self._unanswered_count >= UNANSWERED_COUNT_MAX

    @property
    def _free_count(self) -> int:
        """Questions that may be begun: after silence no more than would give the sort up, or a look
        waits twice for what nobody answers."""
        most = UNANSWERED_COUNT_MAX - self._unanswered_count
        return (most if self._unanswered_count else SLOT_COUNT) - self._under_way_count

    def note_silence(self) -> None:
        """A question got no answer."""
        self._unanswered_count += 1

    @asynccontextmanager
    async def take_slot(self) -> AsyncIterator[bool]:
        """Whether the question may be asked: False where the sort was given up."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_given_up or self._free_count > 0)
            self._under_way_count += 1
        try:
            yield not self.is_given_up
        finally:
            async with self._changed:
                self._under_way_count -= 1
                if self.is_given_up:
                    self._changed.notify_all()
                elif self._free_count > 0:
                    self._changed.notify(self._free_count)


class Questions:
    """What is asked in one look."""

    def __init__(
        self,
        public: AdminClient,
        admin: AdminClient,
        silences: Silences,
        budget: RequestBudget,
    ) -> None:
        """`public`, `admin`: the write proxy's two ports, bounded."""
        self._public, self._admin = public, admin
        self._silences = silences
        self._budget = budget
        self._lanes = {sort: _Lane() for sort in Sort}
        self._asked: set[tuple[Sort, str]] = set()

    def is_asked(self, sort: Sort, subject: str) -> bool:
        """Whether that question was asked in this look."""
        return (sort, subject) in self._asked

    async def ask(
        self,
        sort: Sort,
        subject: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        is_admin: bool = False,
    ) -> Answer:
        """One question, once there is a slot.

        Raises:
            DuramenError, PeerError: refused or not answered, which `is_unanswered` tells apart.
            NotAskedError: that sort was given up.
        """
        lane = self._lanes[sort]
        async with lane.take_slot() as may_ask:
            if not may_ask:
                raise NotAskedError(sort.value)
            self._asked.add((sort, subject))
            if sort in OF_LOGS:
                self._budget.spend()
            try:
                answer = await (self._admin if is_admin else self._public).get_json(path, query)
            except (DuramenError, PeerError) as error:
                if is_unanswered(error):
                    lane.note_silence()
                    self._silences.note(sort, subject)
                else:
                    self._silences.forget(sort, subject)
                raise
        self._silences.forget(sort, subject)
        return answer


def is_unanswered(error: DuramenError | PeerError) -> bool:
    """Whether it says nothing about what was asked: no answer, or one that asks to try again."""
    return not isinstance(error, DuramenError) or error.code in RETRYABLE


def describe_problem(error: DuramenError | PeerError) -> Answer:
    """What is known instead of an answer, as `plan.seen_logs` reads it."""
    if isinstance(error, DuramenError):
        return {"problem": {"code": error.code, "detail": error.detail}}
    return {"problem": {"code": "unreachable", "detail": str(error)}}
