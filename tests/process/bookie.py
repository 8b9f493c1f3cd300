"""One bookie as a process, and a load on it that knows what was promised.

`BookieProcess` starts `duramen_bookie.main` over a data directory, perhaps under strace, and ends
it in any way. `Load` adds through the data plane's own frames, many requests at once, and notes in
`tests.crash.promises` what was asked and what was answered; `look` reads everything back, so that
the judge of the crash states judges real processes too.

Used by the bookie's process tests. Not here: the faults (`disk_faults`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx

from duramen.cluster.layout import HOST, ListenPorts, ProcessPlan, pick_free_port
from duramen.cluster.process import read_tail, service_command
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, Incarnation, LedgerId, LogId, epoch_of, log_of
from duramen.limits import OVERLOADED_PAUSE_US
from duramen.runtime.http_client import OverloadedError, PeerClient, PeerError
from duramen.units import SECOND
from duramen.wire.bookie_calls import (
    Add,
    LacUpdate,
    Marks,
    ReadAnswer,
    ReadRange,
    Seal,
    pack_adds,
    pack_lacs,
    pack_reads,
    pack_seals,
    parse_marks,
    parse_read_answers,
    parse_statuses,
)
from tests.crash.promises import Addition, Promises, View, ledger, make_addition
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

_CALL_US: Final = 20 * SECOND
_READ_BYTES: Final = 4 << 20
_NO_ROOM: Final = frozenset({BookieStatus.READ_ONLY, BookieStatus.OVERLOADED})

Wrap = Callable[[list[str]], list[str]]
"""Makes another command line of a bookie's."""


class BookieProcess:
    """A bookie over one data directory, started as often as a test likes; ended with the context.

    Args:
        folder: for its log.
        data_dir: its disk.
        zookeeper: HOST:PORT.
        options: more of its command line.
    """

    def __init__(self, folder: Path, data_dir: Path, zookeeper: str, *options: str) -> None:
        self.data_dir = data_dir
        self.log_file = folder / "bookie.log"
        # One ZooKeeper serves several tests, and remembers each bookie's disk.
        self.node_id = f"bookie-{uuid4().hex}"
        ports = ListenPorts(pick_free_port(), pick_free_port())
        self._plan = ProcessPlan("bookie", self.node_id, "r1", ports, self.log_file, data_dir)
        self._zookeeper = zookeeper
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BookieProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if kind is None:  # journal files are large; of a failure they are evidence
            shutil.rmtree(self.data_dir)

    @property
    def data_url(self) -> str:
        return self._plan.data_url

    @property
    def admin_url(self) -> str:
        return f"http://{HOST}:{self._plan.ports.admin}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, wrap: Wrap | None = None) -> None:
        """Start it and wait until it is ready."""
        self.data_dir.mkdir(exist_ok=True)
        command = [*service_command(self._plan, self._zookeeper), *self._options]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                wrap(command) if wrap else command,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"PYTHONFAULTHANDLER": "1"},
            )  # fmt: skip
        wait_in_thread(self._is_ready_or_gone, HANG_S, "the bookie to be ready")
        assert self._process.poll() is None, f"the bookie did not start: {self.log_tail()}"

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(HANG_S)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(HANG_S)

    def wait_exit(self) -> int:
        """Wait until it ends by itself; the exit status.

        Raises:
            AssertionError: it does not; with the stacks of its threads.
        """
        assert self._process is not None
        try:
            return self._process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # faulthandler writes the stacks
            self._process.wait(HANG_S)
            lines = self.log_file.read_text(errors="replace").splitlines()
            raise AssertionError("\n".join(["the bookie does not end", *lines[-80:]])) from None

    def ask(self, path: str) -> Any:
        """GET of an admin route."""
        answer = httpx.get(self.admin_url + path, timeout=30, verify=False)
        answer.raise_for_status()
        return answer.json()

    def list_ledgers(self) -> list[dict[str, Any]]:
        """What it says of every ledger that it has, page by page."""
        found: list[dict[str, Any]] = []
        page = self.ask("/v1/ledgers?limit=10000")
        while True:
            found += page["ledgers"]
            if not page["has_more"]:
                return found
            page = self.ask(f"/v1/ledgers?limit=10000&after={found[-1]['ledger_id']}")

    def report(self, path: str) -> None:
        """POST to an admin route."""
        httpx.post(self.admin_url + path, timeout=30, verify=False).raise_for_status()

    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.poll() is None

    def peak_resident_bytes(self) -> int:
        """The most memory that this process has had resident since it began."""
        return self._read_memory("VmHWM:")

    def resident_bytes(self) -> int:
        """Memory that this process has resident now."""
        return self._read_memory("VmRSS:")

    def check_files(self) -> dict[str, Any]:
        """What `fsck` says of the stopped bookie."""
        command = [sys.executable, "-m", "duramen_bookie.main", "fsck", str(self.data_dir)]
        done = subprocess.run(
            [*command, "--json"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        return read_tail(self.log_file)

    def _read_memory(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
        raise AssertionError(f"process {self.pid} has ended")

    def _is_ready_or_gone(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            return True
        with suppress(httpx.HTTPError):
            return bool(self.ask("/readyz")["ready"])
        return False


class BookieClient:
    """The data plane of one bookie; belongs to one event loop."""

    def __init__(self, bookie: BookieProcess) -> None:
        self._url = bookie.data_url
        self._life = Incarnation(bookie.ask("/v1/state")["incarnation"])
        self._peer = PeerClient()

    async def add(self, adds: list[Addition]) -> list[BookieStatus]:
        rows = [Add(a.ledger_id, a.entry_id, a.lac, a.body, a.is_recovery) for a in adds]
        return parse_statuses(await self._post("/b/add", pack_adds(self._life, rows)))

    async def seal(self, seal: Seal) -> Marks:
        (marks,) = parse_marks(await self._post("/b/seal", pack_seals(self._life, [seal])), b"DSLR")
        return marks

    async def lac(self, update: LacUpdate) -> Marks:
        (marks,) = parse_marks(await self._post("/b/lac", pack_lacs(self._life, [update])), b"DLCR")
        return marks

    async def read(self, *ranges: ReadRange) -> list[ReadAnswer]:
        return parse_read_answers(await self._post("/b/read", pack_reads(self._life, ranges)))

    async def close(self) -> None:
        await self._peer.close()

    async def _post(self, path: str, body: bytes) -> bytes:
        return await self._peer.call(self._url + path, body, _CALL_US)


@dataclass
class Load:
    """Requests to one bookie over all its lives; each life writes ledgers of its own epoch.

    Args:
        seed: of sizes and of what comes next.
        writers: requests that are under way at once, each with a log of its own.
        entry_bytes_max: payload of the largest entry.
        first_log: id of the first writer's log.
    """

    seed: int = 0
    writers: int = 12
    entry_bytes_max: int = 12_000
    first_log: int = 1
    promises: Promises = field(default_factory=Promises, repr=False)
    life: int = 0
    acknowledged_count: int = 0
    """Entries of this life."""
    codes: set[str] = field(default_factory=set)
    """What was answered in this life but OK."""
    is_void: bool = False
    """Whether answers promise nothing any more."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _is_over: bool = False
    _highest: dict[LedgerId, int] = field(default_factory=dict, repr=False)

    async def run(
        self,
        bookie: BookieProcess,
        fault: Callable[[], object],
        after: int,
        *,
        voids_late_answers: bool = False,
    ) -> None:
        """Add until every writer has failed.

        Args:
            fault: strikes once `after` entries are stored.
            voids_late_answers: what is answered after the fault began is no promise.
        """
        async with self.running(bookie) as writers:
            await self.wait_acknowledged(after)
            self.is_void = voids_late_answers
            await asyncio.to_thread(fault)
            await asyncio.wait_for(asyncio.gather(*writers), HANG_S)

    @asynccontextmanager
    async def running(self, bookie: BookieProcess) -> AsyncIterator[list[asyncio.Task[None]]]:
        """Writers that begin the next life and end with the context, each after the request that
        it has under way. What is refused for lack of room they send again."""
        self.life += 1
        self.is_void = self._is_over = False
        self.acknowledged_count = 0
        self.codes.clear()
        self.changed = asyncio.Event()
        client = BookieClient(bookie)
        writers = [asyncio.create_task(self._write(client, log_id)) for log_id in self.log_ids]
        try:
            yield writers
        finally:
            self._is_over = True
            # Not cancelled: the HTTP client may take a cancellation for the answer that comes.
            await asyncio.wait_for(asyncio.gather(*writers), HANG_S)
            await client.close()

    @property
    def log_ids(self) -> range:
        """The writers' logs."""
        return range(self.first_log, self.first_log + self.writers)

    def ledgers(self) -> list[LedgerId]:
        """Every ledger that was ever written to."""
        return list(self._highest)

    async def wait_code(self, code: str) -> None:
        """Until a request of this life was answered so."""
        async with asyncio.timeout(HANG_S):
            while code not in self.codes:
                self.changed.clear()
                await self.changed.wait()

    async def wait_acknowledged(self, count: int) -> None:
        """Until so many entries of this life are stored."""
        async with asyncio.timeout(HANG_S):
            while self.acknowledged_count < count:
                self.changed.clear()
                await self.changed.wait()

    async def _write(self, client: BookieClient, log_id: int) -> None:
        """Frames of some entries, now and then an explicit LAC; first the former epoch's seal."""
        rng = random.Random(f"{self.seed}/{self.life}/{log_id}")
        ledger_id = ledger(log_id, self.life)
        try:
            if self.life > 1:
                await self.seal(client, log_id, self.life - 1)
            for first in itertools.count(0, 4):
                adds = self.make_adds(ledger_id, first, rng)
                while not self._is_over and not await self.add(client, adds):
                    await self._pause()
                if self._is_over:
                    return
                if rng.random() < 0.1:
                    await self._lac(client, ledger_id, first)
        except PeerError as error:
            self.codes.add(type(error).__name__)

    def make_adds(
        self, ledger_id: LedgerId, first: int, rng: random.Random, *, is_recovery: bool = False
    ) -> list[Addition]:
        """One to four entries from a first one on."""
        return [
            make_addition(
                ledger_id, entry, rng.randrange(1, self.entry_bytes_max), lac=first - 1,
                is_recovery=is_recovery,
            )
            for entry in range(first, first + rng.randint(1, 4))
        ]  # fmt: skip

    async def add(self, client: BookieClient, adds: list[Addition]) -> bool:
        """Whether all are stored; false: some were refused for lack of room."""
        ledger_id = adds[0].ledger_id
        open_adds = [add for add in adds if add.key not in self.promises.kept]
        self.promises.ask_adds(open_adds)
        self._highest[ledger_id] = max(self._highest.get(ledger_id, 0), adds[-1].entry_id)
        try:
            statuses = await client.add(open_adds)
        except OverloadedError as error:
            self.codes.add(type(error).__name__)
            return False
        stored = [add for add, s in zip(open_adds, statuses, strict=True) if s is BookieStatus.OK]
        if not self.is_void:
            self.promises.keep_adds(stored)
            self.acknowledged_count += len(stored)
        refusals = {status for status in statuses if status is not BookieStatus.OK}
        self.codes |= {status.name for status in refusals}
        self.changed.set()
        assert refusals <= _NO_ROOM, refusals
        return not refusals

    async def _pause(self) -> None:
        """Until something was stored, or the time is over that a refused writer should wait."""
        self.changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(OVERLOADED_PAUSE_US / SECOND):
                await self.changed.wait()

    async def seal(self, client: BookieClient, log_id: int, epoch: int) -> None:
        """Seal a log up to an epoch."""
        self.promises.ask_seal(LogId(log_id), epoch)
        marks = await client.seal(Seal(LogId(log_id), Epoch(epoch), ledger(log_id, epoch)))
        assert marks.status is BookieStatus.OK, marks
        if not self.is_void:
            self.promises.keep_seal(LogId(log_id), epoch)

    async def _lac(self, client: BookieClient, ledger_id: LedgerId, lac: int) -> None:
        self.promises.ask_lac(ledger_id, EntryId(lac))
        try:
            marks = await client.lac(LacUpdate(ledger_id, EntryId(lac), True))
        except OverloadedError as error:
            self.codes.add(type(error).__name__)
            return
        if marks.status in _NO_ROOM:
            self.codes.add(marks.status.name)
            return
        assert marks.status is BookieStatus.OK, marks
        if not self.is_void:
            self.promises.keep_lac(ledger_id, EntryId(lac))

    def require_effect(self) -> None:
        """Fails if this life's load or fault were too little to prove anything."""
        assert self.acknowledged_count >= 50, f"{self.acknowledged_count} entries: no load"
        assert self.codes, "no request failed: the fault had no effect"

    def drop(self, dead: set[LedgerId]) -> None:
        """The bookie has dropped ledgers: from now on they are gone for ever.

        Of one that it never stored anything of (everything was refused) it may know nothing.
        """
        stored = {ledger_id for ledger_id, _ in self.promises.kept}
        dropped = self.promises.dropped | (dead & stored)
        dropping = self.promises.dropping | (dead - dropped)
        self.promises = _narrow(self.promises, set(self._highest) - dropped - dropping)
        self.promises.dropped, self.promises.dropping = dropped, dropping

    # --- Judging ---------------------------------------------------------------------------------

    async def check(self, bookie: BookieProcess, *, lives: int | None = None) -> None:
        """Read everything back, or what the last lives wrote, and hold the bookie to it.

        Raises:
            AssertionError: it breaks a promise.
        """
        since = 0 if lives is None else self.life - lives
        ledgers = [x for x in self._highest if epoch_of(x) > since]
        view = await self.look(bookie, ledgers)
        part = _narrow(self.promises, set(ledgers))
        faults = part.find_faults(view)
        assert not faults, "\n".join([*faults[:10], f"{len(faults)} in all", bookie.log_tail()])
        part.observe(view)
        # What is shown is promised from now on, in the whole as in the part that was looked at.
        self.promises.kept.update(part.kept)
        self.promises.asked = {k: v for k, v in self.promises.asked.items() if k[0] not in ledgers}
        self.promises.seals.update(part.seals)
        self.promises.lacs.update(part.lacs)

    async def check_some(self, client: BookieClient, count: int) -> None:
        """Read some entries back while writers are at work."""
        for key in random.Random(self.seed).sample(sorted(self.promises.kept), count):
            (answer,) = await client.read(ReadRange(*key, key[1], _READ_BYTES))
            assert answer.status is BookieStatus.OK, (key, answer.status)
            ((_, body),) = answer.entries
            assert bytes(body) == self.promises.kept[key], f"{key} has other bytes"

    async def look(self, bookie: BookieProcess, ledgers: list[LedgerId]) -> View:
        """Everything that the bookie answers about some ledgers."""
        client = BookieClient(bookie)
        view = View()
        try:
            for ledger_id in ledgers:
                await self._look_at(client, ledger_id, view)
        finally:
            await client.close()
        return view

    async def _look_at(self, client: BookieClient, ledger_id: LedgerId, view: View) -> None:
        """Entries up to some behind the highest that was ever sent, one answer after another."""
        first, last = 0, self._highest[ledger_id] + 3
        while first <= last:
            (answer,) = await client.read(
                ReadRange(ledger_id, EntryId(first), EntryId(last), _READ_BYTES)
            )
            for entry_id, body in answer.entries:
                view.entries[ledger_id, entry_id] = bytes(body)
            if answer.status is BookieStatus.GONE:
                view.gone.add(ledger_id)
                return
            if answer.status is not BookieStatus.OK:
                if answer.status is not BookieStatus.NO_ENTRY:
                    view.unknown.add((ledger_id, EntryId(first)))
                first += 1
            else:
                first = answer.entries[-1][0] + 1
            if answer.lac != NOTHING:
                view.lacs[ledger_id] = answer.lac
            if answer.is_sealed:
                log_id = log_of(ledger_id)
                view.seals[log_id] = max(view.seals.get(log_id, 0), epoch_of(ledger_id))


def _narrow(promises: Promises, ledgers: set[LedgerId]) -> Promises:
    """What was promised about some ledgers; of seals, what an answer about them can show."""
    shown: dict[LogId, int] = {}
    for ledger_id in ledgers:
        shown[log_of(ledger_id)] = max(shown.get(log_of(ledger_id), 0), epoch_of(ledger_id))
    return Promises(
        {key: body for key, body in promises.asked.items() if key[0] in ledgers},
        {key: body for key, body in promises.kept.items() if key[0] in ledgers},
        {log_id: seal for log_id, seal in promises.seals.items() if log_id in shown},
        {ledger_id: lac for ledger_id, lac in promises.lacs.items() if ledger_id in ledgers},
        dropping=promises.dropping & ledgers,
        dropped=promises.dropped & ledgers,
    )
