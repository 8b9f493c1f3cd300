"""Clients of tests share one context of TLS, and those that are told of trust do not.

Source: CONTRIBUTING.md "Three tiers of tests".
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import certifi
import httpx
import pytest


def keep_one_authority(folder: Path) -> Path:
    """A file with the first of the public authorities alone."""
    end = "-----END CERTIFICATE-----\n"
    first = Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0]
    file = folder / "one.pem"
    file.write_text(first + end, encoding="utf-8")
    return file


def context_of(client: httpx.Client) -> ssl.SSLContext:
    transport = client._transport
    assert isinstance(transport, httpx.HTTPTransport)
    context = transport._pool._ssl_context
    assert context is not None
    return context


def test_clients_that_are_told_nothing_have_one_context_of_the_public_authorities() -> None:
    with httpx.Client() as one, httpx.Client(timeout=1) as other:
        assert context_of(one) is context_of(other)
        assert context_of(one).verify_mode is ssl.CERT_REQUIRED
        assert len(context_of(one).get_ca_certs()) > 10


def test_clients_that_are_told_whom_to_trust_trust_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with httpx.Client() as usual, httpx.Client(verify=mine) as own:
        assert context_of(own) is mine
        with httpx.Client(verify=False) as trusting:
            assert context_of(trusting).verify_mode is ssl.CERT_NONE
        monkeypatch.setenv("SSL_CERT_FILE", str(keep_one_authority(tmp_path)))
        with httpx.Client() as elsewhere, httpx.Client(trust_env=False) as deaf:
            assert context_of(elsewhere) is not context_of(usual)
            assert len(context_of(elsewhere).get_ca_certs()) == 1
            assert len(context_of(deaf).get_ca_certs()) > 10


def test_processes_that_tests_start_look_for_no_plugins() -> None:
    assert os.environ["PYDANTIC_DISABLE_PLUGINS"] == "__all__"
