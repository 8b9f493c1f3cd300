"""A service that asks nobody who calls is reached from its own machine alone, unless it is told.

Source: docs/protocol/identity.md "Without an identity".
"""

from __future__ import annotations

from typing import Final

import pytest

from duramen.runtime.role import StartRefusedError
from duramen.runtime.security.process_security import open_security
from duramen.runtime.service import parse_options

ARGUMENTS: Final = (
    "--cluster", "c", "--id", "node-0", "--data-port", "7201", "--admin-port", "7202",
    "--zookeeper", "zk:2181", "--security", "none",
)  # fmt: skip
ROLES: Final = ("bookie", "sequencer", "writeproxy", "readproxy")


def start(role: str, host: str, *more: str) -> None:
    """As the frame of every service begins."""
    data = ("--data-dir", "x") if role == "bookie" else ()
    options = parse_options(role, [*ARGUMENTS, *data, "--host", host, *more])
    assert open_security(options, pytest.fail) is None


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.1.2.3", "node.example", "fe80::1"])
def test_an_address_that_others_reach_needs_a_word(role: str, host: str) -> None:
    with pytest.raises(StartRefusedError, match=r"may do everything: .* say --accept-anybody"):
        start(role, host)
    start(role, host, "--accept-anybody")


def test_who_only_counts_refusals_needs_the_word_too() -> None:
    turning = ["--security", "migrate", "--tls-dir", "t"]
    turning += ["--tls-data-port", "7211", "--tls-admin-port", "7212"]
    with pytest.raises(StartRefusedError, match=r"security migrate .* say --accept-anybody"):
        start("sequencer", "10.1.2.3", *turning)
    with pytest.raises(StartRefusedError, match=r"t/tls\.key is missing"):
        start("sequencer", "10.1.2.3", *turning, "--accept-anybody")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "a.localhost"])
def test_loopback_needs_none(role: str, host: str) -> None:
    start(role, host)


def test_who_asks_its_callers_accepts_nobody_beside(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--security", "on", "--tls-dir", "t", "--accept-anybody"]
    with pytest.raises(SystemExit):
        parse_options("sequencer", [*ARGUMENTS, *more])
    assert "without --security on" in capsys.readouterr().err
