"""The published document: committed, true to routes and limits of both proxies, its examples valid.

With DURAMEN_REWRITE=1 in the environment (`make docs`) docs/protocol/openapi.json is made anew.
Whether answers of running proxies are as it says is seen by tests/process/test_api_cases.py.
"""

import copy
import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from duramen.core.rights.grants import parse_scope
from duramen.errors import ERRORS
from duramen.runtime.public import openapi, schemas
from duramen.runtime.public.answers import ANSWERS
from duramen.runtime.public.calls import BATCH, CALLS, EVENTS, JSON, LOG_PATH, NDJSON, RAW, Side
from duramen.texts import check_log_name, check_namespace, parse_log_id, parse_position
from duramen.units import DURATION_PATTERN, SIZE_PATTERN, parse_duration_us, parse_size_bytes
from duramen_readproxy import parameters
from duramen_readproxy.rest import make_app as make_read_app
from duramen_writeproxy import bodies
from duramen_writeproxy.logs import catalog
from duramen_writeproxy.logs.life import add_life_routes
from duramen_writeproxy.rest import make_app as make_write_app
from duramen_writeproxy.rights.grant_routes import add_grant_routes
from duramen_writeproxy.rights.token_routes import add_token_routes

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "protocol" / "openapi.json"
DOCUMENT: dict[str, Any] = json.loads(openapi.encode_document())
OPERATIONS = [
    (path, method, described)
    for path, item in DOCUMENT["paths"].items()
    for method, described in item.items()
    if method != "parameters"
]


def validate(schema: dict[str, Any], value: Any) -> None:
    """Whether the value is as a schema of the document says."""
    whole = {"components": DOCUMENT["components"], **schema}
    jsonschema_rs.Draft202012Validator(whole).validate(value)


def test_the_committed_document_is_that_of_the_code() -> None:
    made = openapi.encode_document()
    if os.environ.get("DURAMEN_REWRITE") == "1":
        COMMITTED.write_bytes(made)
    assert COMMITTED.read_bytes() == made, "docs/protocol/openapi.json: `make docs` makes it"


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    return {
        (method, re.sub(r"{ns}", "{namespace}", route.path))
        for route in app.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def test_every_route_is_a_call_and_every_call_a_route() -> None:
    part: Any = _Anything()
    write_app = make_write_app(part, part, part, part, part)
    add_life_routes(write_app, part, part, lambda: False)
    add_grant_routes(write_app, part)
    add_token_routes(write_app, part)
    write, read = routes_of(write_app), routes_of(make_read_app(part))
    for side, routes in ((Side.WRITE, write), (Side.READ, read)):
        described = {(c.method, c.path) for c in CALLS if c.side in (side, Side.BOTH)}
        assert routes == described, side


class _Anything:
    """A part whose methods are named and not called."""

    def __getattr__(self, name: str) -> Any:
        async def endpoint(_request: Any) -> Any:
            raise AssertionError(name)

        return endpoint


def test_limits_and_media_types_are_those_of_the_proxies() -> None:
    assert openapi.LIST_COUNT_MAX == catalog.LIST_COUNT_MAX
    assert openapi.READ_COUNT_MAX == parameters.COUNT_MAX
    assert schemas.HEADER_COUNT_MAX == bodies.HEADER_COUNT_MAX
    assert (JSON, NDJSON, BATCH, RAW) == (bodies.JSON, bodies.NDJSON, bodies.BATCH, bodies.RAW)
    assert {JSON, NDJSON, EVENTS, BATCH} == {form.value for form in parameters.Form}


def test_every_parameter_of_a_read_is_described() -> None:
    described = DOCUMENT["components"]["parameters"]
    names = next(call.parameters for call in CALLS if call.name == "getRecords")
    queries = {described[name]["name"] for name in names if described[name]["in"] == "query"}
    assert queries == parameters.READ_PARAMETERS


@pytest.mark.parametrize(
    ("pattern", "read", "right", "wrong"),
    [
        (
            schemas.POSITION_PATTERN, parse_position,
            "head tail tail-3 17 seq:17 lsn:e1n2 dlsn:e1n2s3 txid:9 time:0 ago:1h30m "
            "time:2026-01-02T03:04:05Z time:2026-01-02T03:04:05.678+02:00",
            "Head tail- -1 seq: e1n2 lsn:e1 dlsn:e1n2 txid:x ago:1 time:yesterday",
        ),
        (DURATION_PATTERN, parse_duration_us, "0s 250ms 1h30m 7d", "1 s 1.5s -1s"),
        (SIZE_PATTERN, parse_size_bytes, "1 0B 64MiB 5KiB", "x 1MB -1 1.5KiB"),
        (openapi.NAMESPACE_PATTERN, check_namespace, "a a-b 9", "-a A a_b a-"),
        (
            schemas.SCOPE_PATTERN, parse_scope, "* shop shop/a shop/a* shop/A.b-c_d*",
            "shop/ shop/* ** sh* sh*/a shop/a** shop/a/b Shop /a",
        ),
        (openapi.LOG_ID_PATTERN, parse_log_id, "1 7 2147483647", "0 07 -7 +7 7.0 x 12345678901"),
        (openapi.LOG_PATTERN, check_log_name, "a A.b-c_d 9", ".a _a a:b a/b"),
    ],
)  # fmt: skip
def test_a_pattern_is_what_the_code_reads(pattern: str, read: Any, right: str, wrong: str) -> None:
    for text in right.split():
        assert re.search(pattern, text), text
        read(text)
    for text in wrong.split():
        assert not re.search(pattern, text), text
        with pytest.raises(Exception, match=r"."):
            read(text)


def test_every_code_is_described_with_its_status() -> None:
    assert DOCUMENT["components"]["schemas"]["Problem"]["properties"]["code"]["enum"] == list(
        ERRORS
    )
    for path, method, described in OPERATIONS:
        for status, answer in described["responses"].items():
            content = answer.get("content", {}).get("application/problem+json")
            if content is None:
                assert int(status) < 400, (path, method, status)
                continue
            codes = content["schema"]["allOf"][1]["properties"]["code"]["enum"]
            strangers = [code for code in codes if ERRORS[code].status != int(status)]
            assert strangers in ([], ["invalid_argument"]), (path, method, strangers)


def test_every_refusal_that_the_page_tells_of_an_append_is_described() -> None:
    page = (COMMITTED.parent / "rest.md").read_text()
    section = page.partition("### Append\n")[2].partition("\n### ")[0]
    table = section.partition("| code | then |\n")[2].partition("\n\n")[0]
    told = set(re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines())))
    (append,) = (call for call in CALLS if call.name == "append")
    assert "data_lost" in told
    assert told & set(ERRORS) <= set(append.codes)


def find_answers_without_model(document: dict[str, Any]) -> list[str]:
    """Answers whose schema is not that of a model."""
    known = [schemas.reference(schemas.name_of(model)) for model in ANSWERS]
    return [
        f"{described['operationId']} {status}"
        for item in document["paths"].values()
        for method, described in item.items()
        if method != "parameters"
        for status, answer in described["responses"].items()
        for media, content in answer.get("content", {}).items()
        if media == JSON and content["schema"] not in known
    ]


def test_the_schema_of_every_answer_is_that_of_a_model() -> None:
    assert find_answers_without_model(DOCUMENT) == []
    made = schemas.make_schemas()
    assert all(made[schemas.name_of(model)] for model in ANSWERS)
    # Planted: a schema that is written by hand, in the place of a model's and beside it.
    planted = copy.deepcopy(DOCUMENT)
    tail = planted["paths"][f"{LOG_PATH}/records/tail"]["get"]["responses"]
    tail["200"]["content"][JSON]["schema"] = {"type": "object", "properties": {"tail": {}}}
    tail["206"] = {"content": {JSON: {"schema": schemas.reference("Tale")}}}
    assert find_answers_without_model(planted) == ["getTail 200", "getTail 206"]


def list_examples() -> list[tuple[str, dict[str, Any], Any]]:
    found = []
    for _, _, described in OPERATIONS:
        places = [described.get("requestBody", {}), *described["responses"].values()]
        for place in places:
            for media, content in place.get("content", {}).items():
                for title, example in content.get("examples", {}).items():
                    if "$ref" in example:
                        example = DOCUMENT["components"]["examples"][title]
                    name = f"{described['operationId']} {media} {title}"
                    found.append((name, content["schema"], example["value"]))
    return found


def test_every_example_is_valid() -> None:
    examples = list_examples()
    assert len(examples) > 100
    for name, schema, value in examples:
        try:
            validate(schema, value)
        except jsonschema_rs.ValidationError as error:
            raise AssertionError(f"{name}: {error}") from error


def test_names_are_unique_and_every_reference_leads_somewhere() -> None:
    names = [described["operationId"] for _, _, described in OPERATIONS]
    assert len(set(names)) == len(names) == len(CALLS)
    for reference in set(re.findall(r'"\$ref": ?"#/([^"]+)"', openapi.encode_document().decode())):
        place: Any = DOCUMENT
        for part in reference.split("/"):
            place = place[part]
