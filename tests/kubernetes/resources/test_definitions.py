"""The definitions are those of the models: the files, the document, what a schema must have.

With DURAMEN_REWRITE=1 in the environment (`make docs`) the files in charts/duramen/templates/crds
and docs/kubernetes/resources.md are made anew. Needs no Kubernetes; what a real API server makes of
them is in test_acceptance.py and test_behaviour.py.
"""

import os
import re
from typing import Any

import pytest
import yaml

from duramen.config import LogConfig
from duramen_operator.resources import KINDS
from duramen_operator.resources.conditions import CONDITIONS
from duramen_operator.resources.definitions import NAMES, define_all, format_template
from duramen_operator.resources.logs import LogFields, LogSpec
from duramen_operator.resources.pages import format_page
from duramen_operator.resources.rules import HINTS, RULES
from duramen_operator.resources.schema import walk
from tests.kubernetes.resources.texts import ROOT, read_texts

DEFINITIONS = define_all(read_texts())
CRDS = ROOT / "charts" / "duramen" / "templates" / "crds"


def schema_of(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = DEFINITIONS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def check_file(path: Any, made: str) -> None:
    """Whether a committed file is what is made now; makes it when asked to."""
    if os.environ.get("DURAMEN_REWRITE") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == made, f"{path.name}: `make docs` makes it"


@pytest.mark.parametrize("kind", KINDS)
def test_the_charts_definitions_are_those_of_the_models(kind: str) -> None:
    check_file(CRDS / f"{NAMES[kind].plural}.yaml", format_template(DEFINITIONS[kind]))


def test_the_document_is_that_of_the_models() -> None:
    check_file(ROOT / "docs" / "kubernetes" / "resources.md", format_page(DEFINITIONS))


def test_the_chart_has_no_other_definitions() -> None:
    assert {path.name for path in CRDS.iterdir()} == {f"{n.plural}.yaml" for n in NAMES.values()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_says_what_the_definition_says(kind: str) -> None:
    """What is left when helm's own lines are taken out is the definition, with a label more."""
    lines = format_template(DEFINITIONS[kind]).splitlines(keepends=True)
    plain = yaml.safe_load("".join(line for line in lines if "{{" not in line))
    metadata = plain.pop("metadata")
    assert metadata["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert metadata["name"] == DEFINITIONS[kind]["metadata"]["name"]
    assert plain == {k: v for k, v in DEFINITIONS[kind].items() if k != "metadata"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described(kind: str) -> None:
    def find_silent(schema: dict[str, Any], path: str) -> list[str]:
        silent = []
        for name, value in schema.get("properties", {}).items():
            if not value.get("description") and (path or name != "metadata"):
                silent.append(f"{path}{name}")
            silent += find_silent(value, f"{path}{name}.")
            silent += find_silent(value.get("items", {}), f"{path}{name}.")
        return silent

    assert find_silent(schema_of(kind), "") == []


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_described_in_the_words_of_code(kind: str) -> None:
    """Markdown, links and names of Python modules are for other readers."""
    for schema in walk(schema_of(kind)):
        text = schema.get("description", "")
        assert not re.search(r"\]\(|R[0-9]+\b(?!\))|duramen_operator", text), text


@pytest.mark.parametrize("kind", KINDS)
def test_every_condition_is_there_from_the_first_moment(kind: str) -> None:
    found = schema_of(kind)["properties"]["status"]["default"]["conditions"]
    assert [c["type"] for c in found] == list(CONDITIONS[kind])
    assert {c["status"] for c in found} == {"Unknown"}


def test_messages_say_what_to_change() -> None:
    """Each has an imperative, or says that a field cannot be changed and what to do instead."""
    advice = re.compile(
        r"\b([Ww]rite|raise|lower|set|[Pp]ut (back|it back)|[Mm]ake a new|use|take it away"
        r"|name a|new log|made this object)\b"
    )
    messages = [rule.message for rules in RULES.values() for rule in rules] + list(HINTS.values())
    assert [m for m in messages if not advice.search(m)] == []


def test_every_rule_stands_in_a_schema() -> None:
    """A rule under a name that no model has would never be asked."""
    standing = {
        rule["rule"]
        for kind in KINDS
        for schema in walk(schema_of(kind))
        for rule in schema.get("x-kubernetes-validations", ())
    }
    assert {rule.rule for rules in RULES.values() for rule in rules} <= standing


def test_a_log_has_the_whole_configuration_by_its_own_names() -> None:
    assert set(LogFields.model_fields) == set(LogConfig.model_json_schema()["properties"])
    properties = schema_of("Log")["properties"]["spec"]["properties"]
    assert set(LogFields.model_fields) <= set(properties)
    assert {"clusterName", "deletionPolicy"} <= set(properties)
    whole = LogConfig().to_json()
    pasted = LogSpec.model_validate({"clusterName": "c", "namespace": "n", **whole})
    assert pasted.config() == whole


def test_two_braces_do_not_get_into_a_template() -> None:
    with pytest.raises(ValueError, match="two braces"):
        format_template({**DEFINITIONS["Log"], "kind": "{{ .Values.kind }}"})
