"""Both ports of a write proxy without a network: answers from a twin's state, and counts.

Faults are explicit: `is_silent` says which questions are never answered, `refuse` which get a code
instead, `answer_s` how long an answer takes. Used by the tests of this folder, under a standing
clock (`tests.component.still_clock`). Source: docs/protocol/rest.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from duramen.errors import DuramenError
from tests.kubernetes.controllers.twin_state import Answer, TwinState
from tests.pauses import let_pass, stay

_LOG: Final = r"/v1/namespaces/([^/]+)/logs/([^/]+)"

SORTS: Final[dict[str, str]] = {
    "tail": rf"{_LOG}/records/tail",
    "segments": rf"{_LOG}/segments",
    "description": _LOG,
    "list": r"/v1/namespaces/([^/]+)/logs",
    "namespace": r"/v1/namespaces/([^/]+)",
    "namespaces": r"/v1/namespaces",
    "placement": r"/v1/cluster/logs/([^/]+)/([^/]+)/placement",
    "owners": r"/v1/cluster/owners",
}


def nobody(sort: str, subject: str) -> bool:
    """Every question is answered."""
    del sort, subject
    return False


class AskedCluster:
    """One cluster, as `observe.questions.AdminClient` asks it; the subject of a question is a
    namespace, or `namespace/log`."""

    def __init__(self, state: TwinState, *, answer_s: float = 0.0) -> None:
        self.state = state
        self.answer_s = answer_s
        self.more_s = 0.0
        """Each answer takes so much longer than the one before, so that no two end together."""
        self.is_silent: Callable[[str, str], bool] = nobody
        self.refuse: Callable[[str, str], bool] = nobody
        self.silent_sequencers: list[str] = []
        self.asked: list[tuple[str, str]] = []
        """Sort and subject of each question, in order."""

    def count(self, sort: str = "") -> int:
        """How many questions there were, of one sort or of all."""
        return sum(one == sort or not sort for one, _ in self.asked)

    def subjects(self, sort: str) -> list[str]:
        """Of whom something was asked, in order."""
        return [subject for one, subject in self.asked if one == sort]

    def forget(self) -> None:
        """Count anew."""
        self.asked.clear()

    async def get_json(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """GET a JSON object."""
        sort, names = _parse(path)
        subject = "/".join(names)
        self.asked.append((sort, subject))
        if self.is_silent(sort, subject):
            await stay()
        think_s = self.answer_s + len(self.asked) * self.more_s
        if think_s:
            await let_pass(think_s, what="the cluster thinks")
        if self.refuse(sort, subject):
            raise DuramenError("log_unavailable", "no quorum")
        return self._answer(sort, names, query or {})

    def _answer(self, sort: str, names: tuple[str, ...], query: Mapping[str, str]) -> Answer:
        after = query.get("start_after", "")
        match sort:
            case "tail":
                return {"tail": self.state.find_log(*_pair(names)).encode_tail()}
            case "segments":
                return self.state.list_segments(*_pair(names))
            case "description":
                return self.state.show_log(*_pair(names))
            case "list":
                return self.state.list_logs(names[0], after, 100)
            case "namespace":
                return self.state.show_namespace(names[0])
            case "namespaces":
                return self.state.list_namespaces(after, 100)
            case "placement":
                self.state.find_log(*_pair(names))
                return {"violations": 0, "shown": []}
        return {"logs": self._list_owners(), "silent": self.silent_sequencers}

    def _list_owners(self) -> list[dict[str, Any]]:
        if self.silent_sequencers:
            return []
        return [
            {"log_id": str(log.log_id), "sequencer": "sequencer-0"}
            for log in self.state.logs.values()
        ]


def _parse(path: str) -> tuple[str, tuple[str, ...]]:
    for sort, pattern in SORTS.items():
        found = re.fullmatch(pattern, path)
        if found is not None:
            return sort, tuple(map(unquote, found.groups()))
    raise AssertionError(path)


def _pair(names: tuple[str, ...]) -> tuple[str, str]:
    space, log = names
    return space, log
