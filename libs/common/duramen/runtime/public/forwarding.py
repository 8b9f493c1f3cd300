"""Either proxy answers every public call: what is the other kind's is sent on to one of them.

The nearest proxy that is registered is asked (`peers`), the next one where the connection is
refused. Bodies pass through in both directions as they come, one piece at a time; a client that
goes ends the call. A call is forwarded once: it is marked, and a marked one that would have to be
forwarded is no path. What an unanswered call means stands in the table of calls (`CallFate`): never
is one sent twice that might be done twice. The client's credential goes no further than here: who
it is, the peer reads in a header of this process's own.

Called by `serving`, owned by both proxies. Source: docs/protocol/rest.md "Either proxy".
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from fastapi import Request, Response
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.request import StreamRequest
from pyreqwest.response import Response as PeerResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from duramen.core.reading.replica_order import Place
from duramen.core.rights.grants import check_token_id
from duramen.errors import DuramenError
from duramen.runtime.admission.callers import AdmittedCall, call_of
from duramen.runtime.admission.identification import name_client
from duramen.runtime.http_client import (
    KeptCancellation,
    NoAnswerError,
    PeerError,
    UnreachableError,
    close_client,
    read_date_s,
    translate,
)
from duramen.runtime.identity.header import NamedClient
from duramen.runtime.identity.names import Identity, Role
from duramen.runtime.public.calls import PROBLEM, CallFate, PublicCall
from duramen.runtime.public.client_side import ClientSide
from duramen.runtime.public.peers import PeerOrder
from duramen.runtime.registry import Roster
from duramen.runtime.rest import announced_bytes, read_body
from duramen.runtime.role import ServiceOptions
from duramen.runtime.security.process_security import ProcessSecurity, learn_role
from duramen.runtime.security.public_certificate import PublicCertificate
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.runtime.turning.addresses import SECURE_SCHEME
from duramen.texts import check_log_name, check_namespace
from duramen.units import KIB, MIB
from duramen.wire.edge.gate import is_here
from duramen.wire.frame import IDENTITY_HEADER

_LOG = logging.getLogger(__name__)

FORWARDED_HEADER: Final = "duramen-forwarded"
"""Names the proxy that forwarded the call; a client may send it to have its call not forwarded."""

_CONNECTION_COUNT: Final = 4
CALL_COUNT_MAX: Final = 4_000
"""Calls under way: what four connections with 1,024 streams each carry to a single peer."""

_SMALL_BYTES: Final = 64 * KIB
"""Bodies of known length up to here are held whole: they can be sent to a second peer, and answers
are sent on only when they are complete."""

_WINDOW_BYTES: Final = 1 * MIB
"""What a peer may send before we have taken it, for each call."""

_STOP_WAIT_S: Final = 5.0
_PEER_ENDS_WITHIN_S: Final = 2.0
"""What lasts and is no longer allowed is ended by the peer that does the work, else here."""

_CONNECT_TIMEOUT: Final = timedelta(seconds=1)
_KEEP_ALIVE: Final = timedelta(seconds=2)
_RETRY_AFTER_MS: Final = 500
_UNAUTHENTICATED: Final = 401

_HOP_BY_HOP: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer", "transfer-encoding", "upgrade", "host", "expect", FORWARDED_HEADER,
    "authorization", IDENTITY_HEADER,
})  # fmt: skip
"""Headers that speak of one connection, not of the call (RFC 9110, 7.6.1); and credentials."""

_OF_PAGE: Final = frozenset({"origin", "sec-fetch-site"})
"""Of the page that calls, which the proxy that it called has judged: no peer is asked again."""

_QUERY_SAFE: Final = "!$%&'()*+,-./:;=?@_~[]|"


class Forwarder:
    """Sends calls on to proxies of the other kind.

    Args:
        parent: where they are registered.
        node_id: of this proxy.
        is_draining: whether this process is stopping.
        security: by which clients are named to peers; None: nobody is asked who it is.
        certificate: whose anchors are trusted beside the cluster's; None: those alone.
    """

    def __init__(
        self,
        store: MetadataStore,
        parent: str,
        here: Place,
        node_id: str,
        is_draining: Callable[[], bool],
        *,
        security: ProcessSecurity | None = None,
        certificate: PublicCertificate | None = None,
    ) -> None:
        self._role = Role.READPROXY if parent.endswith("readproxies") else Role.WRITEPROXY
        self._kind = "read proxy" if self._role is Role.READPROXY else "write proxy"
        self._roster = Roster(store, parent, learn=learn_role(security, self._role))
        self._security = security
        self._order = PeerOrder(here)
        self._node_id = node_id
        self._is_draining = is_draining
        self._certificate = certificate
        self._clients = self._make_clients()
        self._turns = itertools.cycle(range(_CONNECTION_COUNT))
        self._closing: set[asyncio.Task[None]] = set()
        for changing in (security, certificate):
            if changing is not None:
                changing.on_change(self._renew)
        self._open: set[_Exchange] = set()
        self._counts = dict.fromkeys(
            (
                "forwarded",
                "unreachable",
                "unanswered",
                "refused",
                "not_known_there",
                "too_many_there",
            ),
            0,
        )

    async def start(self) -> None:
        """Follow who is registered."""
        await self._roster.start()

    async def stop(self) -> None:
        """End what is under way: reads at once, for others their peer has a few seconds."""
        for exchange in self._open:
            if exchange.call.fate is CallFate.NOTHING:
                exchange.end()
        if self._open:
            await asyncio.wait([e.is_over for e in self._open], timeout=_STOP_WAIT_S)
        for exchange in self._open:
            exchange.end()
        await self._roster.stop()
        await asyncio.gather(*self._closing, *map(close_client, self._clients))

    def statistics(self) -> dict[str, int]:
        """Calls under way and how calls went since the start."""
        return {
            "peers": len(self._roster.nodes),
            "open": len(self._open),
            "open_max": CALL_COUNT_MAX,
            **self._counts,
        }

    async def forward(self, request: Request, call: PublicCall) -> Response:
        """The answer of a peer.

        Raises:
            DuramenError: `server_draining`, `overloaded` when no peer can be reached or too much
                is under way: nothing happened. As `call.fate` says when a peer gave no answer.
            HTTPException: 404: the call was forwarded already.
        """
        if FORWARDED_HEADER in request.headers:
            raise HTTPException(404)
        if self._is_draining():
            raise DuramenError("server_draining", "this proxy is stopping: use another one")
        if len(self._open) >= CALL_COUNT_MAX:
            self._counts["refused"] += 1
            raise _overloaded("too many calls are being forwarded here")
        path, key = _respell(request, call)
        body = None if call.fate is CallFate.NOTHING else await _read_small(request)
        client = ClientSide(request.receive, has_body=body is None)
        admitted = call_of(request)
        exchange = _Exchange(call, client, admitted)
        self._open.add(exchange)
        exchange.is_over.add_done_callback(lambda _: self._open.discard(exchange))
        self._counts["forwarded"] += 1
        answer = None
        try:
            answer = await self._ask(exchange, request, path, key, body)
            return answer
        finally:
            if not isinstance(answer, _Relay):
                await exchange.close()

    async def _ask(
        self, exchange: _Exchange, request: Request, path: str, key: str, body: bytes | None
    ) -> Response:
        call, client = exchange.call, exchange.client
        headers = [*_pass_headers(_decode_headers(request)), (FORWARDED_HEADER, self._node_id)]
        if body is not None or call.fate is CallFate.NOTHING:
            headers = [pair for pair in headers if pair[0] != "content-length"]
        draining: Response | None = None
        urls = deque(self._list_urls(key))
        asked_again: set[str] = set()
        while urls:
            url = urls.popleft()
            naming = self._name_client(url, exchange.admitted)
            if naming is not None and naming.header is None:
                continue
            builder = self._clients[next(self._turns)].request(call.method, url + path)
            if call.fate is CallFate.NOTHING:
                builder = builder.body_stream(client.hold_open())
            elif body is not None:
                builder = builder.body_bytes(body)
            elif client.is_begun:
                break
            else:
                builder = builder.body_stream(client.pieces())
            for name, value in [*headers, *_list_named(naming)]:
                builder = builder.header(name, value)
            try:
                stream = builder.streamed_read_buffer_limit(0).build_streamed()
                answer = await exchange.begin(stream, url)
            except UnreachableError as error:
                self._note(url, "unreachable", error)
                continue
            except NoAnswerError as error:
                self._note(url, "unanswered", error)
                if call.fate is not CallFate.NOTHING:
                    raise _of_unknown_fate(call, self._kind) from error
                continue
            if naming is not None and answer.status_code == _UNAUTHENTICATED:
                self._counts["not_known_there"] += 1
                if exchange.admitted is not None:
                    exchange.admitted.check()
                self._reconsider(naming, answer)
                if url not in asked_again:
                    asked_again.add(url)
                    urls.appendleft(url)
                continue
            if _is_of_headers(answer):
                # Of this process's headers: not the client's to mend, and nothing happened.
                self._counts["too_many_there"] += 1
                continue
            if not _is_draining(answer):
                return answer
            draining = answer  # it promises that nothing happened
        if draining is not None:
            return draining
        raise _overloaded(f"no {self._kind} can be reached, or takes more headers now")

    @property
    def _is_turning(self) -> bool:
        return self._security is not None and self._security.tally is not None

    def _list_urls(self, key: str) -> list[str]:
        """Where to ask, first first; while security is turned on a peer may stand there twice."""
        nodes = self._roster.nodes
        if self._security is None:
            return self._order.rank(key, nodes, _now_s())
        return self._order.rank_ways(key, nodes, _now_s(), may_be_plain=self._is_turning)

    def _make_clients(self) -> list[Client]:
        anchors = () if self._certificate is None else self._certificate.list_anchors()
        return [make_peer_client(self._security, anchors) for _ in range(_CONNECTION_COUNT)]

    def _renew(self) -> None:
        """Trust what is trusted now; what is under way ends over the connections that it has."""
        former, self._clients = self._clients, self._make_clients()
        task = asyncio.create_task(_close_after(former, [one.is_over for one in self._open]))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _name_client(self, url: str, admitted: AdmittedCall | None) -> _Naming | None:
        """How a peer is told who the client is; None: nobody is asked who it is."""
        if self._security is None or admitted is None:
            return None
        receiver = self._security.peers.find(self._role, url)
        client = name_client(admitted.bearer)
        if receiver is None or not is_private(url):
            # Its name cannot be an identity's, or others on the way could read who is named.
            # While security is turned on the peer asks nobody, or only counts.
            return None if self._is_turning else _Naming(None, client, None)
        return _Naming(receiver, client, self._security.name_client_to(receiver, client))

    def _reconsider(self, naming: _Naming, answer: Response) -> None:
        """A peer does not know this process, or not the client yet: it was judged here just now."""
        assert self._security is not None, "somebody was named"
        assert naming.receiver is not None and naming.header is not None, "the peer was asked"
        their_s = read_date_s(answer.headers.get("date"))
        _LOG.warning("%s does not know whom it is asked by, or for", naming.receiver)
        their_time = None if their_s is None else str(their_s)
        self._security.reconsider(naming.receiver, naming.header, their_time, naming.client)

    def _note(self, url: str, what: str, error: PeerError) -> None:
        _LOG.info("%s: %s", what, error)
        self._counts[what] += 1
        self._order.note_failure(url, _now_s())


def make_forwarder(
    options: ServiceOptions,
    store: MetadataStore,
    parent: str,
    is_draining: Callable[[], bool],
    *,
    security: ProcessSecurity | None,
    certificate: PublicCertificate | None,
) -> Forwarder | None:
    """The forwarder that the options ask for; None: proxies are separated."""
    if not options.is_forwarding:
        return None
    here = Place(options.region, options.rack)
    return Forwarder(
        store, parent, here, options.node_id, is_draining,
        security=security, certificate=certificate,
    )  # fmt: skip


class _Naming(NamedTuple):
    """Who is asked for whom; no receiver and no header: that peer cannot be asked."""

    receiver: Identity | None
    client: NamedClient
    header: str | None

    def __repr__(self) -> str:
        return f"_Naming({self.client.principal} to {self.receiver})"


class _Exchange:
    """One call between a client and a peer.

    Args:
        admitted: as it was let in; what it may do no more ends it here, should the peer not.
    """

    def __init__(self, call: PublicCall, client: ClientSide, admitted: AdmittedCall | None) -> None:
        self.call = call
        self.client = client
        self.admitted = admitted
        self._ending: asyncio.TimerHandle | None = None
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stream: StreamRequest | None = None
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if admitted is not None:
            admitted.watch(self._end_soon)

    async def begin(self, stream: StreamRequest, url: str) -> Response:
        """Send the call; the answer, whose body may still be on its way.

        Raises:
            PeerError: there is none.
            DuramenError: what is wrong with the client's body; `server_draining`, or what an
                unknown fate is, while this process stops.
        """
        answer = await self._unless_ended(_begin(stream, url))
        if answer is None:
            return self._cut()
        if answer.status >= 500 and answer.get_header("content-type") != PROBLEM:
            await stream.__aexit__(None, None, None)
            raise NoAnswerError(f"{url}: HTTP {answer.status} that is none of ours")
        length = announced_bytes((answer.get_header("content-length") or "").encode())
        headers = _pass_headers(answer.headers.items())
        if length is None or length > _SMALL_BYTES:
            self._stream = stream
            return _Relay(self, answer, headers)
        body = await self._unless_ended(_finish(stream, answer, url))
        if body is None:
            return self._cut()
        return _make_answer(answer.status, headers, body)

    async def relay(self, answer: PeerResponse, send: Send) -> None:
        """Send the answer's body on, piece by piece, until it ends or somebody goes."""

        async def pass_on() -> bool:
            while (piece := await _next_piece(answer)) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return True

        if await self._unless_ended(pass_on()) is None and self._stopping.done():
            raise ConnectionAbortedError("this proxy stops")  # never a clean end

    def end(self) -> None:
        """This process stops."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    def _end_soon(self) -> None:
        """The peer judges as well, and can say in the stream why it ends."""
        loop = asyncio.get_running_loop()
        self._ending = loop.call_later(_PEER_ENDS_WITHIN_S, self.end)

    async def close(self) -> None:
        """Everything of this call ends."""
        if self.is_over.done():
            return
        if self._ending is not None:
            self._ending.cancel()
        if self.admitted is not None:
            self.admitted.watch(None)
        self.is_over.set_result(None)
        if self._stream is not None:
            await self._stream.__aexit__(None, None, None)
        await self.client.leave()

    async def _unless_ended(self, work: Any) -> Any:
        """The work's result, None if the client went or this process stops before."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait(
                {task, self.client.gone, self._stopping}, return_when=asyncio.FIRST_COMPLETED
            )
            return task.result() if task.done() else None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _cut(self) -> Response:
        if self.client.fault is not None:
            raise self.client.fault
        if self.client.gone.done():
            return Response(status_code=499)  # nobody reads it
        if self.admitted is not None and self.call.fate is CallFate.NOTHING:
            self.admitted.check()
        if self.call.fate is CallFate.NOTHING:
            raise DuramenError("server_draining", "this proxy is stopping: use another one")
        raise _of_unknown_fate(self.call, "other proxy")


class _Relay(Response):
    """An answer whose body is still on its way."""

    def __init__(
        self, exchange: _Exchange, answer: PeerResponse, headers: list[tuple[str, str]]
    ) -> None:
        super().__init__(status_code=answer.status)
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers]
        self._exchange = exchange
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; a body that breaks off breaks the connection to the client."""
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await self._exchange.relay(self._answer, send)
        finally:
            await self._exchange.close()


async def _close_after(clients: Sequence[Client], ends: Sequence[asyncio.Future[None]]) -> None:
    if ends:
        await asyncio.wait(ends)
    await asyncio.gather(*map(close_client, clients))


def make_peer_client(security: ProcessSecurity | None, anchors: Sequence[bytes]) -> Client:
    """A client of peers' public ports.

    Args:
        anchors: what is trusted beside the cluster's.
    """
    builder = (
        ClientBuilder()
        .http2_prior_knowledge()
        .http2_initial_stream_window_size(_WINDOW_BYTES)
        .http2_initial_connection_window_size(16 * _WINDOW_BYTES)
        .http2_keep_alive_interval(_KEEP_ALIVE)
        .http2_keep_alive_timeout(_KEEP_ALIVE)
        .connect_timeout(_CONNECT_TIMEOUT)
        .no_proxy()
        .gzip(enable=False)
        .brotli(enable=False)
        .zstd(enable=False)
        .deflate(enable=False)
        .follow_redirects(enable=False)
    )
    if security is None:
        return builder.build()
    for anchor in anchors:
        builder = builder.add_root_certificate_pem(anchor)
    return security.make_client(builder)


async def _begin(stream: StreamRequest, url: str) -> PeerResponse:
    try:
        with KeptCancellation():
            return await stream.__aenter__()
    except PyreqwestError as error:
        raise translate(error, url) from error


async def _finish(stream: StreamRequest, answer: PeerResponse, url: str) -> bytes:
    try:
        with KeptCancellation():
            return bytes(await answer.body_reader.bytes())
    except PyreqwestError as error:
        raise NoAnswerError(f"{url}: {error.message}") from error
    finally:
        await stream.__aexit__(None, None, None)


async def _next_piece(answer: PeerResponse) -> bytes | None:
    with KeptCancellation():
        piece = await answer.body_reader.read_chunk()
    return None if piece is None else bytes(piece)


async def _read_small(request: Request) -> bytes | None:
    """The body, if it is known to be small; None: it is to be passed on as it comes."""
    announced = announced_bytes(request.headers.get("content-length", "").encode())
    if announced is None or announced > _SMALL_BYTES:
        return None
    return await read_body(request, _SMALL_BYTES, announced=announced)


def _respell(request: Request, call: PublicCall) -> tuple[str, str]:
    """Path and query as they are sent on, and what the call is about.

    The path is made anew from names that were checked, so that no peer sees another call in it.

    Raises:
        DuramenError: `invalid_name`; `invalid_argument`: an id is none.
    """
    names = dict(request.path_params)
    if "namespace" in names:
        check_namespace(names["namespace"])
    if "log" in names:
        check_log_name(names["log"])
    if "id" in names:
        check_token_id(names["id"])
    path = call.path.format(**names)
    query = request.scope["query_string"]
    if query:
        path += "?" + quote(query, safe=_QUERY_SAFE)
    return path, "/".join(names.values())


def _decode_headers(request: Request) -> list[tuple[str, str]]:
    """The request's headers as the HTTP library takes them.

    Raises:
        DuramenError: `invalid_argument`: one is no UTF-8.
    """
    pairs = []
    for name, value in request.scope["headers"]:
        field = name.decode("latin-1")
        try:
            pairs.append((field, value.decode()))
        except UnicodeDecodeError:
            raise DuramenError("invalid_argument", "headers are UTF-8", field=field) from None
    return pairs


def _pass_headers(headers: Any) -> list[tuple[str, str]]:
    pairs = [(name.lower(), value) for name, value in headers]
    named = {
        option.strip().lower()
        for name, value in pairs
        if name == "connection"
        for option in value.split(",")
    }
    left_out = _HOP_BY_HOP | _OF_PAGE | named
    return [(n, v) for n, v in pairs if n not in left_out]


def is_private(url: str) -> bool:
    """Whether nobody on the way reads what is sent there."""
    return url.startswith(SECURE_SCHEME) or is_here(urlsplit(url).hostname or "")


def _list_named(naming: _Naming | None) -> list[tuple[str, str]]:
    if naming is None or naming.header is None:
        return []
    return [(IDENTITY_HEADER, naming.header)]


def _make_answer(status: int, headers: list[tuple[str, str]], body: bytes) -> Response:
    answer = Response(body, status_code=status)
    answer.raw_headers = [(name.encode(), value.encode()) for name, value in headers]
    return answer


def _is_draining(answer: Response) -> bool:
    return answer.status_code == 503 and _read_member(answer, "code") == "server_draining"


def _is_of_headers(answer: Response) -> bool:
    """Whether a peer verifies no more of this process's headers for now."""
    return answer.status_code == 429 and _read_member(answer, "field") == IDENTITY_HEADER


def _read_member(answer: Response, name: str) -> object:
    """What a small problem says; None: nothing of the kind."""
    if isinstance(answer, _Relay):
        return None
    try:
        return json.loads(bytes(answer.body))[name]
    except (ValueError, KeyError, TypeError):
        return None


def _of_unknown_fate(call: PublicCall, kind: str) -> DuramenError:
    if call.fate is CallFate.UNCERTAIN:
        return DuramenError("append_uncertain", f"it was sent on to a {kind}, which did not answer")
    return DuramenError(
        call.fate.value, f"it was sent on to a {kind}, which did not answer: ask again to find out"
    )


def _overloaded(detail: str) -> DuramenError:
    return DuramenError("overloaded", detail, retry_after_ms=_RETRY_AFTER_MS)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
