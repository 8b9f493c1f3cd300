"""Where the copies of one restored segment go, and what its node says of that.

By the configuration of the new log, whatever the archived segment was: striped to an ensemble, each
entry to its write set; flexible to a nodeset, each sticky block to one copyset of as many nodes as
RP asks for, with envelopes that name it. Extras are for waves that may fail: here each copy of the
copyset must be taken.

Pure. Not here: which bookies are there (`driver`), sending (`writer`). Source: R5, R9, R22,
docs/protocol/flexible.md, docs/archive.md "Restore".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.nodeset_plan import NodesetPlan, plan_nodeset
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.flexible.selector import NO_BLOCK, CopysetSelector, ListedNodes
from duramen.core.log_node import LogNode
from duramen.core.placement import Candidate
from duramen.core.placement.choice import choose_ensemble, explain_refusal
from duramen.core.placement.rule import Refusal
from duramen.core.quorum import Quorum, write_set
from duramen.core.segment import Fragment, Segment
from duramen.core.segment_base import Totals
from duramen.core.sequencer.proposals import rule_of
from duramen.errors import DuramenError
from duramen.ids import EntryId, LedgerId, Member, NodeNumber
from duramen.wire.flexible.envelope import Envelope, encode_envelope
from duramen_spark.restore.entries import NewEntry


class Copies(NamedTuple):
    """Who gets one entry, and what travels beside it."""

    members: tuple[Member, ...]
    envelope: bytes = b""


class Placing(Protocol):
    """Of one try to write one segment."""

    @property
    def members(self) -> tuple[Member, ...]:
        """Who may get copies; each is asked afterwards what it holds."""

    @property
    def may_hold_more(self) -> bool:
        """Whether copies that an earlier try has left beside those of this one are no fault."""

    def place(self, entry: NewEntry, now_us: int) -> Copies:
        """Where the copies of the next entry go."""

    def make_segment(self, fields: dict[str, Any], missing_record_count: int) -> AnySegment:
        """The CLOSED segment, whose copies were all compared; not yet validated.

        Args:
            fields: what segments of each kind have.
        """


class StripedPlacing:
    """One ensemble."""

    may_hold_more = False

    def __init__(self, quorum: Quorum, ensemble: tuple[Member, ...]) -> None:
        self.members = ensemble
        self._quorum = quorum

    def place(self, entry: NewEntry, now_us: int) -> Copies:
        """Its write set."""
        return Copies(write_set(self.members, self._quorum, entry.entry_id))

    def make_segment(self, fields: dict[str, Any], missing_record_count: int) -> AnySegment:
        """One proved fragment."""
        fragments = (Fragment(EntryId(0), self.members, Totals(), is_proved=True),)
        return Segment(quorum=self._quorum, fragments=fragments, **fields)


class FlexiblePlacing:
    """One nodeset, and a copyset a block."""

    may_hold_more = True
    """Blocks of another try went elsewhere, with the same bytes: a copy too many (R26)."""

    def __init__(
        self, ledger_id: LedgerId, plan: NodesetPlan, rng: random.Random, *, is_sticky: bool
    ) -> None:
        self._ledger_id = ledger_id
        self._plan = plan
        self._rows = tuple(
            NodesetRow(NodeNumber(number), node) for number, node in enumerate(plan.chosen.nodes)
        )
        self._by_number = {row.number: row.member for row in self._rows}
        wanted = replace(plan.rule.wanted, extras=0)
        self._selector = CopysetSelector(self._rows, wanted, rng, is_sticky=is_sticky)
        self._block = (NO_BLOCK, EntryId(0))

    @property
    def members(self) -> tuple[Member, ...]:
        """The nodeset."""
        return tuple(self._by_number.values())

    def place(self, entry: NewEntry, now_us: int) -> Copies:
        """The copyset of its block."""
        choice = self._selector.choose(ListedNodes(), entry_bytes=len(entry.data), now_us=now_us)
        assert not isinstance(choice, Refusal), "the nodeset satisfies RP, and nobody is listed"
        if choice.block != self._block[0]:
            self._block = choice.block, entry.entry_id
        block = None if choice.block == NO_BLOCK else self._block[1]
        envelope = encode_envelope(
            Envelope(choice.numbers, block), self._ledger_id, entry.entry_id, entry.crc
        )
        return Copies(tuple(self._by_number[number] for number in choice.numbers), envelope)

    def make_segment(self, fields: dict[str, Any], missing_record_count: int) -> AnySegment:
        """N(e) is the nodeset; there are no guests, and all is proved."""
        return FlexibleSegment(
            replication=self._plan.rule.wanted,
            nodes=self._rows,
            own_count=len(self._rows),
            next_number=len(self._rows),
            is_proved=True,
            missing_record_count=missing_record_count,
            placement="strict" if self._plan.rule.is_strict else "prefer",
            **fields,
        )


def place_striped(log: LogNode, candidates: Sequence[Candidate]) -> StripedPlacing:
    """An ensemble by the log's rule, as a sequencer chooses it.

    Raises:
        DuramenError: `placement_impossible`.
    """
    replication = log.config.striped
    quorum = Quorum(replication.ensemble_size, replication.write_quorum, replication.ack_quorum)
    rule = rule_of(log)
    ensemble = choose_ensemble(candidates, quorum, rule, random.SystemRandom())
    if ensemble is None:
        refusal = explain_refusal(candidates, quorum, rule)
        detail = "no ensemble" if refusal is None else refusal.detail
        raise DuramenError("placement_impossible", detail)
    return StripedPlacing(quorum, ensemble)


def place_flexible(
    log: LogNode, ledger_id: LedgerId, serving: Sequence[ServingBookie]
) -> FlexiblePlacing:
    """A nodeset by the log's configuration, of bookies that are there.

    Raises:
        DuramenError: `placement_impossible`.
    """
    plan = plan_nodeset(log, serving)
    if isinstance(plan, Refusal):
        raise DuramenError("placement_impossible", plan.detail)
    return FlexiblePlacing(ledger_id, plan, random.SystemRandom(), is_sticky=log.config.sticky)
