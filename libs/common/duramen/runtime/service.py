"""The frame of every service process: options, logging, signals, admin port, start and stop.

A service is an object as `role.RoleService` describes it; this module gives it a process. SIGTERM
and SIGINT stop it cleanly, `POST /v1/drain-and-stop` does the same, and a failure while it runs
(`fail`) ends the process with status 1 and one clear sentence on stderr. So does a broken invariant
that nobody took, in a process that decides what is stored.

A service starts only where `--security` says whether it has an identity. Called by `main` of each
service. Source: docs/protocol/admin.md "Every service".
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from duramen.config import parse_client_limits
from duramen.core.hashing import WEIGHT_MAX
from duramen.errors import DuramenError
from duramen.limits import (
    ADMIN_CONNECTION_COUNT_PER_PEER,
    AUDIT_INTERVAL_US,
    CONNECTION_COUNT_MAX,
    GIVE_UP_AFTER_US,
    JOURNAL_FILE_BYTES,
    JOURNAL_FILE_BYTES_MAX,
    JOURNAL_FILE_BYTES_MIN,
    LOST_BOOKIE_GRACE_US,
    METADATA_AGE_MAX_US,
    OPEN_FILE_COUNT_MAX,
    PUBLIC_CONNECTION_COUNT_MAX,
    STEADY_AFTER_US,
    ZOOKEEPER_SESSION_S,
)
from duramen.runtime.admin import make_admin_app
from duramen.runtime.cold import open_cold_store
from duramen.runtime.edge.admin_connections import AdminConnections
from duramen.runtime.edge.cross_origin import parse_origin
from duramen.runtime.http_server import AdminServer
from duramen.runtime.role import PRIVATE_UMASK, RoleService, ServiceOptions, StartRefusedError
from duramen.runtime.security.process_security import ProcessSecurity, open_security
from duramen.runtime.shared_tasks import take_failure
from duramen.units import KIB, MIB, format_size, parse_duration_us, parse_size_bytes
from duramen.wire.edge.gate import parse_name

_LOG = logging.getLogger(__name__)

_JOURNAL_BLOCK_BYTES = 4 * KIB


_MALLOC_OPTIONS = ((-3, 32 * MIB), (-1, 128 * MIB), (-2, 16 * MIB))
"""Of glibc's mallopt: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD."""

_DECIDING_ROLES = ("bookie", "sequencer")
"""Proxies hold nothing: there a request that meets a fault fails, and others go on."""

_CONNECTION_COUNT_MOST = 1_000_000

_ADDRESS_ERRORS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)

MakeService = Callable[[ServiceOptions, Callable[[str], None], ProcessSecurity | None], RoleService]
"""Builds the service inside the running loop; the second argument is `fail(sentence)`. What the
process has of an identity is opened and closed by the frame: its admin port needs it first."""


def parse_options(
    role: str, argv: Sequence[str] | None = None, *, epilog: str | None = None
) -> ServiceOptions:
    """Read the command line of a service; faults end the process with status 2.

    Args:
        epilog: stands below the options in the help.
    """
    parser = argparse.ArgumentParser(prog=f"duramen-{role}", epilog=epilog)
    parser.add_argument("--cluster", required=True, help="name of the cluster in ZooKeeper")
    parser.add_argument("--id", required=True, dest="node_id", help="stable name of this node")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--data-port", type=int, required=True)
    parser.add_argument("--admin-port", type=int, required=True)
    parser.add_argument("--zookeeper", required=True, help="HOST:PORT[,HOST:PORT…]")
    parser.add_argument("--region", default="local")
    parser.add_argument("--rack", default="r0")
    _add_security_options(parser)
    parser.add_argument("--session-timeout-s", type=float, default=ZOOKEEPER_SESSION_S)
    parser.add_argument(
        "--advertise",
        metavar="HOST:PORT",
        type=_parse_address,
        help="where others reach the data port, as behind a proxy or in a pod, and under whose "
        "host they reach the admin port; default: HOST:DATA_PORT",
    )
    parser.add_argument(
        "--public-name",
        metavar="NAME",
        type=_parse_name,
        action="append",
        dest="public_names",
        help="a further name that this node is called by, as behind an ingress or by a service of "
        "Kubernetes; may be repeated. Called by any other name but those of loopback, --host and "
        "--advertise it answers 421; addresses need not be named",
    )
    parser.add_argument("--data-dir", type=Path, required=role == "bookie")
    _add_connection_options(parser, is_public=role in ("writeproxy", "readproxy"))
    if role in ("bookie", "sequencer"):
        _add_stream_option(parser)
    if role == "bookie":
        _add_disk_options(parser)
    if role == "sequencer":
        _add_sequencer_options(parser)
        _add_audit_options(parser)
    if role in ("bookie", "sequencer", "writeproxy"):
        _add_gossip_option(parser)
    if role in ("writeproxy", "readproxy"):
        _add_proxy_options(parser)
    if role == "readproxy":
        _add_age_option(parser)
    if role in ("sequencer", "readproxy"):
        parser.add_argument(
            "--cold-store",
            metavar="URL",
            type=_parse_cold_store,
            help="where the archive lies: file:///folder, s3://bucket/prefix or "
            "webhdfs://host:port/directory (default: none)",
        )
    options = vars(parser.parse_args(argv))
    _check_security(parser, options)
    try:
        options["client_limits"] = parse_client_limits(options.get("client_limits", ()))
    except DuramenError as error:
        parser.error(f"--client-limit: {error.detail}")
    repeated = ("ledger_dirs", "cors_origins", "public_names")
    lists = {name: tuple(options.get(name) or ()) for name in repeated}
    return ServiceOptions(role=role, **options | lists)


def _add_security_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--security",
        choices=["on", "migrate", "none"],
        default="on",
        help="on, the default: this node has an identity, in --tls-dir, and asks its callers for "
        "theirs; migrate: it has one, listens with TLS and without, and counts whom it would "
        "refuse; none: whoever reaches its ports may do everything",
    )
    parser.add_argument(
        "--tls-dir",
        metavar="DIR",
        type=Path,
        help="the folder of this node's identity (`duramen ca issue` makes one), for --security on "
        "and migrate",
    )
    parser.add_argument(
        "--accept-anybody",
        dest="accepts_anybody",
        action="store_true",
        help="with --security none or migrate: listen on other addresses than those of loopback, "
        "too, though whoever reaches a port may do everything",
    )
    for kind in ("data", "admin"):
        parser.add_argument(
            f"--tls-{kind}-port",
            type=int,
            help=f"where it listens with TLS beside --{kind}-port, for --security migrate",
        )


def _check_security(parser: argparse.ArgumentParser, options: Mapping[str, Any]) -> None:
    security = options["security"]
    if security == "on" and options["accepts_anybody"]:
        parser.error("give --accept-anybody without --security on: that one asks who calls")
    if security != "none" and options["tls_dir"] is None:
        parser.error(
            "give --tls-dir with the folder of this node's identity (`duramen ca issue` makes "
            "one), or --security none, with which whoever reaches its ports may do everything"
        )
    if security == "none":
        _refuse_identity(parser, options)
    is_turning = security == "migrate"
    if is_turning != (options["tls_admin_port"] is not None):
        parser.error("give --tls-admin-port with --security migrate, and with it alone")
    # A public port without a certificate stays plain; inside, the identity is the certificate.
    has_pair = is_turning and options.get("public_tls_dir", True) is not None
    if has_pair != (options["tls_data_port"] is not None):
        parser.error(
            "give --tls-data-port with --security migrate (of a proxy, where it has "
            "--public-tls-dir), and with it alone"
        )
    if options.get("is_audit_required"):
        if security != "on":
            parser.error("give --audit-require with --security on alone: else all is not recorded")
        if options["data_dir"] is None:
            parser.error("give --data-dir with --audit-require: records wait there")


def _refuse_identity(parser: argparse.ArgumentParser, options: Mapping[str, Any]) -> None:
    if options["tls_dir"] is not None:
        parser.error("give --tls-dir with --security on or migrate alone")
    if options.get("public_tls_dir") is not None:
        parser.error("give --public-tls-dir with --security on or migrate alone")
    if options.get("issuers") is not None:
        parser.error(
            "give --issuers with --security on or migrate alone: else nobody is asked who it is"
        )


def _parse_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return text


def _parse_name(text: str) -> str:
    try:
        return parse_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_origin(text: str) -> str:
    try:
        return parse_origin(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_proxy_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--public-tls-dir",
        metavar="DIR",
        type=Path,
        help="the folder of the public port's certificate: tls.crt with its chain, tls.key, and, "
        "where the cluster's CA has not issued it, ca.crt with what proxies trust for one another; "
        "read again when it changes (default: the port speaks HTTP in clear)",
    )
    parser.add_argument(
        "--issuers",
        metavar="FILE",
        type=Path,
        help="whose web tokens are believed at the public port, for --security on and migrate "
        "(default: nobody's; API tokens and identities are)",
    )
    parser.add_argument(
        "--audit-require",
        dest="is_audit_required",
        action="store_true",
        help="refuse changes (audit_unavailable) while the audit log is away and no room is left "
        "for their records in --data-dir (default: make them, and count the records that are lost)",
    )
    parser.add_argument(
        "--no-forwarding",
        dest="is_forwarding",
        action="store_false",
        help="refuse calls that the other kind of proxy answers, instead of sending them on",
    )
    parser.add_argument(
        "--cors-origin",
        metavar="ORIGIN",
        type=_parse_origin,
        action="append",
        default=[],
        dest="cors_origins",
        help="pages of this origin may read the answers, such as http://localhost:8000; may be "
        "repeated (default: none)",
    )
    parser.add_argument(
        "--client-limit",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="client_limits",
        help="how much of this process each client may have, such as calls_per_s=500 or "
        "bytes_per_s=64MiB; `none` is no limit; may be repeated. The names and defaults stand in "
        "docs/protocol/limits.md",
    )


def _add_stream_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stream-port",
        type=int,
        help="where it serves standing streams, by which small appends take less (0: any port that "
        "is free; default: nowhere, and each append is a call); with --security migrate nobody "
        "does",
    )
    parser.add_argument(
        "--advertise-stream-port",
        metavar="PORT",
        type=int,
        dest="advertised_stream_port",
        help="under which port others reach it, where that is another one, as behind a forwarder; "
        "the host is that of --advertise",
    )


def _add_gossip_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-gossip",
        dest="is_gossiping",
        action="store_false",
        help="take no part in finding out which sequencer answers nobody; where none does, a "
        "frozen one keeps its logs until its session with ZooKeeper ends",
    )


def _add_age_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metadata-age-max",
        dest="metadata_age_max_us",
        type=parse_duration_us,
        default=METADATA_AGE_MAX_US,
        help="while ZooKeeper cannot be read, logs that are known are read for so long, as if "
        "nothing was truncated or deleted meanwhile (default: 5m)",
    )


def _parse_cold_store(text: str) -> str:
    try:
        open_cold_store(text)
    except DuramenError as error:
        raise argparse.ArgumentTypeError(error.detail) from None
    return text


def _add_disk_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--journal-dir", type=Path, help="default: <data>/journal")
    parser.add_argument(
        "--ledger-dir",
        type=Path,
        action="append",
        dest="ledger_dirs",
        help="may be repeated, always in the same order; default: <data>/ledgers",
    )
    parser.add_argument(
        "--journal-file-size",
        dest="journal_file_bytes",
        type=_parse_journal_file_size,
        default=JOURNAL_FILE_BYTES,
        help="what a journal file takes; a disk holds some of them (default: 256MiB)",
    )
    parser.add_argument(
        "--journal-first-file-size",
        dest="first_journal_file_bytes",
        type=_parse_journal_file_size,
        help="what the first one takes, if that is less; one that was filled is followed by one of "
        "twice its size, up to --journal-file-size (default: that, from the first one on)",
    )
    parser.add_argument(
        "--accept-new-incarnation",
        action="store_true",
        help="the disks that this bookie had are gone for ever: begin with empty ones",
    )


def _add_sequencer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weight",
        type=_parse_weight,
        default=1.0,
        help="share of the logs, relative to other sequencers; 0: none but by hand-over",
    )
    parser.add_argument(
        "--bookie-steady-after",
        dest="bookie_steady_after_us",
        type=parse_duration_us,
        default=STEADY_AFTER_US,
        help="a bookie that came back gets new data after it has stayed so long, where others "
        "suffice (default: 30s)",
    )
    parser.add_argument(
        "--give-up-after",
        dest="give_up_after_us",
        type=parse_duration_us,
        default=GIVE_UP_AFTER_US,
        help="a log that too few bookies here serve for so long goes to a sequencer that says it "
        "reaches them; 0s: never (default: 10s)",
    )
    parser.add_argument(
        "--no-metadata-logs",
        dest="keeps_metadata_logs",
        action="store_false",
        help="leave metadata of released segments in ZooKeeper; once some have left it, no process "
        "of a version before metadata logs starts any more",
    )
    parser.add_argument(
        "--no-balance",
        dest="is_balancing",
        action="store_false",
        help="as the auditor, move no logs from sequencers that carry more than their share; to be "
        "given to every sequencer",
    )


def _add_audit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--audit-interval",
        dest="audit_interval_us",
        type=parse_duration_us,
        default=AUDIT_INTERVAL_US,
        help="rest between two audits of all metadata (default: 1m)",
    )
    parser.add_argument(
        "--lost-bookie-grace",
        dest="lost_bookie_grace_us",
        type=parse_duration_us,
        default=LOST_BOOKIE_GRACE_US,
        help="a bookie that is away for longer counts as lost (default: 30s)",
    )


def _add_connection_options(parser: argparse.ArgumentParser, *, is_public: bool) -> None:
    most = PUBLIC_CONNECTION_COUNT_MAX if is_public else CONNECTION_COUNT_MAX
    parser.add_argument(
        "--connections",
        dest="connection_count",
        type=_parse_count,
        default=most,
        help="how many the data port reads from, as far as half of the files that the process may "
        f"open allow; an idle one takes 13 KiB (default: {most})",
    )
    parser.add_argument(
        "--admin-connections-per-peer",
        dest="admin_connection_count_per_peer",
        type=_parse_count,
        default=ADMIN_CONNECTION_COUNT_PER_PEER,
        help="how many one address may have open to the admin port (default: "
        f"{ADMIN_CONNECTION_COUNT_PER_PEER})",
    )


def _parse_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _CONNECTION_COUNT_MOST:
        raise argparse.ArgumentTypeError(
            f"must be a whole number from 1 to {_CONNECTION_COUNT_MOST}"
        )
    return int(text)


def _parse_weight(text: str) -> float:
    weight = float(text)
    if not 0 <= weight <= WEIGHT_MAX:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {WEIGHT_MAX:.0f}")
    return weight


def _parse_journal_file_size(text: str) -> int:
    size = parse_size_bytes(text)
    if size % _JOURNAL_BLOCK_BYTES or not JOURNAL_FILE_BYTES_MIN <= size <= JOURNAL_FILE_BYTES_MAX:
        raise argparse.ArgumentTypeError(
            "must be a multiple of 4KiB from "
            f"{format_size(JOURNAL_FILE_BYTES_MIN)} to {format_size(JOURNAL_FILE_BYTES_MAX)}"
        )
    return size


def run_service(options: ServiceOptions, make: MakeService) -> int:
    """Run a service until it is told to stop; returns the exit status."""
    if not __debug__:
        sys.stderr.write("duramen refuses to run under python -O: its assertions are needed\n")
        return 2
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s %(levelname).1s {options.node_id} %(name)s: %(message)s",
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    _keep_freed_memory()
    os.umask(PRIVATE_UMASK)
    _open_more_files()
    try:
        return uvloop.run(_ServiceFrame(options, make).run())
    except StartRefusedError as error:
        sys.stderr.write(f"{options.node_id} cannot start: {error}\n")
        return 1
    except OSError as error:
        if error.errno not in _ADDRESS_ERRORS:
            raise
        ports = {
            "--data-port": options.data_port,
            "--admin-port": options.admin_port,
            "--stream-port": options.stream_port,
        }
        taken = {option: port for option, port in ports.items() if port is not None}
        sys.stderr.write(
            f"{options.node_id} cannot start: {os.strerror(error.errno)}: {options.host}, port "
            f"{_join_or(map(str, taken.values()))}. End what listens there, or give others as "
            f"--host, {_join_or(taken)}\n"
        )
        return 1


def _join_or(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"


def _open_more_files() -> None:
    """Ask for as many descriptors as connections and files of data may need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_free = hard == resource.RLIM_INFINITY
    wanted = OPEN_FILE_COUNT_MAX if is_free else min(hard, OPEN_FILE_COUNT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _keep_freed_memory() -> None:
    """Let the C library keep large buffers that are freed, up to some hundred MiB.

    By default glibc gives each back at once, and taking it again costs a page fault per 4 KiB:
    482 of them for one answer of 1 MiB, more than all of our own code. Elsewhere: nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, size_bytes in _MALLOC_OPTIONS:
            mallopt(parameter, size_bytes)


def _spare_collector() -> None:
    """What is there after the start stays: the collector of cycles never looks at it again."""
    gc.collect()
    gc.freeze()


class _ServiceFrame:
    def __init__(self, options: ServiceOptions, make: MakeService) -> None:
        self._options = options
        self._make = make
        self._stopping = asyncio.Event()
        self._failure: str | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        if self._options.role in _DECIDING_ROLES:
            loop.set_exception_handler(self._on_loop_fault)
        security = open_security(self._options, self._fail)
        try:
            if security is not None:
                # What is revoked counts from the first request on, also while ZooKeeper is away.
                security.start()
            await self._serve(security)
        finally:
            if security is not None:
                await security.stop()
        if self._failure is not None:
            sys.stderr.write(f"{self._options.node_id} stops: {self._failure}\n")
            return 1
        return 0

    async def _serve(self, security: ProcessSecurity | None) -> None:
        service = self._make(self._options, self._fail, security)
        tally = None if security is None else security.tally
        app = make_admin_app(service, self._options, self._stopping.set, tally)
        options = self._options
        if options.is_turning:
            _LOG.warning("--security migrate: nobody is refused, what would be is counted")
        connections = AdminConnections(options.admin_connection_count_per_peer)
        ports = [(options.admin_port, not options.is_turning)]
        if options.tls_admin_port is not None:
            ports.append((options.tls_admin_port, True))
        admins = [
            AdminServer(
                options.host,
                port,
                app,
                options.make_gate(),
                connections=connections,
                security=security,
                has_tls=has_tls,
            )
            for port, has_tls in ports
        ]
        await asyncio.gather(*(admin.start() for admin in admins))
        try:
            start = asyncio.create_task(service.start())
            start.add_done_callback(take_failure)
            stop = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                await start
                _spare_collector()
                _LOG.info("ready on port %d", self._options.data_port)
            else:
                start.cancel()
            await stop
        finally:
            await service.stop()
            await asyncio.gather(*(admin.stop() for admin in admins))

    def _on_loop_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A task or a callback ended with what nobody took: what it was to do is not done."""
        loop.default_exception_handler(context)
        if isinstance(error := context.get("exception"), AssertionError):
            self._fail(f"a broken invariant: {error!r}")

    def _fail(self, sentence: str) -> None:
        _LOG.error("%s", sentence)
        self._failure = self._failure or sentence
        self._stopping.set()
