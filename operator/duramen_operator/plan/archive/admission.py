"""Whether a run would be let in by its cluster, and archive where its readers look.

A run that must fail, or would do harm, is not begun.
Where clusters ask who calls, a run needs an identity, and runs of one kind alone are given it:
between pods Spark's ports ask nobody, and an executor has the keys of its pod. What is not known
holds no run up, since a certificate that nobody could look at may be good for days.

Called by `plan`. Pure. Source: docs/kubernetes/security.md "Archive runs",
docs/kubernetes/archive.md "Where".
"""

from __future__ import annotations

from typing import Final

from duramen_operator.names import ARCHIVE
from duramen_operator.plan.archive.manifests import Job
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.nodes import name_secret
from duramen_operator.plan.cluster.secured.founding import is_founded
from duramen_operator.resources.clusters import CERT_MANAGER, ColdStoreSpec
from duramen_operator.resources.conditions import CERTIFICATES_VALID, SECURE

ALONE: Final = "CronJob"
"""The runner of which executors and driver are one process."""


def find_obstacle(frame: ClusterFrame) -> str:
    """Why a run would not be let in, for people; "" where nothing is known against it."""
    if not frame.is_secured:
        return ""
    if not is_founded(frame):
        return f"the cluster lets nobody in before it is founded: see its condition {SECURE}"
    view = frame.observed.certificates
    # Where Certificates cannot be listed all are lacking, while Secrets may hold good ones.
    if view is None or frame.spec.tls.issuer == CERT_MANAGER:
        return ""
    secret = name_secret(frame.name, ARCHIVE)
    if ARCHIVE in view.absent:
        return f"there is no Secret {secret}: see the cluster's condition {CERTIFICATES_VALID}"
    if ARCHIVE in view.lacking:
        return (
            f"the Secret {secret} has no valid certificate, and none is issued: see the cluster's "
            f"condition {CERTIFICATES_VALID}"
        )
    return ""


def judge_runner(job: Job) -> str:
    """Why this runner is not to be had, for people; "" where it is."""
    if not job.frame.is_secured or job.runner == ALONE:
        return ""
    return (
        f"runner {job.runner}: its executors are pods of their own, and ports of Spark between "
        "pods ask nobody who calls, which security: on does not allow: take runner: "
        f"{ALONE} (docs/kubernetes/security.md, 24)"
    )


def judge_destination(destination: ColdStoreSpec | None, store: ColdStoreSpec) -> str:
    """Why a policy's destination may be another place than the cluster's, for people; "" where it
    is that one.

    A segment's mark says that there is a cold copy, not where, and hot ones may go after it. A
    Secret says where as well: it may name another server, whose bucket has the same name, and the
    operator cannot read it. What the destination leaves out is the cluster's.
    """
    if destination is None:
        return ""
    for field, given, own in (
        ("url", destination.url, store.url),
        ("claimName", destination.claim_name, store.claim_name),
        ("secretName", destination.secret_name, store.secret_name),
    ):
        if given is not None and given != own:
            has = f"is {own}" if own is not None else "is left out"
            return (
                f"spec.destination.{field} {given} is not that of the cluster's cold store, where "
                f"it {has}: readers look there, and what is archived elsewhere could not be read "
                "once it has left the bookies; leave spec.destination out"
            )
    return ""
