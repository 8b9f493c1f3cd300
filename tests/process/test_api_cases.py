"""Calls made up from the published document, at both proxies of a real cluster: all as described.

Schemathesis makes them, valid ones and such that break one rule, and holds each answer against
the document with all its checks. 1,200 cases and more; DURAMEN_API_CASES=50000 makes more of them.
What the document cannot say stands in `CHECKS`, with the reason.

Source: docs/protocol/rest.md, docs/protocol/openapi.json, docs/testing.md.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case, GenerationMode, SerializationContext
from schemathesis.generation.meta import TestPhase

from duramen.runtime.public.calls import BATCH, BATCH_STREAM, CALLS, NDJSON
from duramen.runtime.public.openapi import encode_document
from duramen.units import GIB, parse_size_bytes
from tests.process.cluster import LocalCluster, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.timeout(3_600)]

CASE_COUNT: Final = int(os.environ.get("DURAMEN_API_CASES", "1200"))
SIDES: Final = ("write", "read")
SIDE_OF: Final = {call.name: call.side.value for call in CALLS}
EDGE_COUNT: Final = 1_000
"""At least so many cases cover the edges of each parameter, at the proxy that does the work."""

EXAMPLES: Final = -(-(CASE_COUNT - EDGE_COUNT) // (len(SIDES) * len(CALLS)))
"""For each call at each proxy, beside those."""

ROOM_COUNT: Final = 10_000
"""What a namespace may have at least, of what calls use up."""

NOBODY: Final = "403"
"""Of calls about grants and access tokens, where nobody is asked who it is."""

REFUSED: Final = ["400", NOBODY, "404", "405", "409", "412", "413", "415", "416", "422"]
CHECKS: Final = {
    "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx"]},
    "negative_data_rejection": {"expected-statuses": REFUSED},
    # What a 400 may be about is held by `check_refusal`.
    "positive_data_acceptance": {
        "expected-statuses": ["2xx", "304", "400", NOBODY, "404", "409", "412", "413", "416", "422"]
    },
}
BEYOND_THE_SCHEMA: Final = {
    "from": "a txid that no record has, a time that the calendar has not",
    "until": "the same",
    "log_id": "more than 2147483647",
    "bytes": "none, or more than 16MiB",
    "wait": "more than 60s",
    "notes": "of another form than NDJSON",
    "Duramen-Timeout": "none, or more than 60s",
    "Duramen-Fencing-Token": "its bytes are counted, not its characters",
    "fencing_token": "the same",
    "token": "the same",
    "expected": "the same",
    "to": "3.0 is an integer to a schema; here a whole number has no fraction",
    "match_seq_num": "the same",
    "producer": "the same, and once in a header and once in the body",
    "records": "NDJSON or an encoded batch that is none; base64 that is none; 3.0 for an integer; "
    "a time that the calendar has not; some records with a txid and some without",
    "line": "the same",
    "timestamp": "the same",
    "txid": "the same",
    "limits": "none, or more than can be counted, of bytes; 3.0 for an integer",
    "replication": "copies that do not fit one another; 3.0 for an integer",
    "roll": "shorter than can be",
    "flush": "longer than can be",
    "commit_delay": "the same",
    "expires": "a life that is shorter or longer than one may be",
    "scopes": "observe or operate on less than everything",
    "grants": "a principal of no kind; a grant that is not within the scope",
    "not_understood": "beside another scope than *",
    "nodeset": "of a striped log, or numbers that contradict one another or the copies",
    "sticky": "of a striped log",
    "window": "3.0 for an integer; stall of a striped log",
    "producers": "3.0 for an integer",
    None: "NDJSON that is no JSON",
}
"""First part of a field → why a call that the schema allows may be refused because of it."""

OWN_LOGS: Final = {
    "ensureLog": None,
    "deleteLog": "doomed",
    "undeleteLog": "doomed",
    "endLog": "doomed",
    "changeLog": "changed",
}
"""The log that a call is about; None: one of its own; the others': `cases`."""

CONFIG: Final = schemathesis.Config.from_dict({"checks": CHECKS})
schema = schemathesis.openapi.from_dict(json.loads(encode_document()), config=CONFIG)


@schemathesis.serializer(NDJSON, BATCH, BATCH_STREAM)
def send_as_it_is(_context: SerializationContext, value: Any) -> bytes:
    """Forms that schemathesis does not know."""
    return value if isinstance(value, bytes) else str(value).encode()


counted: Counter[str] = Counter()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("api") / "c") as started:
        url, shown = started.state()["write_url"], started.read_headers()
        for log in ("cases", "changed", "doomed"):
            made = httpx.put(f"{url}/v1/namespaces/default/logs/{log}", headers=shown, timeout=30)
            assert made.status_code == 201, made.text
        yield started


@pytest.mark.parametrize("side", SIDES)
@schema.parametrize()
@settings(
    max_examples=EXAMPLES, derandomize=CASE_COUNT <= 1500, database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_answers_are_as_the_document_says(
    case: Case[Any], cluster: LocalCluster, side: str
) -> None:
    is_edge = case.meta is not None and case.meta.phase.name is TestPhase.COVERAGE
    if is_edge and SIDE_OF[case.operation.definition.raw["operationId"]] not in (side, "both"):
        return
    is_valid = case.meta is None or case.meta.generation.mode is GenerationMode.POSITIVE
    if is_valid:
        settle(case)
    response = case.call(
        base_url=cluster.state()[f"{side}_url"], headers=cluster.read_headers(), timeout=30
    )
    counted[f"{side} {response.status_code}"] += 1
    case.validate_response(response)
    if is_valid and response.status_code == 400:
        check_refusal(response.json())


def settle(case: Case[Any]) -> None:
    """Let three of four valid calls be about something that is there, and none wait for long."""
    if "wait" in case.query:
        case.query["wait"] = "5ms"
    if isinstance(case.body, dict) and isinstance(limits := case.body.get("limits"), dict):
        limits.update({name: widen(value) for name, value in limits.items() if name != "logs"})
    if case.headers.get("Duramen-Producer") == "0":
        del case.headers["Duramen-Producer"]  # what schemathesis has where its patterns fail it
    if counted.total() % 4:
        case.query.pop("log_id", None)  # made up, it is another log's
        if "namespace" in case.path_parameters and case.operation.label.count("/") > 3:
            case.path_parameters["namespace"] = "default"
        log = OWN_LOGS.get(case.operation.definition.raw["operationId"], "cases")
        if "log" in case.path_parameters and log is not None:
            case.path_parameters["log"] = log


def widen(limit: Any) -> Any:
    """Others call in the same namespace: a limit that is made up would refuse them, if it comes to
    it, by how quickly they follow one another."""
    if type(limit) is int and limit > 0:
        return max(limit, ROOM_COUNT)
    with suppress(ValueError):
        if isinstance(limit, str) and 0 < parse_size_bytes(limit) < GIB:
            return "1GiB"
    return limit


def check_refusal(problem: dict[str, Any]) -> None:
    """A call that the schema allows was refused for what the schema cannot say."""
    field = problem.get("field")
    first = field if field is None else re.split(r"[.\[ ]", field)[0]
    assert first in BEYOND_THE_SCHEMA, problem


def test_there_were_enough_cases() -> None:
    print(dict(counted))
    assert counted.total() >= CASE_COUNT
