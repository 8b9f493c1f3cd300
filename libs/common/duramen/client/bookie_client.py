"""Calls to bookies whose place the caller knows: reads, inventories, pulls.

Every way of not answering becomes a status, so that nothing above handles exceptions of the
network, and every entry that is handed out was verified. A bookie that is overloaded is asked again
when it says, as long as there is time.

Not here: which bookies there are and where (`registry`), which one to ask (the cores), caches and
shared reads (the read proxy). Called by the bookies' repair, the auditor and `duramen verify`.
Source: R1, R15, docs/protocol/wire.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from duramen.core.status import BookieStatus
from duramen.ids import NOTHING
from duramen.limits import PULL_TIME_US, READ_TIMEOUT_US
from duramen.runtime.http_client import (
    NoAnswerError,
    OverloadedError,
    PeerClient,
    RefusedError,
    UnreachableError,
)
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.units import SECOND
from duramen.wire.bookie_calls import (
    ReadAnswer,
    ReadRange,
    pack_reads,
    parse_read_answers,
    verify_read,
)
from duramen.wire.flexible.filtered_answers import (
    FilteredAnswer,
    parse_filtered_answers,
    verify_filtered,
)
from duramen.wire.flexible.filtered_reads import FilteredRange, pack_filtered_reads
from duramen.wire.frame import FrameError
from duramen.wire.repair_calls import (
    INVENTORY_PATH,
    PULL_PATH,
    Inventory,
    InventoryAnswer,
    Pull,
    PullAnswer,
    Source,
    pack_inventory,
    pack_pull,
    parse_inventory_answer,
    parse_pull_answer,
)

INVENTORY_TIMEOUT_US = 30 * SECOND
"""A bookie reads what it tells at its own pace, several inventories at once."""

PULL_TIMEOUT_US = 2 * (PULL_TIME_US + READ_TIMEOUT_US)
"""A pull ends by itself after `PULL_TIME_US`, and the read that is under way then."""


class BookieClient:
    """Calls to any number of bookies; one connection to each.

    Args:
        security: as of `PeerClient`.
    """

    def __init__(self, security: ProcessSecurity | None = None) -> None:
        self._client = PeerClient(security)

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def read(
        self, source: Source, ranges: Sequence[ReadRange], timeout_us: int = READ_TIMEOUT_US
    ) -> list[ReadAnswer]:
        """One answer for each range, verified as `verify_read` does.

        Statuses made here: UNREACHABLE, TIMEOUT, OVERLOADED, UNKNOWN (the answer is malformed).
        """
        body = pack_reads(source.member.incarnation, ranges)
        answer = await self._call(source, "/b/read", body, timeout_us)
        if isinstance(answer, BookieStatus):
            return [_no_answer(answer)] * len(ranges)
        try:
            parsed = parse_read_answers(answer)
            return [verify_read(*pair) for pair in zip(parsed, ranges, strict=True)]
        except ValueError:  # FrameError is one, and so is another number of rows
            return [_no_answer(BookieStatus.UNKNOWN)] * len(ranges)

    async def read_filtered(
        self, source: Source, ranges: Sequence[FilteredRange], timeout_us: int = READ_TIMEOUT_US
    ) -> list[FilteredAnswer]:
        """One answer for each range of a flexible segment, verified as `verify_filtered` does.

        Statuses as `read`; with another one than OK nothing was looked at.
        """
        body = pack_filtered_reads(source.member.incarnation, ranges)
        answer = await self._call(source, "/b/read", body, timeout_us)
        if isinstance(answer, BookieStatus):
            return [_no_filtered_answer(answer, one) for one in ranges]
        try:
            parsed = parse_filtered_answers(answer)
            return [verify_filtered(*pair) for pair in zip(parsed, ranges, strict=True)]
        except ValueError:
            return [_no_filtered_answer(BookieStatus.UNKNOWN, one) for one in ranges]

    async def take_inventory(
        self, source: Source, inventory: Inventory, timeout_us: int = INVENTORY_TIMEOUT_US
    ) -> InventoryAnswer:
        """What the bookie holds of a range, up to before `next`; statuses as `read`.

        INVALID: it was asked for its damage mark, and knows none.
        """
        body = pack_inventory(source.member.incarnation, inventory)
        refused = BookieStatus.INVALID if inventory.is_marked else BookieStatus.TIMEOUT
        answer = await self._call(source, INVENTORY_PATH, body, timeout_us, refused=refused)
        if isinstance(answer, BookieStatus):
            return InventoryAnswer(answer)
        try:
            return parse_inventory_answer(answer)
        except FrameError:
            return InventoryAnswer(BookieStatus.UNKNOWN)

    async def pull(
        self, target: Source, pull: Pull, timeout_us: int = PULL_TIMEOUT_US
    ) -> PullAnswer:
        """Have the target fetch entries; after TIMEOUT it may have fetched some. As `read`."""
        body = pack_pull(target.member.incarnation, pull)
        answer = await self._call(target, PULL_PATH, body, timeout_us)
        if isinstance(answer, BookieStatus):
            return PullAnswer(answer)
        try:
            return parse_pull_answer(answer)
        except FrameError:
            return PullAnswer(BookieStatus.UNKNOWN)

    async def _call(
        self,
        source: Source,
        path: str,
        body: bytes,
        timeout_us: int,
        *,
        refused: BookieStatus = BookieStatus.TIMEOUT,
    ) -> bytes | BookieStatus:
        deadline_us = _clock_us() + timeout_us
        while True:
            try:
                left_us = max(1, deadline_us - _clock_us())
                return await self._client.call(source.data_url + path, body, left_us)
            except UnreachableError:
                return BookieStatus.UNREACHABLE
            except OverloadedError as error:
                if _clock_us() + error.retry_after_us >= deadline_us:
                    return BookieStatus.OVERLOADED
                await asyncio.sleep(error.retry_after_us / SECOND)
            except RefusedError:
                return refused
            except NoAnswerError:
                return BookieStatus.TIMEOUT


def _no_answer(status: BookieStatus) -> ReadAnswer:
    return ReadAnswer(status, NOTHING, NOTHING, False, [])


def _no_filtered_answer(status: BookieStatus, asked: FilteredRange) -> FilteredAnswer:
    first = asked.wanted.first
    return FilteredAnswer(status, NOTHING, NOTHING, False, asked.filter_number, first)


def _clock_us() -> int:
    return time.monotonic_ns() // 1_000
