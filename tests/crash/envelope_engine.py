"""The whole storage with an envelope beside each entry, and what a cookie has to say before it.

The copyset of an entry follows from its bytes, so that another body of the same entry has another
one: whatever is shown has to be with its own (V1). A small file stands for the cookies, which are
not on the simulated disk: a record with an envelope that is met without it is a broken promise
(V5). The cookies themselves are in `component/test_envelope_cookies.py`.

Used by `test_crash_states` and `test_bit_flips`. Source: docs/protocol/envelopes.md "Invariants".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duramen.ids import EntryId, NodeNumber
from duramen.wire.bookie_calls import Add
from duramen.wire.entry import read_entry_info
from duramen.wire.flexible.envelope import Envelope, encode_content, encode_envelope
from tests.crash.disk import Disk
from tests.crash.promises import Addition, Key, View
from tests.crash.storage_engine import LAYOUT, StorageEngine

FORMAT = f"{LAYOUT.data}/format"
BLOCK = 4


def envelope_of(key: Key, body: bytes) -> Envelope:
    """What travels with this body: neighbours of a block have one content, other bodies another."""
    version = len(body) // 100 % 3
    first = key[1] - key[1] % BLOCK
    return Envelope(tuple(NodeNumber(n) for n in (5 + version, 1, 9)), EntryId(first))


class EnvelopeEngine(StorageEngine):
    """See `runs.Engine`."""

    def __init__(self, disk: Disk) -> None:
        self._old_cookies: list[str] = []
        self._is_replayed = False
        self._is_late = False
        if disk.exists(f"{FORMAT}.new"):
            disk.remove(f"{FORMAT}.new")
        self._has_format = disk.exists(FORMAT)
        if self._has_format:  # a kill may have come before the name was durable
            disk.fsync_directory(LAYOUT.data)
        super().__init__(disk)
        self._is_replayed = True
        self._damages += self._old_cookies

    def add(self, adds: Sequence[Addition]) -> None:
        self.storage.secure_format()
        super().add(adds)

    def look(self) -> View:
        view = super().look()
        for key, body in view.entries.items():
            found = self.find_content(key)
            if found is None:
                view.damages.append(f"{key} has no envelope")
            elif found != encode_content(envelope_of(key, body)):
                view.damages.append(f"{key} has another's envelope")
        return view

    def find_content(self, key: Key) -> bytes | None:
        """The content of the envelope of an entry that is here."""
        ledger_id, entry_id = key
        if entry_id in self.core._find_ledger(ledger_id).stored:
            runs = self.storage.hot_contents(ledger_id, entry_id, entry_id)
        else:
            runs = self.storage.settled_contents(ledger_id, entry_id, entry_id)
        return runs[0].content if runs else None

    def list_names(self) -> set[str]:
        return super().list_names() | {FORMAT}

    def _choose_formats(self) -> dict[str, Any]:
        return {"keeps_envelopes": self._has_format, "write_formats": self._write_formats}

    def _call(self, add: Addition) -> Add:
        info = read_entry_info(add.body)
        envelope = envelope_of(add.key, add.body)
        return super()._call(add)._replace(envelope=encode_envelope(envelope, *add.key, info.crc))

    def _write_formats(self) -> None:
        if not self._is_replayed:
            self._old_cookies.append("an envelope stands under an old cookie")
        self._write_format()

    def _write_format(self) -> None:
        self._is_late = False
        if self._disk.exists(FORMAT):
            return
        file = self._disk.open(f"{FORMAT}.new", is_new=True)
        file.pwritev([b"3"], 0)
        file.fsync()
        file.close()
        self._disk.rename(f"{FORMAT}.new", FORMAT)
        self._disk.fsync_directory(LAYOUT.data)
