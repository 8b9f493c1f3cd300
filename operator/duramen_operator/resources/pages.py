"""Writes docs/kubernetes/resources.md: every field, rule, column and condition of the seven kinds.

From the same definitions that the API server gets, so that the page cannot say something else. What
the configuration of a log means is not repeated: the page names docs/protocol/configuration.md.

Pure. Called by tests/kubernetes/resources, which write the page and compare it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from duramen.config import LogConfig
from duramen_operator.resources.conditions import CONDITIONS
from duramen_operator.resources.definitions import NAMES
from duramen_operator.resources.rules import HINTS
from duramen_operator.resources.schema import Schema

_HEAD: Final = """\
# Custom resources

Made from the models in `operator/duramen_operator/resources` (`make docs` makes it anew);
`kubectl explain` says the same. What the kinds are for and how they work together is in
[concepts.md](concepts.md), examples are in [examples.md](examples.md).

All are `apiVersion: duramen.io/v1alpha1`, live in a namespace, and are shown together by
`kubectl get duramen`. Objects that belong together live in one namespace of Kubernetes. Defaults
are written into an object when it is made. A field that is not known is refused by `kubectl` and
helm (strict validation), and dropped from what others send.

| kind | short | plural | is |
|---|---|---|---|
"""
_CONFIGURATION: Final = "configuration of a log"
_META: Final = ("observedGeneration", "conditions")


def format_page(definitions: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page."""
    schemas = {
        kind: definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for kind, definition in definitions.items()
    }
    rows = [
        f"| [{kind}](#{kind.lower()}) | `{NAMES[kind].short}` | `{NAMES[kind].plural}` "
        f"| {_cell(schema['description'])} |"
        for kind, schema in schemas.items()
    ]
    parts = [_format_kind(kind, schema) for kind, schema in schemas.items()]
    return "\n".join([_HEAD + "\n".join(rows), *parts, _format_tail()]) + "\n"


def _format_kind(kind: str, schema: Schema) -> str:
    spec, status = (schema["properties"][name] for name in ("spec", "status"))
    lines = [
        "",
        f"## {kind}",
        schema["description"],
        "",
        "| `spec` | type | default | meaning |",
        "|---|---|---|---|",
        *_format_rows(spec, ""),
        "",
        "Rules, each with what it says when it is broken:",
        *_format_rules(schema),
        "",
        "| `status` | type | meaning |",
        "|---|---|---|",
        *_format_status(status, ""),
        "",
        "| condition | True means |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in CONDITIONS[kind].items()),
    ]
    return "\n".join(lines)


def _format_rows(schema: Schema, path: str) -> Iterator[str]:
    required = schema.get("required", ())
    configuration = [
        name for name in schema.get("properties", {}) if name in LogConfig.model_fields
    ]
    for name, field in schema.get("properties", {}).items():
        if name in LogConfig.model_fields:
            continue
        default = "**required**" if name in required else _format_default(field)
        meaning = _cell(field.get("description", ""))
        yield f"| `{path}{name}` | {_format_type(field)} | {default} | {meaning} |"
        inner = field.get("items", field)
        mark = "[]." if "items" in field else "."
        yield from _format_rows(inner, f"{path}{name}{mark}")
    if configuration:
        names = ", ".join(f"`{name}`" for name in configuration)
        yield (
            f"| `{path}…` | {_CONFIGURATION} | as it is | {names}: by their own names, as in "
            "[configuration.md](../protocol/configuration.md). What is not named stays as it is; "
            "`replication` is named as a whole, in the form of the log's `copysets`, `retention` "
            "with its `age` |"
        )


def _format_status(schema: Schema, path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        if not path and name in _META:
            continue
        meaning = _cell(field.get("description", ""))
        yield f"| `{path}{name}` | {_format_type(field)} | {meaning} |"
        inner = field.get("items", field)
        mark = "[]." if "items" in field else "."
        yield from _format_status(inner, f"{path}{name}{mark}")


def _format_type(field: Schema) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "x-kubernetes-int-or-string" in field:
        return "quantity"
    if "items" in field:
        return "list"
    if "additionalProperties" in field:
        return "map"
    kind = str(field["type"])
    if "minimum" in field and "maximum" in field:
        return f"{kind}, {field['minimum']:,} … {field['maximum']:,}"
    if "minimum" in field:
        return f"{kind} ≥ {field['minimum']}"
    return kind


def _format_default(field: Schema) -> str:
    if "default" not in field or field.get("type") == "object":
        return ""
    return f"`{json.dumps(field['default'])}`"


def _format_rules(schema: Schema) -> Iterator[str]:
    """Each rule once, with all the places that it stands at."""
    places: dict[str, list[str]] = {}
    for path, message in _find_rules(schema, ""):
        places.setdefault(message, []).append(f"`{path}`")
    for message, paths in places.items():
        yield f"- {', '.join(paths)}: {message}"


def _find_rules(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    """Rules of an object and all in it, without the hints of single texts, which stand once."""
    hints = set(HINTS.values())
    for rule in schema.get("x-kubernetes-validations", ()):
        if rule["message"] not in hints:
            yield path or "(object)", _cell(rule["message"])
    for name, field in schema.get("properties", {}).items():
        if not path and name not in {"spec"}:
            continue
        yield from _find_rules(field, f"{path}.{name}" if path else name)
        if "items" in field:
            yield from _find_rules(field["items"], f"{path}.{name}[]")


def _format_tail() -> str:
    lines = [
        "",
        "## Texts",
        "A text that is spelled wrong is refused with one of these:",
        *(f"- {message}" for message in dict.fromkeys(HINTS.values())),
        "",
        "## What every status has",
        "`observedGeneration` is the `metadata.generation` that the operator has seen to; less "
        "than the object's: it has not come to the last change yet. `conditions` are all there "
        "from the first moment, as `Unknown` with the reason `NotYetObserved`; each has `type`, "
        "`status`, `reason` (a word for programs), `message` (a sentence for people), "
        "`observedGeneration` and `lastTransitionTime`. `kubectl wait --for=condition=Ready` "
        "counts only what was said of the last change.",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """A text in a table, or in a line of a list."""
    return " ".join(text.split()).replace("|", "\\|")
