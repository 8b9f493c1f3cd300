"""The change of an ensemble: the proposal, its compare-and-set, and what became of that.

Failed members of the last fragment are replaced by others, from LAC + 1 on. The change is in force
when its compare-and-set succeeded or its nonce was read back. Until then R6 forbids to acknowledge.

    idle → COMMIT under way → in force | called off (surely never sent)
               ↓  conflict, or nobody knows
           READ under way or put off → in force | overtaken (still open: proposed anew) | lost
After a commit of unknown fate only a commit that succeeded may end the change (BK#1591): where
nothing can be replaced any more, it writes the present ensemble again.
Invariants (checked by `validate`):
 1 exactly one of commit, read and pause is under way during a change, and none without one.
 2 the nonce of the proposal is one of our own (R3).
Source: docs/protocol/write.md "Ensemble change", R3, R6.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace

from duramen.core.placement import PlacementRule, choose_replacements
from duramen.core.segment import Segment, SegmentState, Totals
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import Commit, CommitOutcome, LogView, ReadMetadata, SetSegment
from duramen.ids import EntryId, Member
from duramen.limits import RETRY_DELAY_US


class ChangeEnd(enum.Enum):
    """A change that ended without a new ensemble."""

    CALLED_OFF = "called off"
    """It was certainly never sent, and nothing before it is of unknown fate."""

    LOST = "lost"
    """The segment is no longer open."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """The segment as its node has it."""

    segment: Segment
    version: int
    is_ours: bool
    """One of our proposals is in force; else the change is to be proposed anew on this."""


class EnsembleChange:
    """Changes of the ensemble of one open segment, one at a time.

    Args:
        rule: where replacements may lie.
    """

    def __init__(self, rule: PlacementRule, ports: Ports) -> None:
        self.rule = rule
        self.change_count = 0
        """Changes that are in force."""

        self.retry_at_us: int | None = None
        self._ports = ports
        self._proposal: SetSegment | None = None
        self._commit_token: int | None = None
        self._read_token: int | None = None
        self._own_nonces: list[str] = []
        self._has_unknown_commit = False

    @property
    def is_under_way(self) -> bool:
        """Whether something is proposed whose fate is not known yet."""
        return self._proposal is not None

    def propose(
        self,
        segment: Segment,
        version: int,
        absent: Collection[Member],
        lac: EntryId,
        lac_totals: Totals,
        *,
        ensemble: tuple[Member, ...] | None = None,
    ) -> bool:
        """Replace absent members from LAC + 1 on; False if nothing is proposed: they stay.

        Args:
            segment: as its node was at `version`.
            absent: who failed, of this ensemble and of others.
            ensemble: as it shall be; None: as it is chosen now.
        """
        ensemble = ensemble or self._choose(segment, absent, absent, self.rule)
        if ensemble is None:
            if not self._has_unknown_commit:
                self._proposal = None
                return False
            # After a change of unknown fate only a successful CAS may lift R6's ban:
            # it writes the present ensemble again.
            ensemble = segment.last_fragment.ensemble
        nonce = self._ports.new_nonce()
        self._own_nonces.append(nonce)
        changed = segment.with_ensemble(EntryId(lac + 1), ensemble, lac_totals, nonce)
        self._proposal = SetSegment(changed, version)
        self._commit_token = self._ports.new_token()
        self._ports.put(Commit(self._commit_token, (self._proposal,)))
        return True

    def choose_without(
        self, segment: Segment, absent: Collection[Member], leaving: Collection[Member]
    ) -> tuple[Member, ...] | None:
        """The present ensemble without whom it can do without; None: without nobody.

        Nobody has to go: what comes in is not listed, and breaks no rule, as it does not last.
        """
        unfit = {*absent, *leaving, *self._ports.shunned()}
        return self._choose(segment, leaving, unfit, replace(self.rule, is_strict=True))

    def _choose(
        self,
        segment: Segment,
        leaving: Collection[Member],
        unfit: Collection[Member],
        rule: PlacementRule,
    ) -> tuple[Member, ...] | None:
        """The present ensemble without whom it loses, if anything can be placed.

        Args:
            unfit: who is not to come in.
        """
        if not self._ports.may_change_ensemble():
            return None
        present = segment.last_fragment.ensemble
        return choose_replacements(
            present,
            [member for member in present if member in leaving],
            [c for c in self._ports.candidates() if c.member not in unfit],
            segment.quorum,
            rule,
            self._ports.locations(),
            self._ports.rng,
        )

    def on_commit(
        self, token: int, outcome: CommitOutcome, now_us: int
    ) -> StoredSegment | ChangeEnd | None:
        """The compare-and-set was applied, refused, or nobody knows; None: it is not over."""
        if token != self._commit_token:
            return None
        self._commit_token = None
        assert self._proposal is not None
        match outcome:
            case CommitOutcome.APPLIED:
                segment = self._proposal.segment
                assert isinstance(segment, Segment), segment
                return self._end(segment, self._proposal.version + 1)
            case CommitOutcome.UNAVAILABLE if not self._has_unknown_commit:
                self._proposal = None
                return ChangeEnd.CALLED_OFF
            case CommitOutcome.UNKNOWN:
                self._has_unknown_commit = True
                self.retry_at_us = now_us + RETRY_DELAY_US
            case _:
                self._read()
        return None

    def on_metadata(
        self, token: int, view: LogView | None, now_us: int
    ) -> StoredSegment | ChangeEnd | None:
        """The node was read after a conflict or an unknown outcome; None: it is not over."""
        if token != self._read_token:
            return None
        self._read_token = None
        if view is None:
            self.retry_at_us = now_us + RETRY_DELAY_US
            return None
        assert self._proposal is not None
        epoch = self._proposal.segment.epoch
        for segment, version in view.segments:
            if segment.epoch == epoch and segment.state is SegmentState.OPEN:
                assert isinstance(segment, Segment), segment
                if segment.nonce in self._own_nonces:
                    return self._end(segment, version)
                return StoredSegment(segment, version, is_ours=False)
        self.abandon()
        return ChangeEnd.LOST

    def on_timer(self, now_us: int) -> None:
        """Read the node once the pause is over."""
        if self.retry_at_us is not None and now_us >= self.retry_at_us:
            self.retry_at_us = None
            self._read()

    def abandon(self) -> None:
        """The segment is not ours any more: whatever comes of the change is not heard of."""
        self._proposal = self._commit_token = self._read_token = self.retry_at_us = None

    def _read(self) -> None:
        self._read_token = self._ports.new_token()
        self._ports.put(ReadMetadata(self._read_token))

    def _end(self, segment: Segment, version: int) -> StoredSegment:
        """One of our proposals is in force, and what was unknown is not any more."""
        self.change_count += 1
        self._proposal = None
        self._has_unknown_commit = False
        self._own_nonces.clear()
        return StoredSegment(segment, version, is_ours=True)

    def validate(self) -> None:
        """Assert invariants 1 and 2, between events."""
        waits = (self._commit_token, self._read_token, self.retry_at_us)
        wait_count = sum(wait is not None for wait in waits)
        assert wait_count == self.is_under_way, f"1: {waits} {self._proposal}"
        proposal = self._proposal
        assert proposal is None or proposal.segment.nonce in self._own_nonces, f"2: {proposal}"
