"""Holds a refusal against the table of errors and against the published document.

Used by the tests that provoke every code, in this folder and in tests/process.
Source: docs/protocol/errors.md, docs/protocol/openapi.json.
"""

from __future__ import annotations

import json
import re

import httpx
import jsonschema_rs

from duramen.errors import ErrorKind, Retry
from duramen.runtime.public.calls import CALLS
from duramen.runtime.public.openapi import encode_document

_DOCUMENT = json.loads(encode_document())


def check_answer(answer: httpx.Response, method: str, path: str, kind: ErrorKind) -> None:
    """The answer is a problem of this kind, and the document says that the call may give it."""
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (kind.status, kind.code), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == kind.status
    assert problem["title"] == kind.title
    assert problem["retryable"] is (kind.retry is Retry.AFTER)
    assert problem["uncertain"] is kind.uncertain
    assert (
        ("retry_after_ms" in problem) is ("retry-after" in answer.headers) is problem["retryable"]
    )
    described = _DOCUMENT["paths"][find_path(method, path)][method.lower()]["responses"]
    schema = described[str(kind.status)]["content"]["application/problem+json"]["schema"]
    whole = {"components": _DOCUMENT["components"], **schema}
    jsonschema_rs.Draft202012Validator(whole).validate(problem)


def find_path(method: str, path: str) -> str:
    """The template of a call's path."""
    plain = path.partition("?")[0]
    for call in CALLS:
        pattern = re.sub(r"{\w+}", "[^/:]+", call.path)
        if call.method == method and re.fullmatch(pattern, plain):
            return call.path
    raise AssertionError(f"{method} {path} is no call")
