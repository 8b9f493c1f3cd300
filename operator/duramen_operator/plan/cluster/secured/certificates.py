"""What is told of a cluster's certificates: whether all that are issued for it have time left.

Messages name moments and not how long is left, or they would change with each look.

Called by `cluster.status`. Pure. Source: docs/kubernetes/security.md "Renewal".
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.conditions import Said, Truth
from duramen_operator.plan.observed import CertificatesView, SeenLife
from duramen_operator.resources.conditions import CERTIFICATES_VALID, NOT_YET_OBSERVED

LEFT_RATIO_MIN: Final = 1 / 6
"""Of its life: it was to be renewed when twice as much was left."""
_NAMES_COUNT: Final = 8


def judge_certificates(frame: ClusterFrame, now: datetime) -> Said:
    """Whether each certificate that the operator issues, or has issued, has more than a sixth of
    its life."""
    view = frame.observed.certificates
    is_ours = frame.is_secured and frame.spec.tls.issuer != "secret"
    if view is None or not is_ours:
        return _report_none(frame)
    more = "".join(f"; {text}" for text in view.waiting)
    if view.lacking:
        count, named = len(view.lacking), ", ".join(view.lacking[:_NAMES_COUNT])
        why = "".join(f"; {text}" for text in view.problems)
        return _say("False", "NotIssued", f"{count} are not issued: {named}{why}{more}")
    if view.problems:
        return _say("False", "IssuingRefused", "; ".join(view.problems) + more)
    worst = find_worst(view, now)
    if worst is None:
        return _say("Unknown", NOT_YET_OBSERVED, "there are none yet")
    ends = f"the first to end is that of {worst.name}, at {worst.ends:%Y-%m-%d %H:%M UTC}"
    if _rate(worst, now) <= LEFT_RATIO_MIN:
        return _say("False", "Ending", f"it was to be renewed long ago: {ends}{more}")
    return _say("True", "Valid", f"{len(view.lives)} are valid: {ends}{more}")


def find_worst(view: CertificatesView, now: datetime) -> SeenLife | None:
    """The one with the least part of its life left."""
    return min(view.lives, key=lambda life: (_rate(life, now), life.name), default=None)


def _rate(life: SeenLife, now: datetime) -> float:
    return (life.ends - now) / (life.ends - life.begins)


def _report_none(frame: ClusterFrame) -> Said:
    if not frame.is_secured:
        return _say("Unknown", "NoSecurity", "security is none: there are none")
    if frame.spec.tls.issuer == "secret":
        return _say("Unknown", "IssuedElsewhere", "somebody else fills the cluster's Secrets")
    return _say("Unknown", NOT_YET_OBSERVED, "they are looked at once the cluster has its record")


def _say(status: Truth, reason: str, message: str) -> Said:
    return Said(CERTIFICATES_VALID, status, reason, message, is_event=status != "Unknown")
