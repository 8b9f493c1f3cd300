"""The issuer on a real API server, with the rights of the chart's Role: broken off at each write.

The write was done and nobody was told: what a death leaves behind, since an issuer that comes after
knows nothing of it. Behind each, everything that stands in a Secret is noted and has its anchor
beside it; then another issuer ends the work, with one CA. Time is the test's, but a whole rotation
asks the API server for minutes: of the night. In the gate `test_course` looks behind each write and
has histories with deaths, with no API server; here the gate has a real operator with those rights.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePath
from typing import Final, NamedTuple

import pytest
from cryptography import x509

from duramen.runtime.identity.certificates import judge_issue
from duramen.runtime.identity.folder import parse_bundle, parse_key
from duramen.runtime.identity.succession import ISSUED_FILE, decode_lines
from duramen_operator.issuing.driver import CertificateIssuer
from duramen_operator.issuing.kept import name_key
from duramen_operator.issuing.secrets import LEAF_SECRETS
from duramen_operator.kube import ApiUnreachable, Kube, Refused
from duramen_operator.names import CA_ANNOTATION
from duramen_operator.observe.listing import list_around
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.nodes import CA, SECRETS, name_secret
from duramen_operator.plan.observed import CertificatesView, Observed, Ref, observe_objects
from tests.kubernetes.chart.rendering import of_kind, render
from tests.kubernetes.cluster.accounts import NAME, Rules, make_account, write_token_config
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import running_twin
from tests.kubernetes.controllers.deadly_proxy import Aim, DeadlyProxy, Moment, running_proxy
from tests.kubernetes.controllers.operators import (
    Objects,
    OperatorProcess,
    install_definitions,
    running_operator,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

SPEC: Final = {"security": "on", "tls": {"issuer": "operator"}}
DAY: Final = dt.timedelta(days=1)
TURN: Final = dt.timedelta(minutes=3)
RECORD: Final = Ref("v1", "ConfigMap", "main-authority")
ITS_WRITES: Final = ("/secrets/", f"/configmaps/{RECORD.name}")
PASSES_MAX: Final = 20
CHART: Final = {"tls": {"clusters": ["main"]}}

Data = Mapping[str, Mapping[str, str]]
"""What the Secrets hold, by word, as the API server gives it."""


class Ground(NamedTuple):
    """A namespace with a cluster's Secrets; `kube` has the operator's rights, `admin` all."""

    kube: Kube
    admin: Kube
    proxy: DeadlyProxy
    here: Objects

    async def observe(self) -> Observed:
        """What the worker would see."""
        found = await list_around(self.admin, "main")
        return observe_objects(self.kube.namespace, "main", found.everything, taken=found.taken)

    async def read(self) -> Data:
        """What the Secrets hold."""
        found = {}
        for which in SECRETS:
            secret = await self.admin.get(Ref("v1", "Secret", name_secret("main", which)))
            assert secret is not None
            found[which] = dict(secret.get("data") or {})
        return found

    async def restore(self, data: Data, record: tuple[str, ...]) -> None:
        """As it was at another moment."""
        for which, now in (await self.read()).items():
            patch = {"data": {**dict.fromkeys(now), **data[which]}}
            await self.admin.merge(Ref("v1", "Secret", name_secret("main", which)), patch)
        found = await self.admin.get(RECORD)
        if found is not None and record:
            await self.admin.merge(RECORD, {"data": {"authorities": " ".join(record)}})
        elif found is not None:
            metadata = found["metadata"]
            await self.admin.delete(RECORD, metadata["uid"], metadata["resourceVersion"])

    async def read_record(self) -> tuple[str, ...]:
        """The CAs that it names."""
        found = await self.admin.get(RECORD)
        return () if found is None else tuple(found["data"]["authorities"].split())

    async def look(self, observed: Observed, now: dt.datetime) -> CertificatesView:
        """One look of an issuer that remembers nothing."""
        view = await CertificateIssuer(self.kube, lambda: 0.0).look(observed, now)
        assert view is not None
        return view


@asynccontextmanager
async def grounds(api: ClusterHandle, folder: Path) -> AsyncIterator[Ground]:
    """A namespace with empty Secrets, as the chart makes them, and a record of the cluster."""
    install_definitions(api)
    with api.namespace() as namespace, running_proxy(api.url, api.certificate) as proxy:
        config = make_secrets(api, namespace, folder)
        write_token_config(config, proxy.url, _read_token(api, namespace), None)
        here = Objects(api, namespace)
        here.apply("LogCluster", "main", SPEC)
        here.apply("BookieSet", "main", {"clusterName": "main", "replicas": 2})
        admin = await Kube.connect(namespace, str(api.kubeconfig))
        ground = Ground(await Kube.connect(namespace, str(config)), admin, proxy, here)
        observed = await ground.observe()
        assert observed.cluster is not None
        frame = ClusterFrame.read(observed, observed.cluster)
        await admin.apply(frame.found.foundation.make_record(frame.cluster))
        yield ground


def make_secrets(api: ClusterHandle, namespace: str, folder: Path) -> Path:
    """What the chart makes for the issuer; gives a kubeconfig with the rights of its Role."""
    objects = render(CHART)
    for one in of_kind(objects, "Secret"):
        api.apply({**one, "metadata": {**one["metadata"], "namespace": namespace}})
    roles = of_kind(objects, "Role")
    found: list[Rules] = [one["rules"] for one in roles if one["metadata"]["name"].endswith(NAME)]
    path = make_account(api, namespace, found[0], folder)
    account = f"system:serviceaccount:{namespace}:{NAME}"
    api.wait_right(account, namespace, "list", "logclusters.duramen.io")
    for verb in ("list", "create", "watch", "delete"):
        assert not api.may(account, namespace, verb, "secrets")
    return path


def _read_token(api: ClusterHandle, namespace: str) -> str:
    return api.kubectl("-n", namespace, "create", "token", NAME).stdout.strip()


def see_sound(secrets: Data, now: dt.datetime) -> None:
    """Nobody holds what is not noted, or has no anchor beside it."""
    held = {
        which: {name: base64.b64decode(value) for name, value in data.items()}
        for which, data in secrets.items()
    }
    lines = decode_lines(held[CA].get(ISSUED_FILE, b""), PurePath(ISSUED_FILE))
    noted = {line.serial for line in lines}
    for which in LEAF_SECRETS:
        data = held[which]
        for name in (name for name in data if name.endswith("tls.crt")):
            leaf = x509.load_pem_x509_certificates(data[name])[0]
            key = parse_key(PurePath(name), data[name.removesuffix("crt") + "key"])
            assert leaf.public_key() == key.public_key()
            assert leaf.serial_number in noted
            bundle = parse_bundle(PurePath(which), data["ca.crt"], data["ca.crl"], now)
            judge_issue(leaf, bundle, now)


async def settle(ground: Ground, now: dt.datetime) -> dt.datetime:
    """Looks, three minutes apart, until nothing changes in two of them."""
    quiet, before, observed = 0, await ground.read(), await ground.observe()
    for _ in range(PASSES_MAX):
        view = await ground.look(observed, now)
        assert not view.problems
        now += TURN
        after = await ground.read()
        quiet, before = (quiet + 1 if after == before else 0), after
        if quiet > 1:
            return now
    raise AssertionError("it writes again and again")


async def die_everywhere(ground: Ground, now: dt.datetime) -> int:
    """Break a look off at each of its writes, from the same start; gives how many there are."""
    start, record = await ground.read(), await ground.read_record()
    observed, when = await ground.observe(), Moment.AFTER
    for number in range(1, PASSES_MAX):
        await ground.restore(start, record)
        struck = len(ground.proxy.struck)
        aim = Aim(number, when, is_writes_only=True, strike=lambda: None, among=ITS_WRITES)
        ground.proxy.arm(aim)
        with suppress(ApiUnreachable, Refused):
            await ground.look(observed, now)
        ground.proxy.arm(None)
        if len(ground.proxy.struck) == struck:
            return number - 1
        broken = await ground.read()
        see_sound(broken, now)
        await ground.look(observed, now)
        ended = await ground.read()
        see_sound(ended, now)
        assert broken[CA]["ca.key"] == ended[CA]["ca.key"], "there is another CA"
        assert all(ended[which]["ca.crt"] == ended[CA]["ca.crt"] for which in SECRETS)
    raise AssertionError("it writes without end")


@pytest.mark.night
def test_broken_off_at_each_write_of_founding_renewal_and_rotation(
    api_server: ClusterHandle, tmp_path: Path
) -> None:
    async def run() -> None:
        async with grounds(api_server, tmp_path) as ground:
            now = dt.datetime.now(dt.UTC)
            assert await die_everywhere(ground, now) == 3 + len(LEAF_SECRETS)
            now = await settle(ground, now + TURN)
            (first,) = await ground.read_record()
            now += 5 * DAY
            assert await die_everywhere(ground, now) == 2, "what is issued, and one role's Secret"
            now = await settle(ground, now + TURN)
            ground.here.apply("LogCluster", "main", SPEC, annotations={CA_ANNOTATION: "announce"})
            assert await die_everywhere(ground, now) == 3 + len(LEAF_SECRETS)
            now = await settle(ground, now + TURN) + DAY
            ground.here.apply("LogCluster", "main", SPEC, annotations={CA_ANNOTATION: "switch"})
            assert await die_everywhere(ground, now) == 2 + len(LEAF_SECRETS)
            now = await settle(ground, now + TURN) + DAY
            ground.here.apply("LogCluster", "main", SPEC, annotations={CA_ANNOTATION: "retire"})
            assert await die_everywhere(ground, now) == 2 + len(LEAF_SECRETS)
            await settle(ground, now + TURN)
            (second,) = await ground.read_record()
            assert second != first
            held = await ground.read()
            anchors = {name: base64.b64decode(held[name]["ca.crt"]) for name in SECRETS}
            for pem in anchors.values():
                assert name_key(x509.load_pem_x509_certificates(pem)[0]) == second

    asyncio.run(run())


def test_a_real_operator_fills_them_and_says_what_it_may_not(
    api_server: ClusterHandle, tmp_path: Path
) -> None:
    install_definitions(api_server)
    with api_server.namespace() as namespace, running_twin() as twin:
        config = make_secrets(api_server, namespace, tmp_path)
        here = Objects(api_server, namespace)
        here.apply("LogCluster", "main", SPEC)
        here.apply("BookieSet", "main", {"clusterName": "main", "replicas": 2})
        here.apply("LogCluster", "other", SPEC)
        operator = OperatorProcess(config, namespace, twin.url)
        with running_operator(operator):
            here.wait("LogCluster", "main", "True/Valid", "CertificatesValid")
            here.wait("LogCluster", "other", "False/IssuingRefused", "CertificatesValid")
        assert "the Secret other-ca cannot be read" in json.dumps(here.find("LogCluster", "other"))
        found = api_server.list("secrets", namespace)
        data = {one["metadata"]["name"]: one.get("data") or {} for one in found}
        secrets = {which: data[name_secret("main", which)] for which in SECRETS}
        see_sound(secrets, dt.datetime.now(dt.UTC))
        said = operator.say() + json.dumps(here.find("LogCluster", "main"))
        said += json.dumps(api_server.list("events.events.k8s.io", namespace))
        for one in secrets.values():
            for name, value in one.items():
                if name.endswith(".key"):
                    assert value[80:120] not in said
                    assert base64.b64decode(value).decode().splitlines()[1] not in said
