"""The door of a public port: who calls, and whether it may, before a body is read.

Stands around the whole application. First the request as text, then who calls (401), then the verb
on the target (403): nothing is looked up for either, so they tell nothing of what is there. Why
somebody is not known stands in the log alone, a line a second at most, with the id that the answer
has as `Duramen-Request`.

Put there by `runtime.public.serving`. Source: docs/protocol/rights.md "How a call is judged",
docs/protocol/credentials.md "Who it is".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Final

from prometheus_client import Counter
from starlette.types import ASGIApp, Receive, Scope, Send

from duramen.core.rights.judgement import Rights
from duramen.errors import DuramenError
from duramen.runtime.admission.admission import ClientAdmission
from duramen.runtime.admission.call_rows import ROW_KEY, FoundRow, find_row
from duramen.runtime.admission.callers import (
    CALL_KEY,
    REQUEST_KEY,
    AdmittedCall,
    ShownCredentials,
)
from duramen.runtime.admission.counted_calls import CountedCall, describe_target
from duramen.runtime.admission.early_answers import answer_early
from duramen.runtime.admission.refusals import refuse_blindly, refuse_unknown, refuse_verb
from duramen.runtime.audit.recorded_calls import RecordedCalls, draw_request_id, find_address
from duramen.runtime.credentials.principals import CredentialRefusedError, NothingKnownError
from duramen.runtime.identity.callers import TooManyHeadersError
from duramen.runtime.public.calls import On
from duramen.runtime.security.refusals import Refusals
from duramen.runtime.turning.tally import RefusalTally, WouldBeRefused
from duramen.wire.frame import IDENTITY_HEADER

_RETRY_AFTER_MS: Final = 1_000
_REFUSED: Final = Counter(
    "duramen_public_calls_refused",
    "Calls of the public port that were refused for who called or what for",
    ["why"],
)


class PublicDoor:
    """ASGI: the application for those who may.

    Args:
        of_anybody: paths that whoever asks is given.
        recorded: what the audit log is told.
        tally: counts whom it would refuse, and everybody is served; None: it refuses them.
    """

    def __init__(
        self,
        app: ASGIApp,
        admission: ClientAdmission,
        of_anybody: Collection[str],
        recorded: RecordedCalls,
        tally: RefusalTally | None = None,
    ) -> None:
        self._app = app
        self._admission = admission
        self._tally = tally
        self._of_anybody = frozenset(of_anybody)
        self._recorded = recorded
        self._refusals = Refusals(_REFUSED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it before its body is read."""
        if scope["type"] != "http" or scope["path"] in self._of_anybody:
            await self._app(scope, receive, send)
            return
        try:
            call = await self._admit(scope)
            recorded = self._recorded.begin(scope, call, send)
        except DuramenError as refusal:
            if self._tally is None:
                await answer_early(refusal, scope, receive, send)
            else:
                # Nobody is known, as with `none`; what is wrong with a name the route says.
                await self._app(scope, receive, send)
            return
        found = call.found
        scope[CALL_KEY] = call
        scope[ROW_KEY] = None if found is None else found.row
        if found is None or recorded is None:
            await self._app(scope, receive, send)
            return
        lasting = self._admission.lasting if found.row.lasts else None
        if lasting is not None:
            lasting.add(call)
        try:
            await self._app(scope, receive, recorded)
        finally:
            recorded.end()
            if lasting is not None:
                lasting.discard(call)

    async def _admit(self, scope: Scope) -> AdmittedCall:
        """The call, once it is known who makes it and that it may.

        Raises:
            DuramenError: as is to be answered.
        """
        found = find_row(scope["method"], scope["path"])
        shown = _find_shown(scope)
        now = dt.datetime.now(dt.UTC)
        if found is not None and found.row.judged is On.CALL:
            scope[REQUEST_KEY] = draw_request_id()
        try:
            bearer = await self._admission.identify(shown, now)
        except TooManyHeadersError as error:
            self._refuse("many", str(error), scope, found, status=429)
            detail = "too many headers of one certificate"
            raise DuramenError(
                "rate_limited", detail, field=IDENTITY_HEADER, retry_after_ms=_RETRY_AFTER_MS
            ) from None
        except NothingKnownError as error:
            self._refuse("not_known_now", str(error), scope, found, status=503)
            raise refuse_blindly() from None
        except CredentialRefusedError as error:
            self._refuse("unauthenticated", str(error), scope, found, status=401)
            raise refuse_unknown() from None
        find_rights = self._admission.find_rights
        call: AdmittedCall
        if self._tally is None:
            call = AdmittedCall(bearer, shown, found, now.timestamp(), find_rights)
        else:
            counted = CountedCall(bearer, shown, found, now.timestamp(), find_rights)
            counted.count_by(self._tally)
            call = counted
        if found is not None:
            self._judge(found, call, scope)
        return call

    def _judge(self, found: FoundRow, call: AdmittedCall, scope: Scope) -> None:
        who = str(call.bearer.principal)
        try:
            may = _may(self._admission.find_rights(call.bearer), found)
        except DuramenError as error:
            self._refuse("not_known_now", error.detail, scope, found, who=who, status=503)
            if self._tally is None:
                raise
            return
        if not may:
            refusal = refuse_verb(found.row.verb, found.namespace, found.log)
            why = f"{who}: {refusal.detail}"
            self._refuse("forbidden", why, scope, found, who=who, status=403)
            if self._tally is None:
                raise refusal

    def _refuse(
        self,
        kind: str,
        why: str,
        scope: Scope,
        found: FoundRow | None,
        *,
        status: int,
        who: str | None = None,
    ) -> None:
        """Tell of a refusal, which gets an id for that, and record it; or count what would be one.

        Args:
            who: None: nobody is known.
        """
        if self._tally is not None:
            who = who or find_address(scope) or "?"
            verb = "other" if found is None else found.row.verb.value
            target = describe_target(found)
            self._tally.note(WouldBeRefused("public", who, verb, kind, why, target))
            return
        request_id = scope.setdefault(REQUEST_KEY, draw_request_id())
        self._recorded.refuse(scope, found, who, status)
        now = dt.datetime.now(dt.UTC)
        self._refusals.tell(kind, f"({request_id}, {kind}) {why}", now)


def _may(rights: Rights, found: FoundRow) -> bool:
    row, namespace, log = found
    match row.judged:
        case On.PATH:
            return rights.judge(row.verb, namespace, log)
        case On.SHOWN:
            return namespace is None or rights.reaches(row.verb, namespace)
        case On.CALL:
            return True


def _find_shown(scope: Scope) -> ShownCredentials:
    authorizations: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorizations = (*authorizations, value.decode("latin-1"))
        elif name == b"duramen-identity":
            identities = (*identities, value.decode("latin-1"))
    return ShownCredentials(authorizations, identities)
