"""Answers of admin ports about placement: bookies and their places, regions, checks of logs.

A sequencer makes them; a write proxy passes them on. Members that this process does not know are
passed on as well: the sequencer that answered may be of a later version.

Called by the sequencer's `placement` and the write proxy's `cluster`. Source:
docs/protocol/placement.md "Places and regions, live".
"""

from __future__ import annotations

from pydantic import ConfigDict

from duramen.runtime.public.answers import Answer


class PassedOn(Answer):
    """What another process may have told."""

    model_config = ConfigDict(extra="allow")


class BookieRowAnswer(PassedOn):
    """A bookie: who, where, what it takes."""

    id: str
    incarnation: str
    region: str
    rack: str
    state: str
    """`rw`, `ro` or `absent`."""
    duty: str
    weight: int | float
    free_bytes: int | None
    doubtful: bool
    takes_new_data: bool
    steady_in_s: int
    """0, or the seconds until it is no last choice any more, as the sequencer sees it."""


class BookiesAnswer(PassedOn):
    """Every bookie."""

    bookies: list[BookieRowAnswer]


class LocatedAnswer(PassedOn):
    """Where a bookie stands after a change."""

    id: str
    region: str | None
    rack: str | None
    weight: int | float | None
    from_flags: bool
    """Its place follows its flags again, from its next start on."""


class RegionRowAnswer(PassedOn):
    """A region: how many bookies it has, and how many of them take new data."""

    region: str
    bookies: int
    takes_new_data: int
    closed: bool


class RegionsAnswer(PassedOn):
    """Every region, and the names of those that are closed."""

    closed: list[str]
    regions: list[RegionRowAnswer]


class MisplacedCopyAnswer(PassedOn):
    """A member of a write set that breaks its log's rule."""

    bookie: str
    incarnation: str
    region: str
    rack: str
    owed: bool


class ViolationAnswer(PassedOn):
    """A write set that breaks its log's rule (R20), with the numbers."""

    epoch: int
    first_entry: int
    kind: str
    found: int
    limit: int
    detail: str
    write_set: list[MisplacedCopyAnswer]


class PlacementCheckAnswer(PassedOn):
    """What the check of a log counted, and the first violations."""

    log_id: str
    segments: int
    fragments: int
    violations: int
    shown: list[ViolationAnswer]
