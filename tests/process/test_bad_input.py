"""Bad input gets a 4xx with a stable code and the field named; nothing is written, all stay alive.

Real processes, one cluster for the whole table. After every case the log is as long as before.
Source: docs/protocol/errors.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.process.answers import ask_until_settled
from tests.process.cluster import LocalCluster, create_log, run

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

JSON = {"content-type": "application/json"}
RAW = {"content-type": "application/octet-stream"}
NDJSON = {"content-type": "application/x-ndjson"}
BATCH = {"content-type": "application/vnd.duramen.batch"}
LOG = "/v1/namespaces/default/logs/input"
RECORDS = f"{LOG}/records"


class Case(NamedTuple):
    """One bad append: what is sent, and the answer's status, code and field."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    code: str
    field: str | None


APPENDS = {
    "unknown log": Case(RECORDS.replace("input", "no"), RAW, b"x", 404, "log_not_found", "log"),
    "unknown namespace": Case(
        RECORDS.replace("default", "no"), RAW, b"x", 404, "namespace_not_found", "namespace"
    ),
    "bad log name": Case(RECORDS.replace("input", ".x"), RAW, b"x", 400, "invalid_name", "log"),
    "bad namespace": Case(
        RECORDS.replace("default", "Bad_"), RAW, b"x", 400, "invalid_name", "namespace"
    ),
    "record over 1 MiB": Case(RECORDS, RAW, b"x" * (2**20 + 1), 413, "record_too_large", None),
    "body over the limit": Case(RECORDS, JSON, b"x" * (20 << 20), 413, "batch_too_large", None),
    "no content type": Case(RECORDS, {}, b"x", 415, "unsupported_media", "Content-Type"),
    "other content type": Case(
        RECORDS, {"content-type": "image/png"}, b"x", 415, "unsupported_media", "Content-Type"
    ),
    "JSON that is none": Case(RECORDS, JSON, b'{"records": [', 400, "invalid_argument", None),
    "JSON of another shape": Case(RECORDS, JSON, b"[]", 400, "invalid_argument", None),
    "no records": Case(RECORDS, JSON, b'{"records": []}', 400, "invalid_argument", "records"),
    "body that is no text": Case(
        RECORDS, JSON, b'{"records": [{"body": 7}]}', 400, "invalid_argument", "records[0].body"
    ),
    "unknown field": Case(
        RECORDS, JSON, b'{"records": [{"body": "a", "bod": "b"}]}', 400, "unknown_field",
        "records[0].bod",
    ),
    "negative txid": Case(
        RECORDS, JSON, b'{"records": [{"body": "a", "txid": -1}]}', 400, "invalid_argument",
        "records[0].txid",
    ),
    "condition that fails": Case(
        RECORDS, JSON, b'{"records": [{"body": "a"}], "match_seq_num": 3}', 412,
        "condition_failed", "match_seq_num",
    ),
    "condition without sense": Case(
        RECORDS, JSON, b'{"records": [{"body": "a"}], "producer": {"id": ""}}', 400,
        "invalid_argument", "producer.id",
    ),
    "NDJSON with a bad line": Case(
        RECORDS, NDJSON, b'{"body": "a"}\nnope\n', 400, "invalid_argument", None
    ),
    "batch that is none": Case(RECORDS, BATCH, b"DRB1" + b"\0" * 80, 400, "invalid_argument", None),
}  # fmt: skip

READS = {
    "from=-1": (400, "invalid_position", "from"),
    "from=seq:99999999999999999999": (400, "invalid_position", "from"),
    "from=yesterday": (400, "invalid_position", "from"),
    "from=dlsn:e1n2": (400, "invalid_position", "from"),
    "from=seq:1000": (416, "beyond_tail", "from"),
    "count=0": (400, "invalid_argument", "count"),
    "count=-5": (400, "invalid_argument", "count"),
    "bytes=1e9": (400, "invalid_argument", "bytes"),
    "wait=2h": (400, "invalid_argument", "wait"),
    "form=head": (400, "unknown_field", "form"),
}

CONFIGS: dict[str, tuple[bytes, str, str]] = {
    "unknown field": (b'{"retnetion": {}}', "unknown_field", "retnetion"),
    "quorum": (b'{"replication": {"ack_quorum": 4}}', "invalid_argument", "replication"),
    "duration": (b'{"roll": {"interval": "soon"}}', "invalid_argument", "roll.interval"),
    "number as text": (
        b'{"replication": {"ensemble_size": "3"}}', "invalid_argument", "replication.ensemble_size",
    ),
    "no object": (b"[1]", "invalid_argument", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    run(create_log(shared_cluster, "input", {}))
    url = shared_cluster.state()["write_url"] + RECORDS
    shown = shared_cluster.read_headers()
    made = httpx.post(url, headers=RAW | shown, content=b"the only record", timeout=30)
    assert made.status_code == 200
    return shared_cluster


@pytest.fixture(autouse=True)
def _nothing_is_written(cluster: LocalCluster) -> Iterator[None]:
    pids = [p["pid"] for p in cluster.state()["processes"]]
    yield
    url = cluster.state()["read_url"] + f"{RECORDS}/tail"
    shown = cluster.read_headers()
    tail = ask_until_settled(lambda: httpx.get(url, headers=shown, timeout=30)).json()["tail"]
    assert tail["seq_num"] == 1, "something was written"
    assert [p["pid"] for p in cluster.state()["processes"]] == pids, "a process died"


def _check(answer: httpx.Response, status: int, code: str, field: str | None) -> None:
    problem: dict[str, Any] = answer.json()
    assert answer.headers["content-type"].startswith("application/problem+json"), problem
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert problem["status"] == status
    assert problem["detail"]
    assert not problem["retryable"]
    assert not problem["uncertain"]
    if field:
        assert problem["field"] == field, problem


@pytest.mark.parametrize("case", APPENDS.values(), ids=APPENDS.keys())
def test_bad_append(cluster: LocalCluster, case: Case) -> None:
    url, shown = cluster.state()["write_url"] + case.path, cluster.read_headers()
    answer = ask_until_settled(
        lambda: httpx.post(url, headers=case.headers | shown, content=case.body, timeout=30)
    )
    _check(answer, case.status, case.code, case.field)


@pytest.mark.parametrize("query", READS)
def test_bad_read(cluster: LocalCluster, query: str) -> None:
    url = cluster.state()["read_url"] + f"{RECORDS}?{query}"
    shown = cluster.read_headers()
    _check(ask_until_settled(lambda: httpx.get(url, headers=shown, timeout=30)), *READS[query])


def test_unknown_log_cannot_be_read(cluster: LocalCluster) -> None:
    url, shown = cluster.state()["read_url"], cluster.read_headers()
    answer = httpx.get(url + RECORDS.replace("input", "other"), headers=shown, timeout=30)
    _check(answer, 404, "log_not_found", "log")
    answer = httpx.get(url + RECORDS.replace("default", "other"), headers=shown, timeout=30)
    _check(answer, 404, "namespace_not_found", "namespace")


@pytest.mark.parametrize("name", CONFIGS)
def test_bad_configuration(cluster: LocalCluster, name: str) -> None:
    body, code, field = CONFIGS[name]
    url = cluster.state()["write_url"] + "/v1/namespaces/default/logs/never"
    shown = cluster.read_headers()
    _check(httpx.put(url, headers=JSON | shown, content=body, timeout=30), 400, code, field)
    assert httpx.get(url, headers=shown, timeout=30).status_code == 404, "the log was created"


def test_creating_again_with_another_configuration_is_refused(cluster: LocalCluster) -> None:
    url = cluster.state()["write_url"] + "/v1/namespaces/default/logs/twice"
    headers = JSON | cluster.read_headers()
    assert httpx.put(url, headers=headers, content=b"{}", timeout=30).status_code == 201
    assert httpx.put(url, headers=headers, content=b"{}", timeout=30).status_code == 200
    other = b'{"roll": {"interval": "1h"}}'
    answer = httpx.put(url, headers=headers, content=other, timeout=30)
    _check(answer, 409, "log_exists_with_other_config", None)
