"""`POST …/logs/{log}:fence`: sets the log's fencing token at the sequencer that owns the log.

Setting a token twice is the same as once, so an uncertain outcome is tried again; with `expected`
it is not the same, and the repetition would be refused by the first one's success.

Called by `rest`. Source: docs/protocol/rest.md "Fencing token".
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request, Response

from duramen.ids import LogId
from duramen.limits import APPEND_TIMEOUT_US
from duramen.runtime.public.answers import FencedAnswer, read_answer, respond
from duramen.runtime.rest import announced_bytes, parse_object, read_body, read_query, unknown_field
from duramen.texts import check_log_name, check_namespace
from duramen.units import KIB, SECOND
from duramen_writeproxy.intake.conditions import check_token
from duramen_writeproxy.logs.creation import Creator, Repetition
from duramen_writeproxy.logs.names import LOG_ID_FIELD, NameCache, read_meant

_CALL_TIMEOUT_US: Final = APPEND_TIMEOUT_US + SECOND


class FenceRoute:
    """Serves `POST /v1/namespaces/{ns}/logs/{log}:fence`."""

    def __init__(self, names: NameCache, calls: Creator) -> None:
        self._names = names
        self._calls = calls

    async def on_fence(self, request: Request) -> Response:
        """Set the fencing token; an empty one is none. `expected`: only in place of this one.

        Raises:
            DuramenError: the owner's refusal; `append_uncertain`: the token may be set or not;
                `condition_failed`: the name stands for another log than the query's `log_id`.
        """
        namespace = check_namespace(request.path_params["ns"])
        log = check_log_name(request.path_params["log"])
        meant = read_meant(read_query(request, (LOG_ID_FIELD,)))
        headers = dict(request.scope["headers"])
        body = await read_body(
            request, KIB, announced=announced_bytes(headers.get(b"content-length"))
        )
        document = parse_object(body)
        for name in document:
            if name not in ("token", "expected"):
                raise unknown_field(name)
        token, expected = check_token(document.get("token"), "token"), document.get("expected")
        if expected is not None:
            expected = check_token(expected, "expected")
        log_id = await self._names.find_meant(namespace, log, meant)
        answer = await ask_token(self._calls, f"{namespace}/{log}", log_id, token, expected)
        return respond(read_answer(FencedAnswer, {**answer, "token": token}))


async def ask_token(
    calls: Creator, key: str, log_id: LogId, token: str, expected: str | None
) -> dict[str, Any]:
    """Have the log's owner set the token; gives its answer, with the log's `tail`.

    Raises:
        DuramenError: the owner's refusal; `append_uncertain`: the token may be set or not.
    """
    message: dict[str, Any] = {"op": "fence", "token": token, "log_id": str(log_id)}
    if expected is not None:
        message["expected"] = expected
    return await calls.ask(
        key,
        message,
        ("tail",),
        log_id=log_id,
        repetition=Repetition.TOLD if expected is None else Repetition.NEVER,
        timeout_us=_CALL_TIMEOUT_US,
    )
