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
from duramen.runtime.turning.tally import RefusalTally, WouldBeRefused
from duramen.wire.frame import RETRY_AFTER_HEADER, TIME_HEADER

_RETRY_AFTER_MS: Final = 1_000


class NotAdmittedError(Exception):
    """A call is refused, nothing of it was used.

    Attributes:
        refusal: what the caller is told.
        headers: of the answer.
        kind: why, in one word.
        why: for who runs the port.
        identity: of the caller; None: nobody is known.
    """

    def __init__(
        self,
        refusal: DuramenError,
        kind: str,
        why: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        identity: Identity | None = None,
    ) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        self.headers = headers
        self.kind = kind
        self.why = why
        self.identity = identity


class Door:
    """Who is let in at one data port.

    Args:
        callers: those who named themselves to this process.
        permitted: path → the roles that may call it.
        tally: counts whom it would refuse, and everybody is let in; None: it refuses them.
    """

    def __init__(
        self,
        callers: Callers,
        permitted: Mapping[str, Roles],
        tally: RefusalTally | None = None,
    ) -> None:
        self._callers = callers
        self._permitted = permitted
        self._tally = tally
        self._refusals = Refusals()

    def admit(
        self, path: str, headers: Sequence[str], now: dt.datetime, address: str
    ) -> Identity | None:
        """Who calls; None: nobody who may, and it is only counted.

        Args:
            headers: every `Duramen-Identity` of the call; one is expected.
            address: the call comes from there.

        Raises:
            NotAdmittedError: nobody who may.
        """
        try:
            return self._judge(path, headers, now)
        except NotAdmittedError as error:
            if self._tally is None:
                self._refusals.tell(error.kind, error.why, now)
                raise
            who = address if error.identity is None else str(error.identity)
            verb = path if path in self._permitted else "other"
            self._tally.note(WouldBeRefused("data", who, verb, error.kind, error.why))
            return None

    def _judge(self, path: str, headers: Sequence[str], now: dt.datetime) -> Identity:
        if len(headers) != 1:
            raise _refuse_unknown(f"{len(headers)} headers of identity", now)
        try:
            caller = self._callers.find(headers[0], now)
        except TooManyHeadersError as error:
            raise NotAdmittedError(
                DuramenError(
                    "rate_limited", "too many headers of one certificate",
                    retry_after_ms=_RETRY_AFTER_MS,
                ),
                "many",
                str(error),
                headers=((RETRY_AFTER_HEADER, str(_RETRY_AFTER_MS)),),
            ) from None  # fmt: skip
        except CallerRefusedError as error:
            raise _refuse_unknown(str(error), now, is_late=error.is_late) from None
        identity = caller.identity
        if identity.role not in self._permitted.get(path, ()):
            # What stands in no row may hold anything, and is shown to whoever may `observe`.
            asked = path if path in self._permitted else "what is nobody's to call"
            raise NotAdmittedError(
                DuramenError("forbidden", f"a {identity.role} may not call this"),
                "role",
                f"{identity} may not call {asked}",
                identity=identity,
            )
        return identity


def _refuse_unknown(why: str, now: dt.datetime, *, is_late: bool = False) -> NotAdmittedError:
    headers = [("www-authenticate", "Duramen-Identity")]
    if is_late:
        headers.append((TIME_HEADER, f"{now.timestamp():.0f}"))
    detail = "the header Duramen-Identity names nobody who is known here"
    refusal = DuramenError("unauthenticated", detail)
    return NotAdmittedError(refusal, "unknown", why, headers=tuple(headers))
