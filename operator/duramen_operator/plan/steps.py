"""What a plan is made of: steps, each safe to do twice and safe to be the last that was done.

A step says *what*, never how: `apply/` sends it. Steps are done in order; one that is refused does
not keep the others from being tried, so a step must not rely on the one before having succeeded.
What it needs of the world, it asks of the world by preconditions (uid, resourceVersion).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from duramen_operator.plan.observed import Json, Ref

DISRUPTION_DENIED: Final = "disruption_denied"
"""The code of a question that was answered no."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a manifest: makes the object, or changes the fields named in it.

    `uid`: the object must still be this one (a changed one gets its fields, a new one of the same
    name is refused). None: it may be made.
    """

    manifest: Json
    uid: str | None = None

    @property
    def about(self) -> Ref:
        return Ref(
            self.manifest["apiVersion"], self.manifest["kind"], self.manifest["metadata"]["name"]
        )


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes exactly the object that was observed, in the state that was observed."""

    about: Ref
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class Patch:
    """A JSON merge patch of an object that people own, as for finalizers; refused if it has changed
    since."""

    about: Ref
    uid: str
    resource_version: str
    patch: Json


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the cluster's admin API, through the write proxy. `about`: for whom it is done.

    `path` starts at the root of the write proxy's port: the public one (`/v1/namespaces/…`), or the
    admin port's for `/v1/cluster/…`.
    """

    about: Ref
    method: str
    path: str
    body: Json | None = None
    is_admin_port: bool = False
    log_id: str = ""
    """Which log is meant, where it is one: late, a path may be another log's."""


@dataclass(frozen=True, slots=True)
class Status:
    """The whole status of an object of ours, as it should read."""

    about: Ref
    uid: str
    status: Json


@dataclass(frozen=True, slots=True)
class Event:
    """Something that people should find in `kubectl describe`. Told twice, it is one event.

    `since` is part of its identity: a time of the world, which is the same in each pass that tells
    it. `at` is when it was told for the first time, which is what people are shown.
    """

    about: Ref
    uid: str
    reason: str
    message: str
    since: datetime
    at: datetime
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """Stops exactly the pod that was observed, in the state that was observed, by eviction.

    `question`: what the cluster is asked for a grant by, right before; it is not stopped without.
    None: nobody is asked, since it does not serve.
    """

    about: Ref
    uid: str
    resource_version: str
    question: Json | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Has a StatefulSet make one bookie less, for good: applied to the state that was observed.

    `about`: the Bookie. `question`: what the cluster is asked for a grant by, right before; it is
    not stopped without. None: nobody is asked, since it holds nothing and does not run.
    """

    about: Ref
    manifest: Json
    uid: str
    question: Json | None = None


Step = Apply | Delete | Patch | Call | Status | Event | Restart | Stop


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in order, and when to look again even if nothing wakes the worker.

    `unsure`: paths of logs of which too old facts were seen, or none, to say or do what is due; the
    next look is to read them.
    """

    steps: tuple[Step, ...] = ()
    again_at: datetime | None = None
    unsure: frozenset[str] = frozenset()
