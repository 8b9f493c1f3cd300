"""What the owner of a log that acknowledges out of order says of its end.

Bookies tell up to where all is complete, and what they hold beyond. Which of that is acknowledged
the log's owner alone knows. Its word about an epoch holds whatever became of it since: nobody else
acknowledges in that epoch. That the epoch is the newest is for who asks to know.

Called by `tail`. Source: docs/protocol/reading.md "The tail", R29,
docs/protocol/wire.md "Sequencer: POST /s/control".
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
from duramen.units import SECOND
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node

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
        try:
            stored = await self._store.get(self._paths.owner(log_id))
            fields = {} if stored is None else read_node(stored.data)
            url = str(fields.get("data_url", ""))
            if not url:
                return None
            if self._security is not None:
                owner = str(fields.get("sequencer"))
                tls_url = await self._find_tls_url(owner, url)
                self._security.peers.hear(Role.SEQUENCER, owner, url, tls_url)
            status, answer = await self._client.request_json(
                "POST", f"{url}/s/control", body, _TIMEOUT_US
            )
            return _read_word(json.loads(answer)) if status == 200 else None
        except (PeerError, MetadataError, MetadataJsonError, ValueError, KeyError, TypeError):
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
