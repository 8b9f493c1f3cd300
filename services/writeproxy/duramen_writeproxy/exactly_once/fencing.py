"""`POST …/logs/{log}:fence`: sets the log's fencing token at the sequencer that owns the log.

Setting a token twice is the same as once, so an uncertain outcome is tried again; with `expected`
it is not the same, and the repetition would be refused by the first one's success.

Called by `rest`. Source: 03-api "REST v1", 08-interfaces.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import orjson
from fastapi import Request, Response

from duramen.errors import DuramenError
from duramen.limits import APPEND_TIMEOUT_US
from duramen.runtime.http_client import NoAnswerError, PeerClient, PeerError, UnreachableError
from duramen.runtime.rest import announced_bytes, parse_object, read_body, read_query, unknown_field
from duramen.texts import check_log_name, check_namespace
from duramen.units import KIB, SECOND
from duramen_writeproxy.creation import read_problem
from duramen_writeproxy.exactly_once.conditions import check_token
from duramen_writeproxy.lanes import uncertain
from duramen_writeproxy.names import NameCache
from duramen_writeproxy.routing import Router, Target

_CALL_TIMEOUT_US: Final = APPEND_TIMEOUT_US + SECOND
_PAUSE_S: Final = 0.2
_RETRIED: Final = ("log_unavailable", "server_draining")


class FenceRoute:
    """Serves `POST /v1/namespaces/{ns}/logs/{log}:fence`."""

    def __init__(self, names: NameCache, router: Router, peers: PeerClient) -> None:
        self._names = names
        self._router = router
        self._peers = peers

    async def on_fence(self, request: Request) -> Response:
        """Set the fencing token; an empty one is none. `expected`: only in place of this one."""
        namespace = check_namespace(request.path_params["ns"])
        log = check_log_name(request.path_params["log"])
        read_query(request, ())
        headers = dict(request.scope["headers"])
        body = await read_body(
            request, KIB, announced=announced_bytes(headers.get(b"content-length"))
        )
        document = parse_object(body)
        for name in document:
            if name not in ("token", "expected"):
                raise unknown_field(name)
        message = {"op": "fence", "token": check_token(document.get("token"), "token")}
        if document.get("expected") is not None:
            message["expected"] = check_token(document["expected"], "expected")
        log_id = await self._names.find(namespace, log)
        answer = await self._ask(f"{namespace}/{log}", log_id, {**message, "log_id": str(log_id)})
        return Response(
            orjson.dumps({"token": message["token"], "tail": answer["tail"]}),
            media_type="application/json",
        )

    async def _ask(self, key: str, log_id: Any, message: dict[str, Any]) -> dict[str, Any]:
        """Ask the owner, whoever it is by now.

        Raises:
            DuramenError: its refusal; `append_uncertain`: the token may be set or not.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + APPEND_TIMEOUT_US / SECOND
        avoid: set[str] = set()
        last = DuramenError("log_unavailable", "no sequencer can be reached; nothing was changed")
        was_uncertain = False
        while loop.time() < deadline:
            target = self._router.pick(key, log_id, avoid)
            if target is None:
                avoid.clear()
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                answer = await self._ask_one(target, message)
                if "owner" not in answer:
                    self._router.learn(log_id, target)
                    return answer
                avoid.add(target.url)
                self._router.learn(log_id, Target(answer["owner"], answer["url"]))
            except UnreachableError:
                avoid.add(target.url)
                self._router.forget(log_id, target)
            except DuramenError as error:
                if error.uncertain and "expected" not in message:
                    was_uncertain = True
                elif error.code not in _RETRIED:
                    raise
                last = error
                await asyncio.sleep(_PAUSE_S)
        raise uncertain("the token was not set in time") if was_uncertain else last

    async def _ask_one(self, target: Target, message: dict[str, Any]) -> dict[str, Any]:
        try:
            status, data = await self._peers.request_json(
                "POST", f"{target.url}/s/control", orjson.dumps(message), _CALL_TIMEOUT_US
            )
            document = orjson.loads(data)
        except UnreachableError:
            raise
        except (NoAnswerError, PeerError, orjson.JSONDecodeError) as error:
            raise uncertain(f"the sequencer gave no answer ({error})") from error
        if status != 200:
            raise read_problem(document) or uncertain("the sequencer's answer is not understood")
        is_known = "tail" in document or {"owner", "url"} <= document.keys()
        if not is_known:
            raise uncertain("the sequencer's answer is not understood")
        return dict(document)
