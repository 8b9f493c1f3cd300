"""What certificates a cluster is to have, by its LogCluster and BookieSets; and how they stand.

Called by `driver`. Pure. Source: docs/kubernetes/security.md "Which key lies where".
"""

from __future__ import annotations

from duramen_operator.issuing.course import Issuance
from duramen_operator.issuing.secrets import WantedCertificates
from duramen_operator.names import (
    CA_ANNOTATION,
    FOUNDATION,
    REVOKE_ANNOTATION,
    name_component,
)
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.nodes import list_public_hosts
from duramen_operator.plan.cluster.secured.living import list_living
from duramen_operator.plan.observed import CertificatesView, Observed, SeenLife
from duramen_operator.resources import ResourceError

OPERATOR_ISSUER = "operator"


def find_frame(observed: Observed, issuer: str = OPERATOR_ISSUER) -> ClusterFrame | None:
    """A cluster that the operator issues for, or who else is named; None where this is none.

    Its uuid is in its record: without one it could still be another. One that is held for another
    reason goes on being renewed, or it would fall apart in days.
    """
    cluster = observed.cluster
    if cluster is None or cluster.is_leaving:
        return None
    try:
        frame = ClusterFrame.read(observed, cluster)
    except ResourceError:
        return None
    is_ours = frame.is_secured and frame.spec.tls.issuer == issuer
    return frame if frame.found.is_recorded and is_ours else None


def explain_none(observed: Observed) -> CertificatesView | None:
    """Why nothing is issued for a cluster that `find_frame` gives no frame of, and that may be
    ours; None where it is not, or is gone.

    Its processes run on, and their certificates end: what was known of these stays told.
    """
    cluster = observed.cluster
    if cluster is None:
        return None
    if cluster.is_leaving:
        return CertificatesView(("the LogCluster is being deleted: nothing is renewed",))
    try:
        frame = ClusterFrame.read(observed, cluster)
    except ResourceError as error:
        return CertificatesView((f"the LogCluster is not valid: {error}",))
    if frame.found.doubt:
        return CertificatesView((frame.found.doubt,))
    if frame.found.is_taken:
        name = name_component(cluster.name, FOUNDATION)
        return CertificatesView((f"the ConfigMap {name} belongs to somebody else",))
    is_ours = frame.is_secured and frame.spec.tls.issuer == OPERATOR_ISSUER
    return CertificatesView() if is_ours else None


def want_certificates(frame: ClusterFrame) -> WantedCertificates:
    """What the cluster is to have."""
    annotations = frame.cluster.annotations
    return WantedCertificates(
        frame.uuid,
        list_living(frame),
        list_public_hosts(frame),
        annotations.get(CA_ANNOTATION, ""),
        annotations.get(REVOKE_ANNOTATION, ""),
    )


def summarize(issuance: Issuance) -> CertificatesView:
    """What is told of it."""
    lives = tuple(SeenLife(*life) for life in issuance.lives)
    return CertificatesView(
        issuance.problems, lives, issuance.lacking, issuance.waiting, issuance.absent
    )
