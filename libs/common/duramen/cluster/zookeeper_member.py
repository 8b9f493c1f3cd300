"""One member of a bundled ZooKeeper, made for a pod with a stable name and a volume of its own.

Writes the server's configuration from its flags and becomes the Java process, so that signals
reach it directly. One with an identity stays, runs Java as its child, and hands on to it what is
renewed. One member stands alone; three or five are an ensemble, and a member's id is the number at
the end of its name plus one. A member that finds the data of another id refuses to start.

A member without a database (its first start, or a lost volume) makes an empty one only where it is
told that the ensemble is being founded. Else it has no vote until it has the data of the others;
one that stands alone has nobody to get it from, and refuses to start.

Called by `zookeeper_node`. `duramen.runtime.embedded_zookeeper` has what the server needs; ADR 0022
says who tells a member so.
Source: docs/protocol/metadata-access.md "Members of a bundled ensemble".
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from duramen.runtime.embedded_zookeeper import (
    EVERY_ADDRESS,
    HEAP_BYTES,
    INITIALIZE_FILE,
    EmbeddedServerError,
    EnsembleMember,
    find_jars,
    find_java,
    server_command,
    write_configuration,
)
from duramen.runtime.identity.names import IdentityError, Role
from duramen.runtime.identity.zookeeper_files import write_held_files
from duramen.units import MIB, parse_size_bytes
from duramen.wire.edge.gate import is_here

if TYPE_CHECKING:
    from duramen.runtime.identity.folder import HeldIdentity

MEMBER_COUNTS: Final = (1, 3, 5)
FOUNDING_VARIABLE: Final = "DURAMEN_ZOOKEEPER_FOUNDING"
_TRUE: Final = "true"
_HEAP_BYTES_MIN: Final = 64 * MIB
_PATIENT_LOOKS: Final = 6
_DEATH_SIGNAL: Final = 1
"""Of Linux's prctl: which signal a process gets when the one that made it ends."""


class ConfigurationError(ValueError):
    """The flags do not make a member; the text says what to change."""


def run_member(arguments: Sequence[str]) -> int:
    """Become the server; returns the exit status of one that cannot start."""
    options = _parse(arguments)
    try:
        _refuse_anybody(options)
        command = server_command(find_java(), find_jars(), heap_bytes=options.heap_bytes)
        held = None if options.tls_dir is None else _read_identity(options)
        write_member(options)
    except (ConfigurationError, EmbeddedServerError, IdentityError, OSError) as error:
        sys.stderr.write(f"{options.name} cannot start: {error}\n")
        return 1
    if held is not None:
        return asyncio.run(_run_renewed(options, command, held))
    os.chdir(options.data_dir)
    os.execv(command[0], command)
    return 1  # never reached: `execv` raises or does not return


def list_members(
    hosts: Sequence[str], *, quorum_port: int, election_port: int
) -> tuple[EnsembleMember, ...]:
    """The ensemble: ids in the order of the hosts, from 1.

    Raises:
        ConfigurationError: not 1, 3 or 5 different hosts.
    """
    if len(hosts) not in MEMBER_COUNTS or len(set(hosts)) < len(hosts) or not all(hosts):
        raise ConfigurationError(
            f"--members {','.join(hosts)}: name 1, 3 or 5 different hosts, separated by commas"
        )
    return tuple(
        EnsembleMember(server_id, quorum_port, election_port, host)
        for server_id, host in enumerate(hosts, start=1)
    )


def find_server_id(name: str, members_count: int) -> int:
    """The id of the member with this name: the number at its end, plus one.

    Raises:
        ConfigurationError: there is no number, or too great a one.
    """
    found = re.search(r"(\d+)$", name)
    if members_count > 1 and (found is None or int(found[1]) >= members_count):
        raise ConfigurationError(
            f"--name {name}: it must end in a number from 0 to {members_count - 1}, as the names "
            "of a StatefulSet's pods do"
        )
    return int(found[1]) + 1 if found and members_count > 1 else 1


def write_member(options: argparse.Namespace) -> None:
    """Write the configuration of one member into its data folder.

    Raises:
        ConfigurationError: the flags, or the data of another member.
    """
    members = list_members(
        options.members, quorum_port=options.quorum_port, election_port=options.election_port
    )
    server_id = find_server_id(options.name, len(members))
    written = options.data_dir / "data" / "myid"
    if len(members) > 1 and written.exists() and written.read_text().strip() != str(server_id):
        raise ConfigurationError(
            f"{written} is that of member {written.read_text().strip()}, and {options.name} is "
            f"member {server_id}: give it its own volume"
        )
    write_configuration(
        options.data_dir,
        options.client_port,
        members=members if len(members) > 1 else (),
        server_id=server_id,
        host=options.host,
        is_founded_by_hand=True,
        identity_dir=options.tls_dir,
    )
    _allow_founding(options, is_alone=len(members) == 1)


def _refuse_anybody(options: argparse.Namespace) -> None:
    """See that nobody but this machine reaches a member that asks nobody who it is.

    Raises:
        ConfigurationError: others would.
    """
    if options.tls_dir is None and not options.accepts_anybody and not is_here(options.host):
        raise ConfigurationError(
            f"without an identity whoever reaches --host {options.host} may change everything: "
            "give --tls-dir, listen on 127.0.0.1, or say --accept-anybody"
        )


def _read_identity(options: argparse.Namespace) -> HeldIdentity:
    """What the member's folder holds.

    Raises:
        IdentityError: nothing valid, another one's, or nothing that other members would take.
        ConfigurationError: the members make no ensemble.
    """
    from duramen.runtime.identity.folder import read_former_places  # noqa: PLC0415
    from duramen.runtime.security.held_identity import ExpectedNode, read_expected  # noqa: PLC0415

    held = read_expected(options.tls_dir, ExpectedNode(Role.ZOOKEEPER, options.name))
    server_id = find_server_id(options.name, len(options.members))
    host = options.members[min(server_id, len(options.members)) - 1]
    places = read_former_places(options.tls_dir, held.identity)
    named = {*places.names, *map(str, places.addresses)}
    if not {host, f"*.{host.partition('.')[2]}"} & named:
        raise IdentityError(
            f"{options.tls_dir} is of {', '.join(sorted(named)) or 'no host'}, and others call "
            f"this member {host}: issue it for that one, too"
        )
    return held


async def _run_renewed(
    options: argparse.Namespace, command: Sequence[str], held: HeldIdentity
) -> int:
    """Run the server, and hand on what is renewed until it ends; its exit status."""
    from duramen.runtime.security.held_identity import WatchedIdentity  # noqa: PLC0415

    logging.basicConfig(format=f"%(asctime)s %(levelname).1s {options.name} %(name)s: %(message)s")
    # Forked by the only thread there is: the kernel ends a child with the thread that forked it.
    server = await asyncio.create_subprocess_exec(
        *command, cwd=options.data_dir, preexec_fn=_end_with_parent
    )

    def pass_on(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, pass_on, number)
    failures: list[str] = []

    def fail(sentence: str) -> None:
        if not failures:
            sys.stderr.write(f"{options.name} stops: {sentence}\n")
        failures.append(sentence)
        # Told at every look, every 2 s: a server that hangs in its end is not waited for.
        pass_on(signal.SIGTERM if len(failures) < _PATIENT_LOOKS else signal.SIGKILL)

    def hand_on() -> None:
        write_held_files(watched.held, options.data_dir)

    watched = WatchedIdentity(options.tls_dir, held, hand_on, fail)
    watched.start()
    try:
        status = await server.wait()
    finally:
        await watched.stop()
    if failures:
        return 1
    return status if status >= 0 else 128 - status


def _end_with_parent() -> None:
    """In a new child: a server that nobody renews would only be found out when its time is over."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(signal.SIGKILL))


def _allow_founding(options: argparse.Namespace, *, is_alone: bool) -> None:
    """Let ZooKeeper make an empty database where there is none and the ensemble is being founded.

    Raises:
        ConfigurationError: there is neither a database nor anybody to get one from.
    """
    folder = options.data_dir / "data"
    has_database = any((folder / "version-2").glob("snapshot.*")) or any(
        (folder / "version-2").glob("log.*")
    )
    allowed = folder / INITIALIZE_FILE
    if options.is_founding and not has_database:
        folder.mkdir(exist_ok=True)
        allowed.touch()
        return
    # Of a start that was cut off: what was allowed then need not be allowed now.
    allowed.unlink(missing_ok=True)
    if has_database:
        return
    if is_alone:
        raise ConfigurationError(
            f"{folder} holds no database, and its volume may be lost or another one: bring back "
            "the volume or a copy of it. To begin with an empty database, as a new cluster does, "
            "start it with --found"
        )
    sys.stderr.write(
        f"{options.name} has no database in {folder}: it has no vote until it has the data of the "
        "others\n"
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="duramen-zookeeper",
        epilog="duramen-zookeeper health [--alive] [--client-port 2181]: for probes",
    )
    parser.add_argument("--data-dir", type=Path, default=Path("/data"))
    parser.add_argument("--name", default=socket.gethostname(), help="default: the host's name")
    parser.add_argument(
        "--members",
        type=lambda text: text.split(","),
        default=["localhost"],
        help="HOST[,HOST…] of all members, this one too, in the order of their numbers",
    )
    parser.add_argument(
        "--found",
        dest="is_founding",
        action="store_true",
        default=os.environ.get(FOUNDING_VARIABLE) == _TRUE,
        help="make an empty database where there is none: for the first start of a new ensemble, "
        f"and never later; also {FOUNDING_VARIABLE}={_TRUE}",
    )
    parser.add_argument(
        "--tls-dir",
        metavar="DIR",
        type=Path,
        help="the folder of this member's identity (`duramen ca issue` makes one): it speaks TLS "
        "alone, and lets nobody in who has none (default: plain text, and everybody)",
    )
    parser.add_argument(
        "--accept-anybody",
        dest="accepts_anybody",
        action="store_true",
        help="without --tls-dir: listen on other addresses than those of loopback, too",
    )
    parser.add_argument("--host", default=EVERY_ADDRESS, help="the address to listen on")
    parser.add_argument("--client-port", type=int, default=2181)
    parser.add_argument("--quorum-port", type=int, default=2888)
    parser.add_argument("--election-port", type=int, default=3888)
    parser.add_argument(
        "--heap", dest="heap_bytes", type=_parse_heap, default=HEAP_BYTES, help="default: 256MiB"
    )
    return parser.parse_args(arguments)


def _parse_heap(text: str) -> int:
    size = parse_size_bytes(text)
    if size < _HEAP_BYTES_MIN:
        raise argparse.ArgumentTypeError("must be 64MiB or more")
    return size
