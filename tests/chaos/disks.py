"""Faults of disks: wiped, with flipped bits, a second bookie lost during the first one's repair.

Disks that were wiped or damaged are counted against a budget (`layout`): as long as the copies that
one lost are not proved to be back, by counting them, no disk of another bookie is touched. The same
one may be struck again: a bookie is in a write set once. Bits flip in cleanly stopped bookies only;
in the last commit before a kill, rot cannot be told from a torn write by anybody.

Also here: draining a bookie while others are killed, because it ends with a disk that may go: what
is drained is wiped, and costs nothing. Called by `nemesis`. Source: R1, R15, docs/testing.md
"Chaos".
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

from duramen.ids import BookieId, Incarnation
from tests.chaos.abilities import Abilities, post
from tests.chaos.cluster import ChaosCluster
from tests.chaos.layout import Layout
from tests.chaos.replicas import Replicas
from tests.chaos.schedule import Step
from tests.chaos.waiting import wait_at_most
from tests.waiting import comes_true

_EXIT_S: Final = 45.0
_BEGIN_REPAIR_S: Final = 60.0
_DRAIN_S: Final = 150.0
_LOOK_AGAIN_S: Final = 1.0
_FLIPS: Final = (4, 16)
_BLOCK_BYTES: Final = 4096
_FLIP_TRIES_MAX: Final = 400
_FLIPPED: Final = (("journal", "[0-9]*.dj"), ("ledgers", "*.de"), ("ledgers", "*.idx"))

Evidence = dict[str, Any]


class DamageBudget:
    """Which bookies' disks have lost copies that are not proved to be back."""

    def __init__(self, damage_max: int) -> None:
        self._damage_max = damage_max
        self.damaged: set[str] = set()

    def choose(self, candidates: Sequence[str], number: int) -> str | None:
        """The bookie to be damaged now: any while there is room, else one that is damaged."""
        has_room = len(self.damaged) < self._damage_max
        allowed = sorted(c for c in candidates if has_room or c in self.damaged)
        return allowed[number % len(allowed)] if allowed else None

    def spend(self, bookie: str) -> None:
        """Copies at this one are destroyed now."""
        self.damaged.add(bookie)
        assert len(self.damaged) <= self._damage_max, self.damaged

    def restore(self, doubtful: Collection[str] = ()) -> None:
        """Every copy of everything was counted, and is good.

        Args:
            doubtful: bookies that may have lost seals too, so that they prove no absence.
        """
        self.damaged.intersection_update(doubtful)


class DiskHands:
    """Carries out the steps that touch disks; each gives its evidence.

    Args:
        logs: whose copies count.
        violations: what a drain promised and did not keep is put there.
    """

    def __init__(
        self,
        cluster: ChaosCluster,
        layout: Layout,
        *,
        replicas: Replicas,
        logs: Sequence[str],
        abilities: Abilities,
        on_violation: Callable[[str, str], None],
    ) -> None:
        self._cluster = cluster
        self._layout = layout
        self._replicas = replicas
        self._logs = logs
        self._abilities = abilities
        self._on_violation = on_violation
        self.budget = DamageBudget(layout.damage_max)

    def why_not(self, step: Step) -> str | None:
        """Why a step cannot be done with this product at all."""
        if step.action == "drain" and not self._abilities.drains:
            return "the product cannot drain yet"
        return None

    async def strike(self, step: Step) -> Evidence:
        """One fault from beginning to end: how it went, `done` if it was one."""
        await self._look_whether_restored()
        hands = {
            "wipe": self._wipe_under_sleeper, "flips": self._flip, "second loss": self._lose_two,
            "bookie": self._drain,
        }  # fmt: skip
        return await hands[step.kind](step)

    # --- wiped -----------------------------------------------------------------------------------

    async def _wipe_under_sleeper(self, step: Step) -> Evidence:
        """A disk goes while a writer sleeps that goes on writing to it when it wakes."""
        cluster, owner = self._cluster, step.targets[0]
        written = await self._replicas.count_written(self._logs, owner)
        bookie = self.budget.choose(list(written), step.number)
        if bookie is None:
            return {"done": False, "why": f"{owner} writes to no bookie that may be damaged"}
        try:
            cluster.send(owner, signal.SIGSTOP)
            slept = await comes_true(lambda: cluster.is_stopped(owner), 2)
            began = asyncio.get_running_loop().time()
            wiped = await self._wipe(bookie)
            await wait_at_most(began + step.duration_s - asyncio.get_running_loop().time())
            slept &= cluster.is_stopped(owner)
        finally:
            cluster.send(owner, signal.SIGCONT)
        evidence = {"bookie": bookie, "slept": slept, "open_segments": written[BookieId(bookie)]}
        return wiped | evidence | {"done": wiped["done"] and slept}

    async def _wipe(self, bookie: str) -> Evidence:
        """Kill, empty the directories, start with a person's word that the disk is gone."""
        cluster = self._cluster
        before = (await self._replicas.list_bookies())[BookieId(bookie)].incarnation
        self.budget.spend(bookie)
        is_dead = False
        try:
            cluster.kill(bookie)
            is_dead = await comes_true(lambda: cluster.pid(bookie) is None, _EXIT_S)
            if is_dead:
                await asyncio.to_thread(_empty, cluster.data_dir(bookie))
        finally:
            cluster.release(bookie, accepts_new_incarnation=is_dead)
        is_back = await comes_true(lambda: bookie not in cluster.late(), self._layout.settle_s)
        after = (await self._replicas.list_bookies())[BookieId(bookie)].incarnation
        cluster.release(bookie)
        return {"before": before, "after": after, "done": is_dead and is_back and before != after}

    # --- flipped bits ----------------------------------------------------------------------------

    async def _flip(self, step: Step) -> Evidence:
        """Bits flip in the journal and the entry log of a bookie that was stopped cleanly."""
        cluster, rng = self._cluster, random.Random(step.number)
        bookie = self.budget.choose(cluster.ids("bookie"), step.number)
        assert bookie is not None
        flips: list[tuple[str, int]] = []
        try:
            cluster.end_cleanly(bookie)
            is_stopped = await comes_true(lambda: cluster.pid(bookie) is None, _EXIT_S)
            is_clean = is_stopped and not (cluster.data_dir(bookie) / "DIRTY").exists()
            if is_clean:
                self.budget.spend(bookie)
                flips = await asyncio.to_thread(flip_bits, cluster.data_dir(bookie), rng)
        finally:
            cluster.release(bookie)
        is_back = await comes_true(lambda: bookie not in cluster.late(), self._layout.settle_s)
        return {
            "bookie": bookie, "clean": is_clean, "flips": flips, "done": bool(flips) and is_back,
            "doubtful": bookie in await self._list_doubtful(),
        }  # fmt: skip

    # --- two at once -----------------------------------------------------------------------------

    async def _lose_two(self, step: Step) -> Evidence:
        """A disk goes, and while its copies are made again another bookie is away."""
        cluster, rng = self._cluster, random.Random(step.number)
        bookie = self.budget.choose(cluster.ids("bookie"), step.number)
        assert bookie is not None
        wiped = await self._wipe(bookie)
        lost = Incarnation(wiped["before"])
        during = await self._wait_repair_under_way(bookie, lost)
        second = rng.choice([other for other in cluster.ids("bookie") if other != bookie])
        try:
            is_sent = cluster.kill(second)
            await wait_at_most(step.duration_s)
        finally:
            cluster.release(second)
        await cluster.wait_ready(self._layout.settle_s)
        evidence = {"bookie": bookie, "second": second, "during_repair": during}
        return wiped | evidence | {"done": wiped["done"] and is_sent and during is not False}

    async def _wait_repair_under_way(self, bookie: str, lost: Incarnation) -> bool | None:
        """Until some segment has left the lost disk and another has not; None without repair.

        False: repair did not begin in time, or was over before this could look.
        """
        if not self._abilities.repairs:
            return None
        at_first = await self._replicas.count_naming(self._logs, bookie, lost)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _BEGIN_REPAIR_S
        while at_first and loop.time() < deadline:
            now = await self._replicas.count_naming(self._logs, bookie, lost)
            if now < at_first:
                return now > 0
            await wait_at_most(_LOOK_AGAIN_S)
        return False

    # --- drained ---------------------------------------------------------------------------------

    async def _drain(self, step: Step) -> Evidence:
        """Drain a bookie while others are killed; what is drained may go, so its disk does."""
        cluster, rng = self._cluster, random.Random(step.number)
        bookie = rng.choice(cluster.ids("bookie"))
        status, text = await post(cluster, f"/v1/bookies/{bookie}/drain")
        evidence: Evidence = {"bookie": bookie, "status": status, "killed": [], "done": False}
        if not 200 <= status < 300:
            return evidence | {"why": text}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _DRAIN_S
        is_drained = False
        try:
            while not is_drained and loop.time() < deadline:
                if len(evidence["killed"]) < 2:
                    evidence["killed"].append(await self._kill_another(bookie, rng))
                is_drained = await self._is_drained(bookie)
                await wait_at_most(0 if is_drained else _LOOK_AGAIN_S)
            if is_drained:
                await self._take_away(bookie, evidence)
        finally:
            await post(cluster, f"/v1/bookies/{bookie}/cancel-drain")
        return evidence | {"drained": is_drained, "done": is_drained and bool(evidence["killed"])}

    async def _kill_another(self, drained: str, rng: random.Random) -> str:
        """Not the one that is drained: a source or target of its copies, or whoever plans."""
        ids = [*self._cluster.ids("bookie"), *self._cluster.ids("sequencer")]
        other = rng.choice([node_id for node_id in ids if node_id != drained])
        self._cluster.kill(other)
        self._cluster.release(other)
        await self._cluster.wait_ready(self._layout.settle_s)
        return other

    async def _is_drained(self, bookie: str) -> bool:
        return (await self._replicas.list_bookies())[BookieId(bookie)].duty == "drained"

    async def _take_away(self, bookie: str, evidence: Evidence) -> None:
        """The word was `drained`: no segment names it, and nothing is lost with its disk."""
        naming = await self._replicas.count_naming(self._logs, bookie)
        if naming:
            text = f"{bookie} is said to be drained, and {naming} live segments name it"
            self._on_violation("drain", text)
            return
        damaged = set(self.budget.damaged)
        self.budget.restore()
        evidence["wiped"] = await self._wipe(bookie)
        self.budget.damaged = damaged

    # --- budget ----------------------------------------------------------------------------------

    async def _look_whether_restored(self) -> None:
        """Give the budget back if every copy is there again, counted on the disks."""
        if self.budget.damaged and self._abilities.repairs:
            count = await self._replicas.count(self._logs)
            if not count.is_missing_on(self.budget.damaged) and not count.faults:
                self.budget.restore(await self._list_doubtful())

    async def _list_doubtful(self) -> set[str]:
        """Bookies whose journal lost something, they do not know what."""
        bookies = await self._replicas.list_bookies()
        return {bookie for bookie, known in bookies.items() if known.is_doubtful}


def flip_bits(data_dir: Path, rng: random.Random) -> list[tuple[str, int]]:
    """Flip some bits of a stopped bookie, where something stands; (file, bit) of each."""
    pools = [sorted((data_dir / folder).glob(pattern)) for folder, pattern in _FLIPPED]
    pools = [pool for pool in pools if pool]
    wanted = rng.randint(*_FLIPS)
    flips: list[tuple[str, int]] = []
    for _ in range(_FLIP_TRIES_MAX if pools else 0):
        if len(flips) == wanted:
            break
        path = rng.choice(rng.choice(pools))
        start = rng.randrange(0, max(path.stat().st_size, 1), _BLOCK_BYTES)
        with path.open("r+b") as file:
            file.seek(start)
            block = file.read(_BLOCK_BYTES)
            used = [at for at, byte in enumerate(block) if byte]
            if not used:
                continue
            at, bit = rng.choice(used), rng.randrange(8)
            file.seek(start + at)
            file.write(bytes([block[at] ^ 1 << bit]))
        flips.append((path.name, 8 * (start + at) + bit))
    return flips


def _empty(folder: Path) -> None:
    """Remove everything in a directory."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
