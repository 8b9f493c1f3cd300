"""The metadata store of a service: ZooKeeper, with the service's identity where it has one.

One place for all services, so that none connects in another way than its options say.

Called by the wiring of each service. Source: docs/protocol/metadata-access.md "Who connects".
"""

from __future__ import annotations

from duramen.runtime.role import ServiceOptions
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore


def make_service_store(options: ServiceOptions) -> ZooKeeperStore:
    """The store of these options; not started."""
    return ZooKeeperStore(
        options.zookeeper,
        session_timeout_s=options.session_timeout_s,
        identity_dir=options.tls_dir,
        # Others have no identity yet, and have to change what this one makes.
        gives_rights=not options.is_turning,
    )
