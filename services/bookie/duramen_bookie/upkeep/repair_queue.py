"""Damaged ledgers on their way to whoever repairs them: nodes under `repair/queue`.

Whoever finds damage (replay, a read, the scrub) puts the ledger in; a task writes it to the
metadata store, again and again until it stands there. One node a ledger, in it one report for each
bookie incarnation that found damage of its own, so that nobody's report replaces another's.
Reporting twice is the same as once. Who repairs deletes the node with the version that it read.

Not here: repair. Called by `rounds`. Source: docs/protocol/metadata.md
"repair/queue/<ledger id>", R3.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from typing import Any, Final
from uuid import uuid4

from duramen.ids import LedgerId, Member
from duramen.limits import REPAIR_QUEUE_COUNT_MAX, RETRY_BACKOFF
from duramen.runtime.stores.metadata_store import (
    Conflict,
    MetadataError,
    MetadataStore,
    OutcomeUnknown,
    Rejected,
)
from duramen.units import MINUTE, SECOND
from duramen.wire.metadata_json import MetadataJsonError, Paths, encode_node, read_node
from duramen_bookie.upkeep.pacing import Periodic

_LOG = logging.getLogger(__name__)

_WRITE_TRIES: Final = 8
"""Changes by others, or replies lost, that one write meets before the ledger waits again."""


class RepairReason(enum.StrEnum):
    """Where the damage was found."""

    REPLAY = "replay"
    READ = "read"
    SCRUB = "scrub"


class RepairQueue:
    """What waits to be reported, and the task that reports it.

    Args:
        member: this bookie in this life of its disks.
        count_max: ledgers that may wait; one more is refused.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        member: Member,
        *,
        count_max: int = REPAIR_QUEUE_COUNT_MAX,
    ) -> None:
        self._store = store
        self._paths = paths
        self._member = member
        self._count_max = count_max
        self._waiting: dict[LedgerId, RepairReason] = {}
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._rounds = Periodic("the repair queue", self._report_all, rest_us=MINUTE)
        self._counts = dict.fromkeys(("reported", "retried", "refused", "given_up"), 0)

    def start(self) -> None:
        """Report what waits, and whatever comes."""
        self._rounds.start()

    async def stop(self) -> None:
        """Stop reporting; what waits is found again by the next life or scrub."""
        await self._rounds.stop()

    def put(self, ledger_id: LedgerId, reason: RepairReason) -> bool:
        """Report a ledger soon; False: too many wait, try again after `wait_room`.

        A ledger that waits already keeps its first reason.
        """
        if ledger_id in self._waiting:
            return True
        if len(self._waiting) >= self._count_max:
            self._counts["refused"] += 1
            return False
        self._waiting[ledger_id] = reason
        self._rounds.hurry()
        if len(self._waiting) >= self._count_max:
            self._has_room.clear()
        return True

    async def wait_room(self) -> None:
        """Wait until `put` takes one more."""
        await self._has_room.wait()

    def statistics(self) -> dict[str, int]:
        """What waits, and what became of the others since the start."""
        return {"waiting": len(self._waiting), "waiting_max": self._count_max, **self._counts}

    async def _report_all(self) -> None:
        failed_count = 0
        while self._waiting:
            ledger_id, reason = next(iter(self._waiting.items()))
            try:
                await self._report(ledger_id, reason)
                self._counts["reported"] += 1
            except (Rejected, MetadataJsonError) as error:
                # It will never be taken; the next scrub tries again, a person may help meanwhile.
                self._counts["given_up"] += 1
                _LOG.error("ledger %d cannot be queued for repair: %s", ledger_id, error)
            except MetadataError as error:
                self._counts["retried"] += 1
                _LOG.info("ledger %d is queued for repair later: %s", ledger_id, error)
                self._waiting[ledger_id] = self._waiting.pop(ledger_id)  # the others come first
                await asyncio.sleep(RETRY_BACKOFF.pause_us(failed_count) / SECOND)
                failed_count += 1
                continue
            failed_count = 0
            del self._waiting[ledger_id]
            self._has_room.set()

    async def _report(self, ledger_id: LedgerId, reason: RepairReason) -> None:
        """See to it that the node with this bookie's report is there.

        Raises:
            MetadataError: it may or may not be there.
            MetadataJsonError: something else is there.
        """
        path = self._paths.queued(ledger_id)
        for _ in range(_WRITE_TRIES):
            await self._store.sync(path)
            found = await self._store.get(path)
            data = encode_report(
                None if found is None else found.data, ledger_id, self._member, reason, uuid4().hex
            )
            if data is None:
                return
            # Whatever becomes of the write, the next reading shows it; a report that is written
            # twice is the same as once.
            with contextlib.suppress(Conflict, OutcomeUnknown):
                if found is None:
                    await self._store.create(path, data, make_parents=True)
                else:
                    await self._store.set(path, data, version=found.version)
                return
        raise OutcomeUnknown(f"{path}: {_WRITE_TRIES} tries")


def encode_report(
    found: bytes | None, ledger_id: LedgerId, member: Member, reason: RepairReason, nonce: str
) -> bytes | None:
    """The queue's node of a ledger with one bookie's report in it; None if it is there already.

    Args:
        found: the node as it is; None: there is none.
        nonce: of this change.

    Raises:
        MetadataJsonError: the node is none of the queue's.
    """
    node = {"ledger_id": str(ledger_id), "reports": {}} if found is None else read_node(found)
    reports = node.get("reports")
    if node.get("ledger_id") != str(ledger_id) or not isinstance(reports, dict):
        raise MetadataJsonError(f"the node is no report about ledger {ledger_id}")
    who = f"{member.bookie}.{member.incarnation}"
    if who in reports:
        return None
    fields: dict[str, Any] = {
        "ledger_id": str(ledger_id),
        "reports": {**reports, who: reason.value},
        "nonce": nonce,
    }
    return encode_node(fields, node)
