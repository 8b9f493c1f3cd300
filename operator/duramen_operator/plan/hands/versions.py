"""Whose version serves a cluster: the newest that ever did, until a person steps back.

That version stands in the status of the LogCluster, written before anything else is. An older
operator (half an upgrade, a pod on a node that was lost) changes nothing of that cluster, or the
two would go on setting each other's templates back. What it cannot read it takes for newer.

Called by `plan.plan`, and by the worker before certificates are issued. Pure.
Source: docs/kubernetes/one-hand.md 19, 20; docs/kubernetes/operations.md "An older operator".
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from duramen_operator.names import STEP_BACK_ANNOTATION
from duramen_operator.plan.conditions import Said, replace_condition
from duramen_operator.plan.observed import Observed
from duramen_operator.plan.steps import Status
from duramen_operator.resources.conditions import NEWER_OPERATOR, PROGRESSING

_VERSION: Final = re.compile(
    r"v?(?P<numbers>[0-9]+(?:\.[0-9]+)*)"
    r"(?:[-.]?(?P<word>a|alpha|b|beta|dev|rc)[-.]?(?P<number>[0-9]*))?(?:\+.*)?",
    re.ASCII,
)
"""What stands behind a plus says how it was built, and is no other version."""
Age = tuple[tuple[int, ...], bool, str, int]
"""The numbers of a version, whether it is whole, and else the word and the number behind them:
`0.2.0rc1` comes before `0.2.0rc2`, and both before `0.2.0`."""


def find_newer(observed: Observed) -> str:
    """The version that stands there where it is newer than this operator; "" where this one
    serves."""
    cluster = observed.cluster
    stands = "" if cluster is None else str(cluster.status.get("operatorVersion") or "")
    if cluster is None or stands in ("", observed.version):
        return ""
    if cluster.annotations.get(STEP_BACK_ANNOTATION) == stands:
        return ""
    there, own = _read(stands), _read(observed.version)
    return "" if there is not None and own is not None and there <= own else stands


def report_newer(observed: Observed, newer: str, now: datetime) -> Iterator[Status]:
    """What an older operator does: it says that it does nothing. All else stays as it was told."""
    cluster = observed.cluster
    assert cluster is not None, "only of a LogCluster it is known who served it"
    message = (
        f"this operator is {observed.version}, and {newer} has served this cluster, so nothing is "
        f"made or changed: upgrade the chart to {newer} or newer; or, to go back to "
        f"{observed.version} for good, `kubectl annotate --overwrite "
        f"dc/{cluster.name} {STEP_BACK_ANNOTATION}={newer}`"
    )
    said = Said(PROGRESSING, "False", NEWER_OPERATOR, message)
    status = replace_condition(cluster, said, now)
    if status != cluster.status:
        yield Status(cluster.ref, cluster.uid, status)


def _read(text: str) -> Age | None:
    """None: it is no version that this operator knows how to compare."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    numbers = [int(number) for number in found["numbers"].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    word = found["word"] or ""
    return tuple(numbers), not word, word, int(found["number"] or 0)
