"""Grants of disruption: who may stop which part of the cluster now, and when that is over.

A grant stands in the cluster's metadata. Its holder may stop one target; everybody else is told
that it is outstanding. No two clocks are compared: a grant is over for the cluster once one process
has seen it unchanged for its whole life and a margin, and for its holder sooner.

Pure. Called by the auditor's `disruption`. Not here: whether a bookie can be missed (`disruption`),
the node's spelling (`wire.nodes.disruptions`). Source: docs/protocol/disruption.md.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType

from duramen.units import MINUTE, MS, SECOND

DisruptionToken = NewType("DisruptionToken", str)
"""32 hex digits, drawn by who asks: asked again with it, it is the same question."""

LIFE_MIN_MS: Final = 10_000
LIFE_DEFAULT_MS: Final = 5 * MINUTE // MS
LIFE_MAX_MS: Final = 10 * MINUTE // MS
MARGIN_US: Final = 5 * SECOND
"""How much longer than its holder the cluster takes a grant for outstanding."""

QUESTION_FIELDS: Final = (
    "token", "target", "kind", "holder", "life_ms", "accepts", "voters", "others_serving",
)  # fmt: skip
"""Of whoever asks for a grant."""

ACCEPTABLE: Final = frozenset((
    "alone", "in_recovery", "no_spare", "not_coverable", "placement", "quorum", "too_few_copies",
    "unproved",
))  # fmt: skip
"""Reasons that a person may accept: something cannot be read or appended to for a while. Others
would say that nobody knows, or that data go."""


class DisruptionKind(enum.StrEnum):
    """What is to be done to the target."""

    RESTART = "restart"
    REMOVE = "remove"


class TargetKind(enum.StrEnum):
    """What can be stopped."""

    BOOKIE = "bookie"
    RACK = "rack"
    """All bookies of a rack at once; its name is `<region>/<rack>`."""
    SEQUENCER = "sequencer"
    ZOOKEEPER = "zookeeper"


@dataclass(frozen=True, slots=True, order=True)
class DisruptionTarget:
    """A part of the cluster; its text is `<kind>/<name>`."""

    kind: TargetKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> DisruptionTarget:
        """Of its text.

        Raises:
            ValueError: it names no such thing.
        """
        kind, _, name = text.partition("/")
        if not name or len(name) > 512 or kind not in list(TargetKind):
            known = ", ".join(f"{one.value}/…" for one in TargetKind)
            raise ValueError(f"{text[:600]!r} is none of {known}")
        return cls(TargetKind(kind), name)


@dataclass(frozen=True, slots=True)
class DisruptionGrant:
    """One that is outstanding.

    Args:
        target, kind: as texts, which a later version may give words that are not known here.
        holder: a text for people.
        life_ms: how long it lasts for its holder, from before its last question.
        renewals: how often it was renewed.
        accepts: reasons against it that its holder accepted.
    """

    token: DisruptionToken
    target: str
    kind: str
    holder: str
    life_ms: int
    renewals: int
    granted_unix_ms: int
    accepts: tuple[str, ...] = ()

    def explain(self) -> str:
        """Why nothing else is to be stopped, for people."""
        return (
            f"{self.holder} may {self.kind} {self.target} now: wait until it has ended its grant "
            f"{self.token}, or the grant is over"
        )


class GrantSightings:
    """Since when one process has seen each grant as it is, without a break."""

    def __init__(self) -> None:
        self._since_us: dict[DisruptionGrant, int] = {}

    def observe(self, grants: Sequence[DisruptionGrant], now_us: int) -> None:
        """Note what stands in the node, read at this time; what is not there is forgotten."""
        self._since_us = {grant: self._since_us.get(grant, now_us) for grant in grants}

    def left_us(self, grant: DisruptionGrant, now_us: int) -> int:
        """How much longer it is outstanding if nobody renews it; 0: it is over."""
        since_us = self._since_us.get(grant, now_us)
        return max(0, since_us + grant.life_ms * MS + MARGIN_US - now_us)

    def forget(self) -> None:
        """Others may have changed grants since: each begins anew."""
        self._since_us.clear()


def split_over(
    grants: Sequence[DisruptionGrant], sightings: GrantSightings, now_us: int
) -> tuple[list[DisruptionGrant], list[DisruptionGrant]]:
    """Those that are outstanding, and those that are over."""
    left: list[DisruptionGrant] = []
    over: list[DisruptionGrant] = []
    for grant in grants:
        (left if sightings.left_us(grant, now_us) else over).append(grant)
    return left, over
