"""Is this the bookie that ZooKeeper knows: cookies compared with it, and disks formatted.

`judge` decides from what stands in the directories and in ZooKeeper, and changes nothing: go on,
format the empty directories of an unknown bookie, replace a lost incarnation because a person said
so, or refuse in a named state: DiskLost, StaleDisk, WrongCluster. A bookie that formatted by itself
would answer "no such entry" for what its lost disk held (R1, BK#4812).

Cookies are written with `is_formatting` first, then the node in ZooKeeper, then the cookies without
it, the data directory's last: what a crash leaves in between holds nothing, and the next start
finishes it.
Called by the bookie's service, `check_cookies` by the offline tools. Source: docs/bookie.md
"Identity".
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

from duramen.ids import BookieId, Incarnation
from duramen.runtime.cluster_node import ensure_cluster, find_cluster
from duramen.runtime.role import StartRefusedError
from duramen.runtime.stores.metadata_store import (
    Conflict,
    ConflictKind,
    Create,
    MetadataStore,
    Set,
    Stored,
    create_parents,
)
from duramen.wire.metadata_json import (
    BY_ADMIN,
    PLACED_BY,
    MetadataJsonError,
    Paths,
    encode_node,
    read_node,
)
from duramen.wire.nodes.formats import FORMATS, PROCESS_FORMATS
from duramen_bookie.cookie import (
    DATA,
    FORMAT,
    JOURNAL,
    NEWEST_FORMAT,
    Cookie,
    Directories,
    DirectorySight,
    DiskLost,
    StaleDisk,
    WrongCluster,
    option_of,
)

_LOG = logging.getLogger(__name__)
_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")


class StartStep(enum.Enum):
    """What a start has to do before the bookie is itself."""

    GO_ON = "go on"
    UPGRADE = "upgrade"
    """Directories of an older format get cookies of the present one."""
    FORMAT = "format"
    """Empty directories begin an incarnation, or a format that was cut off is finished."""
    REPLACE = "replace"
    """Empty directories begin an incarnation in the place of one that is lost."""


class Claim(NamedTuple):
    """Who the process says it is, and what ZooKeeper knows of that one."""

    bookie_id: BookieId
    cluster_uuid: str | None
    """None: there is no such cluster yet."""
    node_path: str
    known: Incarnation | None
    """What `bookies/<id>` names; None: there is no such node."""


# --- Judgement -----------------------------------------------------------------------------------


def judge(
    sights: Sequence[DirectorySight], claim: Claim, *, accepts_new_incarnation: bool
) -> StartStep:
    """What to do; `sights` as `Directories.look` gives them.

    Raises:
        DiskLost, StaleDisk, WrongCluster: one sentence with the way out.
    """
    main, *others = sights
    for sight in sights:
        if sight.settled is not None:
            _refuse_foreign(sight.path, sight.settled, claim)
    for sight in sights:
        _refuse_misplaced(sight)
    cookie = main.settled
    if cookie is None:
        return _judge_empty(main, others, claim, accepts=accepts_new_incarnation)
    if claim.known is None:
        raise StaleDisk(
            f"{claim.node_path} is not in ZooKeeper, so {claim.bookie_id} was removed from the "
            "cluster: use empty directories to join as a new incarnation"
        )
    if claim.known != cookie.incarnation:
        raise StaleDisk(
            f"{main.path} holds incarnation {cookie.incarnation} of {claim.bookie_id}, and "
            f"ZooKeeper knows {claim.known}: use the disks of that one, or empty directories"
        )
    if cookie.format == 1:
        _refuse_unlike_format_1(main, others, cookie)
        return StartStep.UPGRADE
    lost = _list_lost(cookie, main, others)
    if lost:
        full = [sight for sight in sights if sight not in lost]
        raise _lost(
            lost, full, claim.bookie_id, cookie.incarnation, accepts=accepts_new_incarnation
        )
    return StartStep.GO_ON


def check_cookies(sights: Sequence[DirectorySight]) -> Cookie:
    """The bookie's cookie, if all directories are its own; ZooKeeper is not asked.

    Raises:
        DiskLost, StaleDisk: as `judge`; DiskLost also if nothing was ever stored here.
    """
    main, *others = sights
    for sight in sights:
        _refuse_misplaced(sight)
    cookie = main.settled
    if cookie is None:
        raise DiskLost(f"{main.path} holds no bookie: name the data directory of one")
    if cookie.format == 1:
        _refuse_unlike_format_1(main, others, cookie)
        return cookie
    lost = _list_lost(cookie, main, others)
    if lost:
        where = " and ".join(f"{sight.path} ({option_of(sight.place)})" for sight in lost)
        raise DiskLost(
            f"nothing stands in {where}: name the same --journal-dir and --ledger-dir that "
            f"{cookie.bookie_id} is started with"
        )
    return cookie


def _refuse_foreign(path: object, cookie: Cookie, claim: Claim) -> None:
    if claim.cluster_uuid is None:
        raise WrongCluster(
            f"{path} belongs to cluster {cookie.cluster_uuid}, and ZooKeeper has none under this "
            "name: check --cluster and --zookeeper, or use empty directories"
        )
    if cookie.cluster_uuid != claim.cluster_uuid:
        raise WrongCluster(
            f"{path} belongs to cluster {cookie.cluster_uuid}, and this is {claim.cluster_uuid}: "
            "check --cluster and --zookeeper, or use empty directories"
        )
    if cookie.bookie_id != claim.bookie_id:
        raise StaleDisk(
            f"{path} belongs to bookie {cookie.bookie_id}, not {claim.bookie_id}: check --id and "
            "the directories that this bookie is given"
        )


def _refuse_misplaced(sight: DirectorySight) -> None:
    """Within one directory: files have a cookie, and the cookie is of this place."""
    cookie = sight.settled
    is_old_journal = sight.place == JOURNAL  # format 1 had no cookie there
    if cookie is None and sight.has_files and not is_old_journal:
        raise _without_cookie(sight)
    if cookie is not None and cookie.place != sight.place:
        raise StaleDisk(
            f"{sight.path} is given as {option_of(sight.place)}, and its cookie says "
            f"{option_of(cookie.place)} of {cookie.bookie_id}: give each directory in its own place"
        )


def _judge_empty(
    main: DirectorySight, others: Sequence[DirectorySight], claim: Claim, *, accepts: bool
) -> StartStep:
    """The data directory holds nothing."""
    mine = pending_incarnation(main, claim)
    is_mine = mine is not None and mine == claim.known
    full = [s for s in others if not (s.holds_nothing or (is_mine and _is_begun(s, mine)))]
    for sight in full:
        if sight.settled is None:
            raise _without_cookie(sight)
        if sight.settled.incarnation != claim.known:
            raise StaleDisk(
                f"{sight.path} holds incarnation {sight.settled.incarnation} of "
                f"{claim.bookie_id}, and {main.path} holds nothing: use the data directory that "
                "belongs to it, or empty directories throughout"
            )
    if full:
        raise _lost([main], full, claim.bookie_id, claim.known, accepts=accepts)
    if claim.known is None or is_mine:
        return StartStep.FORMAT
    if not accepts:
        raise _lost([main], [], claim.bookie_id, claim.known, accepts=accepts)
    return StartStep.REPLACE


def pending_incarnation(main: DirectorySight, claim: Claim) -> Incarnation | None:
    """The incarnation that an earlier start began to format and did not finish, if it was ours."""
    cookie = main.cookie
    if cookie is None or not cookie.is_formatting:
        return None
    is_ours = (cookie.cluster_uuid, cookie.bookie_id) == (claim.cluster_uuid, claim.bookie_id)
    return cookie.incarnation if is_ours else None


def _is_begun(sight: DirectorySight, incarnation: Incarnation | None) -> bool:
    """Whether a format of this incarnation got as far as this directory, and nobody further."""
    cookie = sight.cookie
    return not sight.has_files and cookie is not None and cookie.incarnation == incarnation


def _list_lost(
    cookie: Cookie, main: DirectorySight, others: Sequence[DirectorySight]
) -> list[DirectorySight]:
    """The directories that hold nothing; every other must be the one that the cookie lists."""
    if set(cookie.volumes) != {sight.place for sight in others}:
        raise StaleDisk(
            f"{cookie.bookie_id} was formatted with {len(cookie.volumes) - 1} of --ledger-dir, and "
            f"{len(others) - 1} of them are given: name each of the first ones, in the same order"
        )
    lost = [sight for sight in others if sight.holds_nothing]
    for sight in others:
        if sight in lost:
            continue
        found = sight.settled
        if found is None:
            raise _without_cookie(sight)
        if found.incarnation != cookie.incarnation:
            raise _of_another_life(sight, found, main, cookie)
        if found.volume_uuid != cookie.volumes[sight.place]:
            raise StaleDisk(
                f"{sight.path} is volume {found.volume_uuid}, and {main.path} knows "
                f"{cookie.volumes[sight.place]} as {option_of(sight.place)}: use that disk"
            )
    return lost


def _refuse_unlike_format_1(
    main: DirectorySight, others: Sequence[DirectorySight], cookie: Cookie
) -> None:
    """Of format 1 there is a journal in its default place, without a cookie, and nothing else."""
    journal, *ledgers = others
    if journal.path.resolve() != (main.path / JOURNAL).resolve():
        raise StaleDisk(
            f"{main.path} has format 1, whose journal is in {main.path / JOURNAL}: start once "
            "without --journal-dir, then stop the bookie and move that directory"
        )
    for sight in others:  # an upgrade that was cut off leaves cookies
        if sight.settled is not None and sight.settled.incarnation != cookie.incarnation:
            raise _of_another_life(sight, sight.settled, main, cookie)
    for sight in ledgers:
        if sight.has_files:
            raise StaleDisk(
                f"{sight.path} has files, and {main.path} has format 1, which knows no ledger "
                "directories: give an empty directory"
            )


def _of_another_life(
    sight: DirectorySight, found: Cookie, main: DirectorySight, cookie: Cookie
) -> StaleDisk:
    return StaleDisk(
        f"{sight.path} is of incarnation {found.incarnation}, and {main.path} of "
        f"{cookie.incarnation}: use the disk that belongs to it"
    )


def _without_cookie(sight: DirectorySight) -> StaleDisk:
    return StaleDisk(
        f"{sight.path} has files but no cookie: restore its cookie.json, or give an empty directory"
    )


def _lost(
    lost: Sequence[DirectorySight],
    full: Sequence[DirectorySight],
    bookie_id: BookieId,
    incarnation: Incarnation | None,
    *,
    accepts: bool,
) -> DiskLost:
    """DiskLost: `lost` hold nothing, `full` still hold something."""
    where = " and ".join(str(sight.path) for sight in lost)
    rest = " and ".join(str(sight.path) for sight in full)
    verb = "holds" if len(lost) == 1 else "hold"
    sentence = (
        f"{where} {verb} nothing, but {bookie_id} is known as incarnation {incarnation}: mount "
        "the disks that it had, or, if they are gone for ever, "
    )
    if not rest:
        sentence += "start with --accept-new-incarnation"
    elif accepts:
        sentence += f"empty {rest} too: --accept-new-incarnation begins with empty directories only"
    else:
        sentence += f"empty {rest} too and start with --accept-new-incarnation"
    return DiskLost(sentence)


# --- Establishing --------------------------------------------------------------------------------


async def establish_identity(
    directories: Directories,
    store: MetadataStore,
    paths: Paths,
    bookie_id: BookieId,
    *,
    region: str,
    rack: str,
    accepts_new_incarnation: bool = False,
    domain: str | None = None,
    old_session_s: float = 0.0,
) -> Cookie:
    """Make sure who this bookie is; on return all directories exist and are its own.

    Safe to begin again after any error.

    Args:
        region, rack: what its flags say; a place that a person gave it live is kept.
        accepts_new_incarnation: a person has said that the known incarnation is lost for ever.
        domain: of the process's identity, whose uuid a new cluster gets; None: it has none.
        old_session_s: how long a registration of the lost incarnation may take to vanish.

    Raises:
        StartRefusedError: DiskLost, WrongCluster or StaleDisk, with the way out; nothing written.
        MetadataError: ZooKeeper gives no answer; try again.
        MetadataJsonError: the cluster's node cannot be read.
    """
    path = paths.bookie(bookie_id)
    cluster_uuid = await find_cluster(store, paths)
    await store.sync(path)
    found = await store.get(path)
    known = _read_bookie(path, found)
    sights = directories.look()
    claim = Claim(bookie_id, cluster_uuid, path, known.get("incarnation"))
    step = judge(sights, claim, accepts_new_incarnation=accepts_new_incarnation)
    own = {
        **_choose_place(bookie_id, known, {"region": region, "rack": rack}),
        FORMATS: dict(PROCESS_FORMATS),
    }
    if step in (StartStep.GO_ON, StartStep.UPGRADE):
        cookie = sights[0].cookie
        assert cookie is not None
        if step is StartStep.UPGRADE:
            cookie = _settle(directories, _list_volumes(directories, cookie))
        cookie = _secure_format(directories, sights, cookie)
        if found is not None and {key: known.get(key) for key in own} != own:
            with contextlib.suppress(Conflict):  # somebody changes its weight: the next start tells
                await store.set(path, encode_node({**known, **own}), version=found.version)
        return cookie
    if step is StartStep.REPLACE:
        await _wait_unregistered(store, f"{paths.available}/{bookie_id}", old_session_s)
    uuid = cluster_uuid or await ensure_cluster(store, paths, domain)
    incarnation = pending_incarnation(sights[0], claim) or Incarnation(uuid4().hex)
    cookie = _begin(directories, Cookie(uuid, bookie_id, incarnation, uuid4().hex))
    fields = {"weight": 1.0, **known, **own, "incarnation": incarnation}
    if found is None:
        await _create(store, path, fields)
    elif known["incarnation"] != incarnation:
        await _replace(store, paths, path, found, known=known, fields=fields)
    return _settle(directories, dataclasses.replace(cookie, is_formatting=False))


def _secure_format(
    directories: Directories, sights: Sequence[DirectorySight], cookie: Cookie
) -> Cookie:
    """One cookie of the newest format makes all of them so: an earlier start was cut off there."""
    found = [sight.cookie.format for sight in sights if sight.cookie is not None]
    if NEWEST_FORMAT not in found:
        return cookie
    directories.secure_newest_format()
    return dataclasses.replace(cookie, format=NEWEST_FORMAT)


def _choose_place(
    bookie_id: BookieId, known: Mapping[str, Any], flags: Mapping[str, str]
) -> dict[str, Any]:
    """Where the bookie is: as its flags say, unless a person has said it since (`placed_by`)."""
    if known.get(PLACED_BY) != BY_ADMIN:
        return dict(flags)
    said = {name: known.get(name) for name in flags}
    if said != flags:
        _LOG.warning(
            "an administrator has placed this bookie in region %s, rack %s, so --region %s and "
            "--rack %s are passed over; to place it by its flags again: duramen bookies locate %s "
            "--from-flags, and restart it",
            said["region"], said["rack"], flags["region"], flags["rack"], bookie_id,
        )  # fmt: skip
    return said


def _list_volumes(directories: Directories, cookie: Cookie) -> Cookie:
    """The data directory's cookie of the present format, with a new volume for every other."""
    _, *others = directories.every
    volumes = {directory.place: uuid4().hex for directory in others}
    return dataclasses.replace(cookie, volumes=volumes, format=FORMAT)


def _begin(directories: Directories, cookie: Cookie) -> Cookie:
    """Make the directories and write cookies that say that they hold nothing yet."""
    cookie = dataclasses.replace(_list_volumes(directories, cookie), is_formatting=True)
    for directory in directories.every:
        directory.make()
    for directory in directories.every:
        directory.write_cookie(_cookie_for(directory.place, cookie))
    return cookie


def _settle(directories: Directories, cookie: Cookie) -> Cookie:
    """Write the cookies for good, the data directory's last: it promises all others."""
    main, *others = directories.every
    for directory in others:
        directory.make()
        directory.write_cookie(_cookie_for(directory.place, cookie))
    main.write_cookie(cookie)
    return cookie


def _cookie_for(place: str, main: Cookie) -> Cookie:
    if place == DATA:
        return main
    return dataclasses.replace(main, place=place, volume_uuid=main.volumes[place], volumes={})


# --- Nodes in ZooKeeper --------------------------------------------------------------------------


def _read_bookie(path: str, found: Stored | None) -> dict[str, Any]:
    """The fields of `bookies/<id>`; none if there is no node."""
    if found is None:
        return {}
    try:
        fields = read_node(found.data)
    except MetadataJsonError as error:
        raise StartRefusedError(
            f"{path} in ZooKeeper cannot be read ({error}): start the version of duramen-bookie "
            "that wrote it"
        ) from error
    incarnation = fields.get("incarnation")
    if not isinstance(incarnation, str) or not _INCARNATION.fullmatch(incarnation):
        raise StartRefusedError(
            f"{path} in ZooKeeper names no incarnation: restore the node, or delete it to join "
            "with empty directories"
        )
    return fields


async def _wait_unregistered(store: MetadataStore, path: str, wait_s: float) -> None:
    """Until nobody serves under this name; a dead process's session takes a while to end."""
    gone = asyncio.Event()
    is_there = await store.get(path, gone.set) is not None
    try:
        async with asyncio.timeout(wait_s):
            while is_there:
                await gone.wait()
                gone = asyncio.Event()
                is_there = await store.get(path, gone.set) is not None
    except TimeoutError as error:
        raise StartRefusedError(
            f"{path} shows that another process serves under this name now: stop that one, or give "
            "this one its own --id"
        ) from error


async def _create(store: MetadataStore, path: str, fields: Mapping[str, Any]) -> None:
    try:
        await store.create(path, encode_node(fields), make_parents=True)
    except Conflict as conflict:
        if conflict.kind is not ConflictKind.NODE_EXISTS:
            raise
        await _refuse_unless_mine(store, path, fields, conflict)


async def _replace(
    store: MetadataStore,
    paths: Paths,
    path: str,
    found: Stored,
    *,
    known: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> None:
    """Put the new incarnation in the old one's place and record that one as lost, at once."""
    old = Incarnation(known["incarnation"])
    record = Create(paths.lost(old), encode_loss(path.rpartition("/")[2], known, fields))
    change = Set(path, encode_node(fields), found.version)
    await create_parents(store.commit, record.path)
    try:
        try:
            await store.commit((record, change))
        except Conflict as conflict:
            if conflict.kind is not ConflictKind.NODE_EXISTS:
                raise
            await store.commit((change,))  # somebody has recorded the loss already
    except Conflict as conflict:
        await _refuse_unless_mine(store, path, fields, conflict)


def encode_loss(
    bookie_id: str, known: Mapping[str, Any], fields: Mapping[str, Any], nonce: str = ""
) -> bytes:
    """Encode `repair/lost/<incarnation>`.

    Args:
        known: fields of the bookie's node with the lost incarnation.
        fields: the same with the one that replaces it.
        nonce: of this change; drawn if it is empty.
    """
    return encode_node(
        {
            "bookie": bookie_id,
            "replaced_by": fields["incarnation"],
            "region": known.get("region"),
            "rack": known.get("rack"),
            "nonce": nonce or uuid4().hex[:24],
        }
    )


async def _refuse_unless_mine(
    store: MetadataStore, path: str, fields: Mapping[str, Any], conflict: Conflict
) -> None:
    """A change met another one: perhaps one's own, after an answer was lost."""
    await store.sync(path)
    found = await store.get(path)
    if _read_bookie(path, found).get("incarnation") != fields["incarnation"]:
        raise StaleDisk(
            f"another bookie took {path} at the same moment: give each its own --id"
        ) from conflict
