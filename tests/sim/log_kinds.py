"""What kinds of logs there are in a run: copies, members and places; who comes, what they wish for.

A seed draws its logs as striped ones; `choose_kinds` makes the same promises by copysets, for all
logs, or for some of them that change their kind as they live. `LogUse` is what a log's kind does
not say: whether anybody needs its order, and whether operators wish for another `ack_mode`.

Used by `options`, `run`, `nemesis`, `sequencers` and clients. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from duramen.config import FlexibleReplication, LogConfig, parse_log_config
from duramen.core.flexible.segment import AnySegment
from duramen.core.placement import PlacementRule
from duramen.core.segment import Segment
from duramen.ids import Member
from duramen.units import SECOND

DRAWN: Final = "drawn"
KINDS: Final = ("striped", "flexible", "mixed", DRAWN)
"""What the logs of a run are; mixed: some of either kind, and `reconfigured` changes kinds; drawn:
each seed draws one of these, always the same."""

_DRAWN_WEIGHTS: Final = {"striped": 5, "flexible": 2, "mixed": 3}


class LogUse(NamedTuple):
    """Who comes to a log, and what operators make of it."""

    has_demands: bool
    """Producers, conditions and fencing tokens, which need `ordered` epochs (R29)."""

    changes_mode: bool
    """Operators wish for either `ack_mode`, to and fro."""

    def format(self) -> str:
        """In a word."""
        return ("exact" if self.has_demands else "plain") + "+wishes" * self.changes_mode


def settled_use(log: LogConfig) -> LogUse:
    """Of a log that keeps its mode: whoever needs order comes where there is some."""
    return LogUse(has_demands=log.ack_mode == "ordered", changes_mode=False)


def draw_use(log: LogConfig, rng: random.Random) -> LogUse:
    """A log that begins out of order has its mode changed, whether anybody needs its order or not:
    else who needs it would be refused for ever."""
    if log.ack_mode == "ordered":
        return LogUse(has_demands=True, changes_mode=rng.random() < 0.5)
    return LogUse(has_demands=rng.random() < 0.5, changes_mode=True)


def draw_kind(seed: int, copysets: str) -> str:
    """What the logs of this seed's run are."""
    if copysets != DRAWN:
        return copysets
    weights = _DRAWN_WEIGHTS
    (kind,) = random.Random(f"copysets {seed}").choices(list(weights), list(weights.values()))
    return kind


def choose_kinds(
    log: LogConfig, copysets: str, rng: random.Random
) -> tuple[LogConfig, LogConfig | None]:
    """A log's configuration at first, and the one that it changes to and fro with, if any."""
    if copysets == "striped":
        return log, None
    flexible = _spread(log, rng)
    if copysets == "flexible":
        return flexible, None
    return (log, flexible) if rng.random() < 0.5 else (flexible, log)


def _spread(log: LogConfig, rng: random.Random) -> LogConfig:
    """The same promises by copysets."""
    part = log.striped
    racks = max(part.min_racks, part.min_regions)  # a region is a rack at least
    extras, tolerate = rng.choice((0, 0, 1)), rng.randrange(part.ack_quorum)
    fields = log.to_json()
    fields["window"] = {**fields["window"], "stall": rng.choice(("1s", "10s", "10s"))}
    return parse_log_config({
        **fields, "copysets": "flexible",
        "sticky": rng.choice(("on", "on", "off")),
        "nodeset": {"size": rng.choice((None, None, part.ack_quorum + extras + tolerate)),
                    "tolerate": tolerate},
        "replication": {
            "node": part.ack_quorum, "rack": min(racks, part.ack_quorum),
            "region": min(part.min_regions, part.ack_quorum), "placement": "prefer",
            "extras": extras,
        },
    })  # fmt: skip


def copies_of(log: LogConfig) -> int:
    """How many bookies have an entry at least when it is acknowledged."""
    replication = log.replication
    if isinstance(replication, FlexibleReplication):
        return replication.node
    return replication.ack_quorum


def format_replication(log: LogConfig) -> str:
    """How its copies lie, in a word."""
    part = log.replication
    if isinstance(part, FlexibleReplication):
        return (
            f"{part.node}+{part.extras}-racks{part.rack}-regions{part.region}-{part.placement}"
            f"-nodeset{log.nodeset.size}/{log.nodeset.tolerate}{'-sticky' * log.sticky}"
            f"-stall{log.window.stall // SECOND}s"
        )
    return (
        f"{part.ensemble_size}/{part.write_quorum}/{part.ack_quorum}"
        f"-racks{part.min_racks}-regions{part.min_regions}-{part.placement}"
    )


def list_members(segment: AnySegment) -> list[Member]:
    """Who may have entries of it."""
    if isinstance(segment, Segment):
        return [member for fragment in segment.fragments for member in fragment.ensemble]
    return [row.member for row in segment.nodes]


def rule_of_configs(log: LogConfig, other: LogConfig | None) -> PlacementRule:
    """What its configuration demands of the places of striped segments, if it has any."""
    part = (log if other is None or not log.is_flexible else other).replication
    if isinstance(part, FlexibleReplication):
        return PlacementRule(part.rack, part.region, is_strict=False)
    return PlacementRule(part.min_racks, part.min_regions, is_strict=part.placement == "strict")
