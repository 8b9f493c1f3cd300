"""Asynchronous client of the public REST interface, for bulk work: binary batches up, frames down.

One object speaks to one proxy (write or read), over kept-alive HTTP/1.1, so that any ingress does.
Refusals arrive as `DuramenError` built from the problem+json answer. A request that got no answer
raises `UnreachableError` (nothing was processed) or, for reads, `NoAnswerError`; an append without
an answer is a `DuramenError` with `append_uncertain`. Nothing is retried here (see `client.retry`)
but a call that was refused for who made it, once, where there is another token to show.

Called by the SDK (`client.sdk`), the command line and the local cluster's demo. Source:
docs/protocol/rest.md, docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import quote, urlencode

import orjson
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.request import RequestBuilder
from pyreqwest.response import Response

from duramen.client.credentials.connections import Connections
from duramen.client.credentials.credential import NOTHING_SHOWN, Credential
from duramen.errors import ERRORS, PROBLEM_FACTS, DuramenError
from duramen.limits import FRAME_BYTES_MAX
from duramen.runtime.http_client import (
    DeniedError,
    KeptCancellation,
    NoAnswerError,
    PeerError,
    UnreachableError,
    translate,
)
from duramen.units import MIB
from duramen.wire.frame import IDENTITY_HEADER
from duramen.wire.read_answers import (
    MEDIA_TYPE,
    MOVED_HEADER,
    NEXT_HEADER,
    START_HEADER,
    TAIL_HEADER,
    PlacedBatch,
    parse_batches,
)

if TYPE_CHECKING:
    from duramen.client.credentials.receiver_header import ReceiverHeader

_Send = Callable[[tuple[str, str] | None], Awaitable[Response]]

_CONNECT_TIMEOUT: Final = timedelta(seconds=2)
_ASKS_ELSEWHERE: Final = "?redirect=owner_region"
_KEEP_ALIVE: Final = timedelta(seconds=5)
"""HTTP/2: a proxy that is frozen or cut off is noticed by pings."""

ENDED_HEADER: Final = "Duramen-Ended"
HOME_HEADER: Final = "Duramen-Home"
"""Where an answer names the url of the proxy that serves this log best."""

_UNAUTHENTICATED: Final = 401
_FORBIDDEN: Final = 403
_TIMEOUT_S_MIN: Final = 0.001

_ANSWER_TIMEOUT_S: Final = 30.0
"""Three times what a server takes at most for an append (limits.APPEND_TIMEOUT_US)."""


class Appended(NamedTuple):
    """Where an acknowledged batch stands: sequence numbers `start` up to, not including, `end`.

    Both are None where they are not known yet (`early_append`), or not any more (a duplicate whose
    place is forgotten).
    """

    start: int | None
    end: int | None
    dlsn: str = ""
    """Where the first record stands, as text."""
    is_duplicate: bool = False
    """It was in the log already; so old that its place is forgotten where `dlsn` is empty."""


class BulkReadAnswer(NamedTuple):
    """One answer to a bulk read: whole record batches, not opened yet, and where to go on."""

    batches: list[PlacedBatch]
    next_position: str
    is_at_tail: bool
    first_seq_num: int | None = None
    """Of what was asked for first: the first batch may begin before it, or a hole lies between."""
    moved_to: int | None = None
    """The position was truncated: the oldest record that is left has this sequence number."""
    is_ended: bool = False
    """The log has ended, and this answer reached its end."""
    home: str | None = None
    """The url of the proxy that serves this log best, where the answer names one."""


class SentElsewhereError(Exception):
    """Nothing was appended: a proxy in the region of the log's owner is to be asked.

    Args:
        url: of that proxy.
    """

    def __init__(self, url: str) -> None:
        super().__init__(f"the log's owner is reached through {url}")
        self.url = url


class CallObserver(Protocol):
    """Who wants to know how calls go; `on_answered` or `on_failed` follows each `on_asked`."""

    def on_asked(self, grace_s: float) -> None:
        """A call begins, whose answer may be late by `grace_s` because it was asked to wait."""

    def on_answered(self) -> None:
        """There is a good answer, or who asked has gone."""

    def on_failed(self, error: Exception) -> None:
        """Refused, or no usable answer."""


class RestClient:
    """Calls to the public port of one proxy."""

    def __init__(
        self,
        url: str,
        *,
        has_http2: bool = False,
        timeout_s: float = _ANSWER_TIMEOUT_S,
        observer: CallObserver | None = None,
        credential: Credential = NOTHING_SHOWN,
    ) -> None:
        """Make a client; it connects with the first call.

        Args:
            has_http2: one HTTP/2 connection (in cleartext with prior knowledge), which keeps the
                order of what is sent; otherwise HTTP/1.1, which passes every ingress.
            credential: what is shown to the proxy, and what of it is trusted.

        Raises:
            DuramenError: `invalid_argument`: a token would travel in plain text;
                `unauthenticated`: the credential's files cannot be used.
        """
        self.url = url.rstrip("/")
        self._observer = observer
        self._timeout_s = timeout_s
        self._credential = credential
        credential.check_url(self.url)
        # Over plain connections a certificate is not shown, so that its folder need not be there.
        of_tls = credential if self.url.startswith("https://") else NOTHING_SHOWN
        self._connections = Connections(lambda: self._make_builder(has_http2), of_tls)

    def _make_builder(self, has_http2: bool) -> ClientBuilder:
        builder = (
            ClientBuilder()
            .connect_timeout(_CONNECT_TIMEOUT)
            .no_proxy()
            .follow_redirects(enable=False)
            # Plain answers: coding them costs a proxy more than it saves on a cluster's network.
            .gzip(enable=False)
            .zstd(enable=False)
            .brotli(enable=False)
            .deflate(enable=False)
        )
        if has_http2:
            return _speak_http2(builder, is_clear=self.url.startswith("http://"))
        return builder

    async def close(self) -> None:
        """Close every connection."""
        await self._connections.close()

    async def ensure_namespace(self, namespace: str, config: Mapping[str, Any]) -> bool:
        """Create a namespace if it is missing; True if this call created it.

        Raises:
            DuramenError: refused, `log_exists_with_other_config` among others.
            PeerError: no usable answer; safe to repeat.
        """
        path = f"/v1/namespaces/{quote(namespace)}"
        return (await self._send("PUT", path, body=orjson.dumps(config))).status == 201

    async def reconfigure_namespace(
        self, namespace: str, patch: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Change the fields of the namespace's configuration that `patch` names.

        Raises:
            DuramenError: refused. PeerError: no usable answer; safe to repeat.
        """
        return await self._send_json("PATCH", f"/v1/namespaces/{quote(namespace)}", patch)

    async def delete_namespace(self, namespace: str) -> dict[str, Any]:
        """Delete a namespace without logs; `changed` is false if it was not there.

        Raises:
            DuramenError: refused, `namespace_not_empty` among others.
            PeerError: no usable answer; safe to repeat.
        """
        return await self.delete_json(f"/v1/namespaces/{quote(namespace)}")

    async def ensure_log(self, namespace: str, log: str, config: Mapping[str, Any]) -> bool:
        """Create a log if it is missing; True if this call created it.

        Raises:
            As `ensure_namespace`.
        """
        response = await self._send("PUT", _log_path(namespace, log), body=orjson.dumps(config))
        return response.status == 201

    async def get_json(
        self, path: str, query: Mapping[str, str] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """GET a JSON object.

        Args:
            timeout_s: None: that of the client.

        Raises:
            DuramenError: refused.
            PeerError: no usable answer; safe to repeat.
        """
        text = f"{path}?{urlencode(query)}" if query else path
        response = await self._send("GET", text, timeout_s=timeout_s)
        return _parse_object(await _read_body(response), self.url)

    async def post_json(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """POST a JSON object, give the answer's.

        Raises:
            DuramenError: refused.
            UnreachableError: nothing was processed.
            PeerError: no usable answer; it may have been done.
        """
        response = await self._send("POST", path, body=orjson.dumps(body), timeout_s=timeout_s)
        return _parse_object(await _read_body(response), self.url)

    async def change_json(
        self, method: Literal["PUT", "PATCH"], path: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """PUT or PATCH a JSON object, give the answer's. Raises as `post_json`; safe to repeat."""
        response = await self._send(method, path, body=orjson.dumps(body))
        return _parse_object(await _read_body(response), self.url)

    async def show_log(self, namespace: str, log: str) -> dict[str, Any]:
        """The log with its configuration. Raises as `get_json`."""
        return await self.get_json(_log_path(namespace, log))

    async def truncate_log(self, namespace: str, log: str, to: str) -> dict[str, Any]:
        """Truncate everything before a position; the answer's `head` is what is left first.

        Raises:
            DuramenError: refused, `beyond_tail` among others.
            PeerError: no usable answer; safe to repeat.
        """
        path = _log_path(namespace, log) + ":truncate"
        return await self._send_json("POST", path, {"to": to})

    async def end_log(self, namespace: str, log: str) -> dict[str, Any]:
        """End the stream: appends are refused from now on. Raises as `truncate_log`."""
        return await self._send_json("POST", _log_path(namespace, log) + ":end", {})

    async def delete_log(self, namespace: str, log: str) -> dict[str, Any]:
        """Delete the log; it can be had back until `undelete_until`. Raises as `truncate_log`."""
        return await self._send_json("DELETE", _log_path(namespace, log), None)

    async def undelete_log(self, namespace: str, log: str) -> dict[str, Any]:
        """Have a deleted log back. Raises as `truncate_log`."""
        return await self._send_json("POST", _log_path(namespace, log) + ":undelete", {})

    async def delete_json(self, path: str) -> dict[str, Any]:
        """DELETE, give the answer's JSON object. Raises as `truncate_log`."""
        return await self._send_json("DELETE", path, None)

    async def fence_log(
        self, namespace: str, log: str, token: str, *, expected: str | None = None
    ) -> dict[str, Any]:
        """Set the log's fencing token, with `expected` only in place of that one.

        Raises:
            DuramenError: refused, `fencing_token_mismatch` among others; with `uncertain` set
                (`append_uncertain` where no usable answer came) it may have been done, or be done
                later.
            UnreachableError: nothing was processed.
        """
        document = {"token": token} if expected is None else {"token": token, "expected": expected}
        try:
            return await self._send_json("POST", _log_path(namespace, log) + ":fence", document)
        except UnreachableError:
            raise
        except PeerError as error:
            detail = f"the token may or may not be set: {error}"
            raise DuramenError("append_uncertain", detail) from error

    async def show_namespace(self, namespace: str) -> dict[str, Any]:
        """The namespace with its configuration. Raises as `get_json`."""
        return await self.get_json(f"/v1/namespaces/{quote(namespace)}")

    async def list_namespaces(self, *, prefix: str = "", start_after: str = "") -> dict[str, Any]:
        """One page of the namespaces. Raises as `get_json`."""
        return await self.get_json("/v1/namespaces", _page_query(prefix, start_after))

    async def list_logs(
        self, namespace: str, *, prefix: str = "", start_after: str = ""
    ) -> dict[str, Any]:
        """One page of the logs of a namespace. Raises as `get_json`."""
        path = f"/v1/namespaces/{quote(namespace)}/logs"
        return await self.get_json(path, _page_query(prefix, start_after))

    async def list_segments(self, namespace: str, log: str) -> dict[str, Any]:
        """The log's segments. Raises as `get_json`."""
        return await self.get_json(f"{_log_path(namespace, log)}/segments")

    async def list_epochs(self, namespace: str, log: str) -> dict[str, Any]:
        """The history of the log's epochs. Raises as `get_json`."""
        return await self.get_json(f"{_log_path(namespace, log)}/epochs")

    async def reconfigure_log(
        self, namespace: str, log: str, patch: Mapping[str, Any], *, version: int | None = None
    ) -> dict[str, Any]:
        """Change the fields of the log's configuration that `patch` names. Raises as `get_json`.

        Args:
            version: refuse (`config_conflict`) unless the stored configuration has this one.
        """
        path = _log_path(namespace, log)
        if version is not None:
            path = f"{path}?config_version={version}"
        response = await self._send("PATCH", path, body=orjson.dumps(patch))
        return _parse_object(await _read_body(response), self.url)

    async def roll_log(self, namespace: str, log: str) -> int | None:
        """Have the log's open segment closed soon; gives its epoch, None if none is open.

        Raises:
            DuramenError: refused.
            PeerError: no usable answer; safe to repeat.
        """
        response = await self._send("POST", f"{_log_path(namespace, log)}:roll")
        epoch = _parse_object(await _read_body(response), self.url).get("epoch")
        return epoch if isinstance(epoch, int) else None

    async def suspend_rolling(self, *, is_suspended: bool) -> dict[str, Any]:
        """Suspend or resume rolling and ensemble changes (admin port). Raises as `get_json`."""
        body = orjson.dumps({"rolling_suspended": is_suspended})
        response = await self._send("PUT", "/v1/cluster/maintenance", body=body)
        return _parse_object(await _read_body(response), self.url)

    async def find_tail(self, namespace: str, log: str) -> int:
        """The sequence number that the next record will get. Raises as `get_json`."""
        return int((await self.show_tail(namespace, log))["seq_num"])

    async def show_tail(self, namespace: str, log: str, name: str = "tail") -> dict[str, Any]:
        """The mark behind the last record, linearizable. Raises as `get_json`.

        Args:
            name: which one of the answer; `acknowledged` may be behind the others.
        """
        answer = await self.get_json(f"{_log_path(namespace, log)}/records/tail")
        # A proxy of before knows one of them.
        mark = answer.get(name, answer.get("tail", answer))
        if not isinstance(mark, dict) or not isinstance(mark.get("seq_num"), int):
            raise PeerError(f"{self.url} names no tail: {answer!r}")
        return mark

    async def locate(self, namespace: str, log: str, position: str) -> int:
        """The sequence number that a read from a position begins with. Raises as `get_json`."""
        path = f"{_log_path(namespace, log)}/records"
        answer = await self.get_json(path, {"from": position, "count": "1"})
        try:
            records = answer["records"]
            return int(records[0]["seq_num"] if records else answer["next"].removeprefix("seq:"))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise PeerError(f"{self.url} does not say where {position} is") from error

    async def append(
        self,
        namespace: str,
        log: str,
        batch: bytes,
        *,
        conditions: Sequence[tuple[str, str]] = (),
        may_be_elsewhere: bool = False,
    ) -> Appended:
        """Append one encoded record batch, atomically.

        Args:
            conditions: the headers of docs/protocol/rest.md "Append" that say them.
            may_be_elsewhere: ask to be told where the log's owner is in another region.

        Raises:
            SentElsewhereError: it is (`may_be_elsewhere` only); nothing was appended.
            DuramenError: refused; with `uncertain` set the batch may or may not be stored.
            UnreachableError: no connection was made; safe to repeat.
        """
        path = f"{_log_path(namespace, log)}/records"
        if may_be_elsewhere:
            path += _ASKS_ELSEWHERE
        try:
            response = await self._send(
                "POST", path, body=batch, media=MEDIA_TYPE, headers=conditions
            )
            return parse_appended(_parse_object(await _read_body(response), self.url))
        except UnreachableError:
            raise
        except (PeerError, KeyError, TypeError, ValueError) as error:
            detail = f"no usable answer from {self.url}: {error}"
            raise DuramenError("append_uncertain", detail) from error

    async def begin_stream(
        self,
        log: tuple[str, str],
        pieces: AsyncIterator[bytes],
        *,
        media: str,
        group_ms: int,
    ) -> RequestBuilder:
        """The request of an append session, whose body is made while it is answered.

        It shows who calls; where that is refused, nothing is tried again.
        """
        path = f"{_log_path(*log)}/records:stream"
        builder = self._connections.find().post(self.url + path).header("content-type", media)
        builder = builder.header("duramen-timeout", f"{group_ms}ms")
        credential = self._credential
        if credential.header is not None:
            builder = builder.header(IDENTITY_HEADER, credential.header.give())
        elif credential.token is not None:
            builder = builder.header(*_bear(await credential.token.read()))
        return builder.body_stream(pieces)

    async def read(
        self,
        namespace: str,
        log: str,
        position: str,
        *,
        most_bytes: int,
        wait_ms: int = 0,
    ) -> BulkReadAnswer:
        """Read records from a position on, as whole batches: the caller cuts at both ends.

        Args:
            position: in the grammar of docs/protocol/rest.md "Records".
            most_bytes: about as much as the answer should carry.
            wait_ms: how long to wait for records at the tail, 0 to 60,000.

        Raises:
            DuramenError: refused.
            PeerError: no usable answer; safe to repeat.
        """
        query = {"from": position, "bytes": str(most_bytes)}
        if wait_ms:
            query["wait"] = f"{wait_ms}ms"
        path = f"{_log_path(namespace, log)}/records?{urlencode(query)}"
        response = await self._send(
            "GET", path, accept=MEDIA_TYPE, timeout_s=self._timeout_s + wait_ms / 1000,
            grace_s=wait_ms / 1000,
        )  # fmt: skip
        body = await _read_body(response)
        next_position = response.get_header(NEXT_HEADER)
        if next_position is None:
            raise PeerError(f"{self.url} does not say where to go on")
        try:
            batches = parse_batches(body)
            first = _parse_seq_num(response.get_header(START_HEADER))
            moved_to = _parse_seq_num(response.get_header(MOVED_HEADER))
            _parse_seq_num(next_position)  # who goes on reckons with it
        except ValueError as error:
            raise PeerError(f"{self.url} answered with a damaged frame: {error}") from error
        is_at_tail = response.get_header(TAIL_HEADER) is not None
        is_ended = response.get_header(ENDED_HEADER) is not None
        home = response.get_header(HOME_HEADER)
        return BulkReadAnswer(batches, next_position, is_at_tail, first, moved_to, is_ended, home)

    async def _send_json(
        self, method: str, path: str, document: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        body = None if document is None else orjson.dumps(document)
        return _parse_object(await _read_body(await self._send(method, path, body=body)), self.url)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        media: str = "application/json",
        accept: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
        timeout_s: float | None = None,
        grace_s: float = 0.0,
    ) -> Response:
        asking = self._ask(method, path, body, media, accept, headers, timeout_s)
        observer = self._observer
        if observer is None:
            return await asking
        observer.on_asked(grace_s)
        try:
            response = await asking
        except (DuramenError, PeerError) as error:
            observer.on_failed(error)
            raise
        except BaseException:
            observer.on_answered()
            raise
        observer.on_answered()
        return response

    async def _ask(  # noqa: PLR0917 - those of `_send`, in its order
        self,
        method: str,
        path: str,
        body: bytes | None,
        media: str,
        accept: str,
        headers: Sequence[tuple[str, str]],
        timeout_s: float | None,
    ) -> Response:
        ends_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

        async def send(shown: tuple[str, str] | None) -> Response:
            builder = self._connections.find().request(method, self.url + path)
            builder = builder.header("accept", accept)
            for name, value in headers:
                builder = builder.header(name, value)
            if shown is not None:
                builder = builder.header(*shown)
            if body is not None:
                builder = builder.header("content-type", media).body_bytes(body)
            left = timedelta(seconds=max(ends_s - time.monotonic(), _TIMEOUT_S_MIN))
            with KeptCancellation():
                return await builder.timeout(left).build().send()

        try:
            response = await self._show(send)
        except PyreqwestError as error:
            fault = translate(error, self.url)
            if isinstance(fault, DeniedError):
                detail = f"{fault}: {self._credential.explain_refusal()}"
                raise DuramenError("unauthenticated", detail) from error
            raise fault from error
        if response.status >= 300:
            answer = await _read_body(response)
            if response.status == 307 and path.endswith(_ASKS_ELSEWHERE):
                raise _parse_elsewhere(response.get_header("location"), path, self.url)
            must_tell = _must_tell_fate(method, path)
            problem = parse_problem(response.status, answer, must_tell=must_tell)
            if problem.code == "unauthenticated":
                # Of who refuses nobody learns more, so that here what was shown is said.
                raise DuramenError(problem.code, self._credential.explain_refusal())
            raise problem
        return response

    async def _show(self, send: _Send) -> Response:
        """The answer to a call that shows the token; once more where there is another one."""
        if self._credential.header is not None:
            return await _name(send, self._credential.header)
        source = self._credential.token
        if source is None:
            return await send(None)
        token = await source.read()
        response = await send(_bear(token))
        if response.status != _UNAUTHENTICATED:
            return response
        other = await source.renew(token)
        return response if other is None else await send(_bear(other))


async def _name(send: _Send, header: ReceiverHeader) -> Response:
    """The answer to a call by an identity's header; once more by the receiver's clock."""
    named = header.give()
    response = await send((IDENTITY_HEADER, named))
    if response.status != _UNAUTHENTICATED:
        return response
    header.reconsider(named, response.get_header("date"))
    return await send((IDENTITY_HEADER, header.give()))


def _bear(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


def _must_tell_fate(method: str, path: str) -> bool:
    """Whether it matters to the caller that the call may have been done: another time may be one
    too many."""
    path, _, query = path.partition("?")
    if method == "POST":
        return path.endswith(("/records", ":fence"))
    return method == "PATCH" and "config_version=" in query


def _parse_elsewhere(location: str | None, path: str, url: str) -> SentElsewhereError | PeerError:
    """Where an append is sent: the same call, without asking a second time."""
    path = path.removesuffix(_ASKS_ELSEWHERE)
    if location is None or not location.endswith(path):
        return PeerError(f"{url} sends an append to {location!r}")
    return SentElsewhereError(location.removesuffix(path))


def parse_problem(status: int, body: bytes, *, must_tell: bool) -> DuramenError:
    """The error that a refusal stands for; one without a known code is `internal`.

    Args:
        must_tell: a server error that does not say how certain it is leaves the call's fate open.
    """
    try:
        problem = orjson.loads(body)
    except orjson.JSONDecodeError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    code = problem.get("code")
    detail = problem.get("detail")
    if not isinstance(detail, str):
        detail = f"HTTP {status} {body[:200].decode(errors='replace')!r}"
    uncertain = problem.get("uncertain")
    if not isinstance(uncertain, bool):
        uncertain = must_tell and status >= 500
    retry_after_ms = problem.get("retry_after_ms")
    if not isinstance(code, str) or code not in ERRORS:
        # An ingress may ask who calls before a proxy does.
        code = {_UNAUTHENTICATED: "unauthenticated", _FORBIDDEN: "forbidden"}.get(status)
        return DuramenError(code or "internal", detail, uncertain=uncertain)
    return DuramenError(
        code,
        detail,
        field=problem["field"] if isinstance(problem.get("field"), str) else None,
        retry_after_ms=retry_after_ms if isinstance(retry_after_ms, int) else None,
        uncertain=uncertain,
        facts={name: problem[name] for name in PROBLEM_FACTS if name in problem},
    )


def _speak_http2(builder: ClientBuilder, *, is_clear: bool) -> ClientBuilder:
    builder = builder.http2_prior_knowledge() if is_clear else builder.http2(enable=True)
    return (
        builder.http2_initial_stream_window_size(FRAME_BYTES_MAX)
        .http2_initial_connection_window_size(4 * FRAME_BYTES_MAX)
        .http2_max_frame_size(1 * MIB)
        .http2_keep_alive_interval(_KEEP_ALIVE)
        .http2_keep_alive_timeout(_KEEP_ALIVE)
    )


def parse_appended(answer: dict[str, Any]) -> Appended:
    """The places of an append; KeyError, TypeError or ValueError where the answer has none."""
    start, end = answer["start"], answer["end"]
    is_duplicate = answer.get("duplicate") is True
    if start is None and is_duplicate:
        return Appended(None, None, "", is_duplicate)
    if start["seq_num"] is None and end is None:
        return Appended(None, None, str(start["dlsn"]), is_duplicate)
    return Appended(int(start["seq_num"]), int(end["seq_num"]), str(start["dlsn"]), is_duplicate)


def _page_query(prefix: str, start_after: str) -> dict[str, str]:
    query = {"prefix": prefix, "start_after": start_after}
    return {name: value for name, value in query.items() if value}


def _parse_seq_num(text: str | None) -> int | None:
    """N of `seq:N`."""
    return None if text is None else int(text.removeprefix("seq:"))


async def _read_body(response: Response) -> bytes:
    try:
        with KeptCancellation():
            return bytes(await response.bytes())
    except PyreqwestError as error:
        raise NoAnswerError(f"the answer broke off: {error.message}") from error


def _parse_object(body: bytes, url: str) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except json.JSONDecodeError as error:
        raise PeerError(f"{url} answered with something else than JSON") from error
    if not isinstance(answer, dict):
        raise PeerError(f"{url} answered with something else than a JSON object")
    return answer


def _log_path(namespace: str, log: str) -> str:
    return f"/v1/namespaces/{quote(namespace)}/logs/{quote(log)}"
