"""Where a log's next flexible segment shall lie, chosen before it is needed.

The nodeset that would be chosen now, by the log's configuration, out of the bookies in service. It
fits as long as the same would be chosen again: lists, free space and who is away are no part of it.

Pure. Called by `sequencer.proposals`.
Source: R28, docs/protocol/flexible.md "Choosing the nodeset".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duramen.config import FlexibleReplication, LogConfig
from duramen.core.flexible.nodeset import ChosenNodeset, ServingBookie, choose_nodeset
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.reopening import ReopeningReason, explain_reopening
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.flexible.soundness import NodesetRule
from duramen.core.log_node import LogNode
from duramen.core.placement.rule import Refusal


def make_nodeset_rule(config: LogConfig) -> NodesetRule:
    """What a flexible log's configuration asks of a nodeset."""
    replication = config.replication
    assert isinstance(replication, FlexibleReplication), config
    return NodesetRule(
        ReplicationProperty(
            replication.node, replication.rack, replication.region, replication.extras
        ),
        size=config.nodeset.size,
        tolerate=config.nodeset.tolerate,
        regions_that_must_suffice=replication.regions_that_must_suffice,
        is_strict=replication.placement == "strict",
    )


@dataclass(frozen=True, slots=True)
class NodesetPlan:
    """A nodeset, with what it was chosen from."""

    rule: NodesetRule
    serving: Sequence[ServingBookie]
    chosen: ChosenNodeset

    def fits(self, log: LogNode, serving: Sequence[ServingBookie]) -> bool:
        """Whether the same would be chosen now."""
        if self.rule != make_nodeset_rule(log.config):
            return False
        return serving is self.serving or plan_nodeset(log, serving) == self

    def make_segment(
        self, log: LogNode, *, ack_mode: str, nonce: str, created_unix_ms: int
    ) -> FlexibleSegment:
        """The segment of the log's next epoch."""
        return FlexibleSegment.opened(
            log.log_id,
            log.next_epoch,
            self.rule.wanted,
            self.chosen.nodes,
            ack_mode=ack_mode,
            placement="strict" if self.rule.is_strict else "prefer",
            created_unix_ms=created_unix_ms,
            nonce=nonce,
        )

    def explain_reopening(self, segment: FlexibleSegment) -> list[ReopeningReason]:
        """Why an open segment should make way for one with this nodeset; empty: it need not."""
        held = [row.node for row in segment.own_nodes]
        return explain_reopening(
            held, segment.replication, self.chosen.nodes, self.rule.wanted, self.serving
        )


def plan_nodeset(log: LogNode, serving: Sequence[ServingBookie]) -> NodesetPlan | Refusal:
    """The nodeset of the log's next segment, or why there is none."""
    rule = make_nodeset_rule(log.config)
    chosen = choose_nodeset(serving, rule, log.log_id)
    return chosen if isinstance(chosen, Refusal) else NodesetPlan(rule, serving, chosen)
