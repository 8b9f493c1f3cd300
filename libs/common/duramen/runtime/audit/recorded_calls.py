"""Which calls of a public port are recorded, and as what: told by its door, before and behind.

A change and a refusal are recorded by themselves; appends, reads, lists, and what limits refuse are
counted. What came of a call is seen when its answer begins. Of a request nothing is taken but who,
from where, and names that were judged: no header, no path, no byte of a body.

Called by `runtime.admission.public_door`. Source: docs/protocol/audit.md "What is recorded".
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.types import Message, Scope, Send

from duramen.core.audit.counts import CountKey
from duramen.core.rights.grants import parse_scope
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.admission.call_rows import FoundRow
from duramen.runtime.admission.callers import REQUEST_KEY, AdmittedCall
from duramen.runtime.admission.counted_calls import describe_target
from duramen.runtime.audit.trail import AuditTrail
from duramen.runtime.public.calls import GRANTS_PATH, On, Side

_HEADER: Final = REQUEST_KEY.encode()
_COUNTED: Final = frozenset((Verb.APPEND, Verb.READ, Verb.LIST))
_BEYOND_LIMITS: Final = 429
_REFUSED: Final = frozenset((401, 403, _BEYOND_LIMITS))
_FROM_CHARACTERS_MAX: Final = 64
_ID_CHARACTERS_MAX: Final = 32


class RecordedCalls:
    """The calls of one public port.

    Args:
        side: of the proxy; what the other side does is forwarded.
    """

    def __init__(self, trail: AuditTrail, side: Side) -> None:
        self.trail = trail
        self._side = side

    def refuse(self, scope: Scope, found: FoundRow | None, who: str | None, status: int) -> None:
        """A call was not let in.

        Args:
            scope: its id is there.
            who: the principal; None: nobody who is known.
        """
        verb, target = _name_work(scope, found)
        members = {
            "who": who,
            "from": find_address(scope),
            "verb": verb,
            "target": target,
            "outcome": "refused",
            "status": status,
            "request": scope[REQUEST_KEY],
        }
        if not self.trail.note_refusal(members):
            namespace = None if found is None else found.namespace
            self.trail.count(CountKey(who, namespace, verb, "refused"))

    def begin(self, scope: Scope, call: AdmittedCall, send: Send) -> RecordedCall | None:
        """A call of the table was let in; None: it is none of the table.

        Raises:
            DuramenError: `audit_unavailable`, `rate_limited`: it is a change, has to be recorded,
                and there is no room.
        """
        if call.found is None:
            return None
        is_change = call.found.row.verb not in _COUNTED
        try:
            # Who asks for a list of grants changes nothing.
            changes = is_change and call.found.row.method != "GET"
            was_reserved = changes and self.trail.reserve(_name(call))
        except DuramenError as error:
            outcome = name_outcome(error.kind.status)
            key = CountKey(_name(call), call.found.namespace, call.found.row.verb.value, outcome)
            self.trail.count(key)
            raise
        if is_change:
            scope.setdefault(REQUEST_KEY, draw_request_id())
        side = call.found.row.side
        is_forwarded = side is not self._side and side is not Side.BOTH
        return RecordedCall(
            self.trail, scope, call, send,
            is_change=is_change, is_forwarded=is_forwarded, was_reserved=was_reserved,
        )  # fmt: skip


class RecordedCall:
    """One call until its answer begins; it is ASGI's `send` itself, so no coroutine is added."""

    __slots__ = (
        "_call", "_is_change", "_is_forwarded", "_is_told", "_scope", "_send", "_trail",
        "_was_reserved",
    )  # fmt: skip

    def __init__(
        self,
        trail: AuditTrail,
        scope: Scope,
        call: AdmittedCall,
        send: Send,
        *,
        is_change: bool,
        is_forwarded: bool,
        was_reserved: bool,
    ) -> None:
        self._trail = trail
        self._scope = scope
        self._call = call
        self._send = send
        self._is_change = is_change
        self._is_forwarded = is_forwarded
        self._was_reserved = was_reserved
        self._is_told = False

    def __call__(self, message: Message) -> Awaitable[None]:
        """Send on, and see what came of the call."""
        if not self._is_told and message["type"] == "http.response.start":
            self._tell(message["status"], message)
        return self._send(message)

    def end(self) -> None:
        """Nothing more is sent."""
        if not self._is_told:
            self._tell(None, None)

    def _tell(self, status: int | None, message: Message | None) -> None:
        self._is_told = True
        call, outcome = self._call, name_outcome(status)
        assert call.found is not None, "it is of the table"
        if self._was_reserved:
            self._trail.release(_name(call))
        verb = call.found.row.verb.value
        key = CountKey(_name(call), call.found.namespace, verb, outcome)
        if status == _BEYOND_LIMITS:
            # Whoever is beyond a limit asks often: else it uses up what refusals may be recorded.
            self._trail.count(key)
            return
        is_refused = outcome == "refused"
        if not self._is_change and not is_refused:
            if not self._is_forwarded:
                self._trail.count(key)
            return
        word, target = _name_work(self._scope, call.found)
        members: dict[str, Any] = {
            "who": _name(call),
            "from": find_address(self._scope),
            "verb": word,
            "target": target,
            "outcome": outcome,
            "status": status,
            "request": _settle_id(self._scope, message),
        }
        if self._is_forwarded:
            members["forwarded"] = True
        if not is_refused:
            self._trail.note(members)
        elif not self._trail.note_refusal(members):
            self._trail.count(key)


def draw_request_id() -> str:
    """An id by which a client's answer, logs and the audit log tell of one call."""
    return secrets.token_hex(6)


def _settle_id(scope: Scope, message: Message | None) -> str:
    """The id of the answer: a peer's, where it has one; else this process's, which it gets."""
    request_id: str = scope.setdefault(REQUEST_KEY, draw_request_id())
    if message is None:
        return request_id
    headers = message.get("headers", ())
    for name, value in headers:
        if name == _HEADER and len(value) <= _ID_CHARACTERS_MAX and value.isalnum():
            return bytes(value).decode("latin-1")
    message["headers"] = [*headers, (_HEADER, request_id.encode())]
    return request_id


def _name_work(scope: Scope, found: FoundRow | None) -> tuple[str | None, str | None]:
    """The verb and its target; None: no call of the table."""
    if found is None:
        return None, None
    row, verb = found.row, found.row.verb.value
    if target := describe_target(found):
        return verb, target
    if row.judged is not On.CALL:
        return verb, "cluster"
    if row.path != GRANTS_PATH:
        return verb, "access-tokens"
    return verb, _name_grants(scope)


def _name_grants(scope: Scope) -> str:
    """Which grants: those within a scope, where the query says one that is legal."""
    try:
        texts = parse_qs(scope.get("query_string", b"").decode("ascii"), max_num_fields=8)["scope"]
        return f"grants {parse_scope(texts[0])}"
    except (KeyError, ValueError, DuramenError):
        return "grants"


def _name(call: AdmittedCall) -> str:
    return str(call.bearer.principal)


def name_outcome(status: int | None) -> str:
    """What came of a call, by its status; None: no answer began."""
    if status is None:
        return "unanswered"
    if status < 400:
        return "ok"
    return "refused" if status in _REFUSED else "failed"


def find_address(scope: Scope) -> str | None:
    """From where a call came."""
    client = scope.get("client")
    return None if client is None else str(client[0])[:_FROM_CHARACTERS_MAX]
