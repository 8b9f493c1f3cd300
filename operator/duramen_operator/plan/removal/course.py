"""The course of a removal: what is to be recorded next, and what is done for what is recorded.

Each step rests on what was recorded before it and on what the cluster says in this look. Bookies
are stopped one at a time, each by a grant. Called by `plan.cluster`. Pure.
Source: docs/kubernetes/removal.md "Steps".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from duramen.core.duty import Duty
from duramen_operator.names import REMOVAL_ANNOTATION
from duramen_operator.plan.cluster.bookies import SetFrame, find_impossible, make_group
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.spread import DomainShare
from duramen_operator.plan.evictions.restarts import draw_token, name_holder
from duramen_operator.plan.observed import Json, KubeObject
from duramen_operator.plan.removal.record import (
    CANCELLING,
    DRAINING,
    STOPPING,
    KnownBookies,
    is_asked,
    is_past_return,
    know_bookies,
    read_removal,
)
from duramen_operator.plan.steps import Call, Delete, Stop
from duramen_operator.resources.bookies import Removal

LIFE_MS: Final = 600_000
"""Of a grant to remove: longer than a pod has to end in. It is asked for again if it is over."""

_FREE_SHARE: Final = 0.1
_TARGET: Final = "bookie"


def record_next(own: SetFrame, item: KubeObject) -> Removal:
    """What `status.removal` of a bookie is to say after this look."""
    frame, name = own.frame, item.name
    record = read_removal(frame.observed, name)
    known = know_set(own)
    is_impossible = next(find_impossible(own), None) is not None
    if frame.observed.is_paused or frame.is_held or is_impossible or not known.is_told:
        return record
    is_leaving, duty = name in own.leaving, known.find_duty(name)
    match record:
        case "":
            return DRAINING if is_leaving else ""
        case "Draining":
            if not is_leaving:
                return CANCELLING
            return STOPPING if known.is_empty(name) else DRAINING
        case "Stopping":
            if _is_past_return(own, name):
                return STOPPING
            if not is_leaving:
                return CANCELLING
            return STOPPING if known.is_empty(name) else DRAINING
        case "Cancelling":
            if is_leaving:
                return DRAINING
            is_held = _find_grant(own, item) is not None or is_marked(own, name)
            return CANCELLING if is_held or duty not in {Duty.SERVING, None} else ""


def record_cause(own: SetFrame, item: KubeObject) -> Literal["", "name", "replicas"]:
    """What `status.removalBy` is to say beside it."""
    now = record_next(own, item)
    if not now or now == CANCELLING:
        return ""
    if now == read_removal(own.frame.observed, item.name) and item.status.get("removalBy"):
        is_by_name = is_asked(item) or item.status["removalBy"] == "name"
    else:
        is_by_name = is_asked(item)
    return "name" if is_by_name else "replicas"


def _is_past_return(own: SetFrame, name: str) -> bool:
    """Whether its StatefulSet went, and its claims with it perhaps: it would find no disks."""
    share = next(share for share in own.shares if name in share.bookies)
    group = share.find_group(name)
    return group.is_lone and is_past_return(own.frame.observed, name, group.name)


def plan_course(own: SetFrame) -> Iterator[Call | Delete]:
    """What is done for what is recorded, but for stops."""
    known = know_set(own)
    for share in own.shares:
        for name in share.bookies:
            item = own.frame.observed.find("Bookie", name)
            if item is None or item.is_leaving or own.bookie_set.uid not in item.owner_uids:
                continue
            match read_removal(own.frame.observed, name):
                case "Draining" if _is_to_drain(own, share, item, known):
                    yield Call(item.ref, "POST", _path(name, "drain"), is_admin_port=True)
                case "Stopping" if _may_be_let_go(own, name, known):
                    yield from _let_go(own, share, item)
                case "Cancelling" if name not in own.leaving and not is_marked(own, name):
                    is_free = _find_grant(own, item) is None
                    if is_free and known.find_duty(name) not in {None, Duty.SERVING}:
                        path = _path(name, "cancel-drain")
                        yield Call(item.ref, "POST", path, is_admin_port=True)
                case _:
                    pass


def plan_stops(frame: ClusterFrame, sets: Sequence[SetFrame]) -> Iterator[Call | Stop]:
    """The one bookie whose turn it is to be stopped, and grants that are done with."""
    if not frame.observed.admin.is_reachable:
        return
    grants = frame.observed.admin.disruptions
    ours = [one for one in grants or () if _is_ours(frame, one)]
    due = [one for own in sets for one in _list_due(own)]
    for grant in ours:
        if not any(grant["token"] == make_token(frame, item) for _, _, item in due):
            yield from _end(frame, sets, grant)
    if grants is None or len(grants) > len(ours) or not due:
        return
    begun = [one for one in due if any(g["token"] == make_token(frame, one[2]) for g in ours)]
    if ours and not begun:
        return
    own, share, item = (begun or due)[0]
    yield _make_stop(own, share, item)


def know_set(own: SetFrame) -> KnownBookies:
    """What is known of the bookies of a set."""
    names = (name for share in own.shares for name in share.bookies)
    return know_bookies(own.frame.observed, names)


def make_token(frame: ClusterFrame, item: KubeObject) -> str:
    """The question whether this very bookie may be stopped for good."""
    return draw_token(frame, f"{item.uid}/remove")


def is_marked(own: SetFrame, name: str) -> bool:
    """Whether its StatefulSet says that it is to be stopped, or does not make it any more."""
    found, place = _find_place(own, name)
    if found is None:
        return False
    marked = found.annotations.get(REMOVAL_ANNOTATION, "").split(",")
    return name in marked or int(found.spec.get("replicas", 1)) <= place


def _list_due(own: SetFrame) -> Iterator[tuple[SetFrame, DomainShare, KubeObject]]:
    """Bookies that are to be stopped and that their StatefulSet still makes; of a shared one the
    last that it makes."""
    known = know_set(own)
    for share in own.shares:
        for group in share.groups:
            found = own.frame.observed.find("StatefulSet", group.name)
            if found is None or found.is_leaving:
                continue
            count = min(int(found.spec.get("replicas", 1)), len(group.bookies))
            name = group.bookies[count - 1] if count else ""
            item = own.frame.observed.find("Bookie", name)
            if item is None or not is_marked(own, name):
                continue
            behind = group.bookies[count - 1 :]
            is_recorded = all(read_removal(own.frame.observed, b) == STOPPING for b in behind)
            if is_recorded and name in own.leaving and all(map(known.is_empty, behind)):
                yield own, share, item


def _make_stop(own: SetFrame, share: DomainShare, item: KubeObject) -> Stop:
    frame, name = own.frame, item.name
    group = share.find_group(name)
    found, place = _find_place(own, name)
    assert found is not None, "it was due"
    question = {
        "token": make_token(frame, item),
        "target": f"{_TARGET}/{name}",
        "kind": "remove",
        "holder": name_holder(frame),
        "life_ms": LIFE_MS,
    }
    must_ask = not know_set(own).is_nobody(name)
    manifest = make_group(own, share, group, place)
    return Stop(item.ref, manifest, found.uid, question if must_ask else None)


def _is_stopped(own: SetFrame, name: str) -> bool:
    """Whether nothing runs of it, nor will."""
    found, place = _find_place(own, name)
    is_made = found is not None and int(found.spec.get("replicas", 1)) > place
    return not is_made and own.frame.observed.find("Pod", name) is None


def _is_to_drain(own: SetFrame, share: DomainShare, item: KubeObject, known: KnownBookies) -> bool:
    """Whether its drain is to be asked for. Of bookies that share a StatefulSet the last one is the
    first: one that is drained before those behind it could not go, and they might be refused."""
    name = item.name
    sharing = share.find_group(name).bookies
    behind = sharing[sharing.index(name) + 1 :]
    is_turn = all(known.find_duty(one) is not Duty.SERVING for one in behind)
    is_serving = known.find_duty(name) is Duty.SERVING
    room = count_room(own, name)
    has_room = room is not None and room.suffices
    return is_serving and is_turn and name in own.leaving and has_room


class DrainRoom(NamedTuple):
    """What moves off the bookies that go, what the others have free, and have to keep so."""

    moved_bytes: int
    free_bytes: int
    kept_bytes: int

    @property
    def suffices(self) -> bool:
        return self.free_bytes - self.moved_bytes >= self.kept_bytes


def count_room(own: SetFrame, name: str) -> DrainRoom | None:
    """What moves if this bookie is drained: from those that go already, that are asked for in this
    pass before it, and from it. Of the others a tenth has to stay free. None: nobody counted it.

    A disk that is full takes no appends; the cluster itself judges places, and not bytes.
    """
    observed, admin = own.frame.observed, own.frame.observed.admin
    rows, held = admin.bookies or {}, admin.holdings
    if held is None or name not in held:
        return None
    asked = {one.name for one in observed.list("Bookie") if one.name <= name}
    going = {one for one, row in rows.items() if row.get("duty") != Duty.SERVING.value} | {name}
    going |= {one for one in asked if read_removal(observed, one) == DRAINING}
    moved = sum(int(held.get(one, {}).get("bytes") or 0) for one in going)
    free = sum(
        max(0, int(row.get("free_bytes") or 0)) for one, row in rows.items() if one not in going
    )
    left = sum(int(held.get(one, {}).get("bytes") or 0) for one in rows if one not in going)
    return DrainRoom(moved, free, math.ceil(_FREE_SHARE * (free + left)))


def _may_be_let_go(own: SetFrame, name: str, known: KnownBookies) -> bool:
    """Whether it is stopped, and still to go, or past the point of coming back."""
    is_to_go = name in own.leaving and known.is_empty(name)
    return _is_stopped(own, name) and (is_to_go or _is_past_return(own, name))


def _let_go(own: SetFrame, share: DomainShare, item: KubeObject) -> Iterator[Delete]:
    """The StatefulSet of this one bookie, and its object, once no grant is for it."""
    if _find_grant(own, item) is not None:
        return
    found, _ = _find_place(own, item.name)
    if share.find_group(item.name).is_lone and found is not None:
        if not found.is_leaving and own.bookie_set.uid in found.owner_uids:
            yield Delete(found.ref, found.uid, found.resource_version)
        return
    yield Delete(item.ref, item.uid, item.resource_version)


def _end(frame: ClusterFrame, sets: Sequence[SetFrame], grant: Json) -> Iterator[Call]:
    """End a grant of which nothing is left to be done: the pod is gone, or it is not to go."""
    name = str(grant["target"]).partition("/")[2]
    item = frame.observed.find("Bookie", name)
    if item is not None and grant["token"] == make_token(frame, item):
        owning = [own for own in sets if any(name in share.bookies for share in own.shares)]
        if not owning:
            return  # its set is not valid, or leaves: who took the grant may still be at it
        for own in owning:
            record = read_removal(frame.observed, name)
            is_done = _is_stopped(own, name) if record == STOPPING else not is_marked(own, name)
            if not is_done:
                return
    about = frame.cluster.ref if item is None else item.ref
    path = f"/v1/cluster/disruptions/{grant['token']}"
    yield Call(about, "DELETE", path, is_admin_port=True)


def _is_ours(frame: ClusterFrame, grant: Json) -> bool:
    is_bookie = str(grant.get("target")).partition("/")[0] == _TARGET
    is_removal = is_bookie and grant.get("kind") == "remove"
    return is_removal and grant.get("holder") == name_holder(frame)


def _find_grant(own: SetFrame, item: KubeObject) -> Json | None:
    """The outstanding grant to remove a bookie."""
    token = make_token(own.frame, item)
    grants = own.frame.observed.admin.disruptions or ()
    return next((one for one in grants if one.get("token") == token), None)


def _find_place(own: SetFrame, name: str) -> tuple[KubeObject | None, int]:
    """The StatefulSet that makes a bookie, and from how many replicas on it does."""
    share = next(share for share in own.shares if name in share.bookies)
    group = share.find_group(name)
    return own.frame.observed.find("StatefulSet", group.name), group.bookies.index(name)


def _path(bookie: str, what: str) -> str:
    return f"/v1/cluster/bookies/{bookie}/{what}"
