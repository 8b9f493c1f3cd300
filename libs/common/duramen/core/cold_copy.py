"""What a closed segment's node says of its copy in the cold store.

The archive records a copy after reading back everything that it wrote and comparing it with the
bookies' copies. A second look later makes the copy *rechecked*; the hot copies may be released only
then. The value names the attempt whose manifest counts. The manifest's place follows from log,
epoch and store.

The transitions are `core.segment`'s. Encoded as JSON by `wire.metadata_json`.
Source: docs/protocol/archive.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

_ATTEMPT: Final = re.compile(r"[0-9a-f]{32}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ColdCopy:
    """A verified copy of a whole segment in the cold store."""

    attempt: str
    """Which run wrote it: a uuid as 32 hex digits."""

    manifest_sha256: str
    """Of the manifest's bytes, as 64 hex digits."""

    size_bytes: int
    """Of its files together."""

    verified_unix_ms: int
    """When it was read back and compared."""

    rechecked_unix_ms: int | None = None
    """When that was done once more; None: not yet, so the hot copies stay."""

    @property
    def is_rechecked(self) -> bool:
        """Whether the hot copies may go, if the log's policy says so."""
        return self.rechecked_unix_ms is not None

    def rechecked(self, unix_ms: int) -> ColdCopy:
        """The same copy after another look, which found it whole."""
        return replace(self, rechecked_unix_ms=unix_ms)

    def validate(self) -> None:
        """Assert that both names are hex of their length, and that no number is negative."""
        assert _ATTEMPT.fullmatch(self.attempt), self
        assert _SHA256.fullmatch(self.manifest_sha256), self
        assert self.size_bytes >= 0 and self.verified_unix_ms >= 0, self
        assert self.rechecked_unix_ms is None or self.rechecked_unix_ms >= 0, self
