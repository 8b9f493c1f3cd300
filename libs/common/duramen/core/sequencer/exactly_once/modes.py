"""What a log's `ack_mode` refuses: producers, conditions, tokens and txids need `ordered` (R29).

An `out_of_order` epoch may lose an append of which a later one is acknowledged. So nothing can be
judged on what the log holds there, and nobody may come whose state would have to be read back. The
mode of the configuration is a wish: while an `ordered` epoch waits for `out_of_order`, whoever is
there already goes on, and nobody new comes; else the wish would wait for ever.

Not here: which mode the next epoch has (`proposals.choose_ack_mode`), when it comes (`open_epoch`).
Called by `admission`. Source: docs/protocol/write.md "Acknowledged out of order", R29.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.core.sequencer.effects import Fail
from duramen.core.sequencer.transmit import QueuedAppend


class Modes(NamedTuple):
    """How an open epoch acknowledges, and how the log's configuration wants it."""

    present: str
    wanted: str

    def find_refusal(
        self, append: QueuedAppend, *, has_token: bool, knows_producer: bool
    ) -> Fail | None:
        """The answer to an append that wants what the mode does not give; None: it is judged on.

        Args:
            append: one that is not plain.
            has_token: the log has a fencing token.
            knows_producer: the log has the append's producer.
        """
        if self.present == self.wanted == "ordered":
            return None
        field, what = _name_want(append)
        if self.wanted == "ordered":
            detail = f"{what} need ack_mode ordered, which the log has in a moment: send it again"
            return Fail(append.append_id, "mode_changing", detail, field)
        if self.present == "out_of_order":
            detail = (
                f"{what} need a log with ack_mode ordered, and this one is out_of_order: append "
                "without, or change the log's ack_mode to ordered first"
            )
            return Fail(append.append_id, "needs_ordered", detail, field)
        if not _is_new(append, has_token=has_token, knows_producer=knows_producer):
            return None
        detail = (
            f"the log is to have ack_mode out_of_order, and {what} need ordered: append without, "
            "or change the log's ack_mode back to ordered"
        )
        return Fail(append.append_id, "mode_changing", detail, field)


def _is_new(append: QueuedAppend, *, has_token: bool, knows_producer: bool) -> bool:
    """Whether it would bring what the log must not have, or wants what it has no more."""
    if append.match_seq_num is not None or append.min_txid is not None:
        return True
    if append.command is not None:
        return bool(append.command.token)  # a token that goes is what the wish waits for
    if append.stamp is not None:
        return not knows_producer
    return not has_token


def _name_want(append: QueuedAppend) -> tuple[str, str]:
    """What an append wants of the log: the field of a request, and a word for people."""
    if append.stamp is not None:
        return "producer", "producers"
    if append.match_seq_num is not None:
        return "match_seq_num", "conditions"
    if append.min_txid is not None:
        return "txid", "txids"
    return "fencing_token", "fencing tokens"
