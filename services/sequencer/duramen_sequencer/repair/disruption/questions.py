"""What somebody wants to stop, as it is asked for: read, and refused with the field that is wrong.

Called by `operations` and `granting`. Source: docs/protocol/disruption.md "Asking".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from duramen.core.repair.disruption_grants import (
    ACCEPTABLE,
    LIFE_DEFAULT_MS,
    LIFE_MAX_MS,
    LIFE_MIN_MS,
    DisruptionGrant,
    DisruptionKind,
    DisruptionTarget,
    DisruptionToken,
    TargetKind,
)
from duramen.errors import DuramenError

_HOLDER_CHARACTERS_MAX: Final = 200
_VOTERS_MAX: Final = 15
_TOKEN: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class DisruptionQuestion:
    """What somebody wants to stop.

    Args:
        voters, others_serving: of ZooKeeper: how many members vote, and how many of the others
            serve now.
    """

    token: DisruptionToken
    target: DisruptionTarget
    kind: DisruptionKind
    holder: str
    life_ms: int = LIFE_DEFAULT_MS
    accepts: tuple[str, ...] = ()
    voters: int = 0
    others_serving: int = 0

    def is_of(self, grant: DisruptionGrant) -> bool:
        """Whether the grant was given for this question.

        Raises:
            DuramenError: `invalid_argument`: its token is that of another question.
        """
        if grant.token != self.token:
            return False
        if (grant.target, grant.kind) != (str(self.target), self.kind.value):
            detail = f"the token is that of a grant to {grant.kind} {grant.target}: draw another"
            raise DuramenError("invalid_argument", detail, field="token")
        return True


def parse_question(request: Mapping[str, Any]) -> DisruptionQuestion:
    """The question in a request.

    Raises:
        DuramenError: `invalid_argument` with the field.
    """
    token = take_text(request, "token")
    if not _TOKEN.fullmatch(token):
        raise _invalid("token", "32 digits from 0 to 9 and a to f, drawn for this question")
    if not take_text(request, "target").isprintable():
        raise _invalid("target", "characters that can be printed")
    try:
        target = DisruptionTarget.parse(take_text(request, "target"))
    except ValueError as error:
        raise _invalid("target", str(error)) from error
    kind = parse_kind(take_text(request, "kind"))
    if kind is DisruptionKind.REMOVE and target.kind in {TargetKind.RACK, TargetKind.ZOOKEEPER}:
        raise _invalid("kind", f"a {target.kind} is not removed by stopping it: only restart")
    holder = take_text(request, "holder")
    if len(holder) > _HOLDER_CHARACTERS_MAX or not holder.isprintable():
        raise _invalid("holder", f"up to {_HOLDER_CHARACTERS_MAX} characters that can be printed")
    voters = others_serving = 0
    if target.kind is TargetKind.ZOOKEEPER:
        voters = _take_whole(request, "voters", 1, _VOTERS_MAX)
        others_serving = _take_whole(request, "others_serving", 0, voters - 1)
    return DisruptionQuestion(
        DisruptionToken(token),
        target,
        kind,
        holder,
        _take_whole({"life_ms": LIFE_DEFAULT_MS, **request}, "life_ms", LIFE_MIN_MS, LIFE_MAX_MS),
        _take_accepts(request),
        voters,
        others_serving,
    )


def parse_kind(kind: str) -> DisruptionKind:
    """What is to be done.

    Raises:
        DuramenError: `invalid_argument`: nothing that is known.
    """
    if kind not in list(DisruptionKind):
        raise _invalid("kind", "restart or remove")
    return DisruptionKind(kind)


def take_text(request: Mapping[str, Any], field: str) -> str:
    """A text that has to be there.

    Raises:
        DuramenError: `invalid_argument` with the field.
    """
    value = request.get(field)
    if not isinstance(value, str) or not value:
        raise _invalid(field, "a text is expected")
    return value


def _take_accepts(request: Mapping[str, Any]) -> tuple[str, ...]:
    value = request.get("accepts", [])
    if not isinstance(value, list) or any(
        not isinstance(code, str) or code not in ACCEPTABLE for code in value
    ):
        raise _invalid("accepts", f"a list of {', '.join(sorted(ACCEPTABLE))}")
    return tuple(sorted(set(value)))


def _take_whole(request: Mapping[str, Any], field: str, least: int, most: int) -> int:
    value = request.get(field)
    if type(value) is not int or not least <= value <= most:
        raise _invalid(field, f"a whole number from {least} to {most}")
    return value


def _invalid(field: str, detail: str) -> DuramenError:
    return DuramenError("invalid_argument", f"{field}: {detail}", field=field)
