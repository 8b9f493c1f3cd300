"""BookieSet and Bookie: the storage nodes of a cluster.

A BookieSet is what people write: so many bookies of one size, spread over the cluster's domains.
A Bookie stands for one of them and is made by the operator; people write its intents only.

Called by the operator, the plugin and `schema`. Source: docs/kubernetes/resources.md "Bookie".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from duramen.config import Size
from duramen_operator.resources.part import (
    ObjectName,
    Part,
    Requirements,
    Resource,
    ResourceStatus,
    StorageSize,
    StorageSpec,
)


class JournalStorage(StorageSpec):
    """Volume of a bookie's journal."""

    size: StorageSize = "20Gi"


class LedgersStorage(StorageSpec):
    """Volume of a bookie's entries."""

    size: StorageSize = "100Gi"


class BookieSetSpec(Part):
    """What a set of bookies is to be."""

    cluster_name: Annotated[
        ObjectName, Field(description="The LogCluster that they serve, in the same namespace.")
    ]
    replicas: Annotated[
        int,
        Field(
            strict=True,
            ge=0,
            le=1000,
            description="How many bookies stay, spread evenly over the cluster's domains. A log "
            "with 3 copies needs 3. If there are more, the others are drained and removed.",
        ),
    ] = 3
    journal: Annotated[
        JournalStorage,
        Field(
            description="Volume of the journal: every append is synced there first. Fast, small."
        ),
    ] = JournalStorage()
    ledgers: Annotated[
        LedgersStorage, Field(description="Volume of the entries: it holds the data. Large.")
    ] = LedgersStorage()
    weight: Annotated[
        float,
        Field(
            ge=0,
            le=1000,
            description="Share of new data, as compared with other bookies. 0: none. What is "
            "changed outside is set again. The older name of storageCapacity.",
        ),
    ] = 1.0
    storage_capacity: Annotated[
        float | None,
        Field(
            ge=0,
            le=1000,
            description="Share of new data, as compared with other bookies: how much they can "
            "store, in a unit of your own. 0: none. Left out: weight.",
        ),
    ] = None
    resources: Annotated[
        Requirements, Field(description="What each bookie asks for and may use.")
    ] = Requirements()
    journal_file_size: Annotated[
        Size | None,
        Field(description='Size of a journal file, such as "64MiB". Left out: the bookie\'s own.'),
    ] = None
    claims: Annotated[
        Literal["Retain", "Delete"],
        Field(
            description="What becomes of the volumes' claims when the set is deleted, or a bookie "
            "of it removed. Retain: they stay, with the data. Delete: those of a removed bookie go "
            "(where it is a StatefulSet by itself), and those of the set if its annotation "
            "`duramen.io/delete-claims` has the uid of this very object."
        ),
    ] = "Retain"

    @property
    def capacity(self) -> float:
        """Share of new data, by its newer or its older name."""
        return self.weight if self.storage_capacity is None else self.storage_capacity


class BookieSetStatus(ResourceStatus):
    """What became of a set of bookies."""

    replicas: Annotated[int, Field(ge=0, description="Bookies that exist.")] = 0
    ready_replicas: Annotated[int, Field(ge=0, description="Bookies that serve.")] = 0
    draining: Annotated[int, Field(ge=0, description="Bookies that give up their data.")] = 0
    selector: Annotated[
        str, Field(max_length=1024, description="Label selector of the pods, for kubectl scale.")
    ] = ""
    stateful_sets: Annotated[
        tuple[str, ...],
        Field(description="StatefulSets of it: one a bookie, of older ones one a failure domain."),
    ] = ()
    was_answered: Annotated[
        bool,
        Field(
            description="Whether the cluster has answered: statefulSets is complete since then, "
            "and disks of what it leaves out are of bookies that were let go."
        ),
    ] = False
    holds_copies: Annotated[
        bool,
        Field(
            description="Whether copies of entries may lie on its bookies: true from before the "
            "first is made until all were let go and the cluster says so. While it is true, the "
            "chart's policy refuses to delete the object, unless the annotation "
            "duramen.io/abandon-copies has its uid."
        ),
    ] = False


class BookieSet(Resource):
    """Bookies of one size, spread over the failure domains of a cluster."""

    kind: Literal["BookieSet"] = "BookieSet"
    spec: BookieSetSpec
    status: BookieSetStatus = BookieSetStatus()


class BookieSpec(Part):
    """One bookie. Only the intents are for people to write."""

    cluster_name: Annotated[ObjectName, Field(description="The LogCluster that it serves.")]
    bookie_set: Annotated[ObjectName, Field(description="The BookieSet that it belongs to.")]
    decommission: Annotated[
        bool,
        Field(
            strict=True,
            description="Move its data elsewhere, then let it go. Another bookie takes its place, "
            "unless `replicas` of its set falls as well.",
        ),
    ] = False
    repair_action: Annotated[
        Literal["None", "ReplaceDisk", "AcceptLoss"],
        Field(
            description="What to do about a bookie that cannot start with the disks it has. "
            "Refused for now but None (reason NotYetSupported)."
        ),
    ] = "None"


Removal = Literal["", "Draining", "Stopping", "Cancelling"]
"""What the operator has begun, or takes back, to remove a bookie."""


class BookieResourceStatus(ResourceStatus):
    """What a bookie is and holds."""

    identity: Annotated[
        str, Field(max_length=64, description="Its duty, such as serve, drain or stand-still.")
    ] = ""
    incarnation: Annotated[
        str, Field(max_length=64, description="Names what is on its disks; new disks, new name.")
    ] = ""
    removal: Annotated[
        Removal,
        Field(description="What the operator has begun to remove it: it writes this before."),
    ] = ""
    removal_by: Annotated[
        Literal["", "name", "replicas"],
        Field(description="Why it was begun: decommission, or too many for the set's replicas."),
    ] = ""
    region: Annotated[str, Field(max_length=253, description="Region that it says it is in.")] = ""
    zone: Annotated[str, Field(max_length=253, description="Zone that it says it is in.")] = ""
    node: Annotated[str, Field(max_length=253, description="Node that its pod runs on.")] = ""
    is_writable: Annotated[
        bool | None, Field(alias="writable", description="Whether it takes new data.")
    ] = None
    free_bytes: Annotated[
        int | None, Field(ge=0, description="Free space for entries, in bytes.")
    ] = None
    copies: Annotated[
        int | None,
        Field(
            ge=0,
            description="Copies of fragments that lie on it, as segments say; while it drains: "
            "what is left to be moved.",
        ),
    ] = None


class Bookie(Resource):
    """One storage node. Made by the operator."""

    kind: Literal["Bookie"] = "Bookie"
    spec: BookieSpec
    status: BookieResourceStatus = BookieResourceStatus()
