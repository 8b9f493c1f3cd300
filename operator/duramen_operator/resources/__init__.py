"""The custom resources of `duramen.io/v1alpha1` as typed models; CRDs and documents come from them.

`parse(document)` reads an object; the models say what a spec may hold and what a status tells.
"""

from duramen_operator.resources.archives import (
    ArchivePolicy,
    ArchivePolicySpec,
    ArchivePolicyStatus,
)
from duramen_operator.resources.bookies import (
    Bookie,
    BookieResourceStatus,
    BookieSet,
    BookieSetSpec,
    BookieSetStatus,
    BookieSpec,
)
from duramen_operator.resources.clusters import LogCluster, LogClusterSpec, LogClusterStatus
from duramen_operator.resources.grants import LogGrant, LogGrantSpec, LogGrantStatus
from duramen_operator.resources.logs import (
    LogNamespace,
    LogNamespaceSpec,
    LogNamespaceStatus,
    LogResource,
    LogSpec,
    LogStatus,
    merge_config,
)
from duramen_operator.resources.part import API_VERSION, GROUP, VERSION, Condition, Resource
from duramen_operator.resources.reading import (
    KINDS,
    AnyResource,
    ResourceError,
    parse,
    parse_as,
)

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "AnyResource",
    "ArchivePolicy",
    "ArchivePolicySpec",
    "ArchivePolicyStatus",
    "Bookie",
    "BookieResourceStatus",
    "BookieSet",
    "BookieSetSpec",
    "BookieSetStatus",
    "BookieSpec",
    "Condition",
    "LogCluster",
    "LogClusterSpec",
    "LogClusterStatus",
    "LogGrant",
    "LogGrantSpec",
    "LogGrantStatus",
    "LogNamespace",
    "LogNamespaceSpec",
    "LogNamespaceStatus",
    "LogResource",
    "LogSpec",
    "LogStatus",
    "Resource",
    "ResourceError",
    "merge_config",
    "parse",
    "parse_as",
]
