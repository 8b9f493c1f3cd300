"""The operator is killed at a random request, again and again, and everything converges.

People change objects all the while. Each life of the operator ends by SIGKILL at the n-th request
to the API server (before it is done, or after it was done and before the answer), or at a call to
the cluster. In the end an undisturbed operator finishes; then the objects, with their status and
owners, are those of an operator that nobody ever disturbed (`outcomes`), and the twin's record says
that nothing was done twice wrongly.
Then all is uninstalled while operators die, and only claims are left. Operators wait more than
they work: four worlds are disturbed at once, each by numbers of its own.

DURAMEN_RESTARTS is how many in all (60, at night 200), DURAMEN_SEED where random numbers begin.
Source: ADR 0020.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pytest

from duramen.errors import DuramenError
from duramen_operator.names import COMPONENT_LABEL, PAUSED_ANNOTATION
from duramen_operator.resources.conditions import NOT_YET_SUPPORTED
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.kubernetes.controllers.deadly_proxy import Aim, DeadlyProxy, Moment, running_proxy
from tests.kubernetes.controllers.operators import (
    Objects,
    OperatorProcess,
    install_definitions,
    running_operator,
    wait_for_objects,
    write_kubeconfig,
)
from tests.kubernetes.controllers.outcomes import Outcome, compare, describe_objects
from tests.process.times import HANG_S
from tests.tiers import sized

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.long]

RESTARTS: Final = int(os.environ.get("DURAMEN_RESTARTS", sized(fast=4, gate=60, night=200)))
SEED: Final = int(os.environ.get("DURAMEN_SEED", "10"))
WORLD_COUNT: Final = 4
WORLD_RESTARTS: Final = -(-RESTARTS // WORLD_COUNT)
LIFE_S: Final = 10.0
"""A life that has nothing left to do before its request ends here; it counts as none."""

START_REQUESTS: Final = 70
"""About what an operator asks before its first write: definitions, watches, lists."""

CALLS_OF_THREE_PASSES: Final = 120
"""Of this cluster's namespaces and logs: two or three calls for each."""

NOT_ANSWERED: Final = "NotAnswered"
"""The reason of a condition of which the cluster said nothing when it was asked last."""

END_S: Final = HANG_S
BOOKIES: Final = 5
ZOOKEEPERS: Final = 3
UNINSTALL_KILLS: Final = 4
BY_HAND: Final = ("corp/ann", "reader", "shop")
CLUSTER: Final = {"security": "none", "acceptAnybody": True, "coldStore": {"url": "s3://b/a"}}
SIZES: Final = {"journal": {"size": "1Gi"}, "ledgers": {"size": "1Gi"}}
MADE: Final = (
    "statefulsets,deployments,services,poddisruptionbudgets,cronjobs,configmaps,"
    "lognamespaces,logs,loggrants,archivepolicies,logclusters,bookiesets,bookies"
)


class Ground(NamedTuple):
    """One namespace, its twin, and the operator of it."""

    objects: Objects
    twin: AdminTwin
    operator: OperatorProcess


class Change(NamedTuple):
    """What somebody does, once something is so."""

    do: Callable[[Ground], None]
    is_time: Callable[[Ground], bool]


def make_changes() -> list[Change]:
    """What people do, in order; the same in every ground."""

    def apply(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> Change:
        return Change(
            lambda ground: ground.objects.apply(kind, name, spec, **metadata), lambda _: True
        )

    def log(name: str, **spec: Any) -> Change:
        return apply("Log", name, {"clusterName": "main", "namespace": "shop", **spec})

    def grant(name: str, user: str, scope: str) -> Change:
        subject = {"clusterName": "main", "subject": {"user": user}, "role": "reader"}
        return apply("LogGrant", name, {**subject, "scope": scope})

    def delete(kind: str, name: str) -> Change:
        # What was never made cannot go: the two worlds would differ for that reason alone.
        return Change(
            lambda ground: ground.objects.delete(kind, name),
            lambda ground: ground.objects.condition(kind, name).startswith("True/"),
        )

    upgraded = {**CLUSTER, "sequencers": {"replicas": 3}, "image": "localhost/duramen:next"}
    return [
        apply("LogCluster", "main", CLUSTER),
        apply("BookieSet", "main", {"clusterName": "main", "replicas": 3, **SIZES}),
        apply("LogNamespace", "shop", {"clusterName": "main"}),
        apply("LogNamespace", "fair", {"clusterName": "main", "deletionPolicy": "Delete"}),
        *[log(f"log-{n}", deletionPolicy="Delete" if n % 2 else "Retain") for n in range(8)],
        Change(give_by_hand, lambda _: True),
        *[grant(f"grant-{n}", f"corp/u{n // 2}", "shop/log-*") for n in range(6)],
        grant("by-hand", *BY_HAND[::2]),
        apply("ArchivePolicy", "all", {"clusterName": "main", "schedule": "0 0 1 1 *"}),
        *[log(f"log-{n}", deletionPolicy="Delete" if n % 2 else "Retain",
              retention={"age": f"{n + 1}h"}, sealed=n > 5) for n in range(8)],
        apply("BookieSet", "main", {"clusterName": "main", "replicas": BOOKIES, **SIZES}),
        *[delete("Log", f"log-{n}") for n in (1, 2, 3)],
        *[delete("LogGrant", f"grant-{n}") for n in (0, 2, 3)],
        apply("LogNamespace", "shop", {"clusterName": "main", "auto_create": True}),
        log("late", truncation="seq:0"),
        apply("ArchivePolicy", "all", {"clusterName": "main", "schedule": "0 3 * * *"}),
        apply("LogCluster", "main", {**CLUSTER, "sequencers": {"replicas": 3}}),
        delete("LogNamespace", "fair"),
        apply("LogCluster", "main", upgraded, annotations={PAUSED_ANNOTATION: "true"}),
        log("late", truncation="seq:0", retention={"age": "9h"}),
        apply("LogCluster", "main", upgraded),
    ]  # fmt: skip


def give_by_hand(ground: Ground) -> None:
    """Somebody gives what an object will say, too."""
    user, role, scope = BY_HAND
    with ground.twin.lock:
        ground.twin.state.grants.give(f"user:{user}", role, scope)


def list_unsettled(ground: Ground) -> list[str]:
    """What is not as wanted yet, or has not gone yet; pods of fake nodes may take their time."""
    objects = ground.objects
    found = []
    for item in objects.list("lognamespaces,logs,loggrants,archivepolicies"):
        kind, name = item["kind"], item["metadata"]["name"]
        said = {
            one["type"]: f"{one['status']}/{one['reason']}"
            for one in item.get("status", {}).get("conditions", ())
            if one["observedGeneration"] == item["metadata"]["generation"]
        }
        is_ready = said.get("Ready", "").startswith("True/")
        # A call that ended with its operator, or found a busy machine, is asked again by the next.
        is_heard = not any(one.endswith(f"/{NOT_ANSWERED}") for one in said.values())
        if "deletionTimestamp" in item["metadata"] or not (is_ready and is_heard):
            found.append(f"{kind} {name}: {said}")
    return found


def settle(ground: Ground, what: str) -> None:
    """Wait until nothing is left to be done: all is told to be so, and passes change nothing.

    What was told before the last life ended says nothing of what was disturbed since.
    """
    last: list[str] = []
    twin = ground.twin

    def is_settled() -> bool:
        last[:] = list_unsettled(ground)
        return not last and len(ground.objects.list("bookies")) == BOOKIES

    def is_at_rest() -> bool:
        calls, changes = twin.call_count + CALLS_OF_THREE_PASSES, len(twin.changes)
        wait_for_objects(lambda: twin.call_count >= calls, END_S, "three more passes")
        return len(twin.changes) == changes and is_settled()

    try:
        wait_for_objects(is_settled, END_S, f"{what} to settle")
        wait_for_objects(is_at_rest, END_S, f"{what} to come to rest")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None


def list_unfinished(ground: Ground) -> list[str]:
    """What Kubernetes or the operator still does to pods, or has not told yet."""
    found = []
    for item in ground.objects.list("statefulsets,deployments"):
        status, wanted = item.get("status", {}), item["spec"]["replicas"]
        counts = [status.get(name, 0) for name in ("replicas", "readyReplicas", "updatedReplicas")]
        is_seen = status.get("observedGeneration") == item["metadata"]["generation"]
        if counts != [wanted] * 3 or not is_seen:
            found.append(f"{item['kind']} {item['metadata']['name']}: {counts} of {wanted}")
    for item in ground.objects.list("logclusters,bookiesets,bookies"):
        told = {one["type"]: one for one in item.get("status", {}).get("conditions", ())}
        ready, progress = told.get("Ready", {}), told.get("Progressing", {})
        is_seen = ready.get("observedGeneration") == item["metadata"]["generation"]
        if not is_seen or ready["status"] != "True" or progress.get("status") == "True":
            found.append(f"{item['kind']} {item['metadata']['name']}: {ready} {progress}")
        elif progress.get("reason") == NOT_YET_SUPPORTED:
            found.append(f"{item['kind']} {item['metadata']['name']}: {progress['message']}")
    for item in ground.objects.list("poddisruptionbudgets"):
        status = item.get("status", {})
        if status.get("currentHealthy", 0) != status.get("expectedPods"):
            found.append(f"PodDisruptionBudget {item['metadata']['name']}: {status}")
    return found


def renew_bookies(ground: Ground) -> None:
    """Delete the bookies' pods, as the status asks people to after a change.

    Which pods are older than the last change depends on when an operator lived to make it. It is
    told in the status of bookies, sets and cluster, which are to compare.
    """
    objects = ground.objects

    def list_uids() -> set[str]:
        pods = (one["metadata"] for one in objects.list("pods"))
        return {one["uid"] for one in pods if one["labels"].get(COMPONENT_LABEL) == "bookie"}

    old = list_uids()
    # kubectl's own wait has a bound of its own, which a full machine exceeds.
    objects.cluster.kubectl(
        "-n", objects.namespace, "delete", "pods", "-l", f"{COMPONENT_LABEL}=bookie",
        "--wait=false",
    )  # fmt: skip
    wait_for_objects(lambda: not old & list_uids(), END_S, "the bookies' pods to go")


def describe_twin(twin: AdminTwin) -> dict[str, Any]:
    """What became of the cluster."""
    state = twin.state
    return {
        "grants": sorted(state.grants.names()),
        "namespaces": {name: one.to_json() for name, one in sorted(state.namespaces.items())},
        "logs": sorted(
            (log.namespace, log.name, log.is_ended, log.deleted_ms is not None,
             json.dumps(log.config.to_json()["retention"]))
            for log in state.logs.values()
        ),
    }  # fmt: skip


def test_a_killed_operator_goes_on_where_it_was(kwok_cluster: ClusterHandle) -> None:
    install_definitions(kwok_cluster)
    with ThreadPoolExecutor(WORLD_COUNT + 1) as pool:
        calm = pool.submit(live_calmly, kwok_cluster)
        seeds = [SEED * WORLD_COUNT + index for index in range(WORLD_COUNT)]
        disturbed = [pool.submit(live_disturbed, kwok_cluster, seed) for seed in seeds]
    for seed, world in zip(seeds, disturbed, strict=True):
        assert not list(compare(world.result(), calm.result())), f"the world of seed {seed}"


def make_twin() -> AdminTwin:
    """Of a cluster that judges by grants."""
    twin = AdminTwin()
    twin.state.security = "on"
    return twin


def live_calmly(cluster: ClusterHandle) -> Outcome:
    """What becomes of the changes where nobody kills."""
    with running_twin(make_twin()) as twin, cluster.namespace() as namespace:
        operator = OperatorProcess(cluster.kubeconfig, namespace, twin.url)
        ground = Ground(Objects(cluster, namespace), twin, operator)
        with running_operator(operator):
            return finish(ground, make_changes(), "the calm world")


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


def list_left(objects: Objects) -> list[str]:
    """What is ours and still there, but for claims."""
    names = [item["metadata"]["name"] for item in objects.list(f"{MADE},pods")]
    return [name for name in names if name != "kube-root-ca.crt"]


def list_faults(log: str) -> list[str]:
    """Lines with a traceback that an operator is to answer for.

    Not that kopf's generators complain of being closed when a process ends.
    """
    ending = '"message":"an error occurred during closing of asynchronous generator'
    return [line for line in log.splitlines() if "Traceback" in line and ending not in line]


def finish(ground: Ground, changes: list[Change], what: str) -> Outcome:
    """What there is once the changes that are left were made and nothing is left to be done."""
    do_all(ground, changes)
    settle(ground, what)
    renew_bookies(ground)
    left: list[str] = []

    def is_finished() -> bool:
        left[:] = list_unfinished(ground)
        return not left

    try:
        wait_for_objects(is_finished, END_S, f"{what} to be finished")
    except AssertionError as error:
        raise AssertionError(f"{error}: {left}") from None
    settle(ground, what)
    items = [
        item for item in ground.objects.list(MADE) if item["metadata"]["name"] != "kube-root-ca.crt"
    ]
    ids = {str(log.log_id): log.name for log in ground.twin.state.logs.values()}
    objects = describe_objects(items, ground.objects.namespace, ids)
    return {**objects, **describe_twin(ground.twin)}


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


def do_all(ground: Ground, changes: list[Change]) -> None:
    """What is left of the changes, each at its time."""
    for change in changes:
        ready = functools.partial(change.is_time, ground)
        wait_for_objects(ready, END_S, "the next change to have its time")
        change.do(ground)


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


def check_calls(twin: AdminTwin) -> None:
    """Nothing was made twice, deleted twice with effect, or asked of what nobody named."""
    made = Counter(call.path for call in twin.changes if call.status == 201)
    assert set(made.values()) == {1}, made
    # An answer that nobody heard may be asked for once more, and finds it done.
    assert not [call for call in twin.changes if call.status >= 500]
    deleted = {log.name for log in twin.state.logs.values() if log.deleted_ms is not None}
    assert deleted == {"log-1", "log-3"}
    named = {f"/v1/namespaces/shop/logs/{name}" for name in
             (*(f"log-{n}" for n in range(8)), "late")}  # fmt: skip
    named |= {f"{path}{verb}" for path in named for verb in (":end", ":truncate")}
    named |= {"/v1/namespaces/shop", "/v1/namespaces/fair", "/v1/grants"}
    grants = "/v1/cluster/disruptions"
    assert {call.path for call in twin.changes if not call.path.startswith(grants)} <= named
    assert not twin.state.disruptions, "each grant was ended, whoever took it"


def report(proxy: DeadlyProxy, kills: int, left: int) -> None:
    """Where it was struck, for who reads the test's output."""
    verbs = Counter(text.partition(" ")[0] for text in proxy.struck)
    sys.stderr.write(
        f"{kills} lives ended at {dict(verbs)}, {proxy.request_count} requests, "
        f"{left} changes left for the end\n"
    )
