"""A workload's way to a storage engine: requests in, promises noted, restarts of three kinds.

`Engine` is what is judged: the journal alone, or the whole storage. Its calls are synchronous:
when one returns, the answer could have left. `Run` gives a workload one engine after another over
one disk, notes what was asked before each call and what was promised after it, and looks at
everything at each start. A workload is a function of a `Run`, and does the same every time.

Used by `workloads` and `explorer`. Not here: which workloads there are, what a power cut leaves.
"""

from __future__ import annotations

import enum
import errno
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from duramen.ids import EntryId, Epoch, LedgerId, LogId
from tests.crash.disk import Disk, Operation, PowerCut, crash_states
from tests.crash.promises import Addition, Promises, View, ledger, make_addition

_STATES_PER_RESTART = 64


class Engine(Protocol):
    """A started storage engine; each call's effect is durable when it returns.

    A call that fails raises, and from then on every call that writes does.
    """

    def add(self, adds: Sequence[Addition]) -> None:
        """Store entries, as one unit."""

    def seal(self, log_id: LogId, epoch: Epoch) -> None:
        """Seal a log up to an epoch."""

    def lac(self, ledger_id: LedgerId, lac: EntryId) -> None:
        """Write an explicit LAC."""

    def drop(self, log_id: LogId, epoch: Epoch) -> None:
        """Drop the ledger of an epoch."""

    def idle(self) -> None:
        """Do what is done when nothing waits: durable marks, files made ahead."""

    def settle(self) -> None:
        """Settle what is sealed, write the checkpoint, retire what it covers."""

    def compact(self) -> None:
        """Rewrite what is alive of the entry log, write the checkpoint, retire the rest."""

    def stop(self) -> None:
        """Stop cleanly."""

    def abandon(self) -> None:
        """The process is gone: give back threads and the like, touch the disk no more."""

    def look(self) -> View:
        """Everything it answers."""

    def list_names(self) -> set[str]:
        """Paths of all files that it accounts for: any other is a leak."""


OpenEngine = Callable[[Disk], Engine]


class Stop(enum.Enum):
    """How a process ends."""

    CLEAN = "clean"
    KILL = "kill"
    """The machine runs on: what was written is still read, synced or not."""
    POWER = "power"
    """Any state that a power cut may leave."""


class Faulty(AssertionError):
    """The engine broke a promise; the text says which and where."""


class Run:
    """One life of a disk.

    Args:
        disk: empty, or as it was left; followed by others when the power goes.
        open_engine: starts an engine on a disk.
        rng: decides what power cuts within the workload leave.
        promises: of an earlier life.
    """

    def __init__(
        self,
        disk: Disk,
        open_engine: OpenEngine,
        rng: random.Random,
        promises: Promises | None = None,
    ) -> None:
        self.disk = disk
        self.promises = promises or Promises()
        self.engine: Engine
        self._open_engine = open_engine
        self._rng = rng

    # --- Starts and stops ------------------------------------------------------------------------

    def start(self) -> None:
        """Start an engine, judge what it shows, and hold it to that from now on.

        Raises:
            Faulty: it does not start, or shows what it may not.
        """
        try:
            self.engine = self._open_engine(self.disk)
        except Exception as error:
            raise Faulty(f"the bookie does not start: {error!r}") from error
        view = self.engine.look()
        faults = self.promises.find_faults(view) + self.find_leaks()
        if faults:
            raise Faulty("; ".join(faults[:5]) + f" ({len(faults)} in all)")
        self.promises.observe(view)

    def restart(self, how: Stop) -> None:
        """End the process and start another."""
        self.end(how)
        self.start()

    def end(self, how: Stop) -> None:
        """End the process; the disk is then as the next one finds it."""
        if how is Stop.CLEAN:
            self.engine.stop()
            if self.disk.open_count:
                raise Faulty(f"{self.disk.open_count} files are left open by a clean stop")
            return
        self.engine.abandon()
        self.disk.give_up_handles()
        if how is Stop.POWER:
            hook = self.disk.hook
            states = crash_states(self.disk, _STATES_PER_RESTART, self._rng)
            self.disk = states.make(self._rng.choice(list(states.choices())))
            self.disk.hook = hook

    def find_leaks(self) -> list[str]:
        """Files that nobody accounts for."""
        leaked = set(self.disk.list_files()) - self.engine.list_names()
        return [f"{path} is leaked" for path in sorted(leaked)]

    # --- Requests --------------------------------------------------------------------------------

    def add(
        self,
        ledger_id: LedgerId,
        entries: Iterable[int],
        *,
        size_bytes: int = 900,
        version: int = 0,
        is_recovery: bool = False,
    ) -> None:
        """Add entries as one unit; each names the one before it as LAC."""
        self.add_all(
            make_addition(
                ledger_id, entry, size_bytes, version=version, lac=entry - 1,
                is_recovery=is_recovery,
            )
            for entry in entries
        )  # fmt: skip

    def add_all(self, adds: Iterable[Addition]) -> None:
        """Add entries of any ledgers as one unit."""
        adds = list(adds)
        self.promises.ask_adds(adds)
        self.engine.add(adds)
        self.promises.keep_adds(adds)

    def seal(self, log_id: int, epoch: int) -> None:
        self.promises.ask_seal(LogId(log_id), epoch)
        self.engine.seal(LogId(log_id), Epoch(epoch))
        self.promises.keep_seal(LogId(log_id), epoch)

    def lac(self, ledger_id: LedgerId, lac: int) -> None:
        self.promises.ask_lac(ledger_id, EntryId(lac))
        self.engine.lac(ledger_id, EntryId(lac))
        self.promises.keep_lac(ledger_id, EntryId(lac))

    def drop(self, log_id: int, epoch: int) -> None:
        ledger_id = ledger(log_id, epoch)
        self.promises.ask_drop(ledger_id)
        self.engine.drop(LogId(log_id), Epoch(epoch))
        self.promises.keep_drop(ledger_id)

    def idle(self) -> None:
        self.engine.idle()

    def settle(self) -> None:
        self.engine.settle()

    def compact(self) -> None:
        self.engine.compact()

    def missing(self, ledger_id: LedgerId, count: int) -> list[int]:
        """The first entries of a ledger that it does not hold."""
        entries = itertools.count()
        absent = (e for e in entries if (ledger_id, EntryId(e)) not in self.promises.kept)
        return list(itertools.islice(absent, count))

    # --- Faults ----------------------------------------------------------------------------------

    def refuse(self, request: Callable[[], None]) -> None:
        """Make a request that must not be acknowledged.

        Raises:
            Faulty: it was.
        """
        try:
            request()
        except Exception:
            return
        raise Faulty("a request was acknowledged though the disk failed")

    @contextmanager
    def failing(self, name: str, code: int = errno.EIO) -> Iterator[None]:
        """The next operation of that name fails, once."""
        with self._interrupting(name, OSError(code, f"injected into {name}")):
            yield

    @contextmanager
    def cut_at(self, name: str) -> Iterator[None]:
        """Up to just before the next operation of that name; the engine is then to be ended."""
        with self._interrupting(name, PowerCut(name)), suppress(PowerCut, Exception):
            yield

    @contextmanager
    def _interrupting(self, name: str, error: BaseException) -> Iterator[None]:
        before = self.disk.hook
        met: list[Operation] = []

        def hook(operation: Operation) -> None:
            if before is not None:
                before(operation)
            if operation.name == name and not met:
                met.append(operation)
                raise error

        self.disk.hook = hook
        try:
            yield
        finally:
            self.disk.hook = before
        assert met, f"no {name} came: the fault had no effect"


Workload = Callable[[Run], None]
