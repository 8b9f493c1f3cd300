"""The bookie's own admin routes: its state, its ledgers, its journal.

Read only; everything is computed from the core and the storage when asked.
Called by `service`. Source: 08-interfaces "Processes and admin".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from duramen.core.bookie_state import LedgerState
from duramen.errors import DuramenError
from duramen.ids import NOTHING, EntryId, LedgerId, epoch_of, log_of

if TYPE_CHECKING:
    from duramen_bookie.service import BookieService


def add_routes(app: FastAPI, service: BookieService) -> None:
    """Add the routes to the process's admin application."""

    @app.get("/v1/state")
    async def get_state() -> dict[str, Any]:
        return service.describe()

    @app.get("/v1/ledgers")
    async def get_ledgers() -> dict[str, Any]:
        ledgers = service.running_core().list_ledgers()
        return {"ledgers": [_describe(ledger_id, ledger) for ledger_id, ledger in ledgers]}

    @app.get("/v1/ledgers/{ledger_id}/entries")
    async def get_entries(ledger_id: str) -> dict[str, Any]:
        if not ledger_id.isdecimal():
            raise DuramenError("invalid_argument", "a ledger id is a number", field="ledger_id")
        ranges = service.running_core().list_ranges(LedgerId(int(ledger_id)))
        if ranges is None:
            raise DuramenError("segment_not_found", f"ledger {ledger_id} is not known here")
        return {"ledger_id": ledger_id, "ranges": [list(pair) for pair in ranges]}

    @app.get("/v1/journal")
    async def get_journal() -> dict[str, Any]:
        service.running_core()
        return service.describe_journal()


def _describe(ledger_id: LedgerId, ledger: LedgerState) -> dict[str, Any]:
    return {
        "ledger_id": str(ledger_id),
        "log_id": str(log_of(ledger_id)),
        "epoch": epoch_of(ledger_id),
        "lac": _entry_or_none(ledger.lac),
        "highest": _entry_or_none(ledger.highest),
        "entries": len(ledger.stored),
        "unknown": len(ledger.unknown),
        "is_doubtful": ledger.is_doubtful,
    }


def _entry_or_none(entry: EntryId) -> int | None:
    return None if entry == NOTHING else entry
