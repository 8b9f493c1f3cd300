"""What a bookie takes on: everything, nothing new, or nothing at all.

A bookie that is to leave goes SERVING → DRAINING → LEAVING → DRAINED, one step at a time, and back
to SERVING from any of these. The duty stands in the bookie's own node, where `core.repair` decides
about it. The bookie enforces a duty before it publishes it: once a duty is published, nothing that
it forbids can happen. Reads and seals go on in every duty. Writes of LACs are refused as adds are.

Called by the bookie's core and by repair. Source: docs/protocol/repair.md "Drain".
"""

from __future__ import annotations

import enum


class Duty(enum.Enum):
    """Which adds a bookie accepts."""

    SERVING = "serving"
    DRAINING = "draining"
    """None of ledgers that it does not know, but recovery's and repair's."""
    LEAVING = "leaving"
    """None at all, not even recovery's: no segment can come to depend on it."""
    DRAINED = "drained"
    """As LEAVING; and the auditor saw that nothing names it."""

    @property
    def takes_new_ledgers(self) -> bool:
        """Whether an owner may begin a ledger here."""
        return self is Duty.SERVING

    @property
    def takes_adds(self) -> bool:
        """Whether anything at all may be added here."""
        return self in (Duty.SERVING, Duty.DRAINING)
