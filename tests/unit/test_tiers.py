"""Sizes of sweeps by tier: `gate` unless said otherwise, and a misspelt tier is refused.

Which sweep has which sizes stands beside each sweep and is not repeated here.
"""

from __future__ import annotations

import pytest

from tests.tiers import VARIABLE, Tier, read_tier, sized


@pytest.mark.parametrize(("tier", "size"), [("fast", 1), ("gate", 20), ("night", 300)])
def test_a_sweep_has_the_size_of_its_tier(
    monkeypatch: pytest.MonkeyPatch, tier: str, size: int
) -> None:
    monkeypatch.setenv(VARIABLE, tier)
    assert sized(fast=1, gate=20, night=300) == size


def test_the_gate_is_what_runs_when_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert read_tier() is Tier.GATE
    assert sized(fast=1, gate=20, night=300) == 20


@pytest.mark.parametrize("name", ["", "nightly", "Gate"])
def test_a_tier_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(ValueError, match="none of fast, gate, night"):
        sized(fast=1, gate=20, night=300)


def test_a_dearer_tier_does_not_do_less() -> None:
    with pytest.raises(AssertionError):
        sized(fast=30, gate=20, night=300)
