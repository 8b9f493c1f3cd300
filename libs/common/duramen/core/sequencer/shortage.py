"""Why appends of one log wait, what they are told for it, and when they wait in vain.

An append is told what it waits for now; it is told of bookies only where bookies are missing. Once
the writer has known for SHORTAGE_GRACE_US that no ack set takes the oldest entry (or that no
ensemble can be placed), no append waits for its deadline. It gets the answer of a deadline at once:
refused if it was never sent, uncertain if it was.

Not for embedded writers: such a log ends with its first refusal, and all its appends have one
time-out. Called by `log_sequencer` and by `duramen.client.core`.
Source: docs/protocol/errors.md, R5, R9.
"""

from __future__ import annotations

from typing import Final

from duramen.core.sequencer.epoch.segment_writer import SegmentWriter
from duramen.core.sequencer.ledger_writer import WriterState
from duramen.limits import SHORTAGE_GRACE_US

Refusal = tuple[str, str]
"""Code and detail of the answer to an append that was never sent."""

TAKEN_OVER: Final[Refusal] = ("log_unavailable", "the log is being taken over")
"""Before an epoch is open, unless something stands in the way."""


class Shortage:
    """Since when too few bookies are there for a log."""

    def __init__(self) -> None:
        self._since_us: int | None = None

    def is_lasting(self, writer: SegmentWriter | None, refusal: Refusal, now_us: int) -> bool:
        """Whether what waits can be told at once; to be asked from time to time while it waits.

        Args:
            refusal: what is told before an epoch is open.
        """
        if not _is_short(writer, refusal):
            self.end()
            return False
        if self._since_us is None:
            self._since_us = now_us
        return now_us - self._since_us >= SHORTAGE_GRACE_US

    def end(self) -> None:
        """Something was acknowledged: the next shortage has a grace of its own."""
        self._since_us = None


def _is_short(writer: SegmentWriter | None, refusal: Refusal) -> bool:
    if writer is None:
        return refusal[0] == "not_enough_bookies"
    return writer.state is WriterState.OPEN and writer.lacks_ack_set


def format_delay(writer: SegmentWriter, *, is_changing: bool, is_held: bool) -> Refusal:
    """What an append that was not sent has been waiting for, while an epoch is open.

    Args:
        is_changing: a change of the nodes may have been sent.
        is_held: appends wait for a proof, or for what they repeat.
    """
    if is_changing:
        is_replacing = writer.state is WriterState.CHANGING
        what = "a bookie is being replaced" if is_replacing else "the segment is being closed"
        return "metadata_unavailable", f"{what}, and ZooKeeper has not answered"
    if writer.window or writer.suspended or is_held:
        return "not_enough_bookies", writer.explain_shortage()
    return "overloaded", "the log's sequencer did not get round to it in time"
