"""What the owner of a log says of its end, and of its LAC as soon as that moves.

Of a log that acknowledges out of order bookies tell up to where all is complete, and what they hold
beyond; which of that is acknowledged the log's owner alone knows. Of every log it knows the LAC
before bookies do. Its word about an epoch holds whatever became of it since: nobody else
acknowledges in that epoch. That the epoch is the newest is for who asks to know.

Called by `tail`, and by the feeds of a read proxy. Source: docs/protocol/reading.md "The tail",
docs/protocol/owner-lac.md, R29, docs/protocol/wire.md "Sequencer: POST /s/control".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from duramen.ids import NOTHING, EntryId, Epoch, LogId
from duramen.runtime.http_client import PeerClient, PeerError
from duramen.runtime.identity.names import Role
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.runtime.turning.addresses import SECURE_SCHEME, TLS_DATA_URL, find_tls_url
from duramen.units import MS, SECOND
from duramen.wire.frame import FrameError
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node
from duramen.wire.sequencer_calls import (
    LAC_PATH,
    LacWait,
    OpenLac,
    pack_lac_wait,
    parse_open_lac,
)

_TIMEOUT_US: Final = 1 * SECOND


class EpochEnd(NamedTuple):
    """An entry of an epoch, and what there is up to and with it."""

    entry: EntryId
    record_count: int
    timestamp_ms: int
    """The greatest; 0 if there are no records."""


class OwnerWord(NamedTuple):
    """The two ends of a log's open epoch."""

    epoch: Epoch
    released: EpochEnd
    """Everything up to it is complete."""
    acknowledged: EpochEnd
    """The highest entry that is acknowledged, or `released` where that is higher."""


AskOwner = Callable[[LogId], Awaitable[OwnerWord | None]]


class OwnerWords:
    """Asks owners; one instance per process.

    Args:
        client: of others, who close it.
        security: the client's.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        client: PeerClient,
        security: ProcessSecurity | None = None,
    ) -> None:
        self._security = security
        self._store = store
        self._paths = paths
        self._client = client

    async def ask(self, log_id: LogId) -> OwnerWord | None:
        """Its word, given after this call; None: nobody owns the log, or it does not say."""
        body = json.dumps({"op": "report_tail", "log_id": str(log_id)}).encode()
        url = await self.find(log_id)
        if url is None:
            return None
        try:
            status, answer = await self._client.request_json(
                "POST", f"{url}/s/control", body, _TIMEOUT_US
            )
            return _read_word(json.loads(answer)) if status == 200 else None
        except (PeerError, ValueError, KeyError, TypeError):
            return None

    async def find(self, log_id: LogId) -> str | None:
        """The data port of its owner; None: nobody owns the log, or that cannot be read now."""
        try:
            stored = await self._store.get(self._paths.owner(log_id))
            fields = {} if stored is None else read_node(stored.data)
            url = str(fields.get("data_url", ""))
            if url and self._security is not None:
                owner = str(fields.get("sequencer"))
                tls_url = await self._find_tls_url(owner, url)
                self._security.peers.hear(Role.SEQUENCER, owner, url, tls_url)
        except (MetadataError, MetadataJsonError):
            return None
        return url or None

    async def wait_lac(self, url: str, wait: LacWait) -> OpenLac | None:
        """What is open once it is no more as the wait says, or that is over; None: no answer.

        Args:
            url: as of `find`.
        """
        timeout_us = wait.wait_ms * MS + _TIMEOUT_US
        try:
            answer = await self._client.call(f"{url}{LAC_PATH}", pack_lac_wait(wait), timeout_us)
            return parse_open_lac(answer)
        except (PeerError, FrameError):
            return None

    async def _find_tls_url(self, owner: str, url: str) -> str | None:
        """Where an owner speaks TLS besides, as it registered; a node `owner` has one address."""
        if url.startswith(SECURE_SCHEME):
            return None
        stored = await self._store.get(f"{self._paths.sequencers}/{owner}")
        return None if stored is None else find_tls_url(read_node(stored.data), TLS_DATA_URL)


def _read_word(fields: Mapping[str, object]) -> OwnerWord:
    """Raises KeyError, TypeError or ValueError where it is none."""
    epoch = fields["epoch"]
    if type(epoch) is not int:
        raise ValueError(fields)
    return OwnerWord(Epoch(epoch), _read_end(fields["released"]), _read_end(fields["acknowledged"]))


def _read_end(row: object) -> EpochEnd:
    if not (isinstance(row, list) and all(type(one) is int and one >= NOTHING for one in row)):
        raise ValueError(row)
    entry, record_count, timestamp_ms = row
    return EpochEnd(EntryId(entry), record_count, timestamp_ms)
