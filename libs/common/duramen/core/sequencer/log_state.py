"""Words of a log's core: its states, what its process wants of it, what its parts come to.

A `Takeover` and an `OpenEpoch` decide for themselves what to read, send and change. What concerns
the whole log they hand to `log_sequencer` as an `Outcome`.

Used by `log_sequencer`, `takeover.takeover` and `epoch.open_epoch`.
Source: docs/protocol/recovery.md "Takeover", R19.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import Ending
from duramen.core.segment import SegmentState
from duramen.core.sequencer.effects import LogView
from duramen.ids import Epoch


class LogState(enum.Enum):
    """What a log's core does; see the head of `log_sequencer`."""

    IDLE = "idle"
    READING = "reading"
    CLAIMING = "claiming"
    RECOVERING = "recovering"
    REBUILDING = "rebuilding"
    EARLY = "early"
    ACTIVE = "active"
    DRAINING = "draining"
    CLOSING = "closing"


@dataclass(slots=True)
class Intent:
    """What the process wants of a log that it has."""

    is_close_only: bool = False
    """To close what is open, and to own nothing: what is queued goes to the next owner."""
    unless_owned: bool = False
    """Not to take it from an owner."""
    ends_here: bool = False
    """No epoch to follow the open one, unless appends wait for it."""
    ending: Ending | None = None
    """The log to be ended or deleted by the change that closes the open segment."""

    def stop(self) -> None:
        """Close in peace and let go."""
        self.ends_here = self.is_close_only = True

    def finish(self, ending: Ending) -> None:
        """End or delete the log."""
        self.ending, self.ends_here = ending, True

    def go_on(self) -> None:
        """The open epoch could not be closed: there is no end for now."""
        self.ends_here, self.ending = False, None


class Opened(NamedTuple):
    """An epoch of ours is open, while the bounded rest of the older ones is still recovered."""

    segment: AnySegment
    version: int


class TakenOver(NamedTuple):
    """An epoch of ours is open, and the state of all older ones is known."""

    segment: AnySegment
    version: int


class Closed(NamedTuple):
    """The change that closes our epoch is in force; the next one may be open by it."""

    view: LogView


class Fenced(NamedTuple):
    """Somebody recovers our epoch, or it can only be recovered."""

    reason: str


class Stalled(NamedTuple):
    """An entry of our epoch stays incomplete, and another nodeset may do: we take our own log over
    (R28)."""

    reason: str


class GivenUp(NamedTuple):
    """The log is another's, or nothing more can be done for it here."""

    reason: str
    loss_count: int = 0
    """1 if another sequencer took what was ours."""


NEWER_EPOCH: Final = GivenUp("a newer epoch was opened by another sequencer", 1)


class Left(NamedTuple):
    """Nothing is left to do here.

    code: of the answer to what is queued; None: it is routed anew.
    """

    code: str | None = None


Outcome = Opened | TakenOver | Closed | Fenced | Stalled | GivenUp | Left


def find_loss(view: LogView, epoch: Epoch) -> Fenced | GivenUp | None:
    """What the log's nodes say of an open epoch of ours; None: it is ours as before."""
    if not view.segments:
        return GivenUp("the segment was closed by another sequencer", 1)
    if view.segments[-1][0].epoch != epoch:
        return NEWER_EPOCH
    if view.segments[-1][0].state is not SegmentState.OPEN:
        return Fenced("the segment is no longer open")
    return None
