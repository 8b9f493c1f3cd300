"""Reads the files of `duramen apply`: which namespaces and logs ought to exist, and how.

YAML with any number of documents, or JSON with one object or a list of them. Each says `kind`
(Namespace or Log), `name` and, if not all is to be as it is, `config`: the configuration model of
docs/protocol/configuration.md. All faults of all files are reported at once, each with its file,
document, line and field; nothing is read from a server here.

Called by `declare.apply`. Source: docs/cli.md "apply".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import orjson
import yaml

from duramen.config import parse_log_config, parse_namespace_config
from duramen.errors import DuramenError
from duramen.texts import check_namespace, parse_log
from duramen.units import MIB

FILE_BYTES_MAX: Final = 4 * MIB
"""Some 20,000 logs with a few fields each."""

Kind = Literal["Namespace", "Log"]

_TEXT_TAGS: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
_FIELDS: Final = ("kind", "name", "config")
_KINDS: Final[Mapping[str, Kind]] = {"Namespace": "Namespace", "Log": "Log"}


class Wanted(NamedTuple):
    """One thing that ought to exist; `config` has only the fields that the document names."""

    kind: Kind
    name: str
    config: dict[str, Any]
    where: str
    """File, document and line, as faults name them."""

    @property
    def namespace(self) -> str:
        """The namespace that it is, or is in."""
        return self.name.partition("/")[0]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class DocumentsError(Exception):
    """What is wrong in the files, one sentence each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def read_documents(files: Mapping[str, bytes]) -> list[Wanted]:
    """What the files want, in their order.

    Args:
        files: name → content.

    Raises:
        DocumentsError: with every fault that can be seen without a server.
    """
    found: list[Wanted] = []
    faults: list[str] = []
    places: dict[tuple[str, str], str] = {}
    for file, content in files.items():
        try:
            for where, value in _parse(file, content):
                wanted = _read_one(where, value, faults)
                if wanted is None:
                    continue
                first = places.setdefault((wanted.kind, wanted.name), where)
                if first is not where:
                    faults.append(f"{where}: {wanted} stands in {first} already")
                found.append(wanted)
        except _SyntaxError as error:
            faults.append(f"{file}: {error}")
    if not faults and not found:
        faults = [f"{file}: there is no document in it" for file in files]
    if faults:
        raise DocumentsError(faults)
    return found


class _SyntaxError(Exception):
    """A file is neither JSON nor YAML, as far as it says."""


def _parse(file: str, content: bytes) -> Iterator[tuple[str, Any]]:
    """Each document with where it stands; empty ones are left out."""
    if len(content) > FILE_BYTES_MAX:
        raise _SyntaxError(f"larger than {FILE_BYTES_MAX} bytes: split it")
    try:
        # Strict first: JSON with tabs is no YAML.
        values = orjson.loads(content)
    except orjson.JSONDecodeError:
        yield from _parse_yaml(file, content)
        return
    values = values if isinstance(values, list) else [values]
    for number, value in enumerate(values, 1):
        yield f"{file}: document {number}", value


def _parse_yaml(file: str, content: bytes) -> Iterator[tuple[str, Any]]:
    number = 0
    try:
        loader = yaml.SafeLoader(content)
        while loader.check_node():
            node = loader.get_node()
            _check_keys(node, set())
            value = loader.construct_document(node)
            if value is None:
                continue
            number += 1
            yield f"{file}: document {number} (line {node.start_mark.line + 1})", value
    except yaml.MarkedYAMLError as error:
        raise _SyntaxError(_format_mark(error.problem_mark, error.problem)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise _SyntaxError(str(error)) from None
    except RecursionError:
        raise _SyntaxError("nested too deeply") from None


def _check_keys(node: Any, seen: set[int]) -> None:
    """Keys are texts, and none stands twice in a mapping: YAML would take the last one.

    Raises:
        _SyntaxError: with the line.
    """
    if id(node) in seen:
        return  # Aliases lead here again, even from inside.
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    keys = set()
    for key, value in node.value:
        if key.tag not in _TEXT_TAGS:
            raise _SyntaxError(_format_mark(key.start_mark, "a key is no text: put it in quotes"))
        if key.value in keys:
            raise _SyntaxError(_format_mark(key.start_mark, f"{key.value} stands here twice"))
        keys.add(key.value)
        _check_keys(value, seen)


def _format_mark(mark: Any, problem: str | None) -> str:
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)


def _read_one(where: str, value: Any, faults: list[str]) -> Wanted | None:
    """One document; None if it is not understood, with what is wrong added to `faults`."""
    if not isinstance(value, dict):
        faults.append(f"{where}: expected kind, name and config, found {value!r:.40}")
        return None
    before = len(faults)
    for field in value:
        if field not in _FIELDS:
            faults.append(f"{where}: {field}: not a known field, use {', '.join(_FIELDS)}")
    kind = _KINDS.get(str(value.get("kind")))
    name = value.get("name")
    config = value.get("config")
    if kind is None:
        faults.append(f"{where}: kind: Namespace or Log is expected, found {value.get('kind')!r}")
    if not isinstance(name, str):
        faults.append(f"{where}: name: a text is expected, found {name!r}")
    if config is not None and not isinstance(config, dict):
        faults.append(f"{where}: config: fields are expected, found {config!r:.40}")
    if len(faults) > before or kind is None or not isinstance(name, str):
        return None
    wanted = Wanted(kind, name, config or {}, where)
    try:
        check_namespace(name) if kind == "Namespace" else parse_log(name)
    except DuramenError as error:
        faults.append(f"{where}: name: {error.detail}")
        return None
    return wanted


def check_config(wanted: Wanted, config: Mapping[str, Any]) -> dict[str, Any]:
    """A whole configuration for what is wanted, every field spelled the one way it is stored.

    Raises:
        DocumentsError: a field is not known or not valid.
    """
    try:
        if wanted.kind == "Namespace":
            return parse_namespace_config(config).to_json()
        return parse_log_config(config).to_json()
    except DuramenError as error:
        raise DocumentsError(
            [f"{wanted.where}: {wanted}: config.{fault}" for fault in error.detail.split("; ")]
        ) from None
