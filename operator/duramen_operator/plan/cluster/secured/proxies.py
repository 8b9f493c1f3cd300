"""What proxies of a secured cluster are given beside their keys: room for records, and issuers.

Records of the audit log wait in a folder of the pod's: a container that is killed and started again
finds them, a pod that is deleted has a moment to hand them on. Issuers come from a ConfigMap that
people write; it holds public keys, and no secret.

Called by `servers`. Pure. Source: docs/protocol/audit.md "Where records wait",
docs/protocol/credentials.md "Issuers".
"""

from __future__ import annotations

from typing import Final

from duramen_operator.names import READ_PROXY, WRITE_PROXY
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.secured.keys import NO_KEYS, Keys
from duramen_operator.plan.observed import Json

DATA_DIR: Final = "/var/lib/duramen"
ISSUERS_DIR: Final = "/etc/duramen/issuers"
ISSUERS_KEY: Final = "issuers.json"
_DATA, _ISSUERS = "records", "issuers"
_DATA_SIZE: Final = "64Mi"
"""The file of records has 32 MiB at most; a pod that fills its volume is evicted."""


def make_proxy_files(frame: ClusterFrame, role: str) -> Keys:
    """Flags, volumes and mounts of one kind of proxies; none for other roles, and with `none`."""
    if not frame.is_secured or role not in (WRITE_PROXY, READ_PROXY):
        return NO_KEYS
    arguments = ["--data-dir", DATA_DIR]
    volumes: list[Json] = [{"name": _DATA, "emptyDir": {"sizeLimit": _DATA_SIZE}}]
    mounts = {_DATA: DATA_DIR}
    if frame.spec.audit.require:
        arguments.append("--audit-require")
    if frame.spec.issuers is not None:
        arguments += ["--issuers", f"{ISSUERS_DIR}/{ISSUERS_KEY}"]
        volumes.append({"name": _ISSUERS, "configMap": {"name": frame.spec.issuers.name}})
        mounts[_ISSUERS] = ISSUERS_DIR
    return Keys(tuple(arguments), tuple(volumes), mounts)
