"""Every code of the closed list that a healthy cluster can be made to answer, provoked over HTTP.

One cluster, one table: what is done before, the call, and the code. Each answer is held against the
table of errors and against the published document. The codes that need a fault are provoked by
tests/component/test_error_codes.py, which also sees that no code is left out.

Source: docs/protocol/errors.md.
"""

from __future__ import annotations

import json

import httpx
import pytest

from duramen.errors import ERRORS
from tests.component.error_answers import check_answer
from tests.process.answers import ask_until_settled
from tests.process.cluster import LocalCluster
from tests.process.error_cases import (
    CASES,
    NS,
    Ask,
)

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    return shared_cluster


def call(url: str, ask: Ask, log: str, shown: dict[str, str]) -> httpx.Response:
    headers = {**shown, **dict(ask.headers)}
    body = ask.body
    if not isinstance(body, bytes | None):
        body = json.dumps(body).encode()
    if body is not None:
        headers.setdefault("content-type", "application/json")
    path = ask.path.replace("{log}", log)
    return ask_until_settled(
        lambda: httpx.request(ask.method, url + path, content=body, headers=headers, timeout=30)
    )


@pytest.mark.parametrize("side", ["write_url", "read_url"])
@pytest.mark.parametrize("code", CASES)
def test_a_code_is_provoked_at_either_proxy(cluster: LocalCluster, code: str, side: str) -> None:
    url, shown = cluster.state()[side], cluster.read_headers()
    log = f"{code}-{side}"
    made = ask_until_settled(lambda: httpx.put(f"{url}{NS}/logs/{log}", headers=shown, timeout=30))
    assert made.status_code == 201, made.text
    *before, last = CASES[code]
    for ask in before:
        answer = call(url, ask, log, shown)
        assert answer.status_code < 300, answer.text
    answer = call(url, last, log, shown)
    check_answer(answer, last.method, last.path, ERRORS[code])
