"""LogCluster: one Duramen cluster with its ZooKeeper, sequencers and proxies.

Bookies are not in it: a BookieSet names the cluster that it belongs to, so that bookies of several
sizes can serve one cluster. A cluster is secured unless it says twice that it is not: nobody shall
find out later that a cluster was open.

Called by the operator, the plugin and `schema`. Source: docs/kubernetes/resources.md "LogCluster".
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from duramen.config import Duration
from duramen_operator.resources.logs import LogDefaults
from duramen_operator.resources.part import (
    HostName,
    Label,
    LocalReference,
    ObjectName,
    Part,
    Requirements,
    Resource,
    ResourceStatus,
    StatusPart,
    StorageSize,
    StorageSpec,
)

PAUSED_ANNOTATION = "duramen.io/paused"
"""With "true" on a LogCluster the operator only observes it, and all that belongs to it."""

SERVERS_PATTERN = r"^[A-Za-z0-9._:\[\]-]+:[0-9]+(,[A-Za-z0-9._:\[\]-]+:[0-9]+)*$"

CERT_MANAGER: Final = "certManager"
"""As `tls.issuer`: who issues is asked by Certificates."""

PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class ExternalZooKeeper(Part):
    """A ZooKeeper ensemble that somebody else runs."""

    servers: Annotated[
        str,
        Field(
            min_length=3,
            max_length=1024,
            pattern=SERVERS_PATTERN,
            description='Its servers as "host:port,host:port".',
        ),
    ]
    cluster: Annotated[
        Label | None,
        Field(
            description="Name of this cluster in that ensemble. Left out: namespace.name of this "
            "object, so that clusters of one name in several namespaces stay apart. To go on "
            "with a cluster that is there, write its name."
        ),
    ] = None


class ZooKeeperStorage(StorageSpec):
    """Volume of a bundled ZooKeeper server."""

    size: StorageSize = "5Gi"


class ZooKeeper(Part):
    """Where the cluster keeps its metadata: a bundled ensemble, or an external one."""

    members: Annotated[
        Literal[1, 3, 5],
        Field(description="Servers of the bundled ensemble: 1, 3 or 5. With 3 one may be lost."),
    ] = 3
    image: Annotated[
        str | None,
        Field(
            max_length=512,
            description="Image of the bundled servers. Left out: the operator's default.",
        ),
    ] = None
    storage: Annotated[
        ZooKeeperStorage,
        Field(description="Volume of each bundled server: snapshots and log."),
    ] = ZooKeeperStorage()
    resources: Annotated[
        Requirements, Field(description="What a bundled server asks for and may use.")
    ] = Requirements()
    external: Annotated[
        ExternalZooKeeper | None,
        Field(description="An ensemble that somebody else runs; then none is bundled."),
    ] = None


class Domain(Part):
    """A failure domain: a zone in a region, as the labels of the nodes say."""

    region: Annotated[
        Label, Field(description="Value of the nodes' label topology.kubernetes.io/region.")
    ]
    zone: Annotated[
        Label,
        Field(
            description="Value of the nodes' label topology.kubernetes.io/zone. Duramen calls it "
            "a rack."
        ),
    ]


class Sequencers(Part):
    """The servers that order appends. Each log is owned by one of them."""

    replicas: Annotated[int, Field(strict=True, ge=1, le=100, description="How many run.")] = 2
    balance: Annotated[
        bool,
        Field(
            strict=True,
            description="Whether logs move by themselves from sequencers that carry more than "
            "their share.",
        ),
    ] = True
    resources: Annotated[
        Requirements, Field(description="What each of them asks for and may use.")
    ] = Requirements()


class Autoscaling(Part):
    """How many proxies run, by their load: a HorizontalPodAutoscaler."""

    min_replicas: Annotated[
        int, Field(strict=True, ge=1, le=1000, description="How many run at least.")
    ] = 2
    max_replicas: Annotated[
        int, Field(strict=True, ge=1, le=1000, description="How many run at most.")
    ]
    target_cpu_percent: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=100,
            alias="targetCPUPercent",
            description="Load that is aimed at, in percent of the requested CPU.",
        ),
    ] = 70


class Proxies(Part):
    """Servers that clients talk to. They hold no state."""

    replicas: Annotated[
        int,
        Field(strict=True, ge=1, le=1000, description="How many run, unless autoscaling says."),
    ] = 2
    resources: Annotated[
        Requirements,
        Field(description="What each asks for and may use; autoscaling needs requests.cpu."),
    ] = Requirements()
    autoscaling: Annotated[
        Autoscaling | None,
        Field(description="Let load decide how many run. `replicas` is overlooked then."),
    ] = None


class ColdStoreSpec(Part):
    """Where archived segments go."""

    url: Annotated[
        str,
        Field(
            min_length=1,
            max_length=2048,
            description="Root of the archive: s3://bucket/prefix, "
            "webhdfs://user@host:port/directory or file:///folder. It stays once it is set: what "
            "was archived lies there.",
        ),
    ]
    claim_name: Annotated[
        ObjectName | None,
        Field(
            description="For file: URLs, a PersistentVolumeClaim (ReadWriteMany, unless there is "
            "one node) that is mounted at the URL's path."
        ),
    ] = None
    secret_name: Annotated[
        ObjectName | None,
        Field(description="A Secret whose keys become environment variables: the credentials."),
    ] = None


RunnerKind = Literal["CronJob", "SparkOnKubernetes", "ScheduledSparkApplication"]


class ArchiveSpec(Part):
    """How archive runs of this cluster are run, unless an ArchivePolicy says otherwise."""

    image: Annotated[
        str | None,
        Field(
            max_length=512,
            description="Image with Spark and `duramen-spark`. Left out: the operator's default.",
        ),
    ] = None
    runner: Annotated[
        RunnerKind,
        Field(
            description="CronJob: spark-submit in one pod; the only one with security: on. "
            "SparkOnKubernetes: its driver starts executor pods. ScheduledSparkApplication: "
            "kubeflow's Spark operator runs it."
        ),
    ] = "CronJob"
    resources: Annotated[
        Requirements, Field(description="What the pod of a run asks for and may use.")
    ] = Requirements()


class ClusterDefaults(Part):
    """What namespaces and logs of the cluster get where they do not say it themselves."""

    auto_create: Annotated[
        bool | None,
        Field(strict=True, description="Whether an append creates its log. Default: false."),
    ] = None
    log: Annotated[
        LogDefaults,
        Field(description="Configuration that a new log starts from, where it names nothing."),
    ] = LogDefaults()


class IssuerReference(Part):
    """An issuer of cert-manager's."""

    name: Annotated[ObjectName, Field(description="Name of the issuer.")]
    kind: Annotated[
        Literal["Issuer", "ClusterIssuer"],
        Field(
            description="Issuer: of this namespace. ClusterIssuer: who may ask it in another "
            "namespace can be anybody in this cluster, unless an approver sees to it."
        ),
    ] = "Issuer"


class ClusterTls(Part):
    """Where the certificates of a cluster's processes come from."""

    issuer: Annotated[
        Literal["operator", "certManager", "secret"],
        Field(
            description="secret: somebody else fills the Secrets that "
            "docs/kubernetes/security.md lists, and renews what is in them. operator: the operator "
            "does, from a CA of the cluster's own, in Secrets that the chart has made. "
            "certManager: the operator makes a Certificate for each node, and cert-manager issues."
        ),
    ] = "secret"
    issuer_ref: Annotated[
        IssuerReference | None,
        Field(description="With certManager: who issues. Its CA is for this cluster alone."),
    ] = None
    trust: Annotated[
        LocalReference | None,
        Field(
            description="With certManager: a ConfigMap whose ca.crt holds the certificate of the "
            "CA that signs, and of another one while it takes its place. Its ca.crl may hold a "
            "list of each."
        ),
    ] = None


class ClusterAudit(Part):
    """What becomes of calls while the audit log does not take their records."""

    require: Annotated[
        bool,
        Field(
            strict=True,
            description="With security on: whether changes are refused while no room is left for "
            "their records. Default: they are made, and what was lost is told and counted.",
        ),
    ] = False


class LogClusterSpec(Part):
    """What a cluster is to be."""

    image: Annotated[
        str | None,
        Field(
            max_length=512,
            description="Image of all services. Left out: the operator's own image.",
        ),
    ] = None
    image_pull_policy: Annotated[
        PullPolicy, Field(description="When nodes fetch images: Always, IfNotPresent or Never.")
    ] = "IfNotPresent"
    image_pull_secrets: Annotated[
        tuple[LocalReference, ...],
        Field(max_length=16, description="Secrets that images are fetched with."),
    ] = ()
    security: Annotated[
        Literal["on", "none"],
        Field(
            description="on: every process has an identity, every port is TLS, and clients show a "
            "token. none: no TLS and no tokens, whoever reaches the ports may do everything. It "
            'stays what it was at first. In YAML write it in quotes ("on"), or leave it out.'
        ),
    ] = "on"
    tls: Annotated[
        ClusterTls, Field(description="With security on: where certificates come from.")
    ] = ClusterTls()
    accept_anybody: Annotated[
        bool,
        Field(
            strict=True,
            description="With security none: that whoever reaches a port may do everything is "
            "meant. Without it such a cluster is not made, and one that runs is not changed.",
        ),
    ] = False
    issuers: Annotated[
        LocalReference | None,
        Field(
            description="With security on: a ConfigMap with issuers.json, which lists whose tokens "
            "the proxies believe beside their own, and with the files that it names, in "
            "/etc/duramen/issuers. Left out: API tokens alone.",
        ),
    ] = None
    audit: Annotated[
        ClusterAudit, Field(description="With security on: what is asked of the audit log.")
    ] = ClusterAudit()
    zookeeper: Annotated[
        ZooKeeper,
        Field(alias="zookeeper", description="Where the cluster keeps its metadata."),
    ] = ZooKeeper()
    domains: Annotated[
        tuple[Domain, ...],
        Field(
            max_length=64,
            description="Failure domains that bookies are spread over evenly. Empty: one zone, "
            "each bookie its own rack.",
        ),
    ] = ()
    placement: Annotated[
        Literal["strict", "preferred"],
        Field(
            description="strict: a bookie whose place is not known does not register, and a pod "
            "waits rather than run outside its domain. preferred: it runs where there is room."
        ),
    ] = "strict"
    sequencers: Annotated[Sequencers, Field(description="The servers that order appends.")] = (
        Sequencers()
    )
    write_proxies: Annotated[
        Proxies, Field(description="The servers that take appends and changes.")
    ] = Proxies()
    read_proxies: Annotated[Proxies, Field(description="The servers that answer readers.")] = (
        Proxies()
    )
    public_names: Annotated[
        tuple[HostName, ...],
        Field(
            max_length=32,
            description="Hosts under which an Ingress, a Gateway or a load balancer sends requests "
            "to the proxies. Under any other name but those of their Services they answer 421.",
        ),
    ] = ()
    gossip: Annotated[
        bool,
        Field(
            description="Whether sequencers find out together which of them answers nobody, so "
            "that a frozen one loses its logs after a second and not when its session ends."
        ),
    ] = True
    metadata_logs: Annotated[
        bool,
        Field(
            description="Whether metadata of released segments leave ZooKeeper for logs of their "
            "own. Once they have, no process of a version before them starts; false keeps a way "
            "back after an upgrade."
        ),
    ] = True
    cold_store: Annotated[
        ColdStoreSpec | None, Field(description="Where archived segments go. Left out: no archive.")
    ] = None
    archive: Annotated[ArchiveSpec, Field(description="How archive runs are run.")] = ArchiveSpec()
    defaults: Annotated[
        ClusterDefaults, Field(description="What its namespaces and logs start from.")
    ] = ClusterDefaults()
    lost_bookie_grace: Annotated[
        Duration,
        Field(
            description="How long a bookie may be away before its copies are made again elsewhere, "
            'such as "5m". Longer than a restart, an image pull and a move of its volume.'
        ),
    ] = 300_000_000


class BookieCount(StatusPart):
    """Bookies of one failure domain."""

    region: Annotated[str, Field(description="Region of the domain.")] = ""
    zone: Annotated[str, Field(description="Zone of the domain.")] = ""
    wanted: Annotated[int, Field(ge=0, description="How many ought to be there.")] = 0
    ready: Annotated[int, Field(ge=0, description="How many serve.")] = 0


class ServerCount(StatusPart):
    """Servers of one kind."""

    wanted: Annotated[int, Field(ge=0, description="How many ought to run.")] = 0
    ready: Annotated[int, Field(ge=0, description="How many are ready.")] = 0


class Endpoints(StatusPart):
    """Where clients find the cluster, inside Kubernetes."""

    write: Annotated[str, Field(description="URL of the write proxies.")] = ""
    read: Annotated[str, Field(description="URL of the read proxies.")] = ""
    admin: Annotated[str, Field(description="Admin URL of the write proxies.")] = ""
    zookeeper: Annotated[str, Field(description="ZooKeeper's servers.")] = ""


class LogClusterStatus(ResourceStatus):
    """What became of a cluster."""

    phase: Annotated[
        str,
        Field(
            max_length=64, description="In a word: Pending, Starting, Running, Degraded, Paused."
        ),
    ] = ""
    bookies: Annotated[ServerCount, Field(description="Bookies of all its sets.")] = ServerCount()
    bookies_by_domain: Annotated[
        tuple[BookieCount, ...], Field(description="The same by failure domain.")
    ] = ()
    zookeeper: Annotated[
        ServerCount, Field(alias="zookeeper", description="Bundled ZooKeeper servers.")
    ] = ServerCount()
    sequencers: Annotated[ServerCount, Field(description="Sequencers.")] = ServerCount()
    write_proxies: Annotated[ServerCount, Field(description="Write proxies.")] = ServerCount()
    read_proxies: Annotated[ServerCount, Field(description="Read proxies.")] = ServerCount()
    logs: Annotated[int | None, Field(ge=0, description="Logs in it.")] = None
    holds_copies: Annotated[
        bool,
        Field(
            description="Whether copies of entries may lie on bookies of its sets. While it is "
            "true, the chart's policy refuses to delete the object, unless the annotation "
            "duramen.io/abandon-copies has its uid."
        ),
    ] = False
    endpoints: Annotated[Endpoints, Field(description="Where clients find it.")] = Endpoints()
    operator_version: Annotated[
        str,
        Field(
            max_length=64,
            description="Version of the newest operator that served it. An older one changes "
            "nothing (condition Progressing, reason NewerOperator), unless the annotation "
            "duramen.io/step-back-from names this version.",
        ),
    ] = ""


class LogCluster(Resource):
    """A Duramen cluster: replicated logs for whoever reaches its proxies."""

    kind: Literal["LogCluster"] = "LogCluster"
    spec: LogClusterSpec
    status: LogClusterStatus = LogClusterStatus()

    @property
    def is_paused(self) -> bool:
        """Whether the operator may only look."""
        return self.metadata.annotations.get(PAUSED_ANNOTATION) == "true"
