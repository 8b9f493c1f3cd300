"""A world of LogGrants for tests of their plan: objects, grants, and an operator that dies.

Objects are kept as an API server keeps them: finalizers, uids, resource versions. Grants are the
twin's, which judges by the product's core. A pass may end at any of its steps: before it, after it,
or with its call still on the way, which arrives later.

Used by `test_log_grants` and `test_grant_deaths`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from urllib.parse import parse_qs, urlsplit

from duramen.errors import DuramenError
from duramen_operator.plan.log_grants import plan_grants
from duramen_operator.plan.observed import (
    AdminView,
    Json,
    Observed,
    Problem,
    Ref,
    name_own,
    observe_objects,
)
from duramen_operator.plan.seen_logs import RETRYABLE
from duramen_operator.plan.steps import Call, Event, Patch, Plan, Status, Step
from tests.kubernetes.controllers.twin_grants import TwinGrants
from tests.kubernetes.plan.worlds import NOW, make_cluster, make_object

Death = Literal["before", "after", "late"]
Triple = tuple[str, str, str]

PASSES_MAX: Final = 60
PASS_S: Final = 1
ANN: Final[Triple] = ("user:corp/ann", "reader", "shop")


def make_grant(name: str, triple: Triple = ANN, **more: Any) -> dict[str, Any]:
    """A LogGrant that says this grant of a user."""
    who, role, scope = triple
    spec = {
        "clusterName": "main", "subject": {"user": who.removeprefix("user:")}, "role": role,
        "scope": scope,
    }  # fmt: skip
    return make_object("LogGrant", name, spec, **more)


class DeadOperatorError(Exception):
    """The operator died at a step."""


class GrantsWorld:
    """One cluster `main`, its LogGrants and its grants."""

    def __init__(self) -> None:
        self.cluster: dict[str, Any] | None = make_cluster({"security": "on"})
        self.objects: dict[str, dict[str, Any]] = {}
        self.grants = TwinGrants()
        self.now = NOW
        self.is_reachable = True
        self.is_judged = True
        self.events: list[Event] = []
        self.calls: list[Call] = []
        self.on_the_way: list[tuple[Call, datetime]] = []
        self.refusals: dict[Ref, Problem] = {}
        self._uids = 0

    def add(self, name: str, triple: Triple = ANN) -> None:
        """Somebody makes an object."""
        self._uids += 1
        times = {"creationTimestamp": self.now.isoformat(), "uid": f"uid-{self._uids}"}
        self.objects[name] = make_grant(name, triple, metadata=times)

    def delete(self, name: str) -> None:
        """Somebody deletes an object: it stays as long as it has finalizers."""
        metadata = self.objects[name]["metadata"]
        if not metadata.get("finalizers"):
            del self.objects[name]
        elif "deletionTimestamp" not in metadata:
            metadata["deletionTimestamp"] = self.now.isoformat()
            self._touch(metadata)

    def observe(self) -> Observed:
        """What the operator sees now."""
        items: list[Json] = [copy.deepcopy(one) for one in self.objects.values()]
        if self.cluster is not None:
            items.append(self.cluster)
        grants: Json = self.grants.show("*") if self.is_judged else {"is_judged": False}
        view = AdminView(reason="connection refused")
        if self.is_reachable:
            view = AdminView(True, "", {}, {}, {}, grants=grants)
        return observe_objects("test", "main", items, admin=view, refusals=self.refusals)

    def plan(self) -> Plan:
        """What it would do."""
        return plan_grants(self.observe(), self.now)

    def do_pass(self, dies_at: int | None = None, death: Death = "before") -> int:
        """One pass; gives how many steps it had. An operator that dies forgets what it was refused.

        Raises:
            DeadOperatorError: at step `dies_at`, if there are so many.
        """
        plan = self.plan()
        self.now += timedelta(seconds=PASS_S)
        self.refusals = {}
        for index, step in enumerate(plan.steps):
            is_last = index == dies_at
            if is_last and death == "late" and isinstance(step, Call):
                self.on_the_way.append((step, self.now))
            elif not is_last or death != "before":
                self.do(step)
            if is_last:
                self.refusals = {}
                raise DeadOperatorError
        return len(plan.steps)

    def settle(self) -> int:
        """Pass after pass until nothing is to be done, also later; gives how many had steps."""
        count = 0
        for _ in range(PASSES_MAX):
            had_steps = self.do_pass()
            count += bool(had_steps)
            self.arrive(everything=True)
            if not had_steps and not any(self.list_leaving()):
                return count
        raise AssertionError(f"never empty: {self.plan().steps}")

    def do(self, step: Step) -> None:
        """Do one step; a precondition that does not hold makes nothing of it."""
        match step:
            case Patch():
                self._patch(step)
            case Status():
                item = self.objects.get(step.about.name)
                if item is not None and item["metadata"]["uid"] == step.uid:
                    item["status"] = dict(step.status)
                    self._touch(item["metadata"])
            case Event():
                self.events.append(step)
            case Call():
                self.calls.append(step)
                try:
                    self._call(step)
                except DuramenError as error:
                    is_retryable = error.code in RETRYABLE
                    told = Problem(error.code, error.detail, is_retryable=is_retryable)
                    self.refusals[step.about] = told
            case _:
                raise AssertionError(f"no step of this plan: {step}")

    def arrive(self, *, everything: bool = False) -> None:
        """Calls of the dead arrive, at the latest as long after as a proxy tries."""
        waiting, self.on_the_way = self.on_the_way, []
        for call, sent_at in waiting:
            if not everything and self.now < sent_at + timedelta(seconds=10):
                self.on_the_way.append((call, sent_at))
                continue
            with suppress(DuramenError):  # others were faster
                self._call(call)

    def list_leaving(self) -> Iterator[str]:
        """Objects that are deleted and still there."""
        for name, item in self.objects.items():
            if "deletionTimestamp" in item["metadata"]:
                yield name

    def said(self, name: str) -> str:
        """Status and reason of an object's condition."""
        (one,) = self.objects[name]["status"]["conditions"]
        return f"{one['status']}/{one['reason']}"

    def owns(self, name: str) -> bool | None:
        """What an object remembers of whose its grant is."""
        found: bool | None = self.objects[name]["status"].get("owned")
        return found

    def refuse(self, name: str, code: str) -> None:
        """The last pass was refused this."""
        self.refusals[name_own("LogGrant", name)] = Problem(code, code, is_retryable=False)

    def reasons(self) -> list[str]:
        """Of all events."""
        return [event.reason for event in self.events]

    def _call(self, step: Call) -> None:
        parts = urlsplit(step.path)
        query = parse_qs(parts.query)
        assert (step.method, parts.path, step.body is not None) == ("PUT", "/v1/grants", True)
        rows = [dict(row) for row in (step.body or {})["grants"]]
        self.grants.replace(query["scope"][0], int(query["version"][0]), rows)

    def _patch(self, step: Patch) -> None:
        item = self.objects.get(step.about.name)
        if item is None:
            return
        metadata = item["metadata"]
        if (metadata["uid"], metadata["resourceVersion"]) != (step.uid, step.resource_version):
            return
        metadata["finalizers"] = list(step.patch["metadata"]["finalizers"])
        self._touch(metadata)
        if "deletionTimestamp" in metadata and not metadata["finalizers"]:
            del self.objects[step.about.name]

    def _touch(self, metadata: dict[str, Any]) -> None:
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
