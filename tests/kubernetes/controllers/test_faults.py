"""Two operators of one namespace while everything between them and the API server goes wrong.

Each has a proxy of its own, which lies and fails by dice (`api_faults`): lists of a while ago,
events that are lost, late or doubled, conflicts, 429, 5xx before and after, Leases out of reach for
longer than they last. People change objects all the while. Then the faults end, and what there is
is what there is where nothing ever went wrong; nobody was stopped without a grant, no claim went.

Of the night. DURAMEN_FAULT_WORLDS is how many worlds (6), DURAMEN_SEED where random numbers begin.
Source: docs/kubernetes/one-hand.md, docs/kubernetes/restarts.md.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

import pytest

from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.kubernetes.controllers.api_faults import REFUSALS, ApiFaults, Fault
from tests.kubernetes.controllers.changing_world import (
    END_S,
    Ground,
    check_calls,
    finish,
    list_faults,
    live_calmly,
    make_changes,
    make_twin,
)
from tests.kubernetes.controllers.deadly_proxy import running_proxy
from tests.kubernetes.controllers.operators import (
    Objects,
    OperatorProcess,
    install_definitions,
    running_operator,
    wait_for_objects,
    write_kubeconfig,
)
from tests.kubernetes.controllers.outcomes import Outcome, compare
from tests.kubernetes.controllers.stops import Stops

pytestmark = [pytest.mark.night, pytest.mark.timeout(1_500)]

WORLDS: Final = int(os.environ.get("DURAMEN_FAULT_WORLDS", "6"))
SEED: Final = int(os.environ.get("DURAMEN_SEED", "10"))
CALLS_BETWEEN: Final = 40
"""Of the twin, between two changes: about a pass."""
WRITES_MAX: Final = 1_500
"""Of both, but for the Lease; undisturbed it is about two hundred."""

READS: Final = (Fault.OLDER,)
WRITES: Final = tuple(REFUSALS)
EVENTS: Final = (Fault.DROPPED, Fault.LATE, Fault.DOUBLED)
OPERATORS: Final = ("one", "two")


def test_faults_between_operators_and_the_api_server_change_nothing_in_the_end(
    kwok_cluster: ClusterHandle,
) -> None:
    install_definitions(kwok_cluster)
    seeds = range(SEED, SEED + WORLDS)
    with ThreadPoolExecutor(3) as pool:
        calm = pool.submit(live_calmly, kwok_cluster)
        worlds = [pool.submit(live_among_faults, kwok_cluster, seed) for seed in seeds]
    for seed, world in zip(seeds, worlds, strict=True):
        assert not list(compare(world.result(), calm.result())), f"the world of seed {seed}"


def live_among_faults(cluster: ClusterHandle, seed: int) -> Outcome:
    """What becomes of the changes there; what else must hold is checked."""
    with ExitStack() as stack:
        twin = stack.enter_context(running_twin(make_twin()))
        namespace = stack.enter_context(cluster.namespace())
        objects = Objects(cluster, namespace)
        stops = Stops(objects, twin)
        proxies, operators = [], []
        for index, identity in enumerate(OPERATORS):
            proxy = stack.enter_context(running_proxy(cluster.url, cluster.certificate))
            proxy.on_write = stops.on_write
            proxy.faults = ApiFaults(seed * len(OPERATORS) + index, time.monotonic)
            proxies.append(proxy)
            config = write_kubeconfig(cluster, f"{namespace}-{identity}", proxy.url)
            operators.append(OperatorProcess(config, namespace, twin.url, identity=identity))
        for operator in operators:
            stack.enter_context(running_operator(operator))
        ground = Ground(objects, twin, operators[0])
        live_on(ground, operators)
        counts = [proxy.faults.counts for proxy in proxies if proxy.faults is not None]
        for proxy in proxies:
            proxy.faults = None
        found = finish(ground, [], f"the world of seed {seed}")
        sys.stderr.write(
            f"faults of seed {seed}: {counts}, stopped: {stops.evicted}, "
            f"{stops.write_count} writes\n"
        )
        for faults in (READS, WRITES, EVENTS):
            assert sum(one[fault.value] for one in counts for fault in faults), faults
        assert not stops.faults
        assert stops.write_count <= WRITES_MAX
        assert stops.evicted, "the new image restarts sequencers"
        assert all(operator.is_running for operator in operators)
        assert not [line for one in operators for line in list_faults(one.log.read_text())]
        check_calls(twin)
        return found


def live_on(ground: Ground, operators: list[OperatorProcess]) -> None:
    """People change things; somebody serves in between, however badly."""
    for change in make_changes():
        ready = functools.partial(change.is_time, ground)
        wait_for_objects(ready, END_S, "the next change to have its time")
        change.do(ground)
        wait_calls(ground.twin)
        assert all(operator.is_running for operator in operators)


def wait_calls(twin: AdminTwin) -> None:
    """Until somebody has asked the cluster for so much."""
    calls = twin.call_count + CALLS_BETWEEN
    wait_for_objects(lambda: twin.call_count >= calls, END_S, "calls among faults")
