"""Mutants of hints: what gossip says of an owner is followed as though it were more than that.

Part of `tests.sim.mutants`. Played where owners doze one after the other and nothing else happens.
Source: docs/protocol/members.md "What a confirmed suspicion does".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from duramen.core.sequencer.effects import Owner
from duramen.core.sequencer.epoch import segment_end
from duramen.core.sequencer.proposals import Proposal, propose_roll
from duramen.ids import LogId
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen_sequencer.ownership.claims import Claims
from tests.sim.focus import Focus
from tests.sim.mutants.mutant import Mutant

_encode_owner = MetadataLink._encode_owner
_is_gone = Claims._is_gone

_DOZING: Final = Focus(("owners doze in turn",), has_gossip=True)


def _encode_as_any_owner(self: MetadataLink, epoch: Any, by_hint: bool) -> bytes:
    return _encode_owner(self, epoch, by_hint=False)


def _roll_as_any_owner(*args: Any, by_hint: bool) -> Proposal:
    return propose_roll(*args)


async def _gone_when_away(self: Claims, log_id: LogId, owner: Owner, away: Collection[str]) -> bool:
    """Who is away counts as one whose session ended: nothing is noted, nobody is excepted."""
    if owner.sequencer_id not in away:
        return await _is_gone(self, log_id, owner, away)
    await self._probes.is_refused(owner.data_url)
    self._context.hints.forget(log_id)
    return True


MUTANTS: Final[dict[str, Mutant]] = {
    "owner-by-a-hint-does-not-say-so": Mutant(
        "members.md", "the owner node of who followed a hint does not say so",
        ((MetadataLink, "_encode_owner", _encode_as_any_owner),), focus=_DOZING,
    ),
    "hint-is-as-good-as-an-end": Mutant(
        "members.md", "who is said to be away counts as one whose session has ended",
        ((Claims, "_is_gone", _gone_when_away),), focus=_DOZING,
    ),
    "next-epoch-forgets-the-hint": Mutant(
        "members.md", "an epoch that follows the one of a hint is an epoch like any other",
        ((segment_end, "propose_roll", _roll_as_any_owner),), focus=_DOZING,
    ),
}  # fmt: skip
