"""Answers of admin ports about the cluster: where bookies stand, what waits at their journals, and
whose the logs are.

A sequencer or a bookie makes them; a write proxy passes them on. Members that this process does not
know are passed on as well: who answered may be of a later version.

Called by the sequencer's `placement_operations`, its `ownership`, the bookie's `admin` and the
write proxy's `cluster`. Source: docs/protocol/placement.md "Places and regions, live",
docs/protocol/ownership.md "Through one address".
"""

from __future__ import annotations

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from duramen.runtime.public.answers import Answer


class PassedOn(Answer):
    """What another process may have told."""

    model_config = ConfigDict(extra="allow")


# --- Placement -----------------------------------------------------------------------------------


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


class NodesetMemberAnswer(PassedOn):
    """A bookie that an epoch of a flexible log may use."""

    bookie: str
    incarnation: str
    region: str
    rack: str
    weight: int | float
    absent: bool


class NodesetPlaceAnswer(PassedOn):
    """A rack or region of a nodeset, and what still works while all of it is away (R26)."""

    kind: str
    """`rack` or `region`."""
    place: str
    """`region/rack`, or the region; empty: the nodes whose place is not known."""
    nodes: int
    appendable: bool
    """The others can hold the copies of an entry."""
    recoverable: bool
    """The others are a cover: what was stored last is found out without it."""


class NodesetAnswer(PassedOn):
    """The nodeset that a flexible log's next epoch would have, chosen now."""

    node: int
    rack: int
    region: int
    extras: int
    tolerate: int
    nodes: list[NodesetMemberAnswer]
    """Empty: none can be chosen, and `refusal` says why."""
    refusal: str | None
    waived: list[str]
    """What it lacks, and is taken in spite of."""
    may_be_away: list[str]
    """What may fail at once: appends and recoveries go on."""
    places: list[NodesetPlaceAnswer]
    """Each rack, and each region where there are several."""
    reopens: list[str]
    """Why the open epoch makes way for one with this nodeset; empty: it need not."""


class PlacementCheckAnswer(PassedOn):
    """What the check of a log counted, and the first violations."""

    log_id: str
    segments: int
    fragments: int
    """Of striped segments; flexible ones have none."""
    violations: int
    shown: list[ViolationAnswer]
    nodeset: NodesetAnswer | SkipJsonSchema[None] = None
    """Of a log with `copysets: flexible`; others do not have the member."""


# --- Journals of bookies -------------------------------------------------------------------------


class ReplayAnswer(PassedOn):
    """What the replay at the start found."""

    was_clean: bool
    record_count: int
    replayed_bytes: int
    torn_bytes: int
    damage_count: int
    duration_us: int


class JournalAnswer(PassedOn):
    """What a journal did and what waits; bytes count records with their headers.

    Without the figures, the journal is still replayed.
    """

    state: str
    """`replaying`, `running` or `poisoned`."""
    file_id: int | SkipJsonSchema[None] = None
    file_count: int | SkipJsonSchema[None] = None
    next_commit: int | SkipJsonSchema[None] = None
    waiting_bytes: int | SkipJsonSchema[None] = None
    waiting_count: int | SkipJsonSchema[None] = None
    commit_count: int | SkipJsonSchema[None] = None
    record_count: int | SkipJsonSchema[None] = None
    written_bytes: int | SkipJsonSchema[None] = None
    mark_count: int | SkipJsonSchema[None] = None
    refused_count: int | SkipJsonSchema[None] = None
    sync_us_total: int | SkipJsonSchema[None] = None
    sync_us_last: int | SkipJsonSchema[None] = None
    is_poisoned: bool | SkipJsonSchema[None] = None
    is_out_of_space: bool | SkipJsonSchema[None] = None
    is_next_ready: bool | SkipJsonSchema[None] = None
    room_bytes: int | SkipJsonSchema[None] = None
    spare_count: int | SkipJsonSchema[None] = None
    recycled_count: int | SkipJsonSchema[None] = None
    sealed_file_ids: list[int] | SkipJsonSchema[None] = None
    replay: ReplayAnswer | SkipJsonSchema[None] = None


class _OfBookie(PassedOn):
    bookie: str


# In this order, because the members of the last parent come first.
class BookieJournalAnswer(JournalAnswer, _OfBookie):
    """A bookie and its journal."""


class JournalsAnswer(PassedOn):
    """The journals of the bookies that are there, by id; who did not answer is silent."""

    journals: list[BookieJournalAnswer]
    silent: list[str]


# --- Whose the logs are --------------------------------------------------------------------------


class OwnedLogAnswer(PassedOn):
    """A log with an open segment, its owner, and what the owner counts of it."""

    sequencer: str
    log_id: str


class ListedSequencerAnswer(PassedOn):
    """A sequencer, and how much it is to carry."""

    id: str
    weight: int | float


class WeighedAnswer(PassedOn):
    """How much a sequencer is to carry from now on."""

    id: str
    sequencer_weight: int | float


class OwnersAnswer(PassedOn):
    """Every log with an open segment, by name; who did not answer is silent."""

    logs: list[OwnedLogAnswer]
    sequencers: list[ListedSequencerAnswer]
    silent: list[str]


class MemberAnswer(PassedOn):
    """What a sequencer makes of one, itself too: alive, suspected, confirmed or away."""

    id: str
    state: str
    incarnation: int


class ViewAnswer(PassedOn):
    """What one sequencer makes of all; null: it does not gossip."""

    sequencer: str
    members: list[MemberAnswer] | None


class MembersAnswer(PassedOn):
    """Who answers, as each sequencer sees it; who did not answer this call is silent."""

    views: list[ViewAnswer]
    silent: list[str]


class EventAnswer(PassedOn):
    """What happened to a log."""

    sequencer: str | SkipJsonSchema[None] = None
    unix_ms: int
    event: str
    epoch: int | SkipJsonSchema[None] = None
    reason: str | SkipJsonSchema[None] = None


class OwnStoryAnswer(PassedOn):
    """What one sequencer remembers of a log, oldest first."""

    sequencer: str
    events: list[EventAnswer]


class StoryAnswer(PassedOn):
    """What the sequencers that live remember of a log, oldest first."""

    name: str
    log_id: str
    events: list[EventAnswer]
    silent: list[str]


class HandedOverAnswer(PassedOn):
    """A log that changed hands."""

    source: str = Field(alias="from")
    to: str
    epoch: int
    closed: bool
    """Its segment was closed in peace; false: the new owner recovers it."""


class MoveAnswer(PassedOn):
    """A log that is to move; `outcome`: what became of it, unless it was a dry run."""

    name: str | None
    log_id: str
    source: str = Field(alias="from")
    to: str
    cost: int | float
    outcome: str | SkipJsonSchema[None] = None


class BalancedAnswer(PassedOn):
    """One round of balancing."""

    dry_run: bool
    moves: list[MoveAnswer]
