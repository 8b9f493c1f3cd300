"""What a support bundle holds: gathers it, redacts it, and gives it as named texts.

Objects of Duramen and of Kubernetes, events, the last lines of the pods' logs, answers of the
administration. Secrets and ConfigMaps are never asked for. Everything passes the redaction once as
a document and once more as text, at the only place from which files go out (`_Files`). What could
not be had stands in README.txt with its reason: a report of a sick cluster must not fail itself.

Called by `report`. Source: docs/kubernetes/kubectl.md "Report".
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, Any, Final
from urllib.parse import quote

import orjson

from duramen.units import MIB
from duramen_operator.names import APP, CLUSTER_LABEL, NAME_LABEL
from kubectl_duramen.access import AccessError, Kubectl
from kubectl_duramen.sources import ADMIN, Document, ask_all, is_secured, look
from kubectl_duramen.summary import summarize
from kubectl_duramen.support.redaction import find_literals, redact_object, redact_text
from kubectl_duramen.tree import render

LOG_LINES_MAX: Final = 2_000
LOG_BYTES_MAX: Final = 1 * MIB
"""Of one container; kubectl gives the last lines, cut to this."""

PODS_MAX: Final = 60
EVENTS_MAX: Final = 2_000

_PLAIN: Final = (
    ("statefulsets", "apps/v1"),
    ("deployments", "apps/v1"),
    ("jobs", "batch/v1"),
    ("cronjobs", "batch/v1"),
    ("horizontalpodautoscalers", "autoscaling/v2"),
    ("poddisruptionbudgets", "policy/v1"),
    ("services", ""),
    ("persistentvolumeclaims", ""),
)
"""Plural → group and version; "": the core's."""

_STATISTICS: Final = ("/v1/statistics", "/v1/config")
_PRODUCT_LABEL: Final = f"{NAME_LABEL}={APP}"
_README: Final = """\
Support bundle of the Duramen cluster {name}, made {when} by kubectl-duramen {version}.

summary.json, status.txt   what `kubectl duramen status` shows
objects/                   custom resources, workloads, pods
events.json                events of the namespace, the newest first
logs/                      the last {lines} lines of each container, and of the one before it
admin/                     what the services say of themselves

Taken out (shown as REDACTED): values of environment variables wherever they stand, tokens,
passwords, keys, user information in URLs, bodies and headers of records. Secrets and ConfigMaps
were not read. Look through it before you send it: it names your logs, hosts and namespaces.

Not in it, and why:
{missing}
"""


class _Files:
    """Named texts, redacted on their way in."""

    def __init__(self, literals: frozenset[str]) -> None:
        self._literals = literals
        self.found: dict[str, bytes] = {}

    def put_json(self, name: str, value: Any) -> None:
        clean = redact_object(value, self._literals)
        self.put_text(name, orjson.dumps(clean, option=orjson.OPT_INDENT_2).decode())

    def put_text(self, name: str, text: str) -> None:
        self.found[name] = redact_text(text, self._literals).encode()


def gather(kubectl: Kubectl, cluster: Document, *, when: str, version: str) -> dict[str, bytes]:
    """The files of a bundle: name → content, redacted.

    Args:
        when: the time, as the README is to show it.
        version: of this program.
    """
    snapshot = look(kubectl, cluster)
    missing = dict(snapshot.unknown)
    answers = ask_all(_list_wanted(kubectl, snapshot.name))
    pods = _without_errors(answers, "pods", missing)[:PODS_MAX]
    templates = [
        one
        for plural in ("statefulsets", "deployments", "jobs", "cronjobs")
        for one in _without_errors(answers, plural, missing)
    ]
    files = _Files(find_literals([*pods, *templates, snapshot.cluster]))
    summary = summarize(snapshot)
    files.put_json("summary.json", summary)
    files.put_text("status.txt", "\n".join(render(summary)) + "\n")
    snapshot.objects.pop("pods", None)
    shown: dict[str, list[Document]] = {"logclusters": [snapshot.cluster], **snapshot.objects}
    for plural in ("pods", *(plural for plural, _ in _PLAIN)):
        shown[plural] = _without_errors(answers, plural, missing)
    for plural, things in shown.items():
        for thing in things:
            files.put_json(f"objects/{plural}/{thing['metadata']['name']}.json", thing)
    events = _without_errors(answers, "events", missing)
    events.sort(key=lambda event: str(_time_of(event)), reverse=True)
    files.put_json("events.json", events[:EVENTS_MAX])
    for source in ADMIN:
        if source in snapshot.admin:
            files.put_json(f"admin/{source}.json", snapshot.admin[source])
    _put_pods(kubectl, pods, files, missing, is_secured=is_secured(snapshot.cluster))
    lines = [f"  {name}: {why}" for name, why in sorted(missing.items())] or ["  nothing"]
    files.put_text(
        "README.txt",
        _README.format(
            name=snapshot.name, when=when, version=version, lines=LOG_LINES_MAX,
            missing="\n".join(lines),
        ),
    )  # fmt: skip
    return files.found


def write_tar(files: Mapping[str, bytes], folder: str, unix_s: int, out: IO[bytes]) -> None:
    """The files as a compressed tar, all in one folder."""
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size, info.mode, info.mtime = len(content), 0o600, unix_s
            tar.addfile(info, io.BytesIO(content))


def _list_wanted(kubectl: Kubectl, name: str) -> dict[str, Callable[[], Any]]:
    label = f"{CLUSTER_LABEL}={name}"
    wanted: dict[str, Callable[[], Any]] = {
        plural: partial(kubectl.list_plain, plural, group=group, labelSelector=label)
        for plural, group in _PLAIN
    }
    # The operator's pod serves every cluster of the namespace: it has the product's label alone.
    wanted["pods"] = partial(kubectl.list_plain, "pods", labelSelector=_PRODUCT_LABEL)
    wanted["events"] = partial(kubectl.list_plain, "events")
    return wanted


def _without_errors(
    answers: Mapping[str, Any], name: str, missing: dict[str, str]
) -> list[Document]:
    answer = answers[name]
    if isinstance(answer, AccessError):
        missing[name] = str(answer)
        return []
    return list(answer)


def _put_pods(
    kubectl: Kubectl,
    pods: list[Document],
    files: _Files,
    missing: dict[str, str],
    *,
    is_secured: bool,
) -> None:
    """Logs of every container, and what the process in it says of itself, if it asks for no
    certificate."""
    calls: dict[str, Callable[[], Any]] = {}
    for pod in pods:
        name = pod["metadata"]["name"]
        root = f"/api/v1/namespaces/{quote(kubectl.namespace)}/pods"
        for container, was_restarted in _list_containers(pod):
            for is_previous in (False, True) if was_restarted else (False,):
                file = f"logs/{name}/{container}{'.previous' if is_previous else ''}.log"
                calls[file] = partial(
                    kubectl.get_text, f"{root}/{quote(name)}/log", container=container,
                    timestamps="true", tailLines=LOG_LINES_MAX, limitBytes=LOG_BYTES_MAX,
                    previous=str(is_previous).lower(),
                )  # fmt: skip
        for path in () if is_secured else _STATISTICS:
            port = _find_admin_port(pod)
            if port is not None:
                where = f"{root}/http:{quote(name)}:{port}/proxy{path}"
                file = f"admin/{name}{path.replace('/v1/', '.')}.json"
                calls[file] = partial(kubectl.get, where)
    for file, answer in ask_all(calls).items():
        if isinstance(answer, AccessError):
            missing[file] = str(answer)
        elif isinstance(answer, bytes):
            files.put_text(file, answer.decode(errors="replace"))
        else:
            files.put_json(file, answer)


def _list_containers(pod: Document) -> list[tuple[str, bool]]:
    """Containers that have begun at least once, and whether one ran before."""
    status = pod.get("status", {})
    found = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return [
        (one["name"], one.get("restartCount", 0) > 0)
        for one in found
        if "waiting" not in one.get("state", {}) or one.get("restartCount", 0) > 0
    ]


def _find_admin_port(pod: Document) -> int | None:
    if pod.get("status", {}).get("phase") != "Running":
        return None
    for container in pod.get("spec", {}).get("containers", ()):
        for port in container.get("ports", ()):
            if port.get("name") == "admin":
                return int(port["containerPort"])
    return None


def _time_of(event: Document) -> Any:
    return (
        event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
    )
