"""One verification: choose copies, have them read, compare with bookies, withdraw what is broken.

A copy that is not whole loses its mark in the segment's node as long as the hot copies are there
(one `multi()` proves that they are): the next archive run makes another. Where they are gone it is
only told, loudly: what is left of it is all that there is of these records. A segment whose
metadata cannot be read fails: nobody can say what its copy is.

Not here: reading files (`check`). Called by the command `duramen-spark verify`.
Source: docs/protocol/archive.md, docs/archive.md.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.errors import DuramenError
from duramen.ids import EntryId
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.wire.cold.chain import Chain, chain_identities
from duramen.wire.cold.paths import segment_folder
from duramen.wire.metadata_json import encode_segment
from duramen_spark.archive.digests import SourceError
from duramen_spark.connection import Connection, list_logs
from duramen_spark.verify.check import (
    ArchiveDamage,
    VerifyResult,
    VerifyTask,
    last_entry_of,
    verify_segment,
)

T = TypeVar("T")

RunTasks = Callable[
    [Callable[[VerifyTask], VerifyResult], Sequence[VerifyTask]], list[VerifyResult]
]
"""A function and tasks → results in their order; blocks."""


class Chosen(NamedTuple):
    """A segment with a cold copy."""

    log: LogNode
    segment: AnySegment

    @property
    def is_released(self) -> bool:
        """Whether its hot copies are gone, as far as was known when it was read."""
        return self.segment.epoch < self.log.first_hot_epoch

    def __str__(self) -> str:
        return f"{self.log.namespace}/{self.log.name} e{self.segment.epoch}"


def choose_sample(items: Sequence[T], count: int | None, seed: int) -> list[T]:
    """`count` of the items by chance, in their order; None: all."""
    if count is None or count >= len(items):
        return list(items)
    chosen = sorted(random.Random(seed).sample(range(len(items)), count))
    return [items[index] for index in chosen]


@dataclass(slots=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        segments: one row for each copy that was looked at.
        mismatches: sentences: a copy is not what it should be.
        failures: sentences: nothing was found out about a copy.
        outcomes: copies by "whole", "withdrawn", "broken" (the hot ones are gone), "failed".
    """

    segments: list[dict[str, Any]] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        """Whether every copy was looked at and is whole."""
        return not self.mismatches and not self.failures

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "ok": self.is_good,
            "copies": dict(sorted(self.outcomes.items())),
            "records": sum(row["records"] for row in self.segments),
            "bytes": sum(row["bytes"] for row in self.segments),
            "mismatches": self.mismatches,
            "failures": self.failures,
            "rows": self.segments,
        }

    def list_lines(self) -> list[str]:
        """The report as lines of text."""
        lines = [f"MISMATCH {text}" for text in self.mismatches]
        lines += [f"FAILED {text}" for text in self.failures]
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        records = sum(row["records"] for row in self.segments)
        size_bytes = sum(row["bytes"] for row in self.segments)
        lines.append(f"cold copies: {counts or 'none'}; {records:,} records, {size_bytes:,} bytes")
        return lines

    def list_metrics(self) -> list[str]:
        """Lines of Prometheus' text format."""
        return [
            "# HELP duramen_archive_verify_mismatches Faults of cold copies, by the last verify.",
            "# TYPE duramen_archive_verify_mismatches gauge",
            f"duramen_archive_verify_mismatches {len(self.mismatches)}",
            "# HELP duramen_archive_verify_copies Cold copies that it looked at.",
            "# TYPE duramen_archive_verify_copies gauge",
            f"duramen_archive_verify_copies {len(self.segments)}",
        ]


class Verification:
    """One verification.

    Args:
        run_tasks: where files are read.
    """

    def __init__(self, connection: Connection, run_tasks: RunTasks) -> None:
        self._connection = connection
        self._run_tasks = run_tasks
        self.report = VerifyReport()

    async def run(
        self,
        selectors: Sequence[str] = (),
        *,
        sample: int | None = None,
        seed: int = 0,
        against_bookies: bool = False,
        withdraws: bool = True,
    ) -> VerifyReport:
        """Look at the copies of all logs that match.

        Args:
            sample: so many segments, by chance; None: all.
            against_bookies: also ask bookies what they hold of what is hot.
            withdraws: take the mark off a broken copy whose hot ones are there.

        Raises:
            MetadataError: ZooKeeper gives no answer.
        """
        connection = self._connection
        copies: list[Chosen] = []
        for log in await list_logs(connection.nodes, selectors):
            copies += await self._list_copies(log)
        chosen = choose_sample(copies, sample, seed)
        tasks = [
            VerifyTask(connection.store_url, connection.uuid, encode_segment(one.segment))
            for one in chosen
        ]
        results = await asyncio.to_thread(self._run_tasks, verify_segment, tasks)
        for one, result in zip(chosen, results, strict=True):
            await self._judge(one, result, against_bookies=against_bookies, withdraws=withdraws)
        return self.report

    async def _list_copies(self, log: LogNode) -> list[Chosen]:
        """The segments of a log with a cold copy; what cannot be read is reported."""
        name = f"{log.namespace}/{log.name}"
        try:
            listing = await self._connection.nodes.list_segments(log.log_id)
        except DuramenError as error:
            self._fail(f"{name}: {error}")
            return []
        for epoch in listing.unreadable:
            self._fail(f"{name} e{epoch}: no record of its metadata can be found")
        return [Chosen(listing.log, one) for one in listing.segments if one.cold_copy is not None]

    def _fail(self, text: str) -> None:
        self.report.failures.append(text)
        self.report.outcomes["failed"] += 1

    async def _judge(
        self, one: Chosen, result: VerifyResult, *, against_bookies: bool, withdraws: bool
    ) -> None:
        damages, failure = list(result.damages), result.failure
        if failure == "" and (failure := await self._explain_stale(one)):
            damages = []
        identities = result.identities
        if against_bookies and not damages and not failure and identities is not None:
            try:
                damages += await self._compare(one, identities)
            except (SourceError, DuramenError) as error:
                failure = f"bookies: {error}"
        outcome = "failed" if failure else "whole"
        if failure:
            self.report.failures.append(f"{one}: {failure}")
        if damages:
            is_withdrawn = withdraws and await self._withdraw(one)
            outcome = "withdrawn" if is_withdrawn else "broken"
            rest = ": archived anew by the next run" if is_withdrawn else ""
            if one.is_released:
                rest = ": ITS HOT COPIES ARE GONE; nothing was changed"
            self.report.mismatches += [f"{one}: {damage}{rest}" for damage in damages]
        self.report.outcomes[outcome] += 1
        self.report.segments.append(
            {
                "log": f"{one.log.namespace}/{one.log.name}",
                "log_id": str(one.segment.log_id),
                "epoch": one.segment.epoch,
                "outcome": outcome,
                **result.to_json(),
                "damages": [asdict(damage) for damage in damages],
            }
        )

    async def _explain_stale(self, one: Chosen) -> str:
        """Why what was seen may be of no copy that counts; empty: it is of the one that does."""
        seen = one.segment.cold_copy
        assert seen is not None, one
        try:
            now = await self._connection.nodes.read_segment(one.segment.log_id, one.segment.epoch)
        except DuramenError as error:
            return str(error)
        if now is None or not _is_same(now.cold_copy, seen):
            # Compacted or archived anew while it was read.
            return "the copy was replaced meanwhile: look again"
        return ""

    async def _compare(self, one: Chosen, archived: Chain) -> list[ArchiveDamage]:
        """Compare with what bookies say that they hold; nothing where hot copies are gone."""
        segment = one.segment
        if one.is_released or not archived.count:
            return []
        last = last_entry_of(segment)
        found = await self._connection.source.read_identities(segment, EntryId(0), last, 0)
        hot = chain_identities(segment.ledger_id, found)
        if hot == archived:
            return []
        folder = segment_folder(self._connection.uuid, segment.log_id, segment.epoch)
        detail = f"{archived.count} entries, and not the {hot.count} that bookies hold"
        return [ArchiveDamage(folder, "bookies", detail)]

    async def _withdraw(self, one: Chosen) -> bool:
        """Take the mark off, if the hot copies are there; whether it is off."""
        log_id, epoch = one.segment.log_id, one.segment.epoch
        seen = one.segment.cold_copy
        assert seen is not None, one

        def refute(found: AnySegment, nonce: str) -> AnySegment | None:
            return found.without_cold_copy(nonce) if _is_same(found.cold_copy, seen) else None

        try:
            after = await self._connection.nodes.change_segment(
                log_id, epoch, refute, only_hot=True
            )
            if after is None or after.cold_copy is not None:
                return False
        except (MetadataError, DuramenError) as error:
            self.report.failures.append(f"{one}: withdrawing: {error}")
            return False
        return True


def _is_same(found: ColdCopy | None, seen: ColdCopy) -> bool:
    """Whether it is the copy that was looked at, be it rechecked meanwhile or not."""
    return found is not None and found.attempt == seen.attempt
