"""The door of a data port: who calls, and whether that role may.

Judged before a body is used, by the header `Duramen-Identity` and the path. Whoever is refused
learns that it is, and where clocks are apart the time here; why stands in the log, a line a second
at most.

Called by `runtime.http_server`. Source: docs/protocol/identity.md "The caller's header", "Who may
call what inside".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Final

from duramen.errors import DuramenError
from duramen.runtime.identity.callers import Callers, TooManyHeadersError
from duramen.runtime.identity.header import CallerRefusedError
from duramen.runtime.identity.names import Identity
from duramen.runtime.security.permitted_roles import Roles
from duramen.runtime.security.refusals import Refusals
from duramen.wire.frame import RETRY_AFTER_HEADER, TIME_HEADER

_RETRY_AFTER_MS: Final = 1_000


class NotAdmittedError(Exception):
    """A call is refused, nothing of it was used.

    Attributes:
        refusal: what the caller is told.
        headers: of the answer.
    """

    def __init__(self, refusal: DuramenError, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        self.headers = headers


class Door:
    """Who is let in at one data port.

    Args:
        callers: those who named themselves to this process.
        permitted: path → the roles that may call it.
    """

    def __init__(self, callers: Callers, permitted: Mapping[str, Roles]) -> None:
        self._callers = callers
        self._permitted = permitted
        self._refusals = Refusals()

    def admit(self, path: str, headers: Sequence[str], now: dt.datetime) -> Identity:
        """Who calls.

        Args:
            headers: every `Duramen-Identity` of the call; one is expected.

        Raises:
            NotAdmittedError: nobody who may.
        """
        if len(headers) != 1:
            raise self._refuse_unknown(f"{len(headers)} headers of identity", now)
        try:
            caller = self._callers.find(headers[0], now)
        except TooManyHeadersError as error:
            self._refusals.tell("many", str(error), now)
            raise NotAdmittedError(
                DuramenError(
                    "rate_limited", "too many headers of one certificate",
                    retry_after_ms=_RETRY_AFTER_MS,
                ),
                ((RETRY_AFTER_HEADER, str(_RETRY_AFTER_MS)),),
            ) from None  # fmt: skip
        except CallerRefusedError as error:
            raise self._refuse_unknown(str(error), now, is_late=error.is_late) from None
        identity = caller.identity
        if identity.role not in self._permitted.get(path, ()):
            self._refusals.tell("role", f"{identity} may not call {path[:200]!r}", now)
            detail = f"a {identity.role} may not call this"
            raise NotAdmittedError(DuramenError("forbidden", detail))
        return identity

    def _refuse_unknown(
        self, why: str, now: dt.datetime, *, is_late: bool = False
    ) -> NotAdmittedError:
        self._refusals.tell("unknown", why, now)
        headers = [("www-authenticate", "Duramen-Identity")]
        if is_late:
            headers.append((TIME_HEADER, f"{now.timestamp():.0f}"))
        detail = "the header Duramen-Identity names nobody who is known here"
        return NotAdmittedError(DuramenError("unauthenticated", detail), tuple(headers))
