"""What a bookie answers to one add, read, seal or LAC, and what a client of it may conclude.

The distinctions carry the safety of recovery. NO_ENTRY is a proof of absence by the right
incarnation. UNKNOWN is doubt and counts as a failed member. SEALED fences the writer. The caller's
own runtime makes two statuses (UNREACHABLE, TIMEOUT), which prove nothing at all.

Numbers are those of the wire. Used by the bookie's core, by whoever calls a bookie, and by `wire`.
Source: R1, R10, R15, docs/protocol/wire.md "what an answer's status allows one to conclude".
"""

from __future__ import annotations

import enum
from typing import Final


class BookieStatus(enum.IntEnum):
    """Answer to one row of a bookie call."""

    OK = 0
    NO_ENTRY = 1
    """Proved absence: this incarnation vouches that it does not hold the entry."""
    UNKNOWN = 2
    """The bookie cannot vouch: damage, an unreadable sector, a checksum that does not match."""
    SEALED = 3
    """A non-recovery add or LAC write for a sealed epoch: the writer is fenced."""
    WRONG_INCARNATION = 4
    """The request names another life of this bookie's disks (R1)."""
    DIFFERENT = 5
    """Another entry with the same id but another checksum is stored: refused and reported."""
    GONE = 6
    """The ledger was deleted by proof of metadata (R4); never to be taken for an absence."""
    OVERLOADED = 7
    READ_ONLY = 8
    INVALID = 9
    """The bytes or the numbers of the request are wrong."""
    NOT_RELEASED = 10
    """A read of version 2 that begins above what may be shown (R30): no absence, ask again."""
    UNREACHABLE = 100
    """Made by the caller: no connection; the request was not processed, as far as is known."""
    TIMEOUT = 101
    """Made by the caller: no answer in time; the request may have been processed."""


BOOKIE_FAULTS: Final = (
    BookieStatus.UNREACHABLE,
    BookieStatus.TIMEOUT,
    BookieStatus.WRONG_INCARNATION,
)
"""Failures of the bookie and not only of the entry: readers ask it last for a while."""
