"""The bookie's own admin routes: what it holds, its disks, its upkeep.

Everything is computed from the core, the storage and the upkeep when asked; the few that change
something say so in their verb. All of it is in `/openapi.json`.
Called by `service`. Source: docs/bookie.md "Admin API" and "Space".
"""

from __future__ import annotations

import base64
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Protocol

from fastapi import FastAPI, Query
from pydantic import BaseModel

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import LedgerState
from duramen.core.rights.verbs import Verb
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import LAST_ENTRY_ID, NOTHING, EntryId, LedgerId, epoch_of, log_of
from duramen.runtime.public.answers import Answer
from duramen.runtime.public.cluster_answers import JournalAnswer
from duramen.runtime.rights.route_verbs import needs
from duramen_bookie.upkeep.rounds import Upkeep

PAGE_COUNT_DEFAULT: Final = 1_000
PAGE_COUNT_MAX: Final = 10_000
"""Ledgers of a page: encoding them holds the event loop for some 50 ms."""

_LEDGER_ID_DIGITS_MAX: Final = 20


class RunningBookie(Protocol):
    """What the routes ask of the bookie; what needs it running refuses while it starts."""

    def describe(self) -> dict[str, Any]:
        """Identity and sizes."""

    def describe_journal(self) -> dict[str, Any]:
        """What the journal did and what waits."""

    def running_core(self) -> BookieCore:
        """Raises DuramenError `overloaded` while the bookie starts."""

    def running_upkeep(self) -> Upkeep:
        """Raises DuramenError `overloaded` while the bookie starts."""

    async def read_entry(
        self, ledger_id: LedgerId, entry_id: EntryId
    ) -> tuple[BookieStatus, bytes | None]:
        """One entry as a reader would get it."""


class Switch(BaseModel):
    """On or off."""

    is_on: bool


class BookieStateAnswer(Answer):
    """Who the bookie is, how much it holds, and in what state it is."""

    bookie_id: str
    incarnation: str
    cluster_uuid: str
    volume_uuid: str
    sealed_logs: int
    ledgers: int
    entries: int
    entry_bytes: int
    space: str
    duty: str | None
    is_ready: bool
    journal: str


class DiskAnswer(Answer):
    """A directory and the disk that it is on; null: nobody has looked at it yet."""

    directory: str
    total_bytes: int | None
    free_bytes: int | None
    used_ratio: float
    level: str
    is_warning: bool
    failure: str | None


class DisksAnswer(Answer):
    """The level of the bookie, which is that of the worst disk or of the operator's switch."""

    level: str
    is_switched_read_only: bool
    disks: list[DiskAnswer]


class ScrubPassAnswer(Answer):
    """One pass of the scrub over everything; `ended_unix_ms` null: under way."""

    began_unix_ms: int
    ended_unix_ms: int | None
    unit_count: int
    failed_unit_count: int
    verified_bytes: int
    damaged_entry_count: int


class DamagedEntryAnswer(Answer):
    """An entry that could not be read."""

    ledger_id: str
    entry_id: int


class ScrubAnswer(Answer):
    """Progress of the scrub, its last whole pass, and the damage that it found last."""

    state: str
    bytes_per_s: int
    running_pass: ScrubPassAnswer | None
    last_pass: ScrubPassAnswer | None
    damaged_entry_count: int
    recent_damage: list[DamagedEntryAnswer]


class UpkeepAnswer(Answer):
    """Rounds, paces and queues of each work; its counters are free, as in `/v1/statistics`."""

    space: dict[str, Any]
    carrier: dict[str, Any]
    settling: dict[str, Any]
    compaction: dict[str, Any]
    deletion: dict[str, Any]
    tombstones: dict[str, Any]
    scrub: dict[str, Any]
    repair_queue: dict[str, Any]


class LedgerRow(BaseModel):
    """What is here of a ledger; `hot` entries lie in the journal, `settled` ones in the entry
    log."""

    ledger_id: str
    log_id: str
    epoch: int
    lac: int | None
    highest: int | None
    entries: int
    hot: int
    settled: int
    unknown: int
    is_doubtful: bool


class LedgerPage(BaseModel):
    """Ledgers, ascending by id; with `has_more` the last one's id is the next page's `after`."""

    ledgers: list[LedgerRow]
    has_more: bool


class LedgerRanges(BaseModel):
    """The entries of a ledger that are here: pairs of the first and the last one of each range."""

    ledger_id: str
    ranges: list[tuple[int, int]]


class HeldEntry(BaseModel):
    """One entry; `bytes` null: it is not here. `entry`, its bytes in base64, if they are wanted."""

    ledger_id: str
    entry_id: int
    status: str
    bytes: int | None
    entry: str | None = None


class Begun(BaseModel):
    """A round that was asked for."""

    status: Literal["begins soon"]


class Work(StrEnum):
    """Upkeep that can be suspended and hurried."""

    SETTLING = "settling"
    COMPACTION = "compaction"
    SCRUB = "scrub"


def add_routes(app: FastAPI, service: RunningBookie) -> None:
    """Add the routes to the process's admin application."""

    @app.get(
        "/v1/state", **needs(Verb.OBSERVE), summary="Identity, sizes and the state of the journal"
    )
    async def get_state() -> BookieStateAnswer:
        return BookieStateAnswer(**service.describe())

    @app.get(
        "/v1/disks",
        **needs(Verb.OBSERVE),
        summary="Space of every directory, and what follows from it",
    )
    async def get_disks() -> DisksAnswer:
        return DisksAnswer(**service.running_upkeep().space.describe())

    @app.put(
        "/v1/read-only",
        **needs(Verb.OPERATE),
        summary="Refuse new entries, whatever the disks say, or no more",
    )
    async def put_read_only(switch: Switch) -> DisksAnswer:
        space = service.running_upkeep().space
        space.switch_read_only(is_on=switch.is_on)
        return DisksAnswer(**space.describe())

    @app.get(
        "/v1/journal",
        **needs(Verb.OBSERVE),
        summary="What the journal did, what waits, what replay found",
        response_model_exclude_unset=True,
    )
    async def get_journal() -> JournalAnswer:
        service.running_core()
        return JournalAnswer.model_validate(service.describe_journal())

    _add_ledger_routes(app, service)
    _add_upkeep_routes(app, service)


def _add_ledger_routes(app: FastAPI, service: RunningBookie) -> None:
    @app.get(
        "/v1/ledgers", **needs(Verb.OBSERVE), summary="The ledgers that are here, a page at a time"
    )
    async def get_ledgers(
        limit: Annotated[
            int, Query(ge=1, le=PAGE_COUNT_MAX, description="ledgers of one page at most")
        ] = PAGE_COUNT_DEFAULT,
        after: Annotated[
            str | None, Query(description="a ledger id: the page begins with the next one")
        ] = None,
    ) -> LedgerPage:
        first = -1 if after is None else _read_ledger_id(after, "after")
        found = service.running_core().list_page(first, limit + 1)
        ledgers = [LedgerRow(**_describe(*known)) for known in found[:limit]]
        return LedgerPage(ledgers=ledgers, has_more=len(found) > limit)

    @app.get(
        "/v1/ledgers/{ledger_id}/entries",
        **needs(Verb.OBSERVE),
        summary="The entries of a ledger, as ranges",
    )
    async def get_entries(ledger_id: str) -> LedgerRanges:
        ranges = service.running_core().list_ranges(_read_ledger_id(ledger_id))
        if ranges is None:
            raise DuramenError("segment_not_found", f"ledger {ledger_id} is not known here")
        return LedgerRanges(ledger_id=ledger_id, ranges=list(ranges))

    @app.get(
        "/v1/ledgers/{ledger_id}/entries/{entry_id}",
        **needs(Verb.READ),
        summary="One entry, if it is here",
        response_model_exclude_unset=True,
    )
    async def get_entry(
        ledger_id: str,
        entry_id: int,
        bodies: Annotated[
            bool, Query(description="tell its bytes in base64, with what the records say")
        ] = False,
    ) -> HeldEntry:
        if not 0 <= entry_id <= LAST_ENTRY_ID:
            raise DuramenError("invalid_argument", "entries count from 0", field="entry_id")
        known = _read_ledger_id(ledger_id)
        status, entry = await service.read_entry(known, EntryId(entry_id))
        told = HeldEntry(
            ledger_id=ledger_id,
            entry_id=entry_id,
            status=status.name,
            bytes=None if entry is None else len(entry),
        )
        if bodies:
            told.entry = None if entry is None else base64.b64encode(entry).decode()
        return told


def _add_upkeep_routes(app: FastAPI, service: RunningBookie) -> None:
    @app.get(
        "/v1/upkeep",
        **needs(Verb.OBSERVE),
        summary="Settling, compaction, deletion, scrub, repair queue",
    )
    async def get_upkeep() -> UpkeepAnswer:
        return UpkeepAnswer(**service.running_upkeep().statistics())

    @app.get(
        "/v1/scrub",
        **needs(Verb.OBSERVE),
        summary="Progress of the scrub, its last pass, what is damaged",
    )
    async def get_scrub() -> ScrubAnswer:
        return ScrubAnswer(**service.running_upkeep().scrub.describe())

    @app.put(
        "/v1/upkeep/{work}/suspended",
        **needs(Verb.OPERATE),
        summary="Suspend a kind of upkeep, or resume it",
    )
    async def put_suspended(work: Work, switch: Switch) -> UpkeepAnswer:
        upkeep = service.running_upkeep()
        upkeep.suspend(work, is_on=switch.is_on)
        return UpkeepAnswer(**upkeep.statistics())

    @app.post(
        "/v1/upkeep/{work}", **needs(Verb.OPERATE), status_code=202, summary="Begin a round soon"
    )
    async def hurry(work: Work) -> Begun:
        service.running_upkeep().hurry(work)
        return Begun(status="begins soon")


def _read_ledger_id(text: str, field: str = "ledger_id") -> LedgerId:
    if not (text.isascii() and text.isdigit() and len(text) <= _LEDGER_ID_DIGITS_MAX):
        raise DuramenError("invalid_argument", "a ledger id is a number", field=field)
    return LedgerId(int(text))


def _describe(ledger_id: LedgerId, ledger: LedgerState) -> dict[str, Any]:
    return {
        "ledger_id": str(ledger_id),
        "log_id": str(log_of(ledger_id)),
        "epoch": epoch_of(ledger_id),
        "lac": _entry_or_none(ledger.lac),
        "highest": _entry_or_none(ledger.highest),
        "entries": ledger.entry_count,
        "hot": len(ledger.stored),
        "settled": len(ledger.settled),
        "unknown": len(ledger.unknown),
        "is_doubtful": ledger.is_doubtful,
    }


def _entry_or_none(entry: EntryId) -> int | None:
    return None if entry == NOTHING else entry
