"""Takes the Lease, renews it, and gives it back: the only one who writes to it.

While it waits it reads the Lease every few seconds. While it holds, each renewal has the version of
the one before; a conflict is read again, since a person may have edited a label. Lost it is when
the time is over (`hand`), or when the record names somebody else.

Called by `serving.running`. Source: docs/kubernetes/one-hand.md 1 to 9; ADR 0041.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from duramen_operator.kube import ApiUnreachable, Refused
from duramen_operator.leading.claim import Claimant, LeaseClaim, LeaseRecord
from duramen_operator.leading.hand import HELD_S, RENEW_EVERY_S, Hand, read_boot_clock_s

_log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
LEASE_REQUEST_S: Final = 4.0
"""One request about the Lease: a renewal that is lost leaves time for another one."""
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404


class LeaseCalls(Protocol):
    """The Lease at the API server.

    Each call raises Refused or ApiUnreachable as `Kube` does; 409: somebody was first.
    """

    async def read(self) -> LeaseRecord | None:
        """As it is; None: there is none."""
        ...

    async def create(self, identity: str) -> LeaseRecord:
        """Make it, held by this name."""
        ...

    async def take(self, found: LeaseRecord, identity: str) -> LeaseRecord:
        """Renew it in this name, if it is still as it was found."""
        ...

    async def delete(self, found: LeaseRecord) -> None:
        """Remove it, if it is still as it was found."""
        ...


class LeaseKeeper:
    """One process's part in the Lease of a namespace."""

    def __init__(
        self,
        lease: LeaseCalls,
        claimant: Claimant,
        hand: Hand,
        clock_s: Callable[[], float] = read_boot_clock_s,
    ) -> None:
        self._lease = lease
        self._identity = str(claimant)
        self._hand = hand
        self._clock_s = clock_s
        self._claim = LeaseClaim(claimant)
        self._held: LeaseRecord | None = None
        self.fault = ""
        """Why the Lease cannot be used; "" while it can, whoever holds it."""

    async def acquire(self) -> None:
        """Wait until this process may write."""
        told = ""
        self._claim.forget()
        while not self._hand.is_held:
            holder = await self._try_to_take()
            if self._hand.is_held:
                break
            if holder and holder != told:
                _log.info("%s holds the Lease of this namespace: waiting", holder)
                told = holder
            await asyncio.sleep(RETRY_S if self.fault else RENEW_EVERY_S)
        _log.info("this operator serves the namespace, as %s", self._identity)

    async def seize(self) -> None:
        """Take the Lease from whoever has it, and wait until that one writes no more: for an
        uninstall, which nobody may undo meanwhile.

        Raises:
            Refused, ApiUnreachable: it was not taken; it may be tried again.
        """
        found = await self._lease.read()
        began_s = self._clock_s()
        if found is None:
            self._note(await self._lease.create(self._identity), began_s)
            return
        self._note(await self._lease.take(found, self._identity), began_s)
        # Also where it is this one's already: an earlier try may have taken it unheard.
        await asyncio.sleep(HELD_S - RENEW_EVERY_S)
        await self._renew()
        await asyncio.sleep(RENEW_EVERY_S)

    async def keep(self) -> None:
        """Renew; returns when this process may not write any more."""
        while self._hand.is_held:
            await asyncio.sleep(RETRY_S if self.fault else RENEW_EVERY_S)
            try:
                # An answer that comes too late is none: others may have begun by then.
                async with asyncio.timeout(self._hand.left_s):
                    await self._renew()
            except TimeoutError:
                break
        self._hand.give_up()
        _log.warning("this operator lost its Lease and writes nothing any more")

    async def give_back(self) -> None:
        """Write nothing any more; one that is started then begins at once."""
        self._hand.give_up()
        if self._held is None:
            return
        try:
            # Read anew: a renewal may have been cut off, and was stored all the same.
            found = await self._lease.read()
            if found is not None and found.holder == self._identity:
                await self._lease.delete(found)
        except (Refused, ApiUnreachable) as error:
            _log.info("the Lease is left to run out: %s", error)

    async def _try_to_take(self) -> str:
        """Take the Lease if it is free; gives who has it, "" where that is not known."""
        began_s = self._clock_s()
        try:
            found = await self._lease.read()
            wait_s = self._claim.find_wait_s(found, self._clock_s())
            if wait_s > 0:
                self.fault = ""
                return "nobody" if found is None else found.holder
            if found is None:
                self._note(await self._lease.create(self._identity), began_s)
            else:
                self._note(await self._lease.take(found, self._identity), began_s)
        except (Refused, ApiUnreachable) as error:
            self._tell(error)
            return ""
        return self._identity

    async def _renew(self) -> None:
        assert self._held is not None, "nobody renews what he does not hold"
        began_s = self._clock_s()
        try:
            self._note(await self._lease.take(self._held, self._identity), began_s)
        except Refused as refused:
            if refused.status in (_CONFLICT, _NOT_FOUND):
                await self._look_again(began_s)
            else:
                self._tell(refused)
        except ApiUnreachable as error:
            self._tell(error)

    async def _look_again(self, began_s: float) -> None:
        """The record is another one: by a hand that left the holder there, or removed it, or by a
        new holder."""
        try:
            found = await self._lease.read()
            if found is None:
                self._note(await self._lease.create(self._identity), began_s)
            elif found.holder in (self._identity, ""):
                self._held = found  # emptied by a hand it is named again by the next renewal
            else:
                _log.warning("the Lease names %s", found.holder or "nobody")
                self._hand.give_up()
        except (Refused, ApiUnreachable) as error:
            self._tell(error)

    def _note(self, record: LeaseRecord, began_s: float) -> None:
        self._held, self.fault = record, ""
        self._hand.note_renewal(began_s)

    def _tell(self, error: Refused | ApiUnreachable) -> None:
        fault = "" if _is_conflict(error) else f"the Lease cannot be used: {error}"
        if fault and fault != self.fault:
            _log.warning("%s", fault)
        self.fault = fault


def _is_conflict(error: Refused | ApiUnreachable) -> bool:
    return isinstance(error, Refused) and error.status == _CONFLICT
