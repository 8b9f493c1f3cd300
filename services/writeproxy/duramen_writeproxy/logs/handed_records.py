"""`POST /v1/audit/records`: bookies and sequencers hand on what their admin ports recorded.

Who calls is known by the certificate of the connection, also while security turns. Each record has
to be of the caller's own chain; what is no record is stored as it is, for the check to tell. One
batch of each node is under way at a time.

Whom it refuses is told and recorded here: the port's door lets in who may append.

Called by `service` (admin port). Source: docs/protocol/audit.md "Bookies and sequencers".
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Final

from fastapi import FastAPI, Request
from pydantic import BaseModel

from duramen.core.rights.system_namespace import HANDING_ROLES
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.audit.by_admin_ports import RECORDS_PATH
from duramen.runtime.audit.trail import AuditSink
from duramen.runtime.identity.certificates import CertificateRefusedError
from duramen.runtime.rest import parse_object, read_body
from duramen.runtime.rights.route_verbs import needs
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.security.refusals import Refusals
from duramen.runtime.security.shown_certificate import SHOWN, ShownCertificate
from duramen.units import MIB
from duramen.wire.edge.audit_records import COUNTS_BYTES_MAX, decode_handed, find_foreign

BODY_BYTES_MAX: Final = 4 * MIB
"""512 KiB of records, in which a damaged line may have six bytes of JSON for each of its own."""

LINE_COUNT_MAX: Final = 256
UNDER_WAY_MAX: Final = 8
"""Nodes whose records are being stored: 32 MiB at most."""

_RETRY_SOON_MS: Final = 1_000
_TOLD_LENGTH_MAX: Final = 100
"""Of a name that a stranger chose."""


class StoredRecords(BaseModel):
    """How many are in the audit log."""

    stored: int


class HandedRecords:
    """Takes records of other nodes.

    Args:
        log: appends them.
        security: by which the caller is known; None: nobody is.
    """

    def __init__(self, log: AuditSink, security: ProcessSecurity | None) -> None:
        self._log = log
        self._security = security
        self._under_way: set[str] = set()
        self._refusals = Refusals()

    async def take(self, request: Request) -> StoredRecords:
        """Store one batch.

        Raises:
            DuramenError: nothing of it is stored; or, of the log's own, it may not be.
        """
        try:
            return await self._take(request)
        except _NotTakenError as error:
            self._tell(request, error)
            raise error.refusal from None

    async def _take(self, request: Request) -> StoredRecords:
        node = self._identify(request)
        if node in self._under_way or len(self._under_way) >= UNDER_WAY_MAX:
            raise DuramenError(
                "rate_limited",
                "records are being stored already: hand on one batch at a time",
                retry_after_ms=_RETRY_SOON_MS,
            )
        self._under_way.add(node)
        try:
            body = await read_body(request, BODY_BYTES_MAX, announced=None)
            # Megabytes to decode and to hash, which would hold up every append.
            lines = await asyncio.to_thread(_split, body, node)
            await self._log.append(lines)
        finally:
            self._under_way.discard(node)
        return StoredRecords(stored=len(lines))

    def _identify(self, request: Request) -> str:
        """Role and name of the node that calls, which the door may have let in unknown."""
        shown = request.scope.get("state", {}).get(SHOWN)
        if self._security is None or not isinstance(shown, ShownCertificate):
            raise _refuse_unknown("no certificate was shown")
        domain = self._security.identity.domain
        try:
            identity = shown.judge(self._security.bundle, domain, dt.datetime.now(dt.UTC))
        except CertificateRefusedError as error:
            raise _refuse_unknown(f"its certificate {error}") from None
        node = f"{identity.role}/{identity.name}"
        if identity.role not in HANDING_ROLES:
            refusal = DuramenError("forbidden", "append to the audit log: you may not")
            raise _NotTakenError(refusal, "verb", f"{node} may not hand on audit records", node)
        return node

    def _tell(self, request: Request, error: _NotTakenError) -> None:
        """Tell and record a refusal: the door let the call in, and sees nothing of it."""
        self._refusals.tell(error.kind, error.why, dt.datetime.now(dt.UTC))
        if self._security is None or self._security.admin_records is None:
            return
        principal = None if error.node is None else f"service:{error.node}"
        self._security.admin_records.refuse(
            request.scope, principal, Verb.APPEND.value, error.refusal.kind.status
        )


class _NotTakenError(Exception):
    """Records are refused for who hands them on; `node` None: nobody who is known."""

    def __init__(self, refusal: DuramenError, kind: str, why: str, node: str | None = None) -> None:
        super().__init__(why)
        self.refusal = refusal
        self.kind = kind
        self.why = why
        self.node = node


def add_audit_routes(app: FastAPI, records: HandedRecords) -> None:
    """Add the route to the admin application."""

    @app.post(RECORDS_PATH, **needs(Verb.APPEND))
    async def post_records(request: Request) -> StoredRecords:
        return await records.take(request)


def _refuse_unknown(why: str) -> _NotTakenError:
    refusal = DuramenError("unauthenticated", "this needs a certificate of the cluster")
    return _NotTakenError(refusal, "unknown", f"audit records: {why}")


def _split(body: bytes, node: str) -> list[bytes]:
    """The lines of a body, each of which may be stored for this node."""
    try:
        lines = decode_handed(parse_object(body, ("lines",)))
    except ValueError as error:
        raise DuramenError("invalid_argument", f"lines: {error}", field="lines") from None
    if not lines:
        raise DuramenError("invalid_argument", "lines: there are none", field="lines")
    if len(lines) > LINE_COUNT_MAX:
        raise DuramenError("too_many_records", f"{LINE_COUNT_MAX} records at most")
    for line in lines:
        if not 0 < len(line) <= COUNTS_BYTES_MAX or b"\n" in line:
            raise DuramenError(
                "record_too_large",
                f"a record is one line of 1 to {COUNTS_BYTES_MAX} bytes, not {len(line)}",
            )
        if (foreign := find_foreign(line, node)) is not None:
            # It may be all that shows a stolen key.
            refusal = DuramenError("forbidden", f"append records of another node than {node}")
            why = f"{node} hands on audit records of {foreign[:_TOLD_LENGTH_MAX]!r}"
            raise _NotTakenError(refusal, "foreign", why, node)
    return lines
