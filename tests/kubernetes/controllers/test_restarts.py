"""The operator is killed at a random request, again and again, and everything converges.

People change objects all the while. Each life of the operator ends by SIGKILL at the n-th request
to the API server (before it is done, or after it was done and before the answer), or at a call to
the cluster. In the end an undisturbed operator finishes; then the objects, with their status and
owners, are those of an operator that nobody ever disturbed (`outcomes`), and the twin's record says
that nothing was done twice wrongly.
Then all is uninstalled while operators die, and only claims are left. Operators wait more than
they work: worlds are disturbed at once, each by numbers of its own.

DURAMEN_RESTARTS is how many in all (4, at night 200), DURAMEN_SEED where random numbers begin.
Source: ADR 0020.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pytest

from duramen.errors import DuramenError
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import running_twin
from tests.kubernetes.controllers.changing_world import (
    BOOKIES,
    END_S,
    ZOOKEEPERS,
    Change,
    Ground,
    check_calls,
    finish,
    list_faults,
    list_left,
    live_calmly,
    make_changes,
    make_twin,
)
from tests.kubernetes.controllers.deadly_proxy import Aim, DeadlyProxy, Moment, running_proxy
from tests.kubernetes.controllers.operators import (
    Objects,
    OperatorProcess,
    install_definitions,
    running_operator,
    wait_for_objects,
    write_kubeconfig,
)
from tests.kubernetes.controllers.outcomes import Outcome, compare
from tests.tiers import sized

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.long]

RESTARTS: Final = int(os.environ.get("DURAMEN_RESTARTS", sized(fast=3, gate=4, night=200)))
SEED: Final = int(os.environ.get("DURAMEN_SEED", "10"))
WORLD_COUNT: Final = sized(fast=1, gate=1, night=4)
WORLD_RESTARTS: Final = -(-RESTARTS // WORLD_COUNT)
LIFE_S: Final = 10.0
"""A life that has nothing left to do before its request ends here; it counts as none."""

START_REQUESTS: Final = 70
"""About what an operator asks before its first write: definitions, watches, lists."""

UNINSTALL_KILLS: Final = 4


def test_a_killed_operator_goes_on_where_it_was(kwok_cluster: ClusterHandle) -> None:
    install_definitions(kwok_cluster)
    with ThreadPoolExecutor(WORLD_COUNT + 1) as pool:
        calm = pool.submit(live_calmly, kwok_cluster)
        seeds = [SEED * WORLD_COUNT + index for index in range(WORLD_COUNT)]
        disturbed = [pool.submit(live_disturbed, kwok_cluster, seed) for seed in seeds]
    for seed, world in zip(seeds, disturbed, strict=True):
        assert not list(compare(world.result(), calm.result())), f"the world of seed {seed}"


def live_disturbed(cluster: ClusterHandle, seed: int) -> Outcome:
    """What becomes of them with a world's share of the kills; what else must hold is checked."""
    with (
        running_twin(make_twin()) as twin,
        running_proxy(cluster.url, cluster.certificate) as proxy,
        cluster.namespace() as namespace,
    ):
        config = write_kubeconfig(cluster, namespace, proxy.url)
        operator = OperatorProcess(config, namespace, twin.url)
        ground = Ground(Objects(cluster, namespace), twin, operator)
        changes = make_changes()
        kills = kill_and_change(ground, proxy, changes, random.Random(seed))
        left = len(changes)
        proxy.arm(None)
        twin.on_change = None
        with running_operator(operator):
            found = finish(ground, changes, f"the world of seed {seed}")
        report(proxy, kills, left)
        assert kills >= WORLD_RESTARTS
        assert not list_faults(operator.log.read_text())
        check_calls(twin)
        uninstall(ground, proxy, random.Random(seed))
        return found


def uninstall(ground: Ground, proxy: DeadlyProxy, dice: random.Random) -> None:
    """All that people made is deleted while operators die; what is left in the end are claims."""
    objects = ground.objects
    for kind in (
        "loggrants",
        "archivepolicies",
        "logs",
        "lognamespaces",
        "bookiesets",
        "logclusters",
    ):
        objects.cluster.kubectl("-n", objects.namespace, "delete", kind, "--all", "--wait=false")
    for _ in range(UNINSTALL_KILLS):
        aim_somewhere(ground, proxy, dice)
        ground.operator.start()
        wait_for_end(ground.operator)
    proxy.arm(None)
    ground.twin.on_change = None
    with running_operator(ground.operator):
        wait_for_objects(lambda: not list_left(objects), END_S, "everything to go")
    assert len(objects.list("persistentvolumeclaims")) == 2 * BOOKIES + ZOOKEEPERS
    kept = {log.name for log in ground.twin.state.logs.values() if log.deleted_ms is None}
    assert kept >= {"late", "log-0", "log-2", "log-4", "log-6"}


def kill_and_change(
    ground: Ground, proxy: DeadlyProxy, changes: list[Change], dice: random.Random
) -> int:
    """Lives that end in the middle, with changes in between; gives how many ended so."""
    kills = 0
    for _ in range(3 * WORLD_RESTARTS):
        if kills >= WORLD_RESTARTS:
            break
        # Some lives begin with much to do, some with nothing new.
        for _ in range(dice.choice((0, 1, 1, 2))):
            if changes and changes[0].is_time(ground):
                changes.pop(0).do(ground)
        if not changes:
            disturb(ground, dice)
        aim_somewhere(ground, proxy, dice)
        ground.operator.start()
        wait_for_end(ground.operator)
        kills = len(proxy.struck)
    return kills


def disturb(ground: Ground, dice: random.Random) -> None:
    """Somebody changes what the operator keeps: it has something to do again."""
    with ground.twin.lock, suppress(DuramenError):
        log = ground.twin.state.find_log("shop", dice.choice(("log-0", "log-4")))
        patch = {"retention": {"age": f"{dice.randrange(100, 999)}h"}}
        ground.twin.state.change_log("shop", log.name, patch, None)
    name = dice.choice(("main-writeproxy", "main-readproxy"))
    ground.objects.cluster.delete("service", name, ground.objects.namespace)


def aim_somewhere(ground: Ground, proxy: DeadlyProxy, dice: random.Random) -> None:
    """At one of a life's first writes, at any request of its first hundreds, or at a call."""
    kill = ground.operator.kill
    moment = dice.choice(tuple(Moment))
    kind = dice.random()
    ground.twin.on_change = None
    proxy.arm(None)
    if kind < 0.6:
        proxy.arm(Aim(dice.randint(1, 8), moment, is_writes_only=True, strike=kill))
    elif kind < 0.8:
        number = dice.randint(1, 2 * START_REQUESTS)
        proxy.arm(Aim(number, moment, is_writes_only=False, strike=kill))
    else:
        ground.twin.on_change = CallStrike(dice.randint(1, 3), moment, kill, proxy)


class CallStrike:
    """Kills at the n-th change that the operator asks of the cluster."""

    def __init__(
        self, number: int, moment: Moment, kill: Callable[[], None], proxy: DeadlyProxy
    ) -> None:
        self._left, self._moment, self._kill, self._proxy = number, moment, kill, proxy

    def __call__(self, moment: str) -> bool:
        if moment != self._moment.value:
            return False
        self._left -= 1
        if self._left:
            return False
        self._proxy.struck.append(f"CALL {moment}")
        self._kill()
        return True


def wait_for_end(operator: OperatorProcess) -> None:
    """Until a life is over; one that found nothing to do is ended here."""
    if not operator.join(LIFE_S):
        operator.kill()


def report(proxy: DeadlyProxy, kills: int, left: int) -> None:
    """Where it was struck, for who reads the test's output."""
    verbs = Counter(text.partition(" ")[0] for text in proxy.struck)
    sys.stderr.write(
        f"{kills} lives ended at {dict(verbs)}, {proxy.request_count} requests, "
        f"{left} changes left for the end\n"
    )
