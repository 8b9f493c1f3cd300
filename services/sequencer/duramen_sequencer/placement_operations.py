"""Control calls about placement: bookies and their places, closed regions, checks of logs.

Any sequencer carries them out: what it changes is one node by compare-and-set, fields that it does
not know are kept, and after a conflict or an unknown outcome the node is read again (R3). A change
says the whole new value, so saying it twice is saying it once.

Called by `control` and the admin routes. Source: docs/protocol/placement.md "Places and regions,
live".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from duramen.config import LogConfig
from duramen.core.flexible.nodeset import list_serving
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.hashing import WEIGHT_MAX
from duramen.core.log_node import LogNode
from duramen.core.placement.advice import advise
from duramen.core.placement.choice import explain_refusal
from duramen.core.placement.rule import Candidate, find_violations
from duramen.core.quorum import Quorum
from duramen.core.segment import Segment
from duramen.core.sequencer.proposals import rule_of, rule_of_replication
from duramen.errors import DuramenError
from duramen.ids import BookieId, Epoch, Incarnation, LogId, Member
from duramen.runtime.public.cluster_answers import (
    BookieRowAnswer,
    BookiesAnswer,
    LocatedAnswer,
    MisplacedCopyAnswer,
    PassedOn,
    PlacementCheckAnswer,
    RegionRowAnswer,
    RegionsAnswer,
    ViolationAnswer,
)
from duramen.runtime.registry import refuse_unspoken
from duramen.runtime.sequencer.surveyor import Surveyor, read_closed
from duramen.runtime.stores.metadata_store import Conflict, MetadataStore, OutcomeUnknown
from duramen.units import SECOND
from duramen.wire.metadata_json import (
    BY_ADMIN,
    PLACED_BY,
    Paths,
    encode_node,
    read_any_segment,
    read_log,
    read_node,
)
from duramen_sequencer.flexible.explanation import describe_nodeset, find_narrowness
from duramen_sequencer.flexible.judgement import check_nodeset
from duramen_sequencer.flexible.tree_format import TreeFormat
from duramen_sequencer.log_changes import read_log_id

_TRIES: Final = 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
REGION_COUNT_MAX: Final = 64
VIOLATIONS_SHOWN_MAX: Final = 1_000
"""More are counted."""


def _find_needing(config: LogConfig) -> str | None:
    """The field for which the tree must have its newer format, if there is one."""
    if config.is_flexible:
        return "copysets"
    return None if config.ack_mode == "ordered" else "ack_mode"


class PlacementOperations:
    """Operations of one sequencer; `by_name` for `control`."""

    def __init__(self, store: MetadataStore, paths: Paths, surveyor: Surveyor) -> None:
        self._store = store
        self._paths = paths
        self._surveyor = surveyor
        self._format = TreeFormat(store, paths)
        self.by_name = {
            "bookies": _dumped(self.list_bookies),
            "locate": _dumped(self.locate),
            "regions": _dumped(self.show_regions),
            "close_regions": _dumped(self.close_regions),
            "check_placement": _dumped(self.check_log),
        }

    async def list_bookies(self, _request: Mapping[str, Any]) -> BookiesAnswer:
        """Every bookie: who, where, what it takes."""
        rows = self._surveyor.list_bookies()
        shown = [
            BookieRowAnswer(
                id=row.bookie, incarnation=row.incarnation, region=row.region, rack=row.rack,
                state=row.state, duty=row.duty.value, weight=row.weight,
                free_bytes=row.free_bytes, doubtful=row.is_doubtful,
                takes_new_data=row.takes_new_data, steady_in_s=-(-row.steady_in_us // SECOND),
            )
            for row in rows
        ]  # fmt: skip
        return BookiesAnswer(bookies=shown)

    async def locate(self, request: Mapping[str, Any]) -> LocatedAnswer:
        """Change `region`, `rack` or `storage_capacity` of a bookie, as far as they are given.

        `weight` is the older name of `storage_capacity`, and the one that it is stored by.

        A region or rack that is given here stays over restarts of the bookie, whatever its flags
        say, until `from_flags` leaves the place to them again, from its next start on.

        Raises:
            DuramenError: `invalid_argument`; `metadata_unavailable`: it may be changed or not, the
                same call may be repeated.
        """
        bookie, change = request.get("id"), _read_place(request)
        if not isinstance(bookie, str) or not _NAME.fullmatch(bookie):
            raise DuramenError("invalid_argument", "id: the id of a bookie", field="id")

        def apply(fields: dict[str, Any] | None) -> dict[str, Any]:
            if fields is None or not isinstance(fields.get("incarnation"), str):
                raise DuramenError("invalid_argument", f"there is no bookie {bookie}", field="id")
            changed = {**fields, **change}
            if request.get("from_flags"):
                changed.pop(PLACED_BY, None)
            return changed

        fields = await self._change(f"{self._paths.bookies}/{bookie}", apply)
        shown = {name: fields.get(name) for name in ("region", "rack", "weight")}
        return LocatedAnswer(id=bookie, **shown, from_flags=PLACED_BY not in fields)

    async def show_regions(self, _request: Mapping[str, Any]) -> RegionsAnswer:
        """Every region: how many bookies it has, how many of them take data, whether it is closed.

        The node is read, and not what this process followed: what was closed is shown as closed.
        """
        closed = await self._read_closed()
        rows = self._surveyor.list_bookies()
        names = sorted({*closed, *(row.region for row in rows)})
        shown = [
            RegionRowAnswer(
                region=name,
                bookies=sum(row.region == name for row in rows),
                takes_new_data=sum(
                    row.region == name and row.takes_new_data and name not in closed for row in rows
                ),
                closed=name in closed,
            )
            for name in names
        ]
        return RegionsAnswer(closed=list(closed), regions=shown)

    async def close_regions(self, request: Mapping[str, Any]) -> RegionsAnswer:
        """Close exactly the regions of `closed` for new data, and open the others.

        Raises:
            DuramenError: as `locate`.
        """
        closed = request.get("closed")
        if (
            not isinstance(closed, list)
            or len(closed) > REGION_COUNT_MAX
            or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in closed)
        ):
            detail = f"closed: a list of at most {REGION_COUNT_MAX} names of regions"
            raise DuramenError("invalid_argument", detail, field="closed")
        wanted = sorted(set(closed))
        await self._change(self._paths.regions, lambda fields: {**(fields or {}), "closed": wanted})
        return await self.show_regions({})

    async def check_log(self, request: Mapping[str, Any]) -> PlacementCheckAnswer:
        """Every write set of every fragment that breaks its log's rule (R20), hot segments only;
        of a flexible log also its nodeset.

        Members that are owed data do not count as copies.

        Raises:
            DuramenError: `log_not_found`.
        """
        log = await self._read_log(read_log_id(request))
        newest: AnySegment | None = None
        violations: list[ViolationAnswer] = []
        counts = {"segments": 0, "fragments": 0, "violations": 0}
        for epoch in range(log.first_kept_epoch, log.next_epoch):
            stored = await self._store.get(self._paths.segment(log.log_id, Epoch(epoch)))
            if stored is None:
                continue  # It was trimmed away meanwhile.
            newest = segment = read_any_segment(stored.data)
            if isinstance(segment, FlexibleSegment):
                found = find_narrowness(segment, self._locate_nodes(segment))
            else:
                found = self._check_segment(log, segment, await self._read_owed(segment))
                counts["fragments"] += len(segment.fragments)
            counts["segments"] += 1
            counts["violations"] += len(found)
            violations += found[: VIOLATIONS_SHOWN_MAX - len(violations)]
        told: dict[str, Any] = {"log_id": str(log.log_id), **counts, "shown": violations}
        if log.config.is_flexible:
            serving = list_serving(self._surveyor.list_bookies())
            told["nodeset"] = describe_nodeset(log, newest, serving)
        return PlacementCheckAnswer(**told)

    async def check_config(self, config: LogConfig, log_id: LogId) -> None:
        """Refuse a replication that cannot work, by itself or on the bookies that are registered.

        With no bookie known nothing is said about the cluster: it may be starting. The first
        configuration that is flexible or `out_of_order` has the tree made ready for such logs.

        Raises:
            DuramenError: `invalid_argument` with what would work; `placement_impossible`; of the
                configurations named above also `metadata_unavailable` (retry).
            MetadataError: the metadata store cannot be reached (retry); of those alone.
        """
        if config.ack_mode != "ordered":
            await refuse_unspoken(self._store, self._paths, "ack_mode")
        needing = _find_needing(config)
        if needing is not None:
            await self._format.check(needing)
        self._check_bookies(config, log_id)
        if needing is not None:
            await self._format.ensure(needing)

    def _check_bookies(self, config: LogConfig, log_id: LogId) -> None:
        rows = self._surveyor.list_bookies()
        if config.is_flexible:
            if rows:
                check_nodeset(config, log_id, list_serving(rows))
            return
        replication = config.striped
        advice = advise(replication)
        if advice is not None:
            detail = f"{advice.field}: {advice.detail}"
            raise DuramenError("invalid_argument", detail, field=advice.field)
        if replication.placement != "strict" or not rows:
            return
        quorum = Quorum(replication.ensemble_size, replication.write_quorum, replication.ack_quorum)
        # Who is down or full comes back: only what no return can mend is refused.
        bookies = [row.candidate for row in rows if row.weight > 0 and not row.is_closed]
        refusal = explain_refusal(bookies, quorum, rule_of_replication(replication))
        if refusal is not None and refusal.reason != "search_bound":
            raise DuramenError("placement_impossible", refusal.detail, field="replication")

    # --- Reading and changing --------------------------------------------------------------------

    def _check_segment(
        self, log: LogNode, segment: Segment, owed: set[Member]
    ) -> list[ViolationAnswer]:
        if log.config.is_flexible:
            # The rule that it was made by is not known any more: another kind's is none of it.
            return []
        members = {member for fragment in segment.fragments for member in fragment.ensemble}
        locations = self._surveyor.locate(members)
        rule = rule_of(log)
        found = []
        for fragment in segment.fragments:
            for violation in find_violations(
                fragment.ensemble, segment.quorum, rule, locations, discounted=owed
            ):
                found.append(
                    ViolationAnswer(
                        epoch=segment.epoch,
                        first_entry=fragment.first_entry,
                        kind=violation.kind,
                        found=violation.found,
                        limit=violation.limit,
                        detail=violation.format(segment.quorum, rule),
                        write_set=[
                            _describe_member(member, locations.get(member), member in owed)
                            for member in violation.members
                        ],
                    )
                )
        return found

    def _locate_nodes(self, segment: FlexibleSegment) -> dict[Member, Candidate]:
        return self._surveyor.locate({row.member for row in segment.nodes})

    async def _read_log(self, log_id: LogId) -> LogNode:
        path = self._paths.log(log_id)
        await self._store.sync(path)
        stored = await self._store.get(path)
        if stored is None:
            raise DuramenError("log_not_found", f"there is no log with id {log_id}", field="log")
        return read_log(stored.data)

    async def _read_owed(self, segment: Segment) -> set[Member]:
        """Members of the segment that are owed data, as far as it is recorded."""
        names = await self._store.children(f"{self._paths.repair_owed}/{segment.ledger_id}")
        owed = set()
        for name in names or ():
            bookie, _, incarnation = name.rpartition(".")
            owed.add(Member(BookieId(bookie), Incarnation(incarnation)))
        return owed

    async def _read_closed(self) -> tuple[str, ...]:
        await self._store.sync(self._paths.regions)
        stored = await self._store.get(self._paths.regions)
        return () if stored is None else read_closed(read_node(stored.data))

    async def _change(
        self, path: str, apply: Callable[[dict[str, Any] | None], dict[str, Any]]
    ) -> dict[str, Any]:
        """Bring a node to what `apply` makes of its fields; gives them."""
        for _ in range(_TRIES):
            await self._store.sync(path)
            stored = await self._store.get(path)
            fields = None if stored is None else read_node(stored.data)
            wanted = apply(fields)
            if wanted == fields:
                return wanted
            # The node decides: after a conflict or an unknown outcome it is read again (R3).
            with contextlib.suppress(Conflict, OutcomeUnknown):
                if stored is None:
                    await self._store.create(path, encode_node(wanted), make_parents=True)
                else:
                    await self._store.set(path, encode_node(wanted), version=stored.version)
        raise DuramenError("metadata_unavailable", "the node changes too often: try again")


def _read_place(request: Mapping[str, Any]) -> dict[str, Any]:
    """What of region, rack and capacity is given, and with a place that a person gave it.

    Raises:
        DuramenError: `invalid_argument`.
    """
    change: dict[str, Any] = {}
    for name in ("region", "rack"):
        value = request.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            detail = f"{name}: 1 to 63 of A-Z, a-z, 0-9, '.', '_' and '-'"
            raise DuramenError("invalid_argument", detail, field=name)
        change |= {name: value, PLACED_BY: BY_ADMIN}
    is_from_flags = request.get("from_flags", False)
    if not isinstance(is_from_flags, bool) or (is_from_flags and change):
        detail = "from_flags: true or false, and if true without region and rack"
        raise DuramenError("invalid_argument", detail, field="from_flags")
    given = [name for name in ("storage_capacity", "weight") if request.get(name) is not None]
    if len(given) > 1:
        detail = "storage_capacity and weight are one thing: give storage_capacity"
        raise DuramenError("invalid_argument", detail, field="weight")
    for name in given:
        weight = request[name]
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight <= WEIGHT_MAX:
            detail = f"{name}: a number from 0 to {WEIGHT_MAX:g}"
            raise DuramenError("invalid_argument", detail, field=name)
        change["weight"] = float(weight)
    if not change and not is_from_flags:
        detail = "give region, rack, storage_capacity or from_flags"
        raise DuramenError("invalid_argument", detail, field="region")
    return change


def _describe_member(member: Member, place: Candidate | None, is_owed: bool) -> MisplacedCopyAnswer:
    return MisplacedCopyAnswer(
        bookie=member.bookie,
        incarnation=member.incarnation,
        region=place.region if place is not None else "",
        rack=place.rack if place is not None else "",
        owed=is_owed,
    )


def _dumped(
    operation: Callable[[Mapping[str, Any]], Awaitable[PassedOn]],
) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    """The operation as a control call, whose answer is JSON."""

    async def run(request: dict[str, Any]) -> dict[str, Any]:
        return (await operation(request)).model_dump(exclude_unset=True)

    return run
