"""One member of a bundled ZooKeeper, made for a pod with a stable name and a volume of its own.

Writes the server's configuration from its flags and becomes the Java process, so that signals
reach it directly. One member stands alone; three or five are an ensemble, and a member's id is the
number at the end of its name plus one. A member that finds the data of another id refuses to
start.

A member without a database (its first start, or a lost volume) makes an empty one only where it is
told that the ensemble is being founded. Else it has no vote until it has the data of the others;
one that stands alone has nobody to get it from, and refuses to start.

Called by `zookeeper_node`. `duramen.runtime.embedded_zookeeper` has what the server needs; ADR 0022
says who tells a member so.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

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
from duramen.units import MIB, parse_size_bytes

MEMBER_COUNTS: Final = (1, 3, 5)
FOUNDING_VARIABLE: Final = "DURAMEN_ZOOKEEPER_FOUNDING"
_TRUE: Final = "true"
_HEAP_BYTES_MIN: Final = 64 * MIB


class ConfigurationError(ValueError):
    """The flags do not make a member; the text says what to change."""


def run_member(arguments: Sequence[str]) -> int:
    """Become the server; returns the exit status of one that cannot start."""
    options = _parse(arguments)
    try:
        command = server_command(find_java(), find_jars(), heap_bytes=options.heap_bytes)
        write_member(options)
    except (ConfigurationError, EmbeddedServerError, OSError) as error:
        sys.stderr.write(f"{options.name} cannot start: {error}\n")
        return 1
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
    )
    _allow_founding(options, is_alone=len(members) == 1)


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
