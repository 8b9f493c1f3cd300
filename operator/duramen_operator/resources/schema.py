"""Turns a model into the structural schema that the API server checks objects by.

Kubernetes wants a tree without references, unions or null types, and prunes what it does not name.
Defaults are written into objects by the API server, so that `kubectl get -o yaml` shows what is in
force; only the configuration of a log has none, since a field that is not named there is left as it
is (ADR 0019), and `replication` has two forms. Descriptions of that configuration are those of
docs/protocol/configuration.md, given by the caller: they are written once.

Pure. Called by `definitions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from duramen.config import LogConfig
from duramen.units import DURATION_PATTERN, format_duration
from duramen_operator.resources.rules import HINTS, RULES

Schema = dict[str, Any]

_KEPT: Final = (
    "description",
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "x-kubernetes-int-or-string",
)
_TEXT_MAX: Final = 1024
"""Of a text that says nothing else: rules are refused when a text could be of any length."""
_SPELLING_MAX: Final = 64
"""Of a duration or a size, which have a pattern and no length in REST."""

_NONE: Final = {"const": "none"}
"""No limit, of a number: a union in REST, and here a text in its place."""

_LIST_KEYS: Final[Mapping[str, list[str]]] = {
    "conditions": ["type"],
    "domains": ["region", "zone"],
    "imagePullSecrets": ["name"],
}


def encode_schema(model: type[BaseModel], texts: Mapping[str, str]) -> Schema:
    """The structural schema of a whole object.

    Args:
        texts: path of a log's configuration field, such as `roll.size`, to its description.
    """
    kind = model.model_fields["kind"].default
    document = model.model_json_schema(by_alias=True, mode="validation")
    tree = _Tree(document.get("$defs", {}), texts)
    properties = {
        name: tree.encode(value, name)
        for name, value in document["properties"].items()
        if name in ("spec", "status")
    }
    # The operator writes statuses: it is not to be stopped by a rule, nor find what it did not say.
    for part in walk(properties["status"]):
        part.pop("x-kubernetes-validations", None)
        part.pop("default", None)
    return {
        "type": "object",
        "description": model.__doc__,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "duramen.io/v1alpha1."},
            "kind": {"type": "string", "description": f"{kind}."},
            "metadata": {"type": "object"},
            **properties,
        },
        **_rules(kind),
    }


def walk(schema: Schema) -> Iterator[Schema]:
    """A schema and all that are in it."""
    yield schema
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from walk(schema[name])
    for value in schema.get("properties", {}).values():
        yield from walk(value)


class _Tree:
    """What is needed all the way down: the parts of a document, and texts for a configuration."""

    def __init__(self, parts: Mapping[str, Schema], texts: Mapping[str, str]) -> None:
        self._parts = parts
        self._texts = texts

    def encode(
        self, source: Schema, field: str, path: str = "", *, is_config: bool = False
    ) -> Schema:
        """One value.

        Args:
            path: where it is in a log's configuration; empty outside.
            is_config: whether it is a part of one.
        """
        found, part, is_nullable = self._resolve(source)
        schema: Schema = {name: found[name] for name in _KEPT if name in found}
        if "const" in found:
            schema |= {"type": "string", "enum": [found["const"]]}
        if True in schema.get("enum", ()):
            # YAML reads `on` as true: no one type has all these values.
            schema["x-kubernetes-preserve-unknown-fields"] = True
        elif "enum" in schema:
            schema["type"] = "integer" if isinstance(schema["enum"][0], int) else "string"
        rules = list(_rules(part).get("x-kubernetes-validations", ()))
        if found.get("type") == "object" and "properties" in found:
            schema |= self._encode_object(found, part, path, is_config=is_config)
        elif "additionalProperties" in found and found["additionalProperties"] is not True:
            schema["additionalProperties"] = self.encode(found["additionalProperties"], "")
        elif found.get("type") == "object":
            schema["x-kubernetes-preserve-unknown-fields"] = True
        if "items" in found:
            schema["items"] = self.encode(found["items"], "")
        if field in _LIST_KEYS:
            schema["x-kubernetes-list-type"] = "map"
            schema["x-kubernetes-list-map-keys"] = _LIST_KEYS[field]
        rules += _encode_pattern(found, schema)
        if rules:
            schema["x-kubernetes-validations"] = rules
        if path in self._texts:
            schema["description"] = self._texts[path]
        if is_nullable and is_config:
            schema["nullable"] = True
        _add_default(schema, found, is_config=is_config)
        return schema

    def _resolve(self, source: Schema) -> tuple[Schema, str, bool]:
        """What a value is: without `$ref` and `anyOf`, and whether null may stand for it."""
        found = dict(source)
        is_nullable = False
        if "anyOf" in found:
            options = found.pop("anyOf")
            is_nullable = {"type": "null"} in options
            named = [option for option in options if option not in ({"type": "null"}, _NONE)]
            (option,) = named
            found = {**option, **found}
            if _NONE in options:
                found |= {"x-kubernetes-int-or-string": True, "pattern": "^none$"}
                del found["type"]
        part = ""
        if "$ref" in found:
            part = found.pop("$ref").rpartition("/")[2]
            found = {**self._parts[part], **found}
        return found, part, is_nullable

    def _encode_object(self, found: Schema, part: str, path: str, *, is_config: bool) -> Schema:
        properties = {}
        for name, value in found["properties"].items():
            is_inside = is_config or (name in LogConfig.model_fields and part in _CONFIG_PARTS)
            below = (f"{path}." if path else "") + name if is_inside else ""
            properties[name] = self.encode(value, name, below, is_config=is_inside)
        required = found.get("required")
        return {"properties": properties} | ({"required": required} if required else {})


_CONFIG_PARTS: Final = frozenset({"LogSpec", "LogDefaults"})


def _rules(part: str) -> Schema:
    rules = RULES.get(part, ())
    return {"x-kubernetes-validations": [rule.to_json() for rule in rules]} if rules else {}


def _encode_pattern(found: Schema, schema: Schema) -> list[dict[str, str]]:
    """A text's pattern, as a rule that says what to write; its length, that rules can be costed."""
    if "x-kubernetes-int-or-string" in found:
        schema["pattern"] = found["pattern"]
        return []
    if found.get("type") != "string" or "enum" in schema or "format" in found:
        return []
    pattern = found.get("pattern")
    schema.setdefault("maxLength", _SPELLING_MAX if pattern else _TEXT_MAX)
    if pattern is None:
        return []
    return [{"rule": f"self.matches(r'{pattern}')", "message": HINTS[pattern]}]


def _add_default(schema: Schema, found: Schema, *, is_config: bool) -> None:
    """What the API server fills in: values, and objects that have values to fill in."""
    default = found.get("default")
    if is_config or default is None or default == []:
        return
    if found.get("pattern") == DURATION_PATTERN:
        default = format_duration(default)
    if schema.get("type") == "object":
        # Spelled out: rules are tried on the default before what is in it is filled in.
        default = _strip(default)
    if default != {}:
        schema["default"] = default


def _strip(value: Any) -> Any:
    """Without what is None or empty: nothing that an object has to say."""
    if not isinstance(value, dict):
        return value
    found = {name: _strip(item) for name, item in value.items()}
    return {name: item for name, item in found.items() if item not in (None, [], {})}
