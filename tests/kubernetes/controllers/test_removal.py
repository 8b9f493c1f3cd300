"""Bookies are removed by a real API server's controllers, and the operator dies at its writes.

The twin drains, and grants one removal at a time of who is drained; pods that the API server has
are registered, as bookies would. Whatever write an operator died at, before or after, the next one
ends where an undisturbed one does: the same bookies, the same claims, no grant left, and nobody
stopped whose grant was not taken before. So it is when a removal is cancelled, when a new image
comes to all, when a set is deleted whose claims may go and when a whole cluster is. Half of the
lives are among faults of the API server, too.

The gate plays the courses that have a write of their own to die at; the night all of them, at
writes spread over what an undisturbed life has. DURAMEN_REMOVAL_KILLS is how many of each; `all`
and `46-91` are each one of them, before it and after it: the longest course (`renewed`) takes 100
minutes. Source: docs/kubernetes/removal.md, docs/kubernetes/restarts.md.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pytest

from duramen_operator.names import CONSENT_ANNOTATION
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.kubernetes.controllers.api_faults import ApiFaults
from tests.kubernetes.controllers.deadly_proxy import Aim, DeadlyProxy, Moment, running_proxy
from tests.kubernetes.controllers.grounds import RESTRICTED, Ground
from tests.kubernetes.controllers.operators import (
    RESYNC_S,
    SETTLE_S,
    OperatorProcess,
    install_definitions,
    running_operator,
    wait_for_objects,
    write_kubeconfig,
)
from tests.kubernetes.controllers.stops import Stops
from tests.kubernetes.controllers.twin_state import make_bookie
from tests.process.times import HANG_S
from tests.tiers import Tier, read_tier

KILLS: Final = os.environ.get("DURAMEN_REMOVAL_KILLS", "")
"""How many writes of each course, `all`, or from which to which: `46-91`; "": as the tier says."""

pytestmark = [pytest.mark.timeout(7_200 if KILLS else 1_500), pytest.mark.long]

AMONG: Final = (
    "statefulsets", "bookies", "bookiesets", "logclusters", "poddisruptionbudgets", "pods",
    "events",
)  # fmt: skip
"""What a removal writes; the Lease of an operator is the matter of tests/kubernetes/leading."""
MOST: Final = 5
LEAST: Final = 4
NEVER: Final = 10_000
LIFE_S: Final = 6.0
"""A life with nothing left to be done goes on for so long: what is told last is a write, too."""


class RemovalGround(Ground):
    """A namespace whose pods of bookies are registered with its twin, and its operators' proxy."""

    def __init__(
        self, cluster: ClusterHandle, namespace: str, twin: AdminTwin, proxy: DeadlyProxy
    ) -> None:
        super().__init__(cluster, namespace, twin)
        self.proxy = proxy
        config = write_kubeconfig(cluster, namespace, proxy.url)
        self.operator = OperatorProcess(config, namespace, twin.url, resync_s=RESYNC_S)
        self.stops = Stops(self, twin)
        self.counted = 0
        """Writes of the last life that count."""

    def register(self) -> None:
        """What bookies do: those that run are there, and those that do not are absent."""
        names = {pod["metadata"]["name"] for pod in self.pods()}
        with self.twin.lock:
            rows = self.twin.state.bookies
            rows += [make_bookie(name, "r", name) for name in sorted(names)
                     if name not in {row["id"] for row in rows}]  # fmt: skip
            for row in rows:
                row["state"] = "rw" if row["id"] in names else "absent"

    def is_settled(self, count: int) -> bool:
        """Whether so many run, everything is told to be done, and nothing is granted."""
        self.register()
        rows = {row["id"]: row["duty"] for row in self.twin.state.bookies}
        names = [pod["metadata"]["name"] for pod in self.pods()]
        return (
            len(names) == count == len(self.list("bookies"))
            and all(rows.get(name) == "serving" for name in names)
            and not self.twin.state.disruptions
            and self.condition("BookieSet", "main", "Progressing") == "False/Settled"
        )

    def run(self, *words: str) -> None:
        """kubectl in this namespace."""
        self.cluster.kubectl("-n", self.namespace, *words)

    def resize(self, replicas: int) -> None:
        self.run("scale", "bks/main", f"--replicas={replicas}")

    def claims_of_bookies(self) -> dict[str, str]:
        """Name and uid of each."""
        found = self.uids("pvc").items()
        return {name: uid for name, uid in found if "zookeeper" not in name}

    def is_set_gone(self) -> bool:
        """Whether nothing of the set is left but claims; services and budget are the cluster's."""
        self.register()
        return not self.pods() and not self.list("bookies,bookiesets")

    def is_cluster_gone(self) -> bool:
        """The same of the cluster."""
        kinds = "statefulsets,deployments,services,poddisruptionbudgets,pods,logclusters"
        return self.is_set_gone() and not self.list(kinds)

    def settle(self, count: int) -> None:
        """Wait for that, with an operator that nobody disturbs."""
        self.proxy.arm(None)
        with running_operator(self.operator):
            wait_for_objects(lambda: self.is_settled(count), HANG_S, f"{count} bookies to settle")

    def live(self, aim: Aim, is_over: Callable[[], bool], faults: ApiFaults | None = None) -> bool:
        """One life of an operator that dies at this write; False: it had no such write."""
        before, began_s = len(self.proxy.struck), time.monotonic()
        self.proxy.arm(aim)
        self.proxy.faults = faults
        self.operator.start()

        def has_ended() -> bool:
            is_idle = is_over() and time.monotonic() > began_s + LIFE_S
            return len(self.proxy.struck) > before or is_idle

        wait_for_objects(has_ended, HANG_S, "a life to end")
        self.operator.kill()
        self.proxy.faults = None
        self.counted = self.proxy.aimed_count
        self.proxy.arm(None)
        return len(self.proxy.struck) > before


class Course(NamedTuple):
    """Something that people begin, from the same world each time."""

    begin: Callable[[RemovalGround], None]
    is_over: Callable[[RemovalGround], bool]
    go_back: Callable[[RemovalGround], None]
    prepare: Callable[[RemovalGround], None] = lambda _: None
    keeps_claims: bool = True
    """Else those of the bookies go, and no others."""
    gate: tuple[int, ...] = ()
    """Writes that end a life in the gate, which each life has; who has none is played at night."""


def remove(here: RemovalGround) -> None:
    here.resize(LEAST)


def grow_again(here: RemovalGround) -> None:
    here.resize(MOST)
    here.settle(MOST)


def wait_for_turn(here: RemovalGround) -> None:
    """A removal that is recorded and drains, and cannot go on."""
    here.twin.state.disruptions = [make_grant()]
    here.resize(LEAST)

    def is_waiting() -> bool:
        here.register()
        return "granted is zookeeper/z" in here.message("BookieSet", "main", "Progressing")

    with running_operator(here.operator):
        wait_for_objects(is_waiting, SETTLE_S, "the removal to wait for its turn")


def cancel(here: RemovalGround) -> None:
    here.resize(MOST)
    here.twin.state.disruptions = []


def renew_image(here: RemovalGround) -> None:
    """Of everything: what runs as before is restarted, the bookies one by one."""
    image = f"localhost/duramen:{'other' if are_images(here, 'next') else 'next'}"
    here.run("patch", "dc/main", "--type=merge", f'--patch={{"spec": {{"image": "{image}"}}}}')


def are_images(here: RemovalGround, tag: str) -> bool:
    """Whether all bookies and sequencers run this one."""
    pods = [*here.pods(), *here.pods("sequencer")]
    images = {pod["spec"]["containers"][0]["image"] for pod in pods}
    return images == {f"localhost/duramen:{tag}"}


def is_renewed(here: RemovalGround) -> bool:
    """Whether all of it runs as the spec says."""
    cluster = here.find("logclusters", "main") or {}
    tag = str(cluster["spec"].get("image", "")).partition(":")[2]
    is_told = here.condition("LogCluster", "main", "Progressing") == "False/Settled"
    return here.is_settled(MOST) and are_images(here, tag) and is_told


def delete_set(here: RemovalGround) -> None:
    here.run("delete", "bks/main", "--wait=false")


def delete_cluster(here: RemovalGround) -> None:
    here.run("delete", "dc/main", "bks/main", "--wait=false")


def make_again(here: RemovalGround) -> None:
    with running_operator(here.operator):
        here.install(replicas=MOST, domains=[])
    here.settle(MOST)


def allow_claims(here: RemovalGround) -> None:
    """Somebody says that the claims of this very set may go, and is told that they would."""
    here.run("patch", "bks/main", "--type=merge", '--patch={"spec": {"claims": "Delete"}}')
    uid = here.uids("bookiesets")["BookieSet/main"]
    here.run("annotate", "bks/main", f"{CONSENT_ANNOTATION}={uid}")


def count_fates(here: RemovalGround) -> Counter[str]:
    """What becomes of claims with each StatefulSet of the set."""
    here.register()
    selector = "app.kubernetes.io/component=bookie"
    return Counter(
        one["spec"].get("persistentVolumeClaimRetentionPolicy", {}).get("whenDeleted", "")
        for one in here.cluster.list("statefulsets", here.namespace, selector)
    )


def are_claims_named(here: RemovalGround) -> bool:
    """Whether the claims go with the set's StatefulSets, each with its own."""
    return count_fates(here) == {"Delete": MOST}


def consent(here: RemovalGround) -> None:
    allow_claims(here)
    with running_operator(here.operator):
        wait_for_objects(lambda: are_claims_named(here), SETTLE_S, "the claims to be named")


def are_claims_gone(here: RemovalGround) -> bool:
    return here.is_set_gone() and not here.claims_of_bookies()


def take_back(here: RemovalGround) -> None:
    """The mind is changed: claims stay again, whoever deletes the set then."""
    here.run("annotate", "bks/main", f"{CONSENT_ANNOTATION}-")
    with running_operator(here.operator):
        wait_for_objects(
            lambda: count_fates(here) == {"Retain": MOST}, SETTLE_S, "the claims to stay"
        )
    here.run("patch", "bks/main", "--type=merge", '--patch={"spec": {"claims": "Retain"}}')
    here.settle(MOST)


COURSES: Final = {
    "removed": Course(remove, lambda here: here.is_settled(LEAST), grow_again, gate=(5, 6)),
    "cancelled": Course(
        cancel, lambda here: here.is_settled(MOST), lambda _: None, prepare=wait_for_turn
    ),
    "renewed": Course(renew_image, is_renewed, lambda here: here.settle(MOST)),
    "consented": Course(allow_claims, are_claims_named, take_back),
    "consented and deleted": Course(
        delete_set, are_claims_gone, make_again, prepare=consent, keeps_claims=False, gate=(1,)
    ),
    "set deleted": Course(delete_set, RemovalGround.is_set_gone, make_again),
    "cluster deleted": Course(delete_cluster, RemovalGround.is_cluster_gone, make_again),
}


LASTING: Final = ("removed", "cancelled")
"""Courses that leave a cluster; how many writes a deletion has depends on who is faster."""


@contextmanager
def removal_ground(cluster: ClusterHandle) -> Iterator[RemovalGround]:
    install_definitions(cluster)
    with (
        running_twin() as twin,
        running_proxy(cluster.url, cluster.certificate) as proxy,
        cluster.namespace(**RESTRICTED) as namespace,
    ):
        here = RemovalGround(cluster, namespace, twin, proxy)
        proxy.on_write = here.stops.on_write
        with running_operator(here.operator):
            here.install(replicas=MOST, domains=[])
        here.settle(MOST)
        yield here


def check_order(twin: AdminTwin) -> None:
    """Each bookie that went was drained and granted by then, and each grant was ended."""
    paths = [(call.method, call.path) for call in twin.changes if call.status < 300]
    drained = [path.split("/")[4] for method, path in paths if path.endswith("/drain")]
    granted = [
        call.body["target"] for call in twin.changes
        if call.path == "/v1/cluster/disruptions" and call.body.get("kind") == "remove"
    ]  # fmt: skip
    absent = {row["id"] for row in twin.state.bookies if row["state"] == "absent"}
    assert absent <= set(drained)
    assert {f"bookie/{name}" for name in absent} <= set(granted)
    assert not twin.state.disruptions


PLAYED: Final = [
    pytest.param(name, marks=[] if course.gate or KILLS else [pytest.mark.night])
    for name, course in COURSES.items()
]


@pytest.mark.parametrize("name", PLAYED)
def test_an_operator_that_dies_at_a_write_is_followed_by_one_that_ends_it(
    kwok_cluster: ClusterHandle, name: str
) -> None:
    course = COURSES[name]
    with removal_ground(kwok_cluster) as here:

        def live(number: int, moment: Moment, faults: ApiFaults | None = None) -> bool:
            """Begun, disturbed, ended by another operator, judged, and back at the beginning."""
            course.prepare(here)
            uids, claims, of_bookies = here.uids("pods"), here.uids("pvc"), here.claims_of_bookies()
            course.begin(here)
            is_over = functools.partial(course.is_over, here)
            aim = Aim(number, moment, is_writes_only=True, strike=here.operator.kill, among=AMONG)
            is_struck = here.live(aim, is_over, faults)
            with running_operator(here.operator):
                wait_for_objects(is_over, HANG_S, f"what is {name} to be so")
            kept = claims.items() if course.keeps_claims else claims.items() - of_bookies.items()
            assert here.uids("pvc").items() == kept
            if name in LASTING:
                check_order(here.twin)
                left = here.uids("pods")
                assert left.items() <= uids.items()
                gone = [f"Pod/{one['id']}" for one in here.twin.state.bookies
                        if one["duty"] == "drained" and f"Pod/{one['id']}" in uids]  # fmt: skip
                assert sorted(uids.keys() - left.keys()) == gone
                assert len(gone) == int(name == "removed")
            course.go_back(here)
            assert not here.stops.faults
            return is_struck

        aims = pair(course.gate)
        least = len(aims)
        if KILLS or not aims or read_tier() is Tier.NIGHT:
            live(NEVER, Moment.BEFORE)  # how many writes it has, undisturbed
            aims = pick_aims(here.counted)
            least = max(len(aims) // 2, int(name in LASTING))
        struck = sum(live(*aim, faults_of(index)) for index, aim in enumerate(aims))
        sys.stderr.write(f"{name}: {struck} lives ended at {len(aims)} writes and moments\n")
        assert struck >= least


def pick_aims(writes: int) -> list[tuple[int, Moment]]:
    """At which writes operators die, and when: spread over all of them."""
    first, is_part, last = KILLS.partition("-")
    if KILLS == "all" or is_part:
        numbers = range(int(first), int(last) + 1) if is_part else range(1, writes + 1)
        return list(itertools.product(numbers, Moment))
    wanted = int(KILLS or 12)
    return pair(range(1, writes + 1, max(1, writes // max(wanted, 1))))


def pair(numbers: Iterable[int]) -> list[tuple[int, Moment]]:
    """Each write with a moment, one after the other."""
    return list(zip(numbers, itertools.cycle(Moment)))


def faults_of(index: int) -> ApiFaults | None:
    return ApiFaults(index, time.monotonic) if index % 4 in (1, 2) else None


def make_grant() -> dict[str, Any]:
    return {
        "token": "0b" * 16, "target": "zookeeper/z", "kind": "restart", "holder": "x",
        "life_ms": 60_000, "over_in_ms": 60_000, "granted_unix_ms": 1, "accepts": [],
    }  # fmt: skip
