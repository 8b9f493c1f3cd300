"""The operator's calls to a cluster with identities: real write proxies, and a Secret that changes.

A cluster of `duramen run` has one more write proxy, started as a pod's process is: with TLS on its
public port as well. What the operator may do there is judged by it, not by a twin. The API server
is a table with one Secret. Source: docs/kubernetes/security.md "The operator as a caller".
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import shutil
import socket
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from duramen.runtime.identity.authority import begin_authority, open_authority
from duramen.runtime.identity.certificates import Places
from duramen.runtime.identity.folder import write_bundle, write_folder
from duramen.runtime.identity.generations import (
    BUNDLE_FILE,
    KEY_FILE,
    LEAF_FILE,
    LIST_FILE,
    resolve,
)
from duramen.runtime.identity.names import make_identity
from duramen_operator.apply.executor import CallRefused
from duramen_operator.kube import Refused
from duramen_operator.names import API_VERSION, FOUNDATION, WRITE_PROXY, make_labels
from duramen_operator.plan.log_grants import plan_grants
from duramen_operator.plan.observed import AdminView, Json, Observed, Problem, Ref, observe_objects
from duramen_operator.plan.steps import Call
from duramen_operator.serving.cluster_admin import ClusterAdmin
from duramen_operator.serving.cluster_identity import ClusterIdentity
from duramen_operator.settings import Settings
from tests.process.cluster import LocalCluster, run, running_cluster
from tests.process.times import HANG_S
from tests.waiting import wait_for, wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

NAMESPACE: Final = "here"
SECRET: Final = Ref("v1", "Secret", "main-operator")
SPEC: Final = {"clusterName": "main"}
HERE: Final = Places((), (ipaddress.ip_address("127.0.0.1"),))
URLS: Final = ("https://127.0.0.1:{pod}", "https://127.0.0.1:1{pod}")
"""A pod's name is the number of its public port: so each proxy has ports of its own."""


class SecretTable:
    """An API server that has one Secret, or says why not."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] | None = None
        self.refusal: Refused | None = None

    async def get(self, ref: Ref) -> Json | None:
        assert ref == SECRET, "no other Secret is read"
        if self.refusal is not None:
            raise self.refusal
        if self.data is None:
            return None
        return {"data": {name: b64encode(one).decode() for name, one in self.data.items()}}


class PodWorld:
    """The cluster, its CA, and the operator that calls it."""

    def __init__(self, cluster: LocalCluster, pod: str, folder: Path) -> None:
        self.cluster = cluster
        self.pod = pod
        self.table = SecretTable()
        self._folder = folder
        self._ca = cluster.folder / "ca"
        with open_authority(self._ca, _now()) as authority:
            self.domain = authority.domain

    def issue(self, role: str = "operator", ca: Path | None = None) -> dict[str, bytes]:
        """The files of an identity."""
        out = self._folder / "issued"
        shutil.rmtree(out, ignore_errors=True)
        with open_authority(ca or self._ca, _now()) as authority:
            identity = make_identity(authority.domain, role, "main")
            write_folder(out, authority.issue(identity, _now()))
        names = (LEAF_FILE, KEY_FILE, BUNDLE_FILE, LIST_FILE)
        found = ((name, resolve(out) / name) for name in names)
        return {name: path.read_bytes() for name, path in found if path.exists()}

    def revoke_all(self) -> None:
        """Everything that operators called `main` have is worth nothing any more."""
        with open_authority(self._ca, _now()) as authority:
            ended = [
                one.serial for one in authority.list_issued() if one.identity.endswith("tor/main")
            ]
            authority.revoke(ended, _now())
            for name in (self.pod, *(p["id"] for p in self.cluster.state()["processes"])):
                folder = self.cluster.folder / "identities" / name
                write_bundle(folder, authority.domain, authority.bundle, _now())

    def open(self) -> ClusterAdmin:
        """The operator's calls, as it makes them."""
        settings = Settings(NAMESPACE, write_url=URLS[0], admin_url=URLS[1])
        return ClusterAdmin("main", settings, ClusterIdentity(self.table, "main"))

    def observe(self, *objects: Json, pods: tuple[str, ...] = (), uuid: str = "") -> Observed:
        """What is there: the cluster, its record, its write proxies, and what people asked for."""
        data = {"cluster": "main", "zookeeper": "bundled", "members": "1", "security": "on"}
        named = {"metadata": {"name": f"main-{FOUNDATION}", "ownerReferences": [{"uid": "u"}]}}
        return observe_objects(
            NAMESPACE,
            "main",
            [
                make_own("LogCluster", "main", {"security": "on"}),
                {
                    "apiVersion": "v1", "kind": "ConfigMap", **named,
                    "data": data | {"uuid": uuid or self.domain},
                },
                *map(make_pod, pods or (self.pod,)),
                *objects,
            ],
        )  # fmt: skip


def make_own(kind: str, name: str, spec: dict[str, Any]) -> Json:
    metadata = {"name": name, "uid": "u", "resourceVersion": "1", "generation": 1}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def make_pod(name: str) -> Json:
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": make_labels("main", WRITE_PROXY)},
        "spec": {"hostname": name, "subdomain": "main-writeproxy-pods"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodWorld]:
    """One cluster for all."""
    folder = tmp_path_factory.mktemp("operator")
    with running_cluster(folder / "c", "--no-restart") as cluster:
        pod = pick_pod()
        with more_proxy(cluster, pod):
            yield PodWorld(cluster, pod, folder)


@contextmanager
def more_proxy(cluster: LocalCluster, pod: str) -> Iterator[None]:
    """A write proxy as a pod runs it: as the cluster's own, with TLS on its public port."""
    folder = cluster.folder / "identities" / pod
    with open_authority(cluster.folder / "ca", _now()) as authority:
        identity = make_identity(authority.domain, WRITE_PROXY, pod)
        write_folder(folder, authority.issue(identity, _now(), places=HERE))
    raw = Path(f"/proc/{cluster.pid('writeproxy-0')}/cmdline").read_bytes()
    command = [part.decode() for part in raw.split(b"\0") if part]
    given = {
        "--id": pod, "--data-port": pod, "--admin-port": f"1{pod}",
        "--tls-dir": str(folder), "--data-dir": str(cluster.folder / pod),
    }  # fmt: skip
    for flag, value in given.items():
        command[command.index(flag) + 1] = value
    with (cluster.folder / "logs" / f"{pod}.log").open("ab") as log:
        child = subprocess.Popen(
            [*command, "--public-tls-dir", str(folder)], stdout=log, stderr=log
        )
    try:
        url = f"https://127.0.0.1:1{pod}/readyz"
        wait_in_thread(partial(_is_ready, url, cluster), HANG_S, f"{pod} to be ready")
        yield
    finally:
        child.terminate()
        assert child.wait(HANG_S) == 0


def _is_ready(url: str, cluster: LocalCluster) -> bool:
    try:
        trusted = cluster.trust_admin_ports()
        return httpx.get(url, timeout=5, verify=trusted).status_code == 200
    except httpx.HTTPError:
        return False


def pick_pod() -> str:
    """A number of four digits, free as a port, and with a 1 in front of it too."""
    for number in range(3_000, 9_999):
        try:
            with (
                socket.create_server(("127.0.0.1", number)),
                socket.create_server(("127.0.0.1", 10_000 + number)),
            ):
                return str(number)
        except OSError:
            continue
    raise AssertionError("no port is free")


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


async def say_why(admin: ClusterAdmin, seen: Observed) -> str:
    """Why a look showed nothing."""
    view = await admin.look(seen)
    assert not view.is_reachable
    assert view.bookies is None
    return view.reason


async def look_until(
    admin: ClusterAdmin, seen: Observed, is_seen: Callable[[AdminView], bool]
) -> AdminView:
    """The first view in which it is so: a sequencer tells of bookies what has come to it."""
    views: list[AdminView] = []

    async def is_so() -> bool:
        views.append(await admin.look(seen))
        assert views[-1].reason == ""
        return is_seen(views[-1])

    await wait_for(is_so, HANG_S, "the change to be seen")
    return views[-1]


def weigh(view: AdminView, bookie: str) -> float:
    assert view.bookies is not None
    weight: float = view.bookies[bookie]["weight"]
    return weight


async def make(admin: ClusterAdmin, method: str, path: str, body: Json | None = None) -> None:
    is_admin_port = path.startswith("/v1/cluster")
    await admin.call(Call(SECRET, method, path, body, is_admin_port=is_admin_port))


def test_all_that_a_plan_asks_for_is_allowed_without_token_or_grant(world: PodWorld) -> None:
    async def scenario() -> None:
        world.table.data = world.issue()
        admin = world.open()
        assert (await admin.look(world.observe())).is_reachable
        await make(admin, "PUT", "/v1/namespaces/shop", {})
        await make(admin, "PATCH", "/v1/namespaces/shop", {"auto_create": True})
        for log in ("orders", "gone"):
            await make(admin, "PUT", f"/v1/namespaces/shop/logs/{log}", {})
        changed = "/v1/namespaces/shop/logs/orders?config_version=1"
        await make(admin, "PATCH", changed, {"retention": {"age": "7d"}})
        await make(admin, "POST", "/v1/namespaces/shop/logs/gone:truncate", {"to": "tail"})
        await make(admin, "POST", "/v1/namespaces/shop/logs/gone:end", {})
        await make(admin, "DELETE", "/v1/namespaces/shop/logs/gone")
        await make(admin, "PUT", "/v1/namespaces/short", {})
        await make(admin, "DELETE", "/v1/namespaces/short")
        bookie = world.cluster.ids("bookie")[0]
        await make(admin, "PATCH", f"/v1/cluster/bookies/{bookie}", {"weight": 2})
        grant = make_own(
            "LogGrant", "reading",
            {
                **SPEC, "subject": {"user": {"issuer": "corp", "name": "ann"}}, "role": "reader",
                "scope": "shop",
            },
        )  # fmt: skip
        seen = world.observe(
            make_own("LogNamespace", "shop", SPEC),
            make_own("Log", "orders", {**SPEC, "namespace": "shop"}),
            make_own("ArchivePolicy", "all", {**SPEC, "selector": {"namespace": "*"}}),
            grant,
        )
        view = await look_until(admin, seen, lambda told: weigh(told, bookie) == 2)
        assert view.namespaces is not None and view.logs is not None and view.holdings is not None
        assert view.namespaces["shop"]["logs"] == 1
        assert "problem" not in view.logs["shop/orders"]
        assert view.logs["shop/orders"]["violations"] is not None, "the admin port has answered"
        assert view.logs["duramen-system/audit"]["log"]["namespace"] == "duramen-system"
        assert view.grants is not None and view.grants["grants"] == []
        query = f"scope=shop&version={view.grants['version']}"
        rows = [{"who": "user:corp/ann", "role": "reader", "scope": "shop"}]
        await make(admin, "PUT", f"/v1/grants?{query}", {"grants": rows})
        view = await admin.look(seen)
        assert view.grants is not None
        (row,) = view.grants["grants"]
        assert (row["who"], row["by"]) == ("user:corp/ann", "service:operator/main")
        await admin.close()

    run(scenario())


def test_the_next_proxy_is_asked_where_one_does_not_answer(world: PodWorld) -> None:
    async def scenario() -> None:
        world.table.data = world.issue()
        admin = world.open()
        # Nobody is at the first; the second has another name than its URL's proxy.
        assert (await admin.look(world.observe(pods=("2999", world.pod)))).is_reachable
        await make(admin, "PUT", "/v1/namespaces/asked-next", {})
        lost = await say_why(admin, world.observe(pods=("2998", "2999")))
        assert "2998: cannot connect" in lost and "2999: cannot connect" in lost
        with pytest.raises(CallRefused) as refused:
            await make(admin, "PUT", "/v1/namespaces/asked-next", {})
        assert refused.value.problem.code == "unreachable"
        await admin.close()

    run(scenario())


def test_a_renewed_secret_counts_at_the_next_look_and_a_bad_one_says_what_is_wrong(
    world: PodWorld, tmp_path: Path
) -> None:
    async def scenario() -> None:
        table, seen = world.table, world.observe()
        first = world.issue()
        table.data = first
        admin = world.open()
        assert (await admin.look(seen)).is_reachable
        begin_authority(tmp_path / "other", "f" * 32, _now())
        begin_authority(tmp_path / "twin", world.domain, _now())
        foreign = world.issue(ca=tmp_path / "other")
        for data, why in (
            (None, "there is no Secret main-operator"),
            ({}, "the Secret main-operator has no tls.crt, tls.key, ca.crt yet"),
            ({LEAF_FILE: first[LEAF_FILE]}, "has no tls.key, ca.crt yet"),
            ({**first, LEAF_FILE: b"nonsense"}, "main-operator: tls.crt holds no certificate"),
            ({**first, KEY_FILE: world.issue()[KEY_FILE]}, "tls.key is not the key of"),
            (foreign, "is of another cluster than"),
            (world.issue("monitor"), "an operator's is expected"),
            (world.issue(ca=tmp_path / "twin"), "none of the authorities"),
            ({**world.issue(ca=tmp_path / "twin"), BUNDLE_FILE: first[BUNDLE_FILE]}, "no CA of"),
        ):
            table.data = data
            said = await say_why(admin, seen)
            assert why in said, (why, said)
            assert "PRIVATE" not in said and "/tmp" not in said and "duramen-operator-" not in said
        table.data, table.refusal = first, Refused(403, Problem("Forbidden", "no"))
        assert "may not get the Secret main-operator" in await say_why(admin, seen)
        table.refusal = None
        table.data = world.issue()
        assert (await admin.look(seen)).is_reachable
        await admin.close()

    run(scenario())


def test_what_was_revoked_is_refused_and_another_certificate_is_not(world: PodWorld) -> None:
    async def scenario() -> None:
        world.table.data = world.issue()
        admin = world.open()
        seen = world.observe()
        assert (await admin.look(seen)).is_reachable
        world.revoke_all()

        async def is_refused() -> bool:
            return not (await admin.look(seen)).is_reachable

        # The Secret itself knows of no revocation: the proxies do.
        await wait_for(is_refused, what="the revoked operator to be refused")
        assert "unauthenticated" in await say_why(admin, seen)
        with pytest.raises(CallRefused) as refused:
            await make(admin, "PUT", "/v1/namespaces/revoked", {})
        assert refused.value.problem.code == "unauthenticated"
        world.table.data = world.issue()
        assert (await admin.look(seen)).is_reachable
        await admin.close()

    run(scenario())


def test_which_cluster_it_is_the_record_says_and_nobody_is_called_without_one(
    world: PodWorld,
) -> None:
    async def scenario() -> None:
        world.table.data = world.issue()
        admin = world.open()
        assert "another cluster than" in await say_why(admin, world.observe(uuid="e" * 32))
        bare = observe_objects(
            NAMESPACE, "main", [make_own("LogCluster", "main", {"security": "on"})]
        )
        assert "no record yet" in await say_why(admin, bare)
        none = world.observe()
        waiting = {ref: one for ref, one in none.objects.items() if ref.kind != "Pod"}
        assert await say_why(admin, Observed(NAMESPACE, "main", waiting)) == (
            "no write proxy is ready"
        )
        await admin.close()

    run(scenario())


def test_keys_lie_in_a_folder_of_the_process_alone_and_go_with_it(world: PodWorld) -> None:
    async def scenario() -> None:
        world.table.data = world.issue()
        identity = ClusterIdentity(world.table, "main")
        found = await identity.read(world.domain)
        assert found is await identity.read(world.domain), "nothing is read twice"
        assert found.folder.stat().st_mode & 0o777 == 0o700
        assert (found.folder / KEY_FILE).stat().st_mode & 0o777 == 0o600
        world.table.data = world.issue()
        renewed = await identity.read(world.domain)
        assert renewed.folder.exists() and not found.folder.exists()
        identity.forget()
        assert not renewed.folder.exists()

    run(scenario())


def test_plans_of_a_cluster_with_identities_give_grants(world: PodWorld) -> None:
    async def scenario() -> None:
        world.table.data = world.issue()
        admin = world.open()
        spec = {
            **SPEC, "subject": {"user": {"issuer": "corp", "name": "bob"}}, "role": "reader",
            "scope": "shop",
        }  # fmt: skip
        seen = world.observe(make_own("LogGrant", "bobs", spec))
        view = await admin.look(seen)
        plan = plan_grants(Observed(seen.namespace, seen.cluster_name, seen.objects, view), _now())
        assert "NotJudged" not in str(plan)
        await admin.close()

    run(scenario())
