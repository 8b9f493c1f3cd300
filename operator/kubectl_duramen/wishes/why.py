"""`kubectl duramen why OBJECT`: one paragraph of what it waits for, since when, and what ends it.

The sentences are the operator's own conditions, which name the way out; what the operator cannot
say of itself, that it is not there, comes first. Called by `main`. Source:
docs/kubernetes/kubectl.md "Why".
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from duramen.cli.command import ExitCode
from duramen.errors import DuramenError
from duramen_operator.names import GROUP, PAUSED_ANNOTATION, VERSION
from duramen_operator.resources.definitions import NAMES
from kubectl_duramen.access import AccessError, Kubectl
from kubectl_duramen.options import ContextOption, KubeconfigOption, NamespaceOption
from kubectl_duramen.serving_operator import find_silence

Document = dict[str, Any]

_OPTIONAL: Final = frozenset({"SafeToScaleDown", "Archived", "Secure"})
"""What may well be false for good: a choice, and nothing that is waited for."""

_WIDTH: Final = 100


def why(
    target: str,
    *,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> int:
    """Say in a paragraph what an object waits for, since when, and what would end it.

    Exit codes: 0 it waits for nothing; 1 it does, or it cannot be told; 2 usage.

    Args:
        target: KIND/NAME, such as bke/main-1-0, log/orders or dc/main.
    """
    kind, name = parse_target(target)
    kubectl = Kubectl(kubeconfig=kubeconfig, context=context, namespace=namespace)
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{kubectl.namespace}/{NAMES[kind].plural}/{name}"
    item: Document = kubectl.get(path)
    sentences = [*_say_silence(kubectl), *explain(item, datetime.now(UTC))]
    text = " ".join(sentences) or f"{kind} {name} waits for nothing."
    print(textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False))
    return ExitCode.FAILED if sentences else ExitCode.OK


def parse_target(target: str) -> tuple[str, str]:
    """Kind and name of `KIND/NAME`: a kind by any of its names.

    Raises:
        DuramenError: it names no kind of ours.
    """
    word, _, name = target.partition("/")
    for kind, names in NAMES.items():
        known = {kind.lower(), names.plural, names.short, f"{names.plural}.{GROUP}"}
        if name and word.lower() in known:
            return kind, name
    kinds = ", ".join(f"{names.short}/NAME ({kind})" for kind, names in NAMES.items())
    raise DuramenError("invalid_argument", f"{target}: write one of {kinds}", field="target")


def explain(item: Document, now: datetime) -> Iterator[str]:
    """What an object waits for, by what it says itself; nothing where all is well."""
    kind, metadata = item["kind"], item["metadata"]
    head = f"{kind} {metadata['name']}"
    status = item.get("status", {})
    if metadata.get("deletionTimestamp"):
        since = format_age(metadata["deletionTimestamp"], now)
        left = ", ".join(metadata.get("finalizers", ())) or "its pods"
        yield f"{head} was deleted {since} ago, and waits for {left}."
    if metadata.get("annotations", {}).get(PAUSED_ANNOTATION) == "true":
        yield f"{head} is paused: nothing of it is changed until kubectl duramen resume."
    for said in status.get("conditions", ()):
        if not _is_waiting(said):
            continue
        if said.get("observedGeneration", 0) < metadata.get("generation", 0):
            yield f"The operator has not looked at the last change of {head} yet."
            return
        age = format_age(said["lastTransitionTime"], now)
        what = f"{said['type']} is {said['status']} ({said['reason']})"
        yield f"{head}: {what}, for {age}: {str(said['message']).rstrip('.')}."
    if status.get("removal") and status.get("copies") is not None:
        yield f"{status['copies']} copies are left on it."


def format_age(since: str, now: datetime) -> str:
    """How long ago that was, in the largest unit that fits."""
    age_s = max(0, int((now - datetime.fromisoformat(since)).total_seconds()))
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if age_s >= unit_s:
            return f"{age_s // unit_s} {unit}"
    return f"{age_s} s"


def _is_waiting(said: Document) -> bool:
    if said["type"] in _OPTIONAL:
        return False
    if said["type"] == "Progressing":
        return str(said["status"]) == "True" or said["reason"] != "Settled"
    is_unissued = (said["type"], said["status"]) == ("CertificatesValid", "Unknown")
    return said["status"] != "True" and not is_unissued


def _say_silence(kubectl: Kubectl) -> list[str]:
    try:
        silence = find_silence(kubectl)
    except AccessError:
        return []  # who may not read the Lease is told the rest
    return [] if silence is None else [f"What follows is old: {silence}."]
