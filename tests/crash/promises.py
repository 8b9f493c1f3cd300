"""What a storage engine was asked for and what it promised; the judge of what it says later.

An answer is a promise: an acknowledged add, seal, LAC or drop. So is everything that a started
engine shows: what it serves has been read by somebody, and what it does not have was answered as
absent. What was asked for and not answered may have happened or not, until the engine is looked at.

`Promises.find_faults` compares a `View` with all this. Used by `runs` and `explorer`, for every
engine. Source: R10, R13, R15, docs/protocol/journal.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from duramen.core.segment import Totals
from duramen.ids import NOTHING, EntryId, Epoch, LedgerId, LogId
from duramen.wire.entry import encode_entry

Key = tuple[LedgerId, EntryId]

_PART_BYTES: Final = 65_537


class Addition(NamedTuple):
    """An entry to be stored, with what travels beside it."""

    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    body: bytes
    is_recovery: bool = False

    @property
    def key(self) -> Key:
        return self.ledger_id, self.entry_id


@dataclass
class View:
    """Everything that a started engine answers.

    `gone`: ledgers that were dropped. `unknown`: entries that it cannot vouch for. `damages`: what
    it reports as corruption; a power cut alone is no reason for any.
    """

    entries: dict[Key, bytes] = field(default_factory=dict)
    seals: dict[LogId, int] = field(default_factory=dict)
    lacs: dict[LedgerId, EntryId] = field(default_factory=dict)
    gone: set[LedgerId] = field(default_factory=set)
    unknown: set[Key] = field(default_factory=set)
    damages: list[str] = field(default_factory=list)


@dataclass
class Promises:
    """Asked for, and promised, since the first start.

    `asked` holds entries whose fate is open, `kept` those that must be served for ever (or until
    their ledger is dropped); `seals` and `lacs` are (promised, the most that was asked for).
    """

    asked: dict[Key, bytes] = field(default_factory=dict)
    kept: dict[Key, bytes] = field(default_factory=dict)
    seals: dict[LogId, tuple[int, int]] = field(default_factory=dict)
    lacs: dict[LedgerId, tuple[EntryId, EntryId]] = field(default_factory=dict)
    dropping: set[LedgerId] = field(default_factory=set)
    dropped: set[LedgerId] = field(default_factory=set)

    # --- Asked and answered ----------------------------------------------------------------------

    def ask_adds(self, adds: Sequence[Addition]) -> None:
        for add in adds:
            assert self.kept.get(add.key, add.body) == add.body, "a kept entry is never replaced"
            self.asked[add.key] = add.body
            if not add.is_recovery:
                self.ask_lac(add.ledger_id, add.lac)

    def keep_adds(self, adds: Sequence[Addition]) -> None:
        for add in adds:
            self.kept[add.key] = self.asked.pop(add.key)
            if not add.is_recovery:
                self.keep_lac(add.ledger_id, add.lac)

    def ask_seal(self, log_id: LogId, epoch: int) -> None:
        kept, asked = self.seals.get(log_id, (0, 0))
        self.seals[log_id] = kept, max(asked, epoch)

    def keep_seal(self, log_id: LogId, epoch: int) -> None:
        kept, asked = self.seals[log_id]
        self.seals[log_id] = max(kept, epoch), asked

    def ask_lac(self, ledger_id: LedgerId, lac: EntryId) -> None:
        kept, asked = self.lacs.get(ledger_id, (NOTHING, NOTHING))
        self.lacs[ledger_id] = kept, max(asked, lac)

    def keep_lac(self, ledger_id: LedgerId, lac: EntryId) -> None:
        kept, asked = self.lacs[ledger_id]
        self.lacs[ledger_id] = max(kept, lac), asked

    def ask_drop(self, ledger_id: LedgerId) -> None:
        self.dropping.add(ledger_id)

    def keep_drop(self, ledger_id: LedgerId) -> None:
        self.dropping.discard(ledger_id)
        self.dropped.add(ledger_id)
        for entries in (self.asked, self.kept):
            for key in [key for key in entries if key[0] == ledger_id]:
                del entries[key]
        self.lacs.pop(ledger_id, None)

    def copy(self) -> Promises:
        return Promises(
            dict(self.asked), dict(self.kept), dict(self.seals), dict(self.lacs),
            set(self.dropping), set(self.dropped),
        )  # fmt: skip

    # --- Judged ----------------------------------------------------------------------------------

    def find_faults(self, view: View) -> list[str]:
        """What a view says that these promises do not allow; one sentence each."""
        faults = [f"damage without a reason: {damage}" for damage in view.damages]
        faults += [f"{key} is unknown without a reason" for key in sorted(view.unknown)]
        faults += self._find_entry_faults(view)
        for log_id, (kept, asked) in self.seals.items():
            if not kept <= view.seals.get(log_id, 0) <= asked:
                faults.append(f"log {log_id} is sealed to {view.seals.get(log_id, 0)}, not {kept}")
        faults += [f"nobody sealed log {log_id}" for log_id in view.seals.keys() - self.seals]
        for ledger_id, (kept_lac, asked_lac) in self.lacs.items():
            lac = view.lacs.get(ledger_id, NOTHING)
            if not kept_lac <= lac <= asked_lac and ledger_id not in self.dropping:
                faults.append(f"the LAC of {ledger_id} is {lac}, not {kept_lac} … {asked_lac}")
        faults += [f"nobody dropped {x}" for x in view.gone - self.dropped - self.dropping]
        faults += [f"{ledger_id} is back" for ledger_id in self.dropped - view.gone]
        return faults

    def _find_entry_faults(self, view: View) -> list[str]:
        faults = []
        for key, body in self.kept.items():
            if key not in view.entries and not self._may_be_gone(key[0], view):
                faults.append(f"{key} was acknowledged and is lost")
            elif view.entries.get(key, body) != body:
                faults.append(f"{key} is served with other bytes")
        for key, body in view.entries.items():
            if key[0] in view.gone or key[0] in self.dropped:
                faults.append(f"{key} of a dropped ledger is served")
            elif key not in self.kept and self.asked.get(key) != body:
                faults.append(f"{key} is served and was never added like this")
        return faults

    def _may_be_gone(self, ledger_id: LedgerId, view: View) -> bool:
        return ledger_id in self.dropping and ledger_id in view.gone

    def observe(self, view: View) -> None:
        """Whatever the engine showed is promised from now on: presence and absence."""
        for ledger_id in list(self.dropping):
            if ledger_id in view.gone:
                self.keep_drop(ledger_id)
        self.dropping.clear()
        self.kept.update({key: body for key, body in view.entries.items() if key in self.asked})
        self.asked.clear()
        self.seals = {log_id: (epoch, epoch) for log_id, epoch in view.seals.items()}
        self.lacs = {ledger_id: (lac, lac) for ledger_id, lac in view.lacs.items()}


def make_addition(
    ledger_id: LedgerId,
    entry_id: int,
    size_bytes: int,
    *,
    version: int = 0,
    lac: int = NOTHING,
    is_recovery: bool = False,
) -> Addition:
    """A real entry whose payload tells ledger, entry and version in every part of it."""
    rng = random.Random(f"{ledger_id}/{entry_id}/{version}")
    # Repeated in large ones, at a distance that no sector or block has.
    part = rng.randbytes(min(size_bytes, _PART_BYTES))
    before = Totals(entry_id, entry_id * size_bytes)
    body = encode_entry(
        ledger_id=ledger_id,
        entry_id=EntryId(entry_id),
        before=before,
        batches=[(part * (size_bytes // _PART_BYTES + 1))[:size_bytes]],
        record_count=1,
        after=before.plus(Totals(1, size_bytes)),
    )
    return Addition(ledger_id, EntryId(entry_id), EntryId(lac), body, is_recovery)


def ledger(log_id: int, epoch: int) -> LedgerId:
    """The ledger of an epoch of a log."""
    return LedgerId(log_id << 32 | Epoch(epoch))
