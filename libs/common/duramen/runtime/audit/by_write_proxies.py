"""Audit records of a process that cannot append by itself: through write proxies' public ports.

It calls in its own name, as any client with an identity does; write proxies make the log. One after
another is asked until one says that it is stored.

Called by read proxies as `AuditSink`. Source: docs/protocol/audit.md "Where records wait".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import orjson
from pyreqwest.client import Client
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.response import BaseResponse

from duramen.core.reading.replica_order import Place
from duramen.core.rights.system_namespace import AUDIT_LOG, SYSTEM_NAMESPACE
from duramen.errors import DuramenError, read_problem
from duramen.runtime.http_client import (
    KeptCancellation,
    NoAnswerError,
    PeerError,
    UnreachableError,
    close_client,
    read_date_s,
    translate,
)
from duramen.runtime.identity.names import Role
from duramen.runtime.public.calls import BATCH, RECORDS_PATH
from duramen.runtime.public.forwarding import is_private, make_peer_client
from duramen.runtime.public.peers import PeerOrder
from duramen.runtime.registry import Roster
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.security.public_certificate import PublicCertificate
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.frame import IDENTITY_HEADER
from duramen.wire.metadata_json import Paths
from duramen.wire.record_batch import encode_batch

_TIMEOUT: Final = timedelta(seconds=10)
_UNKNOWN: Final = 401


class AuditByWriteProxies:
    """Appends by whichever write proxy takes it.

    Args:
        certificate: whose anchors are trusted beside the cluster's; None: those alone.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        here: Place,
        security: ProcessSecurity,
        certificate: PublicCertificate | None,
    ) -> None:
        learn = security.peers.learn_role(Role.WRITEPROXY)
        self._roster = Roster(store, paths.write_proxies, learn=learn)
        self._order = PeerOrder(here)
        self._security = security
        self._certificate = certificate
        self._client, self._is_free = self._make_client(), asyncio.Lock()
        self._former: list[asyncio.Task[None]] = []
        for changing in (security, certificate):
            if changing is not None:
                changing.on_change(self._renew)

    async def start(self) -> None:
        """Follow which write proxies there are."""
        await self._roster.start()

    async def stop(self) -> None:
        """Call nobody any more."""
        await self._roster.stop()
        await asyncio.gather(*self._former, close_client(self._client))

    async def append(self, lines: Sequence[bytes]) -> None:
        """Store these records.

        Raises:
            DuramenError, PeerError: as the last write proxy that was asked says; it may be stored.
        """
        batch = encode_batch(lines, time.time_ns() // 1_000_000)
        last: DuramenError | PeerError = UnreachableError("there is no write proxy")
        now_s = asyncio.get_running_loop().time()
        # A write proxy that turns is asked by TLS: what is stored is never told in plain text.
        for url in self._order.rank_ways("audit", self._roster.nodes, now_s, may_be_plain=False):
            try:
                await self._append_by(url, batch)
            except (DuramenError, PeerError) as error:
                last = error
                if isinstance(error, PeerError):
                    self._order.note_failure(url, now_s)
            else:
                return
        raise last

    async def _append_by(self, url: str, batch: bytes) -> None:
        receiver = self._security.peers.find(Role.WRITEPROXY, url)
        if receiver is None or not is_private(url):
            raise UnreachableError(f"{url}: its name cannot be an identity's, or others could read")
        path = RECORDS_PATH.format(namespace=SYSTEM_NAMESPACE, log=AUDIT_LOG)
        header = self._security.name_to(receiver)
        async with self._is_free:
            builder = self._client.post(url + path).header("content-type", BATCH)
            builder = builder.header(IDENTITY_HEADER, header).body_bytes(batch).timeout(_TIMEOUT)
            try:
                with KeptCancellation():
                    answer = await builder.build().send()
                    body = bytes(await answer.bytes())
            except PyreqwestError as error:
                raise translate(error, url) from error
        if answer.status == _UNKNOWN:
            their_s = read_date_s(answer.get_header("date"))
            their_time = None if their_s is None else str(their_s)
            self._security.reconsider(receiver, header, their_time)
        if answer.status != 200:
            raise _read_refusal(answer, body, url)

    def _make_client(self) -> Client:
        anchors = () if self._certificate is None else self._certificate.list_anchors()
        return make_peer_client(self._security, anchors)

    def _renew(self) -> None:
        """Trust what is trusted now."""
        self._former = [one for one in self._former if not one.done()]
        self._former.append(asyncio.create_task(self._retire(self._client, self._is_free)))
        self._client, self._is_free = self._make_client(), asyncio.Lock()

    async def _retire(self, client: Client, is_free: asyncio.Lock) -> None:
        """Close a former client once its call is over."""
        async with is_free:
            await close_client(client)


def _read_refusal(answer: BaseResponse, body: bytes, url: str) -> DuramenError | PeerError:
    try:
        problem = orjson.loads(body)
    except orjson.JSONDecodeError:
        problem = None
    refusal = read_problem(problem) if isinstance(problem, dict) else None
    return refusal or NoAnswerError(f"{url}: HTTP {answer.status}")
