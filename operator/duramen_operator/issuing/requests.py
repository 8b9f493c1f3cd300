"""How the certificates of a cluster stand that cert-manager issues: what it says of each.

No Secret is read. cert-manager's own words are told where it does not issue, those of the API
server where a Certificate could not be made, and what is wrong with the ConfigMap that the
cluster's processes trust, which is judged as each of them judges it.

Called by the worker, once a pass. Source: docs/kubernetes/security.md "cert-manager".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from duramen.runtime.identity.folder import parse_bundle
from duramen.runtime.identity.generations import BUNDLE_FILE, LIST_FILE
from duramen.runtime.identity.names import IdentityError
from duramen_operator.issuing.wishes import find_frame
from duramen_operator.kube import Kube
from duramen_operator.names import CA_ANNOTATION, REVOKE_ANNOTATION
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.secured.cert_manager import KIND, Request, list_requests
from duramen_operator.plan.conditions import find_condition
from duramen_operator.plan.observed import CertificatesView, KubeObject, Observed, Ref, SeenLife
from duramen_operator.resources.clusters import CERT_MANAGER

_TEXT_COUNT_MAX: Final = 3
"""Reasons that are told: most are the same for all of a cluster."""
_TEXT_CHARACTERS_MAX: Final = 300
_ABSENT: Final = frozenset({"NotFound", "Http404"})
"""There is no such kind: without the group, the API server says so without a Status."""
_FORBIDDEN: Final = "Forbidden"
_REFUSED_ANNOTATIONS: Final = {
    REVOKE_ANNOTATION: "cert-manager makes no lists, so nothing is taken back by it: delete that "
    "pod's Secret, and put a list of the CA into the ConfigMap, or replace the CA",
    CA_ANNOTATION: "the CA is not the operator's: put both CAs into the ConfigMap, then name "
    "another issuer",
}


async def look_at_requests(
    kube: Kube, observed: Observed, now: dt.datetime
) -> CertificatesView | None:
    """What is there and what is not; None where it is not cert-manager that issues.

    Raises:
        ApiUnreachable, Refused: the API server does not show the ConfigMap.
    """
    frame = find_frame(observed, CERT_MANAGER)
    if frame is None:
        return None
    found = await kube.get(Ref("v1", "ConfigMap", frame.trust))
    trust = None if found is None else KubeObject(found)
    return judge_requests(frame, trust, now)


def judge_requests(
    frame: ClusterFrame, trust: KubeObject | None, now: dt.datetime
) -> CertificatesView:
    """The same, of what was read."""
    lives, lacking, failing = [], [], []
    texts: dict[str, None] = {}
    for request in list_requests(frame):
        life, why = _judge(frame.observed, request)
        lives += [] if life is None else [life]
        if life is not None and life.ends > now:
            failing += [f"{request.name}: {why}"] if why else []
        else:
            lacking.append(request.name)
            texts[why] = None
    problems = [*_judge_trust(frame.trust, trust, now), *filter(None, texts)]
    waiting = [*_refuse(frame), *failing[:_TEXT_COUNT_MAX]]
    return CertificatesView(
        tuple(problems[: _TEXT_COUNT_MAX + 1]), tuple(lives), tuple(lacking), tuple(waiting)
    )


def _judge(observed: Observed, request: Request) -> tuple[SeenLife | None, str]:
    """From when until when the one in its Secret is valid; why there is none, or no other comes.

    cert-manager says until when as long as the Secret holds one, and calls it not ready as soon as
    another one is wanted.
    """
    name = request.manifest["metadata"]["name"]
    found = observed.find(KIND[1], name)
    refused = observed.refusals.get(Ref(*KIND, name))
    if found is None:
        code = "" if refused is None else refused.code
        if code in _ABSENT:
            return None, f"there is no kind {KIND[1]} of {KIND[0]}: install cert-manager"
        if refused is not None:
            grant = "; the chart grants it where tls.issuer says so" if code == _FORBIDDEN else ""
            return None, _shorten(f"{refused.message}{grant}")
        return None, ""
    issuing, ready = (find_condition(found, kind) or {} for kind in ("Issuing", "Ready"))
    why = "" if refused is None else _shorten(refused.message)
    if not why and issuing.get("status") == "False":
        why = _shorten(issuing.get("message"))  # the reason may be an approver's own
    if not why and ready.get("status") != "True":
        why = _shorten(ready.get("message")) or "cert-manager has not said that it is ready"
    begins, ends = _read_time(found, "notBefore"), _read_time(found, "notAfter")
    if begins is None or ends is None or begins >= ends:
        return None, why
    return SeenLife(request.which, request.name, begins, ends), why


def _judge_trust(name: str, trust: KubeObject | None, now: dt.datetime) -> Iterator[str]:
    """What is wrong with what processes trust."""
    if trust is None:
        yield f"there is no ConfigMap {name}, which tls.trust names: make it, with the CA in ca.crt"
        return
    data = trust.body.get("data") or {}
    lists = data.get(LIST_FILE)
    try:
        parse_bundle(
            PurePath(f"the ConfigMap {name}"),
            str(data.get(BUNDLE_FILE, "")).encode(),
            None if lists is None else str(lists).encode(),
            now,
        )
    except IdentityError as error:
        yield str(error)


def _refuse(frame: ClusterFrame) -> Iterator[str]:
    for annotation, why in _REFUSED_ANNOTATIONS.items():
        if frame.cluster.annotations.get(annotation):
            yield f"{annotation}: {why}"


def _read_time(found: KubeObject, field: str) -> dt.datetime | None:
    try:
        moment = dt.datetime.fromisoformat(str(found.status.get(field)))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _shorten(text: object) -> str:
    """Somebody else's words, on one line."""
    return " ".join(str(text or "").split())[:_TEXT_CHARACTERS_MAX]
