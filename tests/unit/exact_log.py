"""A log with producers before the core of its sequencer: appends with sequences, and their answers.

Used by `test_exactly_once_appends`, `test_shortage` and `test_sequencer_service`.
Source: docs/protocol/write.md.
"""

from __future__ import annotations

from typing import Any

from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.exactly_once.stamps import Stamp
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.core.status import BookieStatus
from duramen.ids import epoch_of
from duramen.units import SECOND
from duramen.wire.control_record import encode_control
from tests.unit.sequencer_driver import OK, Driver

WAIT_US = 5 * SECOND


class Log:
    """An owner whose bookies answer when told."""

    def __init__(self, driver: Driver | None = None) -> None:
        self.driver = driver or Driver()
        self.driver.context.encode_control = encode_control
        self.count = 0
        if driver is None:
            self.driver.activate()

    def append(self, stamp: Stamp | None = None, **more: Any) -> int:
        """Two records; returns the append's number."""
        self.count += 1
        append = QueuedAppend(
            self.count, b"batch", 2, more.pop("max_txid", None), 5,
            more.pop("deadline_us", self.driver.now_us + WAIT_US), stamp=stamp, **more,
        )  # fmt: skip
        self.driver.core.append(append, self.driver.now_us)
        self.driver.core.pump(self.driver.now_us)
        return self.count

    def store(self) -> None:
        """Everything under way is stored, and every LAC taken."""
        while self.driver.store_all() or self.take_lacs():
            pass

    def take_lacs(self, status: BookieStatus = OK) -> bool:
        lacs = self.driver.take(fx.SendLac)
        for lac in lacs:
            epoch = epoch_of(lac.ledger_id)
            self.driver.core.on_lac(lac.member, epoch, status, self.driver.now_us, lac.round_id)
        return bool(lacs)

    def fails(self) -> list[tuple[int, str]]:
        return [(fail.append_id, fail.code) for fail in self.driver.take(fx.Fail)]

    def done(self) -> list[tuple[int, int, bool]]:
        return [(d.append_id, d.seq_num, d.is_duplicate) for d in self.driver.take(fx.Complete)]
