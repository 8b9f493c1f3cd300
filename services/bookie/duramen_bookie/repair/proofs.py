"""What a bookie learns from metadata after damage, and before far seals (R10, R15).

Each read follows a sync: what was true before damage, or before another's change, proves nothing.
A segment that is OPEN now was never sealed; one whose node is younger than the damage had nothing
in it; an epoch that the log's node does not have is not sealed for.

Asked by the data plane (`handlers`) and the service. Source: docs/protocol/recovery.md "Seal".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from duramen.core.segment import SegmentState
from duramen.ids import BookieId, Epoch, LedgerId, LogId, epoch_of, log_of
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore, Unavailable
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_any_segment, read_log

_LOG = logging.getLogger(__name__)

CHECK_COUNT_MAX: Final = 64
"""Reads of segment nodes that may be under way; what does not fit is asked for again."""


class MetadataProofs:
    """The questions of one bookie process.

    Args:
        on_segment_checked: told ledger, whether its segment is open, and the node's `made`.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        on_segment_checked: Callable[[LedgerId, bool, int], None],
    ) -> None:
        self._store = store
        self._paths = paths
        self._on_segment_checked = on_segment_checked
        self._checks: set[asyncio.Task[None]] = set()

    def check_segment(self, ledger_id: LedgerId) -> None:
        """Read the ledger's segment, and tell; at once that nothing is proved, if many are read."""
        if len(self._checks) >= CHECK_COUNT_MAX:
            self._on_segment_checked(ledger_id, False, 0)
            return
        task = asyncio.create_task(self._prove_open(ledger_id))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def read_next_epoch(self, log_id: LogId) -> Epoch | None:
        """The first epoch of a log that does not exist yet; None: there is no such log to be read.

        Raises:
            MetadataError: the store does not say.
        """
        path = self._paths.log(log_id)
        await self._store.sync(path)
        found = await self._store.get(path)
        try:
            node = None if found is None else read_log(found.data)
        except MetadataJsonError as error:
            _LOG.warning("%s shows no epoch: %s", path, error)
            return None
        return node.next_epoch if node is not None and node.log_id == log_id else None

    async def read_registered_at(self, bookie: BookieId) -> int:
        """When this process registered, which it did after its replay: damage is older (R15).

        Raises:
            MetadataError: the store does not say, or the node is not this process's own.
        """
        path = f"{self._paths.available}/{bookie}"
        await self._store.sync(path)
        found = await self._store.get(path)
        if found is None or found.ephemeral_session != self._store.session_id or not found.made:
            raise Unavailable(f"{path} is not this process's own yet")
        return found.made

    def stop(self) -> None:
        """Nothing is told any more."""
        for check in self._checks:
            check.cancel()

    def statistics(self) -> dict[str, Any]:
        """Reads that are under way, and their bound."""
        return {"segment_checks": len(self._checks), "segment_checks_max": CHECK_COUNT_MAX}

    async def _prove_open(self, ledger_id: LedgerId) -> None:
        path = self._paths.segment(log_of(ledger_id), epoch_of(ledger_id))
        is_open, made = False, 0
        try:
            await self._store.sync(path)
            found = await self._store.get(path)
            if found is not None:
                is_open = read_any_segment(found.data).state is SegmentState.OPEN
                made = found.made
        except (MetadataError, MetadataJsonError) as error:
            _LOG.warning("segment %s is not proved open: %s", path, error)
        self._on_segment_checked(ledger_id, is_open, made)
