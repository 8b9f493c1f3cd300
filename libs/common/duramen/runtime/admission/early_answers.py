"""A refusal that is answered before the application, and before a body is read.

What is still sent of the body is dropped: the end of its connection would hide the answer, and an
append whose answer is not seen is of unknown fate.

Called by `public_door` and `quota_door`. Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

from typing import Final

from starlette.types import Receive, Scope, Send

from duramen.errors import DuramenError
from duramen.runtime.admin import problem_response
from duramen.runtime.admission.callers import REQUEST_KEY
from duramen.runtime.edge.coded_bodies import drop_rest

REQUEST_HEADER: Final = REQUEST_KEY.encode()

_WITHOUT_BODY: Final = ("GET", "HEAD")


async def answer_early(refusal: DuramenError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the problem, with the id of the request where it has one."""
    answer = problem_response(refusal)
    headers = [*answer.raw_headers, (b"cache-control", b"no-store")]
    if (request_id := scope.get(REQUEST_KEY)) is not None:
        headers.append((REQUEST_HEADER, request_id.encode()))
    status, body = answer.status_code, bytes(answer.body)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if scope["method"] in _WITHOUT_BODY:
        body = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": body})
        return
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await drop_rest(receive)
    await send({"type": "http.response.body", "body": b""})
