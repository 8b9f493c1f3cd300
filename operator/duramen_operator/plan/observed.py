"""What the operator sees at one moment: the objects around one cluster, and what its services said.

Frozen and complete: a plan looks at nothing else, so the same observation always gives the same
plan. Filled by `observe/`, or by a test. Objects are kept as the API server gave them (JSON); the
models of `resources/` read them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from duramen import __version__
from duramen_operator.names import API_VERSION, CLUSTER_LABEL, PAUSED_ANNOTATION

Json = Mapping[str, Any]

EVERY_NAMESPACE: Final = "*"
"""No namespace has this name."""

NAME_TAKEN: Final = "NameTaken"
"""The code of a step that was refused because another one's object has the name."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Names one object of the operator's namespace."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class KubeObject:
    """An object as the API server gave it."""

    body: Json

    @property
    def ref(self) -> Ref:
        return Ref(self.body["apiVersion"], self.body["kind"], self.name)

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid", ""))

    @property
    def resource_version(self) -> str:
        return str(self.metadata.get("resourceVersion", ""))

    @property
    def generation(self) -> int:
        return int(self.metadata.get("generation", 0))

    @property
    def metadata(self) -> Json:
        return _mapping(self.body["metadata"])

    @property
    def labels(self) -> Mapping[str, str]:
        return _mapping(self.metadata.get("labels"))

    @property
    def annotations(self) -> Mapping[str, str]:
        return _mapping(self.metadata.get("annotations"))

    @property
    def finalizers(self) -> tuple[str, ...]:
        return tuple(self.metadata.get("finalizers") or ())

    @property
    def is_leaving(self) -> bool:
        """Whether it was deleted and only finalizers (or its pods' ends) keep it."""
        return bool(self.metadata.get("deletionTimestamp"))

    @property
    def owner_uids(self) -> tuple[str, ...]:
        return tuple(owner["uid"] for owner in self.metadata.get("ownerReferences") or ())

    @property
    def spec(self) -> Json:
        return _mapping(self.body.get("spec"))

    @property
    def status(self) -> Json:
        return _mapping(self.body.get("status"))

    @property
    def cluster_name(self) -> str:
        """The cluster that it belongs to: by its spec, or by its label where it is made by us."""
        return str(self.spec.get("clusterName") or self.labels.get(CLUSTER_LABEL) or "")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a step was refused: by the API server, or by the cluster's admin API.

    `code` is a code of Duramen's error table or the `reason` of Kubernetes' Status.
    """

    code: str
    message: str
    is_retryable: bool = True


class PodLife(NamedTuple):
    """Which process a pod runs: its uid, and how often its containers were started again."""

    uid: str
    restart_count: int


@dataclass(frozen=True, slots=True)
class StandingView:
    """How bookies stood when the auditor was asked.

    Attributes:
        lives: pods of bookies that served before it was asked: the answer is about these.
        rows: bookie to its row of `GET /v1/cluster/disruptions/standing`; None: no answer.
        why: there is no answer.
        is_unknown_call: the cluster's services do not know the question yet.
    """

    lives: Mapping[str, PodLife]
    rows: Mapping[str, Json] | None = None
    why: str = ""
    is_unknown_call: bool = False


@dataclass(frozen=True, slots=True)
class AdminView:
    """What the cluster's own admin API said, through the write proxy.

    `bookies` maps the id to the registration as `GET /v1/cluster/bookies` gives it; `namespaces`
    maps the name to the configuration; `logs` maps `namespace/log` to the description. They are
    None where that was not asked or not answered, which is not the same as empty.

    Facts of logs may be older than the look: `stale_logs` names those by their paths. Nothing that
    changes a log rests on them.
    """

    is_reachable: bool = False
    reason: str = "not asked"
    bookies: Mapping[str, Json] | None = None
    namespaces: Mapping[str, Json] | None = None
    logs: Mapping[str, Json] | None = None
    stale_logs: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    """Namespaces of which an ArchivePolicy may choose logs, and could not be told which there are;
    `EVERY_NAMESPACE` where not even the namespaces could be listed."""
    look_again_s: float | None = None
    """How soon to look again for what this look did not come to; None: it came to all it should."""
    holdings: Mapping[str, Json] | None = None
    """The id of a bookie to what the auditor counted there, as a row of
    `GET /v1/cluster/repair/bookies`."""
    grants: Json | None = None
    """As `plan.seen_grants` reads it; None also where no LogGrant asks for it."""
    disruptions: tuple[Json, ...] | None = None
    """Grants of disruption that are outstanding; None: it is not known."""
    standing: StandingView | None = None
    """None: the auditor was not asked yet, or too long ago."""
    trusted: str = ""
    """Certificates of who vouches for the public ports, as PEM: what clients are to trust. "" where
    the cluster has no identities, or the operator has none in it."""

    @property
    def knows_bookies(self) -> bool:
        """Whether the cluster says who is registered, and so who is not."""
        return self.is_reachable and self.bookies is not None


class SeenLife(NamedTuple):
    """A certificate of a cluster that the operator issued, or asked for: in which Secret, for whom,
    how long."""

    secret: str
    name: str
    begins: datetime
    ends: datetime


class CertificatesView(NamedTuple):
    """How the certificates stand that the operator issues for a cluster, or asks for.

    Attributes:
        problems: what is not done, and why, for people.
        lacking: names of those that have to be made yet.
        waiting: what a person asks for that is refused, or has to wait.
        absent: Secrets that are known not to be there, by the words of `nodes.SECRETS`.
    """

    problems: tuple[str, ...] = ()
    lives: tuple[SeenLife, ...] = ()
    lacking: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Images:
    """What runs where a LogCluster names no image: set by the chart, through the operator's
    flags."""

    services: str = "duramen"
    zookeeper: str = "duramen-zookeeper"
    spark: str = "duramen-spark"


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything about one cluster in one namespace at one moment."""

    namespace: str
    cluster_name: str
    objects: Mapping[Ref, KubeObject]
    admin: AdminView = AdminView()
    images: Images = Images()
    version: str = __version__
    """The operator's own."""
    certificates: CertificatesView | None = None
    """None: somebody else sees to them, or the operator has not looked yet."""
    refusals: Mapping[Ref, Problem] = field(default_factory=dict)
    """What the last pass was refused, by the object that the step was about. Not a state: a worker
    that starts anew tries once more and is told the same again."""
    taken: frozenset[Ref] = frozenset()
    """Claims and StatefulSets of the namespace that are not of this cluster: names that its disks
    and pods may not have, whoever has them."""
    _by_kind: Mapping[str, Sequence[KubeObject]] = field(init=False, repr=False, compare=False)
    _by_name: Mapping[tuple[str, str], KubeObject] = field(init=False, repr=False, compare=False)
    """A plan asks for objects some thousand times, and there may be thousands of them."""

    def __post_init__(self) -> None:
        by_kind: dict[str, list[KubeObject]] = {}
        for ref in sorted(self.objects):
            by_kind.setdefault(ref.kind, []).append(self.objects[ref])
        object.__setattr__(self, "_by_kind", by_kind)
        by_name = {(ref.kind, ref.name): item for ref, item in self.objects.items()}
        object.__setattr__(self, "_by_name", by_name)

    @property
    def cluster(self) -> KubeObject | None:
        """The LogCluster, if there is one."""
        return self.find("LogCluster", self.cluster_name)

    @property
    def is_paused(self) -> bool:
        """Whether people asked the operator to keep its hands off this cluster."""
        cluster = self.cluster
        return cluster is not None and cluster.annotations.get(PAUSED_ANNOTATION) == "true"

    def find(self, kind: str, name: str) -> KubeObject | None:
        """The object of a kind with that name, if it was seen."""
        return self._by_name.get((kind, name))

    def list(self, kind: str) -> tuple[KubeObject, ...]:
        """All objects of a kind, by name."""
        return tuple(self._by_kind.get(kind, ()))


def observe_objects(
    namespace: str, cluster_name: str, objects: Iterable[Json], **others: Any
) -> Observed:
    """An observation of these objects: the way for tests, and for `observe/`."""
    seen = [KubeObject(body) for body in objects]
    return Observed(namespace, cluster_name, {item.ref: item for item in seen}, **others)


def name_own(kind: str, name: str) -> Ref:
    """Names an object of our own group."""
    return Ref(API_VERSION, kind, name)


def _mapping(value: Any) -> Mapping[str, Any]:
    # A dict nearly always: to ask the abstract class first costs ten times as much.
    return value if isinstance(value, (dict, Mapping)) else {}
