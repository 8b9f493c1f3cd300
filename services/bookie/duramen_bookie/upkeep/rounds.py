"""All upkeep of one bookie: what runs beside the requests, started and stopped together.

Space is looked at, sealed journal files are settled, entry log files compacted, dead ledgers
dropped and that confirmed, every byte is scrubbed, and damage is reported to the repair queue. Each
has its own rounds and pace; settling and compaction take turns. Everything decides on the event
loop and works in threads.

Not here: how each does it (the other modules). Called by `service` and its admin routes.
Source: docs/bookie.md "Upkeep", docs/protocol/entry-log.md "Checkpoint".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duramen.ids import EntryId, Epoch, LedgerId, LogId, Member, epoch_of
from duramen.limits import COMPACT_BYTES_PER_S, SCRUB_BYTES_PER_S
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import HOUR, SECOND
from duramen.wire.disk.journal_format import record_bytes
from duramen.wire.metadata_json import Paths
from duramen_bookie.storage import Storage
from duramen_bookie.upkeep.compaction import Compaction
from duramen_bookie.upkeep.deletion import Deletion, LedgerSight
from duramen_bookie.upkeep.pacing import Pace, Periodic, monotonic_us
from duramen_bookie.upkeep.repair_queue import RepairQueue, RepairReason
from duramen_bookie.upkeep.scrub import Scrub
from duramen_bookie.upkeep.settling import Carrier, Settling, SettlingPace
from duramen_bookie.upkeep.space import SpaceReport, SpaceWatch
from duramen_bookie.upkeep.tombstones import Confirmation


class Upkeep:
    """The rounds of one bookie.

    Args:
        storage: replayed and started.
        store: the metadata store, started.
        member: this bookie in this life of its disks.
        cluster_uuid: of the cookie; nothing is deleted on the word of another cluster.
        drain: carries out what the core has left in its outbox.
        on_report: what the registration should say of the disks.
    """

    def __init__(
        self,
        storage: Storage,
        store: MetadataStore,
        paths: Paths,
        *,
        member: Member,
        cluster_uuid: str,
        drain: Callable[[], None],
        on_report: Callable[[SpaceReport], None],
    ) -> None:
        layout = storage.layout
        self._storage = storage
        self.queue = RepairQueue(store, paths, member)
        self.space = SpaceWatch(
            [*dict.fromkeys((layout.data, layout.journal, *layout.ledgers))],
            storage.fs,
            on_level=storage.core.set_read_only,
            on_report=on_report,
        )
        self._paces = {
            "settling": SettlingPace(lambda: len(storage.writer.sealed_file_ids)),
            "compaction": Pace(COMPACT_BYTES_PER_S),
        }
        carrier = Carrier(storage, self._on_not_copied)
        self.carrier = carrier
        self.settling = Settling(storage, carrier, self._paces["settling"])
        self.compaction = Compaction(storage, carrier, self._paces["compaction"], monotonic_us)
        holdings = CoreHoldings(storage, drain)
        self.deletion = Deletion(store, paths, cluster_uuid, holdings)
        self.confirmation = Confirmation(store, paths, member, holdings)
        self.scrub = Scrub(
            storage,
            Pace(SCRUB_BYTES_PER_S),
            on_damage=storage.core.on_unreadable,
            queue=self.queue,
        )
        self._settle_rounds = Periodic("settling", self.settling.run_round, rest_us=SECOND)
        self._compact_rounds = Periodic("compaction", self.compaction.run_round, rest_us=HOUR)
        self._index_rounds = Periodic(
            "the indexes", self.compaction.rebuild_indexes, rest_us=10 * SECOND
        )

    async def start(self) -> None:
        """Begin; the first look at the disks is over when this returns."""
        await self.space.start()
        self.queue.start()
        for ledger_id in self._storage.damaged_ledgers():
            self.queue.put(ledger_id, RepairReason.REPLAY)
        self._settle_rounds.start()
        self._compact_rounds.start()
        self._index_rounds.start()
        self.deletion.start()
        self.confirmation.start()
        self.scrub.start()

    async def stop(self) -> None:
        """Stop after the pieces that are being worked on; afterwards no thread of it runs."""
        for pace in self._paces.values():
            pace.stop()
        await self.carrier.stop()
        await self._settle_rounds.stop()
        await self._compact_rounds.stop()
        await self._index_rounds.stop()
        await self.scrub.stop()
        await self.confirmation.stop()
        await self.deletion.stop()
        await self.queue.stop()
        await self.space.stop()

    def on_unreadable(self, ledger_id: LedgerId) -> None:
        """A read met damage."""
        self.queue.put(ledger_id, RepairReason.READ)

    def suspend(self, what: str, *, is_on: bool) -> None:
        """Suspend or resume `settling`, `compaction` or `scrub`.

        A transfer that is suspended is broken off and begins anew, so that it keeps no turn.
        """
        if what == "scrub":
            (self.scrub.suspend if is_on else self.scrub.resume)()
        elif is_on:
            self._paces[what].suspend()
        else:
            self._paces[what].resume()
            (self._settle_rounds if what == "settling" else self._compact_rounds).hurry()

    def hurry(self, what: str) -> None:
        """Begin a round soon; settling takes everything that the journal holds."""
        if what == "scrub":
            self.scrub.begin_soon()
        elif what == "compaction":
            self._compact_rounds.hurry()
        else:
            self.settling.request()
            self._settle_rounds.hurry()

    def statistics(self) -> dict[str, Any]:
        """Every round, pace and queue."""
        return {
            "space": self.space.statistics(),
            "carrier": self.carrier.statistics(),
            "settling": {
                "rounds": self._settle_rounds.statistics(),
                "pace": self._paces["settling"].statistics(),
                **self.settling.statistics(),
            },
            "compaction": {
                "rounds": self._compact_rounds.statistics(),
                **self.compaction.statistics(),
            },
            "deletion": self.deletion.statistics(),
            "tombstones": self.confirmation.statistics(),
            "scrub": self.scrub.statistics(),
            "repair_queue": self.queue.statistics(),
        }

    def _on_not_copied(self, damaged: Sequence[tuple[LedgerId, EntryId]]) -> None:
        for ledger_id in dict.fromkeys(ledger_id for ledger_id, _ in damaged):
            self.queue.put(ledger_id, RepairReason.SCRUB)


class CoreHoldings:
    """What deletion sees of a bookie's core."""

    def __init__(self, storage: Storage, drain: Callable[[], None]) -> None:
        self._storage = storage
        self._drain = drain

    def list_logs(self) -> list[LogId]:
        """Logs of which ledgers are here, ascending."""
        return self._storage.core.list_logs()

    def list_sights_of(self, log_id: LogId) -> list[LedgerSight]:
        """The ledgers of a log that are here, ascending."""
        core = self._storage.core
        return [
            LedgerSight(epoch_of(ledger_id), *core.marks_of(ledger_id))
            for ledger_id in core.list_ledgers_of(log_id)
        ]

    def drop(self, log_id: LogId, epoch: Epoch, *, is_all_below: bool) -> None:
        """Forget ledgers once that is durable; put off while the journal has no room."""
        if self._storage.has_room(record_bytes(0), is_urgent=True):
            self._storage.core.drop(log_id, epoch, is_all_below=is_all_below)
            self._drain()

    def purge_beyond(self, ledger_id: LedgerId, last_entry: EntryId) -> None:
        """Forget what lies beyond the last entry of a CLOSED ledger."""
        hot = self._storage.core.purge_beyond(ledger_id, last_entry)
        self._storage.index.forget(ledger_id, hot)
