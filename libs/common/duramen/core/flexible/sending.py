"""Who sends an entry of a flexible segment, where its holders are asked for a single copy.

Each holder decides for itself, from the envelope of its own copy and from the reader's filter:
the filter says who is up, and whom the reader wants a block from. It names who is up and not who
is down, so that whoever left the map, and whom the reader has not read of, are down.

A holder that does not send says nothing of the entry: neither that it is here nor that it is not.
So what nobody sent is asked for once more, of all and without a filter. An envelope is a hint: if
it is wrong, an entry comes twice or by the second asking, and never not at all.

Pure. Called by bookies, and by readers that look for who has to send. Source:
docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", V8, V12, V13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from duramen.ids import EntryId, NodeNumber


class ReadFilter(NamedTuple):
    """Of which of several holders a reader wants an entry."""

    up: frozenset[NodeNumber]
    """Who of the reader's map is alive and sent what it was to send."""
    senders: Mapping[EntryId, NodeNumber]
    """Who is to send the entries of a sticky block, by the id of its first entry."""


class CopysetHint(Protocol):
    """What an envelope says."""

    @property
    def copyset(self) -> tuple[NodeNumber, ...]:
        """Nodes in the order in which they send."""

    @property
    def block(self) -> EntryId | None:
        """The first entry of its sticky block."""


def has_to_send(
    read_filter: ReadFilter | None, envelope: CopysetHint | None, own: NodeNumber | None
) -> bool:
    """Whether a bookie sends an entry that is here.

    Args:
        read_filter: None: whatever is here is sent.
        envelope: of the copy that is here; None: it has none.
        own: the bookie's number in the reader's map; None: it has none.
    """
    if read_filter is None or envelope is None or own not in envelope.copyset:
        return True
    sender = find_sender(read_filter, envelope)
    return sender is None or sender == own


def find_sender(read_filter: ReadFilter, envelope: CopysetHint) -> NodeNumber | None:
    """Whom a copyset leaves an entry to; None: nobody in it is up, and each holder sends it."""
    chosen = None if envelope.block is None else read_filter.senders.get(envelope.block)
    if chosen in read_filter.up and chosen in envelope.copyset:
        return chosen
    return next((number for number in envelope.copyset if number in read_filter.up), None)
