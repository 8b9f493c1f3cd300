"""What of a log's archive may go, and why: a pure judgement over nodes and a listing.

Kept is, whatever the policy says: what a segment's node names as its cold copy, unless the log has
given that segment up (nobody can read it any more, and no takeover needs it); everything of a log
that may come back; everything of a segment of which nothing is known. A cold copy of what is still
in its log never goes, however old it is.

Called by `retention.driver`. Source: ADR 0016, docs/archive.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.ids import Epoch
from duramen.runtime.cold import ColdFile
from duramen.units import HOUR, MS
from duramen.wire.cold.paths import ColdPath, CompactedPath, parse_compacted, parse_path


class Reason(enum.Enum):
    """Why a file may go; the values are those of the report."""

    LOG_GONE = "its log was deleted for good"
    GIVEN_UP = "its segment was truncated and given up"
    REPLACED = "another copy has replaced it"
    ORPHAN = "no node and no manifest names it"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What the operator lets go.

    Attributes:
        drops_truncated: copies of segments that their log has given up.
        drops_deleted: copies of logs that were deleted for good.
        older_than_us: both, only when they were archived so long ago.
        delay_us: what was replaced, or belongs to nobody, when that is so long ago.
    """

    drops_truncated: bool = False
    drops_deleted: bool = False
    older_than_us: int = 0
    delay_us: int = 24 * HOUR


class RetentionState(NamedTuple):
    """What is known of a log.

    Attributes:
        log: its node; None: there is none, and its id was given away: it is gone.
        segments: from the first live epoch on.
        is_whole: of no segment the metadata are lost; else any copy may be what one of these names.
    """

    log: LogNode | None
    segments: Mapping[Epoch, AnySegment]
    is_whole: bool = True

    @property
    def is_gone(self) -> bool:
        """Whether the log never comes back."""
        return self.log is None or self.log.is_purged


class Removal(NamedTuple):
    """A file that may go."""

    file: ColdFile
    reason: Reason


class _Listed(NamedTuple):
    file: ColdFile
    plain: ColdPath | None
    compacted: CompactedPath | None

    @property
    def epoch(self) -> Epoch | None:
        """The segment's; None of a shared file."""
        if self.plain is not None:
            return self.plain.epoch
        assert self.compacted is not None
        return self.compacted.epoch

    @property
    def is_manifest(self) -> bool:
        """Whether it is one."""
        if self.plain is not None:
            return self.plain.is_manifest
        return self.epoch is not None

    @property
    def attempt(self) -> str | None:
        """The attempt that the path names; None of `manifest.json`."""
        if self.plain is not None:
            return self.plain.attempt
        assert self.compacted is not None
        return self.compacted.attempt


def plan_removals(
    files: Iterable[ColdFile], state: RetentionState, policy: RetentionPolicy, now_unix_ms: int
) -> list[Removal]:
    """Files of one log that may go, manifests first: a manifest never stands without its files.

    Args:
        files: everything below the log's folder, listed before its nodes were read.
    """
    listed = [one for file in files if (one := _parse(file)) is not None]
    judge = _Judge(listed, state, policy, now_unix_ms)
    removals: dict[str, Removal] = {}
    for one in listed:
        reason = judge.judge(one)
        if reason is not None:
            removals[one.file.path] = Removal(one.file, reason)
    left = {
        one.attempt
        for one in listed
        if one.is_manifest and one.compacted is not None and one.file.path not in removals
    }
    for one in listed:
        if one.epoch is None and (reason := judge.judge_shared(one, left)) is not None:
            removals[one.file.path] = Removal(one.file, reason)
    manifests = {one.file.path for one in listed if one.is_manifest}
    return sorted(removals.values(), key=lambda one: (one.file.path not in manifests, one.file))


def _parse(file: ColdFile) -> _Listed | None:
    plain, compacted = parse_path(file.path), parse_compacted(file.path)
    return None if plain is None and compacted is None else _Listed(file, plain, compacted)


class _Judge:
    """Judges the files of one log."""

    def __init__(
        self,
        listed: Sequence[_Listed],
        state: RetentionState,
        policy: RetentionPolicy,
        now_unix_ms: int,
    ) -> None:
        self._state = state
        self._policy = policy
        self._old_ms = now_unix_ms - policy.older_than_us // MS
        self._replaced_ms = now_unix_ms - policy.delay_us // MS
        self._compacted = {
            (one.epoch, one.attempt)
            for one in listed
            if one.compacted is not None and one.is_manifest
        }
        copies = [segment.cold_copy for segment in state.segments.values()]
        self._named = {copy.attempt for copy in copies if copy is not None}

    def judge(self, one: _Listed) -> Reason | None:
        """Why a file of one segment may go; None: it stays."""
        if self._state.is_gone:
            return self._judge_gone(one)
        log, epoch = self._state.log, one.epoch
        assert log is not None
        if epoch is None:
            return None
        if epoch < log.first_live_epoch:
            is_old = one.file.modified_unix_ms <= self._old_ms
            return Reason.GIVEN_UP if self._policy.drops_truncated and is_old else None
        return self._judge_live(one, self._state.segments.get(epoch))

    def _judge_gone(self, one: _Listed) -> Reason | None:
        is_old = one.file.modified_unix_ms <= self._old_ms
        return Reason.LOG_GONE if self._policy.drops_deleted and is_old else None

    def _judge_live(self, one: _Listed, segment: AnySegment | None) -> Reason | None:
        """Of a segment that its log still has: only what is not its cold copy."""
        is_ripe = one.file.modified_unix_ms <= self._replaced_ms
        if segment is None or not is_ripe:
            return None
        copy = segment.cold_copy
        if copy is None:
            # What the archive job left it takes up again, or sweeps itself.
            return Reason.ORPHAN if one.compacted is not None else None
        if one.attempt == copy.attempt or copy.verified_unix_ms > self._replaced_ms:
            return None
        # Of the archive job's own attempts its sweep removes what lost a race.
        is_compacted = (segment.epoch, copy.attempt) in self._compacted
        return Reason.REPLACED if one.compacted is not None or is_compacted else None

    def judge_shared(self, one: _Listed, left: set[str | None]) -> Reason | None:
        """Why a shared file may go.

        Args:
            left: attempts of compaction with a manifest that stays.
        """
        if self._state.is_gone:
            return self._judge_gone(one)
        if not self._state.is_whole or one.attempt in self._named or one.attempt in left:
            return None
        is_ripe = one.file.modified_unix_ms <= self._replaced_ms
        return Reason.ORPHAN if is_ripe else None
