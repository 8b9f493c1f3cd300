"""One cluster and its cold store, as a job that is no archive run works with them.

Connects by what the flags or cluster.json say, and picks logs by selectors. What goes wrong with
ZooKeeper becomes the error that its callers tell people.

Called by the commands verify, compact, restore, retention and export. Source: docs/archive.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from typing import NamedTuple

from duramen.cli.command import UsageError, say
from duramen.cli.shell.waiting import report_waiting
from duramen.core.log_node import LogNode
from duramen.errors import DuramenError
from duramen.runtime.cold import ColdStore, open_cold_store
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore, Rejected
from duramen.wire.metadata_json import MetadataJsonError, Paths
from duramen_spark.archive.bookie_source import BookieSource
from duramen_spark.archive.cluster_nodes import ClusterNodes
from duramen_spark.cluster_address import open_store
from duramen_spark.places import ClusterPlace


class Connection(NamedTuple):
    """What a job works with; `uuid` is the cluster's, `store_url` what tasks open the store by, and
    `security` as whom it calls, None where nobody asks."""

    metadata: MetadataStore
    paths: Paths
    nodes: ClusterNodes
    source: BookieSource
    store: ColdStore
    store_url: str
    uuid: str
    security: ProcessSecurity | None = None


@asynccontextmanager
async def connect(place: ClusterPlace) -> AsyncIterator[Connection]:
    """Connect, and leave at the end.

    Raises:
        DuramenError: `metadata_unavailable`: ZooKeeper gives no answer, or knows no such cluster;
            `invalid_argument`: no URL of a cold store; `internal`: a node cannot be read.
    """
    store = open_cold_store(place.cold_store)
    address = place.address
    metadata = open_store(address)
    paths = Paths(place.cluster)
    try:
        async with report_waiting(f"ZooKeeper at {place.zookeeper}", say):
            await metadata.start()
        source = BookieSource(address, metadata)
        nodes = ClusterNodes(metadata, paths, source.read_run)
        uuid = await nodes.read_uuid()
        if uuid is None:
            detail = f"{place.zookeeper} knows no cluster {place.cluster!r}"
            raise DuramenError("metadata_unavailable", detail)
        async with source:
            yield Connection(
                metadata, paths, nodes, source, store, place.cold_store, uuid, source.security
            )
    except Rejected as error:
        raise UsageError(str(error)) from None
    except MetadataError as error:
        detail = f"ZooKeeper at {place.zookeeper}: {error}"
        raise DuramenError("metadata_unavailable", detail) from error
    except MetadataJsonError as error:
        raise DuramenError("internal", f"a node cannot be read: {error}") from error
    finally:
        await metadata.close()


async def list_logs(nodes: ClusterNodes, selectors: Sequence[str]) -> list[LogNode]:
    """Logs that are there and match one of the globs over `namespace/log`; all, if there is none.

    Raises:
        MetadataError: ZooKeeper gives no answer.
    """
    wanted = selectors or ("*/*",)
    return [
        log
        for log in await nodes.list_logs()
        if not log.is_deleted
        and any(fnmatchcase(f"{log.namespace}/{log.name}", selector) for selector in wanted)
    ]
