"""The seven CustomResourceDefinitions: names, columns, subresources and schemas, and their files.

The chart holds them as templates, so that an upgrade of the chart upgrades them; `crds.install` and
`crds.keep` of its values decide whether it has them and whether they outlive it. What stands
in the files is made here and compared by a test, so neither can change alone.

Pure. Called by tests/kubernetes/resources, which write the files, and by whoever installs without
the chart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import yaml

from duramen_operator.resources.conditions import CONDITIONS, first_conditions
from duramen_operator.resources.part import GROUP, VERSION
from duramen_operator.resources.reading import KINDS
from duramen_operator.resources.schema import encode_schema

CATEGORY: Final = "duramen"


class Column(NamedTuple):
    """What `kubectl get` shows; `priority` 1: only with `-o wide`."""

    name: str
    path: str
    description: str
    type: str = "string"
    priority: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a CRD has it."""
        found = {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
        }
        return found | ({"priority": self.priority} if self.priority else {})


class Names(NamedTuple):
    """How a kind is called, and what is shown of it."""

    plural: str
    short: str
    columns: tuple[Column, ...]
    is_scaled: bool = False


def _condition(name: str, condition: str, *, priority: int = 0) -> Column:
    path = f'.status.conditions[?(@.type=="{condition}")].status'
    return Column(name, path, f"Condition {condition}.", priority=priority)


def _count(name: str, path: str, description: str, *, priority: int = 0) -> Column:
    return Column(name, path, description, "integer", priority)


_READY: Final = _condition("Ready", "Ready")
_REASON: Final = Column(
    "Reason", '.status.conditions[?(@.type=="Ready")].reason', "Why it is ready or is not."
)
_MESSAGE: Final = Column(
    "Message",
    '.status.conditions[?(@.type=="Ready")].message',
    "The same in a sentence.",
    priority=1,
)
_AGE: Final = Column("Age", ".metadata.creationTimestamp", "Since it was made.", "date")
_CLUSTER: Final = Column("Cluster", ".spec.clusterName", "The LogCluster that it is about.")

NAMES: Final[Mapping[str, Names]] = {
    "LogCluster": Names(
        "logclusters",
        "dc",
        (
            _READY,
            _REASON,
            _condition("Available", "Available"),
            _count("Bookies", ".status.bookies.ready", "Bookies that serve."),
            _count("Wanted", ".status.bookies.wanted", "Bookies that ought to."),
            _condition("Placed", "PlacementSatisfied"),
            _AGE,
            _count("Logs", ".status.logs", "Logs in it.", priority=1),
            _condition("Removable", "SafeToScaleDown", priority=1),
            _MESSAGE,
        ),
    ),
    "BookieSet": Names(
        "bookiesets",
        "bks",
        (
            _CLUSTER,
            _count("Wanted", ".spec.replicas", "Bookies that ought to be there."),
            _count("Bookies", ".status.replicas", "Bookies that exist."),
            _count("Serving", ".status.readyReplicas", "Bookies that serve."),
            _READY,
            _REASON,
            _AGE,
            Column("Journal", ".spec.journal.size", "Volume of each journal.", priority=1),
            Column("Ledgers", ".spec.ledgers.size", "Volume of each bookie's data.", priority=1),
            _MESSAGE,
        ),
        is_scaled=True,
    ),
    "Bookie": Names(
        "bookies",
        "bke",
        (
            _CLUSTER,
            Column("Region", ".status.region", "Region that it says it is in."),
            Column("Zone", ".status.zone", "Zone that it says it is in."),
            Column("Duty", ".status.identity", "What it does: serve, drain, stand still."),
            _READY,
            _count("Copies", ".status.copies", "Copies that lie on it."),
            _AGE,
            Column("Node", ".status.node", "Node that its pod runs on.", priority=1),
            _count("Free", ".status.freeBytes", "Free bytes for entries.", priority=1),
            _MESSAGE,
        ),
    ),
    "LogNamespace": Names(
        "lognamespaces",
        "lns",
        (
            _CLUSTER,
            _READY,
            _REASON,
            _count("Logs", ".status.logs", "Logs in it."),
            Column("On deletion", ".spec.deletionPolicy", "What becomes of it then."),
            _AGE,
            _MESSAGE,
        ),
    ),
    "Log": Names(
        "logs",
        "lg",
        (
            _CLUSTER,
            Column("Namespace", ".spec.namespace", "Namespace in Duramen."),
            _READY,
            _REASON,
            _count("Tail", ".status.tail", "Sequence number that the next record gets."),
            _condition("Placed", "PlacementSatisfied"),
            _AGE,
            _count("Bytes", ".status.sizeBytes", "Bytes of its segments.", priority=1),
            Column("Owner", ".status.owner", "Sequencer that owns it.", priority=1),
            _condition("Archived", "Archived", priority=1),
            _MESSAGE,
        ),
    ),
    "LogGrant": Names(
        "loggrants",
        "lgr",
        (
            _CLUSTER,
            Column("Who", ".status.who", "Who has the role."),
            Column("Role", ".spec.role", "What it may do."),
            Column("Scope", ".spec.scope", "On what."),
            _READY,
            _REASON,
            _AGE,
            Column("Owned", ".status.owned", "Whether it goes with this object.", "boolean", 1),
            Column("By", ".status.by", "Who gave it.", priority=1),
            _MESSAGE,
        ),
    ),
    "ArchivePolicy": Names(
        "archivepolicies",
        "ap",
        (
            _CLUSTER,
            Column("Schedule", ".spec.schedule", "When it runs, in UTC."),
            Column("Suspended", ".spec.suspend", "Whether no new runs are started.", "boolean"),
            Column("Last success", ".status.lastSuccess", "When a run last ended well.", "date"),
            Column("Last result", ".status.lastRun.result", "How the newest run ended."),
            _count("Behind", ".status.lagSegments", "Closed segments without a cold copy."),
            _AGE,
            _count("Mismatches", ".status.mismatches", "Copies that did not agree.", priority=1),
            _MESSAGE,
        ),
    ),
}  # fmt: skip


def define(kind: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind.

    Args:
        texts: path of a log's configuration field to its description.
    """
    names = NAMES[kind]
    schema = encode_schema(KINDS[kind], texts)
    status = schema["properties"]["status"]
    status["default"] = {"conditions": first_conditions(kind)}
    subresources: dict[str, Any] = {"status": {}}
    if names.is_scaled:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": names.plural,
                "singular": kind.lower(),
                "shortNames": [names.short],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [column.to_json() for column in names.columns],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def define_all(texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """All seven by their kind."""
    return {kind: define(kind, texts) for kind in CONDITIONS}


_HEAD: Final = """\
{{- /* Made by `make docs` from the models: change those. */ -}}
{{- if .Values.crds.install }}
"""
_KEEP: Final = """\
metadata:
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
  labels:
    app.kubernetes.io/part-of: duramen
"""


def format_template(definition: Mapping[str, Any]) -> str:
    """A definition as a file of the chart.

    Raises:
        ValueError: helm would take a part of it for its own.
    """
    # Over JSON: parts that are the same would become anchors and aliases.
    plain = json.loads(json.dumps(definition))
    text: str = yaml.safe_dump(plain, sort_keys=False, width=98, allow_unicode=True)
    if "{{" in text:
        raise ValueError(f"{definition['metadata']['name']}: helm reads two braces as its own")
    return _HEAD + text.replace("metadata:\n", _KEEP, 1) + "{{- end }}\n"
