"""The conditions of each kind: what they say, and that nothing is known of them at first.

Every condition is there from the moment an object is made, as Unknown: the CRD's default of
`status` says so until the operator has looked. Reasons that name a refusal of ours are fixed here,
since people and programs act on them; others are the operator's.

Called by `definitions` and `pages`, and by the operator for the types that it has to fill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

READY: Final = "Ready"
AVAILABLE: Final = "Available"
PROGRESSING: Final = "Progressing"
PLACEMENT_SATISFIED: Final = "PlacementSatisfied"
ARCHIVED: Final = "Archived"
SAFE_TO_SCALE_DOWN: Final = "SafeToScaleDown"
EVICTIONS_ALLOWED: Final = "EvictionsAllowed"
SECURE: Final = "Secure"
CERTIFICATES_VALID: Final = "CertificatesValid"

NOT_YET_OBSERVED: Final = "NotYetObserved"
NOT_YET_SUPPORTED: Final = "NotYetSupported"
FOUNDATION_UNCLEAR: Final = "FoundationUnclear"
ANYBODY_NOT_ACCEPTED: Final = "AnybodyNotAccepted"
NEWER_OPERATOR: Final = "NewerOperator"
NEVER: Final = "1970-01-01T00:00:00Z"

CONDITIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "LogCluster": {
        READY: "all of it runs as the spec says",
        AVAILABLE: "appends and reads are served",
        PROGRESSING: "something is being made or changed; False with NotYetSupported: refused",
        PLACEMENT_SATISFIED: "each bookie runs in its failure domain and says so",
        SAFE_TO_SCALE_DOWN: "a bookie could go without a copy being missed",
        EVICTIONS_ALLOWED: "a bookie may be evicted, as by kubectl drain: nothing is owed or "
        "granted",
        SECURE: "False while security is none",
        CERTIFICATES_VALID: "each certificate that the operator issues, or has cert-manager "
        "issue, has more than a sixth of its life left; Unknown: there are none",
    },
    "BookieSet": {
        READY: "all bookies serve",
        AVAILABLE: "as many serve as a new segment needs",
        PROGRESSING: "bookies are being made; False with NotYetSupported: a change is refused",
        PLACEMENT_SATISFIED: "each bookie runs in its domain and says so",
        SAFE_TO_SCALE_DOWN: "one of its bookies could go",
    },
    "Bookie": {
        READY: "it serves",
        PROGRESSING: "it starts, drains or repairs; False with NotYetSupported: refused",
        SAFE_TO_SCALE_DOWN: "no copy depends on it",
    },
    "LogNamespace": {
        READY: "it exists as the spec says",
    },
    "Log": {
        READY: "it exists as the spec says",
        AVAILABLE: "it takes appends, or is sealed and can be read",
        PLACEMENT_SATISFIED: "its copies lie as its rule wants",
        ARCHIVED: "its closed segments have verified cold copies",
    },
    "LogGrant": {
        READY: "the grant is there, and calls are judged by it",
    },
    "ArchivePolicy": {
        READY: "it has what a run needs",
        PROGRESSING: "a run is under way",
        ARCHIVED: "nothing that it chooses waits for an archive run",
    },
}
"""Kind → type of condition → what True means."""


def first_conditions(kind: str) -> list[dict[str, Any]]:
    """What is said of an object that nobody has looked at yet."""
    return [
        {
            "type": condition,
            "status": "Unknown",
            "reason": NOT_YET_OBSERVED,
            "message": "The operator has not looked at this object yet.",
            "observedGeneration": 0,
            "lastTransitionTime": NEVER,
        }
        for condition in CONDITIONS[kind]
    ]
