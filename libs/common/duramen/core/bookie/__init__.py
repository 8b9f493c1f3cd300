"""Core of the bookie: what it knows of its ledgers, and the requests and answers around that."""

from duramen.core.bookie.bookie_core import BookieCore
from duramen.core.bookie.ledger_reads import WAITER_COUNT_MAX

__all__ = ["WAITER_COUNT_MAX", "BookieCore"]
