"""What a log node says of its metadata log: which of its records count.

Four numbers that never fall, changed together with what they speak of. `epoch` is the newest epoch
of the metadata log that a keeper opened for writing: opening one sets the log node, so whatever
another keeper has under way is void. A record counts from `first_lsn` to `lsn`, for epochs up to
`through`. Invariants (checked by `validate`):
 1 first_lsn ≤ lsn, where it is there; both lie in epochs up to `epoch`.
 2 through > 0 or first_lsn is there ⇒ lsn is there.
Encoded by `wire`. Source: docs/protocol/metadata-logs.md "Fields of L's log node".
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.ids import Epoch, Lsn


class MetadataMarks(NamedTuple):
    """The four numbers of one version of a log node."""

    epoch: int = 0
    """0: no keeper has opened one yet, and nothing of what follows is there."""

    through: int = 0
    """Every live epoch up to it has left ZooKeeper; 0: none has."""

    first_lsn: Lsn | None = None
    """None: from the beginning; only a rewrite leaves anything behind, since before the first move
    there is history."""

    lsn: Lsn | None = None
    """None: nothing has moved, nor was rewritten."""

    def claimed(self, epoch: Epoch) -> MetadataMarks:
        """A keeper opens `epoch` of the metadata log: part of that very `multi()`."""
        assert epoch > self.epoch, (epoch, self)
        return self._replace(epoch=int(epoch))

    def moved(self, through: Epoch, first: Lsn, last: Lsn) -> MetadataMarks:
        """Epochs up to `through` leave ZooKeeper, with records from `first` to `last`.

        Part of the `multi()` that deletes their nodes.
        """
        assert through > self.through, (through, self)
        assert self._is_written(first, last), (first, last, self)
        return self._replace(through=int(through), lsn=last).validated()

    def rewritten(self, first: Lsn, last: Lsn) -> MetadataMarks:
        """Copies from `first` to `last` count instead of everything before them."""
        assert self._is_written(first, last), (first, last, self)
        return self._replace(first_lsn=first, lsn=last).validated()

    def is_as_new_as(self, other: MetadataMarks) -> bool:
        """Whether none of the numbers is lower: they never fall."""
        return (
            self.epoch >= other.epoch
            and self.through >= other.through
            and (self.first_lsn or 0) >= (other.first_lsn or 0)
            and (self.lsn or 0) >= (other.lsn or 0)
        )

    def validated(self) -> MetadataMarks:
        """The value itself, after its invariants were checked."""
        assert self.epoch >= 0 and self.through >= 0, f"1: {self}"
        if self.lsn is not None:
            assert 1 << 32 <= (self.first_lsn or 1 << 32) <= self.lsn, f"1: {self}"
            assert self.lsn >> 32 <= self.epoch, f"1: {self}"
        is_used = self.through > 0 or self.first_lsn is not None
        assert not is_used or self.lsn is not None, f"2: {self}"
        return self

    def _is_written(self, first: Lsn, last: Lsn) -> bool:
        """Whether records from `first` to `last` are the present keeper's, behind all that count.

        They lie in the epoch that was opened last: nobody else has written there.
        """
        in_own_epoch = first >> 32 == last >> 32 == self.epoch
        return in_own_epoch and first <= last and first > (self.lsn or 0)
