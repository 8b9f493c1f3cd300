"""What the admin API said of namespaces and logs, read for the parts of the plan that need it.

`observe.admin` fills `AdminView.namespaces` and `AdminView.logs` with what is described here: for a
namespace `{"config", "logs"}`, for a log `{"log", "segments", "tail", "owner", "violations",
"violation", "refusal"}`, where `log` and each segment read as in docs/protocol/rest.md, and the
`refusal` of its nodeset is null or not there; or, for either, `{"problem": {"code", "detail"}}`.
What is not in the view was not asked. Of a segment only what is asked for here is kept.

Called by `logs`, `log_namespaces` and `archive`. Source: docs/protocol/rest.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duramen_operator.plan.observed import Json, Problem

ABSENT = ("log_not_found", "log_deleted")
"""A deleted log's name is free: a log of that name is another one."""

NOT_ASKED = "not_asked"
"""Nothing is known of it yet, and nothing is wrong: a look has its bounds."""

RETRYABLE = ("metadata_unavailable", "log_unavailable", "overloaded", "server_draining", "internal")


@dataclass(frozen=True, slots=True)
class SeenLog:
    """One log, or why nothing is known of it."""

    facts: Json

    @property
    def problem(self) -> Problem | None:
        return read_problem(self.facts)

    @property
    def is_not_asked(self) -> bool:
        """Whether nothing is known because no look came to it yet."""
        problem = self.problem
        return problem is not None and problem.code == NOT_ASKED

    @property
    def is_absent(self) -> bool:
        """Whether there certainly is no such log."""
        problem = self.problem
        return problem is not None and problem.code in ABSENT

    @property
    def log(self) -> Json:
        found: Json = self.facts.get("log") or {}
        return found

    @property
    def log_id(self) -> str:
        return str(self.log.get("log_id", ""))

    @property
    def config(self) -> Json:
        found: Json = self.log.get("config") or {}
        return found

    @property
    def is_ended(self) -> bool:
        return self.log.get("ended") is True

    @property
    def head(self) -> Json:
        found: Json = self.log.get("head") or {}
        return found

    @property
    def segments(self) -> tuple[Json, ...] | None:
        """None where they are not known now."""
        found = self.facts.get("segments")
        return None if found is None else tuple(found)

    @property
    def tiering(self) -> Json:
        found: Json = self.config.get("tiering") or {}
        return found

    @property
    def requires_cold_copies(self) -> bool:
        """Whether retention gives nothing up that has no cold copy."""
        found: Json = self.config.get("retention") or {}
        return found.get("require_cold_copy") is True

    @property
    def is_tiered(self) -> bool:
        """Whether the archive takes it without being told its name."""
        return self.tiering.get("policy", "none") != "none" or self.requires_cold_copies

    @property
    def segments_to_archive(self) -> list[Json]:
        """The closed segments that should have a cold copy, or have one."""
        return [
            one
            for one in self.segments or ()
            if is_closed(one) and (is_live(one) or self.requires_cold_copies)
        ]


def read_problem(facts: Json | None) -> Problem | None:
    """Why nothing is known, if it is not."""
    problem = None if facts is None else facts.get("problem")
    if problem is None:
        return None
    code = str(problem.get("code"))
    return Problem(code, str(problem.get("detail")), is_retryable=code in RETRYABLE)


def find_changes(present: Json, wanted: Json) -> dict[str, Any]:
    """The members of `wanted` that are otherwise in `present`, nested as both are: a PATCH.

    Both are spelled by `duramen.config`, so that "60m" and "1h" cannot meet here.
    """
    changes: dict[str, Any] = {}
    for name, value in wanted.items():
        there = present.get(name)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            below = find_changes(there, value)
            if below:
                changes[name] = below
        elif there != value or name not in present:
            changes[name] = value
    return changes


def name_fields(changes: Json, prefix: str = "") -> tuple[str, ...]:
    """Paths of the members of a PATCH, as people write them."""
    paths: list[str] = []
    for name, value in changes.items():
        if isinstance(value, Mapping):
            paths += name_fields(value, f"{prefix}{name}.")
        else:
            paths.append(f"{prefix}{name}")
    return tuple(paths)


def is_live(segment: Json) -> bool:
    """Whether readers are shown anything of it."""
    return segment.get("status") != "TRUNCATED"


def is_closed(segment: Json) -> bool:
    """Whether it is complete."""
    return segment.get("state") == "CLOSED"


def is_archived(segment: Json) -> bool:
    """Whether it has a verified cold copy."""
    return segment.get("cold_copy") is not None


def completed_at(segment: Json) -> datetime | None:
    """When it was closed."""
    text = segment.get("completed")
    return None if not isinstance(text, str) else datetime.fromisoformat(text)
