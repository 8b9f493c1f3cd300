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
from duramen.runtime.admission.early_answers import answer_early
from duramen.runtime.admission.refusals import refuse_blindly, refuse_unknown, refuse_verb
from duramen.runtime.audit.recorded_calls import RecordedCalls, draw_request_id
from duramen.runtime.credentials.principals import CredentialRefusedError, NothingKnownError
from duramen.runtime.identity.callers import TooManyHeadersError
from duramen.runtime.public.calls import On
from duramen.runtime.security.refusals import Refusals
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
    """

    def __init__(
        self,
        app: ASGIApp,
        admission: ClientAdmission,
        of_anybody: Collection[str],
        recorded: RecordedCalls,
    ) -> None:
        self._app = app
        self._admission = admission
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
            await answer_early(refusal, scope, receive, send)
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
            self._tell("many", str(error), scope)
            self._recorded.refuse(scope, found, None, 429)
            detail = "too many headers of one certificate"
            raise DuramenError(
                "rate_limited", detail, field=IDENTITY_HEADER, retry_after_ms=_RETRY_AFTER_MS
            ) from None
        except NothingKnownError as error:
            self._tell("not_known_now", str(error), scope)
            self._recorded.refuse(scope, found, None, 503)
            raise refuse_blindly() from None
        except CredentialRefusedError as error:
            self._tell("unauthenticated", str(error), scope)
            self._recorded.refuse(scope, found, None, 401)
            raise refuse_unknown() from None
        call = AdmittedCall(bearer, shown, found, now.timestamp(), self._admission.find_rights)
        if found is not None:
            self._judge(found, call, scope)
        return call

    def _judge(self, found: FoundRow, call: AdmittedCall, scope: Scope) -> None:
        try:
            may = _may(call.find_rights(), found)
        except DuramenError as error:
            self._tell("not_known_now", error.detail, scope)
            self._recorded.refuse(scope, found, str(call.bearer.principal), 503)
            raise
        if not may:
            refusal = refuse_verb(found.row.verb, found.namespace, found.log)
            self._tell("forbidden", f"{call.bearer.principal}: {refusal.detail}", scope)
            self._recorded.refuse(scope, found, str(call.bearer.principal), 403)
            raise refusal

    def _tell(self, kind: str, why: str, scope: Scope) -> None:
        """Tell of a refusal, which gets an id for that."""
        request_id = scope.setdefault(REQUEST_KEY, draw_request_id())
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
