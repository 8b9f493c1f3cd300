"""Reads and changes of a log's nodes by its own sequencer: one at a time, tried again with pauses.

A change of unknown outcome may be found applied later and is then recognised by its nonce. So a
nonce is kept until its change is found in force, or the log is given up.

Invariant (checked by `validate`): an answer is awaited, or a pause ends some time, never both.
Not here: what a read or an outcome means for the log (`log_sequencer`).
Called by `log_sequencer`. Source: docs/protocol/metadata.md "Rules for every change", R3.
"""

from __future__ import annotations

from typing import Final

from duramen.config import LogConfig
from duramen.core.flexible.segment import AnySegment
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import Commit, CommitOutcome, LogView, ReadMetadata
from duramen.core.sequencer.proposals import Proposal
from duramen.ids import LogId
from duramen.limits import RETRY_BACKOFF, TAKEOVER_LOOK_US

_PAUSE_COUNT: Final = 100
"""Pauses between two looks that logs may have, from 3 to 4 s."""


class OwnChanges:
    """The reads and changes of one log.

    Attributes:
        view: the nodes as they were last read or changed; of the configuration, what we were told
            of since. None: they were never read.
        nonces: of changes that may have been applied without our knowing.
        retry_at_us: when to read again; None: an answer is on its way, or nothing is wanted.
    """

    def __init__(self, log_id: LogId, ports: Ports) -> None:
        self.view: LogView | None = None
        self.nonces: list[str] = []
        self.retry_at_us: int | None = None
        self._log_id = log_id
        self._ports = ports
        self._token: int | None = None
        self._proposal: Proposal | None = None
        self._news: tuple[int, LogConfig] | None = None
        self._retry_delay_us = RETRY_BACKOFF.first_us

    def read(self, *, is_look: bool = False) -> None:
        """Ask for the nodes."""
        self.retry_at_us = None
        self._token = self._ports.new_token()
        self._ports.put(ReadMetadata(self._token, is_look))

    def commit(self, proposal: Proposal) -> None:
        """Ask for a change."""
        self._proposal = proposal
        self.nonces.append(proposal.nonce)
        self._token = self._ports.new_token()
        self._ports.put(Commit(self._token, proposal.writes))

    def takes(self, token: int) -> bool:
        """Whether a result is the one that is waited for; it is not waited for any more then."""
        is_awaited = token == self._token
        if is_awaited:
            self._token = None
        return is_awaited

    def settle(self, outcome: CommitOutcome) -> LogView | None:
        """The outcome of the last change: what holds now if it was applied, else None."""
        assert self._proposal is not None
        if outcome is CommitOutcome.APPLIED:
            return self._proposal.view
        if outcome is not CommitOutcome.UNKNOWN:
            # Definite: it will never be applied. Only an unknown one must be remembered.
            self.nonces.remove(self._proposal.nonce)
        return None

    @property
    def made_with(self) -> LogConfig:
        """The configuration of the log when the last change of ours was proposed."""
        assert self._proposal is not None
        return self._proposal.view.log.config

    def find_segment(self, view: LogView) -> tuple[AnySegment, int] | None:
        """The segment that a change of ours opened, known by its nonce."""
        for segment, version in view.segments:
            if segment.nonce in self.nonces:
                return segment, version
        return None

    def note_config(self, version: int, config: LogConfig) -> None:
        """Somebody tells of the log's stored configuration."""
        if self._news is None or self._news[0] < version:
            self._news = version, config
        if self.view is not None:
            self.learn(self.view)

    def learn(self, view: LogView) -> None:
        """The nodes were read, or a change of ours made them like this."""
        self.view = view if self._news is None else view.with_config(*self._news)

    def retry_later(self, now_us: int) -> None:
        """Read again after a pause, which is twice as long each time.

        A read under way is given up: its answer would begin something, and the pause's end disturb.
        """
        self._token = None
        self.retry_at_us = now_us + self._retry_delay_us
        self._retry_delay_us = RETRY_BACKOFF.next_us(self._retry_delay_us)

    def look_later(self, now_us: int) -> None:
        """Read again in a while, if nothing is read or waited for yet.

        Logs that lost their bookies together do not look together: each has a pause of its own.
        """
        if self._token is None and self.retry_at_us is None:
            sooner_us = TAKEOVER_LOOK_US // 4 * (self._log_id % _PAUSE_COUNT) // _PAUSE_COUNT
            self.retry_at_us = now_us + TAKEOVER_LOOK_US - sooner_us

    def rest(self) -> None:
        """Nothing is to be learnt from the nodes now: a look under way is given up."""
        self.retry_at_us = self._token = None

    def hasten(self, now_us: int) -> bool:
        """End a pause, if there is one: what was in the way may be gone."""
        is_pausing = self.retry_at_us is not None
        if is_pausing:
            self.retry_at_us = now_us
        return is_pausing

    def begin_pauses_anew(self) -> None:
        """Something succeeded, or something else begins: the next pause is a short one."""
        self._retry_delay_us = RETRY_BACKOFF.first_us

    def forget(self) -> None:
        """The log is given up: no answer is waited for."""
        self.nonces.clear()
        self.rest()

    def validate(self) -> None:
        """Assert the invariant."""
        assert self._token is None or self.retry_at_us is None, f"a pause while asking: {self}"

    def __repr__(self) -> str:
        return f"<own changes token={self._token} retry_at_us={self.retry_at_us}>"
