"""Starts the processes of a local cluster, keeps them running, keeps cluster.json true, ends them.

One supervisor per data folder, by a lock on a file in it. ZooKeeper starts first; the services
start together once it serves, because each waits for what it needs by itself. A process that ends
is started again after a pause (`process.RestartPauses`), unless restarts are off. Stopping goes
from the edge to the metadata: proxies, sequencers, bookies, ZooKeeper, each SIGTERM, at most 10 s,
SIGKILL.

Says what happens through `on_event` and prints nothing. Called by `duramen run` and by tests, which
give it other command lines. Source: README.md "Two commands", docs/protocol/admin.md
"cluster.json".
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from duramen.client.credentials.local_cluster import ACCESS_LOOK_S, keep_local_access
from duramen.cluster.cluster_file import (
    ClusterState,
    member_of,
    read_state,
    write_state,
)
from duramen.cluster.health import READY_PATH, HealthProbe
from duramen.cluster.layout import (
    CLUSTER_NAME,
    HOST,
    ClusterSize,
    ProcessPlan,
    Security,
    plan_cluster,
)
from duramen.cluster.leftovers import end_leftovers, find_leftovers
from duramen.cluster.local_identities import (
    LocalIdentities,
    is_opening_due,
    remove_local_access,
)
from duramen.cluster.process import Child, RestartPauses, prepare_command
from duramen.limits import LOCAL_JOURNAL_FIRST_FILE_BYTES, ZOOKEEPER_SESSION_S
from duramen.runtime.cluster_node import repeat_until_answered
from duramen.runtime.embedded_zookeeper import EmbeddedServerError, is_serving
from duramen.runtime.identity.names import IdentityError
from duramen.runtime.identity.zookeeper_files import make_probe_context
from duramen.runtime.role import StartRefusedError
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.units import format_size
from duramen.wire.metadata_json import MetadataJsonError, Paths

COLD_FOLDER: Final = "cold"
READY_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 10.0
START_COUNT_MAX: Final = 5
"""Starts of one process before the cluster was ever ready, after which waiting is pointless."""

_STOP_STAGES: Final = (("writeproxy", "readproxy"), ("sequencer",), ("bookie",), ("zookeeper",))
_PRIVATE_MODE: Final = 0o700
"""Of the folder: it holds what customers write."""

_PROBE_INTERVAL_S: Final = 0.05

EventKind = Literal[
    "leftover",
    "opened",
    "started",
    "ready",
    "exited",
    "restarting",
    "fault",
    "stopping",
    "stopped",
]


_ZOOKEEPER_FAULTS: Final = (
    IdentityError, StartRefusedError, MetadataError, MetadataJsonError, OSError,
)  # fmt: skip
"""Of whoever asks ZooKeeper for something with the operator's identity."""


class ClusterError(Exception):
    """The cluster cannot run; the text says which part, why, and what to do."""


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something happened to a process, or (with no id) to the cluster."""

    kind: EventKind
    node_id: str | None = None
    pid: int | None = None
    status: int | None = None
    pause_s: float | None = None
    detail: str | None = None

    def to_json(self) -> dict[str, Any]:
        """One line of `duramen run --json`."""
        fields = {
            "event": self.kind,
            "id": self.node_id,
            "pid": self.pid,
            "status": self.status,
            "pause_s": self.pause_s,
            "detail": self.detail,
        }
        return {key: value for key, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What to run and where; `zookeeper` None runs one beside the services.

    `base_port`: as `layout.plan_cluster` takes it.
    `session_timeout_s`: of every service's session with ZooKeeper. `cors_origins`: whose pages may
    call the proxies. `public_names`: what else services are called, as behind a reverse proxy.
    `is_gossiping`: whether sequencers find out together who of them answers.
    `keeps_metadata_logs`: whether metadata of released segments leave ZooKeeper.
    `security`: with `on` and `migrate` the services have identities, of a CA in the folder, and
    clients a token; `migrate` is for a ZooKeeper of its own alone.
    `cold_store`: URL of the archive; None is the folder `cold` beside the data, which is made.
    """

    folder: Path
    size: ClusterSize = ClusterSize()
    base_port: int | None = None
    zookeeper: str | None = None
    is_restarting: bool = True
    session_timeout_s: float = ZOOKEEPER_SESSION_S
    ready_timeout_s: float = READY_TIMEOUT_S
    stop_timeout_s: float = STOP_TIMEOUT_S
    cors_origins: tuple[str, ...] = ()
    public_names: tuple[str, ...] = ()
    cold_store: str | None = None
    is_gossiping: bool = True
    keeps_metadata_logs: bool = True
    security: Security = "none"


class Supervisor:
    """A local cluster from `start` to `stop`."""

    def __init__(
        self,
        options: ClusterOptions,
        on_event: Callable[[ClusterEvent], None],
        make_command: Callable[[ProcessPlan, str, Path | None], list[str]] = prepare_command,
    ) -> None:
        self._options = options
        self._folder = options.folder.absolute()
        self._on_event = on_event
        self._cold_store = options.cold_store or (self._folder / COLD_FOLDER).as_uri()
        self._make_command = make_command
        self._children: list[Child] = []
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._zookeeper = options.zookeeper or ""
        has_identities = options.security != "none"
        self._identities = LocalIdentities(self._folder) if has_identities else None
        self._keeping_access: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._is_killing = False
        self._was_ready = False
        self._fault: str | None = None
        self._lock: IO[str] | None = None

    @property
    def state(self) -> ClusterState:
        """What the cluster consists of now."""
        members = tuple(member_of(child.plan, child.pid) for child in self._children)
        return ClusterState(
            CLUSTER_NAME, self._zookeeper, members, self._cold_store, self._options.security
        )

    def statistics(self) -> dict[str, Any]:
        """Starts and readiness of every process."""
        return {
            child.plan.node_id: {"starts": child.start_count, "is_ready": child.is_ready}
            for child in self._children
        }

    async def start(self) -> None:
        """Start everything; returns when every process is ready. On an error `stop` is still due.

        Raises:
            ClusterError: the folder is in use, a part is missing, or not ready in time.
            ClusterFileError, LayoutError: what the folder or the options say makes no sense.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        # Also one that is there already: what others can read in it nobody wanted to show.
        self._folder.chmod(_PRIVATE_MODE)
        self._take_lock()
        if self._options.cold_store is None:
            (self._folder / COLD_FOLDER).mkdir(exist_ok=True)
        former = read_state(self._folder)
        await self._end_leftovers()
        plans = plan_cluster(
            self._folder,
            self._options.size,
            base_port=self._options.base_port,
            has_zookeeper=self._options.zookeeper is None,
            remembered={} if former is None else former.ports(),
            security=self._options.security,
        )
        self._children = [Child(plan) for plan in plans]
        if self._options.zookeeper is None:
            ports = plans[0].ports
            self._zookeeper = f"{HOST}:{ports.tls_data or ports.data}"
        deadline = time.monotonic() + self._options.ready_timeout_s
        if self._identities is None:
            await self._leave_identities(plans, deadline)
        else:
            await self._prepare_identities(self._identities, plans)
        self._publish()
        for is_first in (True, False):
            if not is_first and self._identities is not None:
                await self._settle_rights(self._identities, deadline)
                await self._begin_access(deadline)
            chosen = [c for c in self._children if (c.plan.role == "zookeeper") is is_first]
            for child in chosen:
                self._keepers[child.plan.node_id] = asyncio.create_task(self._keep(child))
            await self._wait_ready(chosen, deadline)
        self._was_ready = True

    async def stop(self) -> None:
        """Stop everything, in order and within a bound; returns when no process is left."""
        self._stopping.set()
        if self._children:
            self._on_event(ClusterEvent("stopping"))
        if self._keeping_access is not None:
            self._keeping_access.cancel()
            await asyncio.wait([self._keeping_access])
        if self._identities is not None:
            await self._identities.stop()
        try:
            for roles in _STOP_STAGES:
                await self._stop_stage([c for c in self._children if c.plan.role in roles])
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None
        if self._children:
            self._on_event(ClusterEvent("stopped"))

    def kill(self) -> None:
        """End everything at once; `stop` still has to be awaited. For a second Ctrl-C."""
        self._is_killing = True
        for child in self._children:
            child.kill()

    async def _leave_identities(self, plans: Sequence[ProcessPlan], deadline: float) -> None:
        """See that a folder which ran with identities can be used by who has none."""
        try:
            if is_opening_due(self._folder, plans):
                await self._open_tree(plans, deadline)
            await asyncio.to_thread(remove_local_access, self._folder)
        except TimeoutError:
            raise ClusterError("ZooKeeper was not ready in time to open its nodes") from None
        except (*_ZOOKEEPER_FAULTS, EmbeddedServerError) as error:
            raise ClusterError(f"its nodes cannot be opened to anybody: {error}") from error

    async def _open_tree(self, plans: Sequence[ProcessPlan], deadline: float) -> None:
        """Run ZooKeeper alone, with its identity, while its nodes are given to anybody."""
        identities = LocalIdentities(self._folder)
        await asyncio.to_thread(identities.prepare, plans)
        server = self._children[0]
        folder = identities.folder_of(server.plan.node_id)
        command = await asyncio.to_thread(self._make_command, server.plan, self._zookeeper, folder)
        await server.start(command)
        self._publish()
        assert server.plan.data_dir is not None, "a server of ours has a folder"
        context = make_probe_context(server.plan.data_dir)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                while not await _is_ready(server.plan, None, context):
                    if server.pid is None:
                        raise ClusterError(f"ZooKeeper ended. {_log_end(server)}")
                    await asyncio.sleep(_PROBE_INTERVAL_S)
                opened_count = await identities.open_tree(self._zookeeper)
        finally:
            await self._end_alone(server)
        self._report_opened(opened_count)

    def _report_opened(self, opened_count: int) -> None:
        if opened_count:
            self._on_event(ClusterEvent("opened", detail=f"{opened_count} nodes of ZooKeeper"))

    async def _end_alone(self, server: Child) -> None:
        """End a process that nobody keeps."""
        server.ask_to_stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.stop_timeout_s):
                await server.wait()
        server.kill()
        await server.wait()

    async def _prepare_identities(
        self, identities: LocalIdentities, plans: Sequence[ProcessPlan]
    ) -> None:
        """Have them before ZooKeeper starts, which has one too."""
        try:
            await asyncio.to_thread(identities.prepare, plans)
            if self._options.security == "migrate":
                # Before anybody with an identity can make a node.
                await asyncio.to_thread(identities.expect_guarded)
            identities.start(plans, self._on_identity_fault)
        except (IdentityError, OSError) as error:
            raise ClusterError(f"no identities: {error}") from error

    def _on_identity_fault(self, sentence: str) -> None:
        self._on_event(ClusterEvent("fault", detail=sentence))

    async def _settle_rights(self, identities: LocalIdentities, deadline: float) -> None:
        """Have the rights of all nodes in ZooKeeper before services make any: each its own, or,
        while security is turned on, anybody's."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                if self._options.security == "on":
                    await identities.guard_tree(self._zookeeper)
                else:
                    self._report_opened(await identities.open_tree(self._zookeeper, is_last=False))
        except TimeoutError:
            raise ClusterError(f"ZooKeeper at {self._zookeeper} does not answer") from None
        except _ZOOKEEPER_FAULTS as error:
            raise ClusterError(f"no rights in ZooKeeper: {error}") from error

    async def _begin_access(self, deadline: float) -> None:
        """Have a token before any service serves, so that none has to be told of it."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._keep_access()
        except TimeoutError:
            raise ClusterError(f"ZooKeeper at {self._zookeeper} does not answer") from None
        except _ZOOKEEPER_FAULTS as error:
            raise ClusterError(f"no token for the command line: {error!r}") from error
        self._keeping_access = asyncio.create_task(self._keep_access_for_ever())

    async def _keep_access_for_ever(self) -> None:
        while True:
            await asyncio.sleep(ACCESS_LOOK_S)
            try:
                async with asyncio.timeout(ACCESS_LOOK_S):
                    await self._keep_access()
            except _ZOOKEEPER_FAULTS as error:
                # What there is lives for another month; the next look tries again.
                self._on_event(ClusterEvent("fault", detail=f"the token of this run: {error!r}"))

    async def _keep_access(self) -> None:
        """A token in the folder for the command line, the SDK and curl."""
        assert self._identities is not None, "where nobody is asked nobody needs a token"
        store = ZooKeeperStore(
            self._zookeeper,
            identity_dir=self._identities.operator_folder,
            gives_rights=self._options.security == "on",
        )

        async def keep() -> None:
            await keep_local_access(store, Paths(CLUSTER_NAME), self._folder, int(time.time()))

        try:
            await repeat_until_answered(store, keep)
        finally:
            await store.close()

    def _take_lock(self) -> None:
        self._lock = (self._folder / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(
                f"another duramen run uses {self._folder}: stop it, or choose another --data"
            ) from None

    async def _end_leftovers(self) -> None:
        """See that nobody but this supervisor's children uses the folder: two servers of one
        ZooKeeper would write the same files."""
        leftovers = await asyncio.to_thread(find_leftovers, self._folder)
        for leftover in leftovers:
            self._on_event(ClusterEvent("leftover", leftover.node_id, leftover.pid))
        timeout_s = self._options.stop_timeout_s
        running = await asyncio.to_thread(end_leftovers, leftovers, timeout_s=timeout_s)
        if running:
            names = ", ".join(f"{one.node_id} (pid {one.pid})" for one in running)
            raise ClusterError(f"{names} of an earlier run cannot be ended: end them by hand")

    async def _keep(self, child: Child) -> None:
        """Keep one process running until the cluster stops; never leaves it behind."""
        try:
            await self._keep_running(child)
        finally:
            child.kill()

    async def _keep_running(self, child: Child) -> None:
        pauses = RestartPauses()
        node_id = child.plan.node_id
        while not self._stopping.is_set():
            try:
                command = await asyncio.to_thread(
                    self._make_command, child.plan, self._zookeeper, self._find_identity(child.plan)
                )
                command += self._more_flags(child.plan)
                if self._stopping.is_set():
                    return
                await child.start(command)
            except (OSError, EmbeddedServerError, IdentityError) as error:
                self._fail(f"{node_id} cannot be started: {error}")
                return
            self._publish()
            self._on_event(ClusterEvent("started", node_id, child.pid))
            await self._watch(child)
            if self._stopping.is_set():
                return
            if not self._options.is_restarting:
                self._fail(f"{node_id} ended, and restarts are off. {_log_end(child)}")
                return
            pause_s = pauses.pause_after(child.alive_s)
            if child.start_count == START_COUNT_MAX and not self._was_ready:
                self._fail(f"{node_id} ended {child.start_count} times. {_log_end(child)}")
            self._on_event(ClusterEvent("restarting", node_id, pause_s=pause_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    def _more_flags(self, plan: ProcessPlan) -> list[str]:
        """What the options ask of a service, beside what its place in the cluster does."""
        flags = []
        timeout_s = self._options.session_timeout_s
        if plan.role != "zookeeper" and timeout_s != ZOOKEEPER_SESSION_S:
            flags += ["--session-timeout-s", f"{timeout_s:g}"]
        if plan.role != "zookeeper":
            flags += [f"--public-name={name}" for name in self._options.public_names]
        if plan.role == "bookie":
            flags += ["--journal-first-file-size", format_size(LOCAL_JOURNAL_FIRST_FILE_BYTES)]
        if plan.role in ("writeproxy", "readproxy"):
            flags += [f"--cors-origin={origin}" for origin in self._options.cors_origins]
        if plan.role in ("bookie", "sequencer", "writeproxy") and not self._options.is_gossiping:
            flags.append("--no-gossip")
        if plan.role == "sequencer" and not self._options.keeps_metadata_logs:
            flags.append("--no-metadata-logs")
        if plan.role in ("sequencer", "readproxy"):
            flags += ["--cold-store", self._cold_store]
        return flags

    def _find_identity(self, plan: ProcessPlan) -> Path | None:
        if self._identities is None:
            return None
        return self._identities.folder_of(plan.node_id)

    async def _watch(self, child: Child) -> None:
        """See one life of a process through, from its start to its end."""
        pid = child.pid
        if self._stopping.is_set():
            child.ask_to_stop()
        if self._is_killing:
            child.kill()
        probe = asyncio.create_task(self._probe(child))
        try:
            status = await child.wait()
        finally:
            probe.cancel()
            await asyncio.wait([probe])
        child.is_ready = False
        self._publish()
        self._changed.set()
        self._on_event(ClusterEvent("exited", child.plan.node_id, pid, status=status))

    async def _probe(self, child: Child) -> None:
        """Ask one process until it is ready or gone: what it awaits may lose a cancellation."""
        plan = child.plan
        try:
            probe, context = self._make_probe(plan), self._make_server_probe(plan)
        except OSError as error:
            self._fail(f"nobody can ask {plan.node_id} whether it is ready: {error}")
            return
        while not await _is_ready(plan, probe, context):
            if child.pid is None:
                return
            await asyncio.sleep(_PROBE_INTERVAL_S)
        if probe is not None:
            probe.close()
        if child.pid is None:
            return
        child.is_ready = True
        self._publish()  # a bookie has its incarnation now
        self._changed.set()
        self._on_event(ClusterEvent("ready", child.plan.node_id, child.pid))

    def _make_server_probe(self, plan: ProcessPlan) -> ssl.SSLContext | None:
        """How ZooKeeper is asked for its health, where it has an identity."""
        if self._identities is None or plan.role != "zookeeper" or plan.data_dir is None:
            return None
        return make_probe_context(plan.data_dir)

    def _make_probe(self, plan: ProcessPlan) -> HealthProbe | None:
        if plan.ports.admin is None:
            return None
        context = self._identities.make_probe_context() if self._identities is not None else None
        return HealthProbe(HOST, plan.ports.tls_admin or plan.ports.admin, context)

    async def _wait_ready(self, children: Sequence[Child], deadline: float) -> None:
        while late := [child for child in children if not child.is_ready]:
            if self._fault is not None:
                raise ClusterError(self._fault)
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                names = ", ".join(child.plan.node_id for child in late)
                raise ClusterError(
                    f"not ready within {self._options.ready_timeout_s:g} s: {names}. "
                    f"{_log_end(late[0])}"
                ) from None

    async def _stop_stage(self, children: Sequence[Child]) -> None:
        for child in children:
            child.ask_to_stop()
        keepers = [
            self._keepers[c.plan.node_id] for c in children if c.plan.node_id in self._keepers
        ]
        if not keepers:
            return
        _, late = await asyncio.wait(keepers, timeout=self._options.stop_timeout_s)
        if late:
            for child in children:
                child.kill()
        for outcome in await asyncio.gather(*keepers, return_exceptions=True):
            if isinstance(outcome, Exception):
                self._on_event(ClusterEvent("fault", detail=repr(outcome)))

    def _fail(self, sentence: str) -> None:
        """Note why the cluster cannot become ready, and tell it once it was."""
        self._fault = self._fault or sentence
        self._changed.set()
        if self._was_ready:
            self._on_event(ClusterEvent("fault", detail=sentence))

    def _publish(self) -> None:
        """Write cluster.json; a full disk must not end the supervision of what runs."""
        try:
            write_state(self._folder, self.state)
        except OSError as error:
            self._on_event(ClusterEvent("fault", detail=f"cluster.json is out of date: {error}"))


async def _is_ready(
    plan: ProcessPlan, probe: HealthProbe | None, context: ssl.SSLContext | None
) -> bool:
    if probe is None:
        return await is_serving(plan.ports.tls_data or plan.ports.data, context)
    try:
        return (await asyncio.to_thread(probe.ask, READY_PATH)).is_well
    except OSError:
        return False


def _log_end(child: Child) -> str:
    return f"The end of {child.plan.log_file}:\n{child.log_tail()}"
