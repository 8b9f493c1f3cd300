"""Where a job's cluster and cold store are: flags, else the cluster.json of a `duramen run`.

Shared by the commands of `duramen-spark`. A job runs inside the cluster's network: it talks to
ZooKeeper and to the bookies' data ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from duramen.cli.cluster.reach import find_identity
from duramen.cli.command import DATA_DEFAULT, UsageError
from duramen.cluster.cluster_file import read_document
from duramen_spark.cluster_address import ClusterAddress


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """Flags that say where things are."""

    zookeeper: Annotated[
        str | None, Parameter(help="host:port of ZooKeeper, with commas (else cluster.json)")
    ] = None
    cluster: Annotated[
        str | None, Parameter(help="the cluster's name in ZooKeeper (else cluster.json)")
    ] = None
    cold_store: Annotated[
        str | None, Parameter(help="URL of the cold store, such as s3://bucket (else cluster.json)")
    ] = None
    region: Annotated[str, Parameter(help="where this runs: replicas near it are read first")] = ""
    rack: Annotated[str, Parameter(help="the same")] = ""
    identity: Annotated[
        Path | None,
        Parameter(
            help="folder of an archive's identity, where ZooKeeper and bookies ask for one; on "
            "each machine that a part of the job runs on (else the local cluster's)"
        ),
    ] = None
    data: Annotated[Path, Parameter(help="folder of a duramen run, for its cluster.json")] = (
        DATA_DEFAULT
    )


class ClusterPlace(NamedTuple):
    """Where a cluster and its cold store are, and where this process is."""

    zookeeper: str
    cluster: str
    cold_store: str
    region: str
    rack: str
    identity: str | None = None

    @property
    def address(self) -> ClusterAddress:
        """What each part of a job is told."""
        return ClusterAddress(self.zookeeper, self.cluster, self.region, self.rack, self.identity)


def find_place(options: PlaceOptions | None) -> ClusterPlace:
    """Resolve the flags.

    Raises:
        UsageError: a flag lacks another one.
        ClusterFileError: something is not given, and no local cluster is found.
    """
    given = options or PlaceOptions()
    if given.zookeeper is not None and (given.cluster is None or given.cold_store is None):
        raise UsageError("--zookeeper needs --cluster and --cold-store")
    if given.zookeeper is not None and given.cluster is not None and given.cold_store is not None:
        where = given.zookeeper, given.cluster, given.cold_store
    else:
        document = read_document(given.data.absolute())
        store = given.cold_store or document.get("cold_store")
        if not isinstance(store, str):
            raise UsageError("--cold-store: cluster.json names none, so say where the archive is")
        where = str(document.get("zookeeper")), given.cluster or str(document.get("cluster")), store
    identity = find_identity(given.identity, given.zookeeper, given.data)
    folder = None if identity is None else str(identity.absolute())
    return ClusterPlace(*where, given.region, given.rack, folder)
