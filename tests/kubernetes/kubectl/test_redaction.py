"""Nothing that must stay in the house gets through the redaction, and what helps does.

Each case plants a secret in one form in which Kubernetes, the services or people write one.
"""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from duramen.runtime.credentials.access_tokens.token_text import make_token
from kubectl_duramen.support.redaction import REDACTED, find_literals, redact_object, redact_text

SECRET = "hunter2hunter2"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJkdXJhbWVuIn0.c2lnbmF0dXJl"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----"

DOCUMENTS: list[Any] = [
    {"env": [{"name": "ANY", "value": SECRET}]},
    {"template": {"spec": {"containers": [{"env": [{"name": "X", "value": SECRET}]}]}}},
    {"password": SECRET},
    {"config": {"cold_store": {"secret_access_key": SECRET}}},
    {"clientSecret": SECRET, "apiKey": SECRET, "aws_session_token": SECRET},
    {"metadata": {"annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": f'{{"x":"{SECRET}"}}'}}},
    {"metadata": {"managedFields": [{"x": SECRET}]}},
    {"args": ["--store", f"s3://AKIA:{SECRET}@bucket/x", f"--secret-key={SECRET}"]},
    {"args": [f"--password {SECRET}"]},
    {"records": [{"body": SECRET, "headers": [["a", SECRET]]}]},
    {"body": SECRET},
    {"message": f"refused: Authorization: Bearer {SECRET}"},
    {"message": f"GET https://bucket/x?X-Amz-Signature={SECRET}&a=b"},
    {"message": PEM},
]  # fmt: skip

LINES = [
    f"Authorization: Bearer {SECRET}",
    f"authorization=Basic {SECRET}",
    f"password: {SECRET}",
    f'{{"token": "{SECRET}", "level": "info"}}',
    f'{{"msg": "{{\\"api_key\\": \\"{SECRET}\\"}}"}}',
    f"AWS_SECRET_ACCESS_KEY={SECRET} spark-submit",
    f"jdbc https://me:{SECRET}@example.org/x",
    f'{{"body": "{SECRET}", "seq_num": 7}}',
    f'{{"headers": [["k", "{SECRET}"]], "seq_num": 7}}',
    PEM,
    PEM.replace("\n", "\\n"),
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_secret_in_an_object_is_taken_out(document: Any) -> None:
    clean = orjson.dumps(redact_object(document)).decode()
    assert SECRET not in clean
    assert SECRET in orjson.dumps(document).decode()


@pytest.mark.parametrize("line", LINES)
def test_a_secret_in_a_line_is_taken_out(line: str) -> None:
    clean = redact_text(line)
    assert SECRET not in clean
    assert REDACTED in clean


def test_tokens_are_known_by_their_form() -> None:
    assert JWT not in redact_text(f"got {JWT} from somewhere")
    assert "AKIAIOSFODNN7EXAMPLE" not in redact_text("AKIAIOSFODNN7EXAMPLE")
    token = make_token()
    for line in (f"caller {token.text} was refused", f"GET /x?{token.text}", f"x_{token.text}"):
        for clean in (redact_text(line), redact_object({"message": line})["message"]):
            assert token.text.rpartition("_")[2] not in clean
            assert f"dur1_{token.token_id}_{REDACTED}" in clean, "whose it was helps"
    coded = base64.b64encode(PEM.encode()).decode()
    clean = orjson.dumps(redact_object({"data": {"tls.key": coded}})).decode()
    assert coded[20:] not in clean and REDACTED in clean


def test_an_environments_values_are_taken_out_wherever_they_stand() -> None:
    pod = {"spec": {"containers": [{"env": [
        {"name": "PLACE", "value": "zk-7.internal:2181"}, {"name": "N", "value": "3"},
        {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "store", "key": "k"}}},
    ]}]}}  # fmt: skip
    literals = find_literals([pod])
    assert literals == {"zk-7.internal:2181"}
    assert "zk-7" not in redact_text("connected to zk-7.internal:2181", literals)
    clean = redact_object(pod, literals)["spec"]["containers"][0]["env"]
    assert [variable["name"] for variable in clean] == ["PLACE", "N", "REF"]
    assert clean[1]["value"] == REDACTED
    assert clean[2]["valueFrom"]["secretKeyRef"] == {"name": "store", "key": "k"}


def test_a_longer_value_is_taken_out_whole() -> None:
    assert redact_text("abcdef-ghijkl", ["abcdef", "abcdef-ghijkl"]) == REDACTED


def test_what_helps_stays() -> None:
    document = {
        "spec": {
            "secretName": "store", "imagePullSecrets": [{"name": "registry"}],
            "automountServiceAccountToken": False, "replicas": 3,
        },
        "status": {"records": 12, "conditions": [{"type": "Ready", "message": "3 bookies serve"}]},
    }  # fmt: skip
    assert redact_object(document) == document
    for line in (
        "bookie main-0: journal sync took 31 ms", "log orders/a is taken over at epoch 4",
        "GET /v1/namespaces/a/logs/b/records?from=head", "tail e4n2s0 at https://10.0.0.1:7401/",
    ):  # fmt: skip
        assert redact_text(line) == line
