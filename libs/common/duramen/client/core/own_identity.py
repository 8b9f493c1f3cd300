"""As whom the core library calls bookies and ZooKeeper, where those ask.

A folder holds the identity; its role says whether logs may be owned, or read alone. Bookies and
ZooKeeper judge by the same roles: what is checked here only tells it sooner, and in a sentence.

Called by `core.client`. Source: docs/protocol/identity.md "Who may call what inside", ADR 0037.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from duramen.errors import DuramenError
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.names import IdentityError, Role
from duramen.runtime.security.process_security import ProcessSecurity

_LOG: Final = logging.getLogger(__name__)
_ROLES: Final = (Role.COREWRITER, Role.COREREADER)
_WAY_OUT: Final = f"duramen ca issue CA {Role.COREWRITER} NAME --out FOLDER"


def open_security(folder: Path, on_end: Callable[[str], None]) -> ProcessSecurity:
    """The security of a process that takes the core library in; not started.

    Args:
        on_end: told at each look why the identity counts no more; the process lives on.

    Raises:
        DuramenError: `invalid_argument`: the folder gives no identity of such a role.
    """
    try:
        held = read_folder(folder, dt.datetime.now(dt.UTC))
    except IdentityError as error:
        raise DuramenError("invalid_argument", str(error), field="identity") from None
    if held.identity.role not in _ROLES:
        detail = (
            f"{folder} is of {held.identity}, and this takes a {Role.COREWRITER} or, to read, a "
            f"{Role.COREREADER}: `{_WAY_OUT}`"
        )
        raise DuramenError("invalid_argument", detail, field="identity")

    def end(why: str) -> None:
        _LOG.error("%s is nobody any more: %s", held.identity, why)
        on_end(why)

    return ProcessSecurity(folder, held, end)


def check_may_own(security: ProcessSecurity | None) -> None:
    """See that this process may own logs.

    Raises:
        DuramenError: `forbidden`: its identity only reads.
    """
    if security is not None and security.identity.role is not Role.COREWRITER:
        detail = f"{security.identity} reads logs and owns none: `{_WAY_OUT}` makes a writer"
        raise DuramenError("forbidden", detail)
