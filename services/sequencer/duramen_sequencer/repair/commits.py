"""Changes that repair makes to nodes, each by one compare-and-set with its predicate (R3, R21).

A swap, a proof, a note that is settled, a bookie's duty. After a conflict or an unknown outcome the
node is read again, and the predicate judged on what stands there: a change that holds already is
done, one that is not allowed any more is given up. Whoever is killed before or after any of these
leaves nothing that is wrong: another auditor finds what is still to be done.

Called by `worker`, `rounds`, `duties`. Source: docs/protocol/metadata.md "The changes",
docs/protocol/repair.md, R3, R9, R21.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from duramen.core.duty import Duty
from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.repair.cluster_view import ACCEPTED
from duramen.core.repair.swap import Swap
from duramen.core.segment import Fragment, Segment, SegmentState
from duramen.errors import DuramenError
from duramen.ids import BookieId, EntryId, Epoch, LedgerId, LogId, Member
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.metadata_store import (
    Conflict,
    Create,
    DeleteNode,
    Op,
    OutcomeUnknown,
    Set,
    Stored,
    create_parents,
)
from duramen.wire.metadata_json import (
    BookieNode,
    MetadataJsonError,
    encode_bookie,
    encode_node,
    encode_segment,
    read_any_segment,
    read_bookie,
    read_node,
    read_segment,
)
from duramen_sequencer.repair.readings import OwedNote, QueueNote

_TRIES: Final = 20

S = TypeVar("S", Segment, FlexibleSegment)

Change = Callable[[S, str], S | None]
"""From a segment and a nonce to the changed one; None: it holds already, or may not be any more."""

Guard = Callable[[], Awaitable[Sequence[Op]]]
"""What a change is bound to besides what it changes."""


class Commits:
    """Compare-and-sets of one auditor."""

    def __init__(self, link: MetadataLink) -> None:
        self._store, self._paths = link.store, link.paths
        self._counts = dict.fromkeys(
            ("swaps", "proofs", "losses", "notes_settled", "duties_changed", "conflicts"), 0
        )

    def statistics(self) -> dict[str, int]:
        """Changes that were applied, and conflicts on the way."""
        return dict(self._counts)

    async def swap(self, log_id: LogId, epoch: Epoch, fragment: Fragment, swap: Swap) -> bool:
        """Name `new` where the fragment names `old`; False: the fragment is another one by now.

        Raises:
            MetadataError: it may be applied or not.
        """

        def change(segment: Segment, nonce: str) -> Segment | None:
            found = settled_fragment(segment, fragment.first_entry)
            if found is None or swap.old not in found.ensemble:
                return None
            if any(m.bookie == swap.new.bookie and m != swap.old for m in found.ensemble):
                return None
            return segment.with_swapped(fragment.first_entry, swap.old, swap.new, nonce)

        segment = await self._change_segment(log_id, epoch, change, "swaps")
        found = None if segment is None else settled_fragment(segment, fragment.first_entry)
        return found is not None and swap.new in found.ensemble and swap.old not in found.ensemble

    async def prove(self, log_id: LogId, epoch: Epoch, fragment: Fragment) -> bool:
        """Mark a fragment as proved, if it has the members whose copies were compared (R9).

        Raises:
            MetadataError: it may be applied or not.
        """

        def change(segment: Segment, nonce: str) -> Segment | None:
            found = settled_fragment(segment, fragment.first_entry)
            if found is None or found.ensemble != fragment.ensemble or found.is_proved:
                return None
            return segment.with_proved(fragment.first_entry, nonce)

        segment = await self._change_segment(log_id, epoch, change, "proofs")
        found = None if segment is None else settled_fragment(segment, fragment.first_entry)
        return found is not None and found.is_proved

    async def lose(
        self, log_id: LogId, epoch: Epoch, fragment: Fragment, ranges: list[tuple[EntryId, EntryId]]
    ) -> bool:
        """Record entries of a CLOSED segment as lost, if the fragment is as it was compared (R15).

        Raises:
            MetadataError: it may be applied or not.
        """

        def change(segment: Segment, nonce: str) -> Segment | None:
            found = settled_fragment(segment, fragment.first_entry)
            is_same = found is not None and found.ensemble == fragment.ensemble
            return segment.with_lost(ranges, nonce) if is_same and segment.is_closed else None

        before = self._counts["losses"]
        await self._change_segment(log_id, epoch, change, "losses")
        return self._counts["losses"] > before

    async def accept_loss(self, member: Member, now_unix_ms: int) -> dict[str, Any]:
        """Note that an incarnation is gone for ever, and that this is accepted; twice is once.

        Its bookie's node goes with it, so that its disks cannot come back: a start on them is
        refused, and one on empty disks is a new incarnation.

        Raises:
            DuramenError: `invalid_argument`: it is registered as available, or not known;
                `metadata_unavailable`: the nodes change too often.
            MetadataError: it may be applied or not.
        """
        path, own_path = self._paths.lost(member.incarnation), self._paths.bookie(member.bookie)
        for _ in range(_TRIES):
            await self._store.sync(path)
            _refuse_available(
                member, await self._store.get(f"{self._paths.available}/{member.bookie}")
            )
            noted, own = await self._store.get(path), await self._store.get(own_path)
            fields = {} if noted is None else read_node(noted.data)
            ops: list[Op] = []
            node = None if own is None else read_bookie(own.data)
            if own is not None and node is not None and node.incarnation == member.incarnation:
                ops.append(DeleteNode(own_path, own.version))
                place = {"region": node.region, "rack": node.rack}
                fields = {"bookie": member.bookie, **place, **fields}
            elif noted is None:
                raise DuramenError(
                    "invalid_argument",
                    f"{member.bookie} has and had no incarnation {member.incarnation}",
                    field="incarnation",
                )
            if ACCEPTED not in fields:
                fields = {**fields, ACCEPTED: now_unix_ms, "nonce": secrets.token_hex(12)}
                data = encode_node(fields)
                if noted is None:
                    await create_parents(self._store.commit, path)
                ops.append(Create(path, data) if noted is None else Set(path, data, noted.version))
            if not ops:
                return {**member._asdict(), ACCEPTED: fields[ACCEPTED]}
            with contextlib.suppress(Conflict, OutcomeUnknown):  # the nodes decide (R3)
                await self._store.commit(tuple(ops))
        raise DuramenError("metadata_unavailable", f"{path} changes too often: try again")

    async def settle_owed(self, note: OwedNote, ranges: EntryRanges) -> None:
        """Leave `ranges` in a note; none: the note goes. Whoever added to it meanwhile wins.

        Raises:
            MetadataError: it may be applied or not.
        """
        spelt = [[int(first), int(last)] for first, last in ranges.list_ranges()]
        with contextlib.suppress(Conflict):
            if spelt:
                data = encode_node({**note.fields, "ranges": spelt})
                await self._store.set(note.path, data, version=note.version)
            else:
                await self._store.delete(note.path, version=note.version)
                await self._remove_empty(note.path.rpartition("/")[0])
            self._counts["notes_settled"] += 1

    async def remove_parent(self, ledger_id: LedgerId) -> None:
        """Take the parent of a ledger's owed notes away, if there are none.

        Raises:
            MetadataError: it may be applied or not.
        """
        await self._remove_empty(f"{self._paths.repair_owed}/{ledger_id}")

    async def settle_report(self, note: QueueNote, member: Member) -> None:
        """Take a member's report out; the last one takes the note with it.

        Raises:
            MetadataError: it may be applied or not.
        """
        reports = dict(note.fields.get("reports", {}))
        reports.pop(f"{member.bookie}.{member.incarnation}", None)
        with contextlib.suppress(Conflict):
            if reports:
                fields = {**note.fields, "reports": reports, "nonce": secrets.token_hex(16)}
                await self._store.set(note.path, encode_node(fields), version=note.version)
            else:
                await self._store.delete(note.path, version=note.version)
            self._counts["notes_settled"] += 1

    async def _remove_empty(self, path: str) -> None:
        """Whoever notes something below at the same time makes the node again."""
        stored = await self._store.get(path)
        if stored is not None and stored.children_count == 0:
            with contextlib.suppress(Conflict):
                await self._store.delete(path, version=stored.version)

    async def change_duty(
        self,
        bookie: BookieId,
        allowed: Mapping[Duty, Duty],
        reason: str,
        guard: Guard | None = None,
    ) -> BookieNode:
        """Move a bookie's duty as `allowed` says; the node as it is afterwards.

        Args:
            allowed: from the duties that may be left to what they become; others stay.
            reason: for who asked, should the bookie not be known.
            guard: asked before each try what else has to be so.

        Raises:
            DuramenError: `invalid_argument`, field `bookie`: there is no such bookie;
                `metadata_unavailable`: it changes too often.
            MetadataError: it may be applied or not.
        """
        path = self._paths.bookie(bookie)
        for _ in range(_TRIES):
            await self._store.sync(path)
            stored = await self._store.get(path)
            if stored is None:
                detail = f"there is no bookie {bookie}: see the list of bookies ({reason})"
                raise DuramenError("invalid_argument", detail, field="bookie")
            node = read_bookie(stored.data)
            if node.duty not in allowed or allowed[node.duty] is node.duty:
                return node
            after = replace(node, duty=allowed[node.duty])
            checks = () if guard is None else await guard()
            try:
                await self._store.commit((Set(path, encode_bookie(after), stored.version), *checks))
            except (Conflict, OutcomeUnknown):
                continue  # the node decides (R3); the same duty twice is the same as once
            self._counts["duties_changed"] += 1
            return after
        raise DuramenError("metadata_unavailable", f"{path} changes too often: try again")

    async def put(self, path: str, fields: Mapping[str, Any] | None) -> None:
        """Make a node hold `fields`, beside those that are not known here; None: remove it.

        What no node of this schema is goes.

        Raises:
            DuramenError: `metadata_unavailable`; MetadataError: it may be applied or not.
        """
        for _ in range(_TRIES):
            await self._store.sync(path)
            stored = await self._store.get(path)
            try:
                if stored is None and fields is not None:
                    await self._store.create(path, encode_node(fields), make_parents=True)
                elif stored is not None and fields is not None:
                    data = encode_node(fields, _read_kept(stored.data))
                    await self._store.set(path, data, version=stored.version)
                elif stored is not None:
                    await self._store.delete(path, version=stored.version)
            except (Conflict, OutcomeUnknown):
                continue
            return
        raise DuramenError("metadata_unavailable", f"{path} changes too often: try again")

    async def change_flexible(
        self, log_id: LogId, epoch: Epoch, change: Change[FlexibleSegment], counted: str
    ) -> FlexibleSegment | None:
        """Apply a change to a flexible segment; as `_change_segment`.

        Raises:
            MetadataError: it may be applied or not.
            MetadataJsonError: it is a striped one, or not understood.
        """
        path = self._paths.segment(log_id, epoch)
        return await self._change_node(path, change, counted, _read_flexible)

    async def _change_segment(
        self, log_id: LogId, epoch: Epoch, change: Change[Segment], counted: str
    ) -> Segment | None:
        """Apply a change to a segment; the segment as it is afterwards, None if it is gone."""
        path = self._paths.segment(log_id, epoch)
        return await self._change_node(path, change, counted, read_segment)

    async def _change_node(
        self, path: str, change: Change[S], counted: str, read: Callable[[bytes], S]
    ) -> S | None:
        segment: S | None = None
        for _ in range(_TRIES):
            await self._store.sync(path)
            stored = await self._store.get(path)
            if stored is None:
                return None
            segment = read(stored.data)
            changed = change(segment, f"repair.{secrets.token_hex(12)}")
            if changed is None:
                return segment
            try:
                await self._store.set(path, encode_segment(changed), version=stored.version)
            except (Conflict, OutcomeUnknown):
                # What stands there now says whether it is ours, or what to decide anew (R3).
                self._counts["conflicts"] += 1
                continue
            # Of flexible segments there are more kinds, which are shown once there is one.
            self._counts[counted] = self._counts.get(counted, 0) + 1
            return changed
        return segment


def _refuse_available(member: Member, available: Stored | None) -> None:
    if available is None or read_node(available.data).get("incarnation") != member.incarnation:
        return
    raise DuramenError(
        "invalid_argument",
        f"{member.bookie} is there with incarnation {member.incarnation}: what it holds is not "
        "lost. Drain it, or stop it first",
        field="incarnation",
    )


def settled_fragment(segment: Segment, first_entry: EntryId) -> Fragment | None:
    """The fragment that begins there, if repair may change it (R21).

    A segment in recovery is left to who recovers it: the ensembles were frozen when it was marked.
    """
    if segment.state is SegmentState.IN_RECOVERY:
        return None
    fragments = segment.fragments if segment.is_closed else segment.fragments[:-1]
    return next((f for f in fragments if f.first_entry == first_entry), None)


def _read_flexible(data: bytes) -> FlexibleSegment:
    segment = read_any_segment(data)
    if not isinstance(segment, FlexibleSegment):
        raise MetadataJsonError("a striped segment stands where a flexible one is expected")
    return segment


def _read_kept(data: bytes) -> dict[str, Any]:
    """Fields of a node that is written over."""
    try:
        return read_node(data)
    except MetadataJsonError:
        return {}
