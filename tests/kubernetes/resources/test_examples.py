"""Every manifest in docs/kubernetes is taken by a real API server, and by the models.

Documents of the pages are read as people copy them: each YAML block, all of its documents. Tier
api.
"""

import re
from typing import Any

import pytest
import yaml

from duramen_operator.resources import API_VERSION, parse
from duramen_operator.resources.conditions import CONDITIONS
from tests.kubernetes.resources.objects import Api
from tests.kubernetes.resources.texts import ROOT

PAGES = sorted((ROOT / "docs" / "kubernetes").glob("*.md"))


def read_manifests() -> list[tuple[str, dict[str, Any]]]:
    """Page, kind and name with each custom resource of ours."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            for document in yaml.safe_load_all(block):
                if isinstance(document, dict) and document.get("apiVersion") == API_VERSION:
                    name = f"{page.name} {document['kind']} {document['metadata']['name']}"
                    found.append((name, document))
    return found


MANIFESTS = read_manifests()


def test_the_pages_have_examples_of_what_people_write() -> None:
    kinds = {document["kind"] for _, document in MANIFESTS}
    assert kinds == {"LogCluster", "BookieSet", "LogNamespace", "Log", "LogGrant", "ArchivePolicy"}


def test_the_reasons_that_are_explained_are_given() -> None:
    text = (ROOT / "docs" / "kubernetes" / "operations.md").read_text("utf-8")
    rows = re.findall(r"^\| \w+ \| (?:`(\w+)`|any), `(\w+)` \|", text, re.MULTILINE)
    assert len(rows) > 15
    given = "".join(p.read_text("utf-8") for p in (ROOT / "operator").rglob("*.py"))
    assert [row for row in rows if f'"{row[1]}"' not in given] == []
    conditions = {name for kind in CONDITIONS.values() for name in kind} | {""}
    assert {condition for condition, _ in rows} <= conditions


@pytest.mark.parametrize("document", [d for _, d in MANIFESTS], ids=[name for name, _ in MANIFESTS])
def test_an_example_is_accepted(api: Api, document: dict[str, Any]) -> None:
    answer = api.create(document)
    assert answer.status_code == 201, answer.text
    assert parse(answer.json()).name == document["metadata"]["name"]
