"""A cluster that the issuer issues for: Secrets and the record of a namespace, a clock, its world.

Called by the tests of the issuer's driver and of the operator's passes. The API server is not
real here: it gives back what was written, refuses what a test names, and keeps resource versions
apart. Not here: the course of an issuer (`world.py`), a real API server (`test_on_api_server.py`).
"""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
from typing import Any, Final, cast

from duramen_operator.issuing.driver import CertificateIssuer
from duramen_operator.kube import Kube, Refused
from duramen_operator.names import CA_ANNOTATION
from duramen_operator.plan.cluster.nodes import SECRETS, name_secret
from duramen_operator.plan.observed import CertificatesView, Json, Observed, Problem, Ref
from tests.kubernetes.plan import world as plan_world

NOW: Final = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
SECURED: Final[dict[str, Any]] = {
    "security": "on",
    "acceptAnybody": False,
    "tls": {"issuer": "operator"},
}


class FakeKube:
    """Secrets and the record of one namespace; refuses what a test names."""

    def __init__(self) -> None:
        self.objects: dict[Ref, dict[str, Any]] = {}
        self.refused: dict[str, Refused] = {}
        self.unreadable: set[str] = set()
        self.writes: list[str] = []
        for which in SECRETS:
            name = name_secret("main", which)
            metadata = {"name": name, "uid": name, "resourceVersion": "1"}
            head = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
            self.objects[Ref("v1", "Secret", name)] = head

    async def get(self, ref: Ref) -> Json | None:
        if ref.name in self.unreadable:
            raise Refused(503, Problem("ServiceUnavailable", "later"))
        return copy.deepcopy(self.objects.get(ref))

    async def apply(self, manifest: Json) -> Json:
        ref = Ref("v1", "ConfigMap", manifest["metadata"]["name"])
        self._see(ref.name)
        found = self.objects.get(ref)
        state = {name: manifest["metadata"].get(name) for name in ("uid", "resourceVersion")}
        if found is None:
            assert state == {"uid": None, "resourceVersion": None}, "it is made anew"
        elif any(state[name] != found["metadata"][name] for name in state):
            raise Refused(409, Problem("Conflict", "it has changed"))
        made = copy.deepcopy(dict(manifest))
        version = f"{state['resourceVersion'] or ''}1"
        made["metadata"] |= {"uid": ref.name, "resourceVersion": version}
        self.objects[ref] = made
        return made

    async def merge(self, ref: Ref, patch: Json) -> Json:
        self._see(ref.name)
        found = self.objects[ref]
        assert patch["metadata"]["uid"] == found["metadata"]["uid"]
        if patch["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise Refused(409, Problem("Conflict", "it has changed"))
        data = {**(found.get("data") or {}), **patch["data"]}
        found["data"] = {key: value for key, value in data.items() if value is not None}
        found["metadata"]["resourceVersion"] += "1"
        return found

    def _see(self, name: str) -> None:
        self.writes.append(name)
        if name in self.refused:
            raise self.refused[name]


class Ground:
    """An issuer with its clock, and the cluster that it issues for."""

    def __init__(self, **spec: Any) -> None:
        self.kube = FakeKube()
        self.clock_s = 0.0
        self.issuer = CertificateIssuer(cast("Kube", self.kube), lambda: self.clock_s)
        cluster = plan_world.make_cluster(**{**SECURED, **spec})
        self.world = plan_world.World(cluster, plan_world.make_bookie_set(replicas=2))
        self.world.converge()

    def observe(self) -> Observed:
        return self.world.observe()

    def look(self, now: dt.datetime = NOW) -> CertificatesView | None:
        return asyncio.run(self.issuer.look(self.observe(), now))

    def ask_for(self, step: str) -> None:
        """A person's annotation."""
        cluster = next(one for one in self.world.objects.values() if one["kind"] == "LogCluster")
        cluster["metadata"]["annotations"] = {CA_ANNOTATION: step}

    def authorities(self) -> list[str]:
        """The CAs that the record names."""
        record = self.kube.objects[Ref("v1", "ConfigMap", "main-authority")]
        return str(record["data"]["authorities"]).split()

    def data(self, which: str) -> dict[str, str]:
        return self.kube.objects[Ref("v1", "Secret", name_secret("main", which))].get("data") or {}
