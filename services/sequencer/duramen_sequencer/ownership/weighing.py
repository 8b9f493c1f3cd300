"""How much of the logs this sequencer asks for, changed while it runs.

Its share is in its own node, which everybody follows: the next owner of a log is chosen by the new
one at once, and logs that have an owner stay until they are balanced. The node goes with the
process, so after a restart the flag `--weight` counts again.

Called by `control`. Source: docs/protocol/ownership.md "Whose is a log", "Through one address".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from duramen.core.hashing import WEIGHT_MAX
from duramen.errors import DuramenError
from duramen.ids import SequencerId


class Weighing:
    """The operation `weigh` of one sequencer.

    Args:
        change_node: changes fields of its own node, soon.
    """

    def __init__(
        self, own_id: SequencerId, change_node: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._id = own_id
        self._change_node = change_node

    async def weigh(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Take another share of the logs from now on.

        Raises:
            DuramenError: `invalid_argument`.
        """
        weight = request.get("sequencer_weight")
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if weight is None or not is_number or not 0 <= weight <= WEIGHT_MAX:
            detail = f"sequencer_weight: a number from 0 to {WEIGHT_MAX:g}"
            raise DuramenError("invalid_argument", detail, field="sequencer_weight")
        self._change_node({"weight": float(weight)})
        return {"id": self._id, "sequencer_weight": float(weight)}
