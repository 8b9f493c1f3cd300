"""Who may call what at the data ports: role by path, and by operation where a path has several.

What stands in no row may be called by nobody, and a service with such a path does not start.

Called by `door`, by the bookie's calls and by the sequencer's control calls.
Source: docs/protocol/identity.md "Who may call what inside".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duramen.runtime.identity.names import Role

Roles = frozenset[Role]

_EMBEDDED: Final = (Role.COREWRITER, Role.COREREADER)
_READERS: Final = (Role.SEQUENCER, Role.READPROXY, Role.ARCHIVE, Role.OPERATOR)

BOOKIE_PATHS: Final[Mapping[str, Roles]] = {
    "/b/add": Roles((Role.SEQUENCER, Role.COREWRITER, Role.OPERATOR)),
    "/b/seal": Roles((Role.SEQUENCER, Role.COREWRITER)),
    "/b/lac": Roles((Role.SEQUENCER, Role.READPROXY, *_EMBEDDED)),
    "/b/read": Roles((*_READERS, Role.BOOKIE, *_EMBEDDED)),
    "/b/inventory": Roles(_READERS),
    "/b/pull": Roles((Role.SEQUENCER,)),
    "/b/members": Roles((Role.SEQUENCER,)),
}

LAC_WRITERS: Final = Roles((Role.SEQUENCER, Role.COREWRITER))
"""Who may say by `/b/lac` that entries are acknowledged; the others there ask alone."""

SEQUENCER_PATHS: Final[Mapping[str, Roles]] = {
    "/s/append": Roles((Role.WRITEPROXY,)),
    "/s/lac": Roles((Role.READPROXY,)),
    "/s/control": Roles((Role.SEQUENCER, Role.WRITEPROXY, Role.READPROXY, *_EMBEDDED)),
    "/s/members": Roles((Role.SEQUENCER, Role.WRITEPROXY, Role.BOOKIE)),
}

_OF_PEERS: Final = Roles((Role.SEQUENCER, Role.WRITEPROXY))
_CONTROL: Final[Mapping[str, Roles]] = {
    **dict.fromkeys(
        ("take", "owned", "hand_over", "config_changed", "report_state", "roll"), _OF_PEERS
    ),
    "report_lags": Roles((Role.SEQUENCER,)),
    "report_tail": Roles((Role.SEQUENCER, Role.READPROXY, Role.WRITEPROXY, *_EMBEDDED)),
}
_OF_CLIENTS: Final = Roles((Role.WRITEPROXY,))


def find_control_roles(operation: str) -> Roles:
    """Who may ask a sequencer for an operation: what clients ask for comes by a write proxy."""
    return _CONTROL.get(operation, _OF_CLIENTS)
