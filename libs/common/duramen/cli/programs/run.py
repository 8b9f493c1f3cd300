"""`duramen run`: a whole cluster on this machine, until Ctrl-C; `--demo` is what `make run` shows.

Frames the supervisor: flags, events as text or JSON lines, signals, the summary when all is ready.
SIGINT, SIGTERM and SIGHUP stop everything in order; a second one ends it at once. Nothing here
starts or watches a process itself.

Called by `cli.main`. Source: README.md "Two commands", docs/cli.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from duramen.cli.arguments import JsonOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    FoundUrl,
    UsageError,
    open_client,
    print_json,
    print_table,
    run_async,
    say,
)
from duramen.cli.programs.demo import run_demo, show_demo
from duramen.cli.shell.waiting import TOLD_AFTER_S
from duramen.client.credentials.local_cluster import CURL_FILE, find_local_credential
from duramen.client.retry import repeat_while_refused
from duramen.cluster.cluster_file import ClusterState, recall_security
from duramen.cluster.layout import REGION, ClusterSize, Security
from duramen.cluster.programs import find_missing, format_missing
from duramen.cluster.supervisor import ClusterEvent, ClusterOptions, Supervisor
from duramen.errors import DuramenError
from duramen.limits import ZOOKEEPER_SESSION_S
from duramen.runtime.edge.cross_origin import parse_origin
from duramen.runtime.role import PRIVATE_UMASK
from duramen.units import SECOND, parse_duration_us
from duramen.wire.edge.gate import parse_name

NAMESPACE: Final = "default"
_NAMESPACE_TIMEOUT_S: Final = 20.0
_BOOKIES_FOR_DEFAULTS: Final = 3
_SESSION_MIN_S, _SESSION_MAX_S = 1.0, 10.0
"""What the server beside the cluster grants: 2 and 20 of its ticks."""

_BasePortOption = Annotated[
    int | None,
    Parameter(
        help="bookies have this + 1 and up, sequencers + 101, write proxies + 201, read "
        "proxies + 301, two ports each, ZooKeeper + 81, all of which must be free (and standing "
        "streams those from + 100 and + 200 down, or any); 0: any free ones; without it 7100, and "
        "others for those that are taken"
    ),
]
_OriginsOption = Annotated[
    tuple[str, ...],
    Parameter(
        negative="",
        help="pages of this origin may call both proxies, such as http://localhost:8000; may be "
        "repeated",
    ),
]
_NamesOption = Annotated[
    tuple[str, ...],
    Parameter(
        negative="",
        help="a further name under which services are called, as behind a reverse proxy, beside "
        "those of loopback; may be repeated",
    ),
]
_ColdStoreOption = Annotated[
    str | None,
    Parameter(help="URL of the archive (docs/cold-store.md); without it the folder cold in --data"),
]
_GossipOption = Annotated[
    bool, Parameter(help="sequencers find out together which of them answers nobody")
]
_SessionOption = Annotated[
    str, Parameter(help="how long a process that stopped without a word keeps its logs, from 1s")
]
_MetadataLogsOption = Annotated[
    bool, Parameter(help="metadata of released segments leave ZooKeeper for logs of their own")
]
_SecurityOption = Annotated[
    Security | None,
    Parameter(
        help="on: a CA in --data gives each service a certificate, and ports ask who calls; none: "
        "whoever reaches a port may do everything; migrate: as none, with ports of both kinds, and "
        "duramen security report tells whom on would refuse; without it --data stays as it was, a "
        "new one is on"
    ),
]
_FileOption = Annotated[
    Path | None, Parameter(help="the demo's file; without it Python's own library")
]
_TEXTS: Final = {
    "leftover": "{id}: ending pid {pid}, left behind by an earlier run",
    "opened": "it ran with identities: {detail} are anybody's now, who reaches it",
    "exited": "{id}: pid {pid} ended with status {status}",
    "restarting": "{id}: starting again in {pause_s:.1f} s",
    "fault": "{detail}",
    "stopping": "stopping …",
    "stopped": "stopped",
}


@dataclass(frozen=True, slots=True)
class _Demo:
    """What `--demo` asks for."""

    is_once: bool
    file: Path | None


def run(
    *,
    data: Annotated[Path, Parameter(help="folder of the cluster's data")] = DATA_DEFAULT,
    bookies: int = 3,
    sequencers: int = 1,
    write_proxies: int = 1,
    read_proxies: int = 1,
    regions: Annotated[
        str | None, Parameter(help="names with commas: processes of each role take turns in them")
    ] = None,
    racks: Annotated[
        str | None,
        Parameter(help="names with commas, of every region; else each process has its own rack"),
    ] = None,
    base_port: _BasePortOption = None,
    zookeeper: Annotated[
        str | None, Parameter(help="HOST:PORT of a server to use; without it one is run here")
    ] = None,
    session_timeout: _SessionOption = f"{ZOOKEEPER_SESSION_S:g}s",
    restart: Annotated[bool, Parameter(help="start again what ends")] = True,
    gossip: _GossipOption = True,
    metadata_logs: _MetadataLogsOption = True,
    security: _SecurityOption = None,
    cors_origin: _OriginsOption = (),
    public_name: _NamesOption = (),
    cold_store: _ColdStoreOption = None,
    json: JsonOption = False,
    demo: Annotated[
        bool, Parameter(negative="", help="append a file, read it back, compare")
    ] = False,
    once: Annotated[bool, Parameter(negative="", help="stop after the demo")] = False,
    file: _FileOption = None,
) -> int:
    """Run a whole cluster on this machine until Ctrl-C: real processes, data kept in a folder.

    What runs where is in cluster.json in the folder, true at any time. Logs are in logs/. Without
    --base-port ports are kept from run to run where they are free. The folder is for its owner
    alone (mode 0700).

    Exit codes: 0 stopped, or the demo went well; 1 could not run, or the demo did not; 2 usage.
    """
    _check_demo(demo=demo, once=once, file=file)
    if find_missing("run"):
        raise UsageError(format_missing("run", "run"))
    options = ClusterOptions(
        folder=data.absolute(),
        size=ClusterSize(
            bookies, sequencers, write_proxies, read_proxies,
            regions=_split(regions) or (REGION,), racks=_split(racks),
        ),
        base_port=base_port,
        zookeeper=zookeeper,
        is_restarting=restart,
        is_gossiping=gossip,
        keeps_metadata_logs=metadata_logs,
        security=_choose_security(security, data, zookeeper),
        session_timeout_s=_parse_session_s(session_timeout),
        cors_origins=_check_each(parse_origin, "--cors-origin", cors_origin),
        public_names=_check_each(parse_name, "--public-name", public_name),
        cold_store=_check_cold_store(cold_store),
    )  # fmt: skip
    os.umask(PRIVATE_UMASK)
    wanted = _Demo(is_once=once, file=file) if demo else None
    return run_async(_run(options, wanted, is_json=json))


def _check_demo(*, demo: bool, once: bool, file: Path | None) -> None:
    if (once or file is not None) and not demo:
        raise UsageError("--once and --file belong to --demo")
    if file is not None and not file.is_file():
        raise UsageError(f"--file {file}: no such file")


def _choose_security(wanted: Security | None, data: Path, zookeeper: str | None) -> Security:
    """What the line says, else what the folder was, else on; says where it is none unasked, and
    that `migrate` protects nothing.

    Its processes start anew in any case, so it goes from each to each.
    """
    recalled = None if wanted is not None else recall_security(data)
    chosen = wanted or recalled or "on"
    if chosen == "migrate" and zookeeper is not None:
        raise UsageError(
            "--security migrate is for a ZooKeeper that duramen run starts itself: another's is "
            "turned by hand (docs/runbooks/TurningSecurityOn.md); with --zookeeper say --security "
            "on or none"
        )
    if chosen == "migrate":
        begun = "with" if wanted is not None else f"{data} goes on with"
        say(
            f"{begun} --security migrate: nobody is refused, so whoever reaches its ports may do "
            "everything; duramen security report tells whom --security on would refuse"
        )
    if recalled == "none":
        say(
            f"{data} ran with --security none, and does so again: whoever reaches its ports may "
            "do everything, and there is no curl.conf or token; --security on gives it identities, "
            "and keeps its records"
        )
    return chosen


def _split(names: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",")) if names is not None else ()


def _check_each(parse: Callable[[str], str], flag: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(map(parse, texts))
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _check_cold_store(url: str | None) -> str | None:
    from duramen.runtime.cold import open_cold_store

    try:
        if url is not None:
            open_cold_store(url)
    except DuramenError as error:
        raise UsageError(f"--cold-store: {error.detail}") from None
    return url


def _parse_session_s(text: str) -> float:
    try:
        seconds = parse_duration_us(text) / SECOND
    except ValueError as error:
        raise UsageError(f"--session-timeout: {error}") from None
    if not _SESSION_MIN_S <= seconds <= _SESSION_MAX_S:
        raise UsageError(
            f"--session-timeout {text}: from {_SESSION_MIN_S:g}s to {_SESSION_MAX_S:g}s"
        )
    return seconds


async def _run(options: ClusterOptions, demo: _Demo | None, *, is_json: bool) -> int:
    supervisor = Supervisor(options, _print_event_json if is_json else _EventPrinter())
    task = asyncio.ensure_future(_serve(supervisor, options, demo, is_json=is_json))
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            supervisor.kill()
        stopping.set()
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    try:
        await asyncio.wait([task])
    finally:
        stopping.set()
        await supervisor.stop()
    return ExitCode.OK if task.cancelled() else task.result()


async def _serve(
    supervisor: Supervisor, options: ClusterOptions, demo: _Demo | None, *, is_json: bool
) -> int:
    """Start, show, demonstrate, then serve until cancelled; gives a code only with `--once`."""
    if not is_json:
        say(f"starting a cluster in {options.folder} …")
    if options.zookeeper is not None and not await _is_answering(options.zookeeper):
        say(f"waiting for ZooKeeper at {options.zookeeper}: no connection is taken there")
    await supervisor.start()
    state = supervisor.state
    await _create_namespace(state, options.folder)
    if is_json:
        print_json({"event": "cluster_ready"} | state.to_json())
    else:
        show_cluster(state, options)
    if demo is not None:
        result = await run_demo(options.folder, state, file=demo.file, say=say)
        if is_json:
            print_json({"event": "demo"} | result.to_json())
        else:
            show_demo(result, options.folder / CURL_FILE)
        if demo.is_once:
            return ExitCode.OK if result.is_good else ExitCode.FAILED
    if not is_json:
        say("Serving until Ctrl-C.")
    await asyncio.Event().wait()
    return ExitCode.OK


async def _is_answering(hosts: str) -> bool:
    """Whether one of them takes a connection now; the services wait for it as long as it takes."""
    for host in hosts.split(","):
        name, _, port = host.rpartition(":")
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(TOLD_AFTER_S):
                _, writer = await asyncio.open_connection(name, int(port))
            writer.close()
            return True
    return False


async def _create_namespace(state: ClusterState, folder: Path) -> None:
    """Every cluster of `duramen run` has the namespace `default`.

    Raises:
        DuramenError, PeerError: the write proxy refused for good, or does not answer.
    """
    url = state.to_json()["write_url"]
    client = open_client(FoundUrl(url, find_local_credential(folder)))
    try:
        await repeat_while_refused(
            lambda: client.ensure_namespace(NAMESPACE, {}),
            timeout_s=_NAMESPACE_TIMEOUT_S,
            is_read=True,  # creating twice is creating once
        )
    finally:
        await client.close()


class _EventPrinter:
    """Says what a person wants to know: not what starts and stops as it was asked to."""

    def __init__(self) -> None:
        self._is_stopping = False

    def __call__(self, event: ClusterEvent) -> None:
        self._is_stopping |= event.kind == "stopping"
        if self._is_stopping and event.kind == "exited":
            if event.status == -signal.SIGKILL:
                say(f"{event.node_id}: pid {event.pid} did not stop and was killed")
            return
        text = _TEXTS.get(event.kind)
        if text is not None:
            say(text.format_map(event.to_json()))


def _print_event_json(event: ClusterEvent) -> None:
    print_json(event.to_json())


def show_cluster(state: ClusterState, options: ClusterOptions) -> None:
    """What runs where, for people, and where to begin."""
    document = state.to_json()
    print("Duramen is ready\n")
    print_table(
        ("process", "pid", "region", "rack", "serves", "administration"),
        [
            (
                member.node_id, str(member.pid), member.region, member.rack, member.data_url,
                member.admin_url or "–",
            )
            for member in state.members
        ],
        droppable=("rack", "region"),
    )  # fmt: skip
    print()
    for name in ("write_url", "read_url"):
        print(f"{name:10} {document[name]}")
    print(f"{'state':10} {options.folder / 'cluster.json'}")
    if options.security != "none":
        print(f"{'curl':10} curl -K {shlex.quote(str(options.folder / CURL_FILE))} …")
    if options.size.bookies < _BOOKIES_FOR_DEFAULTS:
        print(
            f"A log with the default replication needs {_BOOKIES_FOR_DEFAULTS} bookies: with "
            f"{options.size.bookies} create logs with a smaller ensemble."
        )
    sys.stdout.flush()
