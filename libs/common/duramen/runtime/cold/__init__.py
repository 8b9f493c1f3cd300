"""The cold store: a folder, a bucket or an HDFS directory that holds the archive's files.

`store` is the port, `opening` chooses the implementation by URL. Who reads and writes archives
(jobs, proxies, the data source) imports from here alone.
"""

from duramen.runtime.cold.manifests import find_manifest
from duramen.runtime.cold.opening import open_cold_store
from duramen.runtime.cold.store import (
    AlreadyThere,
    ColdFile,
    ColdStore,
    ColdStoreDown,
    ColdWriter,
    NotThere,
)

__all__ = [
    "AlreadyThere",
    "ColdFile",
    "ColdStore",
    "ColdStoreDown",
    "ColdWriter",
    "NotThere",
    "find_manifest",
    "open_cold_store",
]
