"""`duramen ca`: a cluster's certificate authority, kept by hand in a folder.

For clusters whose certificates nobody makes for them. Nothing is asked of a cluster but its uuid.
What needs X.509 is loaded when a command runs.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/identity.md.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import App, Parameter

from duramen.cli.arguments import DataOption, JsonOption
from duramen.cli.cluster.reach import ClusterOption, ZooKeeperOption, find_cluster, reach
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    UsageError,
    print_json,
    print_table,
    run_async,
    say,
)
from duramen.runtime import cluster_node
from duramen.runtime.identity.names import (
    IdentityError,
    InvalidIdentityError,
    Role,
    make_dns_name,
    make_domain,
    make_identity,
)
from duramen.units import agree
from duramen.wire.metadata_json import Paths

if TYPE_CHECKING:
    from duramen.runtime.identity.authority import KeptAuthority
    from duramen.runtime.identity.certificates import Places
    from duramen.runtime.identity.folder import HeldIdentity

T = TypeVar("T")

ca_app: Final = App(name="ca", help="Keep the certificate authority of a cluster in a folder.")

AuthorityFolder = Annotated[Path, Parameter(help="of the CA; nobody else may read it")]
ParentOption = Annotated[
    Path | None, Parameter(help="ca.crt and ca.key of a CA that signs this one")
]


@ca_app.command
def init(
    folder: AuthorityFolder,
    /,
    *,
    uuid: Annotated[str | None, Parameter(help="the cluster's (else it is asked for)")] = None,
    zookeeper: ZooKeeperOption = None,
    cluster: ClusterOption = None,
    data: DataOption = DATA_DEFAULT,
    parent: ParentOption = None,
    replace: Annotated[
        bool, Parameter(negative="", help="the CA that lies there was lost or stolen")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Make a certificate authority for a cluster.

    With --replace what the former one issued is trusted no more: stop the nodes, issue to each of
    them anew, and start them. Data do not depend on it, so a CA that is lost loses none.

    Exit codes: 0 made; 1 one is there already, or failed; 2 usage.
    """
    from duramen.runtime.identity.authority import (
        begin_authority,
        read_authority,
        read_former_domain,
    )

    former = read_former_domain(folder) if uuid is None and replace else None
    if former is not None:
        domain = former
    elif uuid is None:
        domain = run_async(_ask_uuid(*find_cluster(zookeeper, cluster, data)))
    else:
        domain = _parse(make_domain, uuid.replace("-", "").lower())
    now = _now()
    signer = None if parent is None else read_authority(parent, now)
    begin_authority(folder, domain, now, parent=signer, is_replacing=replace)
    if json:
        print_json({"domain": domain})
    say(f"{folder} holds the CA of the cluster {domain}: let nobody else read it, and back it up")
    return ExitCode.OK


@ca_app.command
def issue(
    folder: AuthorityFolder,
    role: Annotated[str, Parameter(help=", ".join(Role))],
    name: Annotated[str, Parameter(help="the node's --id, or of one that only calls any name")],
    /,
    *,
    out: Annotated[Path, Parameter(help="folder to write, made if it is missing")],
    called: Annotated[
        tuple[str, ...],
        Parameter(
            help="DNS name or address by which others call the node (else as in the certificate "
            "that lies there)"
        ),
    ] = (),
    days: Annotated[int, Parameter(help="how long it is valid, 90 at most")] = 7,
    json: JsonOption = False,
) -> int:
    """Issue a certificate for a new key, and write both with what its holder trusts.

    The former one of the same name goes on being valid until it ends or is revoked. A process that
    runs takes the new one when it looks at its folder next.

    Exit codes: 0 issued; 1 refused or failed; 2 usage.
    """
    from duramen.runtime.identity.certificates import LEAF_LIFE_MAX
    from duramen.runtime.identity.folder import read_former_places, write_folder

    if not 0 < days <= LEAF_LIFE_MAX.days:
        raise UsageError(f"--days: 1 to {LEAF_LIFE_MAX.days} is expected")
    with _open(folder) as authority:
        identity = _parse(lambda name: make_identity(authority.domain, role, name), name)
        if called and not identity.role.is_node:
            raise UsageError(f"--called: nobody calls a {role}")
        life = dt.timedelta(days=days)
        places = _sort_places(called) if called else read_former_places(out, identity)
        held = authority.issue(identity, _now(), places=places, life=life)
        write_folder(out, held)
    if json:
        print_json(_describe(held))
    say(f"{out} is {identity} until {held.leaf.not_valid_after_utc:%Y-%m-%d %H:%M UTC}")
    return ExitCode.OK


@ca_app.command
def revoke(
    folder: AuthorityFolder,
    whom: Annotated[str, Parameter(help="ROLE/NAME, for all it has, or a serial as in `list`")],
    /,
    *folders: Annotated[Path, Parameter(help="folders of identities that are to hear of it")],
    json: JsonOption = False,
) -> int:
    """Revoke certificates; the folders given get the new list, as by `publish`.

    A serial is revoked whether this folder knows it or not.

    Exit codes: 0 revoked; 1 nothing valid is theirs, a folder did not take it, or failed; 2 usage.
    """
    now = _now()
    with _open(folder) as authority:
        found = _find_serials(authority, whom, now)
        if not found:
            say(f"duramen: {whom} has nothing that is valid: see `duramen ca list {folder}`")
            return ExitCode.FAILED
        authority.revoke(found, now)
        if json:
            print_json({"revoked": [f"{serial:x}" for serial in sorted(found)]})
        count = agree(f"{len(found)} certificates")
        say(f"revoked {count} of {whom}, for whoever has the new list (`duramen ca publish`)")
        return _publish(authority, folders)


@ca_app.command
def publish(
    folder: AuthorityFolder,
    /,
    *folders: Annotated[Path, Parameter(help="folders of identities")],
    json: JsonOption = False,
) -> int:
    """Write what is trusted and what is revoked into folders, whose certificates stay.

    All folders are tried. One whose certificate is not valid any more is written, and named.
    `duramen run` writes those of its own processes by itself, within a minute.

    Exit codes: 0 written, and all are valid; 1 one is not, or failed; 2 usage.
    """
    if not folders:
        raise UsageError("give the folders of the identities that are to have it")
    with _open(folder) as authority:
        code = _publish(authority, folders)
    if json:
        print_json({"domain": authority.domain, "written": code is ExitCode.OK})
    return code


@ca_app.command
def announce(
    folder: AuthorityFolder,
    /,
    *folders: Annotated[Path, Parameter(help="folders of identities that are to trust it")],
    parent: ParentOption = None,
    json: JsonOption = False,
) -> int:
    """Make a second CA, to take the place of the first; the folders given trust both from now on.

    Give every process's folder, here or by `publish`. After a day `switch` issues by the second
    one. `retire` takes it back.

    Exit codes: 0 made; 1 there are two already, a folder did not take it, or failed; 2 usage.
    """
    from duramen.runtime.identity.authority import read_authority

    now = _now()
    signer = None if parent is None else read_authority(parent, now)
    with _open(folder) as authority:
        authority.announce(now, signer)
        return _report_authorities(authority, folders, is_json=json)


@ca_app.command
def switch(
    folder: AuthorityFolder,
    /,
    *,
    now: Annotated[
        bool, Parameter(negative="", help="every process trusts both, though it is not a day")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Issue by the other of two CAs from now on; once more, and it is the former again.

    What the former issued stays valid: `issue` anew for every process, then `retire` the former.

    Exit codes: 0 switched; 1 there is one CA, the other is known for too short a time, or failed; 2
    usage.
    """
    with _open(folder) as authority:
        authority.switch(_now(), is_known_everywhere=now)
        return _report_authorities(authority, (), is_json=json)


@ca_app.command
def retire(
    folder: AuthorityFolder,
    /,
    *folders: Annotated[Path, Parameter(help="folders of identities that are to hear of it")],
    now: Annotated[
        bool, Parameter(negative="", help="also if certificates of it are valid still")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Trust no more the one of two CAs that does not issue; the folders given hear of it.

    Exit codes: 0 retired; 1 certificates of it are valid, there is one CA, or failed; 2 usage.
    """
    with _open(folder) as authority:
        authority.retire(_now(), is_wanted_now=now)
        return _report_authorities(authority, folders, is_json=json)


@ca_app.command(name="list")
def list_issued(folder: AuthorityFolder, /, *, json: JsonOption = False) -> int:
    """List what a certificate authority issued, and what of it is revoked.

    Exit codes: 0 listed; 1 failed; 2 usage.
    """
    with _open(folder) as authority:
        revoked = authority.list_revoked()
        rows = [
            {
                "identity": one.identity,
                "serial": f"{one.serial:x}",
                "ends": _format_time(one.ends),
                "issuer": one.issuer,
                "revoked": one.serial in revoked,
            }
            for one in authority.list_issued()
        ]
    if json:
        print_json({"domain": authority.domain, "issued": rows})
    else:
        cells = [[str(cell) for cell in row.values()] for row in rows]
        print_table(("identity", "serial", "ends", "issuer", "revoked"), cells, ("issuer",))
    return ExitCode.OK


@ca_app.command
def show(
    folder: Annotated[
        Path, Parameter(help="folder of an identity, as `issue` writes it, or of a CA")
    ],
    /,
    *,
    json: JsonOption = False,
) -> int:
    """Show whose identity a folder holds, and judge it as at a start; of a CA, what it is of.

    Exit codes: 0 it is valid; 1 it is not, or failed; 2 usage.
    """
    from duramen.runtime.identity.folder import read_folder
    from duramen.runtime.identity.generations import AUTHORITY_KEY_FILE, resolve

    if (resolve(folder) / AUTHORITY_KEY_FILE).exists():
        with _open(folder) as authority:
            described = _describe_authority(authority)
    else:
        described = _describe(read_folder(folder, _now()))
    if json:
        print_json(described)
    else:
        print_table(("what", "value"), [[name, str(value)] for name, value in described.items()])
    return ExitCode.OK


def _describe(held: HeldIdentity) -> dict[str, Any]:
    from duramen.runtime.identity.certificates import find_issuer, list_anchors

    return {
        "identity": str(held.identity),
        "serial": f"{held.leaf.serial_number:x}",
        "begins": _format_time(held.leaf.not_valid_before_utc),
        "renew_at": _format_time(held.renew_at),
        "ends": _format_time(held.leaf.not_valid_after_utc),
        "issuer": find_issuer(held.leaf, held.bundle),
        "anchors": list_anchors(held.bundle),
        "revoked_count": sum(len(one) for one in held.bundle.lists),
    }


def _describe_authority(authority: KeptAuthority) -> dict[str, Any]:
    from duramen.runtime.identity.certificates import list_anchors

    anchor = authority.bundle.anchors[0]
    return {
        "authority of": authority.domain,
        "begins": _format_time(anchor.not_valid_before_utc),
        "ends": _format_time(anchor.not_valid_after_utc),
        "anchors": list_anchors(authority.bundle),
        "issued_count": len(authority.list_issued()),
        "revoked_count": len(authority.list_revoked()),
    }


def _report_authorities(
    authority: KeptAuthority, folders: tuple[Path, ...], *, is_json: bool
) -> ExitCode:
    from duramen.runtime.identity.certificates import list_anchors

    anchors = list_anchors(authority.bundle)
    if is_json:
        print_json({"domain": authority.domain, "issuer": anchors[0], "anchors": anchors})
    trusted = f", and {anchors[1]} is trusted" if len(anchors) > 1 else " and nobody else"
    say(f"the CA {anchors[0]} issues{trusted}, by whoever has the new bundle")
    return _publish(authority, folders)


def _format_time(moment: dt.datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _find_serials(authority: KeptAuthority, whom: str, now: dt.datetime) -> set[int]:
    """What is to be revoked: a serial, or all of an identity that has not ended."""
    if "/" not in whom:
        try:
            return {int(whom, 16)}
        except ValueError:
            raise UsageError(f"{whom!r} is neither ROLE/NAME nor a serial") from None
    role, _, name = whom.partition("/")
    wanted = str(_parse(lambda name: make_identity(authority.domain, role, name), name))
    return {
        one.serial for one in authority.list_issued() if one.identity == wanted and one.ends > now
    }


def _publish(authority: KeptAuthority, folders: tuple[Path, ...]) -> ExitCode:
    from duramen.runtime.identity.folder import write_bundle

    code = ExitCode.OK
    for one in folders:
        try:
            write_bundle(one, authority.domain, authority.bundle, _now())
        except (IdentityError, OSError) as error:
            say(f"duramen: {error}")
            code = ExitCode.FAILED
    return code


def _sort_places(called: tuple[str, ...]) -> Places:
    from duramen.runtime.identity.certificates import Address, Places

    names: list[str] = []
    addresses: list[Address] = []
    for text in called:
        try:
            addresses.append(ipaddress.ip_address(text))
        except ValueError:
            names.append(_parse(make_dns_name, text))
    return Places(tuple(names), tuple(addresses))


async def _ask_uuid(hosts: str, cluster: str) -> str:
    """A ZooKeeper that asks for an identity has a CA already, which knows its cluster."""
    async with reach(hosts, None) as (store, _):
        uuid = await cluster_node.find_cluster(store, Paths(cluster))
    if uuid is None:
        raise UsageError(f"ZooKeeper knows no cluster {cluster!r} yet: give --uuid")
    return uuid


@contextmanager
def _open(folder: Path) -> Iterator[KeptAuthority]:
    from duramen.runtime.identity.authority import open_authority

    with open_authority(folder, _now()) as authority:
        yield authority


def _parse(make: Callable[[str], T], text: str) -> T:
    try:
        return make(text)
    except InvalidIdentityError as error:
        raise UsageError(str(error)) from None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
