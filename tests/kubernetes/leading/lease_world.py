"""An API server that has one Lease, and processes that reach it late, or not at all.

`LeaseStore` keeps versions as the real one does; `Wire` is one process's way to it, on which a
request or its answer may take any time: a process that is stopped between two lines looks no
different to the others. The contract of the calls holds for the real API server, too
(tests/kubernetes/typed/test_leases.py).

Used by the tests of this folder.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from duramen_operator.kube import ApiUnreachable, Refused
from duramen_operator.leading.claim import LeaseRecord
from duramen_operator.leading.hand import LEASE_S
from duramen_operator.plan.observed import Problem
from tests.pauses import let_pass

T = TypeVar("T")


def refuse(status: int, code: str) -> Refused:
    """As the API server refuses."""
    return Refused(status, Problem(code, code))


@dataclass
class LeaseStore:
    """The Lease, if there is one."""

    record: LeaseRecord | None = None
    write_count: int = 0

    def create(self, identity: str) -> LeaseRecord:
        if self.record is not None:
            raise refuse(409, "AlreadyExists")
        return self._write(LeaseRecord(f"uid-{self.write_count}", "", identity, LEASE_S))

    def take(self, found: LeaseRecord, identity: str) -> LeaseRecord:
        self._check(found)
        renewed = f"renewed-{self.write_count}"
        return self._write(replace(found, holder=identity, duration_s=LEASE_S, renewed=renewed))

    def delete(self, found: LeaseRecord) -> None:
        self._check(found)
        self.record = None

    def edit(self, **changes: object) -> None:
        """By somebody's hand; what is not there stays so."""
        if self.record is not None:
            self._write(replace(self.record, **changes))  # type: ignore[arg-type]

    def _check(self, found: LeaseRecord) -> None:
        if self.record is None:
            raise refuse(404, "NotFound")
        same = (self.record.uid, self.record.resource_version)
        if same != (found.uid, found.resource_version):
            raise refuse(409, "Conflict")

    def _write(self, record: LeaseRecord) -> LeaseRecord:
        self.write_count += 1
        self.record = replace(record, resource_version=str(self.write_count))
        return self.record


@dataclass
class Wire:
    """One process's way to the store; `keeper.LeaseCalls`."""

    store: LeaseStore
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    delay_s: Callable[[random.Random], float] = lambda _: 0.0
    is_cut: bool = False

    async def read(self) -> LeaseRecord | None:
        return await self._carry(lambda: self.store.record)

    async def create(self, identity: str) -> LeaseRecord:
        return await self._carry(lambda: self.store.create(identity))

    async def take(self, found: LeaseRecord, identity: str) -> LeaseRecord:
        return await self._carry(lambda: self.store.take(found, identity))

    async def delete(self, found: LeaseRecord) -> None:
        await self._carry(lambda: self.store.delete(found))

    async def _carry(self, act: Callable[[], T]) -> T:
        await self._travel()
        done = act()
        await self._travel()
        return done

    def _travel(self) -> Awaitable[None]:
        if self.is_cut:
            raise ApiUnreachable("cut off")
        return let_pass(self.delay_s(self.rng), what="a request or an answer on its way")
